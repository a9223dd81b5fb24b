"""The log density of the globals with every local integrated out to second order, from slopes alone.

Slopes of the log density tell the locals apart where these are independent given the globals: all of them move at once,
and the slope of each knows no other. Two points a variable of a local, on opposite sides of its fitted mean, give the
slope b and curvature A that `log p - log q` has in the local's own noise, and with them its integral
`(b' (I - A)^{-1} b - log det(I - A)) / 2`, exact where the local is Gaussian given the globals. It needs no log terms
and costs `2 d_y` evaluations of the gradient, where quadrature takes some ten to a hundred.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyturingvi.families.base import BoundFamily
from pyturingvi.models.base import Model

CHUNK_BYTES = 1 << 20  # what the model computes on should stay in cache
FLATTEST = 1 / 16  # curvature that a local has at least, in units of the fit's
SEPARATE = 0.05  # change of the curvatures when the others move otherwise, beyond which locals depend on each other


class SlopeIntegrals:
    """Integrals over the locals of a model around a fit with natural coordinates.

    Parameters
    ----------
    model : Model
    bound : BoundFamily
        Its noise has one entry a variable, those of the globals first.
    flat : (p,) array
    source : Generator
        Draws the sides on which the locals lie first, the same for all globals.
    """

    def __init__(self, model: Model, bound: BoundFamily, flat: np.ndarray, source: np.random.Generator) -> None:
        layout = model.layout
        self.model, self.coordinates = model, bound.natural_coordinates()
        self.bound: Any = self.coordinates.bound
        self.work = self.coordinates.enter(bound.from_flat(flat))
        self._shape = layout.n_local, layout.local_dim
        self.sides = source.choice([-1.0, 1.0], size=self._shape)
        self._other_sides = source.choice([-1.0, 1.0], size=self._shape)

    @property
    def cost(self) -> int:
        """Evaluations of the gradient for each of the globals' points."""
        return max(1, 2 * self.model.layout.local_dim * bool(self.model.layout.n_local))

    def separate(self, noise: np.ndarray) -> bool:
        """Whether the locals are independent given the globals, as far as one point of these, noise (d_z,), shows."""
        if not self.model.layout.n_local:
            return True
        first, second = (self._expand(noise[None], sides)[2] for sides in (self.sides, self._other_sides))
        change = float(((first - second) ** 2).sum())
        return change <= SEPARATE**2

    def log_ratio(self, noise: np.ndarray) -> np.ndarray:
        """`log p(z, x) - log q(z)` (n,) where the globals' noise is (n, d_z)."""
        rows = max(1, CHUNK_BYTES // (8 * self.model.dim))
        return np.concatenate([self._chunk(noise[first : first + rows]) for first in range(0, len(noise), rows)])

    def _chunk(self, noise: np.ndarray) -> np.ndarray:
        if not self.model.layout.n_local:
            return self._at(noise)[0]
        middle, slope, curvature = self._expand(noise, self.sides)
        if self._shape[1] == 1:
            values, along = curvature[..., 0], slope
        else:
            values, vectors = np.linalg.eigh(curvature)
            along = np.einsum("mnij,mni->mnj", vectors, slope)
        rest = np.maximum(1 - values, FLATTEST)
        return np.asarray(middle + 0.5 * (along * along / rest - np.log(rest) - values).sum(axis=(1, 2)))

    def _expand(self, noise: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean over the locals of `log p - log q` (m,), its slopes (m, N, d_y) and curvatures (m, N, d_y, d_y)."""
        (n, d_y), m, d_z = self._shape, len(noise), noise.shape[1]
        middle, slope = np.zeros(m), np.zeros((m, n, d_y))
        curvature = np.empty((m, n, d_y, d_y))
        away = np.sqrt(d_y)  # where points on the axes have the second moments of the noise
        for j in range(d_y):
            u = np.zeros((2, m, n, d_y))
            u[0, ..., j], u[1, ..., j] = away * sides[:, j], -away * sides[:, j]
            globals_ = np.broadcast_to(noise, (2, m, d_z))
            values, slopes = self._at(np.concatenate([globals_, u.reshape(2, m, -1)], axis=2).reshape(2 * m, -1))
            here, there = slopes[:, d_z:].reshape(2, m, n, d_y)
            middle += values.reshape(2, m).sum(axis=0) / (2 * d_y)
            slope += (here + there) / (2 * d_y)
            curvature[..., j] = (here - there) * (sides[:, None, j] / (2 * away))
        return middle, slope, 0.5 * (curvature + np.swapaxes(curvature, 2, 3))

    def _at(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`log p - log q` (m,) at noise u (m, d), and its slopes in u."""
        bound, points = self.bound, np.empty_like(u)
        bound.transform(self.work, u, points)
        density, slopes = self.model._log_density_and_gradient(points)
        values = np.asarray(density, dtype=np.float64) - bound._log_q_of_noise(self.work, u)
        of_noise = self.coordinates.noise_slopes(self.work, u, np.array(slopes, dtype=np.float64))
        return values + bound._log_abs_det(self.work), of_noise
