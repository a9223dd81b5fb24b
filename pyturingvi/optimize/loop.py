"""The stochastic optimization loop around an engine's updates: ELBO trace, stops, divergence, checkpoints."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pyturingvi.models.base import Model
from pyturingvi.optimize.monitor import Outcome, RunMonitor, Snapshot


@dataclass(frozen=True)
class StopWithin:
    """Ends a run after the first update whose parameters are near a given point: for experiments on a known optimum.

    Attributes
    ----------
    params : array (p,)
        Flat parameters.
    epsilon : float
        Squared Euclidean distance to them.
    """

    params: np.ndarray
    epsilon: float


class Stepper(ABC):
    """A run at work in some engine.

    Attributes
    ----------
    done : int
        Updates made.
    params_valid : bool
        False while an update is half made: the parameters are then unusable.
    arrived : bool
        True once the parameters are within the run's `StopWithin`.
    """

    done: int = 0
    params_valid: bool = True
    arrived: bool = False

    @abstractmethod
    def advance(self, last: int) -> bool:
        """Make at least one update and none beyond number `last`, for about 0.1 s at most; none after arriving.

        False if the next gradient is not finite; the parameters are then the last finite ones.
        """

    @abstractmethod
    def elbo(self, interrupted: Callable[[], bool]) -> tuple[float, float]:
        """ELBO now, with its Monte Carlo standard error; from fewer draws once `interrupted` turns true."""

    @abstractmethod
    def params(self) -> np.ndarray:
        """Flat parameters (p,) in float64 that the run would return now, a copy."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """State from which the run goes on exactly."""

    @abstractmethod
    def divergence(self) -> str:
        """Where the gradient is not finite, in words, after `advance` returned False."""


def run_loop(stepper: Stepper, monitor: RunMonitor) -> Outcome:
    """Make up to `monitor.n_iterations` updates, fewer where the stepper arrives.

    Returns
    -------
    Outcome
        With the averaged parameters where the run averages. A diverged run keeps the last finite ones.
    """

    def record() -> float:
        value, error = stepper.elbo(lambda: monitor.interrupt.requested)
        monitor.record(stepper.done, value, error)
        return value

    def outcome(status: str, message: str) -> Outcome:
        return Outcome(stepper.params(), stepper.done, status, message, stepper.arrived)

    every, total = monitor.elbo_every, monitor.n_iterations
    assert every is not None
    assert total is not None
    status, message = "completed", f"{total} updates made"
    with monitor, np.errstate(all="ignore"):
        try:
            if stepper.done and stepper.done % every == 0:
                record()
            while stepper.done < total and not stepper.arrived and not monitor.stop_requested:
                if not stepper.advance(min(total, (stepper.done // every + 1) * every)):
                    status = "diverged"
                    message = (
                        f"at update {stepper.done + 1} {stepper.divergence()}; the parameters after {stepper.done} "
                        "updates are kept. Try a smaller stepsize or a smaller init_scale."
                    )
                    break
                if stepper.arrived:
                    break
                if stepper.done % every == 0 and math.isnan(record()):
                    break
                monitor.tick(stepper.done, stepper.snapshot)
            if stepper.arrived:
                message = f"arrived after {stepper.done} updates"
            elif status == "completed" and monitor.stop_requested and stepper.done < total:
                who = "the callback" if monitor.stopped_by_callback else "Ctrl-C"
                status, message = "interrupted", f"stopped by {who} after {stepper.done} of {total} updates"
            if not monitor.rows or monitor.rows[-1][0] != stepper.done:
                record()
            if status != "diverged" and monitor.rows and not math.isfinite(monitor.rows[-1][1]):
                status = "diverged"
                message = (
                    f"the ELBO after {stepper.done} updates is {monitor.rows[-1][1]}: the log density is not finite "
                    "where the fitted distribution lies. Try a smaller stepsize, or see what your model returns there."
                )
        except Exception as error:  # a user's callback or log density failed: what has been fitted so far is kept
            if stepper.params_valid:
                words = f"{type(error).__name__} after {stepper.done} of {total} updates"
                monitor.partial = outcome("interrupted", words)
            raise
        finally:
            if status != "diverged" and stepper.params_valid:
                monitor.save(stepper.snapshot)
    return outcome(status, message)


def describe_divergence(slopes: np.ndarray, model: Model) -> str:
    """Say where the slopes (M, d) of the log density became non-finite."""
    columns = np.flatnonzero((~np.isfinite(slopes)).any(axis=0))
    if not columns.size:
        return "the squared norm of the gradient overflowed"
    first, d_z = int(columns[0]), model.layout.n_global
    name = model.global_labels[first] if first < d_z else f"local block {(first - d_z) // model.layout.local_dim}"
    return f"the gradient became non-finite in {columns.size} coordinates, first in {name!r}"
