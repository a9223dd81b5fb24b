"""What is measured of two engines: log densities, parameter paths, ELBO and time, as rows of one table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pyturingvi.comparisons.timing import busy_others, update_times
from pyturingvi.errors import ConvergenceWarning
from pyturingvi.families import Family
from pyturingvi.fitting import fit
from pyturingvi.models.base import Model
from pyturingvi.optimize.noise import generator
from pyturingvi.optimize.rules import Rule
from pyturingvi.result import Fit
from pyturingvi.settings import Settings
from pyturingvi.support.interrupts import interrupts_raised

# the project's requirement on the two engines, in float64
POINT_TOLERANCE = 1e-10  # log density and gradient, relative
PATH_TOLERANCE = 1e-8  # parameters after 200 updates with the same noise, relative to the largest
PATH_UPDATES = 200
ELBO_TOLERANCE = 4.0  # standard errors of the difference

COLUMNS = ["part", "model", "family", "optimizer", "iteration", "quantity", "numpy", "julia", "numpy_error"]
COLUMNS += ["julia_error", "difference", "unit", "tolerance", "agrees", "note"]
_POINT_STREAM, _PATH_STREAM = 100, 101  # apart from the streams of a fit
_SINGLE = "float32: no verdict, the engines round in different orders and Adam makes full steps of rounding errors"

Row = dict[str, Any]


class Side:
    """One engine, as the comparison uses it.

    Parameters
    ----------
    engine : {"numpy", "julia"}
    n_threads : int
        Threads of the numpy engine; Julia has one.
    dtype : {"float64", "float32"}
    """

    def __init__(self, engine: str, n_threads: int = 1, dtype: str = "float64") -> None:
        self.engine, self.n_threads, self.dtype = engine, n_threads, dtype

    def log_density_and_gradient(self, model: Model, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log densities (M,) and gradients (M, d) of unconstrained points (M, d), in float64."""
        if self.engine == "julia":
            from pyturingvi.engines.julia_engine import julia_log_density_and_gradient

            return julia_log_density_and_gradient(model, points)
        return model.log_density_and_gradient(points)

    def fit(self, model: Model, family: Family, rule: Rule, n_iterations: int, **settings: Any) -> Fit:
        """A fit; Ctrl-C, which `tv.fit` answers with what there is, ends the comparison."""
        usual = {"elbo_every": n_iterations, "elbo_samples": 1, "progress": False}
        here = {"engine": self.engine, "n_threads": self.n_threads, "dtype": self.dtype}
        options: dict[str, Any] = {**usual, **here, **settings}
        with interrupts_raised(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # short runs, and a report that says how they ended
            return fit(model, family, rule, n_iterations=n_iterations, **options)


def family_words(family: Family) -> str:
    """A family's name, with what is unusual about it."""
    usual = type(family)().config()
    unusual = [f"{key}={value}" for key, value in family.config().items() if value != usual.get(key)]
    return family.name + (f"({', '.join(unusual)})" if unusual else "")


def rule_words(rule: Rule) -> str:
    """A rule's stepsize."""
    stepsize = rule.schedule.config()
    return f"stepsize {stepsize:g}" if not isinstance(stepsize, dict) else "stepsize by a schedule"


def row(part: str, model: Model, family: Family | None = None, rule: str = "", **entries: Any) -> Row:
    """A row of the table; what is not given is missing, not zero."""
    named = {"part": part, "model": model.label, "family": family and family_words(family), "optimizer": rule or None}
    return {**dict.fromkeys(COLUMNS), "note": "", **named, **entries}


def _farthest(here: np.ndarray, there: np.ndarray) -> Row:
    """The entries of two arrays (M, k) that are farthest apart, relative to the largest entry of their row."""
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = abs(here - there) / abs(there).max(axis=1, keepdims=True)
    place = np.unravel_index(np.argmax(np.nan_to_num(apart, nan=np.inf)), apart.shape)
    return {"numpy": float(here[place]), "julia": float(there[place]), "difference": float(apart[place])}


# ---- (1) the same points ------------------------------------------------------------------------------------
def draw_points(model: Model, n_points: int, seed: int) -> np.ndarray:
    """Unconstrained points (n_points, d) from N(0, 0.5^2 I)."""
    return 0.5 * np.asarray(generator(np, seed, _POINT_STREAM).standard_normal((n_points, model.dim)))


def point_rows(model: Model, here: Sequence[np.ndarray], there: Sequence[np.ndarray]) -> list[Row]:
    """Log densities (M,) and gradients (M, d) of both engines at the same points."""
    rows = []
    shared: Row = {"tolerance": POINT_TOLERANCE, "note": f"{len(here[0])} points; figures of the worst"}
    units = {"log density": "relative", "gradient": "relative to the largest component"}
    for (quantity, unit), a, b in zip(units.items(), here, there, strict=True):
        found = _farthest(a.reshape(len(a), -1), b.reshape(len(b), -1))
        agrees = found["difference"] <= POINT_TOLERANCE
        rows.append(row("points", model, quantity=quantity, unit=unit, agrees=agrees, **found, **shared))
    return rows


# ---- (2) the same noise -------------------------------------------------------------------------------------
def path_stops(n_iterations: int) -> list[int]:
    """Numbers of updates at which parameters are compared; 200 among them where there are as many."""
    stops = {1, n_iterations // 20, n_iterations // 4, min(PATH_UPDATES, n_iterations), n_iterations}
    return sorted(stop for stop in stops if stop >= 1)


def path_noise(model: Model, family: Family, settings: Settings) -> np.ndarray:
    """Base draws (n_iterations, n_samples, D) that both engines are given."""
    shape = (settings.most_updates, settings.draws_of(model.layout), family.bind(model.layout).noise_dim)
    noise = np.empty(shape)
    family.base_distribution.fill(generator(np, settings.seed, _PATH_STREAM), noise)
    return noise


def path_rows(sides: Sequence[Side], model: Model, family: Family, rule: Rule, noise: np.ndarray) -> list[Row]:
    """How far apart the parameters are after so many updates along the same noise, each time from the start.

    The verdict is on 200 updates, or on all where there are fewer.
    """
    rows: list[Row] = []
    for stop in path_stops(len(noise)):
        here, there = (
            side.fit(model, family, rule, stop, n_samples=noise.shape[1], noise=noise[:stop]) for side in sides
        )
        judged = stop == min(PATH_UPDATES, len(noise))
        rows.append(path_row(model, family, rule, noise[:stop], here, there.params, there.n_updates, judged))
        if min(here.n_updates, there.n_updates) < stop:
            break
    return rows


def path_row(
    model: Model,
    family: Family,
    rule: Rule,
    noise: np.ndarray,
    here: Fit,
    there: np.ndarray,
    updates: int,
    judged: bool,
) -> Row:
    """Parameters of the numpy fit `here` along `noise` beside Julia's (p,), which made `updates` updates."""
    stop, n_samples = noise.shape[:2]
    words = [f"M = {n_samples}, {rule_words(rule)}"]
    found: Row = {}
    if (here.n_updates, updates) != (stop, stop):
        words.append(f"gradient not finite after {here.n_updates} (numpy) and {updates} (julia) updates")
        if here.n_updates == updates:
            words[1] += "; a smaller stepsize is needed for a verdict"
        else:
            found = {"agrees": False}
    else:
        found = _farthest(here.params[None], there[None])
        if judged and here.spec.dtype == "float64":
            found |= {"tolerance": PATH_TOLERANCE, "agrees": found["difference"] <= PATH_TOLERANCE}
        elif judged:
            words.append(_SINGLE)
    found |= {"quantity": "parameters", "unit": "relative to the largest", "note": "; ".join(words)}
    return row("path", model, family, rule.name, iteration=stop, **found)


# ---- (3) own noise ------------------------------------------------------------------------------------------
Elbo = tuple[float, float]  # with its Monte Carlo error


def final_elbo(found: Fit) -> Elbo:
    """The last ELBO of a fit and its Monte Carlo error; NaN where it diverged."""
    last = found.elbo.iloc[-1]
    return (math.nan, math.nan) if found.status == "diverged" else (float(last["elbo"]), float(last["std_error"]))


def elbo_row(
    model: Model, family: Family, rule: Rule, quantity: str, iteration: int, runs: dict[str, list[Elbo]], note: str
) -> Row:
    """Mean final ELBO of each engine's runs, and their difference in standard errors (Welch).

    `runs` has the runs of one engine or of both. The error of a mean is the spread of the runs, but never less than
    the Monte Carlo errors, of which it consists in part: few runs may lie close together by chance.
    """
    found: Row = {"iteration": iteration, "quantity": quantity, "unit": "standard errors", "note": note}
    lost = {engine: sum(not math.isfinite(value) for value, _ in side) for engine, side in runs.items()}
    if any(lost.values()):
        words = " and ".join(f"{n} of {len(runs[engine])} {engine}" for engine, n in lost.items())
        found["note"] += f"; {words} runs diverged: no verdict, choose a smaller stepsize"
        return row("elbo", model, family, rule.name, **found)
    for engine, side in runs.items():
        values, carlo = np.array(side).T
        n = len(values)
        spread = values.std(ddof=1) / math.sqrt(n) if n > 1 else 0.0
        found[engine], found[f"{engine}_error"] = float(values.mean()), max(spread, math.hypot(*carlo) / n)
    if len(runs) == 2:
        apart = abs(found["numpy"] - found["julia"])
        error = math.hypot(found["numpy_error"], found["julia_error"])
        difference = apart / error if error > 0 else (0.0 if apart == 0 else math.inf)
        found |= {"difference": difference, "tolerance": ELBO_TOLERANCE, "agrees": difference <= ELBO_TOLERANCE}
    return row("elbo", model, family, rule.name, **found)


# ---- (4) time -----------------------------------------------------------------------------------------------
def time_row(sides: Iterable[Side], model: Model, family: Family, rule: Rule, n_samples: int, seconds: float) -> Row:
    """Milliseconds an update: the fastest tenth of a second of a running fit.

    The engines take turns, so that a busy machine slows both; what other processes used is in the note.
    """
    sides, others = list(sides), busy_others()
    times: dict[str, list[float]] = {side.engine: [] for side in sides}
    for _ in range(3):
        for side in sides:
            times[side.engine] += update_times(partial(side.fit, model, family, rule, n_samples=n_samples), seconds)
    threads = f"{sides[0].n_threads} thread(s) of numpy" + (", one of Julia" if len(sides) > 1 else "")
    words = [f"M = {n_samples}, {threads}, {sides[0].dtype}, fastest tenth of a second"]
    if len(sides) == 1:
        words.append("Julia: not available")
    if (used := others()) > 0.1:
        words.append(f"other processes used {used:.1f} cores meanwhile: no measure of the engines")
    found: Row = {engine: min(each) for engine, each in times.items() if each}
    if len(found) == 2:
        found["difference"] = found["numpy"] / found["julia"]
    found |= {"quantity": "milliseconds an update", "unit": "numpy / julia", "note": "; ".join(words)}
    return row("time", model, family, rule.name, **found)
