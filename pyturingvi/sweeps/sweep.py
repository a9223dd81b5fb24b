"""`sweep()`: many fits, each a cell with a file of its own, on the cores of this machine or on a cluster."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from pyturingvi.errors import EngineError, OutputError, unknown_name
from pyturingvi.optimize.memory import available_memory
from pyturingvi.support.arguments import whole_number
from pyturingvi.support.interrupts import DeferredInterrupt
from pyturingvi.sweeps.folder import SweepFolder, store_model
from pyturingvi.sweeps.grid import Cell, read_grid
from pyturingvi.sweeps.lock import SweepLock, is_at_work
from pyturingvi.sweeps.pools import (
    GivenExecutor,
    LocalWorkers,
    Workers,
    cancel,
    check_workers,
    default_workers,
    result_of,
)
from pyturingvi.sweeps.progress import SweepProgress
from pyturingvi.sweeps.result import SweepResult, collect
from pyturingvi.sweeps.worker import Report, Task, write_failure

MAX_LOSSES = 3  # a cell that has cost so many workers their lives is given up
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 30.0  # for cells to write their checkpoints


def sweep(
    grid: Any,
    executor: Any = None,
    *,
    out: str | os.PathLike[str],
    n_workers: int | None = None,
    n_threads: int = 1,
    keep: str = "trace",
    progress: bool = True,
) -> SweepResult:
    """Fit every cell of a grid; a call that was killed, or had failures, goes on when it is repeated.

    A cell is one fit. Its file is named by its settings and written whole when the cell is done, so a call runs only
    what has no file yet; cells of several grids may share a folder, where one sweep works at a time. A cell that is
    cut off leaves a checkpoint and goes on from there, to the numbers of an undisturbed run. A diverged cell is a
    result. An error in a cell (or `MAX_LOSSES` dead workers over it) is recorded as "failed" while the others go on,
    and tried again at the next call.

    Parameters
    ----------
    grid : mapping, or list of mappings
        Setting -> value, or a list (tuple, range, 1-D array) of values; the cells are all combinations, at most
        1,000,000. A list of mappings is the union of theirs. `model` is a problem's name (with `data_dir`, `simulated`,
        `variant` and `data_seed` as in `tv.load_problem`) or a model; the rest are arguments of `tv.fit`, with its
        defaults: `family`, `optimizer`, `n_iterations`, `n_samples`, `elbo_every`, `elbo_samples`, `init_location`,
        `init_scale`, `seed`, `engine`, `device`, `dtype`, `averaging`, `stop_within`. `stepsize` replaces that of
        `optimizer`, which may then be a name: "adam" (which a `stepsize` alone means), "sgd", "proximal-sgd",
        "projected-sgd". Classes of your own must be registered (`tv.register`): a cell's files name them.
    executor : optional
        Anything with the `submit` of `concurrent.futures`: Dask's `client.get_executor()`, a submitit executor, an
        MPI pool. It gets all cells at once, and its workers must see `out` under the same path; with engine="julia"
        they must run the cells in their main thread. By default the cells run in processes of this machine (loky),
        the costliest first, as many at a time as fit in memory.
    out : path
        Folder of the sweep; made if it is not there.
    n_workers : int, optional
        Local processes; by default one for each `n_threads` physical cores, at most 64 or four times the logical
        cores. Each starts its engine once.
    n_threads : int
        Threads of each fit; the numbers do not depend on it.
    keep : {"trace", "fit"}
        "trace" keeps the ELBO trace and how the fit ended; "fit" also the whole fit (parameters and data), which
        `SweepResult.fit` reads.
    progress : bool
        Show cells done and the time left, as the cells of this call and the expected cost of the others tell it.

    Returns
    -------
    SweepResult
        With `frame()`, `traces()`, `status`. After Ctrl-C it holds what is done, with the status "interrupted"; cells
        at work write their checkpoints first (those on an executor at their next ELBO estimate), and a second Ctrl-C
        ends them at once.

    Raises
    ------
    InputError, DataError, OutputError, EngineError
        Before any work, for a grid or an argument that cannot be used, or another sweep at work in `out`. EngineError
        and OutputError also in the middle, for an executor that takes no more cells, for workers that do not see
        `out` and for a full disk; what is done is kept.

    Notes
    -----
    The folder: `cells/NAME.json` and `fits/NAME.npz` are the same, byte for byte, however often a sweep was killed on
    its way. What differs from run to run (start, seconds, host, tracebacks) is in `timings/NAME.json`. `work/` holds
    the lock and checkpoints, and is gone when all is done.

    Examples
    --------
    >>> grid = {"model": "rpoisson-small", "family": ["mean-field", "structured"], "stepsize": [1e-3, 1e-2]}
    >>> table = tv.sweep({**grid, "seed": range(5)}, out="runs").frame()  # doctest: +SKIP
    """
    if not isinstance(keep, str) or keep not in ("trace", "fit"):
        raise unknown_name("keep", keep, ["trace", "fit"])
    n_threads = whole_number("n_threads", n_threads, 1)
    n_workers = None if n_workers is None else check_workers(n_workers)
    given = None if executor is None else GivenExecutor(executor)
    cells = read_grid(grid, resolve_engine=given is None)
    folder = SweepFolder.create(out)
    with SweepLock(folder) as lock:
        folder.tidy()
        to_do = [cell for cell in cells if not folder.is_done(cell.name, cell.description, keep)]
        if given is not None and given.in_threads and any(cell.settings.engine == "julia" for cell in to_do):
            raise EngineError(
                "executor: it runs the cells in threads, and Julia runs in the main thread of a process only. Use "
                "engine='numpy' where the model allows it, an executor of processes, or none."
            )
        workers = given or LocalWorkers(min(n_workers or default_workers(n_threads), len(to_do)), n_threads)
        bar = SweepProgress([cell.cost for cell in cells], [cell.cost for cell in to_do], progress)
        with DeferredInterrupt() as interrupt:
            interrupted = SweepRun(folder, lock, workers, bar, interrupt, keep, n_threads).work_off(to_do)
    return collect(folder, {cell.name: cell.description for cell in cells}, interrupted)


@dataclass
class SweepRun:
    """The cells of one call: which wait, which are at work, which were lost."""

    folder: SweepFolder
    lock: SweepLock
    workers: Workers
    bar: SweepProgress
    interrupt: DeferredInterrupt
    keep: str
    n_threads: int

    def __post_init__(self) -> None:
        self.files: dict[str, str | None] = {}  # of models, by digest
        self.waiting: deque[Cell] = deque()
        self.running: dict[Any, Cell] = {}
        self.losses: Counter[str] = Counter()
        self.memory = available_memory() if isinstance(self.workers, LocalWorkers) else None

    def work_off(self, cells: list[Cell]) -> bool:
        """Run the cells, the costliest first; True if Ctrl-C ended it."""
        for digest, model in {cell.description["model_digest"]: cell.model for cell in cells}.items():
            self.files[digest] = store_model(self.folder, model, digest)
        self.waiting.extend(sorted(cells, key=lambda cell: -cell.cost))
        ended = False
        try:
            while (self.waiting or self.running) and not self.interrupt.requested:
                self._hand_out()
                self._collect()
                self.bar.tick()
            ended = not (self.waiting or self.running)
            if not ended:
                self.bar.tell("stopping; running cells write their checkpoints (Ctrl-C again to stop at once)")
                self._stop()
        except OutputError:  # a full disk, say: what is at work is saved where it can be
            self._stop()
            raise
        finally:
            self.lock.stop_workers()
            self.workers.close(kill=not ended)
            self.bar.close()
        return not ended

    # ---- handing out ----------------------------------------------------------------------------------------
    def _hand_out(self) -> None:
        while self.workers.has_room() and not self.interrupt.requested:
            cell = self._next()
            if cell is None:
                return
            task = Task(
                out=str(self.folder.root),
                token=self.lock.token,
                name=cell.name,
                description=cell.description,
                settings=cell.settings,
                model=self.files[cell.description["model_digest"]] or cell.model,
                keep=self.keep,
                n_threads=self.n_threads,
            )
            self.running[self.workers.submit(task)] = cell

    def _next(self) -> Cell | None:
        """Take the costliest cell that fits in memory beside those at work; alone, any may try."""
        free = math.inf
        if self.memory is not None and self.running:
            free = self.memory - sum(cell.n_bytes for cell in self.running.values())
        for place, cell in enumerate(self.waiting):
            if cell.n_bytes <= free:
                del self.waiting[place]
                return cell
        return None

    # ---- taking in ------------------------------------------------------------------------------------------
    def _collect(self) -> None:
        for future in self.workers.wait(_POLL_SECONDS):
            cell = self.running.pop(future)
            report = result_of(future)
            self.workers.settle(future)
            self._take_in(cell, report)

    def _take_in(self, cell: Cell, report: Report | Exception) -> None:
        out = str(self.folder.root)
        if isinstance(report, Exception):
            self._lose(cell, f"{type(report).__name__}: {report}")
        elif report.outcome == "unseen":
            raise OutputError(
                f"out: a worker does not see the folder {out!r}; give one that all workers share, under the same path."
            )
        elif report.outcome == "unwritable":
            raise OutputError(f"{report.message} What is done is kept; mend that, and call tv.sweep again to go on.")
        elif report.outcome == "stopped":
            if not is_at_work(self.folder, self.lock.token):
                raise OutputError(
                    f"out: a worker found the sweep in {out!r} ended: has somebody emptied the folder 'work' in it? "
                    "What is done is kept; call tv.sweep again to go on."
                )
            self.waiting.append(cell)  # the worker had a Ctrl-C, which the terminal sends to this process too
        else:
            self.bar.count(report.status, cell.cost)

    def _lose(self, cell: Cell, why: str) -> None:
        self.losses[cell.name] += 1
        if self.losses[cell.name] < MAX_LOSSES:
            self.bar.tell(f"a worker was lost over {cell.name}, which is tried again")
            self.waiting.append(cell)
            return
        message = f"Its worker was lost {MAX_LOSSES} times, the last time so: {why}"
        write_failure(self.folder, cell.name, cell.description, "WorkerLost", message)
        self.bar.count("failed", cell.cost)

    # ---- ending ---------------------------------------------------------------------------------------------
    def _stop(self) -> None:
        """End in good order: cells at work write their checkpoints."""
        self.lock.stop_workers()
        for future in self.running:
            if hasattr(future, "add_done_callback"):  # what has begun goes on; to cancel a job ends it at once
                cancel(future)
        deadline = time.monotonic() + _GRACE_SECONDS
        while not all(future.done() for future in self.running) and time.monotonic() < deadline:
            self.workers.wait(_POLL_SECONDS)
        for future in self.running:
            cancel(future)
