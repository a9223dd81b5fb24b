"""Cells that fail, stop or go on, and a second sweep in a folder."""

from __future__ import annotations

import json
import os
import platform
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sweep_targets import LAYOUT, SMALL, done, files, normal, run

import pyturingvi as tv
from pyturingvi.errors import OutputError
from pyturingvi.sweeps.folder import SweepFolder
from pyturingvi.sweeps.grid import read_grid
from pyturingvi.sweeps.lock import SweepLock
from pyturingvi.sweeps.worker import Task, run_cell, write_failure

TRACE = ["iteration", "elbo", "std_error"]


class Moody:
    """A log density that fails while it is told to."""

    def __init__(self):
        self.error: BaseException | None = None
        self.seen: list[int] = []  # appending is atomic, for tests with threads

    @property
    def gradients(self):
        """Gradients asked for, of M = 4 points."""
        return self.seen.count(4)

    def __call__(self, points):
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
    isotropic, executor, tmp_path, error, kind, message
):
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


def test_a_start_that_cannot_be_is_the_failure_of_its_cell(poisson, executor, tmp_path):
    found = run({"model": poisson, "init_location": [0.0, 1e6], **SMALL}, executor, tmp_path)
    assert list(found.frame()["status"]) == ["completed", "failed"]
    assert "choose another init_location" in found.frame()["message"][1]
    assert not (tmp_path / "work").exists()


def test_a_failure_does_not_take_the_place_of_a_result(isotropic, executor, tmp_path):
    found = run({"model": isotropic, **SMALL}, executor, tmp_path)
    cell, before = read_grid({"model": isotropic, **SMALL})[0], files(tmp_path)
    write_failure(SweepFolder(tmp_path), cell.name, cell.description, "MemoryError", "none left")
    assert files(tmp_path) == before
    assert found.cells == [cell.name]


@pytest.mark.parametrize("kind", ["damaged", "of another fit"])
def test_a_checkpoint_that_does_not_fit_is_dropped(isotropic, executor, tmp_path, kind):
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


# ---- one sweep at a time -------------------------------------------------------------------------------------
def test_a_second_sweep_in_a_folder_is_refused_while_the_first_is_at_work(isotropic, tmp_path):
    refused = []

    def busy(points):
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


def test_of_a_sweep_on_another_host_it_is_told_how_to_go_on_when_that_is_gone(tmp_path, monkeypatch):
    with SweepLock(SweepFolder.create(tmp_path)):
        monkeypatch.setattr("platform.node", lambda: "node7")
        with pytest.raises(OutputError, match=rf"If it is gone, delete '{tmp_path}/work/\.pyturingvi-lock'\.$"):
            SweepLock(SweepFolder(tmp_path))


def test_without_locks_on_the_file_system_the_cells_are_run_all_the_same(isotropic, executor, tmp_path, monkeypatch):
    def none(*args, **options):
        raise NotImplementedError("no flock")

    monkeypatch.setattr("filelock.FileLock.acquire", none)
    assert run({"model": isotropic, **SMALL}, executor, tmp_path).status == "completed"


def test_a_cell_that_is_stopped_is_not_taken_for_a_diverged_one(executor, tmp_path, monkeypatch):
    """The estimate at its end, here minus infinity, is one that an undisturbed run does not make."""
    monkeypatch.setattr("pyturingvi.sweeps.worker._LOOK_SECONDS", 0.0)
    locks, seen = [], []

    def low(points):
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


def test_a_ctrl_c_in_the_last_estimate_leaves_no_estimate_of_fewer_draws(tmp_path):
    seen, pressed = [], []

    def press(points):
        seen.append(len(points))
        if seen.count(4) == 60 and len(points) > 4 and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return normal(points)

    grid = {"model": tv.models.LogDensity(press, LAYOUT), **SMALL, "elbo_samples": 5000}
    here = SimpleNamespace(submit=lambda function, task: done(function(task)))  # the main thread, which hears Ctrl-C
    assert run(grid, here, tmp_path / "out").status == "interrupted"
    assert pressed
    assert not list((tmp_path / "out" / "cells").iterdir())
    assert run(grid, here, tmp_path / "out").status == "completed"
    run(grid, here, tmp_path / "calm")
    assert files(tmp_path / "out") == files(tmp_path / "calm")
