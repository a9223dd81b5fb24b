"""The log density of the globals with every local integrated out, however that is done: by chunks of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

_CHUNK_BYTES = 2 << 20  # what is computed on should stay in cache

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


class IntegratedDensity(ABC):
    """Integrals over the locals of a model, as a function of the globals.

    Attributes
    ----------
    size : int
        Nodes along each variable of a local, or number of draws.
    row_bytes : int
        Bytes that are worked on for a row of globals.
    map : callable
        Goes through the chunks of rows: Python's, or that of `Workers`.
    tolerance : float
        Nats: spread over z of what twice the size may change, which is what weights and steps feel.
    far : float
        Nats: such a change far out, with twice the size, makes or hides a tail.
    low : float
        Nats below the highest density, beyond which that is not looked for.
    cheap : float
        How many rows are had in the time of one integrated by quadrature, as a rule.
    most : int
        Nodes of an integral, beyond which no more are tried.
    """

    size: int
    row_bytes: int
    map: Map = staticmethod(map)
    tolerance: float = 0.05
    far: float = 0.3
    low: float = 12.0
    cheap: float = 1.0
    most: int = 1 << 12

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Log density (n,) of the globals z (n, d_z)."""
        return np.concatenate(list(self.map(self._values, self.chunks(z))))

    def log_density_and_gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log density (n,) and its gradient (n, d_z)."""
        found = list(self.map(self._with_gradient, self.chunks(z)))
        return np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found])

    def chunks(self, z: np.ndarray) -> list[np.ndarray]:
        """Rows of z as many at a time as suit the cache."""
        return [z[first : first + self.rows] for first in range(0, len(z), self.rows)]

    @property
    def rows(self) -> int:
        """How many these are."""
        return max(1, _CHUNK_BYTES // self.row_bytes)

    @abstractmethod
    def count(self, size: int) -> int:
        """Nodes of an integral with so many along each variable, or so many draws."""

    def doubt(self, z: np.ndarray) -> float:
        """Nats: spread over z (n, d_z) of what the way of integrating leaves out, whatever the size."""
        return 0.0

    @abstractmethod
    def moments(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (m, N, d_y) and covariance (m, N, d_y, d_y) of each local given the globals (m, d_z) and the data."""

    @abstractmethod
    def draw(self, z: np.ndarray, source: np.random.Generator) -> np.ndarray:
        """Draws (m, N d_y) of the locals given the data, one for each row of globals (m, d_z)."""

    @abstractmethod
    def _values(self, z: np.ndarray) -> np.ndarray:
        """Log density of a chunk."""

    @abstractmethod
    def _with_gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log density and gradient of a chunk."""


class GridIntegrals(IntegratedDensity):
    """Integrals over locals of one variable on a grid that they share.

    Parameters
    ----------
    own : object
        Of the model's own `_on_grid`.
    """

    def __init__(self, own: Any) -> None:
        self.own, self.size, self.row_bytes = own, own.size, own.row_bytes

    def count(self, size: int) -> int:
        return size

    def moments(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.own.moments(z)
        return mean[..., None], variance[..., None, None]

    def draw(self, z: np.ndarray, source: np.random.Generator) -> np.ndarray:
        return np.asarray(self.own.draw(z, source))

    def _values(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(self.own.evaluate(z, gradient=False)[0])

    def _with_gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradient = self.own.evaluate(z, gradient=True)
        return values, gradient
