"""Returns as data: how likely each is under its volatility, and others in their place."""

from __future__ import annotations

import numpy as np

from pyturingvi.models.labels import Labels
from pyturingvi.models.observed import Coords, Observation
from pyturingvi.models.parts import LOG_2PI


def observation(returns: np.ndarray, series: list[str], times: Labels) -> Observation:
    """A (T, D) table where it is complete, and otherwise a list of what was observed with its time and series."""
    labels = times.typed
    seen = ~np.isnan(returns)
    if seen.all():
        coords: Coords = {"time": ("time", labels), "series": ("series", list(series))}
        return Observation(returns.copy(), ["time", "series"], coords)
    rows, columns = np.nonzero(seen)
    coords = {
        "observation": ("observation", np.arange(len(rows))),
        "time": ("observation", [labels[t] for t in rows]),
        "series": ("observation", [series[k] for k in columns]),
    }
    return Observation(returns[seen], ["observation"], coords)


def log_likelihoods(returns: np.ndarray, log_variances: np.ndarray) -> np.ndarray:
    """Log density of each return given paths (M, T, D), in the shape of `observation` behind M."""
    x, y = _where_observed(returns, returns[None]), _where_observed(returns, log_variances)
    with np.errstate(over="ignore"):
        return np.asarray(-0.5 * (x**2 * np.exp(-y) + y + LOG_2PI))


def replicates(returns: np.ndarray, log_variances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Other returns in the place of those that were observed."""
    y = _where_observed(returns, log_variances)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(y / 2) * rng.standard_normal(y.shape))


def _where_observed(returns: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Tables (M, T, D) as they are, or without the places of missing returns as (M, n)."""
    missing = np.isnan(returns)
    return tables[:, ~missing] if missing.any() else tables
