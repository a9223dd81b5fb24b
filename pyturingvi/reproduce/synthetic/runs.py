"""Makes the runs of a preset, each a cell of a sweep; a run that is a row of the CSV file is not made again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyturingvi.engines.selection import select_engine
from pyturingvi.errors import OutputError
from pyturingvi.models.gaussian import IsotropicGaussian
from pyturingvi.optimize.rules import ProximalSGD
from pyturingvi.reproduce.figure import Job
from pyturingvi.reproduce.synthetic.plan import Key, Run, plan
from pyturingvi.reproduce.synthetic.problem import MAX_UPDATES, NOT_REACHED, settings_of
from pyturingvi.settings import Settings
from pyturingvi.support.files import write_table
from pyturingvi.sweeps.cell_file import FINISHED
from pyturingvi.sweeps.sweep import sweep

if TYPE_CHECKING:
    import pandas as pd

KEY = ["family", "n", "step", "n_samples", "repeat"]
NUMBERS = ["n", "step", "n_samples", "repeat", "stepsize", "seed", "max_updates", "T", "seconds"]
COLUMNS = [*KEY, "stepsize", "seed", "max_updates", "ended", "T", "engine", "seconds"]


def read_runs(job: Job) -> pd.DataFrame:
    """The runs made so far; DataError if there are none, or the file cannot be used."""
    return job.read("runs", COLUMNS, NUMBERS)[COLUMNS]


def unmade(runs: pd.DataFrame, preset: str) -> list[Run]:
    """The preset's runs that a table of runs does not have."""
    found: dict[Key, float] = dict(zip(runs[KEY].itertuples(index=False, name=None), runs["T"], strict=True))
    return [run for run in plan(preset, found) if run.key not in found]


def row_of(run: Run, cell: Any) -> dict[str, Any]:
    """A run's row, from that of its cell in the frame of a sweep, which was given one update more than the run has.

    T is 59,999 where the accuracy is not reached, and empty where the run had fewer updates.
    """
    if cell.status == "diverged":
        ended, t = "diverged", float(NOT_REACHED)
    elif cell.n_updates <= run.max_updates:
        ended, t = "reached", cell.n_updates - 1.0
    else:
        ended, t = "not reached", float(NOT_REACHED) if run.max_updates == MAX_UPDATES else math.nan
    rest = (run.stepsize, run.seed, run.max_updates, ended, t, cell.engine, round(cell.seconds, 3))
    return dict(zip(COLUMNS, (*run.key, *rest), strict=True))


def compute(job: Job) -> None:
    """Make the runs that are missing, and write the file; what is made is kept when others fail."""
    import pandas as pd

    rule = ProximalSGD(1.0)  # for the engine alone: each run has its own stepsize
    engine = select_engine(IsotropicGaussian(1), Settings(optimizer=rule, engine=job.engine)).name
    path = job.file("runs")
    runs = read_runs(job) if path.is_file() else pd.DataFrame(columns=COLUMNS)
    # two sweeps: some runs are planned once the first have told where the best stepsize is
    while missing := unmade(runs, job.preset):
        job.tell(f"synthetic, {job.preset}: {len(missing)} runs to make with the {engine} engine")
        grid = [
            settings_of(run.family, run.n, run.stepsize, run.n_samples, run.seed, run.max_updates + 1, engine=engine)
            for run in missing
        ]
        result = sweep(grid, out=job.sweep_folder, n_workers=job.n_workers, progress=job.progress)
        cells = result.frame().itertuples()
        made = [row_of(run, cell) for run, cell in zip(missing, cells, strict=True) if cell.status in FINISHED]
        if made:
            runs = pd.DataFrame([*runs.to_dict("records"), *made], columns=COLUMNS).sort_values(KEY)
            write_table(path, runs)
        if result.status == "interrupted":
            raise KeyboardInterrupt
        if result.status == "incomplete":
            raise OutputError(
                f"{path}: {len(missing) - len(made)} of {len(missing)} runs failed; {result.out} says why, in "
                "cells/*.json. The same call tries them again."
            )
