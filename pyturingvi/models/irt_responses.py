"""Reading and checking a table of responses: 0, 1 or missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.array_namespace import to_numpy

MISSING = -1


def read_responses(responses: Any) -> tuple[np.ndarray, list[Any], list[str]]:
    """Turn a wide table into codes 0, 1 and -1 (missing) with its labels.

    Parameters
    ----------
    responses : (J, K) array or DataFrame

    Returns
    -------
    codes : (J, K) int8 array
    students : list
        The index of a DataFrame, otherwise 0..J-1.
    items : list of str
        The columns of a DataFrame, otherwise item1..itemK.

    Raises
    ------
    InputError
        If the table is not two-dimensional, is too small, holds anything but 0, 1 and missing, has a row or
        column without a response, or labels that occur twice.
    """
    if hasattr(responses, "columns") and hasattr(responses, "iloc"):
        students = _unique([plain_label(label) for label in responses.index], "student", "index")
        items = _unique([_text(label) for label in responses.columns], "item", "columns")
        _check_shape(responses.shape)
        codes = np.empty(responses.shape, dtype=np.int8)
        for k, item in enumerate(items):
            codes[:, k] = _codes(column_values(responses.iloc[:, k]), students, [item])[:, 0]
    else:
        if isinstance(responses, np.ma.MaskedArray):
            responses = np.ma.filled(responses.astype(float), np.nan)
        try:
            values = np.asarray(to_numpy(responses))
        except ValueError:
            raise InputError("responses: the rows have different lengths; give a (students, items) table.") from None
        _check_shape(values.shape)
        students = list(range(values.shape[0]))
        items = [f"item{k + 1}" for k in range(values.shape[1])]
        codes = _codes(values, students, items)
    _check_observed(codes, students, items)
    return codes, students, items


def column_values(column: Any) -> np.ndarray:
    """A pandas column as numbers with NaN for missing, or as objects where it does not hold numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if is_numeric_dtype(column.dtype) or is_bool_dtype(column.dtype):
        values: np.ndarray = column.to_numpy(dtype=float, na_value=np.nan)
    else:
        values = column.to_numpy(dtype=object)
    return values


def _check_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise InputError(f"responses: needs two dimensions (students, items), got shape {shape}.")
    if 0 in shape:
        raise InputError(f"responses: the table is empty (shape {shape}).")
    if shape[0] < 2:
        raise InputError("responses: there is only one student (row); at least two are needed.")
    if shape[1] < 2:
        raise InputError("responses: there is only one item (column); at least two are needed.")


def _codes(values: np.ndarray, students: list[Any], items: list[str]) -> np.ndarray:
    """Codes of a (J, K) or (J,) block, refusing what is neither 0, 1 nor missing."""
    values = values.reshape(len(students), len(items))
    if values.dtype.kind not in "biuf":
        values = _numbers(values, students, items)
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        bad = ~(missing | (values == 0) | (values == 1))
    else:
        missing = np.zeros(values.shape, dtype=bool)
        bad = (values != 0) & (values != 1)
    if bad.any():
        j, k = np.argwhere(bad)[0]
        raise InputError(
            f"responses: {values[j, k]!s} at student {students[j]!r}, item {items[k]!r} is not 0, 1 or NaN "
            f"({int(bad.sum())} such {'cells' if len(items) > 1 else 'cells in this item'}). "
            "Code wrong as 0, right as 1 and missing as NaN."
        )
    codes = np.where(missing, 0, values).astype(np.int8)
    codes[missing] = MISSING
    return codes


def _numbers(values: np.ndarray, students: list[Any], items: list[str]) -> np.ndarray:
    """Objects as floats: None and pandas' NA become NaN, and anything that is no number is refused."""
    out = np.full(values.shape, np.nan)
    bad: list[tuple[int, int]] = []
    for place in np.ndindex(*values.shape):
        value = values[place]
        if isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
            out[place] = float(value)
        elif value is not None and type(value).__name__ not in ("NAType", "NaTType"):
            bad.append(place)
    if bad:
        j, k = bad[0]
        raise InputError(
            f"responses: {plain_label(values[j, k])!r} at student {students[j]!r}, item {items[k]!r} "
            f"is not a number ({len(bad)} such cells{'' if len(items) > 1 else ' in this item'}). "
            "Recode the answers first, e.g. `(table == 'yes').astype(float).where(table.notna())`, so that "
            "right is 1 and wrong is 0."
        )
    return out


def _check_observed(codes: np.ndarray, students: list[Any], items: list[str]) -> None:
    """Every student and item needs a response: without one, only the prior would speak."""
    for axis, kind, labels in ((1, "student", students), (0, "item", items)):
        lost = np.flatnonzero((codes == MISSING).all(axis=axis))
        if lost.size:
            raise InputError(
                f"responses: {kind} {labels[lost[0]]!r} has no response at all ({lost.size} such {kind}s). "
                f"Drop {'these rows' if kind == 'student' else 'these columns'} first."
            )


def _unique(labels: list[Any], kind: str, where: str) -> list[Any]:
    seen: set[Any] = set()
    twice = []
    for label in labels:
        if label in seen:
            twice.append(label)
        seen.add(label)
    if twice:
        raise InputError(
            f"responses: {kind} {twice[0]!r} occurs more than once in the {where} ({len(twice)} repeats). "
            f"Give every {kind} one {'row' if kind == 'student' else 'column'} and a name of its own."
        )
    return labels


def plain_label(label: Any) -> Any:
    """A label as JSON can hold it."""
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return int(label)
    return _text(label)


def _text(label: Any) -> str:
    return str(label)
