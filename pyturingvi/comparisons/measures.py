"""What is measured of two engines: log densities, parameter paths, ELBO and time, as rows of one table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from pyturingvi.comparisons.timing import busy_others, update_times
from pyturingvi.families import Family
from pyturingvi.fitting import fit
from pyturingvi.models.base import Model
from pyturingvi.optimize.noise import generator
from pyturingvi.optimize.rules import Rule
from pyturingvi.result import Fit
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
        with interrupts_raised():
            return fit(model, family, rule, n_iterations, **options)


def family_words(family: Family) -> str:
    """A family's name, with what is unusual about it."""
    usual = type(family)().config()
    unusual = [f"{key}={value}" for key, value in family.config().items() if value != usual[key]]
    return family.name + (f"({', '.join(unusual)})" if unusual else "")


def row(part: str, model: Model, quantity: str, **entries: Any) -> Row:
    """A row of the table; what is not given is missing, not zero."""
    return {**dict.fromkeys(COLUMNS), "part": part, "model": model.label, "quantity": quantity, "note": "", **entries}


# ---- (1) the same points ------------------------------------------------------------------------------------
def draw_points(model: Model, n_points: int, seed: int) -> np.ndarray:
    """Unconstrained points (n_points, d) from N(0, 0.5^2 I)."""
    return 0.5 * np.asarray(generator(np, seed, _POINT_STREAM).standard_normal((n_points, model.dim)))


def point_rows(
    model: Model, numpy_found: tuple[np.ndarray, np.ndarray], julia_found: tuple[np.ndarray, np.ndarray]
) -> list[Row]:
    """Log densities (M,) and gradients (M, d) of both engines at the same points."""
    (value, slope), (other, other_slope) = numpy_found, julia_found
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(value - other) / np.abs(other)
        largest = np.abs(other_slope).max(axis=1)
        slope_apart = np.abs(slope - other_slope).max(axis=1) / largest
    worst, slope_worst = (int(np.argmax(np.nan_to_num(a, nan=np.inf))) for a in (apart, slope_apart))
    place = int(np.argmax(np.nan_to_num(np.abs(slope - other_slope)[slope_worst], nan=np.inf)))
    note = f"{len(value)} points; figures of the worst"
    shared: Row = {"tolerance": POINT_TOLERANCE, "note": note}
    found = [
        ("log density", value[worst], other[worst], apart[worst], "relative"),
        (
            "gradient",
            slope[slope_worst, place],
            other_slope[slope_worst, place],
            slope_apart[slope_worst],
            "relative to the largest component",
        ),
    ]
    return [
        row(
            "points",
            model,
            quantity,
            numpy=float(a),
            julia=float(b),
            difference=float(difference),
            unit=unit,
            agrees=bool(difference <= POINT_TOLERANCE),
            **shared,
        )
        for quantity, a, b, difference, unit in found
    ]


# ---- (2) the same noise -------------------------------------------------------------------------------------
def path_stops(n_iterations: int) -> list[int]:
    """Numbers of updates at which parameters are compared; 200 among them where there are as many."""
    stops = {1, n_iterations // 20, n_iterations // 4, min(PATH_UPDATES, n_iterations), n_iterations}
    return sorted(stop for stop in stops if stop >= 1)


def path_noise(model: Model, family: Family, n_iterations: int, n_samples: int, seed: int) -> np.ndarray:
    """Base draws (n_iterations, n_samples, d) that both engines are given."""
    noise = np.empty((n_iterations, n_samples, model.dim))
    family.base_distribution.fill(generator(np, seed, _PATH_STREAM), noise)
    return noise


def path_rows(
    sides: tuple[Side, Side], model: Model, family: Family, rule: Rule, noise: np.ndarray, stops: Iterable[int]
) -> list[Row]:
    """How far apart the parameters are after so many updates along the same noise, each time from the start.

    The verdict is on 200 updates, or on all where there are fewer.
    """
    rows: list[Row] = []
    n_samples = noise.shape[1]
    judged = min(PATH_UPDATES, noise.shape[0])
    for stop in stops:
        fits = [side.fit(model, family, rule, stop, n_samples=n_samples, noise=noise[:stop]) for side in sides]
        one = path_row(model, family, rule, stop, fits[0], fits[1].params, fits[1].n_updates, stop == judged)
        one["note"] = "; ".join(filter(None, [f"M = {n_samples}, {rule_words(rule)}", one["note"]]))
        rows.append(one)
        if any(found.n_updates < stop for found in fits):
            break
    return rows


def path_row(
    model: Model, family: Family, rule: Rule, stop: int, here: Fit, there: np.ndarray, updates: int, judged: bool
) -> Row:
    """Parameters of the numpy fit `here` beside Julia's (p,) after `updates` of `stop` updates."""
    entries: Row = {
        "family": family_words(family),
        "optimizer": rule.name,
        "iteration": stop,
        "unit": "relative to the largest",
    }
    if (here.n_updates, updates) != (stop, stop):
        words = f"gradient not finite after {here.n_updates} (numpy) and {updates} (julia) updates"
        agrees = None if here.n_updates == updates else False
        advice = "; a smaller stepsize is needed for a verdict" if agrees is None else ""
        return row("path", model, "parameters", agrees=agrees, note=words + advice, **entries)
    apart = np.abs(here.params - there)
    place, largest = int(np.argmax(np.nan_to_num(apart, nan=np.inf))), np.abs(there).max()
    difference = float(apart[place] / largest)
    judged_here = judged and here.spec.dtype == "float64"
    return row(
        "path",
        model,
        "parameters",
        numpy=float(here.params[place]),
        julia=float(there[place]),
        difference=difference,
        tolerance=PATH_TOLERANCE if judged_here else None,
        agrees=difference <= PATH_TOLERANCE if judged_here else None,
        note=_SINGLE if judged and not judged_here else "",
        **entries,
    )


def rule_words(rule: Rule) -> str:
    """A rule's stepsize."""
    stepsize = rule.schedule.config()
    return f"stepsize {stepsize:g}" if not isinstance(stepsize, dict) else "stepsize by a schedule"


# ---- (3) own noise ------------------------------------------------------------------------------------------
def elbo_row(
    model: Model,
    family: Family,
    rule: Rule,
    quantity: str,
    iteration: int,
    runs: tuple[list[tuple[float, float]], list[tuple[float, float]]],
    note: str,
) -> Row:
    """Mean final ELBO of each engine's runs, and their difference in standard errors (Welch).

    `runs` holds the ELBO and its Monte Carlo error of every run; a side without runs has no figures. The error of a
    mean is the spread of the runs, but never less than the Monte Carlo errors, of which it consists in part: few runs
    may lie close together by chance.
    """
    entries: Row = {"family": family_words(family), "optimizer": rule.name, "iteration": iteration}
    entries |= {"unit": "standard errors", "note": note}
    lost = [sum(not math.isfinite(value) for value, _ in side) for side in runs]
    if any(lost):
        words = f"{lost[0]} of {len(runs[0])} numpy and {lost[1]} of {len(runs[1])} julia runs diverged"
        entries["note"] += f"; {words}: no verdict, choose a smaller stepsize"
        return row("elbo", model, quantity, **entries)
    means, errors = [], []
    for side in runs:
        values, carlo = np.array(side).reshape(-1, 2).T
        n = len(values)
        spread = values.std(ddof=1) / math.sqrt(n) if n > 1 else 0.0
        means.append(float(values.mean()) if n else None)
        errors.append(float(max(spread, math.sqrt((carlo**2).sum()) / n)) if n else None)
    entries |= dict(zip(("numpy", "julia", "numpy_error", "julia_error"), (*means, *errors), strict=True))
    if means[0] is None or means[1] is None:
        return row("elbo", model, quantity, **entries)
    apart, error = abs(means[0] - means[1]), math.hypot(errors[0] or 0.0, errors[1] or 0.0)
    difference = apart / error if error > 0 else (0.0 if apart == 0 else math.inf)
    entries |= {"difference": difference, "tolerance": ELBO_TOLERANCE, "agrees": difference <= ELBO_TOLERANCE}
    return row("elbo", model, quantity, **entries)


def final_elbo(found: Fit) -> tuple[float, float]:
    """The last ELBO of a fit and its Monte Carlo error; NaN where it diverged."""
    last = found.elbo.iloc[-1]
    return (float(last["elbo"]), float(last["std_error"])) if found.status == "completed" else (math.nan, math.nan)


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
    here, there = (min(times.get(engine, ()), default=None) for engine in ("numpy", "julia"))
    entries: Row = {"numpy": here, "julia": there, "unit": "numpy / julia", "note": "; ".join(words)}
    if here is not None and there is not None:
        entries["difference"] = here / there
    entries |= {"family": family_words(family), "optimizer": rule.name}
    return row("time", model, "milliseconds an update", **entries)
