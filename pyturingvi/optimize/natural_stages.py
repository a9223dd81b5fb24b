"""What a fit by natural gradients goes through, and how many draws its updates take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyturingvi.families import Family
from pyturingvi.families.base_distributions import Gaussian
from pyturingvi.layout import Layout
from pyturingvi.support.registry import defines

_FIRST_RATE = 0.5
_DRAWS_PER_DIMENSION = 4
_FEWEST_ROWS = 23  # of mirrored draws: a single one far out in a tail must not lead an update
_FEW_ROWS, _FEW_NUMBERS = 31, 100_000  # more of them, whose rows are strata too, while they cost little
_FEWEST_DRAWS, _MOST_DRAWS = 16, 2048


@dataclass(frozen=True)
class Draws:
    """How an update draws: `n_samples` draws in antithetic pairs, as frames or independent, and the rate they bear."""

    n_samples: int
    frames: bool
    rate: float


def choose_draws(family: Family, layout: Layout, n_samples: int | None, rate: float | None) -> Draws:
    """Draws and rate of an update, from the effective dimension; what is given stays.

    The noise of a row of the scale grows with the number of its entries, so that the stable rate is proportional to M
    over the effective dimension. Frames take that noise away, but for what is not Gaussian in the posterior. Mirrored
    draws come in fours, of which two pairs share the globals; they take away what is odd in a local too.
    """
    mirrored = family.mirrors_locals(layout)
    copies = 2 if mirrored else 1
    dimension = family.effective_dimension(layout)
    size = copies * dimension
    gaussian = type(family.base_distribution) is Gaussian
    per_dimension = _DRAWS_PER_DIMENSION * (1 if gaussian else 12)  # the noise does not vanish at the optimum
    few = min(256, max(_FEWEST_DRAWS, 20_000 // layout.dim))  # as many as cost no more than the overhead
    rows = _next_prime(max(dimension, _FEWEST_ROWS, min(_FEW_ROWS, _FEW_NUMBERS // layout.dim)))  # for strata
    many = 2 * copies * rows if mirrored and gaussian else per_dimension * dimension
    m = n_samples or 2 * copies * (min(_MOST_DRAWS, max(few, many)) // (2 * copies))
    # rows of the frames' own, and half as many for the locals to be orthogonal to them where signs do not see to it
    frames = gaussian and not family.independent and m >= (2 if mirrored else 3) * size
    if size == 1:
        bears = 0.6
    else:
        bears = _FIRST_RATE if frames else min(0.3, (0.05 if gaussian else 0.01) * m / size)
    return Draws(m, frames, bears if rate is None else rate)


def _next_prime(n: int) -> int:
    while any(n % k == 0 for k in range(2, math.isqrt(n) + 1)):
        n += 1
    return n


def stages_of(family: Family, layout: Layout, warm: bool) -> list[Family]:
    """The families that a run goes through; from a start of the user's own, the last alone."""
    before = family.stages_before(layout) if warm and defines(family, "stages_before") else []
    return [*before, family]
