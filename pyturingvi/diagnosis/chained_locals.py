"""The log density of the globals with a chain of locals integrated out, by the Gaussian nearest to the whole chain.

Given the globals z, the locals have a Gaussian `q(y | z)` that maximizes `E log p(z, y, x) - E log q(y | z)`: its mean
is where the mean slope is 0, its precision minus the mean curvature (`chain_curvature`). That bound is below the log
integral by half the variance of `log p - log q` under q and smaller terms; draws of q, the same for all z, give the
mean and the variance. The slope of the bound in z is the mean of that of log p, since q is the best for each z.

Draws come in pairs on opposite sides. Their noise is orthogonal from each local to those around it, so that means of
whatever is quadratic in neighbours are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
_PAIRS_A_VARIABLE = 4  # of a local, so that the noise of neighbours is orthogonal
_CLOSE = 0.02  # nats that a step to the best q gains, below which it is the last
_LARGEST_GAIN = 0.002  # nats a variable, half the variance: beyond it only what draws have seen counts
_ROUNDS, _SHORTER = 8, 0.3
_WIDENINGS, _SAME_WIDTH, _FIRST_ROUNDS = 8, 1.1, 40
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

    far, low, cheap = 1.5, 6.0, 0.1

    def __init__(self, model: Model, parts: GlobalsAndLocals, size: int | None, seed: int = 0) -> None:
        layout, source = model.layout, np.random.default_rng(seed)
        self.model, self.parts = model, parts
        self._shape = layout.n_local, layout.local_dim
        self.size = max(size or FIRST_PAIRS, _PAIRS_A_VARIABLE * layout.local_dim)
        self.sides, others = source.choice([-1.0, 1.0], size=(2, *self._shape))
        self._noise = _Noise.draw(layout.n_local_total, self.size, source)
        # noise of the variance, spread over the globals, moves each by a tenth of its standard deviation at most
        self.tolerance = min(0.1 * math.sqrt(1 + layout.n_global), 0.5)
        self.row_bytes = 8 * layout.dim * 16
        self._offset = np.zeros(self._shape)
        self._curvature = ChainCurvature(model, parts.local_widths, math.sqrt(3.0))
        middle = parts.mean[None]
        if not self._curvature.separate(middle, self._start(middle), self.sides, others):
            raise InputError(
                f"refine cannot help {model.description}: a local depends on others than its neighbours, also given "
                "the globals."
            )
        self._settle(middle)

    def _settle(self, middle: np.ndarray) -> None:
        """Widths and means of the locals at the mean of the globals, whatever the fit's own are."""
        for _ in range(_WIDENINGS):
            found = self._nearest(middle, _FIRST_ROUNDS)
            if found.factors[0] is None:
                return
            self._offset = self._offset + (found.centre - self._start(middle))[0]
            spread = found.factors[0].spread(self._noise.columns(slice(None)))
            wider = np.sqrt((spread**2).mean(axis=1)).reshape(self._shape)
            self._curvature = ChainCurvature(self.model, wider * self._curvature.widths, math.sqrt(3.0))
            if max(wider.max(), 1 / wider.min()) < _SAME_WIDTH:
                return

    def count(self, size: int) -> int:
        return 2 * size

    def moments(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self._nearest(z)
        spread = self._spread(found)
        return found.centre, np.einsum("mnik,mnjk->mnij", spread, spread) / spread.shape[3]

    def neighbours(self, z: np.ndarray) -> np.ndarray:
        """Covariance (m, N - 1, d_y, d_y) of each local (rows) with the one before it, given the globals."""
        spread = self._spread(self._nearest(z))
        return np.asarray(np.einsum("mnik,mnjk->mnij", spread[:, 1:], spread[:, :-1]) / spread.shape[3])

    def draw(self, z: np.ndarray, source: np.random.Generator) -> np.ndarray:
        """One of a few draws of q(y | z), by its weight."""
        out = np.empty((len(z), self.model.layout.n_local_total))
        for first in range(0, len(z), rows := self.rows):
            part = z[first : first + rows]
            found = self._nearest(part)
            for k, factor in enumerate(found.factors):
                if factor is None:  # no draw is better than the middle
                    out[first + k] = found.centre[k].ravel()
                    continue
                noise = source.standard_normal((out.shape[1], _CANDIDATES))
                points = self._points(part[k], found.centre[k], factor, noise)
                even, odd = self._log_ratios(self.model._log_density(points), factor, noise)
                logs = np.nan_to_num(np.concatenate([even + odd, even - odd]), nan=-np.inf)
                shares = np.exp(logs - max(logs.max(), -1e300))
                chosen = int((np.cumsum(shares) < source.uniform() * shares.sum()).sum())
                out[first + k] = points[min(chosen, len(logs) - 1), z.shape[1] :]
        return out

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
        factor, slope, evens, odds = found.factors[k], np.zeros(len(z)), [], []
        if factor is None:
            return _Cumulants(-np.inf, 0.0), np.full(len(z), np.nan)
        for first in range(0, self.size, PIECE):
            noise = self._noise.columns(slice(first, first + PIECE))
            points = self._points(z, found.centre[k], factor, noise)
            if gradient:
                density, slopes = self.model._log_density_and_gradient(points)
                slope += np.asarray(slopes, dtype=np.float64)[:, : len(z)].sum(axis=0)
            else:
                density = self.model._log_density(points)
            even, odd = self._log_ratios(density, factor, noise)
            evens.append(even)
            odds.append(odd)
        return _Cumulants.of(np.concatenate(evens), np.concatenate(odds), self._noise.signs.size), slope / (
            2 * self.size
        )

    def _log_ratios(self, density: Any, factor: ChainFactor, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Even and odd parts (n,) of `log p - log q` over pairs of draws with these log densities (2 n,)."""
        here, there = np.asarray(density, dtype=np.float64).reshape(2, -1)
        log_q = self._log_height(factor) - 0.5 * (noise**2).sum(axis=0)
        return 0.5 * (here + there) - log_q, 0.5 * (here - there)

    def _log_height(self, factor: ChainFactor) -> float:
        """Log density of q at its mean."""
        widths = self._curvature.widths
        return factor.half_log_det - float(np.log(widths).sum()) - 0.5 * widths.size * math.log(2 * math.pi)

    def _points(self, z: np.ndarray, centre: np.ndarray, factor: ChainFactor, noise: np.ndarray) -> np.ndarray:
        """Draws (2 n, d) of q from noise (N d_y, n): one side, then the other."""
        moves = (self._curvature.widths.ravel()[:, None] * factor.spread(noise)).T
        points = np.empty((2 * len(moves), len(z) + centre.size))
        points[:, : len(z)] = z
        np.add(centre.ravel(), moves, out=points[: len(moves), len(z) :])
        np.subtract(centre.ravel(), moves, out=points[len(moves) :, len(z) :])
        return points

    def _spread(self, found: _Chains) -> np.ndarray:
        """Where draws of one side lie (m, N, d_y, n), from the mean."""
        noise = self._noise.columns(slice(None))
        nothing = np.zeros_like(noise)
        spread = np.stack([nothing if one is None else one.spread(noise) for one in found.factors])
        return np.asarray(self._curvature.widths[..., None] * spread.reshape(len(spread), *self._shape, -1))

    # ---- the nearest Gaussian -----------------------------------------------------------------------------
    def _start(self, z: np.ndarray) -> np.ndarray:
        parts = self.parts
        noise = np.linalg.solve(parts.scale, (z - parts.mean).T).T
        found = (parts.local_mean + noise @ parts.border).reshape(len(z), *self._shape)
        return np.asarray(found + self._offset)

    def _nearest(self, z: np.ndarray, rounds: int = _ROUNDS) -> _Chains:
        """The best q(y | z) for rows of z, by Newton's method; steps that lead away are shortened."""
        centre = self._start(z)
        step, gain = np.zeros_like(centre), np.full(len(z), np.inf)
        factors: list[ChainFactor | None] = [None] * len(z)
        todo = np.arange(len(z))
        for _ in range(rounds):
            trial = centre[todo] + step[todo]
            at = self._curvature.expand(z[todo], trial, self.sides)
            for i, k in enumerate(todo):
                factor = ChainFactor.of(-at.own[i], -at.below[i])
                slope = at.mean_slope[i].ravel()
                way = None if factor is None else factor.solve(slope)
                if way is not None and 0.5 * (slope @ way) < gain[k]:
                    centre[k], factors[k], gain[k] = trial[i], factor, 0.5 * (slope @ way)
                    step[k] = self._curvature.widths * way.reshape(self._shape)
                else:
                    step[k] *= _SHORTER
            todo = todo[gain[todo] > _CLOSE]
            if not len(todo):
                break
        return _Chains(centre + step, factors)


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
    """Means (m, N, d_y) of m Gaussians, and the factors of their precisions in units of the widths; None: not found."""

    centre: np.ndarray
    factors: list[ChainFactor | None]


@dataclass(frozen=True)
class _Noise:
    """Noise (N d_y, n) whose rows are orthogonal to the n - 1 around them, with mean square 1."""

    rows: np.ndarray
    signs: np.ndarray

    @classmethod
    def draw(cls, size: int, n: int, source: np.random.Generator) -> _Noise:
        rotation = np.linalg.qr(source.standard_normal((n, n)))[0]
        return cls(math.sqrt(n) * rotation, source.choice([-1.0, 1.0], size=size))

    def columns(self, which: slice) -> np.ndarray:
        """Some of its columns (N d_y, k)."""
        some = self.rows[:, which]
        return np.asarray(some[np.arange(len(self.signs)) % len(some)] * self.signs[:, None])
