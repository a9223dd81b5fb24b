"""Natural gradients in the Julia engine: its legs, on Python's own memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pyturingvi.bridge.runtime import Runtime
from pyturingvi.errors import EngineError
from pyturingvi.families import Family
from pyturingvi.models.base import Model
from pyturingvi.optimize.loop import describe_divergence
from pyturingvi.optimize.natural_leg import Leg
from pyturingvi.optimize.natural_stepper import NaturalStepper
from pyturingvi.settings import Settings
from pyturingvi.support.array_namespace import address_of

_SECONDS = 0.1  # between two looks at Ctrl-C and the progress bar


class JuliaNaturalStepper(NaturalStepper):
    """A run inside Julia, in the standardized form of each family; Julia updates NumPy's vectors in place."""

    def __init__(self, runtime: Runtime, model: Model, settings: Settings, noise: np.ndarray | None) -> None:
        self._runtime, self.model, self.settings = runtime, model, settings
        self._noise = None if noise is None else np.ascontiguousarray(noise, dtype=np.float64)
        self._inner_model = model.to_julia(runtime)
        self._session: Any = None

    def begin(self, family: Family, vectors: dict[str, np.ndarray], count: int) -> None:
        module, settings, noise = self._runtime.module, self.settings, self._noise
        self._own = family.bind(self.model.layout)
        self._coordinates = self._own.natural_coordinates()
        # one block of memory for both, so that Julia needs one address
        self._vectors = np.zeros((2, vectors["params"].size), dtype=settings.dtype)
        self._params, self._velocity = self._vectors
        self._params[:] = vectors["params"]
        if "velocity" in vectors:
            self._velocity[:] = vectors["velocity"]
        self._best, self._start = (
            vectors.get(name, vectors["params"]).astype(settings.dtype) for name in ("best", "mark")
        )
        self._count = count
        self._session = self._runtime.call(
            module.start_natural_session,
            self._inner_model,
            self._coordinates.bound.family.to_julia(self._runtime),
            vectors=address_of(self._vectors),
            dtype=settings.dtype,
            device=settings.device,
            seed=str(settings.seed),
            done=self.done,
            count=count,
            noise=None if noise is None else address_of(noise),
            noise_rows=0 if noise is None else noise.shape[1],
            n_iterations=0 if noise is None else noise.shape[0],
        )

    def advance(self, leg: Leg) -> tuple[np.ndarray, bool]:
        module = self._runtime.module
        try:
            found = self._runtime.call(
                module.advance_natural_b,
                self._session,
                last=int(leg.last),
                seconds=_SECONDS,
                rate=float(leg.rate),
                momentum=float(leg.momentum),
                trust=float(leg.trust),
                n_samples=int(leg.n_samples),
                frames=bool(leg.frames),
                anneal_from=int(leg.anneal_from),
                global_rate=float(leg.global_rate),
                count=self._count,
            )
        except EngineError as error:
            # the vectors are those of the last update, which Julia alone knows
            self.done = int(self._runtime.call(module.session_done, self._session))
            raise self._with_context(error) from None
        self.done, self._count = int(found.done), int(found.count)
        return self._runtime.to_numpy(found.stats), bool(found.finite)

    def mark(self) -> None:
        self._start = self._params.copy()

    def keep(self) -> None:
        self._best = self._start

    def recall(self) -> None:
        self._params[:] = self._best
        self._velocity[:] = 0
        self._count = 0

    def elbo(self, n_samples: int, interrupted: Callable[[], bool]) -> tuple[float, float]:
        module, drawn, anew = self._runtime.module, 0, True
        while drawn < n_samples and not (drawn and interrupted()):
            try:
                drawn = int(self._runtime.call(module.estimate_session_b, self._session, n_samples, anew, _SECONDS))
            except EngineError as error:
                raise self._with_context(error) from None
            anew = False
        found = self._runtime.call(module.elbo_of_session, self._session)
        return float(found.value), float(found.std_error)

    def params(self) -> np.ndarray:
        standard = self._coordinates.bound.from_flat(self.standardized())
        return self._own.flat_on_host(self._coordinates.leave(standard))

    def standardized(self) -> np.ndarray:
        return self._params.astype(np.float64)

    def snapshot(self) -> tuple[dict[str, np.ndarray], int]:
        vectors = {"params": self._params, "velocity": self._velocity, "mark": self._start, "best": self._best}
        return {name: vector.astype(np.float64) for name, vector in vectors.items()}, self._count

    def divergence(self) -> str:
        slopes = self._runtime.to_numpy(self._runtime.call(self._runtime.module.slopes_of_session, self._session))
        return describe_divergence(slopes, self.model)

    def close(self) -> None:
        """Let Julia free the run's buffers."""
        self._session = None
        self._runtime.call(self._runtime.module.free_garbage)

    def _with_context(self, error: EngineError) -> EngineError:
        """What Julia threw in the middle, with the model and the place."""
        return EngineError(f"{self.model.label}, after {self.done} updates: {error}")
