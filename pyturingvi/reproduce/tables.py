"""Reading the CSV files of the figures, where one that cannot be used is told in one line, and the paper's own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from pyturingvi.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path, command: str, columns: Sequence[str] = (), numbers: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV file with these columns of words and of numbers, which may be infinite or empty.

    A DataError names the file, the first thing that is wrong (not there, unreadable, without rows, a column that is
    missing, a word among numbers), and the `command` that makes the file.
    """
    import pandas as pd

    def damaged(what: str) -> DataError:
        return DataError(f"{path}: {what}. Move it away and compute it again: {command}")

    try:
        frame = pd.read_csv(path)
    except FileNotFoundError:
        raise DataError(f"{path}: not found. Compute it: {command}") from None
    except (OSError, ValueError) as error:  # the errors of pandas and of decoding are ValueErrors
        raise damaged(f"cannot be read as a CSV file ({str(error).strip()})".replace("\n", " ")) from None
    if lacking := [name for name in [*columns, *numbers] if name not in frame]:
        raise damaged(f"lacks the column(s) {', '.join(lacking)}")
    if frame.empty:
        raise damaged("has no rows yet")
    for name in numbers:
        given = frame[name].dropna()
        if given.dtype.kind not in "iuf":
            words = given[pd.to_numeric(given.astype(str), errors="coerce").isna()]
            if len(words):
                raise damaged(f"has {words.iloc[0]} as {name} in line {words.index[0] + 2}, where a number is expected")
    return frame


def published(name: str) -> pd.DataFrame:
    """One of the paper's tables, as `published/README.md` describes them."""
    import pandas as pd

    with (files("pyturingvi.reproduce") / "published" / name).open() as stream:
        return pd.read_csv(stream)
