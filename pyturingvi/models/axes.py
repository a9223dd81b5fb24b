"""Names of the axes of natural variables, and the labels along them, as a user gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.models.labels import Labels, labels_of

_RESERVED = ("chain", "draw", "sample")  # what ArviZ calls the axes of the draws


@dataclass(frozen=True)
class Axes:
    """The axes of each variable behind that of the points, and the labels along each axis."""

    dims: dict[str, list[str]]
    labels: dict[str, Labels]

    @property
    def coords(self) -> dict[str, list[Any]]:
        """Axis -> labels, with the type they were given in."""
        return {axis: labels.typed for axis, labels in self.labels.items()}


def read_axes(
    shapes: Mapping[str, tuple[int, ...]],
    defaults: Mapping[str, Sequence[str]],
    dims: Any,
    coords: Any,
    who: str,
    rename: str = "Name it otherwise by dims=",
) -> Axes:
    """The user's names and labels where there are any, the defaults and 0, 1, ... elsewhere.

    Parameters
    ----------
    shapes : mapping
        Shape of each variable behind that of the points.
    defaults : mapping
        The axes' names where nothing else is said.
    dims, coords : mapping or None
        What the user gave: variable -> names of its axes, axis -> labels.
    who : str
        How messages begin.
    rename : str
        What to do about an axis whose name cannot be.

    Raises
    ------
    InputError
        If a variable or an axis is unknown, or lengths or names do not go together.
    """
    given_dims, given_coords = _mapping(dims, f"{who}: dims"), _mapping(coords, f"{who}: coords")
    for name in given_dims:
        if name not in shapes:
            raise unknown_name(f"variable in {who}'s dims", name, shapes)
    named: dict[str, list[str]] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        axes = given_dims.get(name, defaults[name])
        axes = [axes] if isinstance(axes, str) else list(axes)
        if len(axes) != len(shape) or not all(isinstance(axis, str) and axis for axis in axes):
            raise InputError(f"{who}: dims of {name!r} must name {len(shape)} axes, of shape {shape}; got {axes!r}.")
        bad = [axis for axis in axes if axes.count(axis) > 1 or axis in shapes or axis in _RESERVED]
        if bad:
            raise InputError(
                f"{who}: dims of {name!r}: axes must differ from each other, from the variables' names and from "
                f"{', '.join(_RESERVED)}; got {axes!r}. {rename}: {bad[0]!r}."
            )
        named[name] = axes
        for axis, size in zip(axes, shape, strict=True):
            first, other = sizes.setdefault(axis, (size, name))
            if first != size:
                raise InputError(
                    f"{who}: dims: {axis!r} is an axis of {first} in {other!r}, and of {size} in {name!r}."
                )
    for axis in given_coords:
        if axis not in sizes:
            raise unknown_name(f"axis in {who}'s coords", axis, sizes)
    labels = {axis: Labels(list(range(size))) for axis, (size, _) in sizes.items()}
    return Axes(
        named, labels | {axis: _labels(axis, given, sizes[axis][0], who) for axis, given in given_coords.items()}
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{what} must be a dictionary, got {value!r}.")
    return value


def _labels(axis: str, given: Any, size: int, who: str) -> Labels:
    import pandas as pd

    if isinstance(given, str | bytes) or not hasattr(given, "__len__"):
        raise InputError(f"{who}: coords of {axis!r} must be a list of {size} labels, got {given!r}.")
    index = pd.Index(list(given), tupleize_cols=False)
    if len(index) != size:
        raise InputError(f"{who}: coords of {axis!r} must be {size} labels, got {len(index)}.")
    if any(isinstance(label, list | tuple | np.ndarray) for label in index):
        raise InputError(f"{who}: coords of {axis!r} must be strings, numbers or dates, got {index[0]!r}.")
    if not index.is_unique:
        raise InputError(f"{who}: coords of {axis!r}: {index[index.duplicated()][0]!r} is there twice.")
    return labels_of(index)
