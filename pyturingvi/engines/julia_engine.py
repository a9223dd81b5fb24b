"""The Julia engine: the whole loop inside the bundled Julia package, Python asking in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from pyturingvi.bridge.runtime import Runtime, start_julia
from pyturingvi.engines.base import Engine
from pyturingvi.engines.julia_natural import JuliaNaturalStepper
from pyturingvi.errors import EngineError
from pyturingvi.models.base import Model
from pyturingvi.optimize.loop import Stepper, StopWithin, describe_divergence, run_loop
from pyturingvi.optimize.monitor import Outcome, RunMonitor, Snapshot
from pyturingvi.optimize.natural_loop import run_natural
from pyturingvi.settings import Settings
from pyturingvi.support.array_namespace import address_of

_CHUNK_SECONDS = 0.1  # between two looks at Ctrl-C and the progress bar


class JuliaEngine(Engine):
    """Runs the bundled models and Turing models in Julia."""

    name: ClassVar[str] = "julia"

    def __init__(self) -> None:
        self.runtime = start_julia()

    def check_device(self, device: str) -> None:
        if device != "cuda":
            return
        try:
            self.runtime.load("CUDA")
        except EngineError as error:
            raise EngineError(f"device='cuda': {error}. Or use device='cpu'.") from None
        problem = self.runtime.call(self.runtime.module.device_problem, device)
        if problem is not None:
            raise EngineError(f"device='cuda': {problem}. Use device='cpu'.")

    def device_memory(self, device: str) -> int | None:
        # not run on a GPU
        return None if device == "cpu" else int(self.runtime.call(self.runtime.module.device_memory, device))

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
            natural = JuliaNaturalStepper(self.runtime, model, settings, noise)
            try:
                return run_natural(natural, model, settings, initial, noise is not None, monitor)
            finally:
                natural.close()
        assert settings.n_samples is not None
        assert settings.n_iterations is not None
        stepper = JuliaStepper(self.runtime, model, settings, initial, noise, monitor, stop_within)
        try:
            return run_loop(stepper, monitor)
        finally:
            stepper.close()


class JuliaStepper(Stepper):
    """A run inside Julia. Its vectors are NumPy's, which Julia updates in place."""

    def __init__(
        self,
        runtime: Runtime,
        model: Model,
        settings: Settings,
        initial: np.ndarray,
        noise: np.ndarray | None,
        monitor: RunMonitor,
        stop_within: StopWithin | None = None,
    ) -> None:
        self._runtime, self._model, self._settings = runtime, model, settings
        dtype, rule, averaging = np.dtype(settings.dtype), settings.optimizer, settings.averaging
        names = ["params", *(f"slot{k}" for k in range(rule.n_slots)), *(["average"] if averaging else [])]
        snapshot = monitor.resume(names)
        start = {"params": initial, "average": initial} if snapshot is None else snapshot.vectors
        self.done = 0 if snapshot is None else snapshot.iteration
        # one block of memory for all, so that Julia needs one address
        block = np.zeros((len(names), initial.size), dtype=dtype)
        self._vectors = dict(zip(names, block, strict=True))
        for name in names:
            if name in start:
                self._vectors[name][:] = start[name]
        self._noise = None if noise is None else np.ascontiguousarray(noise, dtype=np.float64)
        target = None if stop_within is None else np.ascontiguousarray(stop_within.params, dtype=dtype)
        if self.done and target is not None and stop_within is not None:  # a run that had arrived does not go on
            self.arrived = bool(((self._vectors["params"] - target) ** 2).sum() <= stop_within.epsilon)
        stepsize = rule.schedule.config()
        fixed = not isinstance(stepsize, dict)
        P = runtime.module
        self._advance, self._estimate, self._elbo = P.advance_session_b, P.estimate_session_b, P.elbo_of_session
        self._session = runtime.call(
            P.start_session,
            model.to_julia(runtime),
            settings.family.to_julia(runtime),
            rule.to_julia(runtime),
            stepsize=float(stepsize if fixed else stepsize["initial"]),
            factor=1.0 if fixed else float(stepsize["factor"]),
            every=1 if fixed else int(stepsize["every"]),
            dtype=settings.dtype,
            device=settings.device,
            vectors=address_of(block),
            noise=None if self._noise is None else address_of(self._noise),
            n_iterations=settings.n_iterations,
            n_samples=settings.n_samples,
            elbo_samples=settings.elbo_samples,
            seed=str(settings.seed),
            eta=None if averaging is None else float(averaging.eta),
            done=self.done,
            target=None if target is None else address_of(target),
            epsilon=None if stop_within is None else float(stop_within.epsilon),
        )

    def advance(self, last: int) -> bool:
        try:
            found = self._runtime.call(self._advance, self._session, last, _CHUNK_SECONDS)
        except EngineError as error:
            if self._settings.device == "cpu":  # the vectors are those of the last update, which Julia alone knows
                self.done = int(self._runtime.call(self._runtime.module.session_done, self._session))
            raise self._with_context(error) from None
        self.done, self.arrived = int(found.done), bool(found.arrived)
        return bool(found.finite)

    def elbo(self, interrupted: Callable[[], bool]) -> tuple[float, float]:
        drawn, anew = 0, True
        while drawn < self._settings.elbo_samples and not (drawn and interrupted()):
            try:
                drawn = int(self._runtime.call(self._estimate, self._session, anew, _CHUNK_SECONDS))
            except EngineError as failure:
                raise self._with_context(failure) from None
            anew = False
        found = self._runtime.call(self._elbo, self._session)
        return float(found.value), float(found.std_error)

    def close(self) -> None:
        """Let Julia free the run's buffers."""
        self._session = None
        self._runtime.call(self._runtime.module.free_garbage)

    def _with_context(self, error: EngineError) -> EngineError:
        """What Julia threw in the middle, with the model and the place."""
        return EngineError(f"{self._model.label}, after {self.done} of {self._settings.n_iterations} updates: {error}")

    def params(self) -> np.ndarray:
        vector: np.ndarray = self._vectors["average" if self._settings.averaging else "params"]
        return vector.astype(np.float64)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.done, {name: vector.astype(np.float64) for name, vector in self._vectors.items()})

    def divergence(self) -> str:
        slopes = self._runtime.to_numpy(self._runtime.call(self._runtime.module.slopes_of_session, self._session))
        return describe_divergence(slopes, self._model)


def julia_log_density_and_gradient(model: Model, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log densities (M,) and gradients (M, d) of unconstrained points (M, d), as the Julia engine computes them."""
    runtime = start_julia()
    inner = model.to_julia(runtime)
    points = np.ascontiguousarray(points, dtype=np.float64)
    values, slopes = np.empty(points.shape[0]), np.empty_like(points)
    places = (address_of(array) for array in (points, values, slopes))
    runtime.call(runtime.module.evaluate_at_b, inner, *places, points.shape[0])
    return values, slopes
