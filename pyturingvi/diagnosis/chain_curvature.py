"""Slopes and curvature of the log density in locals that form a chain, all of them at a few evaluations.

Where a local depends on its neighbours only, as in a time series, every third one moves at once: the slope of each
knows of one move only, its own or a neighbour's. Two points a variable, on opposite sides of the centre, give the block
tridiagonal curvature `-P` of `log p` given the globals. P has a banded Cholesky factor, so that all is linear in the
number of locals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyturingvi.diagnosis.from_slopes import FLATTEST, SEPARATE
from pyturingvi.models.base import Model

COLOURS = 3  # one apart more than neighbours are: no local has two that move beside it
_ROUNDING = 1e-6  # of curvatures, where widths are far from what they should be
_STEEPEST = 64.0  # what is added to curvatures that bend the wrong way at most, in units of the widths'


@dataclass(frozen=True)
class Expansion:
    """The log density around locals at m points of the globals, all in units of the widths.

    Attributes
    ----------
    values : (m,) array
        `log p` at the centre.
    slope, mean_slope : (m, N, d_y) array
        At the centre, and averaged over a distribution as wide as the widths around it, to second order.
    own : (m, N, d_y, d_y) array
        Second derivatives: of each local with itself.
    below : (m, N - 1, d_y, d_y) array
        Of local n + 1 (rows) and local n (columns).
    """

    values: np.ndarray
    slope: np.ndarray
    mean_slope: np.ndarray
    own: np.ndarray
    below: np.ndarray


class ChainCurvature:
    """Expansions of one model's log density in its locals.

    Parameters
    ----------
    model : Model
    reach : float
        How many widths a variable is moved; with the square root of 3 its own curvature and mean slope are those of
        Gauss-Hermite quadrature with three nodes.

    Widths are standard deviations of the variables given the globals, (N, d_y), or of each row's own, (m, N, d_y).
    """

    def __init__(self, model: Model, reach: float = 1.0) -> None:
        self.model, self.reach = model, reach

    @property
    def cost(self) -> int:
        """Evaluations of the gradient for an expansion."""
        return 1 + 2 * COLOURS * self.model.layout.local_dim

    def at(self, z: np.ndarray, locals_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`log p` (m,), and its slopes in the locals (m, N, d_y)."""
        density, slopes = self.model._log_density_and_gradient(np.hstack([z, locals_.reshape(len(z), -1)]))
        of_locals = np.asarray(slopes, dtype=np.float64)[:, z.shape[1] :].reshape(locals_.shape)
        return np.asarray(density, dtype=np.float64), of_locals

    def expand(self, z: np.ndarray, centre: np.ndarray, widths: np.ndarray, sides: np.ndarray) -> Expansion:
        """Around the locals `centre` (m, N, d_y); `sides` (N, d_y) of +-1 say where each is moved first."""
        (m, n, d_y), reach = centre.shape, self.reach
        widths = np.broadcast_to(widths, centre.shape)
        values, slope = self.at(z, centre)
        slope *= widths
        mean_slope = slope.copy()
        diagonal, below = np.empty((m, n, d_y, d_y)), np.zeros((m, n - 1, d_y, d_y))
        both = np.concatenate([z, z])
        for colour in range(min(COLOURS, n)):
            own = slice(colour, None, COLOURS)
            first = colour or COLOURS  # the first of them that has one before it
            for j in range(d_y):
                move = np.zeros(centre.shape)
                move[:, own, j] = reach * sides[own, j] * widths[:, own, j]
                slopes = self.at(both, np.concatenate([centre + move, centre - move]))[1].reshape(2, m, n, d_y)
                slopes *= widths
                mean_slope += (slopes[0] + slopes[1] - 2 * slope) / (2 * reach**2)
                change = (slopes[0] - slopes[1]) / (2 * reach)
                diagonal[:, own, :, j] = change[:, own] * sides[own, j, None]
                # each neighbour's slope tells of the one that moved: a pair is seen from either side
                after, before = change[:, colour + 1 :: COLOURS], change[:, first - 1 : n - 1 : COLOURS]
                below[:, colour::COLOURS, :, j] += 0.5 * after * sides[colour : n - 1 : COLOURS, j, None]
                below[:, first - 1 :: COLOURS, j] += 0.5 * before * sides[first::COLOURS, j, None]
        return Expansion(values, slope, mean_slope, 0.5 * (diagonal + np.swapaxes(diagonal, 2, 3)), below)

    def separate(
        self, z: np.ndarray, centre: np.ndarray, widths: np.ndarray, sides: np.ndarray, others: np.ndarray
    ) -> bool:
        """Whether locals depend on their neighbours only, as far as one point of the globals z (1, d_z) shows.

        The columns of the curvature must be the same when the others that move with a local are on other sides.
        """
        first, second = (self.expand(z, centre, widths, one) for one in (sides, others))
        change = ((first.own - second.own) ** 2).sum() + ((first.below - second.below) ** 2).sum()
        size = (first.own**2).sum() + (first.below**2).sum()
        return bool(change <= SEPARATE**2 + _ROUNDING**2 * size)


@dataclass(frozen=True)
class ChainFactor:
    """The Cholesky factor L of a block tridiagonal P, its diagonals as rows (2 d_y, N d_y)."""

    rows: np.ndarray

    @classmethod
    def of(cls, diagonal: np.ndarray, below: np.ndarray) -> ChainFactor | None:
        """Of P with these blocks (N, d_y, d_y) and (N - 1, d_y, d_y); None where it is far from positive definite.

        Where it bends the wrong way a multiple of the widths' own precisions is added, as little as helps.
        """
        from scipy.linalg import cholesky_banded

        (n, d), more = diagonal.shape[:2], 0.0
        band = np.zeros((n, d, 2 * d))
        for j in range(d):
            band[:, j, : d - j] = diagonal[:, j:, j]
            band[:-1, j, d - j : 2 * d - j] = below[:, :, j]
        if not np.isfinite(band).all():
            return None
        columns = band.reshape(n * d, 2 * d).T
        while more <= _STEEPEST:
            try:
                return cls(cholesky_banded(columns, lower=True, check_finite=False))
            except np.linalg.LinAlgError:
                added = max(FLATTEST, 2 * more)
                band[:, :, 0] += added - more
                more = added
        return None

    @property
    def half_log_det(self) -> float:
        """`log det(P) / 2`."""
        return float(np.log(self.rows[0]).sum())

    def solve(self, b: np.ndarray) -> np.ndarray:
        """`P^{-1} b` for b (N d_y,)."""
        from scipy.linalg import cho_solve_banded

        return np.asarray(cho_solve_banded((self.rows, True), b, check_finite=False))

    def spread(self, noise: np.ndarray) -> np.ndarray:
        """`L^{-T} noise` for noise (N d_y, k): with covariance `P^{-1}` where the noise is standard."""
        from scipy.linalg.lapack import dtbtrs

        return np.asarray(dtbtrs(self.rows, noise, uplo="L", trans="T")[0])
