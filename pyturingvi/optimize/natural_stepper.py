"""What the loop of a fit by natural gradients asks of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from pyturingvi.families import Family
from pyturingvi.optimize.natural_leg import Leg

VECTORS = ("params", "velocity", "mark", "best")
ROW_COLUMNS = 6  # of what an update reports: mean, variance, inner, square, shortened, global_square


class NaturalStepper(ABC):
    """Natural-gradient updates in some engine.

    Attributes
    ----------
    done : int
        Updates made.
    params_valid : bool
        False while an update is half made.
    unreported : sequence of rows
        Of the updates that an `advance` made before it raised.
    """

    done: int = 0
    params_valid: bool = True
    unreported: Sequence[tuple[float, ...]] = ()

    @abstractmethod
    def begin(self, family: Family, vectors: dict[str, np.ndarray], count: int) -> None:
        """Start on a family.

        Parameters
        ----------
        vectors : dict
            "params", flat parameters (p,) of the standardized form; the rest of `VECTORS` where a run goes on.
        count : int
            Updates behind the velocity.
        """

    @abstractmethod
    def advance(self, leg: Leg) -> tuple[np.ndarray, bool]:
        """Make updates of a leg for about 0.1 s, one at least; none beyond its last.

        Returns
        -------
        rows : (n, 6) array
            One an update: mean and variance of `log p - log q`, inner, square, shortened, global_square.
        finite : bool
            False if the next update would not be finite; everything is then as the last finite one left it.
        """

    @abstractmethod
    def mark(self) -> None:
        """Remember the parameters as the start of a leg."""

    @abstractmethod
    def keep(self) -> None:
        """Remember the start of the leg as the best so far: what came of it is known."""

    @abstractmethod
    def recall(self) -> None:
        """Go back to the best so far, and forget the velocity."""

    @abstractmethod
    def elbo(self, n_samples: int, interrupted: Callable[[], bool]) -> tuple[float, float]:
        """ELBO now with its standard error, from independent draws of `log p - log q`."""

    @abstractmethod
    def params(self) -> np.ndarray:
        """Flat parameters (p,) of the stage's family as it is, in float64, a copy."""

    @abstractmethod
    def standardized(self) -> np.ndarray:
        """The same in the standardized form."""

    @abstractmethod
    def snapshot(self) -> tuple[dict[str, np.ndarray], int]:
        """The vectors of `begin`, and the count."""

    @abstractmethod
    def divergence(self) -> str:
        """Where an update was not finite, in words."""
