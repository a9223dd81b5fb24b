"""Small targets with a known posterior, fits of them, and what the families look like as dense matrices."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import pyturingvi as tv
from pyturingvi.families import Family, Structured
from pyturingvi.layout import Layout


# ---- a hierarchical normal model with known variances ------------------------------------------------------
@dataclass(frozen=True)
class GaussianTarget:
    """A normal density with this mean and precision, as a LogDensity."""

    mean: np.ndarray
    precision: np.ndarray
    layout: Layout

    @property
    def covariance(self) -> np.ndarray:
        return np.linalg.inv(self.precision)

    def log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        centred = points - self.mean
        slope = -centred @ self.precision
        constant = 0.5 * np.linalg.slogdet(self.precision)[1] - 0.5 * len(self.mean) * np.log(2 * np.pi)
        return 0.5 * (centred * slope).sum(axis=1) + constant, slope

    @property
    def model(self) -> tv.models.LogDensity:
        return tv.models.LogDensity(self.log_density_and_gradient, self.layout)


def hierarchical_normal(n_global: int = 2, n_local: int = 3, local_dim: int = 2) -> GaussianTarget:
    """Posterior of z ~ N(0, I), y_n ~ N(B_n z, R_n), x_n ~ N(y_n, I/2) given some x: normal, in closed form.

    Given z the y_n are independent, so the precision is bordered block-diagonal (an arrow).
    """
    rng = np.random.default_rng(11)
    layout = Layout(n_global, n_local, local_dim)
    precision = np.zeros((layout.dim, layout.dim))
    linear = np.zeros(layout.dim)
    precision[:n_global, :n_global] += np.eye(n_global)
    for n in range(n_local):
        block = layout.block_slice(n)
        b = rng.normal(size=(local_dim, n_global))
        root = rng.normal(scale=0.4, size=(local_dim, local_dim))
        r_inverse = np.linalg.inv(np.eye(local_dim) + root @ root.T)
        precision[:n_global, :n_global] += b.T @ r_inverse @ b
        precision[block, :n_global] -= r_inverse @ b
        precision[:n_global, block] -= b.T @ r_inverse
        precision[block, block] += r_inverse + 2.0 * np.eye(local_dim)
        linear[block] += 2.0 * rng.normal(1.0, 2.0, size=local_dim)
    return GaussianTarget(np.linalg.solve(precision, linear), precision, layout)


def exact_noise(n_iterations: int, dim: int) -> np.ndarray:
    """2d points with mean 0 and second moment I: a quadratic energy's gradient is then exact, not estimated."""
    points = np.sqrt(dim) * np.vstack([np.eye(dim), -np.eye(dim)])
    return np.broadcast_to(points, (n_iterations, 2 * dim, dim))


# ---- fits --------------------------------------------------------------------------------------------------
STILL = tv.SGD(1e-300)  # one update with it leaves the start as it is
TRACE = ["iteration", "elbo", "std_error"]


def quick_fit(model: tv.models.Model, *arguments: Any, **settings: Any) -> tv.Fit:
    """A fit by Adam, unless a rule is given; with optimizer=None by what `tv.fit` takes by itself."""
    if len(arguments) < 2:
        settings = {"optimizer": tv.Adam(1e-3), **settings}
    return tv.fit(model, *arguments, **{"progress": False, "elbo_samples": 64, **settings})


def fit_at(model: tv.models.Model, family: Any, init: Any) -> tv.Fit:
    """A Fit with these flat parameters, or those of another fit."""
    return quick_fit(model, family, STILL, n_iterations=1, init=init)


def assert_same_run(found: tv.Fit, expected: tv.Fit) -> None:
    np.testing.assert_array_equal(found.params, expected.params)
    np.testing.assert_array_equal(found.elbo[TRACE], expected.elbo[TRACE])
    assert (found.status, found.n_updates) == (expected.status, expected.n_updates)


def peak_memory(run: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy held for it at once."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Counting:
    """A normal log density with variances 1 that counts its calls, those of its construction apart."""

    def __init__(self, layout: Layout = Layout(2, 3, 1), mean: float = 0.0) -> None:  # noqa: B008
        self.calls, self.mean = 0, mean
        self.model = tv.models.LogDensity(self, layout)
        self.calls = 0

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.calls += 1
        centred = points - self.mean
        return -0.5 * (centred**2).sum(axis=1), -centred


# ---- families as dense matrices, from their definitions ----------------------------------------------------
def dense_mask(name: str, layout: Layout) -> np.ndarray:
    """Where C of the named family may be nonzero, entry by entry."""
    d, d_z, d_y = layout.dim, layout.n_global, layout.local_dim
    i, j = np.indices((d, d))
    same_block = (j >= d_z) & ((i - d_z) // max(d_y, 1) == (j - d_z) // max(d_y, 1))
    return (j <= i) & {"mean-field": i == j, "structured": (j < d_z) | same_block, "full-rank": True}[name]


def dense_parameters(family: Family, layout: Layout, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """m and the raw matrix of a flat vector: its nonzeros run down the columns, one column after the other."""
    d = layout.dim
    matrix = np.zeros((d, d))
    matrix.T[dense_mask(family.name, layout).T] = flat[d:]
    return flat[:d].copy(), matrix


def dense_location_scale(family: Family, layout: Layout, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Location and scale of the distribution: for the non-standardized form, of `y = m + A z + C_nn u`."""
    location, matrix = dense_parameters(family, layout, flat)
    if isinstance(family, Structured) and not family.standardized:
        d_z = layout.n_global
        a = matrix[d_z:, :d_z].copy()
        location[d_z:] += a @ location[:d_z]
        matrix[d_z:, :d_z] = a @ matrix[:d_z, :d_z]
    return location, matrix


def random_flat(family: Family, layout: Layout, seed: int = 0) -> np.ndarray:
    """Flat parameters with |C_ii| in [0.5, 1.5], of either sign."""
    rng = np.random.default_rng(seed)
    d = layout.dim
    flat = rng.normal(size=family.n_params(layout))
    mask = dense_mask(family.name, layout)
    matrix = np.zeros((d, d))
    matrix.T[mask.T] = 0.5 * flat[d:]
    np.fill_diagonal(matrix, rng.choice([-1.0, 1.0], d) * rng.uniform(0.5, 1.5, d))
    flat[d:] = matrix.T[mask.T]
    return flat
