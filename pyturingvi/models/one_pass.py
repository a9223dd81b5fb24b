"""What the bundled models share that compute a log density and its gradient together."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from pyturingvi.models.base import Model
from pyturingvi.support.array_namespace import Array, namespace_of


class OnePassModel(Model):
    """A bundled model whose log density and gradient share one evaluation."""

    thread_safe: ClassVar[bool] = True

    def _log_density(self, points: Array) -> Array:
        density = namespace_of(points).empty(points.shape[0], dtype=np.float64)
        self._evaluate(points, density, None)
        return density

    def _gradient(self, points: Array, out: Array) -> None:
        self._evaluate(points, None, out)

    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        xp = namespace_of(points)
        density, gradient = xp.empty(points.shape[0], dtype=np.float64), xp.empty_like(points)
        self._evaluate(points, density, gradient)
        return density, gradient

    @abstractmethod
    def _evaluate(self, points: Array, density: Array | None, gradient: Array | None) -> None:
        """Fill `density` (M,) and `gradient` (M, d), each unless it is None."""
