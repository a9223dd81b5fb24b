"""Full-rank: a dense lower-triangular scale, stored as one packed triangle (paper, section 2.3).

CSC order of a lower triangle is its columns one after the other, so the flat vector is the packed triangle itself
and the optimizer keeps one triangle's worth of state. Products unpack a panel of columns at a time into a buffer
that stays in cache: no d x d array exists on the CPU.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from pyturingvi.families.base import Family
from pyturingvi.families.location_scale import BoundLocationScale, LocationScale
from pyturingvi.families.natural import FullRankCoordinates, NaturalCoordinates
from pyturingvi.families.structured import smaller_stages
from pyturingvi.families.triangle import column_starts, triangle_pattern, triangle_size
from pyturingvi.layout import Layout
from pyturingvi.support.array_namespace import Array

_PANEL_BYTES = 1 << 20


@dataclass(frozen=True)
class FullRank(LocationScale):
    """All correlations: C is lower triangular, p = d + d(d+1)/2.

    Parameters
    ----------
    base : "gaussian", "laplace", ("student_t", nu) or BaseDistribution
    """

    name: ClassVar[str] = "full-rank"

    def n_params(self, layout: Layout) -> int:
        return layout.dim + triangle_size(layout.dim)

    def effective_dimension(self, layout: Layout) -> int:
        return layout.dim

    def dense_columns(self, layout: Layout) -> int:
        return layout.dim

    def stages_before(self, layout: Layout) -> list[Family]:
        return [*smaller_stages(layout), *self._gaussian_stage()]

    def dense_work(self, layout: Layout) -> int:
        return 3 * layout.dim**2

    def memory_advice(self, layout: Layout) -> str:
        return "family='structured' grows linearly with the number of locals"

    def column_lengths(self, layout: Layout) -> np.ndarray:
        return np.arange(layout.dim, 0, -1)

    def bind(self, layout: Layout, dtype: Any = np.float64, xp: ModuleType = np) -> BoundLocationScale:
        return _BoundFullRank(self, layout, dtype, xp)

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.FullRank, self.base_distribution.to_julia(runtime))


class _BoundFullRank(BoundLocationScale):
    def __init__(self, family: LocationScale, layout: Layout, dtype: Any, xp: ModuleType) -> None:
        super().__init__(family, layout, dtype, xp)
        d = layout.dim
        starts = column_starts(d)
        self._starts = (d + starts).tolist()
        self.diagonal = xp.asarray(d + starts[:-1])
        self._width = min(d, max(8, _PANEL_BYTES // (self.dtype.itemsize * d)))
        self._position: Array | None = None  # a GPU scatters by index: thousands of slice copies would launch kernels

    def transform(self, work: Array, noise: Array, out: Array) -> None:
        d = self.layout.dim
        if self.xp is not np:
            self.xp.matmul(noise, self._dense(work).T, out=out)
            out += work[:d]
            return
        out[:] = work[:d]
        panel = np.empty((self._width, d), dtype=self.dtype)
        for first in range(0, d, self._width):
            last = min(first + self._width, d)
            columns = panel[: last - first, : d - first]
            self._unpack(work, first, columns)
            out[:, first:] += noise[:, first:last] @ columns

    def pullback(self, work: Array, noise: Array, points: Array, gradient: Array, out: Array) -> None:
        d = self.layout.dim
        gradient.sum(axis=0, out=out[:d])
        if self.xp is not np:
            out[d:] = (gradient.T @ noise).ravel()[self._positions()]
            return
        starts = self._starts
        panel = np.empty((self._width, d), dtype=self.dtype)
        for first in range(0, d, self._width):
            last = min(first + self._width, d)
            columns = np.matmul(
                noise[:, first:last].T, gradient[:, first:], out=_leading(panel, last - first, d - first)
            )
            for r in range(last - first):
                out[starts[first + r] : starts[first + r + 1]] = columns[r, r:]

    def standardize(self, work: Array, points: Array) -> Array:
        centred = points - work[: self.layout.dim]
        module = "scipy.linalg" if self.xp is np else "cupyx.scipy.linalg"
        solve_triangular = importlib.import_module(module).solve_triangular
        return solve_triangular(self._dense(work), centred.T, lower=True).T

    def natural_coordinates(self) -> NaturalCoordinates:
        return FullRankCoordinates(self)

    def _unpack(self, work: Array, first: int, columns: Array) -> None:
        """Columns `first...` of C as rows of `columns`, row indices counted from `first`."""
        starts = self._starts
        for r in range(columns.shape[0]):
            columns[r, :r] = 0
            columns[r, r:] = work[starts[first + r] : starts[first + r + 1]]

    def _positions(self) -> Array:
        if self._position is None:
            rows, columns = triangle_pattern(self.layout.dim)
            self._position = self.xp.asarray(rows * self.layout.dim + columns)
        return self._position

    def _dense(self, work: Array) -> Array:
        d = self.layout.dim
        dense = self.xp.zeros(d * d, dtype=self.dtype)
        dense[self._positions()] = work[d:]
        return dense.reshape(d, d)


def _leading(buffer: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """A C-contiguous (rows, columns) view of the buffer's beginning."""
    return buffer.ravel()[: rows * columns].reshape(rows, columns)
