"""NumPy's own warnings are for those who write formulas: a user is told in words what they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

Takes = ParamSpec("Takes")
Gives = TypeVar("Gives")


def quietly(function: Callable[Takes, Gives]) -> Callable[Takes, Gives]:
    """The function, in which NumPy's overflow and NaN pass in silence: a density without an end brings them about."""

    @functools.wraps(function)
    def call(*args: Takes.args, **kwargs: Takes.kwargs) -> Gives:
        with np.errstate(all="ignore"):  # a new one each time: calls may be nested
            return function(*args, **kwargs)

    return call
