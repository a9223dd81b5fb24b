"""`tv.sweep` on executors of every kind that a user may give, in one process."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from sweep_targets import SMALL, done, run

import pyturingvi as tv
from pyturingvi.errors import EngineError, OutputError
from pyturingvi.sweeps.folder import SweepFolder
from pyturingvi.sweeps.grid import read_grid
from pyturingvi.sweeps.pools import LocalWorkers
from pyturingvi.sweeps.sweep import SweepRun
from pyturingvi.sweeps.worker import run_cell


def test_what_is_sent_is_picklable_and_small(poisson, tmp_path):
    sent = []

    def submit(function, task):
        """Sends everything through pickle, as another process would get it."""
        sent.append(pickle.dumps((function, task)))
        there, received = pickle.loads(sent[-1])
        sent.append(pickle.dumps(there(received)))
        return done(pickle.loads(sent[-1]))

    assert run({"model": poisson, **SMALL}, SimpleNamespace(submit=submit), tmp_path).status == "completed"
    assert len(sent) == 2
    assert len(sent[0]) < 2500
    assert len(sent[1]) < 300


def test_threads_are_refused_for_julia_before_anything_runs(isotropic, executor, tmp_path):
    grid = {"model": isotropic, "stepsize": 1e-3, "engine": ["numpy", "julia"], "n_iterations": 2, "elbo_samples": 8}
    with pytest.raises(EngineError, match="executor: it runs the cells in threads, and Julia runs in the main thread"):
        tv.sweep(grid, executor, out=tmp_path / "sweep", progress=False)
    assert list((tmp_path / "sweep" / "cells").iterdir()) == []
    found = tv.sweep({**grid, "engine": "numpy"}, executor, out=tmp_path / "sweep", progress=False)
    assert found.status == "completed"


def test_jobs_that_are_no_futures_will_do(isotropic, tmp_path):
    """As submitit's: `done` and `result`, and nothing to wait on."""

    class Job:
        def __init__(self, function, task):
            self.work, self.asked = (function, task), 0

        def done(self):
            self.asked += 1
            return self.asked > 3

        def result(self):
            return self.work[0](self.work[1])

    cluster = SimpleNamespace(submit=Job)
    assert run({"model": isotropic, "seed": range(2), **SMALL}, cluster, tmp_path).status == "completed"


@pytest.mark.parametrize("returned", [None, 3])
def test_an_executor_whose_submit_returns_no_future_is_named(isotropic, tmp_path, returned):
    forgets = SimpleNamespace(submit=lambda function, task: returned)
    with pytest.raises(EngineError, match=r"executor: its submit\(\) returned .*, and must return a future"):
        run({"model": isotropic, **SMALL}, forgets, tmp_path)
    assert not (tmp_path / "work").exists()


def test_an_executor_that_takes_no_more_ends_the_call_and_keeps_what_is_done(isotropic, tmp_path):
    grid = {"model": isotropic, "seed": range(3), **SMALL}
    pool = ThreadPoolExecutor(1)

    def submit(function, task):
        if task.description["seed"] == 1:
            pool.shutdown(wait=True)
        return pool.submit(function, task)

    with pytest.raises(EngineError, match=r"takes no more cells .*RuntimeError"):
        run(grid, SimpleNamespace(submit=submit), tmp_path)
    assert len(list((tmp_path / "cells").iterdir())) == 1
    with ThreadPoolExecutor(1) as another:
        assert run(grid, another, tmp_path).status == "completed"


def test_a_worker_that_is_lost_three_times_over_a_cell_fails_it(isotropic, tmp_path):
    seeds = []

    def submit(function, task):
        seeds.append(task.description["seed"])
        return done(error=OSError("node 7 is down")) if seeds[-1] == 1 else done(function(task))

    found = run({"model": isotropic, "seed": range(3), **SMALL}, SimpleNamespace(submit=submit), tmp_path)
    assert list(found.frame()["status"]) == ["completed", "failed", "completed"]
    assert "lost 3 times, the last time so: OSError: node 7 is down" in found.frame()["message"][1]
    assert sorted(seeds) == [0, 1, 1, 1, 2]


def test_workers_that_do_not_see_the_folder_end_the_call(isotropic, tmp_path, monkeypatch):
    monkeypatch.setattr("pyturingvi.sweeps.worker._appears", lambda place: False)
    with ThreadPoolExecutor(1) as pool, pytest.raises(OutputError, match="does not see the folder"):
        run({"model": isotropic, **SMALL}, pool, tmp_path)


def test_a_late_worker_of_an_ended_call_does_nothing(isotropic, tmp_path):
    tasks = []

    def submit(function, task):
        tasks.append(task)
        raise RuntimeError("queue is full")

    with pytest.raises(EngineError):
        run({"model": isotropic, **SMALL}, SimpleNamespace(submit=submit), tmp_path)
    assert run_cell(tasks[0]).outcome == "stopped"
    assert not list((tmp_path / "cells").iterdir())


def test_local_cells_run_beside_each_other_as_far_as_memory_goes(isotropic, tmp_path):
    small, large, huge = read_grid(
        [{"model": isotropic, "family": family, **SMALL} for family in ("mean-field", "structured", "full-rank")]
    )
    assert small.n_bytes < large.n_bytes < huge.n_bytes
    work = SweepRun(SweepFolder(tmp_path), None, LocalWorkers(3, 1), None, None, "trace", 1)
    work.waiting.extend([huge, large, small])
    work.memory = small.n_bytes + large.n_bytes
    assert work._next() is huge  # alone it may try, and its own fit will say if it cannot
    work.running = {1: huge}
    assert work._next() is None
    work.running = {1: large}
    assert work._next() is small
    assert list(work.waiting) == [large]
