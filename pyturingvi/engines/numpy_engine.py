"""The NumPy engine: NumPy on the CPU, the same code through CuPy on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from pyturingvi.engines.base import Engine
from pyturingvi.engines.numpy_natural import NumpyNaturalStepper
from pyturingvi.models.base import Model
from pyturingvi.optimize.loop import Stepper, StopWithin, describe_divergence, run_loop
from pyturingvi.optimize.monitor import Outcome, RunMonitor, Snapshot
from pyturingvi.optimize.natural_loop import run_natural
from pyturingvi.optimize.noise import GivenNoise, NoiseStream
from pyturingvi.optimize.objective import Objective
from pyturingvi.optimize.rules import RuleState
from pyturingvi.settings import Settings
from pyturingvi.support.array_namespace import namespace_for, to_numpy
from pyturingvi.support.parallel import Workers, available_cores, one_blas_thread


class NumpyEngine(Engine):
    """Runs every model that gives a gradient in Python, on device "cpu" or "cuda"."""

    name: ClassVar[str] = "numpy"

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = n_threads

    def check_device(self, device: str) -> None:
        namespace_for(device)

    def run(
        self,
        model: Model,
        settings: Settings,
        initial: np.ndarray,
        noise: np.ndarray | None,
        monitor: RunMonitor,
        stop_within: StopWithin | None = None,
    ) -> Outcome:
        if settings.optimizer.ends_by_itself:
            with one_blas_thread(), Workers(self.n_threads or available_cores()) as workers:
                natural = NumpyNaturalStepper(model, settings, noise, workers)
                return run_natural(natural, model, settings, initial, noise is not None, monitor)
        n_samples, n_iterations = settings.draws_of(model.layout), settings.most_updates
        xp = namespace_for(settings.device)
        dtype = np.dtype(settings.dtype)
        bound = settings.family.bind(model.layout, dtype, xp)
        with one_blas_thread(), Workers(self.n_threads or available_cores()) as workers:
            objective = Objective(model, bound, n_samples, workers)
            shape = (n_samples, bound.noise_dim)
            stream = (
                GivenNoise(noise, dtype, xp)
                if noise is not None
                else NoiseStream(bound.base, settings.seed, shape, n_iterations, dtype, xp, workers)
            )
            stepper = NumpyStepper(objective, settings.optimizer.start(bound, workers), stream, settings, stop_within)
            stepper.start(initial, monitor.resume(stepper.vector_names))
            return run_loop(stepper, monitor)


class NumpyStepper(Stepper):
    """A run of the NumPy engine; `work` is updated in place."""

    def __init__(
        self,
        objective: Objective,
        rule: RuleState,
        noise: NoiseStream | GivenNoise,
        settings: Settings,
        stop_within: StopWithin | None = None,
    ) -> None:
        self.objective, self.rule, self.noise, self.settings = objective, rule, noise, settings
        self.averaging = settings.averaging
        self.stop_within = stop_within
        self.target = None if stop_within is None else objective.bound.from_flat(stop_within.params)
        slots = [f"slot{k}" for k in range(len(rule.slots))]
        self.vector_names = ["params", *slots, *(["average"] if self.averaging else [])]

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
            self.rule.scalars.update(snapshot.scalars)
        self.distance_buffer = bound.xp.empty_like(self.work if self.target is not None else self.work[:0])
        if self.done:  # a run that had arrived does not go on
            self._see_arrival()

    def advance(self, last: int) -> bool:
        objective = self.objective
        if not objective.evaluate(self.work, self.noise.draw(self.done)):
            return False
        self.params_valid = False
        finite = self.rule.update(self.work, objective.batch, self.done + 1)
        if finite and self.averaging is not None:
            self.averaging.update(self.average, self.work, self.done + 1)
        self.done += finite
        self.params_valid = True
        if finite:
            self._see_arrival()
        return finite

    def _see_arrival(self) -> None:
        if self.stop_within is not None:
            self.objective.bound.xp.subtract(self.work, self.target, out=self.distance_buffer)
            self.arrived = bool(self.distance_buffer @ self.distance_buffer <= self.stop_within.epsilon)

    def elbo(self, interrupted: Callable[[], bool]) -> tuple[float, float]:
        best = self.work if self.average is None else self.average
        return self.objective.elbo(best, self.settings.elbo_samples, self.settings.seed, self.done, interrupted)

    def params(self) -> np.ndarray:
        return self.objective.bound.flat_on_host(self.work if self.average is None else self.average)

    def snapshot(self) -> Snapshot:
        on_host = self.objective.bound.flat_on_host
        vectors = {"params": on_host(self.work)}
        if self.average is not None:
            vectors["average"] = on_host(self.average)
        for k, slot in enumerate(self.rule.slots):
            vectors[f"slot{k}"] = on_host(slot)
        return Snapshot(self.done, vectors, dict(self.rule.scalars))

    def divergence(self) -> str:
        return describe_divergence(to_numpy(self.objective.batch.slopes), self.objective.model)
