"""Stepsize schedules: a number for each update, counted from 1."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.arguments import whole_number
from pyturingvi.support.registry import CLASS_KEY, class_path

MAX_STEPSIZE = 1e15  # a step of any finite gradient then stays finite, in float32 too


def check_stepsize(value: Any, where: str) -> float:
    """A positive finite number, or an InputError that names `where`."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: the stepsize must be a number or a schedule, got {value!r}.") from None
    if isinstance(value, bool | np.bool_ | str) or not (math.isfinite(number) and number > 0):
        raise InputError(f"{where}: the stepsize must be a finite number above 0, got {value!r}.")
    if number > MAX_STEPSIZE:
        raise InputError(f"{where}: no fit can use the stepsize {value!r}; it must be at most {MAX_STEPSIZE:g}.")
    return number


@dataclass(frozen=True)
class Fixed:
    """The same stepsize at every update."""

    stepsize: float

    def __call__(self, iteration: int) -> float:
        return self.stepsize

    def config(self) -> Any:
        if type(self) is Fixed:
            return self.stepsize
        return {"schedule": "fixed", "stepsize": self.stepsize, CLASS_KEY: class_path(type(self))}


@dataclass(frozen=True)
class StepDecay:
    """`initial * factor**k` after k full stages of `every` updates."""

    initial: float
    factor: float
    every: int

    def __call__(self, iteration: int) -> float:
        return float(self.initial * self.factor ** ((iteration - 1) // self.every))

    def config(self) -> Any:
        own = {} if type(self) is StepDecay else {CLASS_KEY: class_path(type(self))}
        return {"schedule": "step-decay", "initial": self.initial, "factor": self.factor, "every": self.every, **own}


Schedule = Fixed | StepDecay


def step_decay(initial: float, factor: float = 0.1, every: int = 10_000) -> StepDecay:
    """A stepsize that is multiplied by `factor` every `every` updates.

    Parameters
    ----------
    initial : float
        Stepsize of the first stage, above 0.
    factor : float
        Multiplier between stages, in (0, 1].
    every : int
        Updates in a stage, at least 1.

    Returns
    -------
    StepDecay
        To be given to an optimizer in place of a number: `tv.Adam(tv.step_decay(1e-3))`.

    Raises
    ------
    InputError
        For a value outside these ranges.
    """
    initial = check_stepsize(initial, "step_decay")
    if not (isinstance(factor, numbers.Real) and 0 < factor <= 1):
        raise InputError(f"step_decay: factor must lie in (0, 1], got {factor!r}.")
    if isinstance(every, bool) or not isinstance(every, numbers.Integral) or every < 1:
        raise InputError(f"step_decay: every must be a whole number of at least 1, got {every!r}.")
    return StepDecay(initial, float(factor), whole_number("step_decay: every", every, 1))


def as_schedule(stepsize: Any, where: str) -> Schedule:
    """Read an optimizer's stepsize: a number, a schedule, or what `config` gave."""
    if isinstance(stepsize, Fixed | StepDecay):
        return stepsize
    if isinstance(stepsize, dict) and CLASS_KEY in stepsize:
        raise InputError(f"{where}: the stepsize is the class {stepsize[CLASS_KEY]}, which is not rebuilt.")
    if isinstance(stepsize, dict) and {"initial", "factor", "every"} <= stepsize.keys():
        return step_decay(stepsize["initial"], stepsize["factor"], stepsize["every"])
    return Fixed(check_stepsize(stepsize, where))
