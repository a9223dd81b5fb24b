"""Robust Poisson regression whose locals are the log rates themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.models.parts import LOG_2PI, pieces, row_sums
from pyturingvi.models.rpoisson_prior import normals_and_scales, scales_and_coefficients_gradient
from pyturingvi.support.array_namespace import Array, namespace_of

if TYPE_CHECKING:
    from pyturingvi.models.rpoisson import RobustPoisson


class CentredForm:
    """Locals eta_i, the log rates, with eta_i ~ N(mean_i, s_eta).

    Parameters
    ----------
    model : RobustPoisson
        Whose data and priors it has.
    """

    def __init__(self, model: RobustPoisson) -> None:
        self.model = model

    def log_rates(self, z: Array, eta: Array) -> Array:
        """Log rates (M, N)."""
        return eta

    def locals_of(self, z: Array, eta: Array) -> Array:
        """The locals (M, N) that give these log rates."""
        return eta

    def residual(self, z: Array, eta: Array) -> Array:
        """What eta (M, N) has above its mean."""
        model = self.model
        (design,) = model._on(z, design=model._design)
        residual = z[:, 3:] @ design
        namespace_of(z).subtract(eta, residual, out=residual)
        if model._has_offset:
            residual -= model._on(z, offset=model.offset)[0]
        return residual

    def evaluate(self, points: Array, density: Array | None, gradient: Array | None) -> None:
        """Fill `density` (M,) and `gradient` (M, d), each unless it is None."""
        xp, layout = namespace_of(points), self.model.layout
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for rows in pieces(xp, points.shape[0], layout.n_local):
                z, eta = points[rows, : layout.n_global], points[rows, layout.n_global :]
                residual = self.residual(z, eta)
                rate = xp.exp(eta)
                if density is not None:
                    density[rows] = self._density_of(z, eta, residual, rate)
                if gradient is not None:
                    self._gradient_of(z, residual, rate, gradient[rows])

    def _density_of(self, z: Array, eta: Array, residual: Array, rate: Array) -> Array:
        """Log density (M,) from the globals, the residuals of eta and the rates exp(eta)."""
        xp, model = namespace_of(z), self.model
        (counts,) = model._on(z, counts=model.y)
        if z.dtype == np.float64:
            likelihood, squares = eta @ counts, xp.einsum("mn,mn->m", residual, residual)
        else:  # products in float32, sums in float64
            squares = row_sums(residual * residual)
            if model._large_counts:
                eta = eta.astype(np.float64)
                rate, (counts,) = xp.exp(eta), model._on(eta, counts=model.y)
            likelihood = row_sums(eta * counts)
        likelihood -= row_sums(rate)
        wide = z.astype(np.float64)
        (sizes,) = model._on(wide, sizes=model._sizes)
        return likelihood + normals_and_scales(model.priors, wide, squares, sizes) + model._constant

    def _gradient_of(self, z: Array, residual: Array, rate: Array, out: Array) -> None:
        """Gradient into `out` (M, d); `residual` and `rate` are used up."""
        xp, model, n_global = namespace_of(z), self.model, self.model.layout.n_global
        design, counts, sizes = model._on(z, design=model._design, counts=model.y, sizes=model._sizes)
        precision = xp.exp(-2.0 * z[:, :3])
        squares = xp.einsum("mn,mn->m", residual, residual)
        residual *= precision[:, 2:]
        pull = residual @ design.T
        scales_and_coefficients_gradient(model.priors, z, precision, squares, sizes, pull, out[:, :n_global])
        # `out` is written once: its rows are not aligned, and passes over it cost twice those over a buffer
        rate += residual
        xp.subtract(counts, rate, out=out[:, n_global:])

    def terms(self, points: Array, weights: Array | None, out: Array | None) -> tuple[Array, Array]:
        """Global term (M,) and local terms (M, N); with `out` (M, d), the gradient of their weighted sum too."""
        xp, model, n_global = namespace_of(points), self.model, self.model.layout.n_global
        z, eta = points[:, :n_global], points[:, n_global:]
        names = {"design": model._design, "counts": model.y, "log_factorials": model._log_factorials}
        design, counts, log_factorials = model._on(points, **names)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            residual = self.residual(z, eta)
            rate = xp.exp(eta)
            precision = xp.exp(-2.0 * z[:, :3])
            pull = precision[:, 2:] * residual
            local = eta * counts
            local -= rate
            local -= log_factorials + 0.5 * LOG_2PI
            local -= z[:, 2:3]
            residual *= pull
            local -= 0.5 * residual
            prior = model._global_term(z)
            if out is not None and weights is not None:
                (sizes,) = model._on(points, sizes_of_globals=model._sizes * [1, 1, 0])
                pulled = (weights * pull) @ design.T
                scales_and_coefficients_gradient(model.priors, z, precision, 0.0, sizes, pulled, out[:, :n_global])
                out[:, 2] += xp.einsum("mn,mn->m", weights, residual) - weights.sum(axis=1)
                pull += rate
                out[:, n_global:] = weights * (counts - pull)
        return prior, local
