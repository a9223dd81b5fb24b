"""A leg of a fit by natural gradients, the verdict on it, and what its plan remembers from one leg to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

CLIMB, ANNEAL = 0, 1


@dataclass
class Leg:
    """Settings of the updates up to number `last`; `anneal_from` is -1 while the rate is constant."""

    last: int
    rate: float
    momentum: float
    trust: float
    n_samples: int
    frames: bool
    anneal_from: int
    global_rate: float  # of the globals' own block, if above `rate`: few parameters, little noise

    def rate_at(self, done: int) -> float:
        """The rate of the update after `done` updates."""
        return self.rate if self.anneal_from < 0 else self.rate / (1 + self.rate * (done - self.anneal_from))


class Verdict(StrEnum):
    """What comes after a leg."""

    GO_ON = "go on"
    BEST = "best"  # the leg's start is the best so far: to be kept
    BACK = "back"  # to the best
    NEXT_STAGE = "next stage"
    NEXT_FROM_BEST = "next stage from best"
    CONVERGED = "converged"
    DIVERGED = "diverged"

    @property
    def ends(self) -> bool:
        """Whether the run ends."""
        return self in (Verdict.CONVERGED, Verdict.DIVERGED)

    @property
    def recalls(self) -> bool:
        """Whether the leg is given up for the best before it."""
        return self in (Verdict.BACK, Verdict.NEXT_FROM_BEST, Verdict.DIVERGED)

    @property
    def enters_next_stage(self) -> bool:
        return self in (Verdict.NEXT_STAGE, Verdict.NEXT_FROM_BEST)


@dataclass
class PlanState:
    """What a plan remembers, in numbers, so that a checkpoint can hold it."""

    stage: float = 0
    phase: float = CLIMB
    rate: float = 0.0
    trust: float = 0.0
    since: float = 0  # update from which the history counts
    leg_from: float = 0
    anneal_from: float = -1  # update at which the averaging began
    steady: float = 0  # update since which the rate is what it is
    quickened: float = 0  # update at which the rate was last raised beyond the first
    falls: float = 0  # whether the rate falls in the leg at hand
    global_rate: float = 0.0
    setbacks: float = 0
    best: float = -math.inf
    best_error: float = 0.0
    rise: float = math.nan  # of the ELBO over the last window, with its error
    rise_error: float = math.nan
    converged: float = 0
