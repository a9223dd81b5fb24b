"""The loop of a fit by natural gradients: an engine's legs, the plan's decisions, and what a `RunMonitor` is told."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.models.base import Model
from pyturingvi.optimize.monitor import Outcome, RunMonitor, Snapshot
from pyturingvi.optimize.natural_leg import Verdict
from pyturingvi.optimize.natural_plan import CAP, HISTORY_COLUMNS, NaturalPlan
from pyturingvi.optimize.natural_rule import NaturalGradient
from pyturingvi.optimize.natural_stepper import ROW_COLUMNS, VECTORS, NaturalStepper
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator

if TYPE_CHECKING:
    from pyturingvi.settings import Settings

_RUNAWAY = 1e15  # a parameter beyond is on its way to infinity
_NUDGE = 0.5


def run_natural(
    stepper: NaturalStepper, model: Model, settings: Settings, initial: np.ndarray, fixed: bool, monitor: RunMonitor
) -> Outcome:
    """Fit by natural gradients until converged, or until the budget is used up.

    Parameters
    ----------
    initial : (p,) array
        Flat parameters of the family; where they are the plain start of the settings, smaller families go first.
    fixed : bool
        Whether the noise is given: the updates are then made at one rate, as many as there is noise.
    """
    rule = settings.optimizer
    assert isinstance(rule, NaturalGradient)
    loop = _Loop(stepper, model, settings, rule, initial, fixed, monitor)
    with monitor, np.errstate(all="ignore"):
        try:
            verdict = loop.run()
            loop.end(verdict)
        except Exception as error:  # a user's callback or log density failed: what has been fitted so far is kept
            if stepper.params_valid and loop.begun:
                loop.rows = np.concatenate([loop.rows, np.array(stepper.unreported).reshape(-1, ROW_COLUMNS)])
                loop.save()
                words = f"{type(error).__name__} after {stepper.done} updates"
                monitor.partial = loop.outcome("interrupted", words)
            raise
    return loop.outcome(loop.status, loop.message)


class _Loop:
    def __init__(
        self,
        stepper: NaturalStepper,
        model: Model,
        settings: Settings,
        rule: NaturalGradient,
        initial: np.ndarray,
        fixed: bool,
        monitor: RunMonitor,
    ) -> None:
        self.stepper, self.model, self.settings, self.monitor = stepper, model, settings, monitor
        bound = settings.family.bind(model.layout)
        start = settings.check_location(model.dim), settings.check_scale(model.dim)
        warm = not fixed and np.array_equal(initial, bound.initial_flat(*start))
        self.cap = settings.n_iterations or CAP
        self.plan = NaturalPlan(
            settings.family,
            model.layout,
            warm=warm,
            rate=rule.rate,
            momentum=rule.momentum,
            n_samples=settings.n_samples,
            fixed=fixed,
        )
        first = self.plan.family
        self.narrowable = first.independent and warm
        self.initial = first.bind(model.layout).initial_flat(*start) if self.narrowable else initial
        self.rows = np.empty((0, ROW_COLUMNS))  # of the leg at hand
        self.begun = self.saved = self.due = False  # due: an estimate of the ELBO
        self.finite = True  # whether the last update was
        self.astray = False  # a run that must be told of whoever chose its budget
        self.status, self.message = "completed", ""

    # ---- life ---------------------------------------------------------------------------------------------
    def run(self) -> Verdict:
        """Make the updates; the plan's last verdict."""
        monitor, stepper, plan = self.monitor, self.stepper, self.plan
        self._begin()
        self._estimate_if_due()
        verdict = Verdict.CONVERGED if plan.state.converged else Verdict.GO_ON
        while stepper.done < self.cap and not monitor.stop_requested and not verdict.ends:
            leg = plan.next_leg()
            # a leg that the budget cuts short stays open, so that a later run can end it
            rows, finite = stepper.advance(replace(leg, last=min(leg.last, self.cap)))
            self.rows = np.concatenate([self.rows, rows])
            if stepper.done >= leg.last or not finite:
                verdict = self._finish_leg(finite)
                self._estimate_if_due()
            monitor.tick(stepper.done, self.snapshot, plan.words)
        if verdict is not Verdict.DIVERGED:
            self.save()
        return verdict

    def save(self) -> None:
        """Write the checkpoint of a run that ends, before it is made into a result."""
        if not self.saved:
            self.monitor.save(self.snapshot)
        self.saved = True

    def _begin(self) -> None:
        stepper, plan, found = self.stepper, self.plan, self.monitor.resume(VECTORS, ("history", "leg"), True)
        if found is None:
            stepper.begin(plan.family, {"params": self._to_standardized(self.initial)}, 0)
        else:
            self._restore(found)
            ends = {int(row[0]) for row in plan.history}
            rows = self.monitor.rows = [row for row in self.monitor.rows if row[0] in ends]
            if self.settings.elbo_every is not None and rows and rows[-1][0] == stepper.done:
                rows.pop()  # Ctrl-C may have cut it short
                self.due = True
        self.begun = True

    def _restore(self, found: Snapshot) -> None:
        stepper, plan = self.stepper, self.plan
        lacking = plan.scalars().keys() - found.scalars.keys()
        if 0 < len(lacking) < len(plan.scalars()):
            raise self.monitor.foreign_checkpoint()
        try:
            plan.restore(found.scalars, found.vectors["history"].reshape(-1, HISTORY_COLUMNS))
            self.rows = found.vectors["leg"].reshape(-1, ROW_COLUMNS)
            self.due = bool(found.scalars["due"])
            count = int(found.scalars["count"])
            if found.vectors["params"].size != plan.family.n_params(self.model.layout):
                raise ValueError("its parameters are not those of its stage")
        except (IndexError, KeyError, OverflowError, ValueError) as error:
            raise self.monitor.damaged_checkpoint(error) from None
        stepper.done = found.iteration
        stepper.begin(plan.family, {name: found.vectors[name] for name in VECTORS}, count)

    def _finish_leg(self, finite: bool) -> Verdict:
        plan, stepper, rows = self.plan, self.stepper, self.rows
        self.rows, self.finite = np.empty((0, ROW_COLUMNS)), finite
        verdict = plan.finish_leg(stepper.done, rows, broke=not finite)
        if verdict.recalls:
            stepper.recall()
            if verdict is Verdict.BACK and not stepper.done and self.narrowable and not plan.state.stage:
                self._narrow()
            elif verdict is Verdict.BACK and finite and plan.state.setbacks > 1:
                self._nudge()
        elif verdict is Verdict.BEST:
            stepper.keep()
        if verdict.enters_next_stage:
            self._next_stage()
        stepper.mark()
        if plan.history and plan.history[-1][0] == stepper.done and finite:
            _, mean, squared_error = plan.history[-1][:3]
            every = self.settings.elbo_every
            self.due = every is not None and stepper.done // every > (stepper.done - len(rows)) // every
            if every is None:  # last, since a callback may raise
                self.monitor.record(stepper.done, mean, math.sqrt(squared_error))
        return verdict

    def _narrow(self) -> None:
        """Start again nearer to the location, where the density is finite: variables may have smaller units."""
        self.initial = self.initial.copy()
        self.initial[self.model.dim :] /= 10
        self.stepper.begin(self.plan.family, {"params": self.initial}, 0)

    def _nudge(self) -> None:
        """Leave the best by half a standard deviation: draws in pairs hold a run on an axis of symmetry.

        Between two modes that mirror each other a fit is as wide as they are apart, and falls again and again.
        """
        plan, stepper, dim = self.plan, self.stepper, self.model.dim
        coordinates: Any = plan.family.bind(self.model.layout).natural_coordinates()
        work = coordinates.bound.from_flat(stepper.standardized())
        noise = generator(np, self.settings.seed, SAMPLE_STREAM, 14, int(plan.state.setbacks)).standard_normal(dim)
        coordinates.shift(work, _NUDGE / math.sqrt(dim) * noise)
        stepper.begin(plan.family, {"params": np.asarray(coordinates.bound.to_flat(work))}, 0)

    def _next_stage(self) -> None:
        plan, stepper, layout = self.plan, self.stepper, self.model.layout
        before = plan.family.standard_form.bind(layout)
        flat = stepper.standardized()
        plan.begin_next_stage(stepper.done)
        after = plan.family.standard_form.bind(layout)
        stepper.begin(plan.family, {"params": after.embed(before, flat)}, 0)

    def end(self, verdict: Verdict) -> None:
        """Make the run into a result: its family, status and ELBO."""
        stepper, monitor, state = self.stepper, self.monitor, self.plan.state
        done = stepper.done
        value = self._estimate()
        back = not verdict.ends and self.plan.is_lost(value, self.rows)
        # a single draw far out in a tail may have led the last updates away
        if back or (verdict is not Verdict.DIVERGED and self.plan.is_below_best(value, monitor.rows[-1][2], sure=3.0)):
            stepper.recall()
            value = self._estimate()
        if not self.plan.is_last_stage:
            self._embed_in_last()
        if verdict is Verdict.CONVERGED:
            self.status = "converged"
            averaged = done - int(state.anneal_from)
            found = f"by {state.rise:.2g} nats" if state.rise > 0 else f"no more ({state.rise:+.2g} nats)"
            self.message = (
                f"after {done} updates: the ELBO rose {found} over the last part of the climb "
                f"(standard error {state.rise_error:.2g}), and {averaged} averaged its noise out"
            )
        elif verdict is Verdict.DIVERGED:
            self.status = "diverged"
            self.message = f"after {done} updates {self._why_diverged()}"
        elif monitor.stop_requested:
            who = "the callback" if monitor.stopped_by_callback else "Ctrl-C"
            self.status, self.message = "interrupted", f"stopped by {who} after {done} updates"
        else:
            self.message = f"{done} updates made without converging"
            astray = self._runaway().rstrip(".")
            if back and not astray:
                astray = "the last of them led astray, and the best parameters before are kept: go on with init=fit"
            self.astray, self.message = bool(astray), self.message + (f"; {astray}" if astray else "")
        if self.status != "diverged" and not math.isfinite(value):
            self.status = "diverged"
            self.message = f"the ELBO after {done} updates is {value}: see what your model returns where the fit lies."

    def _why_diverged(self) -> str:
        runaway = self._runaway()
        if self.finite:
            return runaway or (
                "the ELBO fell again and again, however small the steps; the best parameters so far are kept. Modes "
                "far apart do this, or a shape that no fit comes near: try an init_location nearer to the mass, or a "
                "smaller init_scale."
            )
        return (
            f"{self.stepper.divergence()}, however small the steps; the best parameters so far are kept. See what your "
            "model returns there, or try another init_location or a smaller init_scale."
        ) + (f" And {runaway}" if runaway else "")

    def _runaway(self) -> str:
        """What parameters on their way to infinity say of the density; nothing of others."""
        largest = float(abs(self.stepper.params()).max())
        if largest < _RUNAWAY:
            return ""
        return (
            f"its parameters have run to {largest:.0e}, as those of a density do whose integral is infinite: see "
            "that every variable has a prior."
        )

    def _embed_in_last(self) -> None:
        """A run that ends early ends in the family that was asked for."""
        while not self.plan.is_last_stage:
            self._next_stage()

    def _estimate_if_due(self) -> None:
        if self.due:
            self._estimate()
            self.due = False

    def _estimate(self) -> float:
        monitor, stepper = self.monitor, self.stepper
        value, error = stepper.elbo(self.settings.elbo_samples, lambda: monitor.interrupt.requested)
        if monitor.rows and monitor.rows[-1][0] == stepper.done:
            monitor.rows.pop()
        monitor.record(stepper.done, value, error)
        return value

    # ---- what is kept -------------------------------------------------------------------------------------
    def outcome(self, status: str, message: str) -> Outcome:
        if not self.plan.is_last_stage:
            self._embed_in_last()
        state = self.plan.state
        known = status == "converged" and math.isfinite(state.rise) and math.isfinite(state.rise_error)
        gain = (float(state.rise), float(state.rise_error)) if known else None
        return Outcome(self.stepper.params(), self.stepper.done, status, message, gain=gain, astray=self.astray)

    def snapshot(self) -> Snapshot:
        vectors, count = self.stepper.snapshot()
        kept = {"history": np.array(self.plan.history, dtype=np.float64).ravel(), "leg": self.rows.ravel()}
        return Snapshot(
            self.stepper.done, {**vectors, **kept}, {**self.plan.scalars(), "count": count, "due": self.due}
        )

    def _to_standardized(self, flat: np.ndarray) -> np.ndarray:
        family, layout = self.plan.family, self.model.layout
        bound = family.bind(layout)
        coordinates = bound.natural_coordinates()
        return np.asarray(coordinates.bound.to_flat(coordinates.enter(bound.from_flat(flat))))
