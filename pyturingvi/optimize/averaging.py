"""Iterate averaging: the fit returns a running average of the parameters instead of the last ones."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

from pyturingvi.errors import InputError
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.registry import CLASS_KEY, class_path


@dataclass(frozen=True)
class PolynomialAveraging:
    """Average in which the weight of update t grows like t**eta (Shamir and Zhang, 2013).

    Parameters
    ----------
    eta : float
        0 is the plain mean of all iterates; the default 8 leans on the last ones.
    """

    eta: float = 8.0

    def __post_init__(self) -> None:
        if not (isinstance(self.eta, numbers.Real) and 0 <= self.eta < float("inf")):
            raise InputError(f"PolynomialAveraging: eta must be a finite number of at least 0, got {self.eta!r}.")

    def update(self, average: Array, work: Array, iteration: int) -> None:
        """Move `average` in place towards the parameters after update `iteration`, counted from 1."""
        weight = (self.eta + 1) / (iteration + self.eta)
        average *= 1 - weight
        average += weight * work

    def config(self) -> dict[str, Any]:
        """JSON-able description."""
        own = {} if type(self) is PolynomialAveraging else {CLASS_KEY: class_path(type(self))}
        return {"averaging": "polynomial", "eta": float(self.eta), **own}
