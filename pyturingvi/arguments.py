"""Checks that many arguments share; each error names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyturingvi.errors import InputError

LARGEST = 2**63 - 1  # what 64 bits hold, in Python's arrays and in Julia


def whole_number(name: str, value: Any, least: int, most: int | None = LARGEST) -> int:
    """`value` as an int from `least` to `most`; a float without a fractional part counts."""
    whole = isinstance(value, int | np.integer) or (
        isinstance(value, float | np.floating) and float(value).is_integer()
    )
    if isinstance(value, bool | np.bool_) or not whole or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if most is not None and value > most:
        raise InputError(f"{name} must be at most {most}; what was given is larger.")
    return int(value)


def real_array(name: str, value: Any) -> np.ndarray:
    """`value` as float64, itself where it is that already; an InputError where it is not real numbers."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biufO":
            raise TypeError(f"dtype {array.dtype}")
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be real numbers ({error}).") from None
