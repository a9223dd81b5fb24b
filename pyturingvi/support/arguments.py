"""Checks that many arguments share; each error names the argument."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from pyturingvi.errors import InputError

LARGEST = 2**63 - 1  # what 64 bits hold, in Python's arrays and in Julia
LARGEST_SEED = 2**1024 - 1  # any number that a person or a generator of seeds gives; Python writes no longer ones out


def whole_number(name: str, value: Any, least: int, most: int = LARGEST) -> int:
    """`value` as an int from `least` to `most`; a float without a fractional part counts."""
    whole = isinstance(value, int | np.integer) or (
        isinstance(value, float | np.floating) and float(value).is_integer()
    )
    if isinstance(value, np.number) and whole:
        value = int(value)  # small floats and integers of NumPy cannot be compared with the bounds
    if isinstance(value, bool | np.bool_) or not whole or value < least:
        shown = repr(value) if not whole or abs(value) <= LARGEST_SEED else "one that is too long to show"
        raise InputError(f"{name} must be a whole number of at least {least}, got {shown}.")
    if value > most:
        largest = "2**1024 - 1" if most == LARGEST_SEED else str(most)
        raise InputError(f"{name} must be at most {largest}; what was given is larger.")
    return int(value)


def positive_number(name: str, value: Any) -> float:
    """`value` as a float; an InputError where it is no finite real number above 0."""
    try:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
        number = float(value) if real else 0.0
    except OverflowError:
        raise InputError(f"{name} must be a finite number above 0; what was given is too large for a float.") from None
    if not 0 < number < float("inf"):
        raise InputError(f"{name} must be a finite number above 0, got {value!r}.")
    return number


def real_array(name: str, value: Any) -> np.ndarray:
    """`value` as float64, itself where it is that already; an InputError where it is not real numbers."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biufO":
            raise TypeError(f"dtype {array.dtype}")
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be real numbers ({error}).") from None


def real_number(name: str, value: Any) -> float:
    """`value` as a float; an InputError where it is no real number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise InputError(f"{name} must be a number, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} is too large for a float.") from None


def listed(name: str, value: Any, of: str) -> list[Any]:
    """`value` as a list; an InputError where it is none, which says of what it should be one."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise InputError(f"{name} must be a list of {of}, got {value!r}.")
    return list(value)
