"""Markov: structured, and each local given its predecessor too, for time series.

`y_n = m_n + C_{n,z} u_z + r_n` with `r_n = A_n r_{n-1} + C_{n,n} u_n` and r_0 = 0. The working vector is that of the
structured family, and behind it the matrices `A_2, ..., A_N`, each column by column; the flat one is so too. All is
done in O(N): `C_yy`, dense below the diagonal, is never formed, since its inverse has two block diagonals.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from pyturingvi.families.base import BoundFamily, Family
from pyturingvi.families.location_scale import BoundLocationScale, LocationScale
from pyturingvi.families.natural import NaturalCoordinates
from pyturingvi.families.natural_markov import MarkovCoordinates
from pyturingvi.families.recursions import covariances, run_backward, run_forward
from pyturingvi.families.structured import BoundStructured, Structured, smaller_stages
from pyturingvi.layout import Layout
from pyturingvi.support.array_namespace import Array

if TYPE_CHECKING:
    from pyturingvi.families.markov_scale import MarkovScale


@dataclass(frozen=True)
class Markov(LocationScale):
    """Each local rests on the globals and on its predecessor, as in a time series.

    `y_n = m_n + C_{n,z} u_z + r_n` and `r_n = A_n r_{n-1} + C_{n,n} u_n`, where A_n is a dense (d_y, d_y) matrix and
    C_zz and each C_{n,n} are lower triangular. p is the structured family's and (N-1) d_y^2; with all A_n = 0 it is the
    structured family. Flat parameters: those of the structured family, then A_2 to A_N, each column by column.

    Parameters
    ----------
    base : "gaussian", "laplace", ("student_t", nu) or BaseDistribution
    """

    name: ClassVar[str] = "markov"
    standardized: ClassVar[bool] = True

    @property
    def julia_devices(self) -> frozenset[str]:
        return frozenset({"cpu"})

    @property
    def scale_is_parameter(self) -> bool:
        return False

    def n_params(self, layout: Layout) -> int:
        return Structured().n_params(layout) + max(layout.n_local - 1, 0) * layout.local_dim**2

    def effective_dimension(self, layout: Layout) -> int:
        return layout.n_global + 2 * layout.local_dim

    def stages_before(self, layout: Layout) -> list[Family]:
        return [*smaller_stages(layout), *self._gaussian_stage()]

    def column_lengths(self, layout: Layout) -> np.ndarray:
        """Of the entries of C that are parameters: the structured family's. The others follow from them and the A_n."""
        return Structured().column_lengths(layout)

    def bind(self, layout: Layout, dtype: Any = np.float64, xp: ModuleType = np) -> BoundLocationScale:
        return BoundMarkov(self, layout, dtype, xp)

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.Markov, self.base_distribution.to_julia(runtime))


class BoundMarkov(BoundStructured):
    """The family at work."""

    def __init__(self, family: Markov, layout: Layout, dtype: Any, xp: ModuleType) -> None:
        super().__init__(family, layout, dtype, xp)
        self._chain = slice(self._blocks.stop, self.n_params)

    def chain(self, work: Array) -> Array:
        """`A_2', ..., A_N'`, an (N-1, d_y, d_y) view."""
        d_y = self.layout.local_dim
        return work[self._chain].reshape(max(self.layout.n_local - 1, 0), d_y, d_y)

    # ---- points and gradients -----------------------------------------------------------------------------
    def times_locals(self, work: Array, u_y: Array, transposed: bool = False) -> Array:
        if transposed:
            return self._times_blocks(work, run_backward(self.xp, self.chain(work), u_y), transposed=True)
        return run_forward(self.xp, self.chain(work), self._times_blocks(work, u_y))

    def _pull_locals(self, work: Array, u_y: Array, g_y: Array, out: Array) -> None:
        pulled = run_backward(self.xp, self.chain(work), g_y)
        self.pull_chain(work, u_y, pulled, out)
        super()._pull_locals(work, u_y, pulled, out)

    def pull_chain(self, work: Array, u_y: Array, pulled: Array, out: Array) -> None:
        """Write the sums over the rows of `r_{n-1} g_n'` in the places of A_n', for rows g (M, N d_y) of `pulled`."""
        if self.layout.n_local < 2:
            return
        rest = self.times_locals(work, u_y)
        if self.layout.local_dim == 1:
            out[self._chain] = self.xp.einsum("mn,mn->n", rest[:, :-1], pulled[:, 1:])
        else:
            before, here = self._columns(rest)[:-1], self._columns(pulled)[1:]
            self.xp.matmul(before, here.transpose(0, 2, 1), out=self.chain(out))

    def _solve_locals(self, work: Array, y: Array) -> None:
        if self.layout.n_local > 1:
            rest = y.reshape(len(y), self.layout.n_local, -1)
            lagged = self.xp.matmul(rest[:, :-1].transpose(1, 0, 2), self.chain(work))
            rest[:, 1:] -= lagged.transpose(1, 0, 2)
        super()._solve_locals(work, y)

    def natural_coordinates(self) -> NaturalCoordinates:
        return MarkovCoordinates(self)

    # ---- parameters ---------------------------------------------------------------------------------------
    def embed(self, other: BoundFamily, flat: np.ndarray) -> np.ndarray:
        if isinstance(other.family, Markov):  # the base has variance 1 whatever it is
            return flat.copy()
        return super().embed(other, flat)

    def nearest_gaussian(self, mean: np.ndarray, precision: np.ndarray) -> NoReturn:
        self._refuse("has no closed form for its best fit to a Gaussian")

    # ---- what a fit tells of it ---------------------------------------------------------------------------
    def scale(self, flat: np.ndarray) -> MarkovScale:  # type: ignore[override]
        """The scale matrix C (d, d), as a scipy LinearOperator with a method `toarray`: C_yy is dense."""
        from pyturingvi.families.markov_scale import MarkovScale

        bound = self._on_cpu()
        return MarkovScale(bound, bound.from_flat(flat))

    def local_parts(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bound = self._on_cpu()
        work = bound.from_flat(flat)
        head = np.vstack([bound._dense_zz(work), bound._border_of(work).T])
        return head, covariances(np, bound.chain(work), bound._dense_blocks(work))

    def _on_cpu(self) -> BoundMarkov:
        assert isinstance(self.family, Markov)
        return BoundMarkov(self.family, self.layout, np.float64, np)
