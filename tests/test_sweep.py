"""`tv.sweep` in one process: numbers, tables, failures, one sweep at a time, progress."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sweep_targets import LAYOUT, SMALL, files, normal, run

import pyturingvi as tv
from pyturingvi.errors import InputError, OutputError
from pyturingvi.sweeps.folder import SweepFolder
from pyturingvi.sweeps.grid import read_grid
from pyturingvi.sweeps.lock import SweepLock
from pyturingvi.sweeps.pools import check_workers
from pyturingvi.sweeps.progress import SweepProgress, duration
from pyturingvi.sweeps.worker import Task, run_cell

TRACE = ["iteration", "elbo", "std_error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": "all"}, "Unknown keep 'all'"),
        ({"keep": np.array(["trace", "fit"])}, "Unknown keep array"),
        ({"n_workers": 0}, "n_workers must be a whole number of at least 1"),
        ({"n_workers": 10**9}, r"n_workers must be at most \d+ on this machine of \d+ logical cores, got 1000000000"),
        ({"n_threads": 0}, "n_threads"),
        ({"executor": object()}, "executor must have a submit method"),
        ({"executor": ThreadPoolExecutor}, "executor must be an instance, got the class ThreadPoolExecutor"),
        ({"out": 3}, "out must be a path"),
        ({"out": ""}, "out must not be empty"),
    ],
)
def test_bad_arguments_are_refused(isotropic: Any, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.sweep({"model": isotropic, **SMALL}, **{"out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("n_cores", "most"), [(2, 64), (48, 192), (None, 64)])
def test_more_workers_than_a_machine_bears_are_refused(
    monkeypatch: pytest.MonkeyPatch, n_cores: int | None, most: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: n_cores)
    assert check_workers(float(most)) == most
    with pytest.raises(InputError, match=f"--workers must be at most {most} "):
        check_workers(most + 1, "--workers")


# ---- numbers and tables --------------------------------------------------------------------------------------
def test_a_cell_has_the_numbers_of_a_fit(poisson: Any, executor: Any, tmp_path: Path) -> None:
    grid = {"model": poisson, "family": ["mean-field", "structured"], "stepsize": 1e-2, "seed": [0, 7], **SMALL}
    found = run({**grid, "averaging": [None, tv.PolynomialAveraging()]}, executor, tmp_path, keep="fit")
    assert (found.status, len(found)) == ("completed", 8)
    frame, traces = found.frame(), found.traces()
    assert list(frame["seed"]) == [0, 0, 7, 7] * 2
    for row in frame.itertuples():
        averaging = None if pd.isna(row.averaging) else tv.PolynomialAveraging()
        direct = tv.fit(poisson, row.family, tv.Adam(1e-2), seed=row.seed, averaging=averaging, progress=False, **SMALL)
        pd.testing.assert_frame_equal(
            traces.loc[traces["cell"] == row.cell, TRACE].reset_index(drop=True), direct.elbo[TRACE]
        )
        assert [row.elbo, row.std_error] == direct.elbo[["elbo", "std_error"]].iloc[-1].tolist()
        assert (row.status, row.n_updates, row.message) == (direct.status, 60, direct.message)
        assert row.n_params == direct.params.size
        kept = found.fit(row.cell)
        np.testing.assert_array_equal(kept.params, direct.params)
        assert kept.spec == direct.spec
        assert kept.model.label == poisson.label


def test_the_tables_say_what_was_varied(isotropic: Any, executor: Any, tmp_path: Path) -> None:
    isotropic.label = "four rows"
    families = [tv.Structured(standardized=False), tv.MeanField(base=("student_t", 8)), "full-rank"]
    grid: dict[str, Any] = {"model": isotropic, "family": families, "stepsize": [tv.step_decay(0.1, every=20)], **SMALL}
    found = run([grid, {**grid, "family": "mean-field", "optimizer": tv.ProjectedSGD(1.0)}], executor, tmp_path)
    frame = found.frame()
    assert list(frame["family"]) == [
        "structured(standardized=False)",
        "mean-field(base=['student_t', 8.0])",
        "full-rank",
        "mean-field",
    ]
    assert list(frame["optimizer"]) == ["adam"] * 3 + ["projected-sgd"]
    assert set(frame["stepsize"]) == {"step_decay(0.1, 0.1, 20)"}
    assert set(frame["model"]) == {"four rows"}
    assert (frame["d"] == isotropic.dim).all()
    assert (frame["seconds"] > 0).all()
    traces = found.traces()
    assert len(traces) == 4 * 3
    assert list(traces["iteration"]) == [25, 50, 60] * 4
    assert (traces.groupby("cell")["seconds"].diff().dropna() >= 0).all()
    assert set(traces.columns) >= {"cell", "model", "family", "optimizer", "stepsize", "seed", *TRACE, "seconds"}


def test_float32_and_an_array_to_start_from(poisson: Any, executor: Any, tmp_path: Path) -> None:
    start = np.linspace(-0.2, 0.2, poisson.dim)
    found = run({"model": poisson, "dtype": "float32", "init_location": [start], **SMALL}, executor, tmp_path)
    direct = tv.fit(poisson, dtype="float32", init_location=start, progress=False, **SMALL)
    pd.testing.assert_frame_equal(found.traces()[TRACE], direct.elbo[TRACE])


def test_non_finite_numbers_come_back_and_the_file_is_strict_json(executor: Any, tmp_path: Path) -> None:
    def steep(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        far = np.abs(points).max(axis=1) > 1.0
        return np.where(far, -np.inf, normal(points)[0]), normal(points)[1]

    model = tv.models.LogDensity(steep, LAYOUT)
    found = run({"model": model, "init_scale": 0.5, **SMALL}, executor, tmp_path)
    assert found.status == "completed"  # of the sweep: the diverged cell is a result
    assert found.frame()["status"].item() == "diverged"
    assert found.frame()["elbo"].item() == -np.inf
    json.loads((tmp_path / "cells" / f"{found.cells[0]}.json").read_text(), parse_constant=pytest.fail)


# ---- idempotence ---------------------------------------------------------------------------------------------
def test_the_same_bytes_whoever_runs_it_and_nothing_left_over(poisson: Any, tmp_path: Path) -> None:
    grid = {"model": poisson, "family": ["mean-field", "structured"], "seed": range(2), **SMALL}
    with ThreadPoolExecutor(3) as threads:
        run(grid, threads, tmp_path / "a", keep="fit", n_threads=2)
    run(grid, None, tmp_path / "b", keep="fit", n_workers=2)
    assert len(files(tmp_path / "a")) == 4 + 4 + 1
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["cells", "fits", "models", "timings"]
    assert not list((tmp_path / "b").rglob("*.part"))


def test_a_second_call_runs_nothing_and_a_larger_grid_only_what_is_new(
    isotropic: Any, executor: Any, tmp_path: Path
) -> None:
    grid = {"model": isotropic, "seed": range(2), **SMALL}
    first = run(grid, executor, tmp_path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    pd.testing.assert_frame_equal(run(grid, None, tmp_path).frame(), first.frame())
    larger = run({**grid, "seed": range(3)}, executor, tmp_path)
    assert len(larger) == 3
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    assert len(run(grid, None, tmp_path)) == 2  # only its own
    assert len(tv.load_sweep(tmp_path)) == 3


def test_to_keep_the_fits_later_runs_the_cells_again_to_the_same_bytes(
    isotropic: Any, executor: Any, tmp_path: Path
) -> None:
    grid = {"model": isotropic, **SMALL}
    found = run(grid, executor, tmp_path)
    before = files(tmp_path)
    with pytest.raises(InputError, match=r"was not kept; call tv\.sweep with keep='fit'"):
        found.fit(found.cells[0])
    with pytest.raises(InputError, match="Unknown cell 'other'"):
        found.fit("other")
    again = run(grid, executor, tmp_path, keep="fit")
    assert again.fit(again.cells[0]).n_updates == 60
    assert before.items() <= files(tmp_path).items()


def test_load_sweep_reads_what_there_is(isotropic: Any, executor: Any, tmp_path: Path) -> None:
    grid = {"model": isotropic, "seed": [3, 1, 2], **SMALL}
    run({**grid, "seed": 1}, executor, tmp_path)
    assert list(tv.load_sweep(tmp_path).frame()["seed"]) == [1]
    partial = tv.load_sweep(str(tmp_path), grid)
    assert list(partial.frame()["status"]) == ["missing", "completed", "missing"]
    assert list(partial.frame()["seed"]) == [3, 1, 2]
    assert partial.status == "incomplete"
    assert partial.counts == {"completed": 1, "diverged": 0, "failed": 0, "missing": 2}
    assert set(partial.traces()["seed"]) == {1}
    assert "1 completed, 2 missing" in repr(partial)
    for place in (tmp_path / "nowhere", tmp_path / "cells"):
        with pytest.raises(OutputError, match="no folder of a sweep"):
            tv.load_sweep(place)
    (tmp_path / "empty" / "cells").mkdir(parents=True)
    assert len(tv.load_sweep(tmp_path / "empty").frame()) == len(tv.load_sweep(tmp_path / "empty").traces()) == 0


# ---- failures ------------------------------------------------------------------------------------------------
class Moody:
    """A log density that fails while it is told to."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.seen: list[int] = []  # appending is atomic, for tests with threads

    @property
    def gradients(self) -> int:
        """Gradients asked for, of M = 4 points."""
        return self.seen.count(4)

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.seen.append(len(points))
        if self.error is not None and self.gradients > 30:
            raise self.error
        return normal(points)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (RuntimeError("the data are wrong"), "RuntimeError", "the data are wrong"),
        (MemoryError(), "MemoryError", "MemoryError"),
        (SystemExit("enough"), "SystemExit", "enough"),
    ],
)
def test_a_failed_cell_is_recorded_while_others_go_on_and_is_tried_again(
    isotropic: Any, executor: Any, tmp_path: Path, error: BaseException, kind: str, message: str
) -> None:
    moody = Moody()
    grid = {"model": [tv.models.LogDensity(moody, LAYOUT), isotropic], **SMALL}
    run(grid, executor, tmp_path / "calm")
    moody.error, moody.seen = error, []
    found = run(grid, executor, tmp_path / "out")
    frame = found.frame().set_index("model")
    assert list(frame["status"]) == ["failed", "completed"]
    assert frame.loc["log_density", ["error", "message"]].tolist() == [kind, message]
    assert frame["error"].isna().tolist() == [False, True]
    assert np.isnan(frame.loc["log_density", "elbo"])
    assert (found.status, found.counts["failed"]) == ("incomplete", 1)
    timing = json.loads((tmp_path / "out" / "timings" / f"{found.cells[0]}.json").read_text())
    assert "in __call__" in timing["traceback"]
    moody.error, moody.seen = None, []
    assert run(grid, executor, tmp_path / "out").status == "completed"
    assert moody.gradients == 30  # it went on from where it failed
    assert files(tmp_path / "out") == files(tmp_path / "calm")
    assert not (tmp_path / "out" / "work").exists()


def test_a_start_that_cannot_be_is_the_failure_of_its_cell(poisson: Any, executor: Any, tmp_path: Path) -> None:
    found = run({"model": poisson, "init_location": [0.0, 1e6], **SMALL}, executor, tmp_path)
    assert list(found.frame()["status"]) == ["completed", "failed"]
    assert "choose another init_location" in found.frame()["message"][1]
    assert not (tmp_path / "work").exists()


def test_a_failure_does_not_take_the_place_of_a_result(isotropic: Any, executor: Any, tmp_path: Path) -> None:
    found = run({"model": isotropic, **SMALL}, executor, tmp_path)
    cell, before = read_grid({"model": isotropic, **SMALL})[0], files(tmp_path)
    from pyturingvi.sweeps.worker import write_failure

    write_failure(SweepFolder(tmp_path), cell.name, cell.description, "MemoryError", "none left")
    assert files(tmp_path) == before
    assert found.cells == [cell.name]


@pytest.mark.parametrize("kind", ["damaged", "of another fit"])
def test_a_checkpoint_that_does_not_fit_is_dropped(isotropic: Any, executor: Any, tmp_path: Path, kind: str) -> None:
    grid = {"model": isotropic, **SMALL}
    expected = run(grid, executor, tmp_path / "a").traces()[TRACE]
    scratch = tmp_path / "b" / "work" / read_grid(grid)[0].name
    scratch.mkdir(parents=True)
    if kind == "damaged":
        (scratch / "checkpoint.npz").write_bytes(b"PK\x03\x04 and no more")
    else:
        settings = {**SMALL, "seed": 9, "progress": False, "checkpoint": scratch / "checkpoint.npz"}
        tv.fit(isotropic, **settings)
    found = run(grid, executor, tmp_path / "b")
    assert found.status == "completed"
    pd.testing.assert_frame_equal(found.traces()[TRACE], expected)


# ---- one sweep at a time ---------------------------------------------------------------------------------------
def test_a_second_sweep_in_a_folder_is_refused_while_the_first_is_at_work(isotropic: Any, tmp_path: Path) -> None:
    refused: list[str] = []

    def busy(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if (tmp_path / "work").exists() and not refused:
            with pytest.raises(OutputError) as caught, ThreadPoolExecutor(1) as pool:
                run({"model": isotropic, **SMALL}, pool, tmp_path)
            refused.append(str(caught.value))
            refused.append(tv.load_sweep(tmp_path).status)  # to read is no work
        return normal(points)

    with ThreadPoolExecutor(1) as pool:
        found = run({"model": tv.models.LogDensity(busy, LAYOUT), "seed": range(2), **SMALL}, pool, tmp_path)
        assert refused[0].startswith(f"out: another sweep (process {os.getpid()} on {platform.node()}, since 2")
        assert refused[0].endswith(f"is at work in {str(tmp_path)!r}; wait for it, or give another out=.")
        assert (refused[1], found.counts["completed"]) == ("completed", 2)
        assert run({"model": isotropic, **SMALL}, pool, tmp_path).status == "completed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cells", "models", "timings"]


def test_without_locks_on_the_file_system_the_cells_are_run_all_the_same(
    isotropic: Any, executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any, **options: Any) -> None:
        raise NotImplementedError("no flock")

    monkeypatch.setattr("filelock.FileLock.acquire", none)
    assert run({"model": isotropic, **SMALL}, executor, tmp_path).status == "completed"


def test_a_cell_that_is_stopped_is_not_taken_for_a_diverged_one(
    executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate at its end, here minus infinity, is one that an undisturbed run does not make."""
    monkeypatch.setattr("pyturingvi.sweeps.worker._LOOK_SECONDS", 0.0)
    locks: list[SweepLock] = []
    seen: list[int] = []

    def low(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append(len(points))
        if locks and seen.count(4) == 40:
            locks[0].stop_workers()
        middle = len(points) == 16 and 30 < seen.count(4) < 60
        return np.full(len(points), -np.inf) if middle else normal(points)[0], normal(points)[1]

    grid = {"model": tv.models.LogDensity(low, LAYOUT), **SMALL}
    whole = run(grid, executor, tmp_path / "whole")
    assert (whole.counts["completed"], whole.traces()["elbo"][1]) == (1, -np.inf)
    seen.clear()
    (cell,), folder = read_grid(grid), SweepFolder.create(tmp_path / "out")
    with SweepLock(folder) as lock:
        locks.append(lock)
        task = Task(str(folder.root), lock.token, cell.name, cell.description, cell.settings, cell.model, "trace", 1)
        assert run_cell(task).outcome == "stopped"
    assert seen.count(4) == 50
    assert not list(folder.cells.iterdir())
    seen[:] = [4] * 60
    assert run(grid, executor, tmp_path / "out").status == "completed"


# ---- progress ------------------------------------------------------------------------------------------------
def test_the_time_left_goes_by_the_expected_cost_not_by_the_count() -> None:
    bar = SweepProgress(10, 0, show=False)
    assert bar.seconds_left([1.0], [], 1) is None
    bar.learn(10.0, 20.0)
    assert bar.seconds_left([100.0, 5.0], [], 1) == pytest.approx(210.0)
    assert bar.seconds_left([20.0] * 8, [(20.0, 30.0)], 2) == pytest.approx((320.0 + 10.0) / 2)
    assert bar.seconds_left([], [(20.0, 30.0), (1.0, 99.0)], 2) == pytest.approx(10.0)  # no less than the longest
    assert [duration(x) for x in (5.2, 99, 130, 5900, 9000)] == ["5 s", "99 s", "2 min", "98 min", "2.5 h"]


def test_cells_of_this_call_and_of_earlier_ones_tell_how_long_the_others_take(
    isotropic: Any, executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[SweepProgress] = []

    def keep_bar(*arguments: Any) -> SweepProgress:
        bars.append(SweepProgress(*arguments))
        return bars[-1]

    monkeypatch.setattr("pyturingvi.sweeps.sweep.SweepProgress", keep_bar)
    grid = {"model": isotropic, **SMALL}
    cost = read_grid(grid)[0].cost
    run({**grid, "seed": range(2)}, executor, tmp_path)
    seconds = run({**grid, "seed": range(4)}, executor, tmp_path).frame()["seconds"]
    assert bars[0].seconds_left([cost], [], 1) == pytest.approx(seconds[:2].mean())
    assert bars[1].seconds_left([cost], [], 1) == pytest.approx(seconds.mean())


def test_the_bar_counts_cells_and_what_became_of_them(
    executor: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tv.models.LogDensity(normal, LAYOUT)
    grid = {"model": model, "optimizer": ["sgd"], "stepsize": [1e-2, 1e12], **SMALL}
    tv.sweep({**grid, "seed": 0}, executor, out=tmp_path)
    tv.sweep({**grid, "seed": range(2)}, executor, out=tmp_path)
    lines = capsys.readouterr().err.replace("\r", "\n").strip().splitlines()
    assert "4/4 cells" in lines[-1]
    assert lines[-1].endswith("1 completed, 1 diverged")


def test_importing_the_package_imports_no_workers() -> None:
    code = "import sys, pyturingvi as tv; tv.sweep; print('loky' in sys.modules, 'pandas' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(tv.__file__).parents[1])}
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    assert told.stdout.split() == ["False", "False"]
