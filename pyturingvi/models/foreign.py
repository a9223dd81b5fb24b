"""A model that another library holds, under its own names: what the front doors to NumPyro, JAX and others share."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.layout import Layout
from pyturingvi.models.axes import read_axes
from pyturingvi.models.base import Model
from pyturingvi.models.interactions import Variable, split
from pyturingvi.models.labels import Labels
from pyturingvi.models.observed import REBUILD
from pyturingvi.models.parts import take_natural
from pyturingvi.models.structure import Structure, find_structure
from pyturingvi.support.array_namespace import Array, namespace_of


@dataclass(frozen=True)
class Natural:
    """A variable in the model's own space: its shape, the names of its axes, and whether it rests on globals alone."""

    shape: tuple[int, ...]
    dims: tuple[str, ...]
    is_global: bool


class ForeignModel(Model):
    """A log density of another library, in that library's order of variables.

    A subclass calls `_settle` once it can evaluate itself, defines `_evaluate`, and, where its natural space is not the
    unconstrained one, `_natural_axes`, `_natural_values` and `_flat_values`. Points of these methods are in the
    library's order, those of the public ones in the layout's. It defines `get_state` and `from_state` too.

    Attributes
    ----------
    local : tuple of str
        Names of the local variables.
    structure : str
        What is global and what is local, in one line.
    default_family : str
        What the structure asks for: "structured", "markov", "full-rank" or "mean-field".
    """

    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})
    door: ClassVar[str]  # how messages begin, as "NumPyro"
    rename: ClassVar[str] = "Name it otherwise by dims="  # an axis whose name cannot be
    local: tuple[str, ...]
    structure: str
    _global_labels: list[str]

    def __repr__(self) -> str:
        return f"<{self.description} {self.label}: {self.structure}>"

    # ---- construction ---------------------------------------------------------------------------------------
    def _settle(
        self,
        title: str,
        variables: Sequence[Variable],
        local: Any = None,
        labels: Sequence[str] | None = None,
        coords: Mapping[str, Any] | None = None,
    ) -> None:
        """Find or check the structure, and say it.

        variables: in the library's order. labels: one for each of their coordinates. coords: labels along named axes.
        """
        self.label = self._title = title
        self._variables = tuple(variables)
        axes = self._natural_axes() | self._observed_axes()
        shapes, dims = (
            {name: shape for name, (_, shape) in axes.items()},
            {name: dims for name, (dims, _) in axes.items()},
        )
        self._coords = read_axes(shapes, dims, None, coords, self.door, self.rename).labels
        found = find_structure(variables, lambda points: self._evaluate(points)[1], local, self.door)
        self._take(variables, found, labels)
        probe = np.random.default_rng(0).normal(0.0, 0.1, (2, self.dim))
        value, slope = self._log_density_and_gradient(probe)
        if not np.isfinite(value).all():
            raise InputError(
                f"{self.door}: the log density of {title!r} is {value[~np.isfinite(value)][0]} near 0 in unconstrained "
                "space, where fits start. Check the data and the priors."
            )
        self._probed = [_rounded(value), _rounded(slope)]
        self._naturals = self._describe_naturals()
        self._global_labels = self._with_labels_of_axes(self._global_labels)
        print(f"pyturingvi: {title}: {found.words}", file=sys.stderr)

    def _take(self, variables: Sequence[Variable], found: Structure, labels: Sequence[str] | None) -> None:
        self._variables, self.layout, self._order = tuple(variables), found.layout, found.order
        self.local, self.structure, self.default_family = found.local, found.words, found.family
        every = labels or [label for variable in variables for label in element_labels(variable.name, variable.shape)]
        self._global_labels = [every[place] for place in self._order[: self.layout.n_global]]

    def _with_labels_of_axes(self, labels: Sequence[str]) -> list[str]:
        """The globals' labels as a summary has them, `log sd[D]` for `log sd[3]`, where the axes are those of both."""
        own: list[str] = []
        for one in self._variables:
            same = one.name not in self.local and one.shape == self._naturals[one.name].shape
            own += [label.removeprefix(one.name) for label in self.scalar_labels(one.name)] if same else [""] * one.size
        places = self._order[: self.layout.n_global]
        return [
            label.partition("[")[0] + own[place] if own[place] else label
            for label, place in zip(labels, places, strict=True)
        ]

    def _natural_axes(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        """Names and lengths of the axes of each natural variable; here of those of the unconstrained space."""
        return {one.name: (axis_names(one.name, one.axes, len(one.shape)), one.shape) for one in self._variables}

    def _observed_axes(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        """Names and lengths of the axes of each observed variable."""
        return {}

    def _describe_naturals(self) -> dict[str, Natural]:
        """Each natural variable, globals first."""
        return self._told_apart(list(self._natural_axes()), {})

    def _points_apart_in_locals(self) -> np.ndarray:
        """Twice four points (8, d) in the library's order; those of four differ in their locals alone."""
        rng = np.random.default_rng(0)
        points = np.repeat(rng.normal(0.0, 0.3, (2, self.dim)), 4, axis=0)
        local = self._order[self.layout.n_global :]
        points[:, local] += rng.normal(0.0, 0.3, (8, local.size))
        return points

    def _told_apart(self, latent: Sequence[str], derived: Mapping[str, np.ndarray]) -> dict[str, Natural]:
        """Each natural variable, globals first; a derived one is global where it stays as it is while the locals move.

        derived: values (8, ...) at `_points_apart_in_locals`.
        """

        def is_global(name: str) -> bool:
            if name in latent:
                return name not in self.local
            pairs = derived[name].reshape(2, 4, -1)
            return bool(np.array_equal(pairs, np.repeat(pairs[:, :1], 4, axis=1), equal_nan=True))

        axes = self._natural_axes()
        found = {name: Natural(shape, dims, is_global(name)) for name, (dims, shape) in axes.items()}
        return dict(sorted(found.items(), key=lambda one: not one[1].is_global))

    # ---- what a subclass defines ----------------------------------------------------------------------------
    @abstractmethod
    def _evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log density (M,) and gradient (M, d) at float64 points (M, d) in the library's order."""

    def _natural_values(self, points: np.ndarray, *, global_only: bool) -> dict[str, np.ndarray]:
        """Natural variables (M, ...) at points in the library's order; of those, the globals alone."""
        values = split(points, {variable.name: variable.shape for variable in self._variables})
        return {name: value.copy() for name, value in values.items() if not (global_only and name in self.local)}

    def _flat_values(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """Points (M, d) in the library's order, of natural variables."""
        shapes = {variable.name: variable.shape for variable in self._variables}
        arrays = take_natural(values, shapes, self.door)
        return np.concatenate([array.reshape(len(array), -1) for array in arrays.values()], axis=1)

    def _latent_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of latent variables, checked: those of `predict(anew=)`."""
        latents = [variable.name for variable in self._variables]
        chosen = (names,) if isinstance(names, str) else tuple(names)
        for name in chosen:
            if name not in latents:
                raise unknown_name("latent variable in anew", name, latents)
        return chosen

    def _unavailable(self, what: str) -> InputError:
        return InputError(
            f"{self.door}: {self.label!r} was read from a file, which does not hold the model itself: {what} needs it. "
            f"{REBUILD[0].upper()}{REBUILD[1:]}."
        )

    # ---- density ------------------------------------------------------------------------------------------
    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        value, slope = self._evaluate(self._in_their_order(points))
        with np.errstate(over="ignore"):
            return value, slope[:, self._order].astype(points.dtype, copy=False)

    def _in_their_order(self, points: Array) -> np.ndarray:
        if namespace_of(points) is not np:
            raise InputError(f"{self.door}: points must be NumPy arrays. Use device='cpu'.")
        found = np.empty(points.shape)
        found[:, self._order] = points
        return found

    # ---- natural space ------------------------------------------------------------------------------------
    def constrain(self, points: Array) -> dict[str, Array]:
        """Map (M, d) unconstrained points to named arrays (M, ...) in the model's own space, globals first."""
        found = self._natural_values(self._in_their_order(self._check_points(points)), global_only=False)
        return {name: found[name] for name in self._naturals}

    def _constrain_global(self, z: Array) -> dict[str, Array]:
        points = np.zeros((len(z), self.dim))
        points[:, self._order[: self.layout.n_global]] = z
        found = self._natural_values(points, global_only=True)
        return {name: found[name] for name in self.global_names}

    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        return np.ascontiguousarray(self._flat_values(values)[:, self._order])

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def global_labels(self) -> list[str]:
        return list(self._global_labels)

    @property
    def global_names(self) -> list[str]:
        return [name for name, natural in self._naturals.items() if natural.is_global]

    @property
    def dims(self) -> dict[str, list[str]]:
        return {name: list(natural.dims) for name, natural in self._naturals.items()}

    @property
    def coords(self) -> dict[str, list[Any]]:
        return {axis: labels.typed for axis, labels in self._coords.items()}

    # ---- file ---------------------------------------------------------------------------------------------
    def fingerprint(self) -> list[Any]:
        """Log density and gradient at two points: another model with the same variables is another model."""
        return list(self._probed)

    def get_state(self) -> dict[str, Any]:
        """Names, shapes, labels and order of the variables; the model itself cannot be written to a file."""
        known = {axis for natural in self._naturals.values() for axis in natural.dims}  # not those of data alone
        coords = {axis: labels for axis, labels in self._coords.items() if axis in known}
        state: dict[str, Any] = {
            "title": self._title,
            "variables": [[one.name, list(one.shape), list(one.axes)] for one in self._variables],
            "layout": [self.layout.n_global, self.layout.n_local, self.layout.local_dim],
            "order": self._order,
            "local": list(self.local),
            "structure": self.structure,
            "family": self.default_family,
            "labels": list(self._global_labels),
            "naturals": [[name, list(n.shape), list(n.dims), n.is_global] for name, n in self._naturals.items()],
            "axes": list(coords),
        }
        for k, labels in enumerate(coords.values()):
            state |= labels.to_state(f"axis_{k}")
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Names and shapes again, from what `get_state` gave."""
        variables = [Variable(name, tuple(shape), tuple(axes)) for name, shape, axes in state["variables"]]
        layout = Layout(*(int(count) for count in state["layout"]))
        order = np.asarray(state["order"])
        found = Structure(layout, order, tuple(state["local"]), state["family"], state["structure"])
        self._take(variables, found, None)
        self._global_labels = list(state["labels"])
        self._naturals = {
            name: Natural(tuple(shape), tuple(dims), bool(is_global))
            for name, shape, dims, is_global in state["naturals"]
        }
        sizes = {
            axis: size
            for natural in self._naturals.values()
            for axis, size in zip(natural.dims, natural.shape, strict=True)
        }
        self._coords = {
            axis: Labels.from_state(state, f"axis_{k}", sizes[axis]) for k, axis in enumerate(state["axes"])
        }
        self._probed = []
        self.label = self._title = str(state["title"])


def tell_predicted(title: str, kept: Sequence[str], drawn: Iterable[str]) -> None:
    """Say what of a prediction comes from the fit."""
    print(
        f"pyturingvi: {title}: predict: from the fit {', '.join(kept) or 'nothing'}; drawn: {', '.join(drawn)}",
        file=sys.stderr,
    )


def element_labels(name: str, shape: tuple[int, ...]) -> list[str]:
    """A label for each element of an array: `mu`, or `beta[0]`, `beta[1]`, ..."""
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)] if shape else [name]


def axis_names(name: str, axes: Sequence[str], count: int) -> tuple[str, ...]:
    """The names of a variable's axes; of one without, the variable's own with a number."""
    return tuple(axis or f"{name}_dim_{k}" for k, axis in enumerate(axes or [""] * count))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Eight digits, which do not depend on the order of a sum."""
    return np.array([float(f"{value:.8e}") for value in np.ravel(values)])
