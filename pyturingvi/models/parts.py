"""What several models share: float64 sums, cache-sized pieces, natural values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.array_namespace import Array, namespace_of

LOG_2PI = math.log(2.0 * math.pi)
_CPU_ELEMENTS = 1 << 18  # 2 MiB of float64 a buffer: a few of them stay in the cache
_GPU_ELEMENTS = 1 << 25


def pieces(xp: ModuleType, n_points: int, n_columns: int) -> Iterator[slice]:
    """Cut a batch so that a buffer (piece, n_columns) stays cache-sized on the CPU, memory-sized on a GPU."""
    limit = _CPU_ELEMENTS if xp is np else _GPU_ELEMENTS
    step = max(1, limit // max(1, n_columns))
    for start in range(0, n_points, step):
        yield slice(start, min(start + step, n_points))


def row_sums(array: Array) -> Array:
    """Sum over all axes but the first, accumulated in float64."""
    return array.reshape(array.shape[0], -1).sum(axis=1, dtype=np.float64)


def squared_norms(array: Array) -> Array:
    """Row sums of squares in float64, a few rows at a time so that no large copy is made."""
    xp = namespace_of(array)
    total = xp.empty(array.shape[0])
    for m in range(0, array.shape[0], 64):
        rows = array[m : m + 64].astype(np.float64)
        total[m : m + 64] = xp.einsum("ij,ij->i", rows, rows)
    return total


def take_natural(
    values: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], model: str
) -> dict[str, np.ndarray]:
    """Pick the named values, each (M, *shape) with one M; one point may come without its leading axis.

    Raises
    ------
    InputError
        If a name is missing, a shape is wrong, the M differ or a value is not finite.
    """
    found: dict[str, np.ndarray] = {}
    n_points: int | None = None
    for name, shape in shapes.items():
        if name not in values:
            raise InputError(
                f"{model}: unconstrain needs {name!r}; given: {', '.join(map(repr, values)) or 'nothing'}."
            )
        array = values[name]
        if array.shape == shape:
            array = array[None]
        if array.shape[1:] != shape or array.ndim != len(shape) + 1:
            wanted = ", ".join(["M", *map(str, shape)]) + ("" if shape else ",")
            raise InputError(f"{model}: {name} must have shape ({wanted}), got {values[name].shape}.")
        n_points = array.shape[0] if n_points is None else n_points
        if array.shape[0] != n_points:
            raise InputError(f"{model}: {name} holds {array.shape[0]} points, the others hold {n_points}.")
        if not np.isfinite(array).all():
            raise InputError(f"{model}: {name} has NaN or infinite values.")
        found[name] = array
    return found


def refuse_outside(inside: np.ndarray, model: str, name: str, support: str) -> None:
    """Raise InputError unless every entry of `inside` is true."""
    if not inside.all():
        raise InputError(f"{model}: {name} must be {support}; {int((~inside).sum())} values are not.")
