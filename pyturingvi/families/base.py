"""What a variational family is to an engine: a location, a scale pattern, and the exact pullback through them.

A family is a frozen description; `bind` fixes layout, dtype and array module and gives the operations. They act on
a *working vector* that holds the same numbers as the flat parameter vector `[m; nonzeros of C in CSC order]` in an
order that suits dense products; `to_flat` and `from_flat` convert. Optimizers are elementwise, so they never see
the difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families.base_distributions import BaseDistribution, BaseSpec, base_distribution
from pyturingvi.layout import Layout
from pyturingvi.support.array_namespace import Array, to_numpy

if TYPE_CHECKING:
    from scipy.sparse import csc_array


@dataclass(frozen=True)
class Family(ABC):
    """A location-scale family `T(u) = C u + m` with a sparsity pattern for C.

    Parameters
    ----------
    base : "gaussian", "laplace" or ("student_t", nu)
        Distribution of the coordinates of u, scaled to variance 1. nu must be above 4.
    """

    base: BaseSpec | BaseDistribution = "gaussian"
    name: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", base_distribution(self.base))

    @property
    def base_distribution(self) -> BaseDistribution:
        """The parsed `base`."""
        return base_distribution(self.base)

    @abstractmethod
    def n_params(self, layout: Layout) -> int:
        """Number of parameters p, location included (paper, table 1)."""

    @abstractmethod
    def column_lengths(self, layout: Layout) -> np.ndarray:
        """Nonzeros in each column of C, (d,). In every column they run on from the diagonal without a gap."""

    def column_starts(self, layout: Layout) -> np.ndarray:
        """CSC column pointers of C, (d+1,)."""
        return np.concatenate([[0], np.cumsum(self.column_lengths(layout), dtype=np.int64)])

    def pattern(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """CSC pattern of C: column pointers (d+1,) and row indices (nnz,), sorted in each column."""
        starts = self.column_starts(layout)
        columns = np.repeat(np.arange(layout.dim), np.diff(starts))
        return starts, np.arange(starts[-1]) - starts[columns] + columns

    @abstractmethod
    def bind(self, layout: Layout, dtype: Any = np.float64, xp: ModuleType = np) -> BoundFamily:
        """The family's operations for one layout, precision and array module."""

    def config(self) -> dict[str, Any]:
        """JSON-able description; `family_from_config` reads it."""
        spec = self.base_distribution.spec
        return {"family": self.name, "base": list(spec) if isinstance(spec, tuple) else spec}


class BoundFamily(ABC):
    """A family fixed to a layout, a dtype and an array module.

    Attributes
    ----------
    diagonal : slice or int array
        Where the d entries `C_ii` stand in the working vector, in the order of the coordinates.
    """

    diagonal: slice | Array

    def __init__(self, family: Family, layout: Layout, dtype: Any, xp: ModuleType) -> None:
        self.family = family
        self.layout = layout
        self.dtype = np.dtype(dtype)
        self.xp = xp
        self.base = family.base_distribution
        self.n_params = family.n_params(layout)

    # ---- points and gradients -----------------------------------------------------------------------------
    @abstractmethod
    def transform(self, work: Array, noise: Array, out: Array) -> None:
        """Write `C u + m` for each row of `noise` (M, d) into `out` (M, d)."""

    @abstractmethod
    def pullback(self, work: Array, noise: Array, points: Array, gradient: Array, out: Array) -> None:
        """Write the parameter gradient into `out` (p,), summed over the M rows.

        Parameters
        ----------
        gradient : (M, d) array
            Derivative of the objective at each of `points`, already divided by M where a mean is wanted.
            May be overwritten.
        """

    @abstractmethod
    def standardize(self, work: Array, points: Array) -> Array:
        """The noise u that `transform` would send to `points`: `C^{-1}(x - m)`."""

    # ---- parameters ---------------------------------------------------------------------------------------
    def to_flat(self, work: Array) -> Array:
        """Copy a working vector into the order `[m; nonzeros of C in CSC order]`."""
        return work.copy()

    def from_flat(self, flat: Array) -> Array:
        """Copy a flat vector into working order."""
        return self.xp.array(flat, dtype=self.dtype)

    def flat_on_host(self, work: Array) -> np.ndarray:
        """Flat float64 parameters in host memory, from a working vector anywhere."""
        return to_numpy(self.to_flat(work)).astype(np.float64, copy=False)

    def location(self, flat: np.ndarray) -> np.ndarray:
        """Mean (d,) of the distribution."""
        return flat[: self.layout.dim].copy()

    def scale_nonzeros(self, flat: np.ndarray) -> np.ndarray:
        """Nonzeros of the implied scale matrix in CSC order."""
        return flat[self.layout.dim :]

    def global_scale(self, flat: np.ndarray) -> np.ndarray:
        """The block C_zz (d_z, d_z), without building the rest of C."""
        d, d_z = self.layout.dim, self.layout.n_global
        starts = d + self.family.column_starts(self.layout)
        block = np.zeros((d_z, d_z))
        for j in range(d_z):
            n = min(starts[j + 1] - starts[j], d_z - j)
            block[j : j + n, j] = flat[starts[j] : starts[j] + n]
        return block

    def scale(self, flat: np.ndarray) -> csc_array:
        """The implied scale matrix C as a scipy.sparse.csc_array (d, d)."""
        from scipy.sparse import csc_array

        indptr, indices = self.family.pattern(self.layout)
        d = self.layout.dim
        return csc_array((self.scale_nonzeros(flat).copy(), indices, indptr), shape=(d, d))

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
            raise InputError(
                f"init: the given fit's scale has entries that the {self.family.name} family does not have; "
                "go on with the same family or a larger one."
            )
        flat = np.zeros(self.n_params)
        flat[:d] = location
        flat[d + self.family.column_starts(self.layout)[columns] + below] = values
        return flat

    def initial_flat(self, location: np.ndarray, scale: float) -> np.ndarray:
        """Flat parameters for `C = scale * I` and the given location (d,)."""
        from scipy.sparse import eye_array

        return self.flat_from_location_scale(location, scale * eye_array(self.layout.dim))

    # ---- entropy and density ------------------------------------------------------------------------------
    def log_abs_det(self, work: Array) -> float:
        """`sum_i log|C_ii|` in O(d)."""
        with np.errstate(divide="ignore"):
            return float(self.xp.log(abs(work[self.diagonal])).sum(dtype=np.float64))

    def entropy(self, work: Array) -> float:
        """Entropy of the distribution, `d H(base) + sum_i log|C_ii|`, in nats."""
        return self.layout.dim * self.base.entropy + self.log_abs_det(work)

    def log_q(self, work: Array, points: Array) -> Array:
        """Log density of the distribution at `points` (M, d)."""
        u = self.standardize(work, points)
        return self.base.log_density(u).sum(axis=1, dtype=np.float64) - self.log_abs_det(work)
