"""Named variables along the flat vector of a layout, each with the transform that leads to its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.parts import take_natural
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.registry import describe
from pyturingvi.transforms import Transform


@dataclass(frozen=True)
class Place:
    """Where a variable stands: its columns among the globals, or within each local block."""

    transform: Transform
    columns: slice
    is_local: bool


@dataclass(frozen=True)
class Evaluated:
    """Values at M points, log-Jacobians, and the way back for gradients."""

    values: dict[str, Array]  # name -> (M, ...)
    global_log_jacobian: Array  # (M,)
    local_log_jacobian: Array  # (M, N)
    pullbacks: dict[str, Callable[[Array, float], Array]]  # as `Transform.evaluate` gives them


class NaturalSpace:
    """Which variable stands where in the flat vector, and the maps between that and named values.

    Parameters
    ----------
    layout : Layout
    transforms : mapping of str to Transform
        In the order of the flat vector: first the variables that fill the globals, then those of a local block. A local
        one describes one block; its values have a leading axis for the N blocks.
    who : str
        How messages begin.

    Raises
    ------
    InputError
        If there is no transform, or they do not fill the layout exactly.
    """

    def __init__(self, layout: Layout, transforms: Mapping[str, Transform], who: str) -> None:
        if not isinstance(transforms, Mapping) or not transforms:
            raise InputError(
                f"{who}: constrain must be a dictionary of the variables' names and transforms, such as "
                f"{{'tau': tv.transforms.Positive()}}, got {transforms!r}."
            )
        self.layout = layout
        self.places: dict[str, Place] = {}
        filled = {False: 0, True: 0}  # of the globals, and of a local block
        for name, transform in transforms.items():
            if not isinstance(name, str) or not name:
                raise InputError(f"{who}: constrain: a variable's name must be a string, got {name!r}.")
            if not isinstance(transform, Transform):
                wanted = f"{transform.__name__}()" if isinstance(transform, type) else "one of tv.transforms"
                raise InputError(f"{who}: constrain: {name!r} must be {wanted}, got {transform!r}.")
            is_local = filled[False] >= layout.n_global
            start = filled[is_local]
            filled[is_local] = start + transform.n_unconstrained
            self.places[name] = Place(transform, slice(start, filled[is_local]), is_local)
        if (filled[False], filled[True]) != (layout.n_global, layout.local_dim):
            sizes = ", ".join(f"{name} {place.transform.n_unconstrained}" for name, place in self.places.items())
            raise InputError(
                f"{who}: constrain must fill the layout: in order, variables of n_global={layout.n_global} "
                f"unconstrained numbers, then, for one block alone, of local_dim={layout.local_dim}. Unconstrained "
                f"numbers of each: {sizes}."
            )

    # ---- maps ---------------------------------------------------------------------------------------------
    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each variable behind M; that of a local one begins with N."""
        n_local = self.layout.n_local
        return {
            name: ((n_local,) if place.is_local else ()) + place.transform.natural_shape
            for name, place in self.places.items()
        }

    def values(self, points: Array, *, local: bool) -> dict[str, Array]:
        """The global or the local variables (M, ...) at points (M, d); for the global ones, (M, d_z) will do."""
        return {
            name: place.transform.constrain(self._part(points, place))
            for name, place in self.places.items()
            if place.is_local == local
        }

    def evaluate(self, points: Array) -> Evaluated:
        """All variables at points (M, d), with log-Jacobians and pullbacks."""
        found = Evaluated({}, np.zeros(len(points)), np.zeros((len(points), self.layout.n_local)), {})
        for name, place in self.places.items():
            value, log_jacobian, pullback = place.transform.evaluate(self._part(points, place))
            found.values[name], found.pullbacks[name] = value, pullback
            total = found.local_log_jacobian if place.is_local else found.global_log_jacobian
            total += log_jacobian
        return found

    def pullback(self, at: Evaluated, gradients: Mapping[str, Array], log_jacobian: float) -> Array:
        """Gradient (M, d) of f + log_jacobian * log-Jacobian, from that of f in each variable."""
        out = np.empty((len(at.global_log_jacobian), self.layout.dim))
        for name, place in self.places.items():
            self._part(out, place)[...] = at.pullbacks[name](gradients[name], log_jacobian)
        return out

    def flat(self, values: Mapping[str, np.ndarray], who: str) -> np.ndarray:
        """Points (M, d) of named values; an InputError names the variable that is missing, or not in its support."""
        found = take_natural(values, self.shapes, who)
        out = np.empty((len(next(iter(found.values()))), self.layout.dim))
        for name, place in self.places.items():
            try:
                self._part(out, place)[...] = place.transform.unconstrain(found[name])
            except InputError as error:
                raise InputError(f"{who}: {name}: {error}") from None
        return out

    def _part(self, points: Array, place: Place) -> Array:
        """The columns of a variable: (M, k), or (M, N, k) of a local one; a view."""
        if not place.is_local:
            return points[:, place.columns]
        layout = self.layout
        blocks = points[:, layout.n_global :].reshape(-1, layout.n_local, layout.local_dim)
        return blocks[:, :, place.columns]

    # ---- names --------------------------------------------------------------------------------------------
    def default_dims(self, dims: Any) -> dict[str, list[str]]:
        """Names of each variable's axes where none are given; the locals share the axis of the blocks, `block`.

        dims: what the user gave; where it names the blocks of a local variable, that is their name for all.
        """
        found = {name: [f"{name}_dim_{k}" for k in range(len(shape))] for name, shape in self.shapes.items()}
        theirs = dims if isinstance(dims, Mapping) else {}
        given = [theirs.get(name) for name, place in self.places.items() if place.is_local]
        named = [axes[0] for axes in given if isinstance(axes, list | tuple) and axes]
        for name, place in self.places.items():
            if place.is_local:
                found[name][0] = named[0] if named else "block"
        return found

    def free_labels(self, scalar_labels: Callable[[str], list[str]], *, local: bool = False) -> list[str]:
        """A label for each unconstrained global number, or for all d, given those of each variable's scalars."""
        layout = self.layout
        labels = np.empty((1, layout.dim), dtype=object)
        for name, place in self.places.items():
            if place.is_local and not local:
                continue
            scalars = np.array(scalar_labels(name), dtype=object)
            scalars = scalars.reshape(-1, *place.transform.event_shape)
            own = [label for k in range(len(scalars)) for label in place.transform.free_labels(scalars[k, ...])]
            part = self._part(labels, place)
            part[...] = np.array(own, dtype=object).reshape(part.shape)
        return [str(label) for label in labels[0, : None if local else layout.n_global]]

    # ---- state --------------------------------------------------------------------------------------------
    @property
    def has_state(self) -> bool:
        """Whether a file can hold it: a transform of a class of one's own has to be a registered dataclass."""
        transforms = [place.transform for place in self.places.values()]
        return all(is_dataclass(transform) and Transform.registry.knows(transform) for transform in transforms)

    def to_state(self) -> list[Any]:
        """Names and transforms, as JSON holds them."""
        return [
            [name, place.transform.name, describe({key: getattr(place.transform, key) for key in _fields(place)})]
            for name, place in self.places.items()
        ]

    @classmethod
    def from_state(cls, layout: Layout, state: Any, who: str) -> NaturalSpace:
        """Inverse of `to_state`."""
        transforms = {}
        for name, kind, settings in state:
            values = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
            transforms[name] = Transform.registry.find(kind, settings)(**values)
        return cls(layout, transforms, who)


def _fields(place: Place) -> list[str]:
    """What its transform is built with."""
    return [one.name for one in fields(place.transform)] if is_dataclass(place.transform) else []
