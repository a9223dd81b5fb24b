"""Reading long tables of responses, one row an answer, without laying out a place for every pair."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.models.checks import as_frame
from pyturingvi.models.irt_answers import Answers
from pyturingvi.models.irt_responses import (
    MISSING,
    check_shape,
    codes_of,
    column_values,
    refuse_repeats,
    refuse_silent,
    refuse_value,
)
from pyturingvi.models.labels import Labels, labels_of, plain_label


class LongTable(NamedTuple):
    """What was read from a long table."""

    answers: Answers
    students: Labels
    items: list[str]


def read_long(
    df: Any, student: str, item: str, response: str, *, least: int = 2, caller: str = "from_long"
) -> LongTable:
    """The answers of a DataFrame or pyarrow Table with its students and items, both in order of first appearance.

    An InputError if it is neither or empty, a column is absent or there twice, a student or item is missing, a
    response is not 0, 1 or missing, a pair occurs twice, a student or an item has no response, or there are fewer than
    `least` of one.
    """
    df = as_frame(df)
    _check_columns(df, student, item, response, caller)
    # One number tells the pair and the response: sorted, it has the answers in order and repeats side by side. At ten
    # million rows an array of such numbers takes 80 MB, and three of them are there at a time.
    key, item_index = _numbered(df[item], caller)
    rows, student_index = _numbered(df[student], caller)
    n_students, n_items = len(student_index), len(item_index)
    key *= n_students
    key += rows
    del rows
    key *= 3
    key += _codes(df, student, item, response, caller) - MISSING
    key.sort()
    pairs = key // 3
    if (pairs[1:] == pairs[:-1]).any():
        _refuse_repeated_pairs(df, student, item, caller)
    key -= 3 * pairs
    codes = key.astype(np.int8) + np.int8(MISSING)
    del key
    seen = codes != MISSING
    pairs, signs = pairs[seen], 2 * codes[seen] - 1
    starts = np.searchsorted(pairs, n_students * np.arange(n_items + 1))
    pairs %= n_students
    answers = Answers(n_students, starts, pairs.astype(np.int32), signs)
    students, items = labels_of(student_index), [str(label) for label in item_index]
    refuse_repeats(students.plain, "student", f"column {student!r}, as words")
    refuse_repeats(items, "item", f"column {item!r}, as words")
    check_shape((n_students, n_items), least)
    refuse_silent(np.bincount(answers.students, minlength=n_students) == 0, "student", students.plain)
    refuse_silent(np.diff(starts) == 0, "item", items)
    return LongTable(answers, students, items)


def _check_columns(df: Any, student: str, item: str, response: str, caller: str) -> None:
    """Raise InputError unless df has each column once, and a student and an item in every row."""
    import pandas as pd

    if not isinstance(df, pd.DataFrame):
        raise InputError(f"{caller}: df must be a pandas DataFrame or a pyarrow Table, got {type(df).__name__}.")
    for column in (student, item, response):
        if column not in df.columns:
            raise unknown_name("column", column, [str(name) for name in df.columns])
        if list(df.columns).count(column) > 1:
            raise InputError(f"{caller}: df has more than one column named {column!r}. Rename the columns.")
    if df.empty:
        raise InputError(f"{caller}: df has no rows.")
    for column in (student, item):
        absent = df[column].isna()
        if absent.any():
            raise InputError(
                f"{caller}: column {column!r} is missing in row {absent.idxmax()!r} "
                f"({int(absent.sum())} such rows). Fill it in or drop these rows."
            )


def _numbered(column: Any, caller: str) -> tuple[np.ndarray, Any]:
    """The number of each entry among the different ones, and these."""
    import pandas as pd

    try:
        numbers, different = pd.factorize(column)
    except TypeError:
        raise InputError(
            f"{caller}: column {column.name!r} has lists or the like as entries. Students and items have numbers, "
            "words or dates as names; responses are 1, 0 or missing."
        ) from None
    return numbers, different


def _codes(df: Any, student: str, item: str, response: str, caller: str) -> np.ndarray:
    """The responses as int8 codes, by way of the few different ones."""
    numbers, different = _numbered(df[response], caller)  # a missing one is number -1
    values = column_values(different)
    codes, bad, no_number = codes_of(values)
    if bad.any():
        wrong = np.append(bad, False)[numbers]
        first = int(np.argmax(wrong))
        refuse_value(
            values[numbers[first]],
            plain_label(df[student].iloc[first]),
            str(df[item].iloc[first]),
            f"{int(wrong.sum())} such rows",
            no_number=no_number,
        )
    found: np.ndarray = np.append(codes, np.int8(MISSING))[numbers]
    return found


def _refuse_repeated_pairs(df: Any, student: str, item: str, caller: str) -> NoReturn:
    repeats = df.duplicated([student, item])
    first = df.loc[repeats.to_numpy()].iloc[0]
    raise InputError(
        f"{caller}: student {plain_label(first[student])!r} answers item {plain_label(first[item])!r} more than once "
        f"({int(repeats.sum())} repeated rows). Keep one response a pair, e.g. with drop_duplicates."
    )
