"""Reading a table of returns, and refusing what no stochastic volatility can be fitted to."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.checks import as_frame, read_matrix
from pyturingvi.models.labels import Labels, label_text

WHAT = "StochasticVolatility: returns"
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_LARGEST = 1e100
_NEVER_OF_ONE_SIGN = 20  # returns of one sign have a chance of 2^-19
_SPREADS = 10.0  # values so many ranges away from 0 are prices, however few
_NEAR_ZERO, _OFTEN = 0.05, 0.02  # in standard deviations, and as a share of the days


def read_returns(value: Any) -> tuple[np.ndarray, list[str], Labels]:
    """An array, DataFrame or pyarrow Table as a new (T, D) float64 array, NaN where missing; with series and times.

    An InputError where it is no table of numbers, or where the posterior would be improper or that of something else:
    exact zeros, prices, a table that lies on its side, times out of order.
    """
    table = as_frame(value)
    returns, series, times = read_matrix(table, WHAT, "series", missing_allowed=True)
    _refuse_shape(*returns.shape)
    largest = float(np.nanmax(np.abs(returns), initial=0.0))
    if largest > _LARGEST:
        raise InputError(f"{WHAT} hold {largest:g}: squares of such values overflow. Returns are near 0.")
    _refuse_disorder(table)
    _refuse_empty_series(returns, series)
    refuse_prices(returns, series)
    _refuse_zeros(returns, series, times)
    return returns, series, times


def stale_prices(returns: np.ndarray, series: list[str]) -> list[str]:
    """A sentence for each series with one value near 0 again and again: zeros that were centred."""
    found = []
    for name, column in zip(series, returns.T, strict=True):
        seen = column[~np.isnan(column)]
        value, count = Counter(seen.tolist()).most_common(1)[0]
        if count >= max(3, _OFTEN * seen.size) and abs(value) < _NEAR_ZERO * seen.std():
            found.append(
                f"Series {name!r} has the same return, {value:.3g}, {count} times in {seen.size}: prices that did not "
                "move, centred. So many returns next to 0 are explained by a large tau, whatever the other days say. "
                "Make these days missing (NaN) before the returns are centred."
            )
    return found


def _refuse_shape(n_times: int, size: int) -> None:
    if n_times < 2:
        raise InputError(f"{WHAT} has only {n_times} row; at least two times are needed.")
    if size > n_times:
        raise InputError(
            f"{WHAT} has {n_times} rows and {size} columns, more series than times. A row is a time and a column a "
            "series: transpose it (returns.T)."
        )


def _refuse_disorder(table: Any) -> None:
    """Dates of an index, in whatever form, must rise from row to row."""
    index = getattr(table, "index", None)
    if index is None or callable(index):
        return
    labels = list(index)
    if not (all(isinstance(one, datetime.date) or type(one).__name__ in ("NaTType", "Period") for one in labels)) and (
        not all(isinstance(one, str) and _ISO_DATE.match(one) for one in labels)
    ):
        return
    for row in range(1, len(labels)):
        before, here = labels[row - 1], labels[row]
        if before < here:
            continue
        where = f"in row {row} (counted from 0)"
        if before == here:
            raise InputError(
                f"{WHAT}: {_text(here)} stands twice in the index, the second time {where}. Keep one row a time, "
                "e.g. returns[~returns.index.duplicated()]."
            )
        if type(before).__name__ == "NaTType" or type(here).__name__ == "NaTType":
            raise InputError(f"{WHAT}: a date is missing in the index {where}, or just before. Fill it in, or drop it.")
        raise InputError(
            f"{WHAT}: the index is not in the order of time: {_text(here)} {where} comes after "
            f"{_text(before)}, but each time's volatility depends on that of the row before. Sort the prices by "
            "date (.sort_index()) and take returns then: from a later day to an earlier one they have the other sign."
        )


def _text(date: Any) -> str:
    return str(date).removesuffix(" 00:00:00")


def _refuse_empty_series(returns: np.ndarray, series: list[str]) -> None:
    observed = ~np.isnan(returns)
    few = observed.sum(axis=0) < 2
    if few.any():
        first = int(np.argmax(few))
        count = int(observed[:, first].sum())
        raise InputError(f"{WHAT}: column {series[first]!r} has {count} returns, all others are missing. Leave it out.")
    filled = np.where(observed, returns, np.take_along_axis(returns, observed.argmax(axis=0)[None], 0))
    constant = (filled == filled[0]).all(axis=0)
    if constant.any():
        first = int(np.argmax(constant))
        raise InputError(
            f"{WHAT}: column {series[first]!r} is constant ({filled[0, first]:g} at all "
            f"{int(observed[:, first].sum())} times; {int(constant.sum())} such columns). Leave it out: it has no "
            "volatility."
        )


def refuse_prices(returns: np.ndarray, series: list[str]) -> None:
    """An InputError where a column (T, D) of returns, not centred yet, must be prices."""
    low, high = np.nanmin(returns, axis=0), np.nanmax(returns, axis=0)
    n_observed = (~np.isnan(returns)).sum(axis=0)
    far = (n_observed > 2) & (np.minimum(abs(low), abs(high)) > _SPREADS * (high - low))
    prices = (low * high > 0) & (far | (n_observed >= _NEVER_OF_ONE_SIGN))
    if prices.any():
        first = int(np.argmax(prices))
        raise InputError(
            f"{WHAT}: column {series[first]!r} runs from {low[first]:g} to {high[first]:g} and never changes its sign, "
            "which returns do. Of prices take log returns, np.log(prices).diff().iloc[1:], and centre them."
        )


def _refuse_zeros(returns: np.ndarray, series: list[str], times: Labels) -> None:
    rows, columns = np.nonzero(returns == 0)
    if not rows.size:
        return
    labels = times.typed
    first = ", ".join(f"{label_text(labels[i])} ({series[k]})" for i, k in zip(rows[:3], columns[:3], strict=True))
    raise InputError(
        f"{WHAT}: {rows.size} are exactly 0, the first at {first}. With one such the posterior is improper: 0 is the "
        "likelier the smaller a day's variance, so that its likelihood grows with tau without bound, like "
        "exp(tau^2/8). Where the market was closed or the price not quoted anew, make it missing before you centre "
        "(returns.where(returns != 0)): missing returns are left out of the likelihood. Where prices are rounded, take "
        "finer ones, or returns over longer times."
    )
