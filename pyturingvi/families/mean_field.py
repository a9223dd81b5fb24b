"""Mean-field: a diagonal scale (paper, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from pyturingvi.families.base import Family
from pyturingvi.families.location_scale import BoundLocationScale, LocationScale
from pyturingvi.families.natural import MeanFieldCoordinates, NaturalCoordinates
from pyturingvi.layout import Layout
from pyturingvi.support.array_namespace import Array


@dataclass(frozen=True)
class MeanField(LocationScale):
    """Independent coordinates: C is diagonal, p = 2d.

    Parameters
    ----------
    base : "gaussian", "laplace", ("student_t", nu) or BaseDistribution
    """

    name: ClassVar[str] = "mean-field"
    independent: ClassVar[bool] = True

    def n_params(self, layout: Layout) -> int:
        return 2 * layout.dim

    def effective_dimension(self, layout: Layout) -> int:
        return 1

    def dense_columns(self, layout: Layout) -> int:
        return 0

    def stages_before(self, layout: Layout) -> list[Family]:
        return self._gaussian_stage()

    def memory_advice(self, layout: Layout) -> str:
        return "dtype='float32' halves it"

    def column_lengths(self, layout: Layout) -> np.ndarray:
        return np.ones(layout.dim, dtype=np.int64)

    def bind(self, layout: Layout, dtype: Any = np.float64, xp: ModuleType = np) -> BoundLocationScale:
        return _BoundMeanField(self, layout, dtype, xp)

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.MeanField, self.base_distribution.to_julia(runtime))


class _BoundMeanField(BoundLocationScale):
    def __init__(self, family: LocationScale, layout: Layout, dtype: Any, xp: ModuleType) -> None:
        super().__init__(family, layout, dtype, xp)
        self.diagonal = slice(layout.dim, 2 * layout.dim)

    def transform(self, work: Array, noise: Array, out: Array) -> None:
        d = self.layout.dim
        self.xp.multiply(noise, work[d:], out=out)
        out += work[:d]

    def pullback(self, work: Array, noise: Array, points: Array, gradient: Array, out: Array) -> None:
        d = self.layout.dim
        gradient.sum(axis=0, out=out[:d])
        gradient *= noise
        gradient.sum(axis=0, out=out[d:])

    def standardize(self, work: Array, points: Array) -> Array:
        d = self.layout.dim
        return (points - work[:d]) / work[d:]

    def draw_globals(self, flat: np.ndarray, generator: np.random.Generator, n: int) -> np.ndarray:
        """Draws (n, d_z) at a cost of n d_z: of 4,000 globals the matrix C_zz would take seconds."""
        d, d_z = self.layout.dim, self.layout.n_global
        draws = np.empty((n, d_z))
        self.base.fill(generator, draws)
        draws *= flat[d : d + d_z]
        draws += flat[:d_z]
        return draws

    def natural_coordinates(self) -> NaturalCoordinates:
        return MeanFieldCoordinates(self)
