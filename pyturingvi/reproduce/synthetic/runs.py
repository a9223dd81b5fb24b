"""Makes the runs of a preset over local processes; each finished run is a row of a CSV file, and is not made again."""

from __future__ import annotations

import concurrent.futures
import hashlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from pyturingvi.engines.base import select_engine
from pyturingvi.errors import DataError, EngineError
from pyturingvi.models.gaussian import IsotropicGaussian
from pyturingvi.reproduce.figure import FAMILIES, Job
from pyturingvi.reproduce.synthetic.plan import Key, Run, plan
from pyturingvi.reproduce.synthetic.problem import MAX_UPDATES, NOT_REACHED, Reached, stepsizes, updates_to_accuracy
from pyturingvi.reproduce.tables import Table, read_table
from pyturingvi.support.files import write_table
from pyturingvi.sweeps.pools import default_workers, local_pool

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "family", "n", "step", "n_samples", "repeat", "stepsize", "seed", "max_updates", "ended", "T", "engine", "seconds",
)  # fmt: skip
_WRITE_SECONDS = 2.0  # between two writes of the file, at least


TABLE = Table(
    key=COLUMNS[:5],
    natural=("n", "n_samples", "max_updates"),
    counts=("step", "repeat", "seed"),
    positive=("stepsize",),
    finite=("T",),
    nonnegative=("seconds",),
    words={
        "family": FAMILIES,
        "ended": ("reached", "not reached", "diverged"),
        "engine": ("numpy", "julia"),
    },
    empty=("T",),
    contradictions={
        "a run that reached the accuracy after more updates than it may make": lambda frame: (
            (frame.ended == "reached") & (frame["T"] + 1 > frame.max_updates)
        ),
        f"a run without the accuracy and a T that is not {NOT_REACHED:,}": lambda frame: (
            (frame.ended != "reached") & frame["T"].notna() & (frame["T"] != NOT_REACHED)
        ),
        "a run that ended and no T of it": lambda frame: frame["T"].isna() & (frame.ended != "not reached"),
        "a T below 0": lambda frame: frame["T"] < 0,
        "a stepsize that is not the one of its number `step`": lambda frame: ~_is_of_the_grid(frame),
    },
)


def read_runs(job: Job, *, rows_needed: bool = True) -> pd.DataFrame:
    """The runs made so far; DataError if there are none, or the file is something else."""
    if rows_needed:
        return job.read("runs", TABLE)[list(COLUMNS)]
    return read_table(job.file("runs"), TABLE, job.advice(), rows_needed=False)[list(COLUMNS)]


def _is_of_the_grid(frame: pd.DataFrame) -> np.ndarray:
    """Which rows have the stepsize of their number `step`."""
    grid = stepsizes()
    of_step = grid[np.minimum(frame.step.to_numpy(), len(grid) - 1)]
    return (frame.step.to_numpy() < len(grid)) & np.isclose(of_step, frame.stepsize, rtol=1e-6, atol=0)


def found_in(runs: pd.DataFrame) -> dict[Key, float]:
    """T of each run in a table of runs."""
    return {_key(row): float(row["T"]) for row in runs.to_dict("records")}


def _key(row: Mapping[Any, Any]) -> Key:
    return str(row["family"]), int(row["n"]), int(row["step"]), int(row["n_samples"]), int(row["repeat"])


def make_run(run: Run, engine: str) -> dict[str, Any]:
    """One run, as a row."""
    start = time.perf_counter()
    reached = updates_to_accuracy(
        run.family, run.n, run.stepsize, run.n_samples, run.seed, run.max_updates, engine=engine
    )
    return row_of(run, reached, engine, time.perf_counter() - start)


def row_of(run: Run, reached: Reached, engine: str, seconds: float) -> dict[str, Any]:
    """The row of a run. T is 59,999 where the accuracy is not reached, and empty where the run had fewer updates."""
    ended = "reached" if reached.updates is not None else "diverged" if reached.diverged else "not reached"
    unknown = ended == "not reached" and run.max_updates < MAX_UPDATES
    return {
        **dict(zip(COLUMNS[:5], run.key, strict=True)),
        "stepsize": run.stepsize,
        "seed": run.seed,
        "max_updates": run.max_updates,
        "ended": ended,
        "T": math.nan if unknown else reached.published_t,
        "engine": engine,
        "seconds": round(seconds, 3),
    }


class Runs:
    """The file of runs."""

    def __init__(self, job: Job) -> None:
        self._job, self.path = job, job.file("runs")
        self._rows: dict[Key, Any] = {}
        self._written = -math.inf
        self.found: dict[Key, float] = {}
        self._take_in()

    def add(self, row: dict[str, Any]) -> None:
        """Add a run, and write the file unless it was written just now."""
        self._rows[_key(row)] = row
        self.found[_key(row)] = float(row["T"])
        if time.monotonic() - self._written > _WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the file, sorted, so that it does not depend on the order in which runs ended.

        What another call has put there meanwhile stays, and is not made again here.
        """
        import pandas as pd

        with _locked(self.path):
            with suppress(DataError):  # what is damaged meanwhile is replaced by what is known here
                self._take_in()
            if self._rows:
                frame = pd.DataFrame(list(self._rows.values()), columns=list(COLUMNS))
                write_table(self.path, frame.sort_values(list(COLUMNS[:5])))
        self._written = time.monotonic()

    def _take_in(self) -> None:
        """Take in the rows of the file that are not known here."""
        if self.path.is_file():
            for row in read_runs(self._job, rows_needed=False).to_dict("records"):
                if _key(row) not in self._rows:
                    self._rows[_key(row)] = row
                    self.found[_key(row)] = float(row["T"])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other calls on this machine from writing the file; where there are no locks, go on without."""
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    lock = FileLock(Path(tempfile.gettempdir()) / f"pyturingvi-{name}.lock")
    with suppress(OSError, NotImplementedError):  # a Timeout is an OSError
        lock.acquire(timeout=10)
    try:
        yield
    finally:
        lock.release()


def compute(job: Job) -> None:
    """Make the runs that are missing.

    Raises
    ------
    EngineError
        If the engine is not there, or a process dies; the runs made are kept.
    """
    engine = select_engine(job.engine, IsotropicGaussian(1), n_threads=1).name
    runs = Runs(job)
    missing = [run for run in plan(job.preset, runs.found, engine) if run.key not in runs.found]
    if not missing:
        return
    n_workers = job.n_workers or default_workers()
    seconds = sum(run.seconds(engine) for run in missing) / min(n_workers, len(missing))
    if job.progress:
        print(
            f"synthetic, {job.preset}: {len(missing)} runs to make with the {engine} engine, about "
            f"{max(1, round(seconds / 60))} minutes on {n_workers} free core(s); interrupted, it goes on when repeated",
            file=sys.stderr,
            flush=True,
        )
    _make(job, runs, engine, min(n_workers, len(missing)))


def _make(job: Job, runs: Runs, engine: str, n_workers: int) -> None:
    pool = local_pool(n_workers)
    at_work: dict[Any, Run] = {}
    progress = _Progress(job, engine)
    complete = False
    try:
        while True:
            planned = plan(job.preset, runs.found, engine)
            under_way = {run.key for run in at_work.values()}
            waiting = [run for run in planned if run.key not in runs.found and run.key not in under_way]
            # one more than there are processes, so that none waits for the next
            for run in waiting[: n_workers + 1 - len(at_work)]:
                at_work[pool.submit(make_run, run, engine)] = run
            if not at_work:
                break
            progress.show(planned, runs)
            for future in concurrent.futures.wait(at_work, return_when=concurrent.futures.FIRST_COMPLETED).done:
                del at_work[future]
                runs.add(future.result())
        complete = True
    except concurrent.futures.BrokenExecutor as error:
        raise EngineError(
            f"A process died over its run ({error}). The runs made are in {runs.path}; call again to go on."
        ) from None
    finally:
        runs.write()
        progress.close()
        pool.shutdown(wait=True, kill_workers=not complete)


class _Progress:
    """A bar over the seconds that runs are expected to take, so that its estimate weighs them rightly."""

    def __init__(self, job: Job, engine: str) -> None:
        from tqdm.auto import tqdm

        self._engine, self._before = engine, -1.0
        self._bar: Any = tqdm(
            total=1.0,
            desc=f"synthetic {job.preset}",
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed} passed, {remaining} left{postfix}",
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 30.0,
            disable=not job.progress,
        )

    def show(self, planned: list[Run], runs: Runs) -> None:
        done = [run for run in planned if run.key in runs.found]
        seconds = sum(run.seconds(self._engine) for run in done)
        if self._before < 0:
            self._bar.initial = self._bar.n = self._bar.last_print_n = self._before = seconds
        self._bar.total = sum(run.seconds(self._engine) for run in planned)
        self._bar.set_postfix_str(f"{len(done)}/{len(planned)} runs", refresh=False)
        self._bar.update(seconds - self._before)
        self._before = seconds

    def close(self) -> None:
        self._bar.close()
