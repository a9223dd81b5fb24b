"""Loader for the published answers to a grammar quiz, CritLangAcq."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.data.sources import own_file, read_csv, subset_rows
from pyturingvi.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

FILE_NAME = "data.csv"
N_ITEMS = 95
_STUDENT_COLUMN, _FIRST_ITEM_COLUMN, _LAST_COLUMNS = 1, 31, 2  # counted from 0


def load_critlangacq(
    data_dir: str | PathLike[str] | None = None, n: int | None = None, *, seed: int = 0
) -> pd.DataFrame:
    """Right and wrong answers of students to 95 quiz items (paper, "Probabilistic Models and Datasets").

    The data belong to Hartshorne, Tenenbaum and Pinker (2018), "A critical period for second language
    acquisition", who publish `data.csv` with their article at osf.io; no licence is known here, so look
    there. No package holds them: download the file and name its folder.

    Parameters
    ----------
    data_dir : path
        Folder with `data.csv` as published: column 2 is the student, columns 32 up to but not including the
        last two are the items.
    n : int, optional
        Number of students, drawn without replacement by `numpy.random.default_rng(seed)` and kept in file
        order; None takes all. The paper's large problem is a 5 % subset, n = 33,475.
    seed : int
        Seed of that draw.

    Returns
    -------
    (n, 95) DataFrame of int8, or float32 with NaN where answers are missing, indexed by student

    Raises
    ------
    DataError
        If the file is absent or has another layout.
    InputError
        If `n` is out of range.
    """
    if data_dir is None:
        raise DataError(
            "CritLangAcq is in no package: download `data.csv` of Hartshorne, Tenenbaum and Pinker (2018) "
            "and pass data_dir='folder that holds it', or `load_problem(..., simulated=True)` (command line: "
            "--simulated) for simulated data."
        )
    try:
        path = own_file(data_dir, FILE_NAME)
    except DataError as error:
        raise DataError(
            f"{error} Without the file, `load_problem(..., simulated=True)` gives simulated data."
        ) from None
    items = _item_names(path)
    # One narrow column only, to count the rows before any subset of the wide table is read.
    students = read_csv(path, str(path), usecols=[_STUDENT_COLUMN]).iloc[:, 0]
    if students.empty:
        raise DataError(f"{path} has a header but no rows.")
    rows = subset_rows(n, len(students), seed)
    kept = np.zeros(len(students), dtype=bool)
    kept[rows] = True
    answers = _read_answers(path, items, kept)
    answers.index = students.iloc[rows].to_list()
    answers.index.name = "student"
    return answers


def _item_names(path: Path) -> list[str]:
    """Names of the item columns by their place in the header."""
    columns = list(read_csv(path, str(path), nrows=0).columns)
    items = columns[_FIRST_ITEM_COLUMN : len(columns) - _LAST_COLUMNS]
    if len(items) != N_ITEMS:
        raise DataError(
            f"{path} has {len(columns)} columns, so {len(items)} items from column {_FIRST_ITEM_COLUMN + 1} "
            f"up to the last two; the published file has {_FIRST_ITEM_COLUMN + N_ITEMS + _LAST_COLUMNS} "
            f"columns and {N_ITEMS} items. Use data.csv as published."
        )
    return items


def _read_answers(path: Path, items: list[str], kept: np.ndarray) -> pd.DataFrame:
    """The item columns of the rows marked in `kept`, read in pieces: the whole table would take half a GB."""
    import pandas as pd

    pieces: list[np.ndarray] = []
    start = 0
    places = list(range(_FIRST_ITEM_COLUMN, _FIRST_ITEM_COLUMN + N_ITEMS))
    reader: Any = read_csv(path, str(path), usecols=places, chunksize=50_000, dtype=np.float32)
    try:
        for piece in reader:
            here = kept[start : start + len(piece)]
            start += len(piece)
            if here.any():
                pieces.append(piece.to_numpy()[here])
    except ValueError as error:
        raise DataError(f"{path}: an item column holds something that is not a number: {error}") from None
    values = np.concatenate(pieces)
    bad = ~(np.isnan(values) | (values == 0) | (values == 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise DataError(
            f"{path}: item {items[column]!r} holds {values[row, column]:g} at row "
            f"{np.flatnonzero(kept)[row] + 1} ({int(bad.sum())} such cells in the rows drawn); "
            "answers must be 0 or 1."
        )
    if not np.isnan(values).any():
        values = values.astype(np.int8)
    return pd.DataFrame(values, columns=items)
