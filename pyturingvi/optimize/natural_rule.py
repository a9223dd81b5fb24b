"""`NaturalGradient`: the optimizer that needs no stepsize and ends by itself."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyturingvi.errors import InputError
from pyturingvi.families.base import BoundFamily
from pyturingvi.optimize.rules import Rule, RuleState
from pyturingvi.optimize.schedules import Schedule
from pyturingvi.support.parallel import Workers


@dataclass(frozen=True)
class NaturalGradient(Rule):
    """Natural gradients of the ELBO in the local coordinates of the family's scale matrices.

    The steps do not depend on the units of the variables. The run starts in the mean-field family and goes back with a
    lower rate where a step leads astray. The rate falls once the ELBO no longer rises beyond its noise and directions
    turn back on each other, and the run ends when the noise of its steps costs next to nothing (Lin,
    Nielsen, Khan and Schmidt, 2021; Tan, 2021; Roeder, Wu and Duvenaud, 2017).

    Parameters
    ----------
    rate : float, optional
        Share of the full natural step that an update makes, in (0, 1]; by default from the number of draws and the
        effective dimension, lower where that goes astray.
    momentum : float
        Largest decay of the running average of directions, in [0, 1); at high rates it is less.

    Raises
    ------
    InputError
        If one of them lies outside.
    """

    rate: float | None = None
    momentum: float = 0.9
    stepsize: Any = field(default=None, init=False, repr=False)
    operator: None = field(default=None, init=False, repr=False)
    name: ClassVar[str] = "natural-gradient"
    ends_by_itself: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for key, words in (("rate", "(0, 1]"), ("momentum", "[0, 1)")):
            value = getattr(self, key)
            if key == "rate" and value is None:
                continue
            number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else -1.0
            if not (0 < number <= 1 if key == "rate" else 0 <= number < 1):
                raise InputError(f"NaturalGradient: {key} must lie in {words}, got {value!r}.")
            object.__setattr__(self, key, number)

    @property
    def schedule(self) -> Schedule:
        raise InputError("NaturalGradient has no stepsize: it has a rate, tv.NaturalGradient(rate=0.1).")

    def config(self) -> dict[str, Any]:
        return {"rule": self.name, **self.registry.tag(self), "rate": self.rate, "momentum": self.momentum}

    def start(self, bound: BoundFamily, workers: Workers) -> RuleState:
        raise InputError("NaturalGradient: its updates are made in legs, see pyturingvi.optimize.natural_loop.")

    def to_julia(self, runtime: Any) -> Any:
        """Nothing: Julia is told the rate of each leg."""
        return None


Rule.registry.add(NaturalGradient)
