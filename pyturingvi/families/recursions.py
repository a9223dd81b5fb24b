"""First-order recursions over a series, `x_n = A_n x_{n-1} + e_n`, for many right-hand sides at a time.

The matrices are given transposed, `A_2', ..., A_N'` as an (N-1, d, d) array, and a right-hand side is a row (N d,). On
the CPU LAPACK solves the recursion as a unit triangular system of bandwidth 2d - 1, in O(N d^2) a row; on a GPU spans
are doubled instead, in log2(N) rounds of batched products.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from pyturingvi.support.array_namespace import Array


def run_forward(xp: ModuleType, transposed: Array, rows: Array) -> Array:
    """`x_n = A_n x_{n-1} + e_n` with x_0 = 0, for rows (M, N d), which may be overwritten."""
    n, d = len(transposed) + 1, transposed.shape[2]
    if n == 1 or not rows.size:
        return rows
    if xp is not np:
        return _doubled(xp, transposed.transpose(0, 2, 1), rows)
    # column (n, j) of the unit lower triangle holds -A_{n+1}[:, j] from 2d - (d + j) below... its diagonal on
    band = np.zeros((n, d, 2 * d), dtype=rows.dtype)
    for j in range(d):
        np.negative(transposed[:, j], out=band[:-1, j, d - j : 2 * d - j])
    return _solved(band, rows, b"L")


def run_backward(xp: ModuleType, transposed: Array, rows: Array) -> Array:
    """`x_n = A_{n+1}' x_{n+1} + e_n` with x_{N+1} = 0, for rows (M, N d), which may be overwritten."""
    n, d = len(transposed) + 1, transposed.shape[2]
    if n == 1 or not rows.size:
        return rows
    if xp is not np:
        return _doubled(xp, transposed[::-1], rows.reshape(len(rows), n, d)[:, ::-1].reshape(rows.shape), flip=True)
    band = np.zeros((n, d, 2 * d), dtype=rows.dtype)
    for j in range(d):
        np.negative(transposed[:, :, j], out=band[1:, j, d - 1 - j : 2 * d - 1 - j])
    return _solved(band, rows, b"U")


def covariances(xp: ModuleType, transposed: Array, scales: Array) -> Array:
    """`S_n = A_n S_{n-1} A_n' + C_n C_n'` with S_0 = 0, (N, d, d), for scales C_n of this shape."""
    found = scales @ scales.transpose(0, 2, 1)
    n, d = found.shape[:2]
    if n < 2:
        return found
    if d == 1:
        return run_forward(xp, transposed * transposed, found.reshape(1, n)).reshape(found.shape)
    if xp is not np:
        span, spans = 1, _spans(xp, transposed.transpose(0, 2, 1))
        while span < n:
            found[span:] += spans[span:] @ found[:-span] @ spans[span:].transpose(0, 2, 1)
            spans[span:] = spans[span:] @ spans[:-span]
            span *= 2
        return found
    product, change = np.empty((2, d, d), dtype=found.dtype)
    previous = found[0]
    for matrix, here in zip(transposed, found[1:], strict=True):
        np.matmul(previous, matrix, out=product)
        np.matmul(matrix.T, product, out=change)
        here += change
        previous = here
    return found


def _solved(band: np.ndarray, rows: np.ndarray, uplo: bytes) -> np.ndarray:
    """Solve with a unit triangular matrix whose column k has the band `band[k]`, (N, d, 2d)."""
    # rows in C order are columns in Fortran order: nothing is copied; of no rows at all, LAPACK's wrapper breaks memory
    columns, _ = _solver(rows.dtype)(band.reshape(-1, band.shape[2]).T, rows.T, uplo=uplo, diag=b"U", overwrite_b=1)
    return np.asarray(columns.T)


@cache
def _solver(dtype: np.dtype) -> Any:
    from scipy.linalg import get_lapack_funcs

    found: Any = get_lapack_funcs(("tbtrs",), dtype=dtype)
    return found[0]


def _spans(xp: ModuleType, matrices: Array) -> Array:
    """The matrices with a first one of zeros: a product that reaches back beyond the first local is 0."""
    return xp.concatenate([xp.zeros_like(matrices[:1]), matrices])


def _doubled(xp: ModuleType, matrices: Array, rows: Array, flip: bool = False) -> Array:
    """The recursion by doubling the span that each product of matrices covers."""
    m, n, d = len(rows), len(matrices) + 1, matrices.shape[2]
    spans, x, span = _spans(xp, matrices), rows.reshape(m, n, d).transpose(1, 2, 0).copy(), 1
    while span < n:
        x[span:] += spans[span:] @ x[:-span]
        spans[span:] = spans[span:] @ spans[:-span]
        span *= 2
    return xp.ascontiguousarray((x[::-1] if flip else x).transpose(2, 0, 1)).reshape(rows.shape)
