"""The log density of the globals with locals that form a chain integrated out to second order, from slopes alone.

Where a local depends on its neighbours only, as in a time series, every third one moves at once: the slope of each
knows of one move only, its own or a neighbour's. Two points a variable, on opposite sides of the centre, give the block
tridiagonal curvature `-P` of `log p` given the globals; with the slope b at the centre the integral over the locals is
`log p + b' P^{-1} b / 2 - log det(P / 2 pi) / 2`, exact where they are Gaussian given the globals. P has a banded
Cholesky factor, so that all is linear in the number of locals.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pyturingvi.diagnosis.from_slopes import CHUNK_BYTES, FLATTEST, SEPARATE
from pyturingvi.families.base import BoundFamily
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model

_COLOURS = 3  # one apart more than neighbours are: no local has two that move beside it
_FAR = 0.1  # nats to be gained by a move to the mode, beyond which the curvature is taken there anew
_MOST_MOVES, _FIRST_MOVES = 2, 6
_STEEPEST = 64.0  # what is added to curvatures that bend the wrong way at most, in units of the fit's


class ChainIntegrals:
    """Integrals over the chained locals of a model around a fit.

    Parameters
    ----------
    model : Model
    bound : BoundFamily
        With `local_parts`; it need not have chained locals itself.
    flat : (p,) array
    source : Generator
        Draws the sides on which the locals lie first, the same for all globals.

    Raises
    ------
    InputError
        If the family has no scale matrix.
    """

    def __init__(self, model: Model, bound: BoundFamily, flat: np.ndarray, source: np.random.Generator) -> None:
        layout = model.layout
        self.model, self.base = model, bound.base
        self.parts = GlobalsAndLocals.of(bound, flat)
        self._shape = layout.n_local, layout.local_dim
        self._widths = np.linalg.norm(self.parts.local_scale, axis=2)  # (N, d_y), of each variable given the globals
        self._constant = np.linalg.slogdet(self.parts.scale)[1] + np.log(self._widths).sum()
        self._constant += 0.5 * self._widths.size * math.log(2 * math.pi)
        self.sides = source.choice([-1.0, 1.0], size=self._shape)
        self._other_sides = source.choice([-1.0, 1.0], size=self._shape)

    @property
    def cost(self) -> int:
        """Evaluations of the gradient for each of the globals' points, where the locals need no second look."""
        return 1 + 2 * _COLOURS * self._shape[1]

    def separate(self, noise: np.ndarray) -> bool:
        """Whether locals depend on their neighbours only, given the globals, as far as one point, noise (d_z,), shows.

        The columns of the curvature must be the same when the others that move with a local are on other sides.
        """
        z, centre = self._middle(noise[None])
        first, second = (self._curvature(z, centre, sides) for sides in (self.sides, self._other_sides))
        change = sum(float(((one - other) ** 2).sum()) for one, other in zip(first, second, strict=True))
        return change <= SEPARATE**2

    def log_ratio(self, noise: np.ndarray) -> np.ndarray:
        """`log p(z, x) - log q(z)` (n,) where the globals' noise is (n, d_z)."""
        rows = max(1, CHUNK_BYTES // (8 * self.model.dim))
        chunks = [self._chunk(noise[first : first + rows]) for first in range(0, len(noise), rows)]
        return np.asarray(np.concatenate(chunks) - self.base.log_density(noise).sum(axis=1))

    def _chunk(self, noise: np.ndarray) -> np.ndarray:
        z, centre = self._middle(noise)
        centre += self._offset
        found, gain, step = self._expand(z, centre)
        for _ in range(_MOST_MOVES):
            far = np.flatnonzero(gain > _FAR)
            if not len(far):
                break
            values, gains, steps = self._expand(z[far], centre[far] + step[far])
            nearer = gains < gain[far]  # a step that led astray is not gone
            centre[far] += step[far]
            gain[far] = -np.inf
            far = far[nearer]
            found[far], gain[far], step[far] = values[nearer], gains[nearer], steps[nearer]
        return found

    def _middle(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The globals (m, d_z) and the fit's means of the locals given these (m, N, d_y)."""
        parts = self.parts
        centre = (parts.local_mean + noise @ parts.border).reshape(len(noise), *self._shape)
        return parts.mean + noise @ parts.scale.T, centre

    @cached_property
    def _offset(self) -> np.ndarray:
        """From the fit's mean to the mode of the locals, at the mean of the globals: elsewhere it is much the same."""
        z, start = self._middle(np.zeros((1, self.parts.scale.shape[1])))
        centre, least = start.copy(), np.inf
        for _ in range(_FIRST_MOVES):
            _, gain, step = self._expand(z, centre)
            if not gain[0] < least:
                return np.zeros(self._shape)
            centre, least = centre + step, gain[0]
            if least < 0.1 * _FAR:
                break
        return np.asarray((centre - start)[0])

    def _expand(self, z: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Integrals without log q (m,), what of each comes from the mode's distance (m,), and the way there."""
        values, slope = self._at(z, centre)
        diagonal, below = self._curvature(z, centre, self.sides)
        found, gain, step = np.full(len(z), np.nan), np.full(len(z), np.nan), np.zeros_like(centre)
        for k, b in enumerate(slope):
            solved = _solve(-diagonal[k], -below[k], b.ravel())
            if solved is not None:
                x, half_log_det = solved
                gain[k] = 0.5 * (b.ravel() @ x)
                found[k] = values[k] + gain[k] - half_log_det + self._constant
                step[k] = self._widths * x.reshape(self._shape)
        return found, gain, step

    def _curvature(self, z: np.ndarray, centre: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Second derivatives of `log p` in units of the widths.

        Returns
        -------
        diagonal : (m, N, d_y, d_y) array
        below : (m, N - 1, d_y, d_y) array
            Of local n + 1 (rows) and local n (columns).
        """
        (n, d_y), m = self._shape, len(z)
        diagonal, below = np.empty((m, n, d_y, d_y)), np.zeros((m, n - 1, d_y, d_y))
        both = np.concatenate([z, z])
        for colour in range(min(_COLOURS, n)):
            own = slice(colour, None, _COLOURS)
            first = colour or _COLOURS  # the first of them that has one before it
            for j in range(d_y):
                move = np.zeros(self._shape)
                move[own, j] = sides[own, j] * self._widths[own, j]
                slopes = self._at(both, np.concatenate([centre + move, centre - move]))[1].reshape(2, m, n, d_y)
                change = 0.5 * (slopes[0] - slopes[1])
                diagonal[:, own, :, j] = change[:, own] * sides[own, j, None]
                # each neighbour's slope tells of the one that moved: a pair is seen from either side
                after, before = change[:, colour + 1 :: _COLOURS], change[:, first - 1 : n - 1 : _COLOURS]
                below[:, colour::_COLOURS, :, j] += 0.5 * after * sides[colour : n - 1 : _COLOURS, j, None]
                below[:, first - 1 :: _COLOURS, j] += 0.5 * before * sides[first::_COLOURS, j, None]
        return 0.5 * (diagonal + np.swapaxes(diagonal, 2, 3)), below

    def _at(self, z: np.ndarray, locals_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`log p` (m,), and its slopes in the locals, in units of the widths, (m, N, d_y)."""
        density, slopes = self.model._log_density_and_gradient(np.hstack([z, locals_.reshape(len(z), -1)]))
        of_locals = np.asarray(slopes, dtype=np.float64)[:, z.shape[1] :].reshape(locals_.shape)
        return np.asarray(density, dtype=np.float64), of_locals * self._widths


def _solve(diagonal: np.ndarray, below: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float] | None:
    """`P^{-1} b` and `log det(P) / 2` of a block tridiagonal P; None where it is far from positive definite.

    Where it bends the wrong way a multiple of the fit's own precisions is added, as little as helps.
    """
    from scipy.linalg import cho_solve_banded, cholesky_banded

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
            factor = cholesky_banded(columns, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            added = max(FLATTEST, 2 * more)
            band[:, :, 0] += added - more
            more = added
            continue
        solved = cho_solve_banded((factor, True), b, check_finite=False)
        return solved, float(np.log(factor[0]).sum())
    return None
