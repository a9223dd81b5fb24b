"""Tails of single globals that no draw has reached: found by walking out along each of them, and drawn from.

Weights say nothing of where no draw is. A standard deviation that may well be 0 has a logarithm whose density falls by
e for each unit to the left and no faster, while a Gaussian laid through the middle has no draws there: their weights
are even, and the tail is missing. A walk from the middle shows it, with the other globals kept where the density is
highest given the one that is walked along, and weighed by the volume that they have there: the neck of a funnel is
high, and so narrow that next to nothing lies in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from pyturingvi.refine.proposals import Gaussian

LOOKED = np.array([1.5, 3.0, 4.5])  # standard deviations to which every global is walked along
_FALL = 6.0  # nats that the density has fallen there, on either side, where there is no tail; a Gaussian has 10
_ON = np.array([6.0, 8.0, 10.5, 14.0, 18.5, 25.0, 33.0, 44.0, 60.0])
_SETTLED = 3  # steps of the others at each place of a walk, none longer than the way there
LOW = 12.0  # nats below the highest: what lies beyond is not missed
_FINE = 2000
_WIDER = 1.1  # of the other globals, so that their weights are bounded
_RARE = math.log(4.0)  # draws a quarter as dense as they should be, or less
_STEP = 0.1  # of differences of slopes, in the frame's standard deviations
_FLATTEST = 1 / 16  # curvature that the others have at least, where it is 1 in the middle
MOST_SLOPES = 30_000  # that volumes may take
LEAST_MISSING = 0.005  # of the density along a ridge: less moves no mean or standard deviation by much
LARGEST_BEYOND = 0.01  # of the density along a ridge

WithGradient = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Ridge:
    """The density along one global, the others at their best; all in coordinates u of a Gaussian `frame`.

    Attributes
    ----------
    k : int
        The global.
    along : (d,) array
        Unit vector in u on which the global moves most, the others as they go with it under the frame.
    places : (n,) array
        Where the walk has been, in the global's standard deviations.
    others : (n, d) array
        How far the others had to go to be at their best, across `along`.
    logs : (n,) array
        Log density there.
    log_volumes : float or (n,) array
        Log of the volume that the others have there, beside that in the middle of the frame.
    """

    k: int
    along: np.ndarray
    places: np.ndarray
    others: np.ndarray
    logs: np.ndarray
    log_volumes: np.ndarray | float = 0.0

    @property
    def marginal(self) -> np.ndarray:
        """Log density (n,) of the global along the walk, the others integrated out."""
        return self.logs + self.log_volumes

    @property
    def points(self) -> np.ndarray:
        """The walk (n, d) in u."""
        return np.asarray(self.places[:, None] * self.along + self.others)

    def at(self, which: np.ndarray) -> Ridge:
        """The ridge at some of its places alone, heights without volumes."""
        return Ridge(self.k, self.along, self.places[which], self.others[which], self.logs[which])

    def others_at(self, t: np.ndarray) -> np.ndarray:
        """The others (m, d) at places t (m,) between those of the walk."""
        return np.stack([np.interp(t, self.places, column) for column in self.others.T], axis=1)

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges (m + 1,) of fine cells of the walk, and the share (m,) that each has of the density along it."""
        from scipy.interpolate import PchipInterpolator  # half a second to import

        edges = np.linspace(self.places[0], self.places[-1], _FINE + 1)
        logs = PchipInterpolator(self.places, self.marginal)(0.5 * (edges[1:] + edges[:-1]))
        shares = np.exp(logs - logs.max())
        return edges, shares / shares.sum()

    @property
    def fall(self) -> float:
        """Nats by which the density has fallen, on its higher side, at the last place to which all are walked."""
        seen = np.isin(np.abs(self.places), LOOKED[-1])
        return float(self.marginal.max() - self.marginal[seen].max(initial=-math.inf))

    @property
    def beyond(self) -> float:
        """Share of the density along the walk that lies beyond its ends, falling on as there; inf where it rises."""
        edges, shares = self.cells()
        slopes = np.diff(self.marginal)[[0, -1]] / np.diff(self.places)[[0, -1]] * np.array([1.0, -1.0])
        if (slopes <= 0).any():
            return math.inf
        return float((shares[[0, -1]] / (edges[1] - edges[0]) / slopes).sum())

    def missing(self, log_ratios: np.ndarray) -> float:
        """Share of the density along the walk where draws are rare: `log_ratios` (n,) of it to theirs, normalized."""
        edges, shares = self.cells()
        at = np.interp(0.5 * (edges[1:] + edges[:-1]), self.places, log_ratios)
        return float(shares[at > _RARE].sum())


@dataclass(frozen=True)
class Tails:
    """A proposal: one of the ridges, a place on it by its density, the other globals normal around theirs."""

    frame: Gaussian
    ridges: list[Ridge]

    def draw(self, n: int, source: np.random.Generator) -> np.ndarray:
        """Draws (n, d), equally many along each ridge."""
        found = []
        for j, ridge in enumerate(self.ridges):
            count = len(range(j, n, len(self.ridges)))
            edges, shares = ridge.cells()
            cell = source.choice(len(shares), size=count, p=shares)
            t = edges[cell] + source.uniform(size=count) * (edges[1] - edges[0])
            noise = source.standard_normal((count, len(ridge.along)))
            noise -= np.outer(noise @ ridge.along, ridge.along)
            found.append(t[:, None] * ridge.along + ridge.others_at(t) + _WIDER * noise)
        return self.frame.place(np.concatenate(found))

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Log density (n,) at z (n, d)."""
        u = self.frame.noise(z)
        d = u.shape[1]
        logs = np.full((len(self.ridges), len(z)), -np.inf)
        constant = -(d - 1) * (math.log(_WIDER) + 0.5 * math.log(2 * math.pi)) - self.frame.log_det
        for j, ridge in enumerate(self.ridges):
            t = u @ ridge.along
            edges, shares = ridge.cells()
            cell = np.floor((t - edges[0]) / (edges[1] - edges[0])).astype(int)
            inside = (cell >= 0) & (cell < len(shares))
            across = u[inside] - t[inside, None] * ridge.along - ridge.others_at(t[inside])
            with np.errstate(divide="ignore"):
                heights = np.log(shares[cell[inside]] / (edges[1] - edges[0]))
            logs[j, inside] = heights + constant - 0.5 * (across**2).sum(axis=1) / _WIDER**2
        return np.asarray(logsumexp(logs, axis=0) - math.log(len(self.ridges)))


def find_ridges(frame: Gaussian, with_gradient: WithGradient, most_slopes: int = MOST_SLOPES) -> list[Ridge]:
    """The ridges of the globals along which the density has mass far out from the frame, to either side.

    Heights alone tell where volumes would take more than `most_slopes` slopes.

    Parameters
    ----------
    with_gradient : callable
        Log density (n,) at z (n, d), and its gradient (n, d).
    """
    along = frame.along
    d = len(along)
    start = float(with_gradient(frame.mean[None])[0][0])
    walks = [_Walk(sign * one, [(0.0, np.zeros(d), start)]) for sign in (-1, 1) for one in along]
    for t in LOOKED:
        _go(frame, walks, t, with_gradient)
    wide = [k for k in range(d) if min(walks[k].fall, walks[d + k].fall) < _FALL]
    for t in _ON:
        _go(frame, [one for k in wide for one in (walks[k], walks[d + k]) if one.fall < LOW], t, with_gradient)
    found = []
    for k in wide:
        both = [(-t, other, log) for t, other, log in walks[k].seen[:0:-1]] + walks[d + k].seen
        places, others, logs = (np.array(part) for part in zip(*both, strict=True))
        found.append(Ridge(k, along[k], places, others, logs))
    if sum(len(ridge.places) for ridge in found) * (d + 1) > most_slopes:
        return found
    # between the middle and the last place that all are walked to, the density can only have been higher
    ends = [_with_volumes(frame, one.at(np.isin(abs(one.places), (0, LOOKED[-1]))), with_gradient) for one in found]
    found = [one for one, end in zip(found, ends, strict=True) if end.fall < _FALL]
    return [ridge for ridge in (_with_volumes(frame, one, with_gradient) for one in found) if ridge.fall < _FALL]


def _with_volumes(frame: Gaussian, ridge: Ridge, with_gradient: WithGradient) -> Ridge:
    """The same with the volumes of the others by their curvature, as in Laplace's approximation."""
    u, d = ridge.points, len(ridge.along)
    moved = (u[:, None] + _STEP * np.concatenate([np.zeros((1, d)), np.eye(d)])).reshape(-1, d)
    slopes = (with_gradient(frame.place(moved))[1] @ frame.root).reshape(len(u), d + 1, d)
    curvature = (slopes[:, :1] - slopes[:, 1:]) / _STEP
    curvature = 0.5 * (curvature + np.swapaxes(curvature, 1, 2))
    known = np.isfinite(curvature).all(axis=(1, 2))
    curvature[~known] = np.eye(d)
    along = np.outer(ridge.along, ridge.along)
    across = np.eye(d) - along
    values = np.linalg.eigvalsh(across @ curvature @ across + along)
    return replace(ridge, log_volumes=-0.5 * np.log(np.maximum(values, _FLATTEST)).sum(axis=1))


@dataclass
class _Walk:
    """Places of a walk in one direction (d,): how far, where the others are (d,), log density."""

    direction: np.ndarray
    seen: list[tuple[float, np.ndarray, float]]
    stopped: bool = False

    @property
    def fall(self) -> float:
        """Nats that the density is lower at the last place than at the highest; inf where it was not finite."""
        return math.inf if self.stopped else max(log for _, _, log in self.seen) - self.seen[-1][2]


def _go(frame: Gaussian, walks: list[_Walk], t: float, with_gradient: WithGradient) -> None:
    """All these walks on to the place t."""
    walks = [one for one in walks if not one.stopped]
    if not walks:
        return
    others = np.stack([one.seen[-1][1] for one in walks])
    longest = max(1.0, t - walks[0].seen[-1][0])
    others, logs = _settle(frame, np.stack([one.direction for one in walks]), t, others, longest, with_gradient)
    for one, other, log in zip(walks, others, logs, strict=True):
        one.stopped = not math.isfinite(log)
        if not one.stopped:
            one.seen.append((t, other, float(log)))


def _settle(
    frame: Gaussian,
    directions: np.ndarray,
    t: float,
    others: np.ndarray,
    longest: float,
    with_gradient: WithGradient,
) -> tuple[np.ndarray, np.ndarray]:
    """The others (n, d) nearer to their best at a place of each walk, and the log density (n,) there.

    The frame's coordinates make a step along the slope nearly one of Newton's; what leads down is taken back.
    """
    length = np.ones(len(others))
    logs, slopes = with_gradient(frame.place(t * directions + others))
    for _ in range(_SETTLED):
        step = slopes @ frame.root
        step -= np.einsum("ij,ij->i", step, directions)[:, None] * directions
        norm = np.linalg.norm(step, axis=1)
        step *= (length * longest / np.maximum(norm, longest))[:, None]
        step[~np.isfinite(step).all(axis=1)] = 0.0
        trial = others + step
        after, there = with_gradient(frame.place(t * directions + trial))
        better = after >= logs
        others = np.where(better[:, None], trial, others)
        logs, slopes = np.where(better, after, logs), np.where(better[:, None], there, slopes)
        length = np.where(better, length, 0.3 * length)
    return others, logs
