"""Natural gradients in the NumPy engine, the same code through CuPy on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pyturingvi.families import Family
from pyturingvi.models.base import Model
from pyturingvi.optimize.loop import describe_divergence
from pyturingvi.optimize.natural_gradient import NaturalGradientState
from pyturingvi.optimize.natural_leg import Leg
from pyturingvi.optimize.natural_stepper import NaturalStepper
from pyturingvi.optimize.noise import AntitheticStream, GivenNoise
from pyturingvi.optimize.objective import elbo_of_log_weights
from pyturingvi.settings import Settings
from pyturingvi.support.array_namespace import Array, namespace_for, to_numpy
from pyturingvi.support.parallel import Workers

_SECONDS = 0.1  # between two looks at Ctrl-C and the progress bar


class NumpyNaturalStepper(NaturalStepper):
    """A run of the NumPy engine."""

    def __init__(self, model: Model, settings: Settings, noise: np.ndarray | None, workers: Workers) -> None:
        self.model, self.settings, self.workers = model, settings, workers
        self.xp, self.dtype = namespace_for(settings.device), np.dtype(settings.dtype)
        self.given = None if noise is None else GivenNoise(noise, self.dtype, self.xp)

    def begin(self, family: Family, vectors: dict[str, np.ndarray], count: int) -> None:
        n_heads = family.dense_columns(self.model.layout)
        base, seed, dim = family.base_distribution, self.settings.seed, self.model.dim
        mirrored = family.mirrors_locals(self.model.layout)
        self.stream = AntitheticStream(
            base, seed, dim, n_heads, self.dtype, self.xp, mirrored=mirrored, workers=self.workers
        )
        self.own: Any = family.bind(self.model.layout, self.dtype, self.xp)
        self.coordinates = self.own.natural_coordinates()
        self.state = NaturalGradientState(self.model, self.coordinates, self.workers)
        self.state.work = self._working(vectors["params"])
        if "velocity" in vectors:
            self.state.velocity = self._working(vectors["velocity"])
        self.best, self.start = (
            self._working(vectors[name]) if name in vectors else self.state.work for name in ("best", "mark")
        )
        self.state.count = count

    def advance(self, leg: Leg) -> tuple[np.ndarray, bool]:
        rows: list[tuple[float, ...]] = []
        self.unreported = rows
        stop = time.perf_counter() + _SECONDS
        while self.done < leg.last:
            if self.given is not None:
                noise = self.given.draw(self.done)
            else:
                noise = self.stream.draw(self.done, leg.n_samples // 2, leg.frames)
            rate = leg.rate_at(self.done)
            found = self.state.update(noise, self.given is None, rate, leg.momentum, leg.trust, leg.global_rate)
            if found is None:
                return self._report(rows), False
            self.done += 1
            rows.append((found.mean, found.variance, found.inner, found.square, found.shortened, found.global_square))
            if time.perf_counter() >= stop:
                break
        return self._report(rows), True

    def _report(self, rows: list[tuple[float, ...]]) -> np.ndarray:
        self.unreported = ()
        return np.array(rows).reshape(-1, 6)

    def mark(self) -> None:
        self.start = self.state.work  # an update makes a new vector

    def keep(self) -> None:
        self.best = self.start

    def recall(self) -> None:
        self.state.work = self.best
        self.state.velocity = self.xp.zeros_like(self.state.velocity)
        self.state.count = 0

    def elbo(self, n_samples: int, interrupted: Callable[[], bool]) -> tuple[float, float]:
        bound, work = self.coordinates.bound, self.state.work
        return elbo_of_log_weights(
            self.model, bound, work, self.workers, n_samples, self.settings.seed, self.done, interrupted
        )

    def params(self) -> np.ndarray:
        return np.asarray(self.own.flat_on_host(self.coordinates.leave(self.state.work)))

    def standardized(self) -> np.ndarray:
        return self._flat(self.state.work)

    def snapshot(self) -> tuple[dict[str, np.ndarray], int]:
        state = self.state
        vectors = {"params": state.work, "velocity": state.velocity, "mark": self.start, "best": self.best}
        return {name: self._flat(vector) for name, vector in vectors.items()}, self.state.count

    def divergence(self) -> str:
        if self.state.slopes is None:
            return "the log density or the scale is not finite"
        return describe_divergence(to_numpy(self.state.slopes), self.model)

    def _working(self, flat: np.ndarray) -> Array:
        return self.coordinates.bound.from_flat(flat)

    def _flat(self, work: Array) -> np.ndarray:
        return np.asarray(self.coordinates.bound.flat_on_host(work))
