"""The CSV files of the figures, checked when read, so that a damaged one is told in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 2.0**53  # up to which a float is a whole number without doubt


def row_names(frame: pd.DataFrame, key: Sequence[str]) -> list[tuple[str, ...]]:
    """What names each row, as words; numbers to the eight digits that the files have."""
    return [named(row) for row in frame[list(key)].itertuples(index=False, name=None)]


def named(row: Iterable[Any]) -> tuple[str, ...]:
    """One row's name."""
    return tuple(f"{value:.8g}" if isinstance(value, int | float | np.number) else str(value) for value in row)


def check_rows(frame: pd.DataFrame, key: Sequence[str], wanted: Iterable[Iterable[Any]], preset: str) -> None:
    """DataError unless the rows are exactly those that the preset has."""
    expected, found = {named(row) for row in wanted}, row_names(frame, key)
    refuse_foreign(found, key, expected, preset)
    if len(found) != len(expected):
        raise DataError(f"has {len(found)} of the {len(expected)} rows of the preset {preset!r}: it is incomplete")


def refuse_foreign(
    found: Sequence[tuple[str, ...]], key: Sequence[str], known: Collection[tuple[str, ...]], preset: str
) -> None:
    """DataError for the first row that is not one of the known."""
    for line, row in enumerate(found, 2):
        if row not in known:
            words = ", ".join(f"{name} {value}" for name, value in zip(key, row, strict=True))
            raise DataError(f"has {words} in line {line}, which the preset {preset!r} does not have")


@dataclass(frozen=True)
class Table:
    """What a CSV file must have to be read as a figure's table.

    Attributes
    ----------
    key : sequence of str
        Columns that name a row: none is empty and no two rows have the same.
    complete : bool
        Whether every combination of the values in `key` must be there, and all of a `words` column's.
    columns : sequence of str
        More columns, of any words.
    numbers, finite, nonnegative, positive : sequence of str
        Columns of numbers: any (also infinite), finite ones, finite ones from zero on, finite ones above zero.
    counts, natural : sequence of str
        Columns of whole numbers, from 0 and from 1 on.
    flags : sequence of str
        Columns of True and False.
    words : mapping
        Column -> the words that may be in it.
    empty : sequence of str
        Those of the columns that may also be empty.
    contradictions : mapping
        Words -> a function of the table that tells of which rows they are true: there may be none.
    """

    key: Sequence[str] = ()
    complete: bool = False
    columns: Sequence[str] = ()
    numbers: Sequence[str] = ()
    finite: Sequence[str] = ()
    nonnegative: Sequence[str] = ()
    positive: Sequence[str] = ()
    counts: Sequence[str] = ()
    natural: Sequence[str] = ()
    flags: Sequence[str] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    empty: Sequence[str] = ()
    contradictions: Mapping[str, Callable[[pd.DataFrame], Any]] = field(default_factory=dict)


def read_table(
    path: Path,
    table: Table,
    advice: str = "",
    *,
    rows_needed: bool = True,
    check: Callable[[pd.DataFrame], None] | None = None,
) -> pd.DataFrame:
    """Read a CSV file and check it.

    Parameters
    ----------
    advice : str
        What to do about a damaged file, the end of the message.
    rows_needed : bool
        Whether a file with a header alone is an error.
    check : callable, optional
        What else is wrong with the table, as a DataError without the file's name.

    Raises
    ------
    DataError
        Naming the file and the first thing that is wrong: unreadable, cut off within a line, without rows, columns
        missing, a value that its column cannot have, a row that is there twice, rows that are missing, or values that
        contradict each other.
    """
    try:
        frame = _parsed(path)
        if not len(frame) and rows_needed:
            raise DataError("has no rows yet")
        _check(frame, table)
        if check is not None:
            check(frame)
    except DataError as error:
        raise DataError(f"{path}: {error}. {advice}".rstrip()) from None
    return frame


def _parsed(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        content = path.read_bytes()
        content.decode()
        if not content.strip():
            raise DataError("is empty")
        frame = pd.read_csv(path, low_memory=False)
    except (OSError, ValueError) as error:  # the errors of pandas and of decoding are ValueErrors
        reason = str(error).strip().replace("\n", " ")
        raise DataError(f"cannot be read as a CSV file ({reason})") from None
    if not content.endswith((b"\n", b"\r")):
        raise DataError("ends in the middle of a line: it was cut off")
    if not isinstance(frame.index, pd.RangeIndex):
        raise DataError("has rows with more fields than its header")
    return frame


def _check(frame: pd.DataFrame, table: Table) -> None:
    """Check the values, and turn the columns of whole numbers without empty fields into integers."""
    tests: list[tuple[Sequence[str], str, Callable[[np.ndarray], np.ndarray]]] = [
        (table.numbers, "a number", lambda x: ~np.isnan(x)),
        (table.finite, "a finite number", np.isfinite),
        (table.nonnegative, "a finite number from zero on", lambda x: np.isfinite(x) & (x >= 0)),
        (table.positive, "a finite number above zero", lambda x: np.isfinite(x) & (x > 0)),
        (table.counts, "a whole number from 0 on", lambda x: _whole(x) & (x >= 0)),
        (table.natural, "a whole number from 1 on", lambda x: _whole(x) & (x >= 1)),
    ]
    asked = [*table.key, *table.columns, *(name for names, *_ in tests for name in names), *table.flags, *table.words]
    lacking = [name for name in dict.fromkeys(asked) if name not in frame.columns]
    if lacking:
        raise DataError(f"lacks the column(s) {', '.join(lacking)}")
    for names, what, test in tests:
        for name in names:
            _check_numbers(frame, name, what, test, name in table.empty)
    for name in [*table.counts, *table.natural]:
        if frame[name].notna().all():
            frame[name] = frame[name].astype("int64")
    for name, choices in {**table.words, **dict.fromkeys(table.flags, ("True", "False"))}.items():
        good = frame[name].astype(str).isin(choices) | (frame[name].isna() & (name in table.empty))
        _refuse(frame[name], good.to_numpy(bool), f"one of {', '.join(choices)}")
    for name in [*table.key, *(name for name in table.columns if name not in table.empty)]:
        _refuse(frame[name], frame[name].notna().to_numpy(bool), "a value")
    if table.key:
        _check_key(frame, table)
    for words, is_so in table.contradictions.items():
        rows = np.asarray(is_so(frame), dtype=bool)
        if rows.any():
            raise DataError(f"has {words} in line {int(np.argmax(rows)) + 2}")


def _whole(x: np.ndarray) -> np.ndarray:
    return np.isfinite(x) & (np.abs(x) <= _LARGEST) & (x == np.floor(x))


def _check_numbers(
    frame: pd.DataFrame, name: str, what: str, test: Callable[[np.ndarray], np.ndarray], may_be_empty: bool
) -> None:
    import pandas as pd

    column = frame[name]
    given = column.notna().to_numpy(bool)
    booleans = column.map(lambda value: isinstance(value, bool | np.bool_)).to_numpy(bool)
    values = pd.to_numeric(column.mask(booleans), errors="coerce").to_numpy(float, na_value=math.nan)
    good = (test(values) & given) | (~given & may_be_empty)
    _refuse(column, good, what)
    if column.dtype.kind not in "iuf":
        frame[name] = values


def _refuse(column: pd.Series, good: np.ndarray, what: str) -> None:
    if not good.all():
        row = int(np.argmin(good))
        value = column.iloc[row]
        shown = "nothing" if value != value else str(value)[:40]
        raise DataError(f"has {shown} as {column.name} in line {row + 2}, where {what} is expected")


def _check_key(frame: pd.DataFrame, table: Table) -> None:
    key = list(table.key)
    twice = frame.duplicated(key)
    if twice.any():
        row = frame[twice].iloc[0]
        raise DataError(f"has two rows of {', '.join(f'{name} {row[name]}' for name in key)}")
    if not table.complete or not len(frame):
        return
    for name in key:
        missing = [word for word in table.words.get(name, ()) if not (frame[name] == word).any()]
        if missing:
            raise DataError(f"has no row of {name} {missing[0]}")
    whole = math.prod(frame[name].nunique() for name in key)
    if len(frame) != whole:
        raise DataError(f"has {len(frame)} of the {whole} rows that every {', '.join(key)} would make")
