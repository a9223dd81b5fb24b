"""Natural-gradient steps of the Markov family.

The globals and borders step as in the structured family. A step of local n is `K_nn` towards its own noise and `L_n`
towards its predecessor: `C_nn <- C_nn E(K_nn)` and `A_n <- A_n + C_nn L_n R_{n-1}^{-1}`, where `R_n R_n' = S_n` is the
covariance of r_n. Since u_n and `v_{n-1} = R_{n-1}^{-1} r_{n-1}` are independent with variance 1, the Fisher matrix is
constant here too, though the scale matrices are no group: 1 for L as for all entries below the diagonal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyturingvi.families.natural import StructuredCoordinates
from pyturingvi.families.recursions import covariances
from pyturingvi.families.structured import Structured
from pyturingvi.support.array_namespace import Array


class MarkovCoordinates(StructuredCoordinates):
    """The globals are one block, and each local with its rows of the border and of L is one."""

    def __init__(self, bound: Any) -> None:
        super().__init__(bound, bound)
        self._plain = Structured(bound.family.base).bind(bound.layout, bound.dtype, bound.xp)

    def direction(self, work: Array, noise: Array, whitened: Array, out: Array) -> None:
        """Write the sums over the rows of h and of `h u'`; in the places of L, those of `h_n r_{n-1}'` transposed."""
        d_z, p = self.bound.layout.n_global, self._plain.n_params
        self.bound.pull_chain(work, noise[:, d_z:], whitened[:, d_z:], out)
        self._plain.pullback(work[:p], noise, None, whitened, out[:p])

    def normalize(self, work: Array, direction: Array) -> None:
        super().normalize(work, direction)
        if self.bound.layout.n_local > 1:
            chain = self.bound.chain(direction)
            chain[...] = self.bound.xp.linalg.solve(self._roots(work), chain)

    def retract(self, work: Array, step: Array) -> None:
        bound = self.bound
        if bound.layout.n_local > 1:
            blocks = bound._dense_blocks(work)[1:]
            solved = bound.xp.linalg.solve(self._roots(work).transpose(0, 2, 1), bound.chain(step))
            change = solved @ blocks.transpose(0, 2, 1)
        super().retract(work, step)
        if bound.layout.n_local > 1:
            bound.chain(work)[...] += change

    def _roots(self, work: Array) -> Array:
        """`R_1, ..., R_{N-1}`, lower triangular; NaN where a covariance is singular to rounding."""
        bound = self.bound
        found = covariances(bound.xp, bound.chain(work)[:-1], bound._dense_blocks(work)[:-1])
        if bound.layout.local_dim == 1:
            return bound.xp.sqrt(found)
        try:
            return bound.xp.linalg.cholesky(found)
        except np.linalg.LinAlgError:
            return bound.xp.full_like(found, np.nan)

    def _chain_of(self, step: Array) -> Array:
        return self.bound.chain(step)
