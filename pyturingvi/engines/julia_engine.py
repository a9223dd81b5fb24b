"""The Julia engine: the whole loop inside the bundled Julia package, Python asking in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from pyturingvi.bridge.environment import add_command, manifest_versions, optional_packages
from pyturingvi.bridge.runtime import Runtime, start_julia
from pyturingvi.engines.base import SUPPORTS, Engine, FitSpec, Outcome
from pyturingvi.errors import EngineError, InputError
from pyturingvi.families import Family
from pyturingvi.models.base import Model
from pyturingvi.optimize.loop import Stepper, StopWithin, describe_divergence, run_loop
from pyturingvi.optimize.monitor import RunMonitor, Snapshot
from pyturingvi.optimize.rules import Rule

_CHUNK_SECONDS = 0.1  # between two looks at Ctrl-C and the progress bar


class JuliaEngine(Engine):
    """Runs the bundled models and Turing models in Julia."""

    name: ClassVar[str] = "julia"
    supports: ClassVar[frozenset[str]] = SUPPORTS["julia"]

    def __init__(self) -> None:
        self.runtime = start_julia()

    def check_device(self, device: str) -> None:
        if device not in ("cpu", "cuda"):
            raise InputError(f"Unknown device {device!r}: it must be 'cpu' or 'cuda'.")
        if device == "cuda":
            self._check_cuda()

    def _check_cuda(self) -> None:
        environment, uuid = self.runtime.environment, _cuda_uuid()
        if environment is not None:
            have = manifest_versions(environment.project, environment.probe().numbers)
            if uuid not in have:
                raise EngineError(
                    "device='cuda' with engine='julia' needs the Julia package CUDA, which the project "
                    f"{environment.project!r} does not have. Add it with `{add_command(environment, ['CUDA'])}`, "
                    "or use device='cpu'."
                )
        self.runtime.load("CUDA")
        problem = self.runtime.call(self.runtime.module.device_problem, "cuda")
        if problem is not None:
            raise EngineError(f"device='cuda': {problem}. Use device='cpu'.")

    def device_memory(self, device: str) -> int | None:
        # not run on a GPU
        return None if device == "cpu" else int(self.runtime.call(self.runtime.module.device_memory, device))

    def run(
        self,
        model: Model,
        spec: FitSpec,
        initial: np.ndarray,
        noise: np.ndarray | None,
        monitor: RunMonitor,
        stop_within: StopWithin | None = None,
    ) -> Outcome:
        inner = julia_model(self.runtime, model)
        stepper = JuliaStepper(self.runtime, inner, model, spec, initial, noise, monitor.resume(), stop_within)
        return run_loop(stepper, spec, monitor)


class JuliaStepper(Stepper):
    """A run inside Julia. Its vectors are NumPy's, which Julia updates in place."""

    def __init__(
        self,
        runtime: Runtime,
        inner: Any,
        model: Model,
        spec: FitSpec,
        initial: np.ndarray,
        noise: np.ndarray | None,
        snapshot: Snapshot | None,
        stop_within: StopWithin | None = None,
    ) -> None:
        self._runtime, self._model, self._spec = runtime, model, spec
        dtype = np.dtype(spec.dtype)
        names = ["params", *(f"slot{k}" for k in range(spec.rule.n_slots)), *(["average"] if spec.averaging else [])]
        start = {"params": initial, "average": initial} if snapshot is None else snapshot.vectors
        self.done = 0 if snapshot is None else snapshot.iteration
        # one block of memory for all, so that Julia needs one address
        block = np.zeros((len(names), initial.size), dtype=dtype)
        self._vectors = dict(zip(names, block, strict=True))
        for name in names:
            if name in start:
                self._vectors[name][:] = start[name]
        self._noise = None if noise is None else np.ascontiguousarray(noise, dtype=np.float64)
        self._target = None if stop_within is None else np.ascontiguousarray(stop_within.params, dtype=dtype)
        stepsize = spec.rule.schedule.config()
        if not isinstance(stepsize, dict):
            stepsize = {"initial": stepsize, "factor": 1.0, "every": 1}
        P = runtime.module
        self._advance, self._estimate, self._elbo = P.advance_session_b, P.estimate_session_b, P.elbo_of_session
        self._arrived = P.session_arrived
        self._session = runtime.call(
            P.start_session,
            inner,
            julia_family(runtime, spec.family_object),
            julia_rule(runtime, spec.rule),
            float(stepsize["initial"]),
            float(stepsize["factor"]),
            int(stepsize["every"]),
            spec.dtype,
            _address(block),
            0 if self._noise is None else _address(self._noise),
            spec.n_iterations,
            spec.n_samples,
            spec.elbo_samples,
            str(spec.seed),
            float(spec.averaging["eta"]) if spec.averaging else math.nan,
            self.done,
            spec.device,
            0 if self._target is None else _address(self._target),
            math.nan if stop_within is None else float(stop_within.epsilon),
        )

    def advance(self, last: int) -> bool:
        try:
            done = int(self._runtime.call(self._advance, self._session, last, _CHUNK_SECONDS))
        except EngineError as error:
            if self._spec.device == "cpu":  # the vectors are those of the last whole update, which Julia alone knows
                self.done = int(self._runtime.call(self._runtime.module.session_done, self._session))
            raise self._told(error) from None
        self.done = done if done >= 0 else -done - 1
        if self._target is not None:
            self.arrived = bool(self._runtime.call(self._arrived, self._session))
        return done >= 0

    def elbo(self, interrupted: Callable[[], bool]) -> tuple[float, float]:
        drawn, anew = 0, True
        while drawn < self._spec.elbo_samples and not (drawn and interrupted()):
            try:
                drawn = int(self._runtime.call(self._estimate, self._session, anew, _CHUNK_SECONDS))
            except EngineError as failure:
                raise self._told(failure) from None
            anew = False
        value, error = self._runtime.call(self._elbo, self._session)
        return float(value), float(error)

    def _told(self, error: EngineError) -> EngineError:
        """What Julia threw in the middle, with the model and the place."""
        return EngineError(f"{self._model.label}, after {self.done} of {self._spec.n_iterations} updates: {error}")

    def params(self) -> np.ndarray:
        return self._vectors["average" if self._spec.averaging else "params"].astype(np.float64)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.done, {name: vector.astype(np.float64) for name, vector in self._vectors.items()})

    def divergence(self) -> str:
        slopes = self._runtime.to_numpy(self._runtime.call(self._runtime.module.slopes_of_session, self._session))
        return describe_divergence(slopes, self._model)


def _cuda_uuid() -> str:
    return next(uuid for name, uuid, _ in optional_packages() if name == "CUDA")


# ---- what Julia is given ----------------------------------------------------------------------------------
def julia_model(runtime: Runtime, model: Model) -> Any:
    """The Julia counterpart of a model, with its data sent over."""
    P, layout = runtime.module, model.layout
    if model.name == "turing":
        return model.julia_model  # type: ignore[attr-defined]
    state = model.get_state()
    if model.name == "gaussian":
        sizes = (layout.n_global, layout.n_local, layout.local_dim)
        return runtime.call(P.gaussian_model, *sizes, float(state["mean"]), float(state["variance"]))
    if model.name == "rpoisson":
        X, y, offset = (np.ascontiguousarray(state[key], dtype=np.float64) for key in ("X", "y", "offset"))
        return runtime.call(P.rpoisson_model, _address(X), _address(y), _address(offset), *X.shape)
    if model.name == "irt":
        signs = np.where(state["responses"] < 0, 0, 2 * state["responses"] - 1).astype(np.int8, order="C")
        return runtime.call(P.irt_model, _address(signs), *signs.shape)
    if model.name == "volatility":
        returns = np.ascontiguousarray(state["returns"], dtype=np.float64)
        return runtime.call(P.volatility_model, _address(returns), *returns.shape)
    raise EngineError(f"engine='julia' has no model {model.name!r}; use engine='numpy'.")


def julia_family(runtime: Runtime, family: Family) -> Any:
    """The Julia counterpart of a family."""
    spec = family.base_distribution.spec
    base, nu = spec if isinstance(spec, tuple) else (spec, float("nan"))
    return runtime.call(
        runtime.module.family_named, family.name, base, float(nu), getattr(family, "standardized", True)
    )


def julia_rule(runtime: Runtime, rule: Rule) -> Any:
    """The Julia counterpart of an update rule, its stepsize left out."""
    config = rule.config()
    settings = [float(config[key]) for key in ("beta1", "beta2", "epsilon", "min_scale") if key in config]
    return runtime.call(runtime.module.rule_named, config["rule"], *settings)


def _address(array: np.ndarray) -> int:
    """Where a C-ordered array's memory begins; Julia sees it with the axes reversed."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def julia_log_density_and_gradient(model: Model, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log densities (M,) and gradients (M, d) of unconstrained points (M, d), as the Julia engine computes them."""
    runtime = start_julia()
    inner = julia_model(runtime, model)
    points = np.ascontiguousarray(points, dtype=np.float64)
    values, slopes = np.empty(points.shape[0]), np.empty_like(points)
    places = (_address(array) for array in (points, values, slopes))
    runtime.call(runtime.module.evaluate_at_b, inner, *places, points.shape[0])
    return values, slopes
