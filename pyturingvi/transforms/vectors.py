"""Values whose entries bind each other: simplexes, ordered vectors, Cholesky factors of correlation matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pyturingvi.support.arguments import whole_number
from pyturingvi.support.array_namespace import Array, namespace_of
from pyturingvi.transforms.base import Pullback, Transform
from pyturingvi.transforms.maps import (
    lkj_cholesky,
    lkj_cholesky_inverse,
    lkj_cholesky_pullback,
    log_cosh,
    n_partial_correlations,
)

_TOLERANCE = 1e-4  # float32 draws have sums and rows that are a little off 1


@dataclass(frozen=True)
class _Sized(Transform):
    """What a transform of vectors or matrices has besides: the size of one."""

    size: int
    shape: Any = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", whole_number(f"{self.name}: size", self.size, 2))

    @property
    def event_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.size,)


@dataclass(frozen=True)
class Simplex(_Sized):
    """Positive numbers that sum to 1: softmax of K numbers that sum to 0, in an orthonormal basis of those.

    The isometric log-ratio of Egozcue et al. (2003, Mathematical Geology 35), which treats all parts alike, unlike
    stick-breaking: v = 0 has all parts equal. The log-Jacobian is that of the first K - 1 parts, with respect to
    which Dirichlet densities are: `sum log x + log(K)/2`.

    Parameters
    ----------
    size : int
        K, at least 2.
    shape : int or tuple of int
        How many simplexes; () is one.
    """

    support = "positive, with a sum of 1"

    @property
    def n_free(self) -> int:  # type: ignore[override]
        return self.size - 1

    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        xp, basis = namespace_of(v), _contrasts(namespace_of(v), self.size, v.dtype.name)
        logs = v @ basis
        logs = logs - logs.max(axis=-1, keepdims=True)
        logs = logs - xp.log(xp.exp(logs).sum(axis=-1, keepdims=True))
        x = xp.exp(logs)

        def pull(gradient: Array, weight: float) -> Array:
            slope = x * (gradient - (gradient * x).sum(axis=-1, keepdims=True)) - (weight * self.size) * x
            return slope @ basis.T  # rows of the basis sum to 0, so that the log-Jacobian's slope 1 - K x is - K x here

        return x, logs.sum(axis=-1) + 0.5 * math.log(self.size), pull

    def _inverse(self, x: Array) -> Array:
        xp = namespace_of(x)
        near = xp.abs(x.sum(axis=-1, keepdims=True) - 1.0) < _TOLERANCE
        return xp.where(near, xp.log(x) @ _contrasts(xp, self.size, x.dtype.name).T, xp.nan)

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        return [f"log-ratio {label}" for label in scalars[1:]]


@dataclass(frozen=True)
class Ordered(_Sized):
    """Vectors in ascending order: x_1 = v_1, x_k = x_{k-1} + exp(v_k).

    Parameters
    ----------
    size : int
        K, at least 2.
    shape : int or tuple of int
        How many vectors; () is one.
    """

    support = "in ascending order, no two equal"

    @property
    def n_free(self) -> int:  # type: ignore[override]
        return self.size

    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        xp = namespace_of(v)
        steps = xp.exp(v)
        first_and_steps = steps.copy()
        first_and_steps[..., 0] = v[..., 0]
        steps[..., 0] = 1.0

        def pull(gradient: Array, weight: float) -> Array:
            found = steps * gradient[..., ::-1].cumsum(axis=-1)[..., ::-1]
            found[..., 1:] += weight
            return found

        return first_and_steps.cumsum(axis=-1), v[..., 1:].sum(axis=-1), pull

    def _inverse(self, x: Array) -> Array:
        xp = namespace_of(x)
        return xp.concatenate([x[..., :1], xp.log(xp.diff(x, axis=-1))], axis=-1)

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        return [str(scalars[0]), *(f"log gap {label}" for label in scalars[1:])]


@dataclass(frozen=True)
class CholeskyCorrelation(_Sized):
    """Lower Cholesky factors L of D x D correlation matrices L L', from canonical partial correlations tanh(v).

    Lewandowski, Kurowicka and Joe (2009), as in Stan. The log-Jacobian is that of the entries below the diagonal,
    with respect to which the LKJ(eta) density of the factor is: `sum_{i=2}^D (D - i + 2 (eta - 1)) log L_ii - c` with
    c = `lkj_log_normalizer(D, eta)`.

    Parameters
    ----------
    size : int
        D, at least 2.
    shape : int or tuple of int
        How many matrices; () is one.
    """

    support = "lower triangular, with rows of length 1 and a positive diagonal"

    @property
    def event_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.size, self.size)

    @property
    def n_free(self) -> int:  # type: ignore[override]
        return n_partial_correlations(self.size)

    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        xp, size = namespace_of(v), self.size
        flat = v.reshape(-1, self.n_free)
        factor, remainder = lkj_cholesky(flat, size)
        # dL_ij/dv_ij = sech^2(v_ij) prod_{k<j} sech(v_ik), and no entry depends on later ones of its row
        rows, columns = np.tril_indices(size, -1)
        weights = xp.asarray(1.0 + rows - columns, dtype=v.dtype)
        log_jacobian = -(log_cosh(flat) @ weights)

        def pull(gradient: Array, weight: float) -> Array:
            found = lkj_cholesky_pullback(flat, gradient.reshape(-1, size, size), factor, remainder)
            return (found - weight * weights * xp.tanh(flat)).reshape(v.shape)

        return factor.reshape(*v.shape[:-1], size, size), log_jacobian.reshape(v.shape[:-1]), pull

    def _inverse(self, x: Array) -> Array:
        xp, size = namespace_of(x), self.size
        factor = x.reshape(-1, size, size)
        inside = xp.abs((factor**2).sum(axis=2) - 1.0).max(axis=1) < _TOLERANCE
        inside &= (xp.triu(factor, 1) == 0).all(axis=(1, 2)) & (xp.einsum("mii->mi", factor) > 0).all(axis=1)
        v = xp.where(inside[:, None], lkj_cholesky_inverse(factor), xp.nan)
        return v.reshape(*x.shape[:-2], self.n_free)

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        return [f"atanh partial correlation {label}" for label in scalars[np.tril_indices(self.size, -1)]]


@lru_cache(maxsize=64)
def _contrasts(xp: Any, size: int, dtype: str) -> Array:
    """An orthonormal basis (K - 1, K) of the vectors that sum to 0: row k sets part k + 1 against those before it."""
    from scipy.linalg import helmert

    return xp.asarray(-helmert(size), dtype=dtype)
