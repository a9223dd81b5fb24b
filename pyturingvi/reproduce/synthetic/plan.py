"""Which runs a preset is made of."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyturingvi.reproduce.figure import FAMILIES
from pyturingvi.reproduce.synthetic.problem import (
    CURVE_SIZES,
    MAX_UPDATES,
    PUBLISHED_SAMPLES,
    SCALING_SIZES,
    best_t,
    curve_ends,
    published_t,
    stepsizes,
)
from pyturingvi.support.archive import digest

STATED_SAMPLES = 8
REPEATS, STATED_REPEATS = 3, 2
QUICK_T = 6_000  # quick has the points whose published T is no larger
# where the best of the 50 stepsizes lies: its number at n = 100, and the power of 1/n with which it falls
_BEST = {"mean-field": (44.0, 1.0), "structured": (38.0, 1.0), "full-rank": (25.6, 2.0)}


@dataclass(frozen=True)
class Run:
    """One run of proximal SGD."""

    family: str
    n: int
    step: int  # number of the stepsize among the 50
    n_samples: int
    repeat: int  # which of the runs that are averaged
    max_updates: int = MAX_UPDATES  # or fewer where a run that is not there by then cannot matter

    @property
    def key(self) -> Key:
        """What names the run."""
        return self.family, self.n, self.step, self.n_samples, self.repeat

    @property
    def stepsize(self) -> float:
        """The stepsize."""
        return float(stepsizes()[self.step])

    @property
    def seed(self) -> int:
        """A seed of the run's own."""
        return int(digest(*self.key)[:8], 16)


Key = tuple[str, int, int, int, int]
Found = Mapping[Key, float]  # T of the runs already made, NaN where a capped run did not get there


# ---- the best stepsize --------------------------------------------------------------------------------------
@functools.cache
def best_step(family: str, n: int) -> int:
    """Number of the stepsize that is best in figure 1, or of the one expected to be nearly best elsewhere."""
    if n in CURVE_SIZES:
        return min(range(50), key=lambda step: published_t(family, n, step))
    at_100, power = _BEST[family]
    return math.floor(at_100 - power * math.log10(n / 100) * 49 / 5)


def contenders(family: str, n: int) -> tuple[int, ...]:
    """Numbers of the stepsizes that must be run before one of them can be called the best."""
    centre = best_step(family, n)
    return (centre,) if n in CURVE_SIZES else (centre - 1, centre, centre + 1)


# ---- presets ------------------------------------------------------------------------------------------------
def _repeat(repeats: int, family: str, n: int, step: int, n_samples: int, cap: int) -> list[Run]:
    return [Run(family, n, step, n_samples, repeat, cap) for repeat in range(repeats)]


def _scaling_runs(family: str, n: int, found: Found, repeats: int = REPEATS) -> list[Run]:
    """The stepsizes around the best one, for an n that figure 1 does not have.

    A run that takes 1.3 times as long as the published T cannot be the best. Full-rank runs being long, one each tells
    which stepsize is the best (neighbors differ by a quarter, runs by less than 1 %), and the others are made there.
    """
    cap, steps = min(MAX_UPDATES, round(1.3 * best_t(family, n)) + 50), contenders(family, n)
    first = repeats if family != "full-rank" else 1
    runs = [run for step in steps for run in _repeat(first, family, n, step, PUBLISHED_SAMPLES, cap)]
    known = {step: found[key] for step in steps if (key := (family, n, step, PUBLISHED_SAMPLES, 0)) in found}
    if first < repeats and len(known) == len(steps) and not all(map(math.isnan, known.values())):
        best = min(steps, key=lambda step: math.inf if math.isnan(known[step]) else known[step])
        runs += _repeat(repeats, family, n, best, PUBLISHED_SAMPLES, cap)[1:]
    return runs


def _paper(found: Found) -> list[Run]:
    runs = []
    for family in FAMILIES:
        for n in CURVE_SIZES:
            low, high = curve_ends(family, n)
            long = family == "full-rank" and n >= 200  # a run that never arrives takes a minute or more
            for step in range(low, high + 1):
                runs += _repeat(REPEATS, family, n, step, PUBLISHED_SAMPLES, MAX_UPDATES)
                if n <= 200:
                    repeats = 1 if long else STATED_REPEATS
                    runs += _repeat(repeats, family, n, step, STATED_SAMPLES, MAX_UPDATES)
            for step in (low - 1, high + 1):
                runs += _repeat(1 if long else REPEATS, family, n, step, PUBLISHED_SAMPLES, MAX_UPDATES)
        for n in SCALING_SIZES:
            if n not in CURVE_SIZES:
                runs += _scaling_runs(family, n, found)
    return runs


def _quick(found: Found) -> list[Run]:
    runs = []
    for family in FAMILIES:
        for n in CURVE_SIZES[:1] if family == "full-rank" else CURVE_SIZES:
            low, high = curve_ends(family, n)
            every = 2 if family == "full-rank" else 3
            for step in sorted({best_step(family, n), *range(high, low - 1, -every)}):
                if published_t(family, n, step) <= QUICK_T:
                    runs += _repeat(REPEATS, family, n, step, PUBLISHED_SAMPLES, MAX_UPDATES)
        low, high = curve_ends(family, 100)
        cap = round(3 * published_t(family, 100, high))
        runs += _repeat(STATED_REPEATS, family, 100, high, STATED_SAMPLES, cap)
        if family == "full-rank":
            runs += _scaling_runs(family, 150, found)
            runs += _repeat(REPEATS, family, 200, best_step(family, 200), PUBLISHED_SAMPLES, MAX_UPDATES)
            runs += _scaling_runs(family, 250, found, repeats=1)
        else:
            runs += [run for n in SCALING_SIZES if n not in CURVE_SIZES for run in _scaling_runs(family, n, found)]
    return runs


def _full(found: Found) -> list[Run]:
    runs = _paper(found)
    for family, n, step in itertools.product(FAMILIES, CURVE_SIZES, range(50)):
        runs += _repeat(REPEATS, family, n, step, PUBLISHED_SAMPLES, MAX_UPDATES)
    return runs


PLANS: Mapping[str, Callable[[Found], list[Run]]] = {"quick": _quick, "paper": _paper, "full": _full}


def plan(preset: str, found: Found) -> list[Run]:
    """All runs of a preset; some depend on what is `found` already."""
    return list({run.key: run for run in PLANS[preset](found)}.values())
