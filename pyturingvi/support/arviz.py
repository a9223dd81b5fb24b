"""Arrays as a tree that ArviZ reads, in memory and from a file, in its versions of today and of yesterday."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import DataError

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Group:
    """A group of the tree.

    Attributes
    ----------
    arrays : dict
        Axes of `sample_axes` first.
    dims : dict
        Names of the axes behind, of those arrays that have some.
    coords : dict
        Labels along an axis by its name; those of other axes are not used.
    beside : dict
        Further labels by their name: the axis along which they run, and one a place.
    sample_axes : sequence of str
    attrs : dict
    """

    arrays: Mapping[str, np.ndarray]
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[Any] | np.ndarray] = field(default_factory=dict)
    beside: Mapping[str, tuple[str, Sequence[Any] | np.ndarray]] = field(default_factory=dict)
    sample_axes: Sequence[str] = ("chain", "draw")
    attrs: Mapping[str, Any] = field(default_factory=dict)


def tree_of_groups(groups: Mapping[str, Group]) -> xr.DataTree:
    """An ArviZ DataTree; groups without arrays are left out.

    Raises
    ------
    DataError
        Without arviz-base.
    """
    try:
        from arviz_base import dict_to_dataset
        from xarray import DataTree
    except ImportError:
        raise DataError("to_arviz needs arviz-base: pip install 'pyturingvi[arviz]'.") from None
    found = {}
    for name, group in groups.items():
        if not group.arrays:
            continue
        taken = {_word(variable) for variable in group.arrays}
        # a variable that is named as an axis of its own would be taken for its labels
        axes = {axis: f"{_word(axis)}_dim" if _word(axis) in taken else _word(axis) for axis in _axes(group)}
        dataset = dict_to_dataset(
            {_word(variable): array for variable, array in group.arrays.items()},
            dims={
                _word(variable): [axes[axis] for axis in group.dims[variable]]
                for variable in group.arrays
                if group.dims.get(variable)
            },
            coords={axes[axis]: labels_array(labels) for axis, labels in group.coords.items() if axis in axes},
            sample_dims=list(group.sample_axes),
            attrs=dict(group.attrs),
        )
        beside = {key: (axes[axis], labels_array(labels)) for key, (axis, labels) in group.beside.items()}
        found[name] = dataset.assign_coords(beside)
    return DataTree.from_dict(found)


def labels_array(labels: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Labels as an array that a file can hold: dates and numbers as they are, words and mixtures as words."""
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iufMU":
        return labels
    if all(isinstance(label, numbers.Real | np.datetime64) and not isinstance(label, bool) for label in labels):
        array = np.asarray(labels)
        if array.dtype.kind in "iufM":
            return array
    return np.array([str(label) for label in labels], dtype=str)


def _axes(group: Group) -> list[str]:
    return list(dict.fromkeys([*(axis for axes in group.dims.values() for axis in axes), *group.sample_axes]))


def _word(name: str) -> str:
    """A name as a file can hold it, where a stroke divides folders."""
    return name.replace("/", ".")
