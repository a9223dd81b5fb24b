"""Natural-gradient steps of the location-scale families, in the local coordinates of their matrix groups.

The scale matrices of each family are closed under products, so that `m <- m + C a`, `C <- C (I + K + K^2/2)` with K of
C's pattern stays in the family; and at `a = 0, K = 0` the Fisher matrix does not depend on where one is (Lin, Nielsen,
Khan and Schmidt, 2021; Tan, 2021). The square, of the blocks on the diagonal alone, keeps the signs there; a border
moves to first order. A *step* `[a, K]` has the working order of the parameters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families.base_distributions import BaseDistribution, information_of
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.registry import defines


class NaturalCoordinates(ABC):
    """The local coordinates of a family at work.

    Attributes
    ----------
    bound : BoundLocationScale
        The standardized family in whose parameters the steps are made.
    score : function
        `psi(u)` of the base distribution.
    """

    def __init__(self, bound: Any) -> None:
        self.bound = bound
        base = bound.base
        # what a class inherits speaks of its parent's density
        self.score = base.score if defines(base, "score") else BaseDistribution.score.__get__(base)
        own = defines(base, "information")
        information = base.information if own else information_of(base.log_density, self.score)
        self.location_information: float = information[0]
        self.scale_information: float = information[1]
        if not all(0 < value < math.inf for value in information):
            raise InputError(
                f"base: {base.name} has the Fisher information {information}, which makes no natural-gradient step: "
                "its density must have a slope, and no edge; pass optimizer=tv.Adam(1e-3)."
            )

    def enter(self, work: Array) -> Array:
        """The standardized parameters, a copy, of a working vector of the family."""
        return work.copy()

    def leave(self, work: Array) -> Array:
        """The family's own working vector of standardized parameters."""
        return work

    @abstractmethod
    def whiten(self, work: Array, slopes: Array) -> Array:
        """`C' g` of each row of `slopes` (M, d), which may be overwritten."""

    def noise_slopes(self, work: Array, noise: Array, slopes: Array) -> Array:
        """`h = C' g + psi(u)` (M, d): slopes of `log p - log q` in the noise, from those of log p (overwritten)."""
        h = self.whiten(work, slopes)
        h += self.score(noise)
        return h

    def direction(self, work: Array, noise: Array, whitened: Array, out: Array) -> None:
        """Write the sums over the rows of `h` and of `h u'` on C's pattern into `out` (p,)."""
        self.bound.pullback(work, noise, None, whitened, out)

    def normalize(self, work: Array, direction: Array) -> None:
        """Apply the inverse Fisher matrix in place: I on locations and below the diagonal, J on the diagonal."""
        direction *= 1 / self.location_information
        direction[self.bound.diagonal] *= self.location_information / self.scale_information

    def usable(self, work: Array) -> bool:
        """Whether all parameters are finite and the scale can be inverted; a step keeps the signs of its diagonal."""
        total = float(abs(work).sum(dtype=np.float64))
        return bool(np.isfinite(total)) and float(abs(work[self.bound.diagonal]).min()) > 0

    def inner(self, one: Array, other: Array) -> float:
        """Inner product of two steps in the Fisher metric: nats per unit of both."""
        location, diagonal = self.location_information, self.scale_information
        places = self.bound.diagonal
        return float(location * (one @ other) + (diagonal - location) * (one[places] @ other[places]))

    def global_square(self, direction: Array) -> float:
        """Squared norm of what a direction does to the globals alone; 0 where they have no block of their own."""
        return 0.0

    def quicken_globals(self, step: Array, factor: float) -> None:
        """Multiply what a step does to the globals alone, in place, where they have a block of their own."""
        return

    def shift(self, work: Array, by: Array) -> None:
        """Move each location by `by` (d,), in units of its own entry on the diagonal of C, in place."""
        work[: self.bound.layout.dim] += abs(work[self.bound.diagonal]) * by

    @abstractmethod
    def limit(self, step: Array, trust: float) -> float:
        """Shorten each block of a step in place, to norm `trust` and until no diagonal entry of K is below -1.

        `1 + k + k^2/2` is smallest at -1: what is to contract by more would grow. Returns the share of blocks longer
        than `trust`.
        """

    @abstractmethod
    def retract(self, work: Array, step: Array) -> None:
        """Make the step: change the parameters in place."""

    def _shrink(self, squares: Array, least: Array, trust: float) -> tuple[Array | None, float]:
        """Factors of blocks with these squared norms and least diagonal entries, and the share longer than `trust`.

        None where all would be 1.
        """
        xp = self.bound.xp
        factors = trust / xp.sqrt(xp.maximum(squares, trust * trust))
        share = float((factors < 1).mean())
        if float(least.min()) < -1:
            factors = xp.minimum(factors, 1 / xp.maximum(-least, 1))
        elif not share:
            return None, 0.0
        return factors, share


class MeanFieldCoordinates(NaturalCoordinates):
    """Each coordinate by itself: a block is its location and its scale."""

    def whiten(self, work: Array, slopes: Array) -> Array:
        slopes *= work[self.bound.layout.dim :]
        return slopes

    def limit(self, step: Array, trust: float) -> float:
        both = step.reshape(2, -1)
        factors, share = self._shrink((both * both).sum(axis=0), both[1], trust)
        if factors is not None:
            both *= factors
        return share

    def retract(self, work: Array, step: Array) -> None:
        d = self.bound.layout.dim
        scale, k = work[d:], step[d:]
        work[:d] += scale * step[:d]
        scale *= 1 + k + 0.5 * (k * k)


class StructuredCoordinates(NaturalCoordinates):
    """The globals are one block, and each local with its row of the border is one."""

    def __init__(self, bound: Any, own: Any) -> None:
        super().__init__(bound)
        self.own = own  # the family itself, which may be the non-standardized form

    def enter(self, work: Array) -> Array:
        return self._convert(work, to_standardized=True)

    def leave(self, work: Array) -> Array:
        return self._convert(work, to_standardized=False)

    def _convert(self, work: Array, to_standardized: bool) -> Array:
        """Between `C_nz u_z` and `A_n z`, where `C_nz = A_n C_zz` and the location of y_n takes `A_n m_z`."""
        work, bound = work.copy(), self.bound
        layout = bound.layout
        if self.own.standardized or not layout.n_local:
            return work
        border, c_zz = bound._border_of(work), bound._dense_zz(work)
        z, y = work[: layout.n_global], work[layout.n_global : layout.dim]
        if to_standardized:
            y += z @ border
            border[...] = c_zz.T @ border
        else:
            border[...] = bound.xp.linalg.solve(c_zz.T, border)
            y -= z @ border
        return work

    def whiten(self, work: Array, slopes: Array) -> Array:
        bound, d_z = self.bound, self.bound.layout.n_global
        whitened = slopes[:, :d_z] @ bound._dense_zz(work)
        if bound.layout.n_local:
            g_y = slopes[:, d_z:]
            whitened += g_y @ bound._border_of(work).T
            g_y[...] = bound.times_locals(work, g_y, transposed=True)
        slopes[:, :d_z] = whitened
        return slopes

    def global_square(self, direction: Array) -> float:
        bound = self.bound
        if not bound.layout.n_local:
            return 0.0
        z, zz = direction[: bound.layout.n_global], direction[bound._zz]
        return float(z @ z + zz @ zz)

    def quicken_globals(self, step: Array, factor: float) -> None:
        bound = self.bound
        if bound.layout.n_local:
            step[: bound.layout.n_global] *= factor
            step[bound._zz] *= factor

    def limit(self, step: Array, trust: float) -> float:
        bound, xp, layout = self.bound, self.bound.xp, self.bound.layout
        d_z, d, n = layout.n_global, layout.dim, layout.n_local
        shares, z, zz, diagonal = [], step[:d_z], step[bound._zz], step[bound.diagonal]
        if d_z:
            factor, share = self._shrink(xp.stack([z @ z + zz @ zz]), diagonal[:d_z].min().reshape(1), trust)
            if factor is not None:
                z *= factor
                zz *= factor
            shares.append((1, share))
        if n:
            y, border, blocks = step[d_z:d], bound._border_of(step), step[bound._blocks].reshape(n, -1)
            squares = (y * y + xp.einsum("ji,ji->i", border, border)).reshape(n, -1).sum(axis=1)
            squares += xp.einsum("nk,nk->n", blocks, blocks)
            chain, widths = self._chain_of(step), self._widths_of(step)
            squares[n - len(chain) :] += (chain * chain).sum(axis=(1, 2))
            if len(widths):
                squares += xp.einsum("ji,ji->i", widths, widths).reshape(n, -1).sum(axis=1)
            least = diagonal[d_z:].reshape(n, -1).min(axis=1)
            factors, share = self._shrink(squares, least, trust)
            if factors is not None:
                blocks *= factors[:, None]
                chain *= factors[n - len(chain) :, None, None]
                each = xp.repeat(factors, layout.local_dim)
                y *= each
                border *= each
                if len(widths):
                    widths *= each
            shares.append((n, share))
        return sum(count * share for count, share in shares) / sum(count for count, _ in shares)

    def _chain_of(self, step: Array) -> Array:
        """The part of a step that each of the last locals has towards its predecessor, a view: (k, d_y, d_y)."""
        return step[:0].reshape(0, 1, 1)

    def _widths_of(self, step: Array) -> Array:
        """The part of a step in the matrices of conditional widths, a view: (d_z, N d_y), or no rows at all."""
        return step[:0].reshape(0, 1)

    def retract(self, work: Array, step: Array) -> None:
        bound, layout = self.bound, self.bound.layout
        d_z, d = layout.n_global, layout.dim
        c_zz = bound._dense_zz(work)
        e_zz = exponential(bound.xp, bound._dense_zz(step))
        work[:d_z] += c_zz @ step[:d_z]
        if layout.n_local:
            border, moved = bound._border_of(work), bound._border_of(step)
            work[d_z:d] += step[:d_z] @ border + bound.times_locals(work, step[None, d_z:d])[0]
            border[...] = e_zz.T @ border + bound.times_locals(work, moved)
            if layout.local_dim == 1:
                k = step[bound._blocks]
                work[bound._blocks] *= 1 + k + 0.5 * (k * k)
            else:
                bound._pack_blocks(bound._dense_blocks(work) @ exponential(bound.xp, bound._dense_blocks(step)), work)
        work[bound._zz] = (c_zz @ e_zz).ravel()[bound._zz_position]


class FullRankCoordinates(NaturalCoordinates):
    """All coordinates are one block."""

    def whiten(self, work: Array, slopes: Array) -> Array:
        return slopes @ self.bound._dense(work)

    def limit(self, step: Array, trust: float) -> float:
        least = step[self.bound.diagonal].min().reshape(1)
        factor, share = self._shrink(self.bound.xp.stack([step @ step]), least, trust)
        if factor is not None:
            step *= factor
        return share

    def retract(self, work: Array, step: Array) -> None:
        bound, d = self.bound, self.bound.layout.dim
        c = bound._dense(work)
        work[:d] += c @ step[:d]
        work[d:] = (c @ exponential(bound.xp, bound._dense(step))).ravel()[bound._positions()]


def exponential(xp: Any, k: Array) -> Array:
    """`I + K + K^2/2` of lower triangles (..., n, n): its diagonal is positive whatever K is."""
    e = 0.5 * (k @ k)
    e += k
    i = np.arange(k.shape[-1])
    e[..., i, i] += 1
    return e
