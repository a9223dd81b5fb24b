"""When a fit by natural gradients changes its rate, goes back, and ends: decided alike for both engines.

A run goes through *stages*, each with a larger family that starts where the former one ended, and a stage through
*legs* of a few updates at equal settings, between which all decisions fall. The last stage first climbs, until the ELBO
no longer rises beyond its noise, and then lets the rate fall like 1/k, which averages the noise of k updates out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

import numpy as np

from pyturingvi.families import Family, FullRank, Markov, MeanField, Structured
from pyturingvi.families.base_distributions import Gaussian
from pyturingvi.layout import Layout

CLIMB, ANNEAL = 0, 1
HISTORY_COLUMNS = 6
CAP = 20_000  # updates after which a run ends in any case
_LEG = 5
_MOST_SETBACKS = 20
_FIRST_RATE = 0.5
_NOISE_LEFT = 0.1  # nats that the noise of the steps may cost in the end
_WORTH = 0.8  # nats to be had yet that are worth going on for
_HUGE = 1e100  # an ELBO beyond is that of parameters on their way to infinity
_RECOVERY = 6  # legs without a setback after which the rate rises again
_LONGEST_ANNEAL = 400
_DRAWS_PER_DIMENSION = 4
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
    over the effective dimension. Frames take that noise away, but for what is not Gaussian in the posterior.
    """
    size = family.effective_dimension(layout)
    gaussian = type(family.base_distribution) is Gaussian
    per_dimension = _DRAWS_PER_DIMENSION * (1 if gaussian else 12)  # the noise does not vanish at the optimum
    few = min(256, max(_FEWEST_DRAWS, 20_000 // layout.dim))  # as many as cost no more than the overhead
    m = n_samples or 2 * (min(_MOST_DRAWS, max(few, per_dimension * size)) // 2)
    frames = gaussian and type(family) is not MeanField and m >= 3 * size
    if size == 1:
        bears = 0.6
    else:
        bears = _FIRST_RATE if frames else min(0.3, (0.05 if gaussian else 0.01) * m / size)
    return Draws(m, frames, bears if rate is None else rate)


def stages_of(family: Family, layout: Layout, warm: bool) -> list[Family]:
    """The families that a run goes through; from a start of the user's own, the last alone."""
    if not warm:
        return [family]
    kind = type(family)
    if kind not in (MeanField, Structured, Markov, FullRank):
        return [family]
    smaller: list[Family] = [] if kind is MeanField else [MeanField()]
    if kind in (Markov, FullRank) and layout.n_local:
        smaller.append(Structured())
    if type(family.base_distribution) is not Gaussian:
        smaller.append(kind())  # the best fit to a Gaussian posterior is the same for every base
    return [*smaller, family]


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

    def rate_at(self, done: int) -> float:
        """The rate of the update after `done` updates."""
        return self.rate if self.anneal_from < 0 else self.rate / (1 + self.rate * (done - self.anneal_from))


@dataclass
class PlanState:
    """What a plan remembers, in numbers, so that a checkpoint can hold it."""

    stage: float = 0
    phase: float = CLIMB
    rate: float = 0.0
    trust: float = 0.0
    since: float = 0  # update from which the history counts
    leg_from: float = 0
    anneal_from: float = -1
    anneal_length: float = 0
    setbacks: float = 0
    best: float = -math.inf
    best_error: float = 0.0
    rise: float = math.nan  # of the ELBO over the last window, with its error
    rise_error: float = math.nan
    flat: float = 0  # legs in a row without a rise that is worth more
    converged: float = 0


class NaturalPlan:
    """Decides, leg by leg.

    Attributes
    ----------
    state : PlanState
    history : list of rows
        One a leg: last update, mean and squared standard error of the ELBO, inner, square, shortened.
    """

    def __init__(
        self,
        family: Family,
        layout: Layout,
        *,
        warm: bool,
        rate: float | None,
        momentum: float,
        n_samples: int | None,
        fixed: bool = False,
    ) -> None:
        self.dim = layout.dim
        self.stages = stages_of(family, layout, warm)
        self.draws = [choose_draws(one, layout, n_samples, rate) for one in self.stages]
        self.momentum, self.fixed = momentum, fixed
        self.state = PlanState()
        self.history: list[tuple[float, ...]] = []
        self._begin_stage(0, 0)

    @property
    def family(self) -> Family:
        """The family of the present stage."""
        return self.stages[int(self.state.stage)]

    @property
    def present(self) -> Draws:
        """How the present stage draws."""
        return self.draws[int(self.state.stage)]

    @property
    def is_last_stage(self) -> bool:
        return int(self.state.stage) == len(self.stages) - 1

    @property
    def words(self) -> str:
        """What the run is doing, for the progress bar."""
        if not self.is_last_stage:
            return f"{self.family.name} start"
        return "averaging" if self.state.phase == ANNEAL else "climbing"

    def next_leg(self) -> Leg:
        """Settings of the leg at hand."""
        s, draws = self.state, self.present
        length = _LEG if draws.n_samples >= 64 else 2 * _LEG
        last = int(s.leg_from) + length
        momentum = min(self.momentum, max(0.0, 1 - s.rate))
        anneal = int(s.anneal_from) if s.phase == ANNEAL else -1
        return Leg(last, s.rate, momentum, s.trust, draws.n_samples, draws.frames, anneal)

    # ---- decisions ----------------------------------------------------------------------------------------
    def finish_leg(self, done: int, rows: np.ndarray, broke: bool) -> str:
        """Decide after a leg of updates with the columns mean, variance, inner, square, shortened.

        Returns
        -------
        str
            "go on", "best" (the leg's start is the best so far: to be kept), "back" (to the best), "next stage",
            "next stage from best", "converged" or "diverged".
        """
        s = self.state
        s.leg_from = done
        if broke:
            return self._set_back(done)
        draws = self.present
        mean, squared_error = float(rows[:, 0].mean()), float(rows[:, 1].mean()) / (draws.n_samples * len(rows))
        if len(rows) > 1 and np.isfinite(rows[:, 0]).all():  # draws in pairs and frames are not independent
            squared_error = max(squared_error, float(rows[:, 0].var(ddof=1)) / len(rows))
        others = [float(np.nanmean(column)) if np.isfinite(column).any() else 0.0 for column in rows[:, 2:].T]
        self.history.append((done, mean, squared_error, *others))
        if self.fixed:
            return "go on"
        error = math.sqrt(squared_error)
        if not math.isfinite(mean + error) or abs(mean) > _HUGE:
            return self._set_back(done)
        if s.phase == CLIMB and mean < s.best - 1 - 5 * math.hypot(error, s.best_error):
            return self._set_back(done)
        verdict = "go on"
        if mean > s.best:
            s.best, s.best_error, verdict = mean, error, "best"
        if s.phase == ANNEAL:
            if done >= s.anneal_from + s.anneal_length and self._still_pays():
                s.anneal_length = min(1.5 * s.anneal_length, _LONGEST_ANNEAL * 5)
            s.converged = float(done >= s.anneal_from + s.anneal_length)
            return "converged" if s.converged else verdict
        if s.rate < draws.rate and len([row for row in self.history[-_RECOVERY:] if row[0] > s.since]) == _RECOVERY:
            s.rate = min(draws.rate, 1.1 * s.rate)
        if others[2] > 0.05 and verdict == "best":
            s.trust = min(2 * s.trust, 16 * self._first_trust)
        if not self._still_rises():
            if not self.is_last_stage:
                return "next stage"
            self._begin_anneal(done)
        return verdict

    def begin_next_stage(self, done: int) -> None:
        """Go to the next family, after `done` updates."""
        self._begin_stage(int(self.state.stage) + 1, done)

    def _begin_stage(self, stage: int, done: int) -> None:
        self.state = PlanState(stage=stage, since=done, leg_from=done, rate=self.draws[stage].rate)
        self.state.trust = self._first_trust

    @property
    def _first_trust(self) -> float:
        # mean-field's blocks are single coordinates
        return 0.5 if type(self.family) is MeanField else 2.0

    def _set_back(self, done: int) -> str:
        s = self.state
        s.setbacks += 1
        if s.setbacks > _MOST_SETBACKS:
            return "next stage from best" if not self.is_last_stage else "diverged"
        s.best = -math.inf  # that was the mean of a whole leg, and its start is lower
        s.rate, s.trust, s.since, s.phase, s.anneal_from = s.rate / 2, self._first_trust, done, CLIMB, -1
        return "back"

    def _still_rises(self) -> bool:
        """Whether the ELBO still rises by more than its noise and more than is worth it.

        It is asked over the last third of the legs; or over the last fourth, once directions turn back on each other,
        which says that the steps circle at their noise.
        """
        s = self.state
        rows = np.array([row[:4] for row in self.history if row[0] > s.since]).reshape(-1, 4)
        if len(rows) < 3:
            return True
        circles = self.is_last_stage and rows[-2:, 3].mean() < 0
        window = max(2, len(rows) // 4) if circles else len(rows) // 3
        if self.is_last_stage and (3 * window > len(rows) or window < (2 if circles else 3)):
            return True
        if not self.is_last_stage:
            window = 1
        s.rise, s.rise_error = _rise(rows, window)
        if s.rise_error > 1 + math.sqrt(self.dim) / 4:  # far from anything that noise of this size could hide
            return True
        ended = s.rise < 2 * s.rise_error
        if not self.is_last_stage:
            return not ended and s.rise > 4 * _WORTH
        s.flat = s.flat + 1 if ended or self._little_is_left(rows, window) else 0
        return s.flat < (2 if ended else 4)  # once may be chance

    def _little_is_left(self, rows: np.ndarray, window: int) -> bool:
        """Whether the rise shrinks geometrically from window to window, to a sum that is not worth going on for."""
        s = self.state
        early = rows[-2 * window : -window, 1].mean()
        before = float(early - rows[-3 * window : -2 * window, 1].mean())
        shrinks = before - s.rise - 2 * s.rise_error
        return bool(window >= 3 and shrinks > 0 and s.rise >= 0.3 * before and s.rise**2 / shrinks < _WORTH)

    def _still_pays(self) -> bool:
        """Whether the ELBO rose over the last third of the averaging: noise had hidden what was left of the climb."""
        rows = np.array([row[:3] for row in self.history if row[0] > self.state.anneal_from])
        if len(rows) < 3:
            return False
        rise, error = _rise(rows, len(rows) // 3)
        return rise > max(_WORTH, 2 * error)

    def _begin_anneal(self, done: int) -> None:
        """Let the rate fall until the steps' noise costs little: at rate 1/k it costs `tr S / (4 k)` nats."""
        s = self.state
        recent = np.array(self.history[-3:])
        noise = max(0.0, float((recent[:, 4] - np.maximum(recent[:, 3], 0)).mean()))
        s.phase, s.anneal_from = ANNEAL, done
        spread = math.sqrt(self.present.n_samples * _LEG * float(recent[:, 2].mean()))
        costs = max(_NOISE_LEFT, 0.005 * spread)
        s.anneal_length = math.ceil(min(_LONGEST_ANNEAL, max(4 * _LEG, noise / (4 * costs))))

    # ---- checkpoints --------------------------------------------------------------------------------------
    def scalars(self) -> dict[str, float]:
        """The state as numbers."""
        return {f"plan_{name}": float(value) for name, value in asdict(self.state).items()}

    def restore(self, scalars: dict[str, float], history: np.ndarray) -> None:
        """Go on from what `scalars` gave."""
        self.state = PlanState(**{one.name: scalars[f"plan_{one.name}"] for one in fields(PlanState)})
        self.history = [tuple(row) for row in history]


def _rise(rows: np.ndarray, window: int) -> tuple[float, float]:
    """Rise of the ELBO from the last window of legs but one to the last, and its standard error."""
    late, early = rows[-window:], rows[-2 * window : -window]
    error = math.sqrt(late[:, 2].sum() + early[:, 2].sum()) / window
    return float(late[:, 1].mean() - early[:, 1].mean()), error
