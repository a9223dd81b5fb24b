"""The embedded engine: NumPy on the CPU, the same code through CuPy on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from pyturingvi.engines.base import SUPPORTS, Engine, FitSpec, Outcome
from pyturingvi.models.base import Model
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.loop import Stepper, StopWithin, describe_divergence, run_loop
from pyturingvi.optimize.monitor import RunMonitor, Snapshot
from pyturingvi.optimize.noise import GivenNoise, NoiseStream
from pyturingvi.optimize.objective import Objective
from pyturingvi.optimize.rules import RuleState
from pyturingvi.support.array_namespace import namespace_for, to_numpy
from pyturingvi.support.parallel import Workers, available_cores


class NumpyEngine(Engine):
    """Runs every model that gives a gradient in Python, on device "cpu" or "cuda"."""

    name: ClassVar[str] = "numpy"
    supports: ClassVar[frozenset[str]] = SUPPORTS["numpy"]

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = n_threads

    def check_device(self, device: str) -> None:
        namespace_for(device)

    def run(
        self,
        model: Model,
        spec: FitSpec,
        initial: np.ndarray,
        noise: np.ndarray | None,
        monitor: RunMonitor,
        stop_within: StopWithin | None = None,
    ) -> Outcome:
        xp = namespace_for(spec.device)
        dtype = np.dtype(spec.dtype)
        rule = spec.rule
        averaging = PolynomialAveraging(spec.averaging["eta"]) if spec.averaging else None
        bound = spec.family_object.bind(model.layout, dtype, xp)
        # the products are too small for BLAS threads, which would wait for each other beside ours
        with threadpool_limits(1, user_api="blas"), Workers(self.n_threads or available_cores()) as workers:
            objective = Objective(model, bound, spec.n_samples, rule.energy_only, workers)
            stream = (
                GivenNoise(noise, dtype, xp)
                if noise is not None
                else NoiseStream(
                    bound.base, spec.seed, spec.n_samples, model.dim, spec.n_iterations, dtype, xp, workers
                )
            )
            stepper = NumpyStepper(objective, rule.start(bound, workers), stream, spec, averaging, stop_within)
            stepper.start(initial, monitor.resume())
            return run_loop(stepper, spec, monitor)


class NumpyStepper(Stepper):
    """A run of the embedded engine; `work` is updated in place."""

    def __init__(
        self,
        objective: Objective,
        rule: RuleState,
        noise: NoiseStream | GivenNoise,
        spec: FitSpec,
        averaging: PolynomialAveraging | None,
        stop_within: StopWithin | None = None,
    ) -> None:
        self.objective, self.rule, self.noise, self.spec, self.averaging = objective, rule, noise, spec, averaging
        self.stop_within = stop_within
        self.target = None if stop_within is None else objective.bound.from_flat(stop_within.params)

    def start(self, initial: np.ndarray, snapshot: Snapshot | None) -> None:
        """Begin at the flat parameters `initial`, or go on from a snapshot."""
        bound = self.objective.bound
        vectors = {"params": initial, "average": initial} if snapshot is None else snapshot.vectors
        self.done = 0 if snapshot is None else snapshot.iteration
        self.work = bound.from_flat(vectors["params"])
        self.average = None if self.averaging is None else bound.from_flat(vectors["average"])
        if snapshot is not None:
            for k, slot in enumerate(self.rule.slots):
                slot[...] = bound.from_flat(vectors[f"slot{k}"])
        self.gradient = bound.xp.empty_like(self.work)
        self.apart = bound.xp.empty_like(self.work if self.target is not None else self.work[:0])

    def advance(self, last: int) -> bool:
        if not self.objective.gradient(self.work, self.noise.draw(self.done), self.gradient):
            return False
        self.whole = False
        self.rule.step(self.work, self.gradient, self.done + 1)
        if self.averaging is not None:
            self.averaging.update(self.average, self.work, self.done + 1)
        self.done += 1
        self.whole = True
        if self.stop_within is not None:
            self.objective.bound.xp.subtract(self.work, self.target, out=self.apart)
            self.arrived = bool(self.apart @ self.apart <= self.stop_within.epsilon)
        return True

    def elbo(self, interrupted: Callable[[], bool]) -> tuple[float, float]:
        best = self.work if self.average is None else self.average
        return self.objective.elbo(best, self.spec.elbo_samples, self.spec.seed, self.done, interrupted)

    def params(self) -> np.ndarray:
        return self.objective.bound.flat_on_host(self.work if self.average is None else self.average)

    def snapshot(self) -> Snapshot:
        on_host = self.objective.bound.flat_on_host
        vectors = {"params": on_host(self.work)}
        if self.average is not None:
            vectors["average"] = on_host(self.average)
        for k, slot in enumerate(self.rule.slots):
            vectors[f"slot{k}"] = on_host(slot)
        return Snapshot(self.done, vectors)

    def divergence(self) -> str:
        return describe_divergence(to_numpy(self.objective.slopes), self.objective.model)
