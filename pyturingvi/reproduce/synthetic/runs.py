"""Makes the runs of a preset over local processes; each finished run is a row of a CSV file, and is not made again."""

from __future__ import annotations

import concurrent.futures
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyturingvi.engines.base import select_engine
from pyturingvi.errors import DataError, EngineError
from pyturingvi.models.gaussian import IsotropicGaussian
from pyturingvi.paths import write_atomically
from pyturingvi.reproduce.figure import Job
from pyturingvi.reproduce.synthetic.plan import Key, Run, plan
from pyturingvi.reproduce.synthetic.problem import MAX_UPDATES, Reached, updates_to_accuracy
from pyturingvi.sweeps.worker import start_local_worker

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "family", "n", "step", "n_samples", "repeat", "stepsize", "seed", "max_updates", "ended", "T", "engine", "seconds",
)  # fmt: skip
_WRITE_SECONDS = 2.0  # between two writes of the file, at least


def read_runs(path: Path) -> pd.DataFrame:
    """The runs made so far; DataError if the file is something else."""
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a table of runs ({error}).") from None
    if tuple(frame.columns) != COLUMNS or frame.duplicated(list(COLUMNS[:5])).any():
        raise DataError(f"{path}: not a table of runs of this version. Move it away to make all runs anew.")
    return frame


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

    def __init__(self, path: Path) -> None:
        self.path = path
        earlier = read_runs(path) if path.is_file() else None
        self._rows: list[Any] = [] if earlier is None else earlier.to_dict("records")
        self._written = -math.inf
        self.found: dict[Key, float] = {} if earlier is None else found_in(earlier)

    def add(self, row: dict[str, Any]) -> None:
        """Add a run, and write the file unless it was written just now."""
        self._rows.append(row)
        self.found[_key(row)] = float(row["T"])
        if time.monotonic() - self._written > _WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the file, sorted, so that it does not depend on the order in which runs ended."""
        import pandas as pd

        frame = pd.DataFrame(self._rows, columns=list(COLUMNS)).sort_values(list(COLUMNS[:5]))
        write_atomically(self.path, lambda stream: stream.write(frame.to_csv(index=False).encode()))
        self._written = time.monotonic()


def compute(job: Job) -> None:
    """Make the runs that are missing.

    Raises
    ------
    EngineError
        If the engine is not there, or a process dies; the runs made are kept.
    """
    engine = select_engine(job.engine, IsotropicGaussian(1), n_threads=1).name
    runs = Runs(job.file("runs"))
    missing = [run for run in plan(job.preset, runs.found, engine) if run.key not in runs.found]
    if not missing:
        return
    n_workers = job.n_workers or _physical_cores()
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
    from loky import ProcessPoolExecutor

    env = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    env["LOKY_MAX_MEMORY_LEAK_SIZE"] = "1e18"  # a worker that has grown is no leak: it holds an engine
    pool = ProcessPoolExecutor(n_workers, env=env, initializer=start_local_worker, initargs=(os.getpid(),))
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


def _physical_cores() -> int:
    from loky import cpu_count

    return max(1, int(cpu_count(only_physical_cores=True)))
