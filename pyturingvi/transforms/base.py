"""What a transform is: a smooth one-to-one map from unconstrained numbers to values in a constrained set."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.arguments import real_array, whole_number
from pyturingvi.support.array_namespace import Array, namespace_of
from pyturingvi.support.registry import Registry

Pullback = Callable[[Array, float], Array]


class Transform(ABC):
    """A smooth one-to-one map from R^k to a constrained set, over any number of points at once.

    A transform holds `shape` values of its set side by side, `Positive(3)` three positive numbers, say, and
    `Simplex(4, shape=2)` two simplexes of four parts. All methods take any leading axes (points, local blocks), NumPy
    or CuPy arrays, and keep their dtype.

    One of your own sets `shape`, `event_shape`, `n_free` and `support`, and defines `_forward` and `_inverse`.

    Attributes
    ----------
    shape : tuple of int
        How many values there are, along which axes; () is one.
    event_shape : tuple of int
        Shape of a single value: () for a number, (K,) for a vector, (D, D) for a matrix.
    n_free : int
        Unconstrained numbers behind a single value.
    support : str
        What a value must be, in the words of a message: "positive".

    Examples
    --------
    >>> import pyturingvi as tv
    >>> tv.transforms.Positive(2).constrain([0.0, 1.0])
    array([1.        , 2.71828183])
    """

    registry: ClassVar[Registry[Transform]] = Registry("transform")
    name: ClassVar[str] = "transform"
    shape: Any  # tuple[int, ...] once built; a user may give one number
    event_shape: tuple[int, ...] = ()
    n_free: int = 1
    support: str = "in its support"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__name__

    def __post_init__(self) -> None:
        axes = self.shape if isinstance(self.shape, Sequence) else (self.shape,)
        sizes = tuple(whole_number(f"{self.name}: each axis of shape", size, 1) for size in axes)
        object.__setattr__(self, "shape", sizes)

    # ---- public interface ---------------------------------------------------------------------------------
    @property
    def natural_shape(self) -> tuple[int, ...]:
        """Shape of all values together: `shape + event_shape`."""
        return (*self.shape, *self.event_shape)

    @property
    def n_unconstrained(self) -> int:
        """Length k of the unconstrained vector behind all values together."""
        return int(math.prod(self.shape)) * self.n_free

    def constrain(self, v: Any) -> Array:
        """Values (..., *natural_shape) at unconstrained points (..., k)."""
        return self.evaluate(v)[0]

    def unconstrain(self, x: Any) -> Array:
        """The unconstrained points (..., k) of values (..., *natural_shape).

        Raises
        ------
        InputError
            If the shape is wrong, or a value is not in the support.
        """
        x = _real(f"{self.name}: x", x)
        wanted = self.natural_shape
        if x.shape[x.ndim - len(wanted) :] != wanted:
            raise InputError(f"{self.name}: x must have shape {_shape_text(wanted)}, got {x.shape}.")
        lead = x.shape[: x.ndim - len(wanted)]
        with np.errstate(all="ignore"):  # what lies outside is told below
            v = self._inverse(x).reshape(*lead, self.n_unconstrained)
            outside = ~namespace_of(x).isfinite(v)
        if outside.any():
            raise InputError(
                f"{self.name}: x must be {self.support}; {int(outside.any(axis=-1).sum())} points are not."
            )
        return v

    def log_jacobian(self, v: Any) -> Array:
        """Logarithm (...) of the absolute determinant of dx/dv, summed over all values."""
        return self.evaluate(v)[1]

    def pullback(self, v: Any, gradient: Any, log_jacobian: float = 0.0) -> Array:
        """Gradient (..., k) in v of f(x(v)), where `gradient` (..., *natural_shape) is that of f in x.

        Parameters
        ----------
        v, gradient : array
            The points, and the gradient at their values.
        log_jacobian : float
            How often the gradient of the log-Jacobian is added: with 1, a log density in x becomes that in v.
        """
        return self.evaluate(v)[2](gradient, log_jacobian)

    def evaluate(self, v: Any) -> tuple[Array, Array, Pullback]:
        """Values, log-Jacobian and pullback at once, at the cost of one of them.

        Parameters
        ----------
        v : (..., k) array

        Returns
        -------
        values : (..., *natural_shape) array
        log_jacobian : (...) array
        pullback : callable
            (gradient in x, weight) -> gradient in v of f + weight * log-Jacobian.

        Raises
        ------
        InputError
            If v does not have k columns.
        """
        v = _real(f"{self.name}: v", v)
        if v.ndim == 0 or v.shape[-1] != self.n_unconstrained:
            raise InputError(f"{self.name}: v must have shape {_shape_text((self.n_unconstrained,))}, got {v.shape}.")
        lead = v.shape[:-1]
        with np.errstate(over="ignore", invalid="ignore"):  # far out a value may well be infinite
            x, log_jacobian, pull = self._forward(v.reshape(*lead, *self.shape, self.n_free))
        axes = tuple(range(len(lead), len(lead) + len(self.shape)))

        def pullback(gradient: Any, weight: float = 0.0) -> Array:
            gradient = _real(f"{self.name}: gradient", gradient)
            if gradient.shape != x.shape:
                raise InputError(f"{self.name}: gradient must have the values' shape {x.shape}, got {gradient.shape}.")
            with np.errstate(over="ignore", invalid="ignore"):
                return pull(gradient, weight).reshape(v.shape)

        return x, log_jacobian.sum(axis=axes), pullback

    def free_labels(self, scalars: np.ndarray) -> list[str]:
        """A label for each unconstrained number behind a single value, given those of its scalars (event_shape)."""
        return [f"free {k} of {scalars.flat[0]}" for k in range(self.n_free)]

    # ---- for subclasses -----------------------------------------------------------------------------------
    @abstractmethod
    def _forward(self, v: Array) -> tuple[Array, Array, Pullback]:
        """Of v (..., n_free): values (..., *event_shape), log-Jacobian (...), and what `evaluate` calls pullback."""

    @abstractmethod
    def _inverse(self, x: Array) -> Array:
        """Of values (..., *event_shape): v (..., n_free), not finite where a value is not in the support."""


def _real(what: str, value: Any) -> Array:
    """A float array as it is; anything else as float64."""
    dtype = getattr(value, "dtype", None)
    return value if dtype in (np.float64, np.float32) and hasattr(value, "ndim") else real_array(what, value)


def _shape_text(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(["...", *map(str, shape)]) + ")"
