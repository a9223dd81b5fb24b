"""The named values of a model in its natural space: to and from points, their axes and labels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.labels import label_text
from pyturingvi.models.parts import take_natural
from pyturingvi.support.arguments import real_array
from pyturingvi.support.array_namespace import Array, namespace_of


class NamedValues:
    """What `Model` has of it; where a class says nothing else, z and y as they stand in the flat vector."""

    name: ClassVar[str]
    layout: Layout

    def constrain(self, points: Array) -> dict[str, Array]:
        """Map (M, d) unconstrained points to named arrays (M, ...) in the natural space."""
        points = self._check_points(points)
        n_global = self.layout.n_global
        return {**self._constrain_global(points[:, :n_global]), **self._constrain_local(points)}

    def constrain_global(self, points: Array) -> dict[str, Array]:
        """The global part of `constrain`, from (M, d_z) points: the locals need not be drawn."""
        return self._constrain_global(self._check_points(points, self.layout.n_global, "global points"))

    def unconstrain(self, values: Mapping[str, Any]) -> np.ndarray:
        """Inverse of `constrain`: named natural values (M, ...) to (M, d) unconstrained points.

        Derived quantities (such as volatility's `Q`) may be present and are ignored.

        Raises
        ------
        InputError
            If a name is missing, a shape is wrong or a value lies outside its support.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                f"{self.name}: unconstrain takes a dictionary of named arrays, got {type(values).__name__}."
            )
        arrays = {str(key): real_array(f"{self.name}: {key!r}", value) for key, value in values.items()}
        return self._unconstrain(arrays)

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def global_labels(self) -> list[str]:
        """A name for each unconstrained global coordinate, length d_z, e.g. 'log s_eta' or 'beta[age]'."""
        return [f"z[{k}]" for k in range(self.layout.n_global)]

    @property
    def dims(self) -> dict[str, list[str]]:
        """Names of the axes behind M of each natural variable, e.g. {'beta': ['covariate'], 's_eta': []}."""
        axes = {"z": ["global"], "y": ["block", "local"]}
        return {name: axes[name] for name in self._natural_shapes}

    @property
    def coords(self) -> dict[str, list[Any]]:
        """Labels along each axis named in `dims`, e.g. {'covariate': ['age', ...], 'row': [0, 1, ...]}."""
        layout = self.layout
        sizes = {"global": layout.n_global, "block": layout.n_local, "local": layout.local_dim}
        return {axis: list(range(size)) for axis, size in sizes.items() if size}

    @property
    def global_names(self) -> list[str]:
        """Natural variables that depend on the globals alone, in summary order."""
        return list(self.constrain_global(np.zeros((1, self.layout.n_global))))

    def scalar_labels(self, name: str) -> list[str]:
        """One label for each scalar of a natural variable, e.g. `beta[age]`."""
        coords, axes = self.coords, self.dims[name]
        labels = [",".join(map(label_text, index)) for index in itertools.product(*(coords[axis] for axis in axes))]
        return [f"{name}[{label}]" for label in labels] if axes else [name]

    # ---- natural space, where nothing else is said: z and y as they stand in the flat vector ----------------------
    @property
    def _natural_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes behind M of z and y; an empty part is left out."""
        layout = self.layout
        shapes: dict[str, tuple[int, ...]] = {"z": (layout.n_global,), "y": (layout.n_local, layout.local_dim)}
        return {name: shape for name, shape in shapes.items() if shape[0]}

    def _constrain_global(self, z: Array) -> dict[str, Array]:
        return {"z": z.copy()} if z.shape[1] else {}

    def _constrain_local(self, points: Array) -> dict[str, Array]:
        blocks, layout = points[:, self.layout.n_global :].copy(), self.layout
        return {"y": blocks.reshape(-1, layout.n_local, layout.local_dim)} if layout.n_local else {}

    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        found = take_natural(values, self._natural_shapes, self.name)
        return np.concatenate([array.reshape(array.shape[0], -1) for array in found.values()], axis=1)

    # ---- points -------------------------------------------------------------------------------------------
    @property
    def dim(self) -> int:
        """Length d of the flat unconstrained vector."""
        return self.layout.dim

    def _check_points(self, points: Array, length: int | None = None, what: str = "points") -> Array:
        length = self.dim if length is None else length
        xp = namespace_of(points)
        if xp is np and not isinstance(points, np.ndarray):
            points = real_array(f"{self.name}: {what}", points)
        if points.dtype not in (np.float64, np.float32):
            if points.dtype.kind not in "iubf":
                raise InputError(f"{self.name}: {what} must be real numbers, got dtype {points.dtype}.")
            points = points.astype(np.float64)
        if points.ndim == 1:
            points = points[None, :]
        if points.ndim != 2 or points.shape[1] != length:
            raise InputError(f"{self.name}: {what} must have shape (M, {length}), got {points.shape}.")
        return xp.ascontiguousarray(points)
