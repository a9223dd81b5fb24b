"""Reading and checking a table of responses: 0, 1 or missing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.checks import as_frame, numbers_of
from pyturingvi.models.labels import Labels, row_labels
from pyturingvi.support.array_namespace import to_numpy

MISSING = -1


def read_responses(responses: Any) -> tuple[np.ndarray, Labels, list[str]]:
    """A (J, K) array, DataFrame or pyarrow Table as int8 codes 0, 1 and -1 (missing), with its students and items.

    Labels are those of a DataFrame, otherwise 0..J-1 and item1..itemK. An InputError if it is no table, too small,
    holds anything but 0, 1 and missing, has a row or column without a response, or labels that occur twice.
    """
    responses = as_frame(responses)
    if hasattr(responses, "columns") and hasattr(responses, "iloc"):
        students = row_labels(responses)
        _refuse_repeats(students.plain, "student", "index")
        items = [str(label) for label in responses.columns]
        _refuse_repeats(items, "item", "columns")
        _check_shape(responses.shape)
        codes = np.empty(responses.shape, dtype=np.int8)
        for k, item in enumerate(items):
            codes[:, k] = _codes(column_values(responses.iloc[:, k]), students.plain, [item])[:, 0]
    else:
        if hasattr(responses, "toarray") and not isinstance(responses, np.ndarray):
            raise InputError(
                "responses: the table is a sparse matrix, which does not tell wrong answers from missing ones. Where "
                "the entries left out are wrong answers, pass its .toarray(); where they are missing, pass the stored "
                "ones to ItemResponse.from_long."
            )
        if isinstance(responses, np.ma.MaskedArray):
            responses = np.ma.filled(responses.astype(float), np.nan)
        try:
            values = np.asarray(to_numpy(responses))
        except ValueError:
            raise InputError("responses: the rows have different lengths; give a (students, items) table.") from None
        _check_shape(values.shape)
        students = row_labels(values)
        items = [f"item{k + 1}" for k in range(values.shape[1])]
        codes = _codes(values, students.plain, items)
    _check_observed(codes, students.plain, items)
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
    missing = np.isnan(values)
    bad = ~(missing | (values == 0) | (values == 1))
    if bad.any():
        j, k = np.argwhere(bad)[0]
        raise InputError(
            f"responses: {values[j, k]!s} at student {students[j]!r}, item {items[k]!r} is not 0, 1 or NaN "
            f"({int(bad.sum())} such {'cells' if len(items) > 1 else 'cells in this item'}). "
            "Code wrong as 0, right as 1 and missing as NaN."
        )
    return np.where(missing, MISSING, values).astype(np.int8)


def _numbers(values: np.ndarray, students: list[Any], items: list[str]) -> np.ndarray:
    """Objects as floats, refusing what is no number."""
    out, bad = numbers_of(values)
    if bad:
        j, k = bad[0]
        raise InputError(
            f"responses: {str(values[j, k])!r} at student {students[j]!r}, item {items[k]!r} "
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


def _refuse_repeats(labels: list[Any], kind: str, where: str) -> None:
    repeated = [label for label, count in Counter(labels).items() if count > 1]
    if repeated:
        raise InputError(
            f"responses: {kind} {repeated[0]!r} occurs more than once in the {where} ({len(repeated)} such labels). "
            f"Give every {kind} one {'row' if kind == 'student' else 'column'} and a name of its own."
        )
