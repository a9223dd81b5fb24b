"""Reading and checking a table of responses: 0, 1 or missing."""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.checks import as_frame, numbers_of
from pyturingvi.models.labels import Labels, row_labels
from pyturingvi.support.array_namespace import to_numpy

MISSING = -1


def read_responses(responses: Any) -> tuple[np.ndarray, Labels, list[str]]:
    """`read_table` of what a model can be fitted to: at least two students and two items, each with a response."""
    codes, students, items = read_table(responses, least=2)
    silent = codes == MISSING
    refuse_silent(silent.all(axis=1), "student", students.plain)
    refuse_silent(silent.all(axis=0), "item", items)
    return codes, students, items


def read_table(responses: Any, *, least: int) -> tuple[np.ndarray, Labels, list[str]]:
    """A (J, K) array, DataFrame or pyarrow Table as int8 codes 0, 1 and -1 (missing), with its students and items.

    Labels are those of a DataFrame, otherwise 0..J-1 and item1..itemK. An InputError if it is no table, has fewer than
    `least` rows or columns, holds anything but 0, 1 and missing, or has labels that occur twice.
    """
    responses = as_frame(responses)
    if hasattr(responses, "columns") and hasattr(responses, "iloc"):
        students = row_labels(responses)
        refuse_repeats(students.plain, "student", "index")
        items = [str(label) for label in responses.columns]
        refuse_repeats(items, "item", "columns")
        check_shape(responses.shape, least)
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
        check_shape(values.shape, least)
        students = row_labels(values)
        items = [f"item{k + 1}" for k in range(values.shape[1])]
        codes = _codes(values, students.plain, items)
    return codes, students, items


def column_values(column: Any) -> np.ndarray:
    """A pandas column as numbers with NaN for missing, or as objects where it does not hold numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if is_numeric_dtype(column.dtype) or is_bool_dtype(column.dtype):
        values: np.ndarray = column.to_numpy(dtype=float, na_value=np.nan)
    else:
        values = column.to_numpy(dtype=object)
    return values


def check_shape(shape: tuple[int, ...], least: int) -> None:
    """Raise InputError unless there are as many students and items at least."""
    if len(shape) != 2:
        raise InputError(f"responses: needs two dimensions (students, items), got shape {shape}.")
    if 0 in shape:
        raise InputError(f"responses: the table is empty (shape {shape}).")
    if shape[0] < least:
        raise InputError("responses: there is only one student (row); at least two are needed.")
    if shape[1] < least:
        raise InputError("responses: there is only one item (column); at least two are needed.")


def codes_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Codes of any values; where these are neither 0, 1 nor missing; and whether that is for being no numbers."""
    if values.dtype.kind not in "biuf":
        objects = values
        values, places = numbers_of(objects)
        if places:
            bad = np.zeros(objects.shape, dtype=bool)
            bad[tuple(np.transpose(places))] = True
            return np.zeros(objects.shape, dtype=np.int8), bad, True
    missing = np.isnan(values)
    bad = ~(missing | (values == 0) | (values == 1))
    return np.where(missing | bad, MISSING, values).astype(np.int8), bad, False


def refuse_value(value: Any, student: Any, item: Any, such: str, *, no_number: bool) -> NoReturn:
    """The error for a response that is neither 0, 1 nor missing; `such` says how many there are."""
    if no_number:
        raise InputError(
            f"responses: {str(value)!r} at student {student!r}, item {item!r} is not a number ({such}). "
            "Recode the answers first, e.g. `(table == 'yes').astype(float).where(table.notna())`, so that "
            "right is 1 and wrong is 0."
        )
    raise InputError(
        f"responses: {value!s} at student {student!r}, item {item!r} is not 0, 1 or NaN ({such}). "
        "Code wrong as 0, right as 1 and missing as NaN."
    )


def _codes(values: np.ndarray, students: list[Any], items: list[str]) -> np.ndarray:
    """Codes of a (J, K) or (J,) block, refusing what is neither 0, 1 nor missing."""
    values = values.reshape(len(students), len(items))
    codes, bad, no_number = codes_of(values)
    if bad.any():
        j, k = np.argwhere(bad)[0]
        such = f"{int(bad.sum())} such cells{'' if len(items) > 1 else ' in this item'}"
        refuse_value(values[j, k], students[j], items[k], such, no_number=no_number)
    return codes


def refuse_silent(silent: np.ndarray, kind: str, labels: list[Any]) -> None:
    """Every student and item needs a response: without one, only the prior would speak."""
    lost = np.flatnonzero(silent)
    if lost.size:
        raise InputError(
            f"responses: {kind} {labels[lost[0]]!r} has no response at all ({lost.size} such {kind}s). "
            f"Drop {'these rows' if kind == 'student' else 'these columns'} first."
        )


def refuse_repeats(labels: list[Any], kind: str, where: str) -> None:
    """Raise InputError if two labels are the same."""
    repeated = [label for label, count in Counter(labels).items() if count > 1]
    if repeated:
        raise InputError(
            f"responses: {kind} {repeated[0]!r} occurs more than once in the {where} ({len(repeated)} such labels). "
            f"Give every {kind} one {'row' if kind == 'student' else 'column'} and a name of its own."
        )
