"""Robust Poisson regression whose locals are the noise of the log rates, as it is or standardized."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.models.parts import LOG_2PI, pieces, row_sums
from pyturingvi.models.rpoisson_prior import normals_and_scales, scales_and_coefficients_gradient
from pyturingvi.support.array_namespace import Array, namespace_of

if TYPE_CHECKING:
    from pyturingvi.models.rpoisson import RobustPoisson


class NoiseForm:
    """Locals w_i with log rates `mean_i + w_i`, w_i ~ N(0, s_eta), or `mean_i + s_eta w_i`, w_i ~ N(0, 1).

    Parameters
    ----------
    model : RobustPoisson
        Whose data and priors it has.
    standardized : bool
        The second of the two.
    """

    def __init__(self, model: RobustPoisson, standardized: bool) -> None:
        self.model, self.standardized = model, standardized
        # how many variables have each scale in their density
        self.sizes = np.array([1.0, len(model.covariates), 0.0 if standardized else len(model.y)])

    def log_rates(self, z: Array, w: Array) -> Array:
        """Log rates (M, N)."""
        model = self.model
        (design,) = model._on(z, design=model._design)
        eta = z[:, 3:] @ design
        if model._has_offset:
            eta += model._on(z, offset=model.offset)[0]
        eta += self._noise(z, w)
        return eta

    def locals_of(self, z: Array, eta: Array) -> Array:
        """The locals (M, N) that give these log rates."""
        w = eta - self.log_rates(z, namespace_of(z).zeros_like(eta))
        return w / namespace_of(z).exp(z[:, 2:3]) if self.standardized else w

    def _noise(self, z: Array, w: Array) -> Array:
        return w * namespace_of(z).exp(z[:, 2:3]) if self.standardized else w

    def evaluate(self, points: Array, density: Array | None, gradient: Array | None) -> None:
        """Fill `density` (M,) and `gradient` (M, d), each unless it is None."""
        xp, model = namespace_of(points), self.model
        if model._large_counts and points.dtype != np.float64:  # which need their log rates in float64
            wide = None if gradient is None else xp.empty(points.shape)
            self.evaluate(points.astype(np.float64), density, wide)
            if gradient is not None:
                gradient[...] = wide
            return
        n_global = model.layout.n_global
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for rows in pieces(xp, points.shape[0], model.layout.n_local):
                z, w = points[rows, :n_global], points[rows, n_global:]
                eta = self.log_rates(z, w)
                rate = xp.exp(eta)
                squares = row_sums(w * w)
                if density is not None:
                    density[rows] = self._density_of(z, eta, rate, squares)
                if gradient is not None:
                    self._gradient_of(z, w, rate, squares, gradient[rows])

    def _density_of(self, z: Array, eta: Array, rate: Array, squares: Array) -> Array:
        model, wide = self.model, z.astype(np.float64)
        (counts,) = model._on(z, counts=model.y)
        (sizes,) = model._on(wide, sizes_of_noise=self.sizes)
        total = row_sums(eta * counts) - row_sums(rate) + model._constant
        if self.standardized:
            return total - 0.5 * squares + normals_and_scales(model.priors, wide, 0.0 * squares, sizes)
        return total + normals_and_scales(model.priors, wide, squares, sizes)

    def _gradient_of(self, z: Array, w: Array, rate: Array, squares: Array, out: Array) -> None:
        """Gradient into `out` (M, d); `rate` is used up."""
        xp, model, n_global = namespace_of(z), self.model, self.model.layout.n_global
        design, counts, sizes = model._on(z, design=model._design, counts=model.y, sizes_of_noise=self.sizes)
        surplus = xp.subtract(counts, rate, out=rate)
        precision = xp.exp(-2.0 * z[:, :3])
        squares = 0.0 if self.standardized else squares.astype(z.dtype)
        pull = surplus @ design.T
        scales_and_coefficients_gradient(model.priors, z, precision, squares, sizes, pull, out[:, :n_global])
        if self.standardized:
            surplus *= xp.exp(z[:, 2:3])
            out[:, 2] += xp.einsum("mn,mn->m", surplus, w)
            xp.subtract(surplus, w, out=out[:, n_global:])
        else:
            xp.subtract(surplus, precision[:, 2:] * w, out=out[:, n_global:])

    def terms(self, points: Array, weights: Array | None, out: Array | None) -> tuple[Array, Array]:
        """Global term (M,) and local terms (M, N); with `out` (M, d), the gradient of their weighted sum too."""
        xp, model, n_global = namespace_of(points), self.model, self.model.layout.n_global
        z, w = points[:, :n_global], points[:, n_global:]
        names = {"design": model._design, "counts": model.y, "log_factorials": model._log_factorials}
        design, counts, log_factorials = model._on(points, **names)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            eta = self.log_rates(z, w)
            rate = xp.exp(eta)
            precision = xp.exp(-2.0 * z[:, :3])
            weight = xp.ones_like(precision[:, 2:]) if self.standardized else precision[:, 2:]
            local = eta * counts
            local -= rate
            local -= log_factorials + 0.5 * LOG_2PI
            local -= 0.5 * weight * w * w
            if not self.standardized:
                local -= z[:, 2:3]
            prior = model._global_term(z)
            if out is not None and weights is not None:
                surplus = weights * (counts - rate)
                (sizes,) = model._on(points, sizes_of_globals=model._sizes * [1, 1, 0])
                pull = surplus @ design.T
                scales_and_coefficients_gradient(model.priors, z, precision, 0.0, sizes, pull, out[:, :n_global])
                if self.standardized:
                    surplus *= xp.exp(z[:, 2:3])
                    out[:, 2] += xp.einsum("mn,mn->m", surplus, w)
                else:
                    out[:, 2] += xp.einsum("mn,mn,mn->m", weights, weight * w, w) - weights.sum(axis=1)
                xp.subtract(surplus, weights * weight * w, out=out[:, n_global:])
        return prior, local
