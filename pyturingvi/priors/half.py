"""The positive halves of symmetric distributions: Student-t, normal, Cauchy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyturingvi.priors.base import ScalePrior
from pyturingvi.support.arguments import positive_number
from pyturingvi.support.array_namespace import Array, namespace_of


@dataclass(frozen=True)
class HalfStudentT(ScalePrior):
    """The positive half of a Student-t: density 2 t_nu(s/scale)/scale.

    Parameters
    ----------
    nu : float
        Degrees of freedom. The smaller, the longer the tail: 1 is the half-Cauchy.
    scale : float

    Raises
    ------
    InputError
        If one is no finite number above 0.
    """

    nu: float = 4.0
    scale: float = 1.0
    name: ClassVar[str] = "half-student-t"

    def __post_init__(self) -> None:
        _check_positive(self)

    @property
    def log_constant(self) -> float:
        nu = self.nu
        if nu == 4.0:  # the paper's, exactly
            return math.log(0.75) - math.log(self.scale)
        gammas = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)
        return gammas + math.log(2.0) - 0.5 * math.log(nu * math.pi) - math.log(self.scale)

    def log_kernel(self, v: Array) -> Array:
        shifted = 2.0 * v - math.log(self.nu * self.scale**2)
        return -(self.nu + 1) / 2 * namespace_of(v).logaddexp(0.0, shifted)

    def slope(self, precision: Array) -> Array:
        return -(self.nu + 1) / (1.0 + self.nu * self.scale**2 * precision)

    def draw(self, rng: np.random.Generator, size: Any) -> np.ndarray:
        return np.asarray(self.scale * np.abs(rng.standard_t(self.nu, size)))

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.HalfStudentT, self.nu, self.scale)


@dataclass(frozen=True)
class HalfNormal(ScalePrior):
    """The positive half of a normal distribution: density 2 N(s; 0, scale).

    Parameters
    ----------
    scale : float
        Standard deviation of the whole normal distribution.

    Raises
    ------
    InputError
        If it is no finite number above 0.
    """

    scale: float = 1.0
    name: ClassVar[str] = "half-normal"

    def __post_init__(self) -> None:
        _check_positive(self)

    @property
    def log_constant(self) -> float:
        return 0.5 * math.log(2.0 / math.pi) - math.log(self.scale)

    def log_kernel(self, v: Array) -> Array:
        return -0.5 * namespace_of(v).exp(2.0 * v - 2.0 * math.log(self.scale))

    def slope(self, precision: Array) -> Array:
        return -1.0 / (self.scale**2 * precision)

    def draw(self, rng: np.random.Generator, size: Any) -> np.ndarray:
        return np.asarray(self.scale * np.abs(rng.standard_normal(size)))

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.HalfNormal, self.scale)


@dataclass(frozen=True)
class HalfCauchy(ScalePrior):
    """The positive half of a Cauchy distribution: density 2/(pi scale (1 + (s/scale)^2)).

    Parameters
    ----------
    scale : float
        Its median.

    Raises
    ------
    InputError
        If it is no finite number above 0.
    """

    scale: float = 1.0
    name: ClassVar[str] = "half-cauchy"

    def __post_init__(self) -> None:
        _check_positive(self)

    @property
    def log_constant(self) -> float:
        return math.log(2.0 / (math.pi * self.scale))

    def log_kernel(self, v: Array) -> Array:
        return -namespace_of(v).logaddexp(0.0, 2.0 * v - 2.0 * math.log(self.scale))

    def slope(self, precision: Array) -> Array:
        return -2.0 / (1.0 + self.scale**2 * precision)

    def draw(self, rng: np.random.Generator, size: Any) -> np.ndarray:
        return np.asarray(self.scale * np.abs(rng.standard_cauchy(size)))

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.half_cauchy, self.scale)


def _check_positive(prior: ScalePrior) -> None:
    for name, value in vars(prior).items():
        object.__setattr__(prior, name, positive_number(f"{type(prior).__name__}: {name}", value))
