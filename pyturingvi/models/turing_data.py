"""Data for a user's Turing model: what may be passed, kept as plain values and arrays, and sent to Julia."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyturingvi.errors import InputError

Datum = np.ndarray | float | int | bool | str | list[str]


def read_data(data: Any) -> dict[str, Datum]:
    """Values by argument name: float64, int64 or bool arrays, lists of strings, and scalars.

    Raises
    ------
    InputError
        If it is no mapping or table, a name cannot be a Julia argument, or a value cannot be sent to Julia.
    """
    if data is None:
        return {}
    if hasattr(data, "columns") and not isinstance(data, Mapping):
        data = {name: data[name] for name in data.columns}
    if not isinstance(data, Mapping):
        raise InputError(f"Turing: data must be a dictionary of argument names, got {type(data).__name__}.")
    found = {}
    for name, value in data.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"Turing: data has the name {name!r}, which no argument of a Julia function can have.")
        found[name] = _read(value, f"Turing: data[{name!r}]")
    return found


def _read(value: Any, what: str) -> Datum:
    if isinstance(value, str):
        return value
    if value is None:
        raise InputError(f"{what} is None. Leave it out, or give a value.")
    if hasattr(value, "columns"):
        value = _matrix(value, what)
    elif hasattr(value, "iloc"):
        value = _series(value, what)
    elif isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{what} is a masked array. Fill or drop the masked entries first.")
    elif isinstance(value, Mapping):
        raise InputError(f"{what} is a dictionary. Pass its entries as arguments of their own.")
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{what}: its rows have different lengths.") from None
    if array.dtype.kind == "O" and array.size and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    if array.dtype.kind == "U":
        if array.ndim == 0:
            return str(array)
        if array.ndim > 1:
            raise InputError(f"{what}: strings can come as one word or as a list, got shape {array.shape}.")
        return [str(item) for item in array]
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{what} must be numbers, booleans or strings, got "
            f"{'objects' if array.dtype.kind == 'O' else f'dtype {array.dtype}'}. Convert it first."
        )
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{what} holds {array.max()}, which is too large for a 64-bit integer.")
    array = array.astype({"b": np.bool_, "f": np.float64}.get(array.dtype.kind, np.int64))
    return array.item() if array.ndim == 0 else array


def _matrix(table: Any, what: str) -> np.ndarray:
    """A table of numbers as a matrix."""
    for name in table.columns:
        if np.asarray(table[name]).dtype.kind not in "biuf":
            raise InputError(
                f"{what}: column {str(name)!r} does not hold numbers, so the table cannot become a matrix. Pass such "
                "columns as arguments of their own, or choose the columns of numbers."
            )
    return np.asarray(table.to_numpy())


def _series(series: Any, what: str) -> np.ndarray:
    if series.isna().any() and series.dtype.kind != "f":
        raise InputError(f"{what} has {int(series.isna().sum())} missing entries. Drop or fill in these rows first.")
    return np.asarray(series)


def julia_data(runtime: Any, data: Mapping[str, Datum]) -> Any:
    """The data as a Julia NamedTuple; arrays have the axes they have in NumPy."""
    values = tuple(_send(runtime, value) for value in data.values())
    build = runtime.seval("(names, values) -> NamedTuple{Tuple(Symbol(name) for name in names)}(Tuple(values))")
    return runtime.call(build, tuple(data), values)


def _send(runtime: Any, value: Datum) -> Any:
    if isinstance(value, np.ndarray):
        return runtime.to_julia(value.T)
    if isinstance(value, list):
        return runtime.call(runtime.seval("items -> String[item for item in items]"), tuple(value))
    return value
