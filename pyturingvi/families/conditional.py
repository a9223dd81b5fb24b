"""The globals of a fitted location-scale distribution, and each local given them."""

from __future__ import annotations

from dataclasses import dataclass

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

    def structured_flat(self) -> np.ndarray:
        """Flat parameters (p,) of the structured family's member with this location and scale."""
        d_z, d_y = len(self.mean), self.local_scale.shape[1]
        heads = [np.concatenate([self.scale[j:, j], self.border[j]]) for j in range(d_z)]
        rows, columns = np.nonzero(np.tri(d_y, dtype=bool).T)[::-1]  # of a block, column by column
        blocks = self.local_scale[:, rows, columns].ravel()
        return np.concatenate([self.mean, self.local_mean, *heads, blocks])
