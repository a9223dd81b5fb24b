"""The arguments of a NumPyro model: columns of tables and lists of numbers as arrays, and what is wrong with others."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from pyturingvi.errors import InputError, in_short
from pyturingvi.models.checks import numbers_of
from pyturingvi.models.numpyro_data import numpyro_module

Found = TypeVar("Found")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def with_arrays(
    model: Callable[..., Any],
    arguments: Arguments,
    call: Callable[[Arguments], Found],
    what: str,
    advice: str = "",
) -> tuple[Arguments, Found]:
    """What `call` gives for the arguments as they are or, where that fails, for columns and lists of numbers as arrays.

    They come first as they are, since a model may ask a Series for its index.

    Parameters
    ----------
    model : callable
    arguments : tuple and dict
        Positional and keyword arguments.
    call : callable
    what : str
        How the message begins, e.g. "NumPyro: the model cannot be run with these args and kwargs".
    advice : str
        How it ends.

    Raises
    ------
    InputError
        Where both fail; it names the argument that is no array of numbers.
    """
    arguments = own_arrays(arguments)
    try:
        return arguments, call(arguments)
    except InputError:
        raise
    except Exception as error:
        failure = error
    args, kwargs = arguments
    arrays = tuple(as_array(one) for one in args), {name: as_array(one) for name, one in kwargs.items()}
    try:
        return arrays, call(arrays)
    except InputError:
        raise
    except Exception as error:
        failure = error
    odd = next(filter(None, (_no_numbers(name, one) for name, one in _named(model, *arrays))), "")
    raise InputError(" ".join(filter(None, [f"{what}: {in_short(failure)}.", odd, advice]))) from failure


def own_arrays(arguments: Any) -> Any:
    """Arguments with copies of NumPy's arrays: JAX may remember their 64 bits where the user's own code runs in 32."""
    tree_map = numpyro_module("jax").tree_util.tree_map
    return tree_map(lambda leaf: np.array(leaf) if type(leaf) is np.ndarray else leaf, arguments)


def as_array(value: Any) -> Any:
    """A column of a table, an array of objects or a list as an array, if it holds numbers alone; None in it is NaN.

    Dictionaries, lists and tuples of such are gone through. All else comes back as it is.
    """
    if isinstance(value, dict):
        return {key: as_array(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and not all(one is None or isinstance(one, numbers.Real) for one in value):
        inner = [as_array(one) for one in value]
        table = isinstance(value, list) and all(isinstance(one, list) for one in value)
        if table and len({np.shape(one) for one in inner}) == 1 and isinstance(inner[0], np.ndarray):
            return np.array(inner)
        return tuple(inner) if type(value) is tuple else inner if type(value) is list else value
    column = hasattr(value, "to_numpy") and not hasattr(value, "columns")
    of_objects = isinstance(value, np.ndarray) and value.dtype.kind == "O"
    if not (column or of_objects or (type(value) in (list, tuple) and len(value))):
        return value
    array = np.array(value, dtype=object if isinstance(value, list | tuple) else None)
    if array.dtype.kind == "O":
        numeric, bad = numbers_of(array)
        if bad:
            return value
        kinds = {type(one) for one in array.flat}
        whole = all(issubclass(kind, numbers.Integral | np.bool_) for kind in kinds)
        array = numeric if not whole else array.astype(bool if kinds <= {bool, np.bool_} else int)
    return array if array.dtype.kind in "biuf" else value


def innermost(model: Callable[..., Any]) -> Callable[..., Any]:
    """The function below handlers."""
    while not inspect.isroutine(model) and hasattr(model, "fn"):
        model = model.fn
    return model


def name_of(model: Callable[..., Any], arguments: Arguments, value: Any) -> str:
    """The argument that is this very object; "" where there is none."""
    return next((name for name, one in _named(model, *arguments) if one is value), "")


def _named(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    try:
        names = list(inspect.signature(innermost(model)).parameters)
    except (TypeError, ValueError):
        names = []
    for place, value in enumerate(args):
        yield names[place] if place < len(names) else f"args[{place}]", value
    yield from kwargs.items()


def _no_numbers(name: str, value: Any) -> str:
    """What to do about an argument that is no array of numbers; "" where there is nothing to be said of it."""
    if hasattr(value, "columns"):
        column = str(next(iter(value.columns), "x"))
        return f"The argument {name!r} is a table: use its columns as arrays, e.g. {name}[{column!r}].to_numpy()."
    if isinstance(value, str) or not (isinstance(value, list | tuple | np.ndarray) or hasattr(value, "to_numpy")):
        return ""
    array = np.asarray(value) if not isinstance(value, list | tuple) else np.array(value, dtype=object)
    if array.dtype.kind in "biuf":
        return ""
    _, bad = numbers_of(array.astype(object))
    if not bad:
        return ""
    item = array[bad[0]]
    return (
        f"The argument {name!r} does not hold numbers alone: {str(item)!r} in row {bad[0][0]} (counted from 0). What "
        "is computed with must be numbers: encode text and dates first."
    )
