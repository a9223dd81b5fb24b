"""Whether a gradient is that of its log density: against differences along random directions, in ten evaluations.

It is refused only on proof: differences of three neighbouring steps agree with each other far better than with it, and
again at points close by. Where they do not agree, as for a log density with noise, in single precision, or with kinks
and steps, nothing is said. What is looked for is a mistake in a formula, not the last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyturingvi.errors import InputError

Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

_TOLERANCE = 1e-3  # of the slope along the direction
_LEAST = 1e-12
_CERTAIN = 0.1  # of a discrepancy: how far apart the differences that prove it may be
_SPREADS = (0.5, 0.05, 0.005)  # around the centre: the first at which all is finite
_QUICK = np.array([1e-2, 1e-4])
_STEPS = 10.0 ** -np.arange(1, 8)
_JITTER = 1e-2  # from trial to trial: what a kink close by has brought about is not found again


def check_gradient(
    evaluate: Evaluate,
    centre: np.ndarray,
    n_global: int,
    label: Callable[[int], str],
    who: str,
    what: str = "the log density",
) -> None:
    """Refuse a gradient that is not that of the log density.

    The globals are tried together at one point and the locals together at another: the globals are few, and a mistake
    in the locals' formula is one in all of them. A coordinate moves the less the steeper the log density is in it, so
    that the steep ones do not hide the others. Nothing is tried where the log density is not finite.

    Parameters
    ----------
    evaluate : callable
        From points (K, d) to log densities (K,) and gradients (K, d).
    centre : (d,) array
        Around which to try.
    n_global : int
        How many of the coordinates, the first, are tried apart from the others.
    label : callable
        From a coordinate to what messages call it.
    who : str
        How the message begins.
    what : str
        What the message calls that whose gradient it should be.

    Raises
    ------
    InputError
        With a coordinate in which the gradient is wrong, its value, and that of the differences.
    """
    rng = np.random.default_rng(1)
    every = np.arange(centre.size)
    groups = [group for group in (every[:n_global], every[n_global:]) if group.size]
    groups = groups if len(groups) == 2 else groups * 2
    for spread in _SPREADS:
        # away from the centre in each coordinate: at 0 itself many slopes vanish, and with them mistakes
        points = centre + spread * rng.uniform(0.5, 1.5, (2, centre.size)) * rng.choice([-1.0, 1.0], (2, centre.size))
        values, gradients = evaluate(points)
        if np.isfinite(values).all() and np.isfinite(gradients).all():
            break
    else:
        return
    quick = _compare(evaluate, points, groups, _QUICK, rng, gradients)
    for k in np.flatnonzero(~quick.agrees):
        if not _compare(evaluate, points[k : k + 1], groups[k : k + 1], _STEPS, rng).wrong[0]:
            continue
        found = _locate(evaluate, points[k], groups[k], rng)
        if found is not None:
            place, claimed, slope = found
            hint = "Check the formula of this derivative, and of others made alike."
            if abs(claimed + slope) <= 0.01 * abs(slope):
                hint = "It has the opposite sign: is it that of the negative log density?"
            raise InputError(
                f"{who} returned a wrong gradient: with respect to {label(place)} it is {claimed:.5g} where "
                f"differences of {what} give {slope:.5g}. {hint}"
            )


@dataclass(frozen=True)
class _Compared:
    """Along a direction each: whether gradient and differences agree, or are proved not to."""

    agrees: np.ndarray  # (K,) bool
    wrong: np.ndarray  # (K,) bool
    excess: np.ndarray  # (K,): the discrepancy over the size of the slope, 0 where it is not proved
    directions: np.ndarray  # (K, d)
    claimed: np.ndarray  # (K,): the slope along the direction by the gradient
    slope: np.ndarray  # (K,): the same by those differences that agree best with each other


def _compare(
    evaluate: Evaluate,
    points: np.ndarray,
    groups: Sequence[np.ndarray],
    steps: np.ndarray,
    rng: np.random.Generator,
    gradients: np.ndarray | None = None,
) -> _Compared:
    """Compare at points (K, d), each along a random direction within its group of coordinates."""
    if gradients is None:
        gradients = evaluate(points)[1]
    directions = np.zeros_like(points)
    for row, group, slopes in zip(directions, groups, np.abs(gradients), strict=True):
        low = np.quantile(slopes[group], 0.1) or slopes[group].mean() or 1.0
        row[group] = rng.choice([-1.0, 1.0], group.size) * (low / (low + slopes[group]))
    moves = steps[:, None, None] * directions
    values = evaluate(np.concatenate([points + moves, points - moves]).reshape(-1, points.shape[1]))[0]
    above, below = values.reshape(2, len(steps), len(points))
    with np.errstate(all="ignore"):
        parts = gradients * directions
        claimed, size = parts.sum(axis=1), np.sqrt((parts**2).sum(axis=1))
        differences = ((above - below) / (2 * steps[:, None])).T
        off = np.abs(claimed[:, None] - differences)
        agrees = (off <= _LEAST + _TOLERANCE * np.maximum(size[:, None], np.abs(differences))).any(axis=1)
        # no proof: what is too small for the digits that the values have, and no change where larger steps made one
        changes = np.maximum(np.abs(differences), np.abs(claimed[:, None])) * (2 * steps)
        lost = (differences == 0) & np.logical_or.accumulate(differences != 0, axis=1)
        differences[lost | (changes < 100 * _grain(values))] = np.nan
        three = np.lib.stride_tricks.sliding_window_view(differences, min(3, len(steps)), axis=1)
        apart = np.nan_to_num(three.max(axis=2) - three.min(axis=2), nan=np.inf)
        best = np.arange(len(points)), apart.argmin(axis=1)
        slope = np.median(three[best], axis=1)
        gap = np.abs(claimed - slope)
        wrong = ~agrees & (apart[best] <= _CERTAIN * gap)
        excess = np.where(wrong, gap / np.maximum(size, _LEAST), 0.0)
    return _Compared(agrees, wrong, excess, directions, claimed, slope)


def _grain(values: np.ndarray) -> float:
    """The largest power of 2 of which all values are multiples: what single precision, say, has left of them."""
    mantissa, exponent = np.frexp(values[np.isfinite(values) & (values != 0)])
    if not mantissa.size:
        return 0.0
    whole = (mantissa * 2.0**53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(np.float64), exponent - 53).min())


def _locate(
    evaluate: Evaluate, point: np.ndarray, group: np.ndarray, rng: np.random.Generator
) -> tuple[int, float, float] | None:
    """A coordinate in which the gradient is wrong, its derivative as claimed and by differences; None for none."""

    def around() -> np.ndarray:
        return np.asarray(point + _JITTER * rng.standard_normal((2, point.size)))

    while group.size > 1:
        halves = [group[: group.size // 2], group[group.size // 2 :]]
        found = _compare(evaluate, around(), halves, _STEPS, rng)
        if not found.wrong.any():
            return None
        group = halves[int(found.excess.argmax())]
    found = _compare(evaluate, around(), [group, group], _STEPS, rng)
    if not found.wrong.all():
        return None
    place = int(group[0])
    moved = found.directions[0, place]
    return place, float(found.claimed[0] / moved), float(found.slope[0] / moved)
