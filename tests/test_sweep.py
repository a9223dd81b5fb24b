"""`tv.sweep` in one process: numbers, tables, what is not done again, progress."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from sweep_targets import LAYOUT, SIZES, SMALL, files, normal, run

import pyturingvi as tv
from pyturingvi.errors import InputError, OutputError
from pyturingvi.sweeps.pools import check_workers
from pyturingvi.sweeps.progress import SweepProgress, duration

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
def test_bad_arguments_are_refused(isotropic, tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        tv.sweep({"model": isotropic, **SMALL}, **{"out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("n_cores", "most"), [(2, 64), (48, 192), (None, 64)])
def test_more_workers_than_a_machine_bears_are_refused(monkeypatch, n_cores, most):
    monkeypatch.setattr("os.cpu_count", lambda: n_cores)
    assert check_workers(float(most)) == most
    with pytest.raises(InputError, match=f"--workers must be at most {most} "):
        check_workers(most + 1, "--workers")


# ---- numbers and tables --------------------------------------------------------------------------------------
def test_a_cell_has_the_numbers_of_a_fit(poisson, executor, tmp_path):
    grid = {"model": poisson, "family": ["mean-field", "structured"], "stepsize": 1e-2, "seed": [0, 7], **SMALL}
    found = run({**grid, "averaging": [None, tv.PolynomialAveraging()]}, executor, tmp_path, keep="fit")
    assert (found.status, len(found)) == ("completed", 8)
    frame, traces = found.frame(), found.traces()
    assert list(frame["seed"]) == [0, 0, 7, 7] * 2
    for row in frame.itertuples():
        averaging = None if pd.isna(row.averaging) else tv.PolynomialAveraging()
        direct = tv.fit(poisson, row.family, tv.Adam(1e-2), seed=row.seed, averaging=averaging, progress=False, **SIZES)
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


def test_the_tables_say_what_was_varied(isotropic, executor, tmp_path):
    isotropic.label = "four rows"
    families = [tv.Structured(standardized=False), tv.MeanField(base=("student_t", 8)), "full-rank"]
    grid = {"model": isotropic, "family": families, "stepsize": [tv.step_decay(0.1, every=20)], **SMALL}
    found = run([grid, {**grid, "family": "mean-field", "optimizer": tv.ProjectedSGD(1.0)}], executor, tmp_path)
    frame = found.frame()
    words = ["structured(standardized=False)", "mean-field(base=['student_t', 8.0])"]
    assert list(frame["family"]) == [*words, "full-rank", "mean-field"]
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


def test_float32_and_an_array_to_start_from(poisson, executor, tmp_path):
    start = np.linspace(-0.2, 0.2, poisson.dim)
    found = run({"model": poisson, "dtype": "float32", "init_location": [start], **SMALL}, executor, tmp_path)
    direct = tv.fit(poisson, dtype="float32", init_location=start, progress=False, **SMALL)
    pd.testing.assert_frame_equal(found.traces()[TRACE], direct.elbo[TRACE])


def test_non_finite_numbers_come_back_and_the_file_is_strict_json(executor, tmp_path):
    def steep(points):
        far = np.abs(points).max(axis=1) > 1.0
        return np.where(far, -np.inf, normal(points)[0]), normal(points)[1]

    model = tv.models.LogDensity(steep, LAYOUT)
    found = run({"model": model, "init_scale": 0.5, **SMALL}, executor, tmp_path)
    assert found.status == "completed"  # of the sweep: the diverged cell is a result
    assert found.frame()["status"].item() == "diverged"
    assert found.frame()["elbo"].item() == -np.inf
    json.loads((tmp_path / "cells" / f"{found.cells[0]}.json").read_text(), parse_constant=pytest.fail)


# ---- idempotence ---------------------------------------------------------------------------------------------
def test_the_same_bytes_whoever_runs_it_and_nothing_left_over(poisson, tmp_path):
    grid = {"model": poisson, "family": ["mean-field", "structured"], "seed": range(2), **SMALL}
    with ThreadPoolExecutor(3) as threads:
        run(grid, threads, tmp_path / "a", keep="fit", n_threads=2)
    run(grid, None, tmp_path / "b", keep="fit", n_workers=2)
    assert len(files(tmp_path / "a")) == 4 + 4 + 1
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["cells", "fits", "models", "timings"]
    assert not list((tmp_path / "b").rglob("*.part"))


def test_a_second_call_runs_nothing_and_a_larger_grid_only_what_is_new(isotropic, executor, tmp_path):
    grid = {"model": isotropic, "seed": range(2), **SMALL}
    first = run(grid, executor, tmp_path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    pd.testing.assert_frame_equal(run(grid, None, tmp_path).frame(), first.frame())
    larger = run({**grid, "seed": range(3)}, executor, tmp_path)
    assert len(larger) == 3
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    assert len(run(grid, None, tmp_path)) == 2  # only its own
    assert len(tv.load_sweep(tmp_path)) == 3


def test_to_keep_the_fits_later_runs_the_cells_again_to_the_same_bytes(isotropic, executor, tmp_path):
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


def test_load_sweep_reads_what_there_is(isotropic, executor, tmp_path):
    grid = {"model": isotropic, "seed": [3, 1, 2], **SMALL}
    run({**grid, "seed": 1}, executor, tmp_path)
    assert list(tv.load_sweep(tmp_path).frame()["seed"]) == [1]
    partial = tv.load_sweep(str(tmp_path), grid)
    assert list(partial.frame()["status"]) == ["missing", "completed", "missing"]
    assert list(partial.frame()["seed"]) == [3, 1, 2]
    assert partial.status == "incomplete"
    assert partial.counts == {"converged": 0, "completed": 1, "diverged": 0, "failed": 0, "missing": 2}
    assert set(partial.traces()["seed"]) == {1}
    assert "1 completed, 2 missing" in repr(partial)
    for place in (tmp_path / "nowhere", tmp_path / "cells"):
        with pytest.raises(OutputError, match="no folder of a sweep"):
            tv.load_sweep(place)
    (tmp_path / "empty" / "cells").mkdir(parents=True)
    assert len(tv.load_sweep(tmp_path / "empty").frame()) == len(tv.load_sweep(tmp_path / "empty").traces()) == 0


# ---- progress ------------------------------------------------------------------------------------------------
def test_the_time_left_goes_by_the_expected_cost_not_by_the_count(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])  # as its bars took it when they were imported
    bar = SweepProgress([10.0, 30.0, 30.0, 10.0], [30.0, 30.0, 10.0], show=True)  # one was done before
    now[0] += 60.0
    bar.count("completed", 30.0)
    bar.close()
    assert "01:00 passed, 01:20 left, 2/4 cells" in capsys.readouterr().err
    assert [duration(x) for x in (5.2, 99, 130, 5900, 9000)] == ["5 s", "99 s", "2 min", "98 min", "2.5 h"]


def test_costs_that_add_up_to_more_in_another_order_fill_the_bar(capsys):
    costs = [0.3, 0.2, 0.1]
    assert sum(reversed(costs)) > sum(costs)  # by rounding, which tqdm warns of
    bar = SweepProgress(costs, costs, show=True)
    for cost in reversed(costs):
        bar.count("completed", cost)
    bar.close()
    assert "sweep: 100%" in capsys.readouterr().err


def test_the_bar_counts_cells_and_what_became_of_them(executor, tmp_path, capsys):
    model = tv.models.LogDensity(normal, LAYOUT)
    grid = {"model": model, "optimizer": ["sgd"], "stepsize": [1e-2, 1e12], **SIZES}
    tv.sweep({**grid, "seed": 0}, executor, out=tmp_path)
    tv.sweep({**grid, "seed": range(2)}, executor, out=tmp_path)
    lines = capsys.readouterr().err.replace("\r", "\n").strip().splitlines()
    assert lines[-1].endswith("4/4 cells, 1 diverged")
