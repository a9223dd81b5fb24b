"""JAX functions of one point, jitted over batches in 64 bits, without touching how JAX is set up elsewhere."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

SEEDS = 1 << 53  # whole numbers that a float64 holds: a seed stands beside a point
_FEWEST, _MOST = 16, 256  # points in a call
_OF_A_STEP = 8


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

    It compiles for few sizes of batch, up to 256; others are filled up with copies of the last point, and longer ones
    cut.

    Parameters
    ----------
    function : callable
        From a (d,) array to an array or a dictionary or tuple of arrays.
    size_of : callable, optional
        The size that a number of points is filled up to: by default `batch_size`, for what is called often.
    """

    def __init__(self, function: Callable[[Any], Any], size_of: Callable[[int], int] | None = None) -> None:
        self._function, self._size_of = function, size_of or batch_size
        self._call: Any = None

    def __call__(self, points: np.ndarray) -> Any:
        with in_64_bits():
            return _in_pieces(self._compiled(points.shape[1]), points, self._size_of)

    def _compiled(self, dim: int) -> Any:
        if self._call is None:
            jax: Any = importlib.import_module("jax")
            self._call = jax.jit(jax.vmap(_with_own_constants(self._function, dim)))
        return self._call

    def export(self, dim: int) -> bytes:
        """The function for batches of 256 points, as bytes that `exported` calls without its source."""
        jax_export: Any = importlib.import_module("jax.export")
        with in_64_bits():
            shape = importlib.import_module("jax").ShapeDtypeStruct((_MOST, dim), np.float64)
            return bytes(jax_export.export(self._compiled(dim), platforms=("cpu",))(shape).serialize())


def at_one_point(function: Callable[[Any], Any], dim: int) -> Any:
    """What a function of a point (d,) gives at 0, as NumPy arrays."""
    jax: Any = importlib.import_module("jax")
    with in_64_bits():
        found = jax.jit(_with_own_constants(function, dim))(np.zeros(dim))
    return jax.tree_util.tree_map(np.asarray, found)


def traced(call: Callable[[], Any], constants_of: Callable[[Any], list[Any]] = lambda found: []) -> Any:
    """What `call` gives in 64 bits, where it traces a function of the user's.

    JAX (0.10 at least) remembers in how many bits a traced function holds a NumPy array, as long as that function
    lives. Arrays that the user's own code has used in 32 bits would be refused, or cut: JAX is made to forget them.
    """
    jax: Any = importlib.import_module("jax")
    with in_64_bits():
        try:
            found = call()
        except TypeError:
            found = None
        if found is not None and not _any_in_32_bits(constants_of(found)):
            return found
        found = None  # what holds such an array keeps the memory alive
        jax.clear_caches()
        gc.collect()
        return call()


def _any_in_32_bits(constants: list[Any]) -> bool:
    return any(isinstance(one, np.ndarray) and one.dtype == np.float32 for one in constants)


def _with_own_constants(function: Callable[[Any], Any], dim: int) -> Callable[[Any], Any]:
    """The function of a (d,) array with copies of the NumPy arrays that it holds, for the user's own use of these: see
    `traced`."""
    jax: Any = importlib.import_module("jax")
    shape = jax.ShapeDtypeStruct((dim,), np.float64)
    # a function object of its own at each call: JAX keeps what it has traced as long as that lives
    found, outputs = traced(
        lambda: jax.make_jaxpr(lambda point: function(point), return_shape=True)(shape), lambda made: made[0].consts
    )
    constants = [np.array(one) if isinstance(one, np.ndarray) else one for one in found.consts]
    inner, tree = found.jaxpr, jax.tree_util.tree_structure(outputs)
    return lambda point: tree.unflatten(jax.core.eval_jaxpr(inner, constants, point))


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
    """The size that a batch of n points is filled up to: 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, ...

    5 to 8 points have a size of their own: 8 draws are what optimizers with a stepsize take at each update. Fewer are
    rare, and not worth a compilation.
    """
    if 4 < n <= _OF_A_STEP:
        return _OF_A_STEP
    step = 1 << max(0, (n - 1).bit_length() - 3)
    return max(_FEWEST, -(-n // step) * step)


def coarse_size(n: int) -> int:
    """The next power of two from 16 on: for what is called with many sizes, each of which would compile."""
    return max(_FEWEST, 1 << (n - 1).bit_length())
