"""The bundled models' own maps, as functions: the interval (-1, 1), and Cholesky factors of correlation matrices.

Value, inverse, log-Jacobian and gradient of each. Every function takes NumPy or CuPy arrays and keeps their dtype.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import ModuleType

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.array_namespace import Array, namespace_of

LOG_2 = math.log(2.0)


def log_cosh(v: Array) -> Array:
    """log(cosh(v)) elementwise, exact to rounding also where cosh itself would overflow."""
    xp = namespace_of(v)
    size = xp.abs(v)
    return size + xp.log1p(xp.exp(-2.0 * size)) - LOG_2


def sech_squared(v: Array) -> Array:
    """1/cosh(v)^2 = 1 - tanh(v)^2 elementwise, without the cancellation of the right-hand form."""
    xp = namespace_of(v)
    decay = xp.exp(-2.0 * xp.abs(v))
    return 4.0 * decay / (1.0 + decay) ** 2


# ---- the interval (-1, 1) ---------------------------------------------------------------------------------
def interval(v: Array) -> Array:
    """x = tanh(v/2) in (-1, 1)."""
    return namespace_of(v).tanh(0.5 * v)


def interval_inverse(x: Array) -> Array:
    """v = 2 atanh(x)."""
    return 2.0 * namespace_of(x).arctanh(x)


def interval_log_jacobian(v: Array) -> Array:
    """log(dx/dv) = -log 2 - 2 log cosh(v/2), elementwise; its gradient is -tanh(v/2)."""
    return -LOG_2 - 2.0 * log_cosh(0.5 * v)


def interval_pullback(v: Array, grad_x: Array) -> Array:
    """Gradient with respect to v of a function whose gradient with respect to x is `grad_x`."""
    return grad_x * (0.5 * sech_squared(0.5 * v))


# ---- Cholesky factors of correlation matrices -------------------------------------------------------------
def n_partial_correlations(size: int) -> int:
    """Length D(D-1)/2 of the unconstrained vector of a D x D correlation matrix."""
    return size * (size - 1) // 2


@lru_cache(maxsize=64)
def _places(xp: ModuleType, size: int) -> tuple[Array, Array]:
    """Places of the strictly lower entries, row by row, and of the diagonal, in a flattened D x D matrix."""
    rows, columns = np.tril_indices(size, -1)
    return xp.asarray(rows * size + columns), xp.asarray(np.arange(size) * (size + 1))


def lkj_cholesky(v: Array, size: int) -> tuple[Array, Array]:
    """Lower Cholesky factor of a correlation matrix, from canonical partial correlations tanh(v).

    Parameters
    ----------
    v : (M, D(D-1)/2) array
        Row by row: (2,1), (3,1), (3,2), (4,1), ...
    size : int
        D, at least 1.

    Returns
    -------
    factor : (M, D, D) array
        Lower triangular with rows of length 1 and a positive diagonal.
    remainder : (M, D, D) array
        `remainder[:, i, j]` is what columns before j leave of row i's length: for `lkj_cholesky_pullback`.

    Raises
    ------
    InputError
        If v does not have D(D-1)/2 columns.
    """
    xp = namespace_of(v)
    if v.ndim != 2 or v.shape[1] != n_partial_correlations(size):
        raise InputError(
            f"lkj_cholesky: v must have shape (M, {n_partial_correlations(size)}) for a matrix of size "
            f"{size}, got {v.shape}."
        )
    n_points = v.shape[0]
    lower, diagonal = _places(xp, size)
    partial = xp.zeros((n_points, size * size), dtype=v.dtype)
    partial[:, lower] = xp.tanh(v)
    partial[:, diagonal] = 1.0
    # log sqrt(1 - tanh(v)^2), shifted by one column so that the running sum leaves out its own column
    log_left = xp.zeros((n_points, size * size), dtype=v.dtype)
    log_left[:, lower + 1] = -log_cosh(v)
    remainder = log_left.reshape(n_points, size, size).cumsum(axis=2)
    xp.exp(remainder, out=remainder)
    return partial.reshape(n_points, size, size) * remainder, remainder


def lkj_cholesky_inverse(factor: Array) -> Array:
    """Unconstrained (M, D(D-1)/2) vector of a Cholesky factor (M, D, D): the inverse of `lkj_cholesky`."""
    xp = namespace_of(factor)
    n_points, size = factor.shape[0], factor.shape[2]
    v = xp.zeros_like(factor)
    # sinh(v_ij) = L_ij / (length of row i behind column j): exact also where tanh(v) rounds to 1
    behind = xp.zeros((n_points, size), dtype=factor.dtype)
    for column in range(size - 1, -1, -1):
        below = slice(column + 1, size)
        v[:, below, column] = xp.arcsinh(factor[:, below, column] / behind[:, below])
        behind = xp.hypot(behind, factor[:, :, column])
    return v.reshape(n_points, size * size)[:, _places(xp, size)[0]]


def lkj_cholesky_pullback(v: Array, grad_factor: Array, factor: Array, remainder: Array) -> Array:
    """Gradient with respect to v of a function of the Cholesky factor.

    Parameters
    ----------
    v : (M, D(D-1)/2) array
    grad_factor : (M, D, D) array
        Gradient with respect to the factor; entries above the diagonal are not used.
    factor, remainder : (M, D, D) arrays
        What `lkj_cholesky(v, D)` gave.

    Returns
    -------
    (M, D(D-1)/2) array
    """
    xp = namespace_of(v)
    n_points, size = factor.shape[0], factor.shape[2]
    lower = _places(xp, size)[0]
    flat = (n_points, size * size)
    through_length = (grad_factor * factor)[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
    # v_ij changes its own entry, and through the remainder all entries of row i behind column j
    behind = through_length.reshape(flat)[:, lower + 1]
    own = (grad_factor * remainder).reshape(flat)[:, lower]
    return own * sech_squared(v) - behind * xp.tanh(v)


def lkj_log_normalizer(size: int, eta: float = 1.0) -> float:
    """Log normalizing constant c of the LKJ density on Cholesky factors.

    The density of the factor's strictly lower entries is `prod_{i>=2} L_ii^(D-i+2(eta-1)) / exp(c)`. In
    canonical partial correlations r it is a product of `(1 - r_ij^2)^((D-1-j)/2 + eta - 1)`, so c is a sum of
    log Beta functions, D-j of them for column j.
    """
    if size < 1 or not eta > 0:
        raise InputError(f"lkj_log_normalizer: size must be >= 1 and eta > 0, got {size} and {eta}.")
    total = 0.0
    for column in range(1, size):
        power = 0.5 * (size - 1 - column) + eta
        log_beta = math.lgamma(0.5) + math.lgamma(power) - math.lgamma(power + 0.5)
        total += (size - column) * log_beta
    return total


def lkj_partial_weights(size: int, eta: float = 1.0) -> np.ndarray:
    """Weights w (D(D-1)/2,) with which LKJ(eta) on v, log-Jacobian included, is `-sum w log cosh(v) - c`."""
    columns = np.tril_indices(size, -1)[1] + 1
    return np.asarray(size - columns - 1 + 2.0 * eta)
