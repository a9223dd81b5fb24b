"""Adam's side of the page: the fits of `reproduce stepsize` after 50,000 updates, at each family's best stepsize."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyturingvi.errors import DataError
from pyturingvi.reproduce.claims import medians, sensitivity
from pyturingvi.reproduce.figure import FAMILIES, Job
from pyturingvi.reproduce.realistic import PAPER_ITERATIONS, SETTINGS
from pyturingvi.reproduce.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

FITS = "stepsize_laptop_elbo.csv"  # the committed ones
COMPARED = FAMILIES[:2]  # full-rank is too large for most of the problems


def committed_fits() -> Path:
    """The committed table of fits: inside the package of a wheel, with the experiments in a clone.

    Raises
    ------
    DataError
        If it is in neither place.
    """
    package = Path(__file__).parents[2]
    for path in (package / "measured" / FITS, package.parent / "experiments" / "results" / FITS):
        if path.is_file():
            return path
    raise DataError(f"The fits by Adam ({FITS}) are missing from this installation; install pyturingvi again.")


def adam_fits(job: Job) -> pd.DataFrame:
    """One row a replication at the best stepsize of each problem and family, in columns of the page's table.

    From `stepsize_PRESET_elbo.csv` in the job's folder if it is there, else from the committed table. Best is the
    stepsize with the highest median, chosen by the same values that are shown.
    """
    import pandas as pd

    own = job.folder / f"stepsize_{job.preset}_elbo.csv"
    path = own if own.is_file() else committed_fits()
    numbers = ["stepsize", "seed", "n_iterations", "n_updates", "elbo", "std_error", "elbo_5000", "std_error_5000"]
    table = read_table(
        path, "pyturingvi reproduce stepsize", ["problem", "family", "engine", "dtype", "status"], numbers
    )
    parts = []
    for (problem, iteration), curves in medians(table).items():
        if iteration < PAPER_ITERATIONS:
            continue
        for family in COMPARED:
            if family not in curves:
                continue
            best = sensitivity(curves[family]).best
            here = (table.problem == problem) & (table.family == family) & (table.n_iterations == iteration)
            found = table[here & (table.stepsize == best) & (table.status == "completed")]
            chosen = found[["problem", "family", "engine", "dtype", "stepsize", "seed", "status", "n_updates"]].assign(
                optimizer="adam",
                of_stepsizes=len(curves[family]),
                n_gradients=found.n_updates * SETTINGS["n_samples"],
                elbo=found.elbo,
                std_error=found.std_error,
                n_draws=SETTINGS["elbo_samples"],
            )
            parts.append(chosen)
    return pd.concat(parts) if parts else pd.DataFrame(columns=["problem"])
