"""JAX functions of one point, jitted over batches in 64 bits, without touching how JAX is set up elsewhere."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

_FEWEST, _MOST = 16, 256  # points in a call


def in_64_bits() -> AbstractContextManager[Any]:
    """JAX in 64 bits for this thread, inside of the context only."""
    jax: Any = importlib.import_module("jax")
    found: AbstractContextManager[Any]
    if hasattr(jax, "enable_x64"):
        found = jax.enable_x64(True)
    else:  # before 0.8
        found = importlib.import_module("jax.experimental").enable_x64()
    return found


class Batched:
    """A function of a point (d,), as one of points (M, d): NumPy arrays in, NumPy arrays with a leading M out.

    It compiles for few sizes of batch, four to each doubling up to 256; others are filled up with copies of the last
    point, and longer ones cut.

    Parameters
    ----------
    function : callable
        From a (d,) array to an array or a dictionary or tuple of arrays.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        jax: Any = importlib.import_module("jax")
        self._call: Any = jax.jit(jax.vmap(function))

    def __call__(self, points: np.ndarray) -> Any:
        with in_64_bits():
            return _in_pieces(self._call, points, batch_size)

    def export(self, dim: int) -> bytes:
        """The function for batches of 256 points, as bytes that `exported` calls without its source."""
        jax_export: Any = importlib.import_module("jax.export")
        with in_64_bits():
            shape = importlib.import_module("jax").ShapeDtypeStruct((_MOST, dim), np.float64)
            return bytes(jax_export.export(self._call, platforms=("cpu",))(shape).serialize())


def exported(content: bytes) -> Callable[[np.ndarray], Any]:
    """The function that `Batched.export` wrote."""
    jax: Any = importlib.import_module("jax")
    jax_export: Any = importlib.import_module("jax.export")
    with in_64_bits():
        call = jax_export.deserialize(bytearray(content)).call

    def evaluate(points: np.ndarray) -> Any:
        with in_64_bits(), jax.default_device(jax.devices("cpu")[0]):
            return _in_pieces(call, points, lambda n: _MOST)

    return evaluate


def _in_pieces(call: Callable[[Any], Any], points: np.ndarray, size_of: Callable[[int], int]) -> Any:
    """What `call` gives for points (M, d), in pieces each filled up to a size with copies of its last point."""
    tree_map: Any = importlib.import_module("jax").tree_util.tree_map
    parts = []
    for first in range(0, len(points), _MOST):
        piece = points[first : first + _MOST]
        count = len(piece)
        found = call(np.concatenate([piece, np.repeat(piece[-1:], size_of(count) - count, axis=0)]))
        parts.append(tree_map(lambda array, count=count: np.asarray(array)[:count], found))
    return parts[0] if len(parts) == 1 else tree_map(lambda *arrays: np.concatenate(arrays), *parts)


def batch_size(n: int) -> int:
    """The size that a batch of n points is filled up to: 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, ..."""
    step = 1 << max(0, (n - 1).bit_length() - 3)
    return max(_FEWEST, -(-n // step) * step)
