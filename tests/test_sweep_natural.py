"""Sweeps without an optimizer: each cell runs natural gradients until they have converged, as a fit does."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from sweep_targets import LAYOUT, SMALL, files, normal, run

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.sweeps.folder import SweepFolder
from pyturingvi.sweeps.grid import read_grid
from pyturingvi.sweeps.lock import SweepLock
from pyturingvi.sweeps.worker import Task, run_cell

TRACE = ["iteration", "elbo", "std_error"]
LEFT_OPEN = ["n_iterations", "n_samples", "elbo_every"]


def test_the_cells_end_by_themselves_with_the_numbers_of_a_fit_and_the_same_bytes_whoever_runs_them(poisson, tmp_path):
    grid = {"model": poisson, "family": ["mean-field", "structured"], "seed": [0, 7], "engine": "numpy"}
    with ThreadPoolExecutor(3) as threads:
        found = run(grid, threads, tmp_path / "a", keep="fit", n_threads=2)
    run(grid, None, tmp_path / "b", keep="fit", n_workers=1)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert (found.status, found.counts["converged"]) == ("completed", 4)
    assert "4 converged" in repr(found)
    traces = found.traces()
    for row in found.frame().itertuples():
        direct = tv.fit(poisson, row.family, seed=row.seed, engine="numpy", progress=False)
        assert (row.status, row.n_updates, row.optimizer) == ("converged", direct.n_updates, "natural-gradient")
        pd.testing.assert_frame_equal(
            traces.loc[traces["cell"] == row.cell, TRACE].reset_index(drop=True), direct.elbo[TRACE]
        )
        assert found.fit(row.cell).spec == direct.spec
    assert found.cells[0].startswith("rpoisson_mean-field_natural-gradient_seed0_")
    assert len(set(found.cells)) == 4
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*.*")}
    run(grid, None, tmp_path / "a", keep="fit")
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_tables_have_both_kinds_of_cells(isotropic, executor, tmp_path):
    rules = [tv.NaturalGradient(), tv.NaturalGradient(rate=0.3, momentum=0.5)]
    grid = [{"model": isotropic, "family": "mean-field", "optimizer": rules}, {"model": isotropic, **SMALL}]
    frame = run(grid, executor, tmp_path).frame()
    assert list(frame["optimizer"]) == ["natural-gradient", "natural-gradient(rate=0.3, momentum=0.5)", "adam"]
    assert frame["stepsize"].fillna(-1.0).tolist() == [-1.0, -1.0, 1e-3]
    for name in LEFT_OPEN:
        assert frame[name].isna().tolist() == [True, True, False]
        assert frame[name][2] == SMALL[name]
    for name in LEFT_OPEN:  # whole numbers where none is missing
        assert run(grid[1], executor, tmp_path).frame()[name].dtype == "int64"


def test_a_stepsize_alone_means_adam_and_names_stay(isotropic):
    base = {"model": isotropic, "family": "mean-field", "engine": "numpy", "n_iterations": 60}
    alone, named = (read_grid({**base, "stepsize": 1e-3, **more})[0] for more in ({}, {"optimizer": "adam"}))
    assert alone.name == named.name
    assert alone.name.startswith("gaussian_mean-field_adam-0.001_seed0_")
    with pytest.raises(InputError, match="takes no stepsize"):
        read_grid({**base, "optimizer": "natural-gradient", "stepsize": 1e-3})


@pytest.mark.parametrize("change", ["cut", "turned"])
def test_a_damaged_trace_is_left_out_and_run_again(isotropic, executor, tmp_path, change):
    grid = {"model": isotropic, "family": "mean-field"}
    (name,) = run(grid, executor, tmp_path).cells
    before, path = files(tmp_path), tmp_path / "cells" / f"{name}.json"
    cell = json.loads(path.read_text())
    for key in TRACE:
        cell[key] = cell[key][:-1] if change == "cut" else [cell[key][1], cell[key][0], *cell[key][2:]]
    path.write_text(json.dumps(cell))
    with pytest.warns(RuntimeWarning, match=r"its trace is not whole.*tv\.sweep runs it again"):
        assert len(tv.load_sweep(tmp_path)) == 0
    assert run(grid, executor, tmp_path).status == "completed"
    assert files(tmp_path) == before


@pytest.mark.parametrize("settings", [{}, {"elbo_every": 7, "elbo_samples": 30}], ids=["free", "estimates"])
def test_a_cell_that_is_stopped_goes_on_to_the_same_bytes(executor, tmp_path, monkeypatch, settings):
    monkeypatch.setattr("pyturingvi.sweeps.worker._LOOK_SECONDS", 0.0)
    calls, locks = [], []

    def counted(points):
        calls.append(len(points))
        if locks and len(calls) == stop_at:
            locks[0].stop_workers()
        return normal(points - 1.0)

    stop_at = -1
    grid = {"model": tv.models.LogDensity(counted, LAYOUT), **settings}
    calls.clear()
    whole = run(grid, executor, tmp_path / "whole")
    assert whole.counts["converged"] == 1
    stop_at = len(calls) // 2
    calls.clear()
    (cell,), folder = read_grid(grid), SweepFolder.create(tmp_path / "out")
    with SweepLock(folder) as lock:
        locks.append(lock)
        task = Task(str(folder.root), lock.token, cell.name, cell.description, cell.settings, cell.model, "trace", 1)
        assert run_cell(task).outcome == "stopped"
    assert folder.checkpoint(cell.name).exists()
    calls.clear()
    locks.clear()
    assert run(grid, executor, tmp_path / "out").counts["converged"] == 1
    assert len(calls) < 2 * stop_at  # it did not begin anew
    assert files(tmp_path / "out") == files(tmp_path / "whole")
