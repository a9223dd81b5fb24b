"""Numbers, each by itself: anywhere, positive, above or below a bound, or between two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.arguments import real_number
from pyturingvi.support.array_namespace import Array, namespace_of
from pyturingvi.transforms.base import Pullback, Transform


@dataclass(frozen=True)
class Real(Transform):
    """Any real numbers, as they are: x = v.

    Parameters
    ----------
    shape : int or tuple of int
        How many; () is one.
    """

    shape: Any = ()
    support = "finite"

    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        return v[..., 0], namespace_of(v).zeros_like(v[..., 0]), lambda gradient, weight: gradient

    def _inverse(self, x: Array) -> Array:
        return x[..., None]

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        return [str(scalars.item())]


@dataclass(frozen=True)
class LowerBounded(Transform):
    """Numbers above a bound: x = lower + exp(v).

    Parameters
    ----------
    lower : float
    shape : int or tuple of int
        How many; () is one.
    """

    lower: float
    shape: Any = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "lower", _bound(f"{self.name}: lower", self.lower))

    @property
    def support(self) -> str:  # type: ignore[override]
        return f"above {self.lower:g}"

    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        log = v[..., 0]
        above = namespace_of(v).exp(log)
        return self.lower + above, log, lambda gradient, weight: gradient * above + weight

    def _inverse(self, x: Array) -> Array:
        return namespace_of(x).log(x - self.lower)[..., None]

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        return [f"log({scalars.item()} {_minus(self.lower)})"]


@dataclass(frozen=True)
class Positive(Transform):
    """Positive numbers: x = exp(v).

    Parameters
    ----------
    shape : int or tuple of int
        How many; () is one.
    """

    shape: Any = ()
    support = "positive"

    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        log = v[..., 0]
        x = namespace_of(v).exp(log)
        return x, log, lambda gradient, weight: gradient * x + weight

    def _inverse(self, x: Array) -> Array:
        return namespace_of(x).log(x)[..., None]

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        return [f"log {scalars.item()}"]


@dataclass(frozen=True)
class UpperBounded(Transform):
    """Numbers below a bound: x = upper - exp(v).

    Parameters
    ----------
    upper : float
    shape : int or tuple of int
        How many; () is one.
    """

    upper: float
    shape: Any = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "upper", _bound(f"{self.name}: upper", self.upper))

    @property
    def support(self) -> str:  # type: ignore[override]
        return f"below {self.upper:g}"

    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        log = v[..., 0]
        below = namespace_of(v).exp(log)
        return self.upper - below, log, lambda gradient, weight: weight - gradient * below

    def _inverse(self, x: Array) -> Array:
        return namespace_of(x).log(self.upper - x)[..., None]

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        return [f"log({self.upper:g} - {scalars.item()})"]


@dataclass(frozen=True)
class Interval(Transform):
    """Numbers between two bounds: x = lower + (upper - lower) / (1 + exp(-v)).

    Parameters
    ----------
    lower, upper : float
        0 and 1 by default: probabilities.
    shape : int or tuple of int
        How many; () is one.

    Raises
    ------
    InputError
        If the bounds are not finite, or lower is not below upper.
    """

    lower: float = 0.0
    upper: float = 1.0
    shape: Any = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        lower, upper = (_bound(f"{self.name}: {name}", getattr(self, name)) for name in ("lower", "upper"))
        if not lower < upper:
            raise InputError(f"{self.name}: lower must be below upper, got {lower:g} and {upper:g}.")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def support(self) -> str:  # type: ignore[override]
        return f"between {self.lower:g} and {self.upper:g}, neither of them included"

    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        xp, logit, width = namespace_of(v), v[..., 0], self.upper - self.lower
        small = xp.exp(-xp.abs(logit))  # of which nothing overflows, and nothing is lost near either bound
        near = width * small / (1.0 + small)
        x = xp.where(logit < 0, self.lower + near, self.upper - near)
        log_jacobian = math.log(width) - xp.abs(logit) - 2.0 * xp.log1p(small)

        def pull(gradient: Array, weight: float) -> Array:
            return gradient * (near / (1.0 + small)) - weight * xp.tanh(0.5 * logit)

        return x, log_jacobian, pull

    def _inverse(self, x: Array) -> Array:
        xp = namespace_of(x)
        return (xp.log(x - self.lower) - xp.log(self.upper - x))[..., None]

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        return [f"logit {scalars.item()}"]


def _bound(what: str, value: Any) -> float:
    number = real_number(what, value)
    if not math.isfinite(number):
        raise InputError(
            f"{what} must be finite, got {number}. Positive, LowerBounded, UpperBounded and Real have fewer bounds."
        )
    return number


def _minus(value: float) -> str:
    return f"- {value:g}" if value >= 0 else f"+ {-value:g}"
