"""`tv.sweep` in one process: grids, cells, files, failures, results."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sweep_targets import LAYOUT, SMALL, files, normal, run

import pyturingvi as tv
from pyturingvi.errors import DataError, EngineError, InputError, OutputError
from pyturingvi.support.archive import read_archive
from pyturingvi.sweeps import folder as folder_module
from pyturingvi.sweeps.folder import CellLock, SweepFolder
from pyturingvi.sweeps.grid import SETTINGS, read_grid
from pyturingvi.sweeps.pools import LocalWorkers, check_workers
from pyturingvi.sweeps.progress import SweepProgress, duration
from pyturingvi.sweeps.worker import Task, run_cell

TRACE = ["iteration", "elbo", "std_error"]


# ---- grids ---------------------------------------------------------------------------------------------------
def test_a_mapping_is_a_product_and_a_list_of_them_a_union(isotropic: Any) -> None:
    product = {"model": isotropic, "family": ["mean-field", "full-rank"], "stepsize": np.array([1e-3, 1e-2])}
    cells = read_grid({**product, "seed": range(3)})
    assert len({cell.name for cell in cells}) == 12
    varied = [
        (c.settings["family"]["family"], c.settings["optimizer"]["stepsize"], c.settings["seed"]) for c in cells[:4]
    ]
    assert varied == [
        ("mean-field", 1e-3, 0),
        ("mean-field", 1e-3, 1),
        ("mean-field", 1e-3, 2),
        ("mean-field", 1e-2, 0),
    ]
    union = read_grid([{**product, "seed": 0}, {**product, "seed": [0, 5]}])
    assert [cell.name for cell in union][:4] == [cell.name for cell in read_grid({**product, "seed": 0})]
    assert len(union) == 8
    assert all(json.loads(json.dumps(cell.settings)) == cell.settings for cell in cells)


def test_a_cell_name_is_readable_and_tells_everything_apart(isotropic: Any, poisson: Any) -> None:
    poisson.label = "Poisson / Ünder *test*" + 60 * "x"
    base: dict[str, Any] = {"model": isotropic, **SMALL}
    changes: list[dict[str, Any]] = [
        {},
        {"model": poisson},
        {"family": tv.Structured(standardized=False)},
        {"family": tv.Structured(base=("student_t", 8))},
        {"optimizer": tv.Adam(1e-3, beta1=0.8)},
        {"optimizer": "sgd", "stepsize": 1e-3},
        {"stepsize": tv.step_decay(1e-3)},
        {"init_location": 0.5},
        {"init_location": [np.arange(float(isotropic.dim))]},
        {"init_scale": 0.2},
        {"averaging": tv.PolynomialAveraging()},
        {"dtype": "float32"},
        {"device": "cuda"},
        {"seed": 1},
        *({key: value + 1} for key, value in SMALL.items()),
    ]
    cells = read_grid([{**base, **change} for change in changes])
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(changes)
    assert names[0].startswith("gaussian_structured_adam-0.001_seed0_")
    assert names[1].startswith("poisson-nder-test-xxx")
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-") and len(name) < 140 for name in names)
    again = read_grid({**base, "n_samples": 4.0, "family": tv.Structured(), "optimizer": "adam", "stepsize": 1e-3})
    assert [cell.name for cell in again] == names[:1]


def test_a_problem_by_name_is_the_model_that_it_loads(tmp_path: Path) -> None:
    cell, other = read_grid({"model": "volatility-small", "simulated": True, "data_seed": [0, 1], **SMALL})
    model = tv.load_problem("volatility-small", simulated=True)
    assert cell.settings["model"] == "volatility-small (simulated)"
    assert cell.settings["d"] == model.dim
    np.testing.assert_array_equal(cell.model.get_state()["returns"], model.get_state()["returns"])
    assert cell.settings["model_digest"] != other.settings["model_digest"]


def test_what_a_cell_leaves_open_is_the_default_of_fit(isotropic: Any, executor: Any, tmp_path: Path) -> None:
    grid = {"model": isotropic, "family": "mean-field", "n_iterations": 1}
    run(grid, executor, tmp_path, keep="fit")
    direct = tv.fit(isotropic, "mean-field", n_iterations=1, progress=False)
    spec = tv.load_sweep(tmp_path).fit(read_grid(grid)[0].name).spec
    assert spec == direct.spec


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (3, "grid must be a mapping"),
        ([], "grid is empty"),
        ([{"seed": 1}], "model is missing"),
        ({"model": "rpoisson-smal"}, "Did you mean 'rpoisson-small'"),
        ({"model": 3}, "model must be a problem's name"),
        ({"model": "MODEL", "sead": 1}, "Unknown setting of a cell 'sead'. Did you mean 'seed'"),
        ({"problem": "rpoisson-small"}, "give the problem's name as model="),
        ({"model": "MODEL", "checkpoint": "x.npz"}, "a sweep keeps its own checkpoints"),
        ({"model": "MODEL", "n_threads": 2}, "argument of tv.sweep itself"),
        ({"model": "MODEL", "seed": []}, "seed is an empty list"),
        ({"model": "MODEL", "seed": [0, -1]}, "seed must be a whole number"),
        ({"model": "MODEL", "family": ["structured", "mean-feild"]}, "Did you mean 'mean-field'"),
        ({"model": "MODEL", "optimizer": "adm"}, "Did you mean 'adam'"),
        ({"model": "MODEL", "optimizer": "sgd"}, "needs a stepsize"),
        ({"model": "MODEL", "stepsize": [1e-3, -1]}, "stepsize must be a finite number above 0"),
        ({"model": "MODEL", "n_iterations": 1.5}, "n_iterations must be a whole number"),
        ({"model": "MODEL", "dtype": "float16"}, "Unknown dtype"),
        ({"model": "MODEL", "device": "gpu"}, "Unknown device"),
        ({"model": "MODEL", "engine": "numpi"}, "Did you mean 'numpy'"),
        ({"model": "MODEL", "averaging": 3}, "averaging must be"),
        ({"model": "MODEL", "init_scale": 0}, "init_scale must be"),
        ({"model": "MODEL", "init_location": [np.zeros(3)]}, "init_location must be"),
        ({"model": "MODEL", "init_location": np.nan}, "init_location must be"),
        ({"model": "MODEL", "simulated": True}, "simulated goes with a problem's name"),
        ({"model": "rpoisson-small", "simulated": "yes"}, "simulated must be True or False"),
        ("grid", "grid must be a mapping"),
        (range(10**12), "grid must be a mapping"),
        (itertools.repeat({"model": "rpoisson-small"}), "grid must be a mapping"),
        (np.array(3), "grid must be a mapping"),
        ({"model": "MODEL", "seed": range(1_000_001)}, "grid has 1,000,001 cells, and a sweep takes at most 1,000,000"),
        ({"model": "MODEL", "seed": range(10**30)}, r"grid has more than 10\*\*18 cells"),
        ({"model": "MODEL", "seed": range(10**4), "n_samples": range(1, 10**4)}, "grid has 99,990,000 cells"),
        (2 * [{"model": "rpoisson-small", "seed": range(600_000)}], "grid has 1,200,000 cells"),
        ({"model": "MODEL", "seed": itertools.count()}, r"grid: seed is count\(0\), which does not tell how many"),
        ({"model": "MODEL", "seed": (i for i in range(3))}, "grid: seed is <generator .* give a list"),
    ],
)
def test_a_bad_grid_is_refused_before_anything_is_written(
    isotropic: Any, tmp_path: Path, grid: Any, words: str
) -> None:
    if isinstance(grid, dict) and grid.get("model") == "MODEL":
        grid = {**grid, "model": isotropic}
    with pytest.raises((InputError, EngineError), match=words):
        run(grid, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "init_location"])
@pytest.mark.parametrize("value", [np.array(["a", "b"]), np.array([1e-3, 1e-2]), np.array([]), [1, 2], {"a": 1}, 1j])
def test_a_value_of_a_wrong_kind_is_refused_by_its_name(isotropic: Any, name: str, value: Any) -> None:
    """An array in a list is one value, not the values along the axis."""
    for resolve_engine in (True, False):
        with pytest.raises(InputError, match=name):
            read_grid({"model": isotropic, **SMALL, name: [value]}, resolve_engine)


def test_a_data_seed_and_a_folder_of_data_may_be_of_numpy_and_a_string(isotropic: Any, tmp_path: Path) -> None:
    given = {"model": isotropic, "data_seed": np.int64(0), "simulated": np.bool_(False), "data_dir": None, **SMALL}
    assert read_grid(given)[0].settings == read_grid({"model": isotropic, **SMALL})[0].settings
    simulated = {"model": "volatility-small", "simulated": True, **SMALL}
    seeds = [1, np.int64(1), 1.0]
    assert len(read_grid({**simulated, "data_seed": seeds})) == 1
    with pytest.raises(DataError, match="is not a folder"):
        read_grid({"model": "rpoisson-small", "data_dir": str(tmp_path / "none"), **SMALL})


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


def test_a_note_says_which_cell_is_wrong(isotropic: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        run({"model": isotropic, "seed": [4, -4]}, None, tmp_path)
    assert any("'seed': -4" in note for note in caught.value.__notes__)


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

    write_failure(SweepFolder(tmp_path), cell.name, cell.settings, "MemoryError", "none left")
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


def test_a_checkpoint_is_gone_on_from(executor: Any, tmp_path: Path) -> None:
    moody = Moody()
    model = tv.models.LogDensity(moody, LAYOUT)
    grid = {"model": model, **SMALL}
    run(grid, executor, tmp_path / "a")
    scratch = tmp_path / "b" / "work" / read_grid(grid)[0].name
    scratch.mkdir(parents=True)
    tv.fit(model, **{**SMALL, "n_iterations": 42}, progress=False, checkpoint=scratch / "checkpoint.npz")
    assert read_archive(scratch / "checkpoint.npz", "checkpoint", "test")[0]["iteration"] == 42
    moody.seen = []
    run(grid, executor, tmp_path / "b")
    assert moody.gradients == 60 - 42
    assert files(tmp_path / "a") == files(tmp_path / "b")


# ---- two at a time -------------------------------------------------------------------------------------------
def test_two_sweeps_on_one_folder_share_the_work(tmp_path: Path) -> None:
    moody, counts = Moody(), []

    def slow(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.001)
        return moody(points)

    grid = {"model": tv.models.LogDensity(slow, LAYOUT), "seed": range(6), **SMALL}

    def call() -> None:
        with ThreadPoolExecutor(1) as pool:
            counts.append(run(grid, pool, tmp_path / "out", keep="fit").counts["completed"])

    threads = [threading.Thread(target=call) for _ in range(2)]
    moody.seen = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [6, 6]
    assert moody.gradients == 6 * 60  # no cell twice
    with ThreadPoolExecutor(1) as pool:
        run(grid, pool, tmp_path / "alone", keep="fit")
    assert files(tmp_path / "out") == files(tmp_path / "alone")
    assert not (tmp_path / "out" / "work").exists()
    assert not (tmp_path / "out" / "calls").exists()


def test_a_lock_keeps_others_off_until_its_holder_ends_or_gives_no_sign_of_life(tmp_path: Path) -> None:
    first, second = CellLock(tmp_path / "cell"), CellLock(tmp_path / "cell")
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    assert not first.acquire()
    long_ago = time.time() - 2 * folder_module._STALE_SECONDS
    os.utime(tmp_path / "cell" / "lock", (long_ago, long_ago))
    assert first.acquire()
    second.release()


def test_the_lock_of_a_killed_process_does_not_block(isotropic: Any, executor: Any, tmp_path: Path) -> None:
    grid = {"model": isotropic, **SMALL}
    scratch = tmp_path / "work" / read_grid(grid)[0].name
    code = "import sys, time, filelock; scratch = sys.argv[1]; lock = filelock.FileLock(scratch + '/lock')\n"
    code += "lock.acquire(); print('held', flush=True); time.sleep(60)"
    scratch.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", code, str(scratch)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not CellLock(scratch).acquire()
        holder.kill()
    start = time.monotonic()
    assert run(grid, executor, tmp_path).status == "completed"
    assert time.monotonic() - start < 10


def test_without_locks_on_the_file_system_the_cells_are_run_all_the_same(
    isotropic: Any, executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any, **options: Any) -> None:
        raise NotImplementedError("no flock")

    monkeypatch.setattr("filelock.FileLock.acquire", none)
    assert run({"model": isotropic, **SMALL}, executor, tmp_path).status == "completed"


# ---- executors -----------------------------------------------------------------------------------------------
def test_what_is_sent_is_picklable_and_small(poisson: Any, tmp_path: Path) -> None:
    sent: list[bytes] = []

    class Wire:
        """An executor that sends everything through pickle, as another process would get it."""

        def submit(self, function: Any, task: Task) -> Any:
            sent.append(pickle.dumps((function, task)))
            there, received = pickle.loads(sent[-1])
            sent.append(pickle.dumps(there(received)))
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            future.set_result(pickle.loads(sent[-1]))
            return future

    assert run({"model": poisson, **SMALL}, Wire(), tmp_path).status == "completed"
    assert len(sent) == 2
    assert len(sent[0]) < 2500
    assert len(sent[1]) < 300


def test_threads_are_refused_for_julia_before_anything_runs(isotropic: Any, executor: Any, tmp_path: Path) -> None:
    grid = {"model": isotropic, "engine": ["numpy", "julia"], "n_iterations": 2, "elbo_samples": 8}
    with pytest.raises(EngineError, match="executor: it runs the cells in threads, and Julia runs in the main thread"):
        tv.sweep(grid, executor, out=tmp_path / "sweep", progress=False)
    assert list((tmp_path / "sweep" / "cells").iterdir()) == []
    found = tv.sweep({**grid, "engine": "numpy"}, executor, out=tmp_path / "sweep", progress=False)
    assert found.status == "completed"


def test_jobs_that_are_no_futures_will_do(isotropic: Any, tmp_path: Path) -> None:
    """As submitit's: `done` and `result`, and nothing to wait on."""

    class Job:
        def __init__(self, function: Any, task: Task) -> None:
            self.work, self.asked = (function, task), 0

        def done(self) -> bool:
            self.asked += 1
            return self.asked > 3

        def result(self) -> Any:
            return self.work[0](self.work[1])

    class Cluster:
        def submit(self, function: Any, task: Task) -> Job:
            return Job(function, task)

    assert run({"model": isotropic, "seed": range(2), **SMALL}, Cluster(), tmp_path).status == "completed"


@pytest.mark.parametrize("returned", [None, 3])
def test_an_executor_whose_submit_returns_no_future_is_named(isotropic: Any, tmp_path: Path, returned: Any) -> None:
    class Forgets:
        def submit(self, function: Any, task: Task) -> Any:
            return returned

    with pytest.raises(EngineError, match=r"executor: its submit\(\) returned .*, and must return a future"):
        run({"model": isotropic, **SMALL}, Forgets(), tmp_path)
    assert not list((tmp_path / "calls").iterdir())


def test_an_executor_that_takes_no_more_ends_the_call_and_keeps_what_is_done(isotropic: Any, tmp_path: Path) -> None:
    grid = {"model": isotropic, "seed": range(3), **SMALL}
    pool = ThreadPoolExecutor(1)

    class Breaks:
        taken = 0

        def submit(self, function: Any, task: Task) -> Any:
            self.taken += 1
            if self.taken == 2:
                pool.shutdown(wait=True)
            return pool.submit(function, task)

    with pytest.raises(EngineError, match=r"takes no more cells .*RuntimeError"):
        run(grid, Breaks(), tmp_path)
    assert len(list((tmp_path / "cells").iterdir())) == 1
    with ThreadPoolExecutor(1) as another:
        assert run(grid, another, tmp_path).status == "completed"


def test_a_worker_that_is_lost_three_times_over_a_cell_fails_it(isotropic: Any, tmp_path: Path) -> None:
    class Loses:
        submitted = 0

        def submit(self, function: Any, task: Task) -> Any:
            self.submitted += 1
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            if task.settings["seed"] == 1:
                future.set_exception(OSError("node 7 is down"))
            else:
                future.set_result(function(task))
            return future

    executor = Loses()
    found = run({"model": isotropic, "seed": range(3), **SMALL}, executor, tmp_path)
    assert list(found.frame()["status"]) == ["completed", "failed", "completed"]
    assert "lost 3 times, the last time so: OSError: node 7 is down" in found.frame()["message"][1]
    assert executor.submitted == 2 + 3


def test_workers_that_do_not_see_the_folder_end_the_call(
    isotropic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyturingvi.sweeps.worker._appears", lambda place: False)
    with ThreadPoolExecutor(1) as pool, pytest.raises(OutputError, match="does not see the folder"):
        run({"model": isotropic, **SMALL}, pool, tmp_path)


def test_a_late_worker_of_an_ended_call_does_nothing(isotropic: Any, tmp_path: Path) -> None:
    tasks: list[Task] = []

    class Late:
        def submit(self, function: Any, task: Task) -> Any:
            tasks.append(task)
            raise RuntimeError("queue is full")

    with pytest.raises(EngineError):
        run({"model": isotropic, **SMALL}, Late(), tmp_path)
    assert run_cell(tasks[0]).outcome == "stopped"
    assert not list((tmp_path / "cells").iterdir())


def test_local_cells_run_beside_each_other_as_far_as_memory_goes(isotropic: Any, tmp_path: Path) -> None:
    from pyturingvi.sweeps.sweep import _Run

    small, large, huge = read_grid(
        [{"model": isotropic, "family": family, **SMALL} for family in ("mean-field", "structured", "full-rank")]
    )
    assert small.n_bytes < large.n_bytes < huge.n_bytes
    work = _Run(SweepFolder(tmp_path), LocalWorkers(3, 1), None, None, "trace", 1)  # type: ignore[arg-type]
    work.waiting = [huge, large, small]
    work.memory = small.n_bytes + large.n_bytes
    assert work._next() is huge  # alone it may try, and its own fit will say if it cannot
    work.running = {1: (large, 0.0)}
    assert work._next() is small
    work.running = {1: (huge, 0.0)}
    assert work._next() is None


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


def test_the_expected_cost_grows_with_what_takes_time(isotropic: Any, poisson: Any) -> None:
    def cost(**changes: Any) -> float:
        return read_grid({"model": poisson, **SMALL, **changes})[0].cost

    assert cost(n_iterations=600) == pytest.approx(10 * cost(), rel=0.1)
    assert cost(family="full-rank") > cost(family="structured") > cost(family="mean-field")
    assert cost(n_samples=400) > 10 * cost()
    assert cost(elbo_samples=16_000) > 10 * cost()
    assert cost(model=isotropic) < cost()


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
