"""Work that is no fit of `tv.sweep`, over processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from typing import Any

from pyturingvi.errors import EngineError
from pyturingvi.reproduce.figure import Job
from pyturingvi.sweeps.pools import default_workers, local_pool


def run_tasks(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], job: Job, what: str) -> list[Any]:
    """`function(*task)` of every task, in order; with one process in this one, else in processes of one thread each.

    An EngineError if a process dies; `what` says in it, and beside the progress bar, what the work is on.
    """
    from tqdm.auto import tqdm

    n_workers = min(job.n_workers or default_workers(), len(tasks))
    shown = job.progress and sys.stderr is not None  # which a program without a console does not have
    with tqdm(total=len(tasks), desc=what, disable=not shown, mininterval=1) as bar:
        if n_workers == 1:
            return [(function(*task), bar.update())[0] for task in tasks]
        pool = local_pool(n_workers)
        try:
            futures = [pool.submit(function, *task) for task in tasks]
            for _ in as_completed(futures):
                bar.update()
            return [future.result() for future in futures]
        except BrokenExecutor as error:
            raise EngineError(
                f"{job.figure}: a process died over its work on {what} ({error}). What is done is kept; call again."
            ) from None
        finally:
            pool.shutdown(wait=True, kill_workers=True)
