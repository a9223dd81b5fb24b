"""Targets whose smoothness and stationary points are known: sums of quadratics (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import cholesky, eigh, solve

from pyturingvi.errors import InputError
from pyturingvi.families import Family, get_location_scale
from pyturingvi.layout import Layout
from pyturingvi.models import IsotropicGaussian, LogDensity
from pyturingvi.support.arguments import listed, real_array
from pyturingvi.theory.dimension import checked_layout, global_and_own, read_terms


@dataclass(frozen=True, eq=False)
class Components:
    """What the bounds need to know of the terms of `l = -log p = sum_n l_n`.

    Parameters
    ----------
    layout : Layout
    coordinates : sequence of N int arrays
        Coordinates that each l_n uses, sorted (`coordinates_used`).
    smoothness : (N,) array
        L_n: the gradient of l_n is L_n-Lipschitz.
    stationary : sequence of N arrays
        A point zbar_n with zero gradient of l_n, on its coordinates alone.

    Raises
    ------
    InputError
        If the lengths differ, a smoothness is not a finite number of at least 0, or a point is not finite.
    """

    layout: Layout
    coordinates: Sequence[Any]
    smoothness: Any
    stationary: Sequence[Any]

    def __post_init__(self) -> None:
        coordinates = read_terms("coordinates", self.coordinates, checked_layout(self.layout))
        smoothness = real_array("smoothness", self.smoothness)
        if smoothness.shape != (len(coordinates),) or not (np.isfinite(smoothness) & (smoothness >= 0)).all():
            raise InputError(f"smoothness must be {len(coordinates)} finite numbers of at least 0, one a term.")
        given = listed("stationary", self.stationary, "points, one a term")
        stationary = [real_array(f"stationary: term {n}", point) for n, point in enumerate(given)]
        if [point.shape for point in stationary] != [rows.shape for rows in coordinates]:
            raise InputError("stationary must hold one point a term, as long as the term's coordinates.")
        if not all(np.isfinite(point).all() for point in stationary):
            raise InputError("stationary: the points must be finite.")
        object.__setattr__(self, "coordinates", coordinates)
        object.__setattr__(self, "smoothness", smoothness)
        object.__setattr__(self, "stationary", stationary)

    @property
    def n_terms(self) -> int:
        """N."""
        return len(self.coordinates)


@dataclass(frozen=True, eq=False)
class QuadraticTarget:
    """A Gaussian posterior as a sum: `l(x) = sum_n (x_n - zbar_n)' H_n (x_n - zbar_n) / 2` up to a constant.

    Here x_n are the coordinates that l_n uses. L_n is the largest eigenvalue of H_n and zbar_n is stationary, so
    every quantity in the paper's bounds is known.

    Parameters
    ----------
    layout : Layout
    coordinates : sequence of N int arrays
        Different coordinates of each term, rising.
    hessians : sequence of N symmetric matrices
        H_n, without a negative eigenvalue; their sum over all coordinates must be positive definite.
    stationary : sequence of N arrays
        zbar_n.

    Raises
    ------
    InputError
        If a shape does not fit, or a matrix is not symmetric or has a negative eigenvalue, or the sum is singular.
    """

    layout: Layout
    coordinates: Sequence[Any]
    hessians: Sequence[Any]
    stationary: Sequence[Any]

    def __post_init__(self) -> None:
        coordinates = read_terms("coordinates", self.coordinates, checked_layout(self.layout))
        for n, (rows, rising) in enumerate(zip(self.coordinates, coordinates, strict=True)):
            if not np.array_equal(rows, rising):
                raise InputError(f"coordinates: term {n} must list its coordinates in rising order.")
        matrices = listed("hessians", self.hessians, "matrices, one a term")
        hessians = [real_array(f"hessians: term {n}", h) for n, h in enumerate(matrices)]
        if [h.shape for h in hessians] != [(len(rows), len(rows)) for rows in coordinates]:
            raise InputError("hessians must hold one square matrix a term, as large as the term's coordinates.")
        for n, h in enumerate(hessians):
            if not np.isfinite(h).all() or not np.allclose(h, h.T, rtol=1e-12, atol=0):
                raise InputError(f"hessians: the matrix of term {n} is not finite and symmetric.")
        object.__setattr__(self, "hessians", hessians)
        if np.any(self._extremes[:, 0] < -1e-12 * abs(self._extremes[:, 1])):
            n = int(np.argmin(self._extremes[:, 0]))
            raise InputError(f"hessians: the matrix of term {n} has the eigenvalue {self._extremes[n, 0]:g}.")
        object.__setattr__(self, "coordinates", coordinates)
        object.__setattr__(self, "stationary", self.components.stationary)
        if not self.strong_convexity > 0:
            raise InputError("hessians: their sum is singular, so the posterior is not a distribution.")

    # ---- constants of the theory --------------------------------------------------------------------------
    @cached_property
    def _extremes(self) -> np.ndarray:
        """Smallest and largest eigenvalue of each H_n, (N, 2)."""
        return np.array([eigh(h, eigvals_only=True)[[0, -1]] for h in self.hessians])

    @cached_property
    def components(self) -> Components:
        """Coordinates, L_n and zbar_n."""
        return Components(self.layout, self.coordinates, self._extremes[:, 1], self.stationary)

    @cached_property
    def precision(self) -> np.ndarray:
        """Hessian of l, (d, d)."""
        total = np.zeros((self.layout.dim, self.layout.dim))
        for rows, h in zip(self.coordinates, self.hessians, strict=True):
            total[np.ix_(rows, rows)] += h
        return total

    @cached_property
    def mean(self) -> np.ndarray:
        """The posterior's mean (d,), where the gradient of l is zero."""
        pull = np.zeros(self.layout.dim)
        for rows, h, point in zip(self.coordinates, self.hessians, self.stationary, strict=True):
            pull[rows] += h @ point
        return np.asarray(solve(self.precision, pull, assume_a="pos"))

    @cached_property
    def _range(self) -> np.ndarray:
        return np.asarray(eigh(self.precision, eigvals_only=True)[[0, -1]])

    @property
    def strong_convexity(self) -> float:
        """mu: smallest eigenvalue of the Hessian of l."""
        return float(self._range[0])

    @property
    def smoothness(self) -> float:
        """L: largest eigenvalue of the Hessian of l."""
        return float(self._range[1])

    # ---- for fitting --------------------------------------------------------------------------------------
    @property
    def model(self) -> LogDensity:
        """The normalized posterior as a model."""
        precision, mean = self.precision, self.mean
        constant = np.log(np.diagonal(cholesky(precision))).sum() - 0.5 * len(mean) * np.log(2 * np.pi)

        def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            with np.errstate(over="ignore", invalid="ignore"):
                centred = points - mean
                slope = -centred @ precision
                return 0.5 * (centred * slope).sum(axis=1) + constant, slope

        return LogDensity(density, self.layout)

    def optimum(self, family: str | Family) -> np.ndarray:
        """Flat parameters lambda* of the family's best fit, the same for every base distribution.

        Returns
        -------
        (p,) array
        """
        return get_location_scale(family).bind(self.layout).nearest_gaussian(self.mean, self.precision)


def isotropic_target(model: IsotropicGaussian) -> QuadraticTarget:
    """The synthetic target in N terms `l_n = -log N(y_n; mean, variance) - log N(z; mean, variance) / N`.

    Every L_n is 1/variance (from y_n; z's share is N times flatter), and every zbar_n is the mean (paper,
    section 4.1, with z counted once as in the released experiment).

    Returns
    -------
    QuadraticTarget
    """
    if not isinstance(model, IsotropicGaussian):
        raise InputError(f"isotropic_target: takes a tv.models.IsotropicGaussian, got {type(model).__name__}.")
    layout, terms = model.layout, global_and_own(model.layout)
    curvature = np.full(len(terms[0]), 1.0 / model.variance)
    curvature[: layout.n_global] /= len(terms)
    hessian, point = np.diag(curvature), np.full(len(terms[0]), model.mean)
    return QuadraticTarget(layout, terms, [hessian] * len(terms), [point] * len(terms))
