"""Arrays as a tree that ArviZ reads, in memory and from a file, in its versions of today and of yesterday."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
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
    """The groups as the installed ArviZ has them: an InferenceData before 1.0, else a DataTree; without empty ones.

    Raises
    ------
    DataError
        Without xarray.
    """
    try:
        import xarray as xr
    except ImportError:
        raise DataError("to_arviz needs xarray: pip install 'pyturingvi[arviz]'.") from None
    found = {name: _dataset(xr, group) for name, group in groups.items() if group.arrays}
    if not is_before_1():
        return xr.DataTree.from_dict(found)
    import arviz

    tree: xr.DataTree = arviz.InferenceData(**found)  # has what a script does with either: groups by name, to_netcdf
    return tree


def is_before_1() -> bool:
    """Whether the ArviZ here is the one that comes with PyMC 5, whose functions refuse a DataTree."""
    try:
        return version("arviz").startswith("0.")
    except PackageNotFoundError:
        return False


def _dataset(xr: Any, group: Group) -> Any:
    taken = {_word(variable) for variable in group.arrays}
    # a variable that is named as an axis of its own would be taken for its labels
    axes = {axis: f"{_word(axis)}_dim" if _word(axis) in taken else _word(axis) for axis in _axes(group)}
    variables: dict[str, Any] = {}
    coords: dict[str, np.ndarray] = {}
    for variable, array in group.arrays.items():
        word = _word(variable)
        own = [axes[axis] for axis in (*group.sample_axes, *group.dims.get(variable, ()))]
        own += [f"{word}_dim_{k}" for k in range(np.ndim(array) - len(own))]
        variables[word] = (own, array)
        coords |= {axis: np.arange(size) for axis, size in zip(own, np.shape(array), strict=True)}
    coords |= {axes[axis]: labels_array(labels) for axis, labels in group.coords.items() if axes.get(axis) in coords}
    beside = {key: (axes[axis], labels_array(labels)) for key, (axis, labels) in group.beside.items()}
    made = {
        "created_at": datetime.now(UTC).isoformat(),
        "creation_library": "pyturingvi",
        "creation_library_version": version("pyturingvi"),
        "creation_library_language": "Python",
    }
    return xr.Dataset(variables, {**coords, **beside}, {**made, **group.attrs})


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
