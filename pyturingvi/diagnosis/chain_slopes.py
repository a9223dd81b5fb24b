"""The log density of the globals with locals that form a chain integrated out to second order, from slopes alone.

With the slope b at a centre and the curvature `-P` around it (`chain_curvature`) the integral over the locals is
`log p + b' P^{-1} b / 2 - log det(P / 2 pi) / 2`, exact where they are Gaussian given the globals.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pyturingvi.diagnosis.chain_curvature import ChainCurvature, ChainFactor
from pyturingvi.diagnosis.from_slopes import CHUNK_BYTES
from pyturingvi.families.base import BoundFamily
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model

_FAR = 0.1  # nats to be gained by a move to the mode, beyond which the curvature is taken there anew
_MOST_MOVES, _FIRST_MOVES = 2, 6


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
        self._widths = self.parts.local_widths
        self._curvature = ChainCurvature(model)
        self._constant = np.linalg.slogdet(self.parts.scale)[1] + np.log(self._widths).sum()
        self._constant += 0.5 * self._widths.size * math.log(2 * math.pi)
        self.sides = source.choice([-1.0, 1.0], size=self._shape)
        self._other_sides = source.choice([-1.0, 1.0], size=self._shape)

    @property
    def cost(self) -> int:
        """Evaluations of the gradient for each of the globals' points, where the locals need no second look."""
        return self._curvature.cost

    def separate(self, noise: np.ndarray) -> bool:
        """Whether given the globals locals depend on their neighbours only, as far as a point, noise (d_z,), shows."""
        return self._curvature.separate(*self._middle(noise[None]), self._widths, self.sides, self._other_sides)

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
        at = self._curvature.expand(z, centre, self._widths, self.sides)
        found, gain, step = np.full(len(z), np.nan), np.full(len(z), np.nan), np.zeros_like(centre)
        for k, b in enumerate(at.slope):
            factor = ChainFactor.of(-at.own[k], -at.below[k])
            if factor is not None:
                x = factor.solve(b.ravel())
                gain[k] = 0.5 * (b.ravel() @ x)
                found[k] = at.values[k] + gain[k] - factor.half_log_det + self._constant
                step[k] = self._widths * x.reshape(self._shape)
        return found, gain, step
