"""Which rows the tables of `stepsize` and `trace` can have: those of the preset's grid, which tells what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyturingvi.errors import DataError
from pyturingvi.reproduce import realistic
from pyturingvi.reproduce.figure import Job
from pyturingvi.reproduce.tables import named, refuse_foreign, row_names

if TYPE_CHECKING:
    import pandas as pd

FIT = ("problem", "family", "stepsize", "seed", "n_iterations")
CURVE = ("problem", "family", "stepsize", "n_iterations")

Name = tuple[str, ...]


@dataclass(frozen=True)
class Expected:
    """The fits and curves of a preset: fits by name, and each curve's iterations and replications."""

    fits: frozenset[Name]
    curves: dict[Name, tuple[tuple[int, ...], int]]


def expected(job: Job, problems: Iterable[str]) -> Expected:
    """What the preset has wherever there is memory for it; irt simulated or not as in `problems`, a table's."""
    published = any(name.startswith("irt") and not name.endswith("(simulated)") for name in problems)
    grid = realistic.grid_of(replace(job, data_dir=Path() if published else None), math.inf)
    fits, curves = set(), {}
    for part in grid:
        problem = f"{part['model']} (simulated)" if part.get("simulated") else part["model"]
        iterations = realistic.shown_iterations(part["n_iterations"], part["elbo_every"])
        for family in part["family"]:
            for stepsize in part["stepsize"]:
                name = (problem, family, stepsize, part["n_iterations"])
                curves[named(name)] = (tuple(int(i) for i in iterations), len(part["seed"]))
                fits |= {named((*name[:3], seed, name[3])) for seed in part["seed"]}
    return Expected(frozenset(fits), curves)


def check_fits(frame: pd.DataFrame, job: Job) -> None:
    """DataError for a fit that the preset does not have, or a table without a finished one."""
    refuse_foreign(row_names(frame, FIT), FIT, expected(job, frame.problem).fits, job.preset)
    if not realistic.n_finished(frame):
        raise DataError("has no finished fit yet")


def check_curves(frame: pd.DataFrame, job: Job) -> None:
    """DataError for a row that the preset does not have, or a curve of which there is a part alone."""
    curves = expected(job, frame.problem).curves
    key = (*CURVE, "iteration")
    known = {(*name, str(i)) for name, (iterations, _) in curves.items() for i in iterations}
    refuse_foreign(row_names(frame, key), key, known, job.preset)
    for row, here in frame.groupby(list(CURVE), sort=False):
        iterations, replications = curves[named(row)]
        words = ", ".join(named(row)[:3])
        for _, curve in here.groupby(["engine", "dtype"]):
            if len(curve) != len(iterations):
                raise DataError(f"has {len(curve)} of the {len(iterations)} rows of {words}: it is incomplete")
        most = int(here.groupby("iteration").n.sum().max())
        if most > replications:
            raise DataError(f"has {most} replications of {words}, of which there are {replications}")


def told(job: Job, frame: pd.DataFrame) -> str:
    """How many of the preset's fits are in a table of traces, and where curves are missing."""
    preset = expected(job, frame.problem)
    here = set(row_names(frame[list(CURVE)].drop_duplicates(), CURVE))
    lacking = [name[0] for name in preset.curves if name not in here]
    words = [f"{realistic.n_finished(frame)} of {len(preset.fits)} fits are there"]
    for problem in realistic.in_order(lacking):
        of_problem = sum(name[0] == problem for name in preset.curves)
        words.append(f"{problem}: {lacking.count(problem)} of {of_problem} curves are missing")
    return "; ".join(words)
