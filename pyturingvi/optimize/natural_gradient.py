"""One natural-gradient update: draws in antithetic pairs, sticking the landing, an averaged and bounded step.

The gradient leaves out the score of q's own parameters (Roeder, Wu and Duvenaud, 2017), so that its noise vanishes
where q is the posterior, and `log p - log q` of the same draws is an estimate of the ELBO for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.families.natural import NaturalCoordinates
from pyturingvi.models.base import Model
from pyturingvi.support.array_namespace import Array, to_numpy
from pyturingvi.support.parallel import Workers

_PIECE_BYTES = 1 << 21
_SUM_BYTES = 64 << 20
_MOST_SUMS = 4
_SPLIT_FROM = 75_000  # numbers in the noise of an update: with fewer, threads wait for each other longer than they work


@dataclass(frozen=True)
class UpdateStats:
    """What an update saw.

    Attributes
    ----------
    mean, variance : float
        Of `log p - log q` over the draws; they estimate the ELBO and its spread before the update.
    inner, square : float
        Inner product of the new direction with the average of the former ones, near 0 or below where only noise is
        left; and with itself. In nats.
    shortened : float
        Share of the blocks whose step was longer than the trust region.
    global_square : float
        The part of `square` in the globals' own block.
    """

    mean: float
    variance: float
    inner: float
    square: float
    shortened: float
    global_square: float


class NaturalGradientState:
    """Parameters and averaged direction of a run.

    Attributes
    ----------
    work : (p,) array
        Parameters of the standardized family, in working order; changed in place.
    velocity : (p,) array
        Running average of the directions.
    count : int
        Updates in that average.
    slopes : (M, d) array or None
        Where the last update broke.
    """

    def __init__(self, model: Model, coordinates: NaturalCoordinates, workers: Workers) -> None:
        self.model, self.coordinates, self.workers = model, coordinates, workers
        self.bound = coordinates.bound
        xp, p = self.bound.xp, self.bound.n_params
        self.work: Array = None
        self.velocity = xp.zeros(p, dtype=self.bound.dtype)
        self.count = 0
        self.slopes: Array | None = None
        itemsize = self.bound.dtype.itemsize
        # how a sum is cut must not depend on the number of threads
        n_sums = _MOST_SUMS if xp is np and model.thread_safe and p * itemsize * _MOST_SUMS <= _SUM_BYTES else 1
        self._sums = [xp.empty(p, dtype=self.bound.dtype) for _ in range(n_sums)]
        self._part = [xp.empty(p, dtype=self.bound.dtype) for _ in range(n_sums)]
        self._direction = xp.empty(p, dtype=self.bound.dtype)
        # a piece's points stay in cache; a GPU takes all at once
        self._rows = max(4, _PIECE_BYTES // (itemsize * self.bound.layout.dim)) if xp is np else 1 << 30

    def update(
        self, noise: Array, paired: bool, rate: float, momentum: float, trust: float, global_rate: float = 0.0
    ) -> UpdateStats | None:
        """Make one update; None, with everything as it was, if it would not be finite.

        Parameters
        ----------
        noise : (m, d) array
        paired : bool
            Whether each row stands for the pair (u, -u).
        rate, momentum, trust : float
            Share of a full step, decay of the averaged direction, and largest norm of a block's step.
        global_rate : float
            Share for the globals' own block, where it is more than `rate`.
        """
        coordinates = self.coordinates
        found = self._direction_at(noise, paired)
        if found is None:
            return None
        direction = self._direction
        coordinates.normalize(self.work, direction)
        inner = coordinates.inner(direction, self.velocity) if self.count else float("nan")
        square = coordinates.inner(direction, direction)
        global_square = coordinates.global_square(direction)
        weight = (1 - momentum) / (1 - momentum ** (self.count + 1))
        velocity = self.velocity + weight * (direction - self.velocity)
        step = rate * velocity
        if global_rate > rate:
            coordinates.quicken_globals(step, global_rate / rate)
        shortened = coordinates.limit(step, trust)
        moved = self.work.copy()
        coordinates.retract(moved, step)
        if not coordinates.usable(moved):
            return None
        self.work, self.velocity, self.count = moved, velocity, self.count + 1
        return UpdateStats(float(found.mean()), float(found.var(ddof=1)), inner, square, shortened, global_square)

    def _direction_at(self, noise: Array, paired: bool) -> np.ndarray | None:
        """Fill the direction from the draws; `log p - log q` of each draw, or None if something is not finite."""
        bound, xp, n_sums = self.bound, self.bound.xp, len(self._sums)
        rows = self._rows // 2 if paired else self._rows
        n_pieces = max(-(-len(noise) // rows), n_sums if noise.size >= _SPLIT_FROM else 1)
        rows = -(-len(noise) // n_pieces)
        pieces = [slice(i, i + rows) for i in range(0, len(noise), rows)]
        log_det = bound._log_abs_det(self.work)
        values: list[Any] = [None] * len(pieces)

        def group(k: int) -> bool:
            total, part = self._sums[k], self._part[k]
            total[...] = 0
            for number in range(k, len(pieces), n_sums):
                u = noise[pieces[number]]
                if paired:
                    u = xp.concatenate([u, -u])
                found = self._piece(u, part)
                if found is None:
                    return False
                values[number] = found + log_det
                total += part
            return True

        used = range(min(n_sums, len(pieces)))
        if not all(self.workers.map(group, used) if len(used) > 1 else [group(0)]):
            return None
        direction = self._direction
        direction[...] = self._sums[0]
        for k in used[1:]:
            direction += self._sums[k]
        f = np.concatenate([to_numpy(v) for v in values])
        direction *= 1 / len(f)
        return f if np.isfinite(f).all() else None

    def _piece(self, u: Array, out: Array) -> Array | None:
        """Sums over the draws of a piece; `log p - log q`, the log determinant left out."""
        bound, coordinates = self.bound, self.coordinates
        points = bound.xp.empty((len(u), bound.layout.dim), dtype=bound.dtype)
        bound.transform(self.work, u, points)
        values, slopes = self.model._log_density_and_gradient(points)
        flat = slopes.ravel()
        if not np.isfinite(float(flat @ flat)):
            self.slopes = slopes
            return None
        h = coordinates.noise_slopes(self.work, u, slopes if slopes.flags.writeable else slopes.copy())
        coordinates.direction(self.work, u, h, out)
        return values - bound._log_q_of_noise(self.work, u)
