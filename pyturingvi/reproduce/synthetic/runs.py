"""Makes the runs of a preset over local processes; each finished run is a row of a CSV file, and is not made again."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from pyturingvi.engines.selection import select_engine
from pyturingvi.errors import OutputError
from pyturingvi.models.gaussian import IsotropicGaussian
from pyturingvi.reproduce.figure import Job
from pyturingvi.reproduce.synthetic.plan import Key, Run, plan
from pyturingvi.reproduce.synthetic.problem import MAX_UPDATES, proximal_sgd, t_of
from pyturingvi.reproduce.tasks import run_tasks
from pyturingvi.settings import Settings
from pyturingvi.support.archive import digest
from pyturingvi.support.files import write_table
from pyturingvi.sweeps.pools import default_workers

if TYPE_CHECKING:
    import pandas as pd

    from pyturingvi.result import Fit

KEY = ["family", "n", "step", "n_samples", "repeat"]
NUMBERS = ["n", "step", "n_samples", "repeat", "stepsize", "seed", "max_updates", "T", "seconds"]
COLUMNS = [*KEY, "stepsize", "seed", "max_updates", "ended", "T", "engine", "seconds"]
_WRITE_SECONDS = 2.0  # between two writes of the file, at least


def read_runs(job: Job) -> pd.DataFrame:
    """The runs made so far; DataError if there are none, or the file cannot be used."""
    return job.read("runs", COLUMNS, NUMBERS)[COLUMNS]


def found_in(runs: pd.DataFrame) -> dict[Key, float]:
    """T of each run in a table of runs."""
    return dict(zip(runs[KEY].itertuples(index=False, name=None), runs["T"], strict=True))


def make_run(run: Run, engine: str) -> dict[str, Any]:
    """One run, as a row."""
    settings = (run.family, run.n, run.stepsize, run.n_samples, run.seed, run.max_updates)
    return row_of(run, proximal_sgd(*settings, engine=engine))


def row_of(run: Run, found: Fit) -> dict[str, Any]:
    """The row of a run. T is 59,999 where the accuracy is not reached, and empty where the run had fewer updates."""
    ended = "reached" if found.arrived else "diverged" if found.status == "diverged" else "not reached"
    t = math.nan if ended == "not reached" and run.max_updates < MAX_UPDATES else t_of(found)
    rest = (run.stepsize, run.seed, run.max_updates, ended, t, found.engine, round(found.seconds, 3))
    return dict(zip(COLUMNS, (*run.key, *rest), strict=True))


def unmade(runs: pd.DataFrame, preset: str, engine: str) -> list[Run]:
    """The preset's runs that a table of runs does not have."""
    found = found_in(runs)
    return [run for run in plan(preset, found, engine) if run.key not in found]


def compute(job: Job) -> None:
    """Make the runs that are missing.

    Raises
    ------
    OutputError
        If another call on this machine is at work on the same file.
    EngineError
        If the engine is not there, or a process dies; the runs made are kept.
    """
    import pandas as pd

    engine = select_engine(IsotropicGaussian(1), Settings(engine=job.engine)).name
    path, written = job.file("runs"), -math.inf
    with _no_other_call(path):
        runs = read_runs(job) if path.is_file() else pd.DataFrame(columns=COLUMNS)
        rows: list[Any] = runs.to_dict("records")

        def write(seconds: float = 0.0) -> None:
            """Write the file, sorted: it does not depend on the order in which runs ended."""
            nonlocal runs, written
            if len(rows) > len(runs) and time.monotonic() - written >= seconds:
                runs = pd.DataFrame(rows, columns=COLUMNS).sort_values(KEY)
                write_table(path, runs)
                written = time.monotonic()

        def take(row: dict[str, Any]) -> None:
            rows.append(row)
            write(_WRITE_SECONDS)

        # some runs are planned once the first have told where the best stepsize is
        while missing := unmade(runs, job.preset, engine):
            costs = [run.seconds(engine) for run in missing]
            n_workers = min(job.n_workers or default_workers(), len(missing))
            job.tell(
                f"synthetic, {job.preset}: {len(missing)} runs to make with the {engine} engine, about "
                f"{max(1, round(sum(costs) / n_workers / 60))} minutes on {n_workers} free core(s); interrupted, it "
                "goes on when repeated"
            )
            try:
                what = f"synthetic {job.preset}"
                run_tasks(make_run, [(run, engine) for run in missing], job, what, costs=costs, take=take)
            finally:
                write()


@contextmanager
def _no_other_call(path: Path) -> Iterator[None]:
    """OutputError while another call on this machine makes runs for the same file."""
    lock = FileLock(Path(tempfile.gettempdir()) / f"pyturingvi-{digest(str(path.resolve()))}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise OutputError(f"{path}: another call is making its runs. Wait for it, or give another --out.") from None
    except (OSError, NotImplementedError):  # where there are no locks, go on without
        pass
    try:
        yield
    finally:
        lock.release()
