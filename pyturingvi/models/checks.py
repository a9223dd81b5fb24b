"""Reading a user's data into float64 arrays, and refusing what no model can use."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.labels import Labels, row_labels
from pyturingvi.support.array_namespace import Array, namespace_of, to_numpy


def as_frame(table: Any) -> Any:
    """A pyarrow Table as a DataFrame, and anything else as it is."""
    return table.to_pandas() if hasattr(table, "column_names") and hasattr(table, "to_pandas") else table


def read_matrix(
    value: Any, what: str, column_word: str, *, missing_allowed: bool = False
) -> tuple[np.ndarray, list[str], Labels]:
    """An array, DataFrame or pyarrow Table as a new (rows, columns) float64 array with the labels of columns and rows.

    Messages call the input `what`, e.g. "RobustPoisson: X"; columns of a plain array are `column_word` 1, 2, ... An
    InputError unless it is a table of finite real numbers with a row and a column, and no column name twice; with
    `missing_allowed` NaN may stand among them.
    """
    value = as_frame(value)
    if missing_allowed and isinstance(value, np.ma.MaskedArray):
        value = np.ma.filled(value.astype(float), np.nan)
    if hasattr(value, "columns"):
        columns = [str(name) for name in value.columns]
        repeated = [name for name, count in Counter(columns).items() if count > 1]
        if repeated:
            raise InputError(f"{what} has more than one column named {repeated[0]!r}. Rename the columns.")
        _refuse_empty(value.shape, what)
        labels = list(value.columns)
        matrix = np.column_stack([_numbers(value[k], f"{what}, column {str(k)!r}") for k in labels])
    else:
        matrix = _numbers(value, what)
        if matrix.ndim != 2:
            hint = " For one column pass it as (rows, 1), e.g. with [:, None]." if matrix.ndim == 1 else ""
            raise InputError(f"{what} must be a table (rows, columns), got shape {matrix.shape}.{hint}")
        _refuse_empty(matrix.shape, what)
        columns = [f"{column_word}{k + 1}" for k in range(matrix.shape[1])]
    _refuse_non_finite(matrix, what, columns, missing_allowed)
    return matrix, columns, row_labels(value if hasattr(value, "columns") else matrix)


def read_vector(value: Any, what: str) -> np.ndarray:
    """A new (N,) float64 array from an array, a Series or a table of one column."""
    value = as_frame(value)
    if hasattr(value, "columns"):
        if len(value.columns) != 1:
            raise InputError(f"{what} must be one column, got a table of shape {value.shape}.")
        value = value[value.columns[0]]
    vector = _numbers(value, what)
    if vector.ndim == 2 and vector.shape[1] == 1:
        vector = vector[:, 0].copy()
    if vector.ndim != 1:
        raise InputError(f"{what} must be one-dimensional, got shape {vector.shape}.")
    _refuse_empty(vector.shape, what)
    _refuse_non_finite(vector, what, None)
    return vector


def read_new_rows(
    new: Any, covariates: list[str], offset: Any, *, offset_needed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Covariates (n, p) and offset (n,) of rows to predict for; a table's columns are found by their names.

    An InputError where a covariate is missing, or an offset that the model had.
    """
    what = "predict: new"
    new = as_frame(new)
    if hasattr(new, "columns"):
        lost = [name for name in covariates if name not in [str(column) for column in new.columns]]
        if lost:
            raise InputError(f"{what} has no column {lost[0]!r} ({len(lost)} such); the model has {len(covariates)}.")
        new = new[[column for column in new.columns if str(column) in covariates]]
    matrix, found, _ = read_matrix(new, what, "x")
    if hasattr(new, "columns"):
        matrix = matrix[:, [found.index(name) for name in covariates]]
    if matrix.shape[1] != len(covariates):
        raise InputError(f"{what} must have the model's {len(covariates)} columns, got {matrix.shape[1]}.")
    if offset is None and offset_needed:
        raise InputError("predict: the model has an offset; give offset= for the new rows, zeros where there is none.")
    known = np.zeros(len(matrix)) if offset is None else read_vector(offset, "predict: offset")
    if len(known) != len(matrix):
        raise InputError(f"predict: new has {len(matrix)} rows but offset has {len(known)}.")
    return matrix, known


def check_values(what: str, result: Any, points: Array) -> tuple[Array, Array]:
    """What a function of points (M, d) returned, refused unless it is a log density (M,) and a gradient (M, d)."""
    words, shapes = ("log density", "gradient"), (points.shape[:1], points.shape)
    density, gradient = _check_arrays(what, result, points, words, shapes)
    return density, gradient


def check_terms(what: str, result: Any, points: Array, n_local: int) -> tuple[Array, Array, Array]:
    """The same of log terms (M,), (M, N) and their gradient (M, d)."""
    words = ("global term", "table of local terms", "gradient")
    shapes = (points.shape[:1], (len(points), n_local), points.shape)
    prior, local, gradient = _check_arrays(what, result, points, words, shapes)
    return prior, local, gradient


def _check_arrays(
    what: str, result: Any, points: Array, words: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    if not isinstance(result, tuple | list) or len(result) != len(words):
        count = {2: "two", 3: "three"}[len(words)]
        listed = "the log density and its gradient" if len(words) == 2 else "the " + ", the ".join(words)
        raise InputError(f"{what} must return {count} arrays, {listed}; it returned {type(result).__name__}.")
    arrays = [namespace_of(points).asarray(array) for array in result]
    for array, word, shape in zip(arrays, words, shapes, strict=True):
        if array.dtype.kind not in "biuf":
            raise InputError(f"{what} returned a {word} of dtype {array.dtype}; it must be real numbers.")
        if array.shape != shape:
            raise InputError(
                f"{what} must return a {word} of shape {shape} for points of shape {points.shape}, it returned "
                f"{array.shape}."
            )
    return arrays


def refuse_non_counts(counts: np.ndarray, what: str) -> None:
    """Raise InputError unless every entry is a whole number of at least 0."""
    for bad, word in ((counts < 0, "negative"), (counts != np.floor(counts), "fractional")):
        if bad.any():
            first = int(np.argmax(bad))
            raise InputError(
                f"{what} must hold counts 0, 1, 2, ...; {int(bad.sum())} are {word}, the first in row "
                f"{first} (counted from 0): {counts[first]:g}."
            )


def refuse_different_rows(first: Any, second: Any, what: str, names: tuple[str, str]) -> None:
    """Raise InputError if both inputs are pandas objects of one length whose indexes differ."""
    if all(hasattr(table, "index") and hasattr(table, "iloc") for table in (first, second)) and (
        len(first) == len(second) and not first.index.equals(second.index)
    ):
        raise InputError(
            f"{what}: the rows of {names[0]} and {names[1]} have different index labels. Align them, e.g. "
            f"{names[1]}.loc[{names[0]}.index], or pass {names[1]}.to_numpy() to go by position."
        )


def _numbers(value: Any, what: str) -> np.ndarray:
    """A new C-ordered float64 array; missing values become NaN."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{what} is a masked array. Fill or drop the masked entries first.")
    if hasattr(value, "toarray") and not isinstance(value, np.ndarray):
        raise InputError(f"{what} is a sparse matrix. Pass its .toarray().")
    try:
        array = np.asarray(to_numpy(value))
    except ValueError:
        raise InputError(f"{what}: its rows have different lengths.") from None
    if array.dtype.kind == "O":
        objects = array
        array, bad = numbers_of(objects)
        if bad:
            # of a column that one word has made text, that word and not the number in its first row
            first = next((place for place in bad if not is_written_number(objects[place])), bad[0])
            item, where = objects[first], f" in row {first[0]} (counted from 0)" if first else ""
            raise InputError(
                f"{what} must hold numbers; {item!r}{where} is of type {type(item).__name__}. "
                "Encode text and categories as numbers first."
            )
    elif array.dtype.kind == "c":
        raise InputError(f"{what} is complex. Only real numbers can be used.")
    elif array.dtype.kind not in "biuf":
        raise InputError(f"{what} must hold numbers, got dtype {array.dtype}. Convert it to numbers first.")
    with np.errstate(over="ignore"):
        return np.array(array, dtype=np.float64, order="C")


def is_written_number(item: Any) -> bool:
    """Whether it is a number, or text that is one."""
    try:
        float(item)
    except (TypeError, ValueError):
        return False
    return True


def numbers_of(objects: np.ndarray) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Objects as float64, None and pandas' NA as NaN; and the places of those that are no numbers."""
    numeric = np.full(objects.shape, np.nan)
    bad = []
    for place in np.ndindex(objects.shape):
        item = objects[place]
        if isinstance(item, numbers.Real | Decimal | np.bool_):
            numeric[place] = float(item)
        elif item is not None and type(item).__name__ not in ("NAType", "NaTType"):
            bad.append(place)
    return numeric, bad


def _refuse_empty(shape: tuple[int, ...], what: str) -> None:
    if shape[0] == 0:
        raise InputError(f"{what} is empty (shape {tuple(shape)}): there must be at least one row.")
    if len(shape) > 1 and shape[1] == 0:
        raise InputError(f"{what} has no columns (shape {tuple(shape)}): there must be at least one.")


def _refuse_non_finite(array: np.ndarray, what: str, columns: list[str] | None, missing_allowed: bool = False) -> None:
    bad = np.isinf(array) if missing_allowed else ~np.isfinite(array)
    if not bad.any():
        return
    place = np.unravel_index(int(np.argmax(bad)), array.shape)
    column = f", column {columns[place[1]]!r}" if columns is not None else ""
    kind = "NaN (missing)" if np.isnan(array[place]) else "infinite"
    if missing_allowed:
        raise InputError(
            f"{what} has {int(bad.sum())} infinite entries, the first in row {place[0]} (counted from 0){column}. "
            "Write NaN where nothing was observed."
        )
    raise InputError(
        f"{what} has {int(bad.sum())} entries that are NaN or infinite, the first in row {place[0]} (counted "
        f"from 0){column}: {kind}. Drop or fill in these rows first."
    )
