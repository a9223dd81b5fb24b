"""What a prior of a standard deviation is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pyturingvi.support.array_namespace import Array
from pyturingvi.support.registry import CLASS_KEY, Named, Registry, describe


class ScalePrior(Named, ABC):
    """A density p(s) of a standard deviation s > 0, seen from v = log s.

    One of your own gives `log_constant`, `log_kernel`, `slope` and `draw`. All take NumPy or CuPy arrays of any shape,
    elementwise, and keep their dtype; values far out may be infinite.
    """

    registry: ClassVar[Registry[ScalePrior]] = Registry("prior")

    @property
    @abstractmethod
    def log_constant(self) -> float:
        """What normalizes p(s): log p(exp v) = log_constant + log_kernel(v)."""

    @abstractmethod
    def log_kernel(self, v: Array) -> Array:
        """Log density of s = exp(v) up to its constant, without the Jacobian."""

    @abstractmethod
    def slope(self, precision: Array) -> Array:
        """d log p(s) / d log s, as a function of 1/s^2."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: Any) -> np.ndarray:
        """Draws of s."""

    def log_density(self, v: Array) -> Array:
        """Log density of v = log s: Jacobian included."""
        return self.log_constant + self.log_kernel(v) + v

    def config(self) -> dict[str, Any]:
        """JSON-able description; `prior_from_config` reads it."""
        return {"prior": self.name, **self.registry.tag(self), **describe(vars(self))}


def prior_from_config(config: Mapping[str, Any]) -> ScalePrior:
    """The prior that `config` described; an InputError where its class is not registered here."""
    options = {key: value for key, value in config.items() if key not in ("prior", CLASS_KEY)}
    return ScalePrior.registry.find(config["prior"], config)(**options)
