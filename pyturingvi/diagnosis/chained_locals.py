"""The log density of the globals with a chain of locals integrated out, by the Gaussian nearest to the whole chain.

Given the globals z, the locals have a Gaussian `q(y | z)` that maximizes `E log p(z, y, x) - E log q(y | z)`: its mean
is where the mean slope is 0, its precision minus the mean curvature (`chain_curvature`). That bound is below the log
integral by half the variance of `log p - log q` under q and smaller terms; draws of q, the same for all z, give the
mean and the variance. The slope of the bound in z is the mean of that of log p, since q is the best for each z, but
for what a Newton step would still move.

Draws come in pairs on opposite sides. Their noise is orthogonal from each local to those around it, so that means of
whatever is quadratic in neighbours are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pyturingvi.diagnosis.chain_curvature import ChainCurvature, ChainFactor
from pyturingvi.diagnosis.integrals import IntegratedDensity
from pyturingvi.diagnosis.weights import log_mean_weight
from pyturingvi.errors import InputError
from pyturingvi.families import Family, Markov
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model

FIRST_PAIRS = 32  # of draws
PIECE = 16  # of them whose points are had at once
_WIDEST, _PAIRS_A_VARIABLE = 64, 4  # pairs, of all and for each variable of a local, whose noise is made orthogonal
_CLOSE = 0.02  # nats that a step to the best q gains, below which it is the last
_LARGEST_GAIN = 0.002  # nats a variable, half the variance: beyond it only what draws have seen counts
_ROUNDS, _SHORTER = 20, 0.3
_SAME_WIDTH, _NEAR_WIDTH, _FIRST_ROUNDS = 1.1, 1.4, 40
_PART = 0.5  # widths that differences of slopes go
_CANDIDATES = 8  # pairs, one of which is a draw


def chained(model: Model, family: Family) -> bool:
    """Whether the locals of a model are integrated out as a chain: it says that they are one, or was fitted so."""
    return not model.has_log_terms and Markov.name in (model.default_family, family.name)


class ChainedLocals(IntegratedDensity):
    """Integrals over locals that form a chain, as a function of the globals.

    Parameters
    ----------
    model : Model
    parts : GlobalsAndLocals
        Where the chain is looked for first.
    size : int, optional
        Pairs of draws; by default as many as suit.
    seed : int
        Of the draws.

    Raises
    ------
    InputError
        If the locals do not form a chain at the mean of the globals.
    """

    far, low, cheap, most = 1.5, 6.0, 0.1, 512

    def __init__(self, model: Model, parts: GlobalsAndLocals, size: int | None, seed: int = 0) -> None:
        layout, source = model.layout, np.random.default_rng(seed)
        self.model, self.parts = model, parts
        self._shape = layout.n_local, layout.local_dim
        width = max(min(size or FIRST_PAIRS, _WIDEST), _PAIRS_A_VARIABLE * layout.local_dim)
        self.size = width * -(-(size or FIRST_PAIRS) // width)
        self.sides, others = source.choice([-1.0, 1.0], size=(2, *self._shape))
        self._noise = _orthogonal_noise(layout.n_local_total, self.size, width, source)
        # noise of the variance, spread over the globals, moves each by a tenth of its standard deviation at most
        self.tolerance = min(0.1 * math.sqrt(1 + layout.n_global), 0.5)
        self.row_bytes = 8 * layout.dim * 16
        self._offset, self._widths = np.zeros(self._shape), parts.local_widths
        self._curvature = ChainCurvature(model, math.sqrt(3.0))
        middle = parts.mean[None]
        if not self._curvature.separate(middle, self._start(middle), self._widths, self.sides, others):
            raise InputError(
                f"refine cannot help {model.description}: a local depends on others than its neighbours, also given "
                "the globals."
            )
        self._settle(middle)

    def _settle(self, middle: np.ndarray) -> None:
        """Widths and means of the locals at the mean of the globals, whatever the fit's own are."""
        found = self._nearest(middle, _FIRST_ROUNDS)
        if found.factors[0] is not None:
            self._offset, self._widths = (found.centre - self._start(middle))[0], found.widths[0]

    def count(self, size: int) -> int:
        return 2 * size

    def moments(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.moments_and_neighbours(z)[:2]

    def moments_and_neighbours(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The moments, and the covariance (m, N - 1, d_y, d_y) of each local (rows) with the one before it."""
        found = self._nearest(z)
        spread = np.stack([found.spread(k, self._noise) for k in range(len(z))]).reshape(len(z), *self._shape, -1)
        own, lagged = (
            np.einsum("mnik,mnjk->mnij", spread[:, first:], spread[:, : len(spread[0]) - first]) / spread.shape[3]
            for first in (0, 1)
        )
        return found.centre, own, lagged

    def moved(self, mean: np.ndarray, scale: np.ndarray) -> GlobalsAndLocals:
        """Where the chain is to be looked for with the globals at `mean + scale u`: what `parts` is for others."""
        z = np.concatenate([mean[None], mean + scale.T, mean - scale.T])
        found = [self._nearest(z[first : first + self.rows], _FIRST_ROUNDS) for first in range(0, len(z), self.rows)]
        centre = np.concatenate([one.centre.reshape(len(one.centre), -1) for one in found])
        border = 0.5 * (centre[1 : 1 + len(mean)] - centre[1 + len(mean) :])
        return GlobalsAndLocals(mean, scale, centre[0], border, np.linalg.cholesky(self.moments(mean[None])[1][0]))

    def draw(self, z: np.ndarray, source: np.random.Generator) -> np.ndarray:
        """One of a few draws of q(y | z), by its weight."""
        out = np.empty((len(z), self.model.layout.n_local_total))
        different, which = np.unique(z, axis=0, return_inverse=True)  # weighted draws of the globals repeat
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which))
        for first in range(0, len(different), self.rows):
            part = different[first : first + self.rows]
            found = self._nearest(part)
            for k in range(len(part)):
                of_row = order[ends[first + k - 1] if first + k else 0 : ends[first + k]]
                self._draw_row(part[k], found, k, of_row, out, source)
        return out

    def _draw_row(
        self, z: np.ndarray, found: _Chains, k: int, rows: np.ndarray, out: np.ndarray, source: np.random.Generator
    ) -> None:
        """Write draws of the k-th chain into some rows."""
        for row in rows:
            if found.factors[k] is None:  # no draw is better than the middle
                out[row] = found.centre[k].ravel()
                continue
            noise = source.standard_normal((out.shape[1], _CANDIDATES))
            points = self._points(z, found, k, noise)
            even, odd = self._log_ratios(self.model._log_density(points), found, k, noise)
            logs = np.nan_to_num(np.concatenate([even + odd, even - odd]), nan=-np.inf)
            shares = np.exp(logs - max(logs.max(), -1e300))
            chosen = int((np.cumsum(shares) < source.uniform() * shares.sum()).sum())
            out[row] = points[min(chosen, len(logs) - 1), len(z) :]

    # ---- values -------------------------------------------------------------------------------------------
    def _values(self, z: np.ndarray) -> np.ndarray:
        found = self._nearest(z)
        return np.array([self._value(z[k], found, k)[0].value for k in range(len(z))])

    def doubt(self, z: np.ndarray) -> float:
        found = self._nearest(z)
        return float(np.std([self._value(z[k], found, k)[0].third for k in range(len(z))]))

    def _with_gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self._nearest(z)
        both = [self._value(z[k], found, k, gradient=True) for k in range(len(z))]
        return np.array([sums.value for sums, _ in both]), np.stack([slope for _, slope in both])

    def _value(self, z: np.ndarray, found: _Chains, k: int, *, gradient: bool = False) -> tuple[_Cumulants, np.ndarray]:
        """The log density at one row, and where asked for its slope (d_z,)."""
        slope, evens, odds = np.zeros(self.model.dim), [], []
        if found.factors[k] is None:
            return _Cumulants(-np.inf, 0.0), np.full(len(z), np.nan)
        for first in range(0, self.size, PIECE):
            noise = self._noise[:, first : first + PIECE]
            points = self._points(z, found, k, noise)
            if gradient:
                density, slopes = self.model._log_density_and_gradient(points)
                slope += np.asarray(slopes, dtype=np.float64).sum(axis=0) / (2 * self.size)
            else:
                density = self.model._log_density(points)
            even, odd = self._log_ratios(density, found, k, noise)
            evens.append(even)
            odds.append(odd)
        if gradient:
            self._correct(slope, z, found, k)
        sums = _Cumulants.of(np.concatenate(evens), np.concatenate(odds), len(self._noise))
        return sums, slope[: len(z)]

    def _correct(self, slope: np.ndarray, z: np.ndarray, found: _Chains, k: int) -> None:
        """Add what the mean slope over draws, (d,) by globals and locals, lacks where that in the locals is not 0.

        The best q moves with the globals; what it gains by that is the slope of the globals one Newton step further on.
        """
        move = found.newton_step(k, slope[len(z) :])
        longest, gain = float(np.abs(move / found.widths[k].ravel()).max()), 0.5 * float(slope[len(z) :] @ move)
        if not (math.isfinite(longest) and gain > 0):
            return
        part = min(1.0, _PART / longest)
        ahead, behind = (np.concatenate([z, found.centre[k].ravel() + side * part * move]) for side in (1, -1))
        slopes = np.asarray(self.model._log_density_and_gradient(np.stack([ahead, behind]))[1], dtype=np.float64)
        slope[: len(z)] += 0.5 / part * min(1.0, 1 / math.sqrt(gain)) * (slopes[0] - slopes[1])[: len(z)]

    def _log_ratios(self, density: Any, found: _Chains, k: int, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Even and odd parts (n,) of `log p - log q` over pairs of draws with these log densities (2 n,)."""
        here, there = np.asarray(density, dtype=np.float64).reshape(2, -1)
        log_q = found.log_heights[k] - 0.5 * (noise**2).sum(axis=0)
        return 0.5 * (here + there) - log_q, 0.5 * (here - there)

    def _points(self, z: np.ndarray, found: _Chains, k: int, noise: np.ndarray) -> np.ndarray:
        """Draws (2 n, d) of the k-th q from noise (N d_y, n): one side, then the other."""
        moves, centre = found.spread(k, noise).T, found.centre[k].ravel()
        points = np.empty((2 * len(moves), len(z) + len(centre)))
        points[:, : len(z)] = z
        np.add(centre, moves, out=points[: len(moves), len(z) :])
        np.subtract(centre, moves, out=points[len(moves) :, len(z) :])
        return points

    # ---- the nearest Gaussian -----------------------------------------------------------------------------
    def _start(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(self.parts.local_means(z) + self._offset)

    def _nearest(self, z: np.ndarray, rounds: int = _ROUNDS) -> _Chains:
        """The best q(y | z) for rows of z, by Newton's method; steps that lead away are shortened.

        What a variable is averaged over is as wide as it is under q itself, which is seen after a round.
        """
        centre = self._start(z)
        widths = np.tile(self._widths, (len(z), 1, 1))
        step, gain, change = np.zeros_like(centre), np.full(len(z), np.inf), np.full(len(z), np.inf)
        found, todo = _Chains(centre, widths.copy(), [None] * len(z)), np.arange(len(z))
        for _ in range(rounds):
            trial = centre[todo] + step[todo]
            at, again = self._curvature.expand(z[todo], trial, widths[todo], self.sides), []
            for i, k in enumerate(todo):
                factor = ChainFactor.of(-at.own[i], -at.below[i])
                slope = at.mean_slope[i].ravel()
                way = None if factor is None else factor.solve(slope)
                better = way is not None and 0.5 * (slope @ way) < max(gain[k], _CLOSE)
                if factor is None or way is None or not better:
                    step[k] *= _SHORTER
                    again.append(k)
                    continue
                centre[k], gain[k] = trial[i], 0.5 * (slope @ way)
                found.factors[k], found.widths[k] = factor, widths[k]
                step[k] = widths[k] * way.reshape(self._shape)
                if change[k] > _NEAR_WIDTH:  # what is left of a smaller change is its square
                    wider = np.sqrt((factor.spread(self._noise) ** 2).mean(axis=1)).reshape(self._shape)
                    widths[k] = widths[k] * wider
                    change[k] = max(wider.max(), 1 / wider.min())
                    if change[k] > _SAME_WIDTH:
                        again.append(k)
                        continue
                if gain[k] > _CLOSE:
                    again.append(k)
            todo = np.array(again, dtype=int)
            if not len(todo):
                break
        centre += step  # that of `found`
        return found


@dataclass(frozen=True)
class _Cumulants:
    """The log mean of `p / q` up to the variance of its logarithm, and the third order, which is left out."""

    value: float
    third: float

    @classmethod
    def of(cls, even: np.ndarray, odd: np.ndarray, size: int) -> _Cumulants:
        """From the even and odd parts (n,) of `log p - log q` over pairs of draws, for so many variables of locals."""
        squares = odd**2
        mean, gain = float(even.mean()), 0.5 * float(even.var(ddof=1) + squares.mean())
        third = 0.5 * float(((even - mean) * (squares - squares.mean())).mean())
        if gain > _LARGEST_GAIN * size:  # many small parts add up to a normal one, few large do not
            logs = np.concatenate([even + odd, even - odd])
            gain = min(gain, max(_LARGEST_GAIN * size, log_mean_weight(logs)[0] - mean))
        return cls(mean + gain, third) if math.isfinite(mean + gain) else cls(-math.inf, 0.0)


@dataclass(frozen=True)
class _Chains:
    """Gaussians of the chain at m values of the globals.

    Means (m, N, d_y), and the factors of their precisions in units of the widths (m, N, d_y); None: not found.
    """

    centre: np.ndarray
    widths: np.ndarray
    factors: list[ChainFactor | None]

    @cached_property
    def log_heights(self) -> np.ndarray:
        """Log densities (m,) at the means."""
        half = np.array([math.nan if one is None else one.half_log_det for one in self.factors])
        size = self.widths[0].size
        return np.asarray(half - np.log(self.widths).sum(axis=(1, 2)) - 0.5 * size * math.log(2 * math.pi))

    def newton_step(self, k: int, slope: np.ndarray) -> np.ndarray:
        """By how much the k-th mean would have to be moved (N d_y,), where the mean slope is `slope` (N d_y,)."""
        factor, widths = self.factors[k], self.widths[k].ravel()
        return np.zeros_like(slope) if factor is None else widths * factor.solve(widths * slope)

    def spread(self, k: int, noise: np.ndarray) -> np.ndarray:
        """Where draws of the k-th lie (N d_y, n), from its mean."""
        factor = self.factors[k]
        return np.zeros_like(noise) if factor is None else self.widths[k].ravel()[:, None] * factor.spread(noise)


def _orthogonal_noise(size: int, n: int, width: int, source: np.random.Generator) -> np.ndarray:
    """Noise (size, n) with mean square 1, each row orthogonal to the `width / 2` before it, in columns of a width.

    Otherwise it is random: what is of higher order in many variables then varies as little as in independent draws.
    """
    blocks, window = n // width, width // 2
    found = source.standard_normal((size, blocks, width))
    for t in range(size):
        before = found[max(0, t - window) : t]
        found[t] -= np.einsum("wb,wbk->bk", np.einsum("wbk,bk->wb", before, found[t]), before) / width
        found[t] *= math.sqrt(width) / np.linalg.norm(found[t], axis=1, keepdims=True)
    return found.reshape(size, n)
