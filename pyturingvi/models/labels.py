"""Labels of a table's rows, with the type that they had in its index."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError


@dataclass(frozen=True)
class Labels:
    """Labels as a file holds them, and their NumPy type where that is neither whole number nor string."""

    plain: list[Any]  # int or str
    dtype: str = ""  # "datetime64[ns]", "float64" or the like

    @property
    def typed(self) -> list[Any]:
        """The labels as they were: np.datetime64, float, int or str."""
        if not self.dtype:
            return list(self.plain)
        array = np.array(self.plain, dtype=self.dtype)
        return array.tolist() if array.dtype.kind == "f" else list(array)

    def to_state(self, name: str) -> dict[str, Any]:
        """What a model's `get_state` says of them. The type has an entry of its own: it came to the files later."""
        return {name: list(self.plain), **({f"{name}_dtype": self.dtype} if self.dtype else {})}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str, length: int) -> Labels:
        """Inverse of `to_state`; an InputError where there are not `length` labels."""
        return cls(relabel(state[name], length, name), state.get(f"{name}_dtype", ""))


def row_labels(table: Any) -> Labels:
    """The index of a pandas object; 0, 1, ... for anything else."""
    index = getattr(table, "index", None)
    if index is None or callable(index):  # a list and a polars frame have no row labels
        return Labels(list(range(len(table))))
    return labels_of(index)


def labels_of(index: Any) -> Labels:
    """The labels of a pandas index."""
    return Labels([plain_label(label) for label in index], _dtype(index))


def plain_label(label: Any) -> int | str:
    """A label as JSON can hold it."""
    return int(label) if isinstance(label, numbers.Integral) and not isinstance(label, bool) else str(label)


def label_text(label: Any) -> str:
    """A label in a name or a message; a date without the time of day where that is midnight."""
    return str(np.datetime_as_string(label, unit="auto")) if isinstance(label, np.datetime64) else str(label)


def _dtype(index: Any) -> str:
    array = np.asarray(index)
    if array.dtype.kind in "Mf":
        return str(array.dtype.name)
    dates = all(isinstance(label, datetime.date) and getattr(label, "tzinfo", None) is None for label in array)
    return "datetime64[us]" if dates else ""  # NumPy has no time zones: dates with one stay strings


def relabel(labels: Any, length: int, what: str) -> list[Any]:
    """Labels as a list of the wanted length."""
    if isinstance(labels, str) or len(labels) != length:
        raise InputError(f"{what}: needs a list of {length} labels, got {labels!r}.")
    return list(labels)
