"""The scale matrix of a Markov family as an operator: its products in O(N), the matrix itself on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator


class MarkovScale(LinearOperator):
    """C (d, d): `C @ x` and `C.T @ x` without the matrix, and `C.toarray()`.

    Parameters
    ----------
    bound : BoundMarkov
        In float64 on the CPU.
    work : (p,) array
        Parameters in working order, of which the locations are not used.
    """

    def __init__(self, bound: Any, work: np.ndarray) -> None:
        d = bound.layout.dim
        super().__init__(np.dtype(np.float64), (d, d))  # type: ignore[call-arg]
        self._bound, self._work = bound, work.copy()
        self._work[:d] = 0.0

    def toarray(self) -> np.ndarray:
        """The dense matrix, of d^2 numbers."""
        return np.asarray(self @ np.eye(self.shape[0]))

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        noise = np.ascontiguousarray(x.T, dtype=np.float64)
        points = np.empty_like(noise)
        self._bound.transform(self._work, noise, points)
        return points.T

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        slopes = np.array(x.T, dtype=np.float64, order="C")
        return np.asarray(self._bound.natural_coordinates().whiten(self._work, slopes).T)
