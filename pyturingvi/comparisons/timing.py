"""Milliseconds an update of a running fit, and how busy other processes kept the machine meanwhile.

Takes a fit as a function and imports nothing of the package: `benchmarks/against_commit.py` times other versions of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any


def updates_in(run: Callable[..., Any], seconds: float) -> int:
    """About how many updates a fit makes in so many seconds, at least 1; its first fit also warms up.

    Parameters
    ----------
    run : callable
        `run(n_iterations, elbo_every=, callback=)` makes a fit and returns it.
    """
    run(3, elbo_every=3)
    n, took = 3, 0.0
    while (took := run(n, elbo_every=n).seconds) < seconds / 4 and n < 10**6:
        n *= 3
    return max(1, round(n * seconds / took))


def update_times(
    run: Callable[..., Any],
    seconds: float,
    every: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Milliseconds an update, one number for each `every` updates of one fit that runs for about `seconds`.

    Parameters
    ----------
    run : callable
        As in `updates_in`.
    every : int, optional
        By default the updates of a tenth of a second, or of a quarter of `seconds`. One ELBO estimate is timed with
        them, so `run` should draw a single sample for it.
    clock : callable
        Seconds: by default those that pass.

    Returns
    -------
    list of float
        Empty where the fit diverges at once. The first updates, which touch the memory, do not count.
    """
    every = every or updates_in(run, min(0.1, seconds / 4))
    marks: list[float] = []

    def mark(iteration: int, elbo: float) -> bool:
        marks.append(clock())
        return len(marks) > 2 and marks[-1] - marks[0] > seconds

    run(10**9, elbo_every=every, callback=mark)
    return [1e3 * (after - before) / every for before, after in pairwise(marks)]


def busy_others() -> Callable[[], float]:
    """Start a stopwatch; it returns how many cores all other processes kept busy on average since."""
    import psutil

    process = psutil.Process()

    def now() -> tuple[float, float, float]:
        machine, own = psutil.cpu_times(), process.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0) + getattr(machine, "steal", 0.0)
        total = sum(machine) - getattr(machine, "guest", 0.0) - getattr(machine, "guest_nice", 0.0)
        return time.perf_counter(), total - idle, own.user + own.system

    start = now()

    def stop() -> float:
        wall, busy, own = (after - before for after, before in zip(now(), start, strict=True))
        return max(0.0, busy - own) / max(wall, 1e-9)

    return stop
