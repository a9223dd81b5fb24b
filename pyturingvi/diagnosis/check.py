"""The check at the end of a fit: whether its globals would move with the locals integrated out, at a share of its cost.

The fit holds each local as wide for one value of the globals as for another. Where the density does not, as in a funnel
or about the scale of a hierarchy, the mass that it has at some globals differs from what the fit has seen, and the log
weights of the globals bend (`from_slopes`, or `chain_slopes` where each local depends on its neighbours). Their slope
and curvature over a few pairs of draws say which means and standard deviations may be off; more pairs are drawn where
that is in doubt. Standard deviations are then looked at along a line of each of these globals, farther out than draws
reach: scales near 0 have a long tail that shows only there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pyturingvi.diagnosis.chain_slopes import ChainIntegrals
from pyturingvi.diagnosis.chained_locals import chained
from pyturingvi.diagnosis.from_slopes import SlopeIntegrals
from pyturingvi.diagnosis.moves import without_outliers
from pyturingvi.errors import InputError
from pyturingvi.families.base import BoundFamily, Family
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator
from pyturingvi.support.parallel import one_blas_thread

LARGE_MOVE, LARGE_RATIO = 2.0, 2.0  # of a mean, in the fit's sds, and of a sd: the fit is not to be used as it is
MOVED, RESIZED = 0.5, 1.3  # what is told: of a mean, in the fit's standard deviations, and of a standard deviation
_LISTED = 3
_FEWEST_PAIRS, _FIRST_PAIRS, _MOST_PAIRS = 12, 32, 512
_ROWS_A_TERM = 4  # pairs for each coefficient of a regression; with fewer each is estimated by itself
_LARGEST_CURVATURE = 0.8  # a standard deviation somewhat over twice as large: farther the draws do not see
_SURE = 3.0  # standard errors
_DOUBTED = 1.2  # a factor of a standard deviation from which its line is looked at
_FEWEST_LINES, _MOST_LINES = 2, 8
_NEAR, _MOST_NEAR = 2.0, 40  # how far out, and for how many globals, it is first seen which lines bend
_ALONG = np.array([-6.0, -4.5, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.5, 6.0])
_FINE = np.linspace(-6.0, 6.0, 481)
_REACH = 100.0  # robust standard deviations: squares have long tails of their own


@dataclass(frozen=True)
class GlobalsCheck:
    """How the globals would move, each (d_z,): means in the fit's standard deviations, standard deviations as factors.

    `ratio_low` and `ratio_high` are as far from `ratio` as noise reaches.
    """

    labels: list[str]
    shift: np.ndarray
    shift_error: np.ndarray
    ratio: np.ndarray
    ratio_low: np.ndarray
    ratio_high: np.ndarray

    @property
    def moved(self) -> np.ndarray:
        """Which means are off by so much, beyond noise, that a user must know, the most first."""
        return self._order(np.abs(self.shift), np.abs(self.shift) - _SURE * self.shift_error > MOVED)

    @property
    def resized(self) -> np.ndarray:
        """Which standard deviations are, the most first."""
        change = np.maximum(self.ratio, 1 / self.ratio)
        return self._order(change, (self.ratio_low > RESIZED) | (self.ratio_high < 1 / RESIZED))

    @property
    def told(self) -> bool:
        """Whether any are."""
        return bool(len(self.moved) or len(self.resized))

    @property
    def fine(self) -> bool:
        """Whether none is, beyond noise."""
        still = (np.abs(self.shift) + _SURE * self.shift_error < MOVED).all()
        return bool(still and (self.ratio_high < RESIZED).all() and (self.ratio_low > 1 / RESIZED).all())

    @property
    def grave(self) -> bool:
        """Whether any are off by so much that the fit is not to be used as it is."""
        change = np.maximum(self.ratio_low, 1 / self.ratio_high)
        return bool((np.abs(self.shift) - _SURE * self.shift_error).max() > LARGE_MOVE or change.max() > LARGE_RATIO)

    @property
    def words(self) -> str:
        """What is off."""
        parts = []
        if len(self.moved):
            listed = ", ".join(f"{self.labels[k]} by about {self.shift[k]:+.1f}" for k in self.moved[:_LISTED])
            parts.append(f"means would move, in the fit's standard deviations: {listed}")
        if len(self.resized):
            # a skewed density may look narrower to second order where it is wider: no direction is told then
            words = ["wider" if self.ratio[k] > 1 else "of another width" for k in self.resized[:_LISTED]]
            listed = ", ".join(f"{self.labels[k]} {word}" for k, word in zip(self.resized, words, strict=False))
            parts.append(f"standard deviations would change by a factor of {RESIZED:g} at least: {listed}")
        return "; ".join(parts)

    @staticmethod
    def _order(size: np.ndarray, which: np.ndarray) -> np.ndarray:
        order = np.argsort(-size, kind="stable")
        return np.asarray(order[which[order]])


def refinable(model: Model, family: Family) -> bool:
    """Whether `Fit.refine` can integrate the locals of a fit out: one by one, by log terms, or as a chain."""
    known = model.has_term_gradients or chained(model, family)
    return bool(known and model.layout.n_global and model.layout.n_local)


def check_globals(model: Model, bound: BoundFamily, flat: np.ndarray, seed: int, n_rows: int) -> GlobalsCheck | None:
    """Look at the globals of a converged fit; None where the locals cannot be integrated out in this way.

    Parameters
    ----------
    n_rows : int
        Evaluations of the gradient that it may take, if that is enough for the fewest draws.
    """
    d_z = model.layout.n_global
    source = generator(np, seed, SAMPLE_STREAM, 11)
    with one_blas_thread(), np.errstate(all="ignore"):
        try:
            root = GlobalsAndLocals.of(bound, flat).scale
            integrals = _integrals(model, bound, flat, source) if d_z else None
        except (InputError, np.linalg.LinAlgError):  # a family without a scale, or without slopes of its base
            return None
        if integrals is None:
            return None
        most = int(np.clip(n_rows // (2 * integrals.cost), _FEWEST_PAIRS, _MOST_PAIRS))
        noise, odd, even = np.empty((0, d_z)), np.empty(0), np.empty(0)
        while True:
            more = source.standard_normal((min(max(_FIRST_PAIRS, len(noise)), most - len(noise)), d_z))
            logs = integrals.log_ratio(np.concatenate([more, -more])).reshape(2, -1)
            noise = np.concatenate([noise, more])
            odd, even = np.append(odd, logs[0] - logs[1]), np.append(even, logs[0] + logs[1])
            found = _moves(noise, 0.5 * odd, 0.5 * even, root, list(model.global_labels))
            if found is None or found.fine or len(noise) >= most:
                break
            if found.told and len(noise) >= _FIRST_PAIRS:
                break
        rest = n_rows - 2 * len(noise) * integrals.cost
        n_lines = int(np.clip(rest // (len(_ALONG) * integrals.cost), _FEWEST_LINES, _MOST_LINES))
        return None if found is None else _finite(_along_lines(found, integrals, root, n_lines))


def _integrals(
    model: Model, bound: BoundFamily, flat: np.ndarray, source: np.random.Generator
) -> SlopeIntegrals | ChainIntegrals | None:
    """Those for locals that are independent given the globals, or for a chain of them; None where they are neither."""
    middle = np.zeros(model.layout.n_global)
    one_by_one = SlopeIntegrals(model, bound, flat, source)
    if one_by_one.separate(middle):
        return one_by_one
    chain = ChainIntegrals(model, bound, flat, source)
    return chain if chain.separate(middle) else None


def _finite(found: GlobalsCheck) -> GlobalsCheck | None:
    """Nothing where a run has gone astray so far that figures overflow."""
    figures = (found.shift, found.shift_error, found.ratio, found.ratio_low, found.ratio_high)
    return found if all(np.isfinite(one).all() for one in figures) and (found.ratio_low > 0).all() else None


def _along_lines(
    found: GlobalsCheck, integrals: SlopeIntegrals | ChainIntegrals, root: np.ndarray, n_lines: int
) -> GlobalsCheck:
    """The same with the standard deviations that the density has along the lines of the globals that may be off most.

    A line goes through the fit's mean, the other globals as they go with this one. What no line was drawn for is not
    said to be off. Means do not come from lines: they have the average of the slopes over all the others. But none is
    said to move one way where its line leans the other.
    """
    sizes = np.maximum(found.ratio_high, 1 / found.ratio_low)
    doubted = (sizes > _DOUBTED) | (np.abs(found.shift) + _SURE * found.shift_error > MOVED)
    shift_error = found.shift_error.copy()
    ratio, low, high = found.ratio.copy(), np.minimum(found.ratio_low, 1.0), np.maximum(found.ratio_high, 1.0)
    order = np.argsort(-sizes, kind="stable")
    doubted[order[:_FEWEST_LINES]] = True  # draws that stay near see nothing of tails that begin farther out
    chosen = order[doubted[order]]
    if len(chosen) > n_lines:
        chosen = _most_bent(chosen[:_MOST_NEAR], integrals, root)
    for k in chosen[:n_lines]:
        line = root[k] / np.linalg.norm(root[k])
        logs = integrals.log_ratio(_ALONG[:, None] * line)
        if not np.isfinite(logs).all():
            continue
        from scipy.interpolate import PchipInterpolator  # half a second to import

        logs = PchipInterpolator(_ALONG, logs - logs[len(logs) // 2])(_FINE) - 0.5 * _FINE**2
        density = np.exp(logs - logs.max())
        density /= density.sum()
        mean = density @ _FINE
        ratio[k] = low[k] = high[k] = np.sqrt(density @ (_FINE - mean) ** 2)
        if mean * found.shift[k] < 0:  # a long tail, which slopes in the middle lead away from: no direction is sure
            shift_error[k] = max(shift_error[k], abs(found.shift[k]))
    return replace(found, shift_error=shift_error, ratio=ratio, ratio_low=low, ratio_high=high)


def _most_bent(chosen: np.ndarray, integrals: SlopeIntegrals | ChainIntegrals, root: np.ndarray) -> np.ndarray:
    """These globals, first those whose lines bend most: pairs that are few for so many globals hardly tell."""
    lines = _NEAR * root[chosen] / np.linalg.norm(root[chosen], axis=1)[:, None]
    logs = integrals.log_ratio(np.concatenate([np.zeros_like(lines[:1]), lines, -lines]))
    here, there = logs[1:].reshape(2, -1)
    curvature = np.nan_to_num((here + there - 2 * logs[0]) / _NEAR**2)
    bent = np.abs(np.log(1 - np.minimum(curvature, _LARGEST_CURVATURE)))
    return np.asarray(chosen[np.argsort(-bent, kind="stable")])


def _moves(
    noise: np.ndarray, odd: np.ndarray, even: np.ndarray, root: np.ndarray, labels: list[str]
) -> GlobalsCheck | None:
    """What the odd and even parts of log weights over pairs `noise`, `-noise` say, in the globals' own directions."""
    if np.isfinite(odd).mean() < 0.5:
        return None
    slope, slope_error = _coefficients(noise, without_outliers(odd, _REACH), 1.0)
    curvature, error = _coefficients(0.5 * (noise * noise - 1), without_outliers(even, _REACH), 0.5)
    sd = np.sqrt(np.einsum("ij,ij->i", root, root))
    shares = root / sd[:, None]
    narrowed = np.maximum(1.0, 1 - curvature)
    low, ratio, high = (
        np.sqrt(shares**2 @ (1 / (1 - np.minimum(curvature + _SURE * sign * error, _LARGEST_CURVATURE))))
        for sign in (-1, 0, 1)
    )
    shift_error = np.sqrt(shares**2 @ (slope_error / narrowed) ** 2)
    return GlobalsCheck(labels, shares @ (slope / narrowed), shift_error, ratio, low, high)


def _coefficients(design: np.ndarray, values: np.ndarray, square: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (d,) of columns with mean 0 and second moment `square`, and their standard errors."""
    (n, d), values = design.shape, values - values.mean()
    if n < _ROWS_A_TERM * d:  # each by itself: noise of the others is in its error
        products = design * values[:, None] / square
        return products.mean(axis=0), products.std(axis=0, ddof=1) / np.sqrt(n)
    centred = design - design.mean(axis=0)
    found = np.linalg.lstsq(centred, values, rcond=None)[0]
    rest = values - centred @ found
    variance = rest @ rest / max(n - d - 1, 1)
    return found, np.sqrt(variance * np.diag(np.linalg.inv(centred.T @ centred)))
