"""Families `T(u) = C u + m` with a sparsity pattern for a lower triangular C (paper, section 2.2)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families.base import BoundFamily, Family
from pyturingvi.families.base_distributions import BaseDistribution, BaseSpec, Gaussian, base_distribution
from pyturingvi.layout import Layout
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.registry import describe

if TYPE_CHECKING:
    from scipy.sparse import csc_array


@dataclass(frozen=True)
class LocationScale(Family):
    """A location-scale family; its flat parameters are `[m; nonzeros of C in CSC order]`.

    Parameters
    ----------
    base : "gaussian", "laplace", ("student_t", nu) or BaseDistribution
        Distribution of the coordinates of u, scaled to variance 1. nu must be above 4.
    """

    base: BaseSpec | BaseDistribution = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", base_distribution(self.base))

    @property
    def base_distribution(self) -> BaseDistribution:
        return base_distribution(self.base)

    @property
    def scale_is_parameter(self) -> bool:
        """Whether the flat parameters are location and entries of the scale matrix, and no others."""
        return True

    @abstractmethod
    def column_lengths(self, layout: Layout) -> np.ndarray:
        """Nonzeros in each column of C, (d,). In every column they run on from the diagonal without a gap."""

    @abstractmethod
    def bind(self, layout: Layout, dtype: Any = np.float64, xp: ModuleType = np) -> BoundLocationScale: ...

    def n_params(self, layout: Layout) -> int:
        return layout.dim + int(self.column_lengths(layout).sum())

    def _gaussian_stage(self) -> list[Family]:
        """The Gaussian one before another base: the best fit to a Gaussian posterior is the same for every base."""
        return [] if type(self.base_distribution) is Gaussian else [type(self)()]

    def column_starts(self, layout: Layout) -> np.ndarray:
        """CSC column pointers of C, (d+1,)."""
        return np.concatenate([[0], np.cumsum(self.column_lengths(layout), dtype=np.int64)])

    def pattern(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """CSC pattern of C: column pointers (d+1,) and row indices (nnz,), sorted in each column."""
        starts = self.column_starts(layout)
        columns = np.repeat(np.arange(layout.dim), np.diff(starts))
        return starts, np.arange(starts[-1]) - starts[columns] + columns

    def count_columns(self, layout: Layout, terms: Iterable[np.ndarray]) -> np.ndarray:
        """How many columns of C are not zero in the rows of each term, which are sorted (paper, section 3.2): (N,)."""
        ends = np.arange(layout.dim) + self.column_lengths(layout)

        def count(rows: np.ndarray) -> int:
            # a column meets the rows if it reaches the first of them at or below its diagonal; every row its own
            before = np.concatenate([[-1], rows[:-1]])
            gaps = np.flatnonzero(rows - before > 1)
            return len(rows) + sum(int(np.count_nonzero(ends[before[k] + 1 : rows[k]] > rows[k])) for k in gaps)

        return np.array([count(rows) for rows in terms])

    def config(self) -> dict[str, Any]:
        base = self.base_distribution
        written = {f"base_{key}": path for key, path in base.registry.tag(base).items()}
        return {**super().config(), **describe({"base": base.spec}), **written}

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> Family:
        others = {key: value for key, value in options.items() if key not in ("base", "base_class")}
        return cls(base=base_distribution(options.get("base", "gaussian"), options.get("base_class")), **others)


class BoundLocationScale(BoundFamily):
    """A location-scale family at work.

    Attributes
    ----------
    diagonal : slice or int array
        Where the d entries `C_ii` stand in the working vector, in the order of the coordinates.
    """

    family: LocationScale
    diagonal: slice | Array

    def __init__(self, family: LocationScale, layout: Layout, dtype: Any, xp: ModuleType) -> None:
        super().__init__(family, layout, dtype, xp)
        self.family = family

    # ---- entropy and density ------------------------------------------------------------------------------
    def _log_abs_det(self, work: Array) -> float:
        """`sum_i log|C_ii|` in O(d)."""
        with np.errstate(divide="ignore"):
            return float(self.xp.log(abs(work[self.diagonal])).sum(dtype=np.float64))

    def entropy(self, work: Array) -> float:
        """`d H(base) + sum_i log|C_ii|`, in nats."""
        return self.layout.dim * self.base.entropy + self._log_abs_det(work)

    def subtract_entropy_gradient(self, work: Array, out: Array) -> bool:
        inverse = 1.0 / work[self.diagonal]
        if not math.isfinite(float(inverse @ inverse)):
            return False
        out[self.diagonal] -= inverse
        return True

    @abstractmethod
    def standardize(self, work: Array, points: Array) -> Array:
        """The noise u that `transform` would send to `points`: `C^{-1}(x - m)`."""

    def log_q(self, work: Array, points: Array) -> Array:
        return self._log_q_of_noise(work, self.standardize(work, points)) - self._log_abs_det(work)

    def _log_q_of_noise(self, work: Array, noise: Array) -> Array:
        """Log density (M,) at the points of `noise` (M, d), without the constant `-sum_i log|C_ii|`."""
        return self.base.log_density(noise).sum(axis=1, dtype=np.float64)

    def prox_entropy(self, work: Array, stepsize: float) -> None:
        """`C_ii <- C_ii + (sqrt(C_ii^2 + 4 gamma) - C_ii)/2`, which keeps the diagonal positive."""
        # the two roots of v^2 - c v - gamma have product -gamma: neither sign of c cancels, and none overflows
        xp, c = self.xp, work[self.diagonal]
        larger = 0.5 * (abs(c) + xp.hypot(c, 2 * math.sqrt(stepsize)))
        work[self.diagonal] = xp.where(c > 0, larger, stepsize / larger)

    def project_scale(self, work: Array, min_scale: float) -> None:
        """`C_ii <- max(C_ii, min_scale)`."""
        work[self.diagonal] = self.xp.maximum(work[self.diagonal], min_scale)

    # ---- parameters ---------------------------------------------------------------------------------------
    def initial_flat(self, location: np.ndarray, scale: Any) -> np.ndarray:
        from scipy.sparse import diags_array

        diagonal = np.broadcast_to(np.asarray(scale, dtype=np.float64), (self.layout.dim,))
        return self.flat_from_location_scale(location, diags_array(diagonal))

    def embed(self, other: BoundFamily, flat: np.ndarray) -> np.ndarray:
        if type(other.family) is type(self.family) and other.family.config() == self.family.config():
            return flat.copy()
        from scipy.sparse import issparse

        try:
            scale: Any = other.scale(flat)
        except InputError as error:
            raise self._cannot_go_on(str(error)) from None
        if not issparse(scale):  # an operator: its matrix is dense below the diagonal
            if self.family.dense_columns(self.layout) < self.layout.dim:
                raise self._smaller()
            scale = scale.toarray()
        return self.flat_from_location_scale(other.location(flat), scale)

    def _smaller(self) -> InputError:
        return InputError(
            f"init: the given fit's scale has entries that the {self.family.name} family does not have; "
            "go on with the same family or a larger one."
        )

    def check_flat(self, flat: np.ndarray) -> None:
        if np.any(self.from_flat(flat)[self.diagonal] == 0):
            raise InputError("init: a diagonal entry of the scale matrix is 0; the entropy is then infinite.")

    def flat_from_location_scale(self, location: np.ndarray, scale: Any) -> np.ndarray:
        """Flat parameters of the member with this location and scale.

        Raises
        ------
        InputError
            If `scale` has a nonzero outside the family's pattern.
        """
        from scipy.sparse import coo_array

        d = self.layout.dim
        entries = coo_array(scale)
        kept = entries.data != 0
        rows, columns, values = entries.row[kept], entries.col[kept], entries.data[kept]
        below = rows - columns
        if np.any((below < 0) | (below >= self.family.column_lengths(self.layout)[columns])):
            raise self._smaller()
        flat = np.zeros(self.n_params)
        flat[:d] = location
        flat[d + self.family.column_starts(self.layout)[columns] + below] = values
        return flat

    def nearest_gaussian(self, mean: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """Flat parameters of the best fit to a Gaussian, the same for every base distribution.

        The energy is `sum_j c_j' P c_j / 2` over the columns c_j of C, so the columns part: the minimum of
        `c' P c / 2 - log c_jj` over a column's pattern S is at `P_SS^{-1} e_j / sqrt((P_SS^{-1})_jj)`.
        """
        from scipy.linalg import cholesky, solve, solve_triangular

        d = self.layout.dim
        ends = np.arange(d) + self.family.column_lengths(self.layout)
        # P = K'K with K = C^{-1} lower triangular: the Cholesky factor of P with its coordinates in reverse order
        inverse = cholesky(precision[::-1, ::-1], lower=False)[::-1, ::-1]
        scale = solve_triangular(inverse, np.eye(d), lower=True)
        for j in np.flatnonzero(ends < d):
            s = slice(j, ends[j])
            column = solve(precision[s, s], np.eye(1, ends[j] - j)[0], assume_a="pos")
            scale[:, j] = 0.0
            scale[s, j] = column / np.sqrt(column[0])
        return self.flat_from_location_scale(mean, scale)

    # ---- what a fit tells of it ---------------------------------------------------------------------------
    def location(self, flat: np.ndarray) -> np.ndarray:
        return flat[: self.layout.dim].copy()

    def scale_nonzeros(self, flat: np.ndarray) -> np.ndarray:
        """Nonzeros of the implied scale matrix in CSC order."""
        return flat[self.layout.dim :]

    def scale(self, flat: np.ndarray) -> csc_array:
        from scipy.sparse import csc_array

        indptr, indices = self.family.pattern(self.layout)
        d = self.layout.dim
        return csc_array((self.scale_nonzeros(flat).copy(), indices, indptr), shape=(d, d))

    def draw_globals(self, flat: np.ndarray, generator: np.random.Generator, n: int) -> np.ndarray:
        """Draws (n, d_z): C is lower triangular, so z depends on its own noise alone."""
        d_z = self.layout.n_global
        noise = np.empty((n, d_z))
        self.base.fill(generator, noise)
        # in a non-standardized form too, z's own location and scale are the raw ones
        return np.asarray(noise @ self._global_scale(flat).T + flat[:d_z])

    def _global_scale(self, flat: np.ndarray) -> np.ndarray:
        """The block C_zz (d_z, d_z), without building the rest of C."""
        d, d_z = self.layout.dim, self.layout.n_global
        starts = d + self.family.column_starts(self.layout)
        block = np.zeros((d_z, d_z))
        for j in range(d_z):
            n = min(starts[j + 1] - starts[j], d_z - j)
            block[j : j + n, j] = flat[starts[j] : starts[j] + n]
        return block
