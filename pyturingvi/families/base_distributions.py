"""Standardized base distributions: mean 0, variance 1, third moment 0, finite kurtosis (paper, section 2.2)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.support.array_namespace import Array, namespace_of
from pyturingvi.support.registry import CLASS_KEY, Named, Registry

BaseSpec = str | tuple[Any, ...]  # "gaussian", "laplace", ("student_t", nu)


class BaseDistribution(Named, ABC):
    """One coordinate of the noise vector u; coordinates are independent and identically distributed.

    For one of your own give `kurtosis`, `entropy`, `fill` and `log_density`, of a distribution with mean 0, variance 1
    and third moment 0, and pass it as `tv.Structured(base=MyBase())`.
    """

    registry: ClassVar[Registry[BaseDistribution]] = Registry("base distribution")

    @property
    @abstractmethod
    def kurtosis(self) -> float:
        """Fourth moment E u^4."""

    @property
    @abstractmethod
    def entropy(self) -> float:
        """Differential entropy of one coordinate, in nats."""

    @property
    def spec(self) -> BaseSpec:
        """The words a user writes for it: its name, or the name and its parameters."""
        values = tuple(vars(self).values())
        return (self.name, *values) if values else self.name

    @abstractmethod
    def fill(self, generator: Any, out: Array) -> None:
        """Overwrite `out` with draws of a numpy or cupy random Generator."""

    @abstractmethod
    def log_density(self, u: Array) -> Array:
        """Log density of each coordinate."""

    def score(self, u: Array) -> Array:
        """`psi(u) = -d log density / du` of each coordinate; by default from central differences."""
        step = 1e-5 * (1 + abs(u))
        return (self.log_density(u - step) - self.log_density(u + step)) / (2 * step)

    @property
    def information(self) -> tuple[float, float]:
        """Fisher information `(E psi^2, E (psi u - 1)^2)` of location and log scale; by default by quadrature."""
        return information_of(self.log_density, self.score)


def information_of(log_density: Callable[[Array], Array], score: Callable[[Array], Array]) -> tuple[float, float]:
    """Fisher information of location and log scale of a density with this score, by quadrature."""
    from scipy.integrate import quad

    def mean(function: Any) -> float:
        def integrand(x: float) -> float:
            u = np.array([x])
            return float(np.exp(log_density(u))[0] * function(u, score(u))[0])

        # full_output: what it warns of shows in the value
        halves = [quad(integrand, *ends, limit=200, full_output=1)[0] for ends in ((-np.inf, 0), (0, np.inf))]
        return float(sum(halves))

    with np.errstate(all="ignore"):
        return mean(lambda u, psi: psi**2), mean(lambda u, psi: (psi * u - 1) ** 2)


@dataclass(frozen=True)
class Gaussian(BaseDistribution):
    """Standard normal, kurtosis 3."""

    name: ClassVar[str] = "gaussian"

    @property
    def kurtosis(self) -> float:
        return 3.0

    @property
    def entropy(self) -> float:
        return 0.5 * (math.log(2 * math.pi) + 1)

    def fill(self, generator: Any, out: Array) -> None:
        generator.standard_normal(out=out, dtype=out.dtype)

    def log_density(self, u: Array) -> Array:
        return -0.5 * (u * u) - 0.5 * math.log(2 * math.pi)

    def score(self, u: Array) -> Array:
        return u

    @property
    def information(self) -> tuple[float, float]:
        return 1.0, 2.0

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.Gaussian)


@dataclass(frozen=True)
class Laplace(BaseDistribution):
    """Laplace with scale 1/sqrt(2), hence variance 1; kurtosis 6."""

    name: ClassVar[str] = "laplace"

    @property
    def kurtosis(self) -> float:
        return 6.0

    @property
    def entropy(self) -> float:
        return 1 + 0.5 * math.log(2)

    def fill(self, generator: Any, out: Array) -> None:
        # A difference of two unit exponentials is Laplace with scale 1; CuPy's Generator has no laplace.
        generator.standard_exponential(out=out, dtype=out.dtype)
        out -= generator.standard_exponential(size=out.shape, dtype=out.dtype)
        out *= math.sqrt(0.5)

    def log_density(self, u: Array) -> Array:
        return -math.sqrt(2) * abs(u) - 0.5 * math.log(2)

    def score(self, u: Array) -> Array:
        return math.sqrt(2) * namespace_of(u).sign(u)

    @property
    def information(self) -> tuple[float, float]:
        return 2.0, 1.0

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.Laplace)


@dataclass(frozen=True)
class StudentT(BaseDistribution):
    """Student-t with nu > 4 degrees of freedom, scaled to variance 1; kurtosis 3 + 6/(nu - 4)."""

    nu: float
    name: ClassVar[str] = "student_t"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.nu) and self.nu > 4):
            raise InputError(
                f"base=('student_t', nu): nu must be a finite number above 4, so that the kurtosis is finite; "
                f"got {self.nu!r}."
            )

    @property
    def _scale(self) -> float:
        return math.sqrt((self.nu - 2) / self.nu)

    @property
    def kurtosis(self) -> float:
        return 3 + 6 / (self.nu - 4)

    @property
    def entropy(self) -> float:
        from scipy.special import betaln, digamma

        nu = self.nu
        half = (nu + 1) / 2 * (digamma((nu + 1) / 2) - digamma(nu / 2))
        return float(half + 0.5 * math.log(nu) + betaln(nu / 2, 0.5) + math.log(self._scale))

    def fill(self, generator: Any, out: Array) -> None:
        # Normal over a scaled chi, with chi^2_nu = 2 Gamma(nu/2): both engines' generators have these two.
        xp = namespace_of(out)
        generator.standard_normal(out=out, dtype=out.dtype)
        chi2 = generator.standard_gamma(self.nu / 2, size=out.shape, dtype=out.dtype)
        chi2 *= 2 / self.nu
        out /= xp.sqrt(chi2)
        out *= self._scale

    def log_density(self, u: Array) -> Array:
        from scipy.special import betaln

        xp = namespace_of(u)
        nu = self.nu
        constant = -(betaln(nu / 2, 0.5) + 0.5 * math.log(nu) + math.log(self._scale))
        return float(constant) - (nu + 1) / 2 * xp.log1p((u / self._scale) ** 2 / nu)

    def score(self, u: Array) -> Array:
        return (self.nu + 1) * u / (self.nu * self._scale**2 + u * u)

    @property
    def information(self) -> tuple[float, float]:
        nu = self.nu
        return (nu + 1) / (nu + 3) / self._scale**2, 2 * nu / (nu + 3)

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.StudentT, float(self.nu))


for _class in (Gaussian, Laplace, StudentT):
    BaseDistribution.registry.add(_class)


def base_distribution(spec: BaseSpec | BaseDistribution, written_class: str | None = None) -> BaseDistribution:
    """Read the `base=` argument of a family, or what a file has in its place.

    Raises
    ------
    InputError
        For an unknown name or nu <= 4.
    """
    if isinstance(spec, BaseDistribution):
        return spec
    if spec == "student_t":
        raise InputError("base='student_t' needs its degrees of freedom: base=('student_t', 10).")
    name, *values = [spec] if isinstance(spec, str) or not isinstance(spec, tuple | list) else spec
    known = BaseDistribution.registry
    if written_class is None and (not isinstance(name, str) or name not in known):
        raise unknown_name("base distribution", spec, ["gaussian", "laplace", "('student_t', nu)", *list(known)[3:]])
    found = known.find(name, {} if written_class is None else {CLASS_KEY: written_class})
    if found is StudentT and len(values) == 1:
        try:
            values = [float(values[0])]
        except (TypeError, ValueError):
            raise InputError(f"base=('student_t', nu): nu must be a number, got {values[0]!r}.") from None
    try:
        return found(*values)
    except TypeError:
        raise unknown_name("base distribution", spec, ["gaussian", "laplace", "('student_t', nu)"]) from None
