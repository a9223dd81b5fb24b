"""The synthetic target of the paper's figures 1 and 2: an isotropic Gaussian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.base import Model
from pyturingvi.models.parts import LOG_2PI, pieces, row_sums, take_natural
from pyturingvi.support.array_namespace import Array, namespace_of


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

    def __init__(
        self,
        n_local: int,
        n_global: int = 5,
        local_dim: int = 3,
        mean: float = 5.0,
        variance: float = 0.1,
    ) -> None:
        self.layout = Layout(n_global, n_local, local_dim if n_local != 0 else 0)
        self.mean = _number(mean, "mean")
        self.variance = _number(variance, "variance")
        if not self.variance > 0:
            raise InputError(f"IsotropicGaussian: variance must be positive, got {variance!r}.")

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def global_labels(self) -> list[str]:
        return [f"z[{k}]" for k in range(self.layout.n_global)]

    @property
    def dims(self) -> dict[str, list[str]]:
        return natural_dims(self.layout)

    @property
    def coords(self) -> dict[str, list[Any]]:
        return natural_coords(self.layout)

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

    def _gradient(self, points: Array, out: Array) -> None:
        xp = namespace_of(points)
        with np.errstate(over="ignore", invalid="ignore"):
            xp.subtract(self.mean, points, out=out)
            out *= 1.0 / self.variance

    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        gradient = namespace_of(points).empty_like(points)
        self._gradient(points, gradient)
        return self._log_density(points), gradient

    # ---- natural space ------------------------------------------------------------------------------------
    def _constrain_global(self, z: Array) -> dict[str, Array]:
        return natural_global(z)

    def _constrain_local(self, points: Array) -> dict[str, Array]:
        return natural_local(points, self.layout)

    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        return from_natural(values, self.layout, self.name)


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise InputError(f"IsotropicGaussian: {what} must be a finite number, got {value!r}.")
    return number


# ---- models whose natural space is the unconstrained one: z and y ------------------------------------------
def natural_dims(layout: Layout) -> dict[str, list[str]]:
    """Axes of z and y; an empty part is left out."""
    dims: dict[str, list[str]] = {}
    if layout.n_global:
        dims["z"] = ["global"]
    if layout.n_local:
        dims["y"] = ["block", "local"]
    return dims


def natural_coords(layout: Layout) -> dict[str, list[Any]]:
    """Labels 0, 1, ... along the axes of `natural_dims`."""
    sizes = {"global": layout.n_global, "block": layout.n_local, "local": layout.local_dim}
    return {axis: list(range(size)) for axis, size in sizes.items() if size}


def natural_global(z: Array) -> dict[str, Array]:
    """{'z': (M, d_z)}, or nothing where d_z is 0."""
    return {"z": z.copy()} if z.shape[1] else {}


def natural_local(points: Array, layout: Layout) -> dict[str, Array]:
    """{'y': (M, N, d_y)}, or nothing where N is 0."""
    if layout.n_local == 0:
        return {}
    shape = (points.shape[0], layout.n_local, layout.local_dim)
    return {"y": points[:, layout.n_global :].copy().reshape(shape)}


def from_natural(values: Mapping[str, np.ndarray], layout: Layout, model: str) -> np.ndarray:
    """Flat (M, d) points from z and y."""
    shapes: dict[str, tuple[int, ...]] = {}
    if layout.n_global:
        shapes["z"] = (layout.n_global,)
    if layout.n_local:
        shapes["y"] = (layout.n_local, layout.local_dim)
    found = take_natural(values, shapes, model)
    return np.concatenate([array.reshape(array.shape[0], -1) for array in found.values()], axis=1)
