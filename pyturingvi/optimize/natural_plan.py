"""When a fit by natural gradients changes its rate, goes back, and ends: decided alike for both engines.

A run goes through *stages*, each with a larger family that starts where the former one ended, and a stage through
*legs* of a few updates at equal settings, between which all decisions fall. In the last stage the rate stays while the
ELBO rises or directions agree, and falls while they turn back on each other: then noise, not distance, is what is left.
The noise of a step costs `rate tr S / 4` nats, with S the covariance of the direction from M draws, so that a lower
rate is worth as many more draws at no more cost a unit of progress.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields

import numpy as np

from pyturingvi.families import Family
from pyturingvi.layout import Layout
from pyturingvi.optimize.natural_leg import ANNEAL, CLIMB, Leg, PlanState, Verdict
from pyturingvi.optimize.natural_rise import has_risen, rise_of
from pyturingvi.optimize.natural_stages import Draws, choose_draws, stages_of

HISTORY_COLUMNS = 7
CAP = 20_000  # updates after which a run ends in any case
_LEG = 5
_MOST_SETBACKS = 20
_LOST = 40.0  # standard errors, of the best and of what is usual far from the optimum, that nothing falls by chance
_RECOVERY = 6  # legs without a setback after which the rate rises again
_HUGE = 1e100  # an ELBO beyond is that of parameters on their way to infinity
_WORTH = 3.2  # nats a leg that are worth staying in a smaller family for
_NOISE_LEFT = 0.1  # nats that the noise of the steps may cost in the end,
_SHARE_LEFT = 0.003  # or this share of what the family itself loses, about half the variance of `log p - log q`
_AGREE = 0.25  # inner products above this share of what noise brings say that directions agree
_TURN, _TURNS_BACK = 3, 0.25  # legs that an average takes to turn; inner product that says so, as a share of the square
_PATIENCE = 4  # legs that a climb is watched before anything is said of it
_QUICKER = 1.5
_STILL_PAYS = 0.25  # rise in so long a time, as a share of what the noise of the rate costs, that momentum is kept for
_LONGEST_STEP = 0.25  # share of a full step that a direction makes at once where momentum makes the rate
_AVERAGING_RATE = 0.1  # the rate is halved down to here, and falls like 1/k below
_GLOBAL_RATE = 0.3
_LEAST_FIRST_RATE = 0.02
_LONGEST_ANNEAL = 2000


class NaturalPlan:
    """Decides, leg by leg.

    Attributes
    ----------
    state : PlanState
    history : list of rows
        One a leg: last update, mean and squared standard error of the ELBO, inner, square, shortened,
            global_square.
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
        self.dim, self.n_global = layout.dim, layout.n_global
        self.stages = stages_of(family, layout, warm)
        self.draws = [choose_draws(one, layout, n_samples, rate) for one in self.stages]
        self.momentum, self.fixed, self.given_rate = momentum, fixed, rate is not None
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
        share = s.rate if s.rate <= draws.rate else _LONGEST_STEP / s.rate
        momentum = min(self.momentum, max(0.0, 1 - share))
        anneal = int(s.leg_from) if s.falls else -1
        return Leg(last, s.rate, momentum, s.trust, draws.n_samples, draws.frames, anneal, s.global_rate)

    @property
    def _fastest(self) -> float:
        """The largest rate: beyond what one direction bears, it is momentum's, and for the rates chosen here alone."""
        draws = self.present
        if self.given_rate or not draws.frames:
            return draws.rate
        return max(draws.rate, _LONGEST_STEP / (1 - self.momentum))

    # ---- decisions ----------------------------------------------------------------------------------------
    def finish_leg(self, done: int, rows: np.ndarray, broke: bool) -> Verdict:
        """Decide after a leg, whose updates are the rows (n, 6) that `NaturalStepper.advance` gives."""
        s = self.state
        rate = self.next_leg().rate_at(done)
        s.leg_from = done
        if broke:
            return self._set_back(done)
        draws = self.present
        mean, squared_error = float(rows[:, 0].mean()), float(rows[:, 1].mean()) / (draws.n_samples * len(rows))
        if len(rows) > 1 and np.isfinite(rows[:, 0]).all():  # draws in pairs and frames are not independent
            squared_error = max(squared_error, float(rows[:, 0].var(ddof=1)) / len(rows))
        inner, square, shortened, global_square = (rows[:, 2:].sum(axis=0) / len(rows)).tolist()
        if math.isnan(inner):  # a first update has nothing to compare with
            known = rows[~np.isnan(rows[:, 2]), 2]
            inner = float(known.mean()) if len(known) else 0.0
        others = (inner, square, shortened, global_square)
        self.history.append((done, mean, squared_error, *others))
        if self.fixed:
            return Verdict.GO_ON
        error = math.sqrt(squared_error)
        if not math.isfinite(mean + error) or abs(mean) > _HUGE or self.is_lost(mean, rows):
            return self._set_back(done)
        if s.phase == CLIMB and (self.is_below_best(mean, error) or self._swings(error)):
            return self._set_back(done)
        if self.is_last_stage and self._begins_too_fast(square - max(0.0, inner), global_square):
            return self._begin_again(done)
        verdict = Verdict.GO_ON
        if mean > s.best:
            s.best, s.best_error, verdict = mean, error, Verdict.BEST
        if shortened > 0.05 and verdict is Verdict.BEST:
            s.trust = min(2 * s.trust, self._largest_trust)
        if self.is_last_stage:
            self._steer(done, rate)
            return Verdict.CONVERGED if s.converged else verdict
        if s.rate < draws.rate and len([row for row in self.history[-_RECOVERY:] if row[0] > s.since]) == _RECOVERY:
            s.rate = min(draws.rate, 1.1 * s.rate)
        return verdict if self._still_rises() else Verdict.NEXT_STAGE

    def begin_next_stage(self, done: int) -> None:
        """Go to the next family, after `done` updates."""
        self._begin_stage(int(self.state.stage) + 1, done)

    def _begin_stage(self, stage: int, done: int) -> None:
        self.state = PlanState(stage=stage, since=done, leg_from=done, rate=self.draws[stage].rate)
        self.state.trust = self._first_trust

    @property
    def _first_trust(self) -> float:
        return 0.5 if self.family.independent else 2.0  # of a block, which is then a single coordinate

    @property
    def _largest_trust(self) -> float:
        # a posterior may lie as many of the start's standard deviations away as its units make it
        return self._first_trust * (2.0**20 if self.family.independent else 16)

    def _set_back(self, done: int) -> Verdict:
        s = self.state
        s.setbacks += 1
        if s.setbacks > _MOST_SETBACKS:
            return Verdict.NEXT_FROM_BEST if not self.is_last_stage else Verdict.DIVERGED
        s.best = -math.inf  # that was the mean of a whole leg, and its start is lower
        s.rate, s.trust, s.since, s.phase, s.anneal_from = s.rate / 2, self._first_trust, done, CLIMB, -1
        return Verdict.BACK

    def _begins_too_fast(self, noise: float, global_square: float) -> bool:
        """Whether the first steps bring more noise into the border than the globals bear; their rate then falls.

        A border that is wrong by e(n) standard deviations adds the sum of e(n)^2 to the curvature that the globals
        feel, where their own is 1 each: their scales would collapse, and grow back no faster than the noise fades.
        """
        s = self.state
        first = s.stage > 0 and self._legs_since(s.since) == 1
        if not (first and global_square and s.phase == CLIMB):
            return False
        bears = max(_LEAST_FIRST_RATE, 2 * self.n_global / max(noise, 1e-300))  # steady steps leave rate/2 of it
        if s.rate <= 1.5 * bears:
            return False
        s.rate = bears
        return True

    def _begin_again(self, done: int) -> Verdict:
        s = self.state
        s.best, s.since = -math.inf, done
        s.global_rate = min(_GLOBAL_RATE, self.present.rate) if self.present.frames else 0.0
        return Verdict.BACK

    def _swings(self, error: float) -> bool:
        """Whether steps too long for the rate lead back and forth, far from the optimum, and never beyond the best."""
        rows = [row for row in self.history[-_RECOVERY:] if row[0] > self.state.since]
        turns_back = sum(row[3] for row in rows) < 0  # the directions' inner products
        stuck = len(rows) == _RECOVERY and all(row[1] < self.state.best for row in rows)
        return stuck and turns_back and error > self._far

    def _still_rises(self) -> bool:
        """Whether the ELBO of a stage but the last still rises by more than its noise and more than is worth it."""
        s = self.state
        rows = np.array([row[:3] for row in self.history if row[0] > s.since]).reshape(-1, 3)
        if len(rows) < 3:
            return True
        s.rise, s.rise_error = rise_of(rows, 1)
        return s.rise_error > self._far or s.rise > max(2 * s.rise_error, _WORTH)

    def _steer(self, done: int, rate: float) -> None:
        """Choose the rate of the next leg, and say whether the run has converged."""
        s, draws = self.state, self.present
        if rate != s.rate:
            s.rate, s.steady = rate, done
        rows = np.array(self.history[-2:] if done - s.steady >= 2 * _LEG else self.history[-1:])
        squared_error, inner, square, global_square = rows[:, [2, 3, 4, 6]].mean(axis=0)
        noise = max(0.0, square - max(0.0, inner))
        variance = draws.n_samples * _LEG * squared_error
        costs = max(_NOISE_LEFT, _SHARE_LEFT / 2 * variance)
        agree = max(_AGREE * s.rate * noise, 0.2 * costs)
        waits = s.phase == CLIMB and self._legs_since(max(s.since, s.quickened)) < _PATIENCE
        climbs = inner > agree or self._climbs() or waits
        if s.rate > draws.rate and self._legs_since(s.quickened) >= 2 * _PATIENCE:
            climbs = climbs and self._rise_of(_PATIENCE)[0] > _STILL_PAYS * s.rate * noise / 4
        s.falls = 0.0
        if climbs:
            settled = not s.setbacks or self._legs_since(s.since) >= _RECOVERY
            if inner > 3 * agree and s.rate < draws.rate and settled:  # the rate had fallen too far
                s.rate, s.steady = min(draws.rate, 1.25 * s.rate), done
            elif self._may_quicken(noise):
                s.rate, s.quickened = min(self._fastest, _QUICKER * s.rate), done
        else:
            if s.phase == CLIMB:
                s.phase, s.anneal_from = ANNEAL, done
                s.rate = min(s.rate, draws.rate)
            if s.rate > _AVERAGING_RATE:
                s.rate, s.steady = s.rate / 2, done
            else:
                s.falls = 1.0
        s.global_rate = min(_GLOBAL_RATE, draws.rate, costs / max(global_square, 1e-300)) if draws.frames else 0.0
        averaged = done - s.anneal_from
        enough = averaged >= 2 * _LEG and rate * noise / 4 < costs
        # an average that leads away from where directions point is about to turn: that is no end
        recent = [row for row in self.history[-_TURN:] if row[0] > s.since]
        turns = any(row[3] < -max(_TURNS_BACK * row[4], agree) for row in recent)
        s.converged = float(not climbs and ((enough and not turns) or averaged >= _LONGEST_ANNEAL))

    def _legs_since(self, done: float) -> int:
        return sum(row[0] > done for row in self.history)

    def _may_quicken(self, noise: float) -> bool:
        """Whether the climb is long enough for momentum: it has lasted, and rises by more than faster noise costs."""
        s = self.state
        if s.setbacks or s.phase != CLIMB or not self.present.rate <= s.rate < self._fastest:
            return False
        if self._legs_since(max(s.since, s.steady, s.quickened)) < _PATIENCE:
            return False
        rise, error = self._rise_of(_PATIENCE // 2)
        return rise > max(2 * error, _QUICKER * s.rate * noise / 4)

    def _rise_of(self, window: int) -> tuple[float, float]:
        return rise_of(np.array([row[:3] for row in self.history[-2 * window :]]), window)

    def _climbs(self) -> bool:
        """Whether the ELBO has risen by more than its noise since the rate is what it is."""
        s = self.state
        rows = np.array([row[:3] for row in self.history if row[0] > max(s.since, s.steady)]).reshape(-1, 3)
        found, s.rise, s.rise_error = has_risen(rows, s.phase == CLIMB, self._far, (s.rise, s.rise_error))
        return found

    @property
    def _far(self) -> float:
        """Standard error of a rise that is met only far from the optimum."""
        return 1 + math.sqrt(self.dim) / 4

    def is_lost(self, elbo: float, rows: np.ndarray) -> bool:
        """Whether an ELBO lies so far below the best, or below the first of a leg's rows, that noise is no excuse.

        Steps that are too long grow from update to update, and the noise of such a leg is as large as its fall.
        """
        s = self.state
        if s.best > -math.inf:
            reference, error = s.best, s.best_error
        elif len(rows):
            reference, error = float(rows[0, 0]), math.sqrt(float(rows[0, 1]) / self.present.n_samples)
        else:  # nothing was stepped since the best
            return False
        return not elbo >= reference - _LOST * (error + self._far)

    def is_below_best(self, elbo: float, error: float, sure: float = 5.0) -> bool:
        """Whether an ELBO with this standard error is below the best by more than their noise."""
        return elbo < self.state.best - 1 - sure * math.hypot(error, self.state.best_error)

    # ---- checkpoints --------------------------------------------------------------------------------------
    def scalars(self) -> dict[str, float]:
        """The state as numbers."""
        return {f"plan_{name}": float(value) for name, value in asdict(self.state).items()}

    def restore(self, scalars: dict[str, float], history: np.ndarray) -> None:
        """Go on from what `scalars` gave."""
        self.state = PlanState(**{one.name: scalars[f"plan_{one.name}"] for one in fields(PlanState)})
        self.history = [tuple(row) for row in history]
