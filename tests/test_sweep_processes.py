"""`tv.sweep` over worker processes, some of which are killed: loky's and Dask's."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import sweep_targets
from sweep_targets import LAYOUT, SIZES, SMALL, KillsItsWorker, files, normal, run, slow_grid

import pyturingvi as tv
from pyturingvi.errors import OutputError
from pyturingvi.support.archive import read_archive

COUNTS = {"converged": 0, "completed": 6, "diverged": 2, "failed": 0, "missing": 0}  # of `slow_grid`
N_KILLS = 2


def environment(**more):
    """That of this test, where a child finds the package and these tests."""
    places = [str(Path(tv.__file__).parents[1]), str(Path(__file__).parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), **more}


class Child(subprocess.Popen[str]):
    """A sweep in a process of its own group."""

    def __init__(self, out, pause="0.006", elbo_every=10):
        super().__init__(
            [sys.executable, sweep_targets.__file__, str(out), str(elbo_every)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment(SWEEP_TEST_CHECKPOINTS="1", SWEEP_TEST_PAUSE=pause),
        )

    def wait_until(self, true):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.poll() is None and not true():
            time.sleep(0.02)

    def workers(self):
        return psutil.Process(self.pid).children()

    def end(self):
        """Whatever is left of the group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.communicate()


@pytest.fixture
def start():
    children = []
    yield lambda *args, **options: children.append(Child(*args, **options)) or children[-1]
    for child in children:
        child.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    with ThreadPoolExecutor(1) as pool:
        assert run(slow_grid(), pool, out, keep="fit").counts == COUNTS
    return files(out)


@pytest.fixture(scope="module")
def rarely_judged(tmp_path_factory):
    """With one ELBO estimate, at the end."""
    out = tmp_path_factory.mktemp("rarely_judged")
    with ThreadPoolExecutor(1) as pool:
        run({**slow_grid(), "elbo_every": 300}, pool, out, keep="fit")
    return files(out)


def progress(out):
    """Checkpoints and cells, with their times."""
    found = set()
    for path in [*out.glob("work/*/checkpoint.npz"), *out.glob("cells/*.json")]:
        with suppress(FileNotFoundError):  # done meanwhile
            found.add((str(path), path.stat().st_mtime_ns))
    return found


def local(grid, out, n_workers=2, **options):
    return tv.sweep(grid, out=out, progress=False, n_workers=n_workers, **options)


# ---- the whole sweep killed ----------------------------------------------------------------------------------
def test_killed_again_and_again_it_ends_with_the_files_of_an_undisturbed_one(start, tmp_path, undisturbed):
    """Now with its workers, now without: these find themselves orphaned, save their cells and end."""
    out = tmp_path / "out"
    for kill in range(N_KILLS):
        child, before = start(out, pause="0.004"), progress(out)
        child.wait_until(lambda before=before: progress(out) - before)
        time.sleep(random.uniform(0.0, 0.5))
        if kill % 2:
            workers = child.workers()
            child.kill()
            gone, alive = psutil.wait_procs(workers, timeout=20)
            assert len(gone) >= 2
            assert not alive
        else:
            child.end()
        assert child.wait(30) == -signal.SIGKILL
        assert len(list((out / "cells").glob("*.json"))) < 8  # it was in the middle
    child = start(out, pause="0")
    told, errors = child.communicate(timeout=60)
    assert (told.strip(), child.returncode) == ("completed", 0), errors
    assert files(out) == undisturbed
    assert sorted(path.name for path in out.iterdir()) == ["cells", "fits", "timings"]


@pytest.mark.parametrize(  # a terminal's reaches the workers too, who leave it to the sweep
    "kill",
    [
        pytest.param(os.killpg, id="as a terminal does"),
        pytest.param(os.kill, id="the sweep alone", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_leaves_checkpoints_at_once_and_returns_what_there_is(start, executor, tmp_path, kill, rarely_judged):
    """Long before the next ELBO estimate, after ten seconds."""
    out, grid = tmp_path / "out", {**slow_grid(), "elbo_every": 300}
    child = start(out, pause="0.033", elbo_every=300)
    child.wait_until(lambda: list((out / "work").glob("*/checkpoint.npz")))
    with pytest.raises(OutputError, match=rf"another sweep \(process {child.pid} on .* is at work in"):
        local(grid, out)
    assert len(tv.load_sweep(out)) == 0
    workers = child.workers()
    kill(child.pid, signal.SIGINT)
    assert not psutil.wait_procs(workers, timeout=5)[1]
    told, errors = child.communicate(timeout=10)
    assert (told.strip(), child.returncode) == ("interrupted", 0), errors
    assert "Traceback" not in errors
    left = list((out / "work").glob("*/checkpoint.npz"))
    assert len(left) == 2
    assert all(0 < read_archive(path, "checkpoint", "test")[0]["iteration"] < 300 for path in left)
    assert run(grid, executor, out, keep="fit").counts == COUNTS
    assert files(out) == rarely_judged


def test_ctrl_c_while_the_workers_start_is_quiet(start, tmp_path):
    child = start(tmp_path)
    child.wait_until(lambda: len(child.workers()) >= 3)  # the first of them, beside what keeps account of resources
    os.killpg(child.pid, signal.SIGINT)
    told, errors = child.communicate(timeout=20)
    # where the signal falls between two semaphores that loky makes, its tracker frees them and says so
    ours = [line for line in errors.splitlines() if "resource_tracker" not in line and "warnings.warn(" not in line]
    assert (told.strip(), ours) == ("interrupted", [])


@pytest.mark.slow  # test_open_core.py has a sweep without sys.stderr in this process
def test_without_a_console_it_runs_in_local_workers(tmp_path):
    """As a service: sys.stderr is None."""
    code = "import sys, pyturingvi as tv; assert sys.stderr is None\n"
    code += "grid = {'model': tv.models.IsotropicGaussian(3), 'n_iterations': 9}\n"
    code += f"print(tv.sweep(grid, out={str(tmp_path)!r}, n_workers=1).status)"
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "completed\n")


# ---- a worker killed -----------------------------------------------------------------------------------------
def kill_grid(folder, times):
    """Three calm cells, and one whose worker is killed after its first checkpoint."""
    folder.mkdir(exist_ok=True)
    calm = {"model": tv.models.LogDensity(normal, LAYOUT), "seed": range(3), **SMALL}
    target = tv.models.LogDensity(KillsItsWorker(folder, after=250, times=times, pause=0.001), tv.Layout(3, 3, 1))
    return [calm, {"model": target, **SMALL, "n_iterations": 300}]


def test_a_worker_killed_in_the_middle_is_replaced_and_its_cell_goes_on(executor, tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEP_TEST_CHECKPOINTS", "1")
    grid = kill_grid(tmp_path / "marks", times=1)
    found = local(grid, tmp_path / "out")
    assert found.status == "completed"
    assert len(list((tmp_path / "marks").glob("done-*"))) == 1
    calls = {int(path.stem.split("-")[1]): int(path.read_text()) for path in (tmp_path / "marks").glob("calls-*")}
    resumed, killed = sorted(n for pid, n in calls.items() if pid != os.getpid())
    assert (killed, resumed < 200) == (251, True)  # of some 340 calls in all
    run(grid, executor, tmp_path / "calm")
    assert files(tmp_path / "out") == files(tmp_path / "calm")
    model = grid[1]["model"]
    direct = tv.fit(model, **{**SMALL, "n_iterations": 300}, progress=False)
    trace = found.traces().query("cell == @found.cells[-1]").reset_index(drop=True)
    pd.testing.assert_frame_equal(trace[["iteration", "elbo", "std_error"]], direct.elbo.drop(columns="seconds"))


def test_a_cell_that_kills_every_worker_is_given_up_and_costs_the_others_nothing(tmp_path):
    grid = kill_grid(tmp_path / "marks", times=99)
    found = local(grid, tmp_path / "out")
    assert list(found.frame()["status"]) == ["completed"] * 3 + ["failed"]
    assert len(list((tmp_path / "marks").glob("done-*"))) == 3
    last = found.frame().iloc[-1]
    assert last["error"] == "WorkerLost"
    assert "SIGKILL" in last["message"]


def test_each_worker_boots_once_and_n_of_them_share_the_cells(tmp_path, monkeypatch):
    boots = tmp_path / "boots"
    boots.mkdir()
    monkeypatch.setenv("SWEEP_TEST_BOOTS", str(boots))
    model = tv.models.LogDensity(sweep_targets.slow_normal, LAYOUT)
    found = local({"model": model, "seed": range(6), **SMALL}, tmp_path / "out")
    booted = Counter(path.name.split("-")[1] for path in boots.iterdir())
    assert set(booted.values()) == {1}
    assert len(booted) == 2
    pids = {json.loads((tmp_path / "out" / "timings" / f"{name}.json").read_text())["pid"] for name in found.cells}
    assert pids == {int(pid) for pid in booted}
    assert os.getpid() not in pids


def test_a_lambda_and_a_registered_class_of_ones_own_run_in_local_workers(isotropic, tmp_path):
    class HalfSteps(tv.SGD):
        def constants(self, iteration):
            return tuple(constant / 2 for constant in super().constants(iteration))

    model = tv.models.LogDensity(lambda points: (-0.5 * (points**2).sum(axis=1), -points), LAYOUT)
    tv.register(HalfSteps)
    try:
        grid = [{"model": isotropic, "optimizer": HalfSteps(0.02), **SIZES}, {"model": model, **SMALL}]
        found = local(grid, tmp_path, 1, keep="fit")
        kept, other = map(found.fit, found.cells)
        np.testing.assert_array_equal(
            kept.params, tv.fit(isotropic, "structured", HalfSteps(0.02), progress=False, **SIZES).params
        )
    finally:
        del tv.optimize.Rule.registry["HalfSteps"]
    np.testing.assert_array_equal(other.elbo["elbo"], tv.fit(model, progress=False, **SMALL).elbo["elbo"])
    assert kept.spec.optimizer["rule"] == "HalfSteps"
    np.testing.assert_array_equal(
        kept.params, tv.fit(isotropic, "structured", tv.SGD(0.01), progress=False, **SIZES).params
    )


class Pickling(ThreadPoolExecutor):
    """Hands over work and result as the standard library's pool of processes does: plainly pickled."""

    def submit(self, function, /, *arguments, **options):
        work = pickle.dumps((function, arguments, options))
        return super().submit(self._run, work)

    @staticmethod
    def _run(work):
        function, arguments, options = pickle.loads(work)
        return pickle.loads(pickle.dumps(function(*arguments, **options)))


@pytest.mark.parametrize(
    "pool",
    [
        Pickling,
        pytest.param(lambda n: ProcessPoolExecutor(n, mp_context=get_context("spawn")), marks=pytest.mark.slow),
    ],
    ids=["threads", "processes"],
)
def test_the_pool_of_the_standard_library(pool, poisson, tmp_path):
    """It pickles plainly."""
    with pool(1) as made:
        found = tv.sweep({"model": poisson, **SMALL}, made, out=tmp_path, progress=False)
    assert found.status == "completed"


def test_submitit_runs_it_as_jobs(executor, tmp_path):
    """Its local executor stands for Slurm: a process a job (here one), and results through files."""
    submitit = pytest.importorskip("submitit")
    jobs = submitit.AutoExecutor(folder=tmp_path / "jobs", cluster="local")
    jobs.update_parameters(timeout_min=2)
    grid = {"model": tv.models.IsotropicGaussian(3), **SMALL}
    found = tv.sweep(grid, jobs, out=tmp_path / "out", progress=False)
    assert found.status == "completed"
    run(grid, executor, tmp_path / "calm")
    assert files(tmp_path / "out") == files(tmp_path / "calm")


# ---- Dask ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def dask_client():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_dask_runs_it_to_the_same_files(dask_client, tmp_path, undisturbed):
    found = tv.sweep(slow_grid(), dask_client.get_executor(), out=tmp_path, keep="fit", progress=False)
    assert found.status == "completed"
    assert files(tmp_path) == undisturbed
    pids = {json.loads(path.read_text())["pid"] for path in (tmp_path / "timings").iterdir()}
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.slow  # loky's workers are killed above; Dask starts a worker anew by itself
def test_dask_with_a_worker_killed_in_the_middle(dask_client, executor, tmp_path):
    grid = kill_grid(tmp_path / "marks", times=1)
    found = tv.sweep(grid, dask_client.get_executor(), out=tmp_path / "out", progress=False)
    assert found.status == "completed"
    assert len(list((tmp_path / "marks").glob("done-*"))) == 1
    run(grid, executor, tmp_path / "calm")
    assert files(tmp_path / "out") == files(tmp_path / "calm")
