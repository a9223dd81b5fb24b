"""Where the cells of a sweep run: processes on this machine, or somebody's executor."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

from pyturingvi.errors import EngineError, InputError
from pyturingvi.support.arguments import whole_number
from pyturingvi.support.interrupts import interrupts_held
from pyturingvi.sweeps.parent import start_local_worker
from pyturingvi.sweeps.worker import Report, Task, run_cell


def local_pool(n_workers: int, n_threads: int = 1) -> Any:
    """A loky pool on this machine whose processes have so many threads, and end by themselves if this one is killed."""
    from loky import ProcessPoolExecutor

    env = {
        # a worker that has grown is no leak: it holds a model and an engine, which take long to start
        "LOKY_MAX_MEMORY_LEAK_SIZE": "1e18",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(n_threads)),
    }
    if sys.stderr is None:  # a program without a console, as a service is
        env["PYTHONFAULTHANDLER"] = ""  # loky then leaves faulthandler off, which needs a console
    return ProcessPoolExecutor(n_workers, env=env, initializer=start_local_worker, initargs=(os.getpid(),))


@contextmanager
def _process_starts() -> Iterator[None]:
    """Keep Ctrl-C from a process until it can take it; give loky the streams that a program without a console lacks."""
    from multiprocessing import resource_tracker

    with open(os.devnull, "w") as nowhere:
        with redirect_stdout(sys.stdout or nowhere), redirect_stderr(sys.stderr or nowhere):
            resource_tracker.ensure_running()  # which loky would start inside, and which lets Ctrl-C through
            with interrupts_held():
                yield


def default_workers(n_threads: int = 1) -> int:
    """Processes where the caller names no number: as many as leave each thread a physical core of its own."""
    from loky import cpu_count

    return max(1, int(cpu_count(only_physical_cores=True)) // n_threads)


def check_workers(n_workers: Any, name: str = "n_workers") -> int:
    """A whole number from 1 to 64 (to four times the logical cores where that is more) as an int, or an InputError."""
    checked = whole_number(name, n_workers, 1)
    n_cores = os.cpu_count() or 1
    most = max(64, 4 * n_cores)
    if checked > most:
        raise InputError(f"{name} must be at most {most} on this machine of {n_cores} logical cores, got {checked}.")
    return checked


class Workers:
    """Where tasks are handed in, and taken back when they are done."""

    def __init__(self) -> None:
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._to_ask: set[Any] = set()  # jobs that do not tell when they are done

    def has_room(self) -> bool:
        """Whether to hand in another task."""
        return True

    def submit(self, task: Task) -> Any:
        """Hand in a task; returns a future, or something with `done` and `result`."""
        future = self._submit(task)
        if hasattr(future, "add_done_callback"):
            future.add_done_callback(self._done.put)
        else:
            self._to_ask.add(future)
        return future

    def _submit(self, task: Task) -> Any:
        raise NotImplementedError

    def wait(self, seconds: float) -> list[Any]:
        """What is done since the last call, each once; waits up to `seconds` for the first."""
        done = [future for future in self._to_ask if future.done()]
        self._to_ask.difference_update(done)
        with suppress(queue.Empty):
            done.append(self._done.get(timeout=0.0 if done else seconds))
            while True:
                done.append(self._done.get_nowait())
        return done

    def settle(self, future: Any) -> None:
        """Take back the worker of a future that is done."""

    def close(self, kill: bool) -> None:
        """End what the sweep has started itself."""


class LocalWorkers(Workers):
    """Processes on this machine, each a loky pool of one.

    When one dies it is thus known over which cell, and the others are left alone.
    """

    def __init__(self, n: int, n_threads: int) -> None:
        super().__init__()
        self._n, self._n_threads = n, n_threads
        self._idle: list[Any] = []
        self._at_work: dict[Any, Any] = {}

    def has_room(self) -> bool:
        return len(self._at_work) < self._n

    def _submit(self, task: Task) -> Any:
        while True:
            worker = self._idle.pop() if self._idle else local_pool(1, self._n_threads)
            try:
                with _process_starts():
                    future = worker.submit(run_cell, task)
            except concurrent.futures.BrokenExecutor:  # it died over its last cell, or with nothing to do
                worker.shutdown(wait=True, kill_workers=True)
                continue
            self._at_work[future] = worker
            return future

    def settle(self, future: Any) -> None:
        self._idle.append(self._at_work.pop(future))  # if it died over it, `submit` will notice

    def close(self, kill: bool) -> None:
        workers = [*self._idle, *self._at_work.values()]
        self._idle, self._at_work = [], {}
        for wait in (False, True):
            for worker in workers:
                worker.shutdown(wait=wait, kill_workers=kill)


class GivenExecutor(Workers):
    """An executor that the user gave: all cells are handed to it, and it decides when and where."""

    def __init__(self, executor: Any) -> None:
        super().__init__()
        if isinstance(executor, type):
            raise InputError(
                f"executor must be an instance, got the class {executor.__name__}: "
                f"make one first, as in `with {executor.__name__}(...) as executor:`."
            )
        if not callable(getattr(executor, "submit", None)):
            raise InputError(
                "executor must have a submit method, as those of concurrent.futures, Dask's client.get_executor() and "
                f"submitit do, got {executor!r}."
            )
        self._executor = executor
        self.in_threads = isinstance(executor, concurrent.futures.ThreadPoolExecutor)

    def _submit(self, task: Task) -> Any:
        try:
            future = self._executor.submit(run_cell, task)
        except Exception as error:
            raise EngineError(
                f"executor: it takes no more cells ({type(error).__name__}: {error}). What is done is kept; "
                "call tv.sweep again with a new executor to go on."
            ) from error
        if not (callable(getattr(future, "done", None)) and callable(getattr(future, "result", None))):
            raise EngineError(
                f"executor: its submit() returned {future!r}, and must return a future: an object with done() and "
                "result()."
            )
        return future


def result_of(future: Any) -> Report | Exception:
    """A worker's report, or the exception that tells how the worker was lost."""
    try:
        report = future.result()
    except concurrent.futures.CancelledError:
        return RuntimeError("the cell was cancelled")
    except Exception as error:
        return error
    return report if isinstance(report, Report) else RuntimeError(f"the executor gave back {report!r}, not a report")


def cancel(future: Any) -> None:
    """Cancel what has not begun; what has begun ends by itself."""
    with suppress(Exception):
        future.cancel()
