"""Whether the ELBO rises, by the legs of a run: rows of last update, mean and squared standard error."""

from __future__ import annotations

import math

import numpy as np

_SURE = 2.5  # standard errors of a rise
_SMALL = 0.05  # nats a leg that are no rise, however sure


def rise_of(rows: np.ndarray, window: int) -> tuple[float, float]:
    """Rise of the ELBO from the last window of legs but one to the last, and its standard error."""
    late, early = rows[-window:], rows[-2 * window : -window]
    error = math.sqrt(late[:, 2].sum() + early[:, 2].sum()) / window
    return float(late[:, 1].mean() - early[:, 1].mean()), error


def has_risen(rows: np.ndarray, climbing: bool, far: float, known: tuple[float, float]) -> tuple[bool, float, float]:
    """Whether windows of any length, up to a quarter of the legs, show a rise beyond its noise; and one with its error.

    Parameters
    ----------
    rows : (n, 3) array
    climbing : bool
        Whether the run climbs so far, which it goes on with until there is something to go by.
    far : float
        Standard error of a rise that is met only far from the optimum, where a climb goes on.
    known : (float, float)
        The rise and error to return where none can be had.
    """
    found, error = known
    if climbing and len(rows) < 2:
        return True, found, error
    window, climbs = 1, False
    while 2 * window <= len(rows) and window <= max(1, len(rows) // 4):
        rise, rise_error = rise_of(rows, window)
        if climbing and rise_error > far:
            return True, found, error
        if not climbs:
            found, error = rise, rise_error
        climbs = climbs or rise > max(_SURE * rise_error, _SMALL * window)
        window *= 2
    return climbs, found, error
