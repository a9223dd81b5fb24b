"""The stochastic optimization loop of the embedded engine."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pyturingvi.array_namespace import Array
from pyturingvi.engines.base import FitSpec, Outcome
from pyturingvi.monitor import RunMonitor, Snapshot
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.noise import GivenNoise, NoiseStream
from pyturingvi.optimize.objective import Objective
from pyturingvi.optimize.rules import RuleState

Observer = Callable[[int, Array], bool]


def run_loop(
    objective: Objective,
    rule: RuleState,
    noise: NoiseStream | GivenNoise,
    spec: FitSpec,
    initial: np.ndarray,
    monitor: RunMonitor,
    averaging: PolynomialAveraging | None = None,
    observer: Observer | None = None,
) -> Outcome:
    """Make up to `spec.n_iterations` updates from the flat parameters `initial`.

    Parameters
    ----------
    observer : callable or None
        Called as `observer(iteration, work)` after every update with the working vector; a true answer ends
        the run as completed. For experiments that stop at a distance from a known optimum.

    Returns
    -------
    Outcome
        With the averaged parameters where `averaging` is given. A diverged run keeps the last finite ones.
    """
    bound = objective.bound
    snapshot = monitor.resume()
    if snapshot is None:
        done = 0
        work = bound.from_flat(initial)
        average = work.copy() if averaging else None
    else:
        done = snapshot.iteration
        work = bound.from_flat(snapshot.vectors["params"])
        average = bound.from_flat(snapshot.vectors["average"]) if averaging else None
        for k, slot in enumerate(rule.slots):
            slot[...] = bound.from_flat(snapshot.vectors[f"slot{k}"])
    gradient = bound.xp.empty_like(work)

    def take_snapshot() -> Snapshot:
        vectors = {"params": bound.flat_on_host(work)}
        if average is not None:
            vectors["average"] = bound.flat_on_host(average)
        for k, slot in enumerate(rule.slots):
            vectors[f"slot{k}"] = bound.flat_on_host(slot)
        return Snapshot(done, vectors)

    def record() -> float:
        best = work if average is None else average
        stop = lambda: monitor.interrupt.requested  # noqa: E731
        value, error = objective.elbo(best, spec.elbo_samples, spec.seed, done, stop)
        monitor.record(done, value, error)
        return value

    def outcome(status: str, message: str) -> Outcome:
        return Outcome(bound.flat_on_host(work if average is None else average), done, status, message)

    status, message = "completed", f"{spec.n_iterations} updates made"
    whole = True  # False while an update is half made
    with monitor, np.errstate(all="ignore"):
        try:
            if done and done % spec.elbo_every == 0:
                record()
            while done < spec.n_iterations and not monitor.stop_requested:
                if not objective.gradient(work, noise.draw(done), gradient):
                    status, message = "diverged", describe_divergence(objective, done)
                    break
                whole = False
                rule.step(work, gradient, done + 1)
                if average is not None and averaging is not None:
                    averaging.update(average, work, done + 1)
                done += 1
                whole = True
                if observer is not None and observer(done, work):
                    message = f"stopped by the observer after {done} updates"
                    break
                if done % spec.elbo_every == 0 and math.isnan(record()):
                    break
                monitor.tick(done, take_snapshot)
            if status == "completed" and monitor.stop_requested and done < spec.n_iterations:
                who = "the callback" if monitor.stopped_by_callback else "Ctrl-C"
                status, message = (
                    "interrupted",
                    f"stopped by {who} after {done} of {spec.n_iterations} updates",
                )
            if observer is None and (not monitor.rows or monitor.rows[-1][0] != done):
                record()
            if status != "diverged" and monitor.rows and not math.isfinite(monitor.rows[-1][1]):
                status = "diverged"
                message = (
                    f"the ELBO after {done} updates is {monitor.rows[-1][1]}: the log density is not finite where the "
                    "fitted distribution lies. Try a smaller stepsize, or see what your model returns there."
                )
        except Exception as error:  # a user's callback or log density failed: what has been fitted so far is kept
            if whole:
                words = f"{type(error).__name__} after {done} of {spec.n_iterations} updates"
                monitor.partial = outcome("interrupted", words)
            raise
        finally:
            if status != "diverged" and whole:
                monitor.save(take_snapshot)
    return outcome(status, message)


def describe_divergence(objective: Objective, done: int) -> str:
    """Say where a run became non-finite and what to do."""
    xp, model = objective.bound.xp, objective.model
    bad = ~xp.isfinite(objective.slopes)
    columns = np.flatnonzero(np.asarray(bad.any(axis=0).tolist()))
    where = "the squared norm of the gradient overflowed"
    if columns.size:
        first, d_z = int(columns[0]), model.layout.n_global
        name = model.global_labels[first] if first < d_z else f"local block {(first - d_z) // model.layout.local_dim}"
        where = f"the gradient became non-finite in {columns.size} coordinates, first in {name!r}"
    return (
        f"at update {done + 1} {where}; the parameters after {done} updates are kept. "
        "Try a smaller stepsize or a smaller init_scale."
    )
