"""The globals of a fitted location-scale distribution, and each local given them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pyturingvi.families.base import BoundFamily


@dataclass(frozen=True)
class GlobalsAndLocals:
    """`z = m_z + C_zz u`, and local n given z with mean `m_n + C_nz u` and covariance `L_n L_n'`.

    Attributes
    ----------
    mean : (d_z,) array
    scale : (d_z, d_z) array
        C_zz, lower triangular.
    local_mean : (N d_y,) array
    border : (d_z, N d_y) array
        C_yz transposed: `local_mean + u @ border` are the locals' means given u.
    local_scale : (N, d_y, d_y) array
        L_n, lower triangular; C_nn itself where local n rests on no other local's noise.
    """

    mean: np.ndarray
    scale: np.ndarray
    local_mean: np.ndarray
    border: np.ndarray
    local_scale: np.ndarray

    @classmethod
    def of(cls, bound: BoundFamily, flat: np.ndarray) -> GlobalsAndLocals:
        """From the flat parameters of a family with a lower triangular scale matrix.

        Raises
        ------
        InputError
            If the family has no scale matrix.
        """
        location, (head, covariance) = bound.location(flat), bound.local_parts(flat)
        d_z = bound.layout.n_global
        return cls(
            location[:d_z],
            np.asarray(head[:d_z]),
            location[d_z:],
            np.ascontiguousarray(head[d_z:].T),
            np.linalg.cholesky(covariance) if len(covariance) else covariance,
        )

    @property
    def local_widths(self) -> np.ndarray:
        """Standard deviations (N, d_y) of the locals given the globals."""
        return np.asarray(np.linalg.norm(self.local_scale, axis=2))

    def local_means(self, z: np.ndarray) -> np.ndarray:
        """Means (m, N, d_y) of the locals given the globals z (m, d_z)."""
        noise = np.linalg.solve(self.scale, (z - self.mean).T).T
        return np.asarray((self.local_mean + noise @ self.border).reshape(len(z), *self.local_scale.shape[:2]))

    def structured_flat(self) -> np.ndarray:
        """Flat parameters (p,) of the structured family's member with this location and scale."""
        d_z, d_y = len(self.mean), self.local_scale.shape[1]
        heads = [np.concatenate([self.scale[j:, j], self.border[j]]) for j in range(d_z)]
        rows, columns = np.nonzero(np.tri(d_y, dtype=bool).T)[::-1]  # of a block, column by column
        blocks = self.local_scale[:, rows, columns].ravel()
        return np.concatenate([self.mean, self.local_mean, *heads, blocks])

    def markov_flat(self, lagged: np.ndarray) -> np.ndarray:
        """Flat parameters (p,) of the Markov family's member with this location and scale.

        Parameters
        ----------
        lagged : (N - 1, d_y, d_y) array
            Covariance of each local (rows) with the one before it, given the globals.
        """
        covariance = self.local_scale @ np.swapaxes(self.local_scale, 1, 2)
        chain = np.swapaxes(np.linalg.solve(covariance[:-1], np.swapaxes(lagged, 1, 2)), 1, 2)  # A_n
        covariance[1:] -= chain @ np.swapaxes(lagged, 1, 2)
        of_shocks = replace(self, local_scale=np.linalg.cholesky(covariance))
        return np.concatenate([of_shocks.structured_flat(), np.swapaxes(chain, 1, 2).ravel()])
