"""Functions for the sweep tests that workers can import, and the sweep that a child process runs."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pyturingvi as tv
from pyturingvi import fitting
from pyturingvi.optimize import monitor

if os.environ.get("SWEEP_TEST_CHECKPOINTS"):  # workers import this module: checkpoints at each look, not each 30 s
    fitting.RunMonitor = functools.partial(monitor.RunMonitor, checkpoint_seconds=0.0)  # type: ignore[misc]
if os.environ.get("SWEEP_TEST_BOOTS"):
    (Path(os.environ["SWEEP_TEST_BOOTS"]) / f"boot-{os.getpid()}-{time.time_ns()}").touch()

LAYOUT = tv.Layout(2, 3, 1)
SIZES = {"n_iterations": 60, "n_samples": 4, "elbo_every": 25, "elbo_samples": 16}
SMALL = {"optimizer": tv.Adam(1e-3), **SIZES}


def run(grid, executor, out, **options):
    return tv.sweep(grid, executor, out=out, progress=False, **options)


def done(result=None, error=None):
    """A future that is done."""
    future = Future()
    future.set_exception(error) if error else future.set_result(result)
    return future


def normal(points):
    return -0.5 * (points**2).sum(axis=1), -points


class KillsItsWorker:
    """A standard normal that takes its time, and kills its process after so many calls, once or more; not the test's.

    In `folder` it leaves a file `done-K` for each kill, and `calls-PID` with the number of calls in each process.
    """

    def __init__(self, folder, after, times, pause):
        self.folder, self.after, self.times, self.pause = folder, after, times, pause
        self.parent, self.calls = os.getpid(), 0

    def __call__(self, points):
        self.calls += 1
        (self.folder / f"calls-{os.getpid()}").write_text(str(self.calls))
        if self.calls > self.after and os.getpid() != self.parent:
            done = len(list(self.folder.glob("done-*")))
            if done < self.times:
                (self.folder / f"done-{done}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause)
        return normal(points)


def files(out):
    """What must be the same however a sweep went."""
    kept = [path for place in ("cells", "fits", "models") for path in (out / place).rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): path.read_bytes() for path in kept}


def slow_normal(points):
    time.sleep(float(os.environ.get("SWEEP_TEST_PAUSE", "0.0005")))
    return normal(points)


def slow_grid():
    """Eight cells, two of which diverge. How slow it is does not change the numbers."""
    return {
        "model": tv.models.LogDensity(slow_normal, LAYOUT),
        "family": ["mean-field", "structured"],
        "optimizer": ["adam", "sgd"],
        "stepsize": [0.01, 1e12],
        "n_iterations": 300,
        "n_samples": 4,
        "elbo_every": 10,
        "elbo_samples": 16,
        "seed": 3,
    }


if __name__ == "__main__":
    import sweep_targets  # so that workers find the functions, and patches are made there too

    grid = {**sweep_targets.slow_grid(), "elbo_every": int(sys.argv[2])}
    found = tv.sweep(grid, out=sys.argv[1], n_workers=2, keep="fit", progress=False)
    print(found.status)
