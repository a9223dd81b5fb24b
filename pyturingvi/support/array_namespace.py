"""One array code for NumPy and CuPy: find the namespace of an array, move arrays, free the memory question."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np

from pyturingvi.errors import EngineError, InputError

Array = Any  # a numpy.ndarray or a cupy.ndarray

Dtype = Literal["float64", "float32"]
DTYPES: tuple[str, ...] = get_args(Dtype)


def namespace_of(array: Array) -> ModuleType:
    """The module (numpy or cupy) that `array` belongs to."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    return np


def namespace_for(device: str) -> ModuleType:
    """The array module of a device.

    Parameters
    ----------
    device : {"cpu", "cuda"}

    Raises
    ------
    EngineError
        If CuPy is not installed or finds no GPU.
    """
    if device == "cpu":
        return np
    if device != "cuda":
        raise InputError(f"Unknown device {device!r}: it must be 'cpu' or 'cuda'.")
    try:
        import cupy
    except ImportError as error:
        raise EngineError(
            f"device='cuda' needs CuPy, which could not be imported ({error}). Install it with "
            "`pip install 'pyturingvi[cuda12]'` or `[cuda13]`, after your driver's CUDA version; "
            "or use device='cpu'."
        ) from None
    try:
        n_devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise EngineError(f"device='cuda': CuPy finds no usable GPU ({error}). Use device='cpu'.") from None
    if n_devices == 0:
        raise EngineError("device='cuda': CuPy finds no GPU. Use device='cpu'.")
    found: ModuleType = cupy
    return found


def to_numpy(array: Array) -> np.ndarray:
    """Copy to the host where `array` is on a GPU; a NumPy array passes through."""
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "__cuda_array_interface__"):
        return np.asarray(array.get())
    return np.asarray(array)


def address_of(array: np.ndarray) -> int:
    """Where a C-ordered array's memory begins; Julia sees it with the axes reversed."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)
