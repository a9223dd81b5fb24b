"""Many small pieces of work, over processes of this machine: what is no fit of `tv.sweep`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from typing import Any

from pyturingvi.errors import EngineError
from pyturingvi.reproduce.figure import Job
from pyturingvi.sweeps.pools import default_workers, local_pool


def run_tasks(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    job: Job,
    what: str,
    *,
    costs: Sequence[float] | None = None,
    take: Callable[[Any], None] = lambda result: None,
) -> list[Any]:
    """`function(*task)` of every task, in order; with one process in this one, else in processes of one thread each.

    Parameters
    ----------
    what : str
        What the work is on, for the progress bar and the error.
    costs : sequence of float, optional
        Expected seconds of each, so that the time left is told rightly.
    take : callable
        Called with each result as soon as it is there.

    Raises
    ------
    EngineError
        If a process dies.
    """
    from tqdm.auto import tqdm

    weights = costs or [1.0] * len(tasks)
    n_workers = min(job.n_workers or default_workers(), len(tasks))
    bar: Any = tqdm(
        total=sum(weights),
        desc=what,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed} passed, {remaining} left",
        mininterval=1,
        disable=not job.progress or sys.stderr is None,  # which a program without a console does not have
    )
    pool = local_pool(n_workers) if n_workers > 1 else None
    results: dict[int, Any] = {}
    try:
        if pool is None:
            ended = ((place, function(*task)) for place, task in enumerate(tasks))
        else:
            futures = {pool.submit(function, *task): place for place, task in enumerate(tasks)}
            ended = ((futures[future], future.result()) for future in as_completed(futures))
        for place, result in ended:
            results[place] = result
            take(result)
            bar.update(weights[place])
        return [results[place] for place in range(len(tasks))]
    except BrokenExecutor as error:
        raise EngineError(
            f"{job.figure}: a process died over its work on {what} ({error}). What is done is kept; call again."
        ) from None
    finally:
        bar.close()
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=True)
