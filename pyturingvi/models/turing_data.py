"""What a user gives for a Turing model: source and names checked, data kept as plain values and arrays for Julia."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.checks import as_frame

Datum = np.ndarray | float | int | bool | str | list[str]


def read_data(data: Any, nonfinite_allowed: bool = False) -> dict[str, Datum]:
    """Values by argument name: float64, int64 or bool arrays, lists of strings, and scalars.

    Parameters
    ----------
    data : mapping, DataFrame or None
    nonfinite_allowed : bool
        Whether the model knows what to do with NaN and infinity.

    Raises
    ------
    InputError
        If it is no mapping or table, a name cannot be a Julia argument, or a value cannot be sent to Julia or is not
        finite.
    """
    if data is None:
        return {}
    data = as_frame(data)
    if hasattr(data, "columns") and not isinstance(data, Mapping):
        repeated = [name for name, count in Counter(data.columns).items() if count > 1]
        if repeated:
            raise InputError(f"Turing: data has more than one column named {repeated[0]!r}. Rename the columns.")
        data = {name: data[name] for name in data.columns}
    if not isinstance(data, Mapping):
        raise InputError(f"Turing: data must be a dictionary of argument names, got {type(data).__name__}.")
    found: dict[str, Datum] = {}
    for given, value in data.items():
        name = julia_name(given) if isinstance(given, str) else ""
        if not _may_be_a_name(name):
            raise InputError(f"Turing: data has the name {given!r}, which no argument of a Julia function can have.")
        if name in found:
            raise InputError(f"Turing: data has the name {given!r} twice; Julia reads both spellings as one.")
        found[name] = _read(value, f"Turing: data[{name!r}]", nonfinite_allowed)
    return found


_COUNTS = r"\w*(?:Bernoulli|Binomial|Categorical|DiscreteUniform|Geometric|Multinomial|Poisson|Skellam)\w*"


def suspicious_data(source: str, data: Mapping[str, Datum]) -> list[str]:
    """Sentences on what in the data may be why a model fails: empty arrays, and fractions where counts are wanted."""
    found = []
    empty = [f"data[{name!r}]" for name, value in data.items() if np.ndim(value) and not np.size(value)]
    if empty:
        found.append(f"Empty: {', '.join(empty)}.")
    for name, value in data.items():
        numbers = np.ravel(value) if isinstance(value, float | np.ndarray) else np.empty(0)
        fractions = numbers[numbers != np.floor(numbers)] if numbers.dtype.kind == "f" else numbers[:0]
        counted = re.search(rf"(?<!\w){re.escape(name)}(?:\[[^\]]*\])?\s*\.?~[^\n#]*?\b({_COUNTS})", source)
        if fractions.size and counted:
            found.append(
                f"data[{name!r}] holds {fractions.size} numbers that are no whole ones, {fractions[0]:g} first, but "
                f"{counted[1]} is a distribution of counts."
            )
    return found


def read_source(source: Any) -> str:
    """Julia source of a model, refused where it can be none."""
    if not isinstance(source, str):
        raise InputError(f"Turing: source must be Julia code as a string, got {type(source).__name__}.")
    if source.strip().endswith(".jl") and "\n" not in source.strip():
        raise InputError(f"Turing: source must be Julia code, not a file's name; pass Path({source!r}).read_text().")
    if "@model" not in source:
        raise InputError("Turing: source has no `@model function`; it needs at least one.")
    if not is_text(source):
        raise InputError("Turing: source is no valid text: it holds half of a surrogate pair. Read it as UTF-8.")
    return source


def read_local(local: Any) -> list[str]:
    """Names of the local variables, as Julia spells them."""
    if isinstance(local, bytes) or not isinstance(local, Iterable):
        raise InputError(f"Turing: local must be a list of names of variables, [] for none, got {local!r}.")
    given = [local] if isinstance(local, str) else list(local)
    for name in given:
        if not (isinstance(name, str) and is_text(name)):
            raise InputError(f"Turing: local must hold names of variables, got {name!r}.")
    names = [julia_name(name) for name in given]
    if len(set(names)) < len(names):
        raise InputError(f"Turing: local names a variable twice: {', '.join(names)}.")
    return names


# ---- names --------------------------------------------------------------------------------------------------
_RESERVED = frozenset(
    "baremodule begin break catch const continue do else elseif end export false finally for function global if import "
    "let local macro module quote return struct true try using while".split()
)
_SAME_LETTERS = str.maketrans({"\u00b5": "\u03bc", "\u025b": "\u03b5", "\u210f": "\u0127"})


def julia_name(name: str) -> str:
    """A name as Julia reads it: composed (NFC), and with one letter for those that look alike."""
    return unicodedata.normalize("NFC", name).translate(_SAME_LETTERS)


def _may_be_a_name(name: str) -> bool:
    """Whether Julia could take this for a name; what lies outside ASCII it judges itself, once it runs."""
    return (
        re.fullmatch(r"([A-Za-z_]|[^\x00-\x7f])([A-Za-z0-9_!]|[^\x00-\x7f])*", name) is not None
        and name not in _RESERVED
        and is_text(name)
    )


def is_text(words: str) -> bool:
    """Whether a string can leave Python: one with half of a surrogate pair cannot."""
    try:
        words.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- values -------------------------------------------------------------------------------------------------
def _read(value: Any, what: str, nonfinite_allowed: bool) -> Datum:
    if isinstance(value, str):
        return _text(value, what)
    value = as_frame(value)
    if value is None:
        raise InputError(f"{what} is None. Leave it out, or give a value.")
    if hasattr(value, "columns"):
        value = _matrix(value, what)
    elif hasattr(value, "iloc"):
        value = _series(value, what)
    elif isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{what} is a masked array. Fill or drop the masked entries first.")
    elif isinstance(value, Mapping):
        raise InputError(f"{what} is a dictionary. Pass its entries as arguments of their own.")
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{what}: its rows have different lengths.") from None
    if array.dtype.kind == "U" and not isinstance(value, np.ndarray):
        _refuse_mixed(value, what)
    if array.dtype.kind == "O" and array.size and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    if array.dtype.kind == "U":
        if array.ndim == 0:
            return _text(str(array), what)
        if array.ndim > 1:
            raise InputError(f"{what}: strings can come as one word or as a list, got shape {array.shape}.")
        return [_text(str(item), what) for item in array]
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{what} must be numbers, booleans or strings, got "
            f"{'objects' if array.dtype.kind == 'O' else f'dtype {array.dtype}'}. Convert it first."
        )
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{what} holds {array.max()}, which is too large for a 64-bit integer.")
    array = array.astype({"b": np.bool_, "f": np.float64}.get(array.dtype.kind, np.int64))
    if not nonfinite_allowed and array.dtype.kind == "f":
        _refuse_nonfinite(array, what)
    return array.item() if array.ndim == 0 else array


def _text(words: str, what: str) -> str:
    if not is_text(words):
        raise InputError(f"{what} is no valid text: it holds half of a surrogate pair. Read it with another encoding.")
    return words


def _refuse_mixed(values: Any, what: str) -> None:
    """NumPy makes strings of everything in a list that holds one."""
    kinds = {isinstance(item, str): item for item in np.array(values, dtype=object).flat}
    if len(kinds) > 1:
        raise InputError(f"{what} mixes strings and other values, {kinds[True]!r} and {kinds[False]!r} among them.")


def _refuse_nonfinite(array: np.ndarray, what: str) -> None:
    for bad, kind, test in ((np.isnan(array), "NaN (missing)", "isnan"), (np.isinf(array), "infinite values", "isinf")):
        if bad.any():
            place = ", ".join(map(str, np.argwhere(bad)[0]))
            where = f", the first at [{place}] (counted from 0)" if place else ""
            raise InputError(
                f"{what} holds {int(bad.sum())} {kind}{where}. Drop or fill in these entries first; a model that "
                f"handles them itself, with {test} in its source, may have them."
            )


def _matrix(table: Any, what: str) -> np.ndarray:
    """A table of numbers as a matrix."""
    for name, count in Counter(table.columns).items():
        if count > 1:
            raise InputError(f"{what} has more than one column named {name!r}. Rename the columns.")
        if hasattr(table[name], "isna"):
            _series(table[name], f"{what}, column {str(name)!r},")
        if np.asarray(table[name]).dtype.kind not in "biuf":
            raise InputError(
                f"{what}: column {str(name)!r} does not hold numbers, so the table cannot become a matrix. Pass such "
                "columns as arguments of their own, or choose the columns of numbers."
            )
    return np.asarray(table.to_numpy())


def _series(series: Any, what: str) -> np.ndarray:
    if series.isna().any() and not (isinstance(series.dtype, np.dtype) and series.dtype.kind == "f"):
        raise InputError(f"{what} has {int(series.isna().sum())} missing entries. Drop or fill in these rows first.")
    return np.asarray(series)


def julia_data(runtime: Any, data: Mapping[str, Datum]) -> Any:
    """The data as a Julia NamedTuple; arrays have the axes they have in NumPy."""
    values = tuple(_send(runtime, value) for value in data.values())
    build = runtime.seval("(names, values) -> NamedTuple{Tuple(Symbol(name) for name in names)}(Tuple(values))")
    return runtime.call(build, tuple(data), values)


def _send(runtime: Any, value: Datum) -> Any:
    if isinstance(value, np.ndarray):
        return runtime.to_julia(value.T)
    if isinstance(value, list):
        return runtime.call(runtime.seval("items -> String[item for item in items]"), tuple(value))
    return value
