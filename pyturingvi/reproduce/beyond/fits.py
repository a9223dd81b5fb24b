"""The default fits of the page: presets, one fit, and the table that they make with Adam's."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi import fitting
from pyturingvi.diagnosis.draws import log_ratios
from pyturingvi.models.base import Model
from pyturingvi.problems import load_problem, problem_names
from pyturingvi.reproduce.beyond.adam import COMPARED, adam_fits
from pyturingvi.reproduce.figure import Job
from pyturingvi.reproduce.realistic import SETTINGS
from pyturingvi.reproduce.tasks import run_tasks
from pyturingvi.settings import Settings
from pyturingvi.support.files import write_table

if TYPE_CHECKING:
    import pandas as pd

WORDS = ["problem", "family", "optimizer", "engine", "dtype", "status"]
NUMBERS = ["stepsize", "of_stepsizes", "seed", "n_updates", "n_gradients", "elbo", "std_error", "n_draws"]
NUMBERS += ["cpu_seconds", "adam_update_ms"]
DEFAULT = "natural gradients"
DRAWS = {"rpoisson": 4096, "volatility": 4096, "irt": 1024}  # of log p - log q, for the ELBO of a default fit
_DRAWS_SEED = 1_000  # added to a fit's seed: its ELBO rests on draws of its own
_TIMED = (20, 200)  # updates of Adam: the second number where the first takes less than a second


@dataclass(frozen=True)
class Preset:
    """What a preset computes: the seeds of each problem, in the order of work."""

    words: str
    n_seeds: Mapping[str, int]


_PAPERS = problem_names()[:9]
PRESETS = {
    "quick": Preset(
        "rpoisson-small and volatility-small, one seed; half a minute", {"rpoisson-small": 1, "volatility-small": 1}
    ),
    "laptop": Preset(
        "the nine problems, irt simulated; three seeds, but one of irt-middle and the large ones; some ten minutes",
        {name: 1 if name.endswith("large") or name == "irt-middle" else 3 for name in _PAPERS},
    ),
    "paper": Preset("the nine problems, eight seeds; more than an hour", dict.fromkeys(_PAPERS, 8)),
}


def compute(job: Job) -> None:
    """Make the default fits that the table does not have yet, and put Adam's beside them.

    The table is written after each problem, so that the same call goes on after an interruption.
    """
    import pandas as pd

    own = _default_fits_of(job)
    names = own.problem.astype(str).str.removesuffix(" (simulated)")
    done = set(zip(names, own.family, own.seed, strict=True))
    for problem, n_seeds in PRESETS[job.preset].n_seeds.items():
        missing = [
            (problem, family, seed, job.engine, job.data_dir)
            for family in COMPARED
            for seed in range(n_seeds)
            if (problem, family, seed) not in done
        ]
        if missing:
            found = run_tasks(default_fit, missing, job, problem)
            own = pd.concat([part for part in (own, pd.DataFrame(found)) if len(part)])
            _write(job, own)
    _write(job, own)


def _default_fits_of(job: Job) -> pd.DataFrame:
    """The default fits that the table has."""
    import pandas as pd

    if not job.file("fits").is_file():
        return pd.DataFrame(columns=[*WORDS, *NUMBERS])
    table = job.read("fits", WORDS, NUMBERS)
    return table[table.optimizer == DEFAULT]


def _write(job: Job, own: pd.DataFrame) -> None:
    """Write the table: of each problem Adam's fits, where there are any, then the default ones."""
    import pandas as pd

    order = {name: place for place, name in enumerate(_PAPERS)}
    adam = adam_fits(job)
    table = pd.concat([adam[adam.problem.isin(own.problem)], own])[[*WORDS, *NUMBERS]]
    place = table.problem.str.removesuffix(" (simulated)").map(order)
    table = table.assign(place=place).sort_values(["place", "optimizer", "family", "seed"]).drop(columns="place")
    whole = ["of_stepsizes", "seed", "n_updates", "n_gradients", "n_draws"]
    table[whole] = table[whole].astype("Int64")
    table = table.round({"elbo": 3, "std_error": 3, "cpu_seconds": 2, "adam_update_ms": 3})
    write_table(job.file("fits"), table, float_format="%.8g")


def default_fit(problem: str, family: str, seed: int, engine: str, data_dir: Path | None) -> dict[str, Any]:
    """One row: `tv.fit` with nothing but a family and a seed, its ELBO from draws of its own, and what it took.

    `cpu_seconds` are of this process, without the making of the model; `n_gradients` counts gradients of the log
    density at a point, in the NumPy engine; `adam_update_ms` is what an update of Adam takes here, M = 8.
    """
    kind = problem.split("-")[0]
    simulated = kind == "irt" and data_dir is None
    model = load_problem(problem, data_dir if kind == "irt" else None, simulated=simulated)
    evaluated = count_gradients(model)
    start = time.process_time()
    fit = fitting.run(model, Settings.of(family=family, seed=seed, engine=engine), budget_chosen=False)
    seconds = time.process_time() - start
    n_gradients = sum(evaluated) if fit.engine == "numpy" else math.nan
    n_draws = DRAWS[kind]
    bound = fit.family.bind(model.layout)
    ratios, _, _ = log_ratios(model, bound, fit.params, n_draws, seed + _DRAWS_SEED, 0)
    return {
        "problem": model.label,
        "family": family,
        "optimizer": DEFAULT,
        "engine": fit.engine,
        "dtype": fit.spec.dtype,
        "status": fit.status,
        "stepsize": math.nan,
        "of_stepsizes": math.nan,
        "seed": seed,
        "n_updates": fit.n_updates,
        "n_gradients": n_gradients,
        "elbo": float(ratios.mean()),
        "std_error": float(ratios.std(ddof=1) / np.sqrt(n_draws)),
        "n_draws": n_draws,
        "cpu_seconds": seconds,
        "adam_update_ms": 1e3 * adam_update_seconds(model, family, fit.engine),
    }


def count_gradients(model: Model) -> list[int]:
    """Let the model note at how many points each call asks for its gradient; returns the list of the notes."""
    notes: list[int] = []
    evaluate = model._log_density_and_gradient

    def noted(points: Any) -> Any:
        notes.append(len(points))  # threads share the list: appending is atomic
        return evaluate(points)

    model._log_density_and_gradient = noted  # type: ignore[method-assign]
    return notes


def adam_update_seconds(model: Model, family: str, engine: str) -> float:
    """Processor seconds of an update of Adam, from a short run by the paper's protocol without ELBO estimates."""
    seconds = math.nan
    for n_updates in _TIMED:
        once = {**SETTINGS, "n_iterations": n_updates, "elbo_every": n_updates, "elbo_samples": 2, "stepsize": 1e-4}
        settings = Settings.of(family=family, engine=engine, **once)
        start = time.process_time()
        fitting.run(model, settings)
        seconds = time.process_time() - start
        if seconds > 1.0:
            break
    return seconds / n_updates
