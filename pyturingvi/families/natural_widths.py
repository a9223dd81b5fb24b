"""Natural-gradient steps of the structured family with conditional widths.

A step sends the noise u to `u + e(u)` before the map: `e_z = a_z + K_zz u_z`, and for coordinate i of local n, whose
width is `exp(w_i)` times that of C_nn, `w_i = b_i . u_z`,

    e_i = exp(-w_i) (a_i + k_i . u_z) + sum_j exp(w_j - w_i) K_ij u_j + (beta_i . u_z) u_i .

With `E = E(K_zz)` that makes `m_n + C_nz a_z + C_nn a_n`, `C_nz E + C_nn k`, `C_nn E(K_nn)` with column i times
`exp(b_i . a_z)`, and `b E + beta`: the family again. Its score is `u . e(u) - div e(u)`, so that for a Gaussian base
the Fisher matrix is closed. With the tilted location `a_i - 2 b_i . k_i` it is diagonal: `exp(2 |b_i|^2)` for this and
k_i, `exp(2 |b_j - b_i|^2)` for K_ij below the diagonal, and for K_ii and each entry of beta_i 2, the information of a
log scale, since `(u_i^2 - 1) u_z` has the covariance 2 I. A step is kept in coordinates in which it is 1 and 2, as in
the structured family.
"""

from __future__ import annotations

from typing import Any

from pyturingvi.families.natural import StructuredCoordinates, exponential
from pyturingvi.families.triangle import triangle_pattern
from pyturingvi.support.array_namespace import Array


class WidthsCoordinates(StructuredCoordinates):
    """The globals are one block, and each local with its rows of the border and of b is one."""

    def __init__(self, bound: Any, plain: Any) -> None:
        super().__init__(bound, bound)
        self._plain = plain  # the structured family, whose working vector is the first part of this one's
        self._rows, self._columns = map(bound.xp.asarray, triangle_pattern(bound.layout.local_dim))  # of a packed block

    def noise_slopes(self, work: Array, noise: Array, slopes: Array) -> Array:
        """`h_n = exp(w_n) C_nn' g_n + u_n`; h_z has what the widths and the log determinant, the sum of all w, add."""
        bound, d_z = self.bound, self.bound.layout.n_global
        h = self.whiten(work, slopes)
        if bound.layout.n_local:
            h_y, widths = h[:, d_z:], bound.widths_of(work)
            h_y *= bound.relative_widths(work, noise)
            h[:, :d_z] += (h_y * noise[:, d_z:] + 1) @ widths.T
        h += self.score(noise)
        return h

    def direction(self, work: Array, noise: Array, whitened: Array, out: Array) -> None:
        """Write the sums over the rows of h and of its products with the noise that the terms of a step have.

        With `exp(-w_n) h_n` in the place of h_n they are the structured family's at the noise v.
        """
        bound, d_z, p = self.bound, self.bound.layout.n_global, self._plain.n_params
        wide = bound.widened(work, noise)
        if bound.layout.n_local:
            whitened[:, d_z:] /= bound.relative_widths(work, noise)
            bound.pull_widths(wide, whitened[:, d_z:], out)
        self._plain.pullback(work[:p], wide, None, whitened, out[:p])

    def normalize(self, work: Array, direction: Array) -> None:
        super().normalize(work, direction)
        bound = self.bound
        if not bound.layout.n_local:
            return
        of_widths = bound.widths_of(direction)
        of_widths *= self.location_information / self.scale_information
        y, border, blocks = self._locals_of(direction)
        shrunk, between = self._roots(work)
        border += 2 * bound.widths_of(work) * y
        border *= shrunk
        y *= shrunk
        blocks *= between

    def inner(self, one: Array, other: Array) -> float:
        places = self.bound._widths
        more = self.scale_information - self.location_information
        return super().inner(one, other) + float(more * (one[places] @ other[places]))

    def retract(self, work: Array, step: Array) -> None:
        bound, xp, layout = self.bound, self.bound.xp, self.bound.layout
        if not layout.n_local:
            super().retract(work, step)
            return
        step = step.copy()
        widths = bound.widths_of(work)
        y, border, blocks = self._locals_of(step)
        shrunk, between = self._roots(work)
        border *= shrunk
        y *= shrunk
        y += 2 * (widths * border).sum(axis=0)
        blocks *= between
        moved = xp.exp(step[: layout.n_global] @ widths).reshape(layout.n_local, layout.local_dim)
        turned = exponential(xp, bound._dense_zz(step)).T @ widths + bound.widths_of(step)
        super().retract(work, step)
        scales = self._locals_of(work)[2]
        scales *= moved[:, self._columns]
        widths[...] = turned

    def _locals_of(self, vector: Array) -> tuple[Array, Array, Array]:
        """Views of a step's or working vector's locations (N d_y,), border (d_z, N d_y) and packed blocks (N, k)."""
        bound, layout = self.bound, self.bound.layout
        blocks = vector[bound._blocks].reshape(layout.n_local, -1)
        return vector[layout.n_global : layout.dim], bound._border_of(vector), blocks

    def _roots(self, work: Array) -> tuple[Array, Array]:
        """`exp(-|b_i|^2)` (N d_y,), and `exp(-|b_j - b_i|^2)` of the entries of the packed blocks (N, k)."""
        xp, n, d_y = self.bound.xp, self.bound.layout.n_local, self.bound.layout.local_dim
        b = self.bound.widths_of(work)
        if d_y == 1:
            shrunk = xp.exp(-(b * b).sum(axis=0))
            return shrunk, xp.ones_like(shrunk).reshape(n, 1)
        rows, columns, of_locals = self._rows, self._columns, b.T.reshape(n, d_y, -1)
        products = of_locals @ of_locals.transpose(0, 2, 1)
        squares = xp.diagonal(products, axis1=1, axis2=2)
        apart = squares[:, rows] + squares[:, columns] - 2 * products[:, rows, columns]
        return xp.exp(-squares).reshape(-1), xp.exp(-apart)

    def _widths_of(self, step: Array) -> Array:
        return self.bound.widths_of(step)
