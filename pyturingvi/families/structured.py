"""Structured: a bordered block-diagonal scale, stored and multiplied as blocks (paper, section 3.3).

The working vector is `[m, C_zz, border, blocks]`: `C_zz` a packed lower triangle, `border` a (d_z, N d_y) matrix
whose row j is column j of C below `C_zz` (its CSC order), and `blocks` the N packed lower triangles `C_{n,n}`. In
the non-standardized form `border` holds `A_n` instead, and multiplies z itself rather than its noise. With conditional
widths the `b_n` stand behind it, a (d_z, N d_y) matrix like the border; the flat vector ends with the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar, NoReturn

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families.base import Family
from pyturingvi.families.base_distributions import Gaussian
from pyturingvi.families.location_scale import BoundLocationScale, LocationScale
from pyturingvi.families.mean_field import MeanField
from pyturingvi.families.natural import NaturalCoordinates, StructuredCoordinates
from pyturingvi.families.natural_widths import WidthsCoordinates
from pyturingvi.families.triangle import column_starts, triangle_pattern, triangle_size
from pyturingvi.layout import Layout
from pyturingvi.support.array_namespace import Array


@dataclass(frozen=True)
class Structured(LocationScale):
    """Global-local structure: C_zz and each C_{n,n} lower triangular, C_{n,z} dense, all else zero.

    p = d + d_z(d_z+1)/2 + N(d_y d_z + d_y(d_y+1)/2), and N d_y d_z more with conditional widths.

    Parameters
    ----------
    base : "gaussian", "laplace", ("student_t", nu) or BaseDistribution
    standardized : bool
        True: `y_n = m_n + C_{n,z} u_z + C_{n,n} u_n`. False: `y_n = m_n + A_n z + C_{n,n} u_n`, the
        parameterization whose energy need not be convex (paper, section 3.3); location and scale are then
        those of the implied distribution.
    conditional_scale : bool
        True: the locals' widths follow the globals, `y_n = m_n + C_{n,z} u_z + C_{n,n} (exp(b_n u_z) * u_n)` with a
        (d_y, d_z) matrix b_n, 0 at the start: column i of C_{n,n} is `exp((b_n u_z)_i)` times as wide. The
        entropy is that of b = 0. For a Gaussian base and the standardized form. The distribution is no longer Gaussian,
        and has no scale matrix.

    Raises
    ------
    InputError
        For a value that is not True or False, or conditional widths with another base or form.
    """

    standardized: bool = True
    conditional_scale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("standardized", "conditional_scale"):
            value = getattr(self, key)
            if not isinstance(value, bool | np.bool_):
                raise InputError(f"Structured: {key} must be True or False, got {value!r}.")
            object.__setattr__(self, key, bool(value))
        if self.conditional_scale and not self.standardized:
            raise InputError("Structured: conditional_scale=True goes with standardized=True.")
        if self.conditional_scale and type(self.base) is not Gaussian:
            raise InputError(
                f"Structured: conditional_scale=True needs base='gaussian', got {self.base_distribution.spec!r}: the "
                "widths exp(b u) have a finite mean square for every b only if the tails of u are those of a Gaussian."
            )

    name: ClassVar[str] = "structured"

    @property
    def label(self) -> str:
        return f"conditional-scale {self.name}" if self.conditional_scale else self.name

    @property
    def julia_devices(self) -> frozenset[str]:
        return frozenset({"cpu"}) if self.conditional_scale else super().julia_devices

    @property
    def scale_is_parameter(self) -> bool:
        return not self.conditional_scale

    def mirrors_locals(self, layout: Layout) -> bool:
        return layout.n_global > 0 and layout.n_local > 0

    @property
    def standard_form(self) -> Family:
        return replace(self, standardized=True)

    def stages_before(self, layout: Layout) -> list[Family]:
        before = smaller_stages(layout) if self.conditional_scale else [MeanField()]
        return [*before, *self._gaussian_stage()]

    def n_params(self, layout: Layout) -> int:
        of_border = layout.local_dim * layout.n_global
        per_block = of_border * (1 + self.conditional_scale) + triangle_size(layout.local_dim)
        return layout.dim + triangle_size(layout.n_global) + layout.n_local * per_block

    def config(self) -> dict[str, Any]:
        found = super().config()
        if not self.conditional_scale:  # files of earlier versions do not have it, nor digests made of them
            del found["conditional_scale"]
        return found

    def column_lengths(self, layout: Layout) -> np.ndarray:
        d, d_z, d_y = layout.dim, layout.n_global, layout.local_dim
        return np.concatenate([np.arange(d, d - d_z, -1), np.tile(np.arange(d_y, 0, -1), layout.n_local)])

    def bind(self, layout: Layout, dtype: Any = np.float64, xp: ModuleType = np) -> BoundLocationScale:
        return (BoundWidths if self.conditional_scale else BoundStructured)(self, layout, dtype, xp)

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        if self.conditional_scale:
            return runtime.call(runtime.module.ConditionalStructured)
        return runtime.call(
            runtime.module.Structured, self.base_distribution.to_julia(runtime), standardized=self.standardized
        )


def smaller_stages(layout: Layout) -> list[Family]:
    """What a family goes through that is larger than the structured one: `Family.stages_before`."""
    return [MeanField(), Structured()] if layout.n_local else [MeanField()]


class BoundStructured(BoundLocationScale):
    """The family at work, and what a family that has more between its locals is made of."""

    def __init__(self, family: Any, layout: Layout, dtype: Any, xp: ModuleType) -> None:
        super().__init__(family, layout, dtype, xp)
        self.standardized = family.standardized
        d, d_z, d_y, n = layout.dim, layout.n_global, layout.local_dim, layout.n_local
        self._zz = slice(d, d + triangle_size(d_z))
        self._border = slice(self._zz.stop, self._zz.stop + d_z * n * d_y)
        self._blocks = slice(self._border.stop, self._border.stop + n * triangle_size(d_y))
        rows, columns = triangle_pattern(d_z)
        self._zz_position = xp.asarray(rows * d_z + columns)
        self._block_starts = column_starts(d_y).tolist()
        block_diagonal = np.arange(n)[:, None] * triangle_size(d_y) + column_starts(d_y)[:-1]
        self.diagonal = xp.asarray(
            np.concatenate([self._zz.start + column_starts(d_z)[:-1], self._blocks.start + block_diagonal.ravel()])
        )

    # ---- points and gradients -----------------------------------------------------------------------------
    def transform(self, work: Array, noise: Array, out: Array) -> None:
        xp, d, d_z = self.xp, self.layout.dim, self.layout.n_global
        z = out[:, :d_z]
        z[...] = noise[:, :d_z] @ self._dense_zz(work).T
        z += work[:d_z]
        if not self.layout.n_local:
            return
        y = out[:, d_z:]
        head = noise[:, :d_z] if self.standardized else z
        xp.matmul(head, self._border_of(work), out=y)
        y += work[d_z:d]
        y += self.times_locals(work, noise[:, d_z:])

    def pullback(self, work: Array, noise: Array, points: Array, gradient: Array, out: Array) -> None:
        d, d_z = self.layout.dim, self.layout.n_global
        g_z, g_y = gradient[:, :d_z], gradient[:, d_z:]
        if self.layout.n_local:
            head = noise[:, :d_z] if self.standardized else points[:, :d_z]
            self.xp.matmul(head.T, g_y, out=self._border_of(out))
            if not self.standardized:
                g_z += g_y @ self._border_of(work).T
            gradient[:, d_z:].sum(axis=0, out=out[d_z:d])
            self._pull_locals(work, noise[:, d_z:], g_y, out)
        g_z.sum(axis=0, out=out[:d_z])
        out[self._zz] = (g_z.T @ noise[:, :d_z]).ravel()[self._zz_position]

    def _pull_locals(self, work: Array, u_y: Array, g_y: Array, out: Array) -> None:
        """Write what `C_yy` adds to the parameter gradient; `g_y` may be overwritten."""
        if self.layout.local_dim == 1:
            # the one place where `gradient` is overwritten: y's noise product needs no temporary
            g_y *= u_y
            g_y.sum(axis=0, out=out[self._blocks])
        else:
            self._pack_blocks(self._columns(g_y) @ self._columns(u_y).transpose(0, 2, 1), out)

    def standardize(self, work: Array, points: Array) -> Array:
        xp, d, d_z = self.xp, self.layout.dim, self.layout.n_global
        u = points - work[:d]
        u[:, :d_z] = xp.linalg.solve(self._dense_zz(work), u[:, :d_z].T).T
        if not self.layout.n_local:
            return u
        y = u[:, d_z:]
        y -= (u if self.standardized else points)[:, :d_z] @ self._border_of(work)
        self._solve_locals(work, y)
        return u

    def times_locals(self, work: Array, u_y: Array, transposed: bool = False) -> Array:
        """`C_yy u` of each row of `u_y` (M, N d_y), or `C_yy' u`."""
        return self._times_blocks(work, u_y, transposed)

    def _solve_locals(self, work: Array, y: Array) -> None:
        """Replace each row r of `y` (M, N d_y) by `C_yy^{-1} r`."""
        if self.layout.local_dim == 1:
            y /= work[self._blocks]
        else:
            solved = self.xp.linalg.solve(self._dense_blocks(work), self._columns(y))
            y[...] = solved.transpose(2, 0, 1).reshape(y.shape)

    def natural_coordinates(self) -> NaturalCoordinates:
        same = Structured(self.family.base, standardized=True).bind(self.layout, self.dtype, self.xp)
        return StructuredCoordinates(same, self)

    # ---- parameters ---------------------------------------------------------------------------------------
    def to_flat(self, work: Array) -> Array:
        return self._reorder(work, self.xp.empty_like(work), to_flat=True)

    def from_flat(self, flat: Array) -> Array:
        flat = self.xp.asarray(flat, dtype=self.dtype)
        return self._reorder(flat, self.xp.empty_like(flat), to_flat=False)

    def location(self, flat: np.ndarray) -> np.ndarray:
        mean = super().location(flat)
        if not self.standardized and self.layout.n_local:
            d_z = self.layout.n_global
            mean[d_z:] += mean[:d_z] @ self._border_of(self._numpy().from_flat(flat))
        return mean

    def scale_nonzeros(self, flat: np.ndarray) -> np.ndarray:
        return self._border_product(flat, inverse=False)[self.layout.dim :]

    def flat_from_location_scale(self, location: np.ndarray, scale: Any) -> np.ndarray:
        flat = super().flat_from_location_scale(location, scale)
        if self.standardized:
            return flat
        flat = self._border_product(flat, inverse=True)
        flat[: self.layout.dim] += location - self.location(flat)
        return flat

    def _border_product(self, flat: np.ndarray, inverse: bool) -> np.ndarray:
        """Replace the border `A_n` by the implied `A_n C_zz`, or the other way round."""
        if self.standardized or not self.layout.n_local:
            return flat
        bound = self._numpy()
        work = bound.from_flat(flat)
        c_zz, border = bound._dense_zz(work), bound._border_of(work)
        border[...] = np.linalg.solve(c_zz.T, border) if inverse else c_zz.T @ border
        return np.asarray(bound.to_flat(work))

    def _numpy(self) -> BoundStructured:
        return BoundStructured(self.family, self.layout, np.float64, np)

    # ---- blocks -------------------------------------------------------------------------------------------
    def _border_of(self, work: Array) -> Array:
        return work[self._border].reshape(self.layout.n_global, self.layout.n_local_total)

    def _dense_zz(self, work: Array) -> Array:
        d_z = self.layout.n_global
        dense = self.xp.zeros(d_z * d_z, dtype=self.dtype)
        dense[self._zz_position] = work[self._zz]
        return dense.reshape(d_z, d_z)

    def _dense_blocks(self, work: Array) -> Array:
        n, d_y, starts = self.layout.n_local, self.layout.local_dim, self._block_starts
        packed = work[self._blocks].reshape(n, starts[-1])
        dense = self.xp.zeros((n, d_y, d_y), dtype=self.dtype)
        for k in range(d_y):
            dense[:, k:, k] = packed[:, starts[k] : starts[k + 1]]
        return dense

    def _pack_blocks(self, dense: Array, out: Array) -> None:
        starts = self._block_starts
        packed = out[self._blocks].reshape(self.layout.n_local, -1)
        for k in range(self.layout.local_dim):
            packed[:, starts[k] : starts[k + 1]] = dense[:, k:, k]

    def _columns(self, y: Array) -> Array:
        """(M, N d_y) as N matrices (d_y, M)."""
        return y.reshape(y.shape[0], self.layout.n_local, self.layout.local_dim).transpose(1, 2, 0)

    def _times_blocks(self, work: Array, u_y: Array, transposed: bool = False) -> Array:
        if self.layout.local_dim == 1:
            return u_y * work[self._blocks]
        blocks = self._dense_blocks(work)
        product = (blocks.transpose(0, 2, 1) if transposed else blocks) @ self._columns(u_y)
        return product.transpose(2, 0, 1).reshape(u_y.shape)

    def _reorder(self, source: Array, target: Array, to_flat: bool) -> Array:
        """Copy between working order and CSC order, column by column of C_zz."""
        d, d_z, k = self.layout.dim, self.layout.n_global, self.layout.n_local_total
        target[:d] = source[:d]
        behind = slice(self._blocks.start, None)  # the blocks, and what a larger family has after them
        target[behind] = source[behind]
        flat, zz, border = d, self._zz.start, self._border.start
        for j in range(d_z):
            for start, length in ((zz, d_z - j), (border, k)):
                here, there = slice(start, start + length), slice(flat, flat + length)
                if to_flat:
                    target[there] = source[here]
                else:
                    target[here] = source[there]
                flat += length
            zz += d_z - j
            border += k
        return target


class BoundWidths(BoundStructured):
    """The family with conditional widths at work.

    Its map is the structured one after another, `u -> (u_z, v)` with `v_n = exp(b_n u_z) * u_n`, whose inverse and log
    determinant, the sum of all `(b_n u_z)_i`, are plain. That is why the columns of C_nn are scaled and not its rows:
    points, pullback and inverse are the structured family's at the noise v. Since u_z has mean 0, so has the log
    determinant.
    """

    family: Structured

    def __init__(self, family: Structured, layout: Layout, dtype: Any, xp: ModuleType) -> None:
        super().__init__(family, layout, dtype, xp)
        self._widths = slice(self._blocks.stop, self.n_params)

    def widths_of(self, work: Array) -> Array:
        """b, a (d_z, N d_y) view: row j is what the noise of global j adds to the locals' log widths."""
        return work[self._widths].reshape(self.layout.n_global, self.layout.n_local_total)

    def relative_widths(self, work: Array, noise: Array) -> Array:
        """`exp(b_n u_z)` of each local (M, N d_y), for noise (M, d)."""
        return self.xp.exp(noise[:, : self.layout.n_global] @ self.widths_of(work))

    def widened(self, work: Array, noise: Array) -> Array:
        """The noise (M, d) with v_n in the place of u_n."""
        wide = noise.copy()
        wide[:, self.layout.n_global :] *= self.relative_widths(work, noise)
        return wide

    # ---- points and gradients -----------------------------------------------------------------------------
    def transform(self, work: Array, noise: Array, out: Array) -> None:
        super().transform(work, self.widened(work, noise), out)

    def pullback(self, work: Array, noise: Array, points: Array, gradient: Array, out: Array) -> None:
        wide = self.widened(work, noise)
        if self.layout.n_local:
            self.pull_widths(wide, self.times_locals(work, gradient[:, self.layout.n_global :], transposed=True), out)
        super().pullback(work, wide, points, gradient, out)

    def pull_widths(self, wide: Array, pulled: Array, out: Array) -> None:
        """Write the sums over the rows of `u_z (v_n * g_n)'` in the places of b, for rows g (M, N d_y) of `pulled`."""
        d_z = self.layout.n_global
        self.xp.matmul(wide[:, :d_z].T, wide[:, d_z:] * pulled, out=self.widths_of(out))

    def standardize(self, work: Array, points: Array) -> Array:
        u = super().standardize(work, points)
        u[:, self.layout.n_global :] /= self.relative_widths(work, u)
        return u

    def _log_q_of_noise(self, work: Array, noise: Array) -> Array:
        totals = self.widths_of(work).sum(axis=1, dtype=np.float64)
        return super()._log_q_of_noise(work, noise) - noise[:, : self.layout.n_global] @ totals

    def natural_coordinates(self) -> NaturalCoordinates:
        plain = replace(self.family, conditional_scale=False).bind(self.layout, self.dtype, self.xp)
        return WidthsCoordinates(self, plain)

    # ---- what a fit tells of it ---------------------------------------------------------------------------
    def scale(self, flat: np.ndarray) -> NoReturn:
        self._refuse("has no scale matrix: its locals are as wide as the globals say")

    def local_parts(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, a local's covariance given the globals averaged over them: `E exp(2 b u) = exp(2 |b|^2)`."""
        bound = BoundWidths(self.family, self.layout, np.float64, np)
        work = bound.from_flat(flat)
        blocks, squares = bound._dense_blocks(work), (bound.widths_of(work) ** 2).sum(axis=0)
        growth = np.exp(2 * squares).reshape(self.layout.n_local, 1, self.layout.local_dim)
        head = np.vstack([bound._dense_zz(work), bound._border_of(work).T])
        return head, (blocks * growth) @ blocks.transpose(0, 2, 1)
