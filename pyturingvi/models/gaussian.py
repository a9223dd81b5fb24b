"""The synthetic target of the paper's figures 1 and 2: an isotropic Gaussian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.base import Model
from pyturingvi.models.parts import LOG_2PI, pieces, row_sums
from pyturingvi.support.arguments import real_number
from pyturingvi.support.array_namespace import Array, namespace_of

if TYPE_CHECKING:
    from pyturingvi.bridge.runtime import Runtime


class IsotropicGaussian(Model):
    """All variables independently N(mean, variance): z once, and N local blocks y_n.

    The optimum of every family is known: location `mean`, scale `sqrt(variance)` times the identity
    (Ko et al. 2024, section "Synthetic Experiments").

    Parameters
    ----------
    n_local : int
        Number N of local blocks; may be 0 if `n_global` is not.
    n_global : int
        Length d_z of the global variable.
    local_dim : int
        Length d_y of each local block; not used if `n_local` is 0.
    mean : float
        Mean of every coordinate.
    variance : float
        Variance (not standard deviation) of every coordinate.

    Raises
    ------
    InputError
        If a count is not a whole number of at least 0, the mean is not finite or the variance not positive.
    """

    name: ClassVar[str] = "gaussian"
    thread_safe: ClassVar[bool] = True

    def __init__(
        self,
        n_local: int,
        n_global: int = 5,
        local_dim: int = 3,
        mean: float = 5.0,
        variance: float = 0.1,
    ) -> None:
        self.layout = Layout(n_global, n_local, local_dim if n_local != 0 else 0)
        self.mean = real_number("IsotropicGaussian: mean", mean)
        self.variance = real_number("IsotropicGaussian: variance", variance)
        if not np.isfinite(self.mean):
            raise InputError(f"IsotropicGaussian: mean must be finite, got {mean!r}.")
        if not 0 < self.variance < np.inf:
            raise InputError(f"IsotropicGaussian: variance must be positive and finite, got {variance!r}.")

    def optimum(self) -> tuple[np.ndarray, float]:
        """The paper's: location `mean`, scale `sqrt(variance)` times the identity."""
        return np.full(self.dim, self.mean), float(np.sqrt(self.variance))

    def to_julia(self, runtime: Runtime) -> Any:
        layout = self.layout
        sizes = (layout.n_global, layout.n_local, layout.local_dim)
        return runtime.call(runtime.module.gaussian_model, *sizes, self.mean, self.variance)

    def get_state(self) -> dict[str, Any]:
        layout = self.layout
        return {
            "n_local": layout.n_local,
            "n_global": layout.n_global,
            "local_dim": layout.local_dim,
            "mean": self.mean,
            "variance": self.variance,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> IsotropicGaussian:
        return cls(**{key: state[key] for key in ("n_local", "n_global", "local_dim", "mean", "variance")})

    # ---- density ------------------------------------------------------------------------------------------
    def _log_density(self, points: Array) -> Array:
        xp = namespace_of(points)
        total = xp.empty(points.shape[0], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in pieces(xp, points.shape[0], self.dim):
                centred = points[rows] - self.mean
                centred *= centred
                total[rows] = row_sums(centred)
        total *= -0.5 / self.variance
        total -= 0.5 * self.dim * (LOG_2PI + float(np.log(self.variance)))
        return total

    def _log_terms(self, points: Array) -> tuple[Array, Array]:
        layout = self.layout
        with np.errstate(over="ignore", invalid="ignore"):
            logs = (points.astype(np.float64) - self.mean) ** 2
            logs *= -0.5 / self.variance
        logs -= 0.5 * (LOG_2PI + float(np.log(self.variance)))
        blocks = logs[:, layout.n_global :].reshape(points.shape[0], layout.n_local, layout.local_dim)
        return logs[:, : layout.n_global].sum(axis=1), blocks.sum(axis=2)

    def _global_term(self, z: Array) -> Array:
        square = ((z - self.mean) ** 2).sum(axis=1) / self.variance
        return -0.5 * (square + z.shape[1] * (LOG_2PI + float(np.log(self.variance))))

    def _log_terms_and_gradient(self, points: Array, weights: Array) -> tuple[Array, Array, Array]:
        layout, wide = self.layout, points.astype(np.float64)
        gradient = namespace_of(points).empty_like(wide)
        self._gradient(wide, gradient)
        blocks = gradient[:, layout.n_global :].reshape(len(points), layout.n_local, layout.local_dim)
        blocks *= weights[:, :, None]
        return *self._log_terms(points), gradient

    def _gradient(self, points: Array, out: Array) -> None:
        xp = namespace_of(points)
        with np.errstate(over="ignore", invalid="ignore"):
            xp.subtract(self.mean, points, out=out)
            out *= 1.0 / self.variance

    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        gradient = namespace_of(points).empty_like(points)
        IsotropicGaussian._gradient(self, points, gradient)  # by name: a subclass may make its own of this method
        return IsotropicGaussian._log_density(self, points), gradient
