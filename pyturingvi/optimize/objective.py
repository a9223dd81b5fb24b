"""Monte Carlo draws with their gradients, the gradient of the negative ELBO, and the ELBO estimate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pyturingvi.families.base import BoundFamily
from pyturingvi.families.location_scale import BoundLocationScale
from pyturingvi.models.base import Model
from pyturingvi.optimize.noise import ELBO_STREAM, generator
from pyturingvi.support.array_namespace import Array, to_numpy
from pyturingvi.support.parallel import Workers

_SPLIT_FROM = 1_000_000  # scalar terms in a batch from which its points are worth a thread each
_CHUNK_BYTES = {"numpy": 2 << 20, "cupy": 256 << 20}


def elbo_chunk(bound: BoundFamily, n_samples: int) -> int:
    """Points in one piece of an ELBO estimate: cache-sized on a CPU, memory-sized on a GPU."""
    row: int = bound.dtype.itemsize * bound.layout.dim
    return max(1, min(n_samples, _CHUNK_BYTES[bound.xp.__name__] // row))


class Batch:
    """What an update rests on: draws of a family's member, and the slopes of the log density there.

    Attributes
    ----------
    bound : BoundFamily
    noise : (M, D) array
    points : (M, d) array
        What `bound.transform` made of the noise.
    slopes : (M, d) array
        Gradient of the log density at each point; `gradient` overwrites it.
    """

    def __init__(self, bound: BoundFamily, n_samples: int) -> None:
        xp, shape = bound.xp, (n_samples, bound.layout.dim)
        self.bound = bound
        self.noise: Array = None
        self.points = xp.empty(shape, dtype=bound.dtype)
        self.slopes = xp.empty(shape, dtype=bound.dtype)
        self._gradient: Array = None

    def gradient(self, work: Array, energy_only: bool = False) -> Array | None:
        """Gradient (p,) of the negative ELBO at `work`, or None if it is not finite; to be asked for once.

        Parameters
        ----------
        energy_only : bool
            Leave the entropy out (for the proximal operator).
        """
        if self._gradient is None:
            self._gradient = self.bound.xp.empty_like(work)
        slopes, out = self.slopes, self._gradient
        slopes *= -1.0 / slopes.shape[0]
        self.bound.pullback(work, self.noise, self.points, slopes, out)
        return out if energy_only or self.bound.subtract_entropy_gradient(work, out) else None


class Objective:
    """One model under one family, with its buffers.

    Parameters
    ----------
    n_samples : int
        Monte Carlo samples M of a gradient.
    """

    def __init__(self, model: Model, bound: BoundFamily, n_samples: int, workers: Workers) -> None:
        self.model, self.bound, self.workers = model, bound, workers
        self.batch = Batch(bound, n_samples)
        split = bound.xp is np and model.thread_safe and n_samples * model.work_per_point >= _SPLIT_FROM
        self._pieces = [slice(i, i + 1) for i in range(n_samples)] if split else None

    def evaluate(self, work: Array, noise: Array) -> bool:
        """Fill the batch with the points of `noise` and the slopes there; False if these are not finite."""
        batch = self.batch
        points, slopes = batch.points, batch.slopes
        batch.noise = noise
        self.bound.transform(work, noise, points)
        if self._pieces is None:
            self.model._gradient(points, slopes)
        else:
            self.workers.map(lambda s: self.model._gradient(points[s], slopes[s]), self._pieces)
        # the squared norm overflows wherever an optimizer's second moment would, and is one fast pass
        flat = slopes.ravel()
        return math.isfinite(float(flat @ flat))

    def gradient(self, work: Array, noise: Array, energy_only: bool = False) -> Array | None:
        """`Batch.gradient` (p,) for these draws, in a buffer that the next call overwrites; None if not finite."""
        return self.batch.gradient(work, energy_only) if self.evaluate(work, noise) else None

    def elbo(
        self,
        work: Array,
        n_samples: int,
        seed: int,
        iteration: int,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> tuple[float, float]:
        """ELBO at `work` with its Monte Carlo standard error.

        The draws depend on the seed and the iteration only, so a trace is the same however often it is taken. When
        `interrupted` turns true in between, the chunks drawn so far are used (at least one).
        """
        bound, model = self.bound, self.model
        place = n_samples, seed, iteration, interrupted
        values = _over_draws(model, bound, work, self.workers, place, lambda noise, points: model._log_density(points))
        mean, error = _mean_and_error(values)
        return mean + bound.entropy(work), error


def elbo_of_log_weights(
    model: Model,
    bound: BoundLocationScale,
    work: Array,
    workers: Workers,
    n_samples: int,
    seed: int,
    iteration: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> tuple[float, float]:
    """The ELBO as the mean of `log p - log q`, with its standard error: less than `Objective.elbo`'s where q fits p."""

    def log_weights(noise: Array, points: Array) -> Array:
        return model._log_density(points) - bound._log_q_of_noise(work, noise)

    values = _over_draws(model, bound, work, workers, (n_samples, seed, iteration, interrupted), log_weights)
    mean, error = _mean_and_error(values)
    return mean + bound._log_abs_det(work), error


def _over_draws(
    model: Model,
    bound: BoundFamily,
    work: Array,
    workers: Workers,
    place: tuple[int, int, int, Callable[[], bool]],
    function: Callable[[Array, Array], Array],
) -> np.ndarray:
    """`function` of noise and points, over draws of which an interruption leaves out the later chunks."""
    n_samples, seed, iteration, interrupted = place
    xp, chunk = bound.xp, elbo_chunk(bound, n_samples)
    sizes = [min(chunk, n_samples - i) for i in range(0, n_samples, chunk)]

    def part(k: int) -> Array | None:
        if k and interrupted():
            return None
        noise = xp.empty((sizes[k], bound.noise_dim), dtype=bound.dtype)
        bound.base.fill(generator(xp, seed, ELBO_STREAM, iteration, k), noise)
        points = xp.empty((sizes[k], bound.layout.dim), dtype=bound.dtype)
        bound.transform(work, noise, points)
        return function(noise, points)

    threaded = xp is np and model.thread_safe
    parts = workers.map(part, range(len(sizes))) if threaded else [part(k) for k in range(len(sizes))]
    return to_numpy(xp.concatenate([p for p in parts if p is not None]))


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan
        return float(values.mean()), error
