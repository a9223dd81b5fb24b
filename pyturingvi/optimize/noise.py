"""Base noise of a run: every draw is a function of the seed and its place, so any run can be taken up anywhere."""

from __future__ import annotations

import functools
import importlib
import math
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import numpy as np

from pyturingvi.families.base_distributions import BaseDistribution, Gaussian
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.parallel import Workers

_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 256
_AHEAD_FROM = 20_000  # numbers: fewer are drawn before another thread has begun

GRADIENT_STREAM, ELBO_STREAM, SAMPLE_STREAM, FORECAST_STREAM, PREDICT_STREAM = 0, 1, 2, 3, 4


def generator(xp: ModuleType, seed: int, *place: int) -> Any:
    """A random Generator of `xp` for one place of one seed."""
    sequence = np.random.SeedSequence(seed, spawn_key=place)
    if xp is np:
        return np.random.Generator(np.random.SFC64(sequence))
    return xp.random.default_rng(int(sequence.generate_state(1, np.uint64)[0]))


class NoiseStream:
    """Draws of shape (M, D) for each iteration, a block of iterations at a time, the next block in the background."""

    def __init__(
        self,
        base: BaseDistribution,
        seed: int,
        shape: tuple[int, int],
        n_iterations: int,
        dtype: np.dtype,
        xp: ModuleType,
        workers: Workers,
    ) -> None:
        self.base, self.seed, self.xp, self.dtype = base, seed, xp, dtype
        self.shape = shape
        self.n_iterations = n_iterations
        # the block length is part of what the seed means: it may depend on shapes alone
        row_bytes = 8 * shape[0] * shape[1]
        self.rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // row_bytes))
        self._workers = workers
        self._block_number = -1
        self._block: Array = None
        self._next: Future[Array] | None = None

    def draw(self, iteration: int) -> Array:
        """Noise (M, D) of the update `iteration`, counted from 0."""
        number, row = divmod(iteration, self.rows)
        if number != self._block_number:
            if self._next is not None and number == self._block_number + 1:
                self._block = self._next.result()
            else:
                self._block = self._draw_block(number)
            self._block_number = number
            more = (number + 1) * self.rows < self.n_iterations
            # a GPU draws in stream order anyway; only the CPU gains from a second thread
            ahead = more and self.xp is np and self._workers.n > 1
            self._next = self._workers.ahead(self._draw_block, number + 1) if ahead else None
        return self._block[row]

    def _draw_block(self, number: int) -> Array:
        source = generator(self.xp, self.seed, GRADIENT_STREAM, number)
        # always a whole block, so that a longer run begins with the same numbers; and in few calls, since a thread
        # that asks for the interpreter lock after every row would hold up the one that computes
        block = self.xp.empty((self.rows, *self.shape), dtype=self.dtype)
        self.base.fill(source, block)
        return block


class AntitheticStream:
    """Rows u of the antithetic pairs (u, -u) of each update, whose number may change from one update to the next.

    Parameters
    ----------
    n_heads : int
        Dense columns of the scale: the globals, or all coordinates.
    frames : bool
        Make the columns of the heads orthogonal over the rows, and the others orthogonal to them, but for a
        factor that each row has of its own, so that a row is exactly standard normal. The sums of `h u_z'` are then
        nearly exact where h is linear: their noise would otherwise limit the rate. For a Gaussian base alone.
    mirrored : bool
        Let each row have a second one with the signs of all but the heads turned, where the number of rows is
        even. Sums of `h_n u_n u_z'` then have no noise of what is odd in u_n or in u_z, such as a local's skewness.
        What is no head is stratified besides, for a Gaussian base: see `stratified_normal`.
    workers : Workers, optional
        Draw the next update's rows in the background, where they are many: it mostly asks for as many.
    """

    def __init__(
        self,
        base: BaseDistribution,
        seed: int,
        dim: int,
        n_heads: int,
        dtype: np.dtype,
        xp: ModuleType,
        *,
        mirrored: bool = False,
        workers: Workers | None = None,
    ) -> None:
        self.base, self.seed, self.dim, self.n_heads, self.dtype, self.xp = base, seed, dim, n_heads, dtype, xp
        self.mirrored = mirrored
        self._workers = workers if workers is not None and workers.n > 1 and xp is np else None
        self._next: tuple[tuple[int, int, bool], Future[Array]] | None = None

    def draw(self, iteration: int, n_rows: int, frames: bool) -> Array:
        """The rows (n_rows, d) of the update `iteration`, counted from 0."""
        asked, ahead, self._next = (iteration, n_rows, frames), self._next, None
        if self._workers is not None and n_rows * self.dim >= _AHEAD_FROM:
            following = (iteration + 1, n_rows, frames)
            self._next = (following, self._workers.ahead(self._draw, *following))
        return ahead[1].result() if ahead is not None and ahead[0] == asked else self._draw(*asked)

    def _draw(self, iteration: int, n_rows: int, frames: bool) -> Array:
        source = generator(self.xp, self.seed, GRADIENT_STREAM, iteration)
        mirrored = self.mirrored and n_rows % 2 == 0
        frames = frames and self.n_heads > 0
        rows = self._fill(source, n_rows // 2 if mirrored else n_rows, stratified=mirrored or not frames)
        if frames:
            self._orthogonalize(rows, source, mirrored)
        if not mirrored:
            return rows
        rows = self.xp.concatenate([rows, rows])
        rows[n_rows // 2 :, self.n_heads :] *= -1
        return rows

    def _fill(self, source: Any, n_rows: int, stratified: bool) -> Array:
        """Independent rows; those that are to be orthogonal to heads are normal before, and cannot be stratified."""
        xp, stratified = self.xp, stratified and type(self.base) is Gaussian
        first = xp.empty((n_rows, self.n_heads if stratified else self.dim), dtype=self.dtype)
        self.base.fill(source, first)
        if not stratified:
            return first
        return xp.concatenate(
            [first, stratified_normal(source, n_rows, self.dim - self.n_heads, self.dtype, xp)], axis=1
        )

    def _orthogonalize(self, rows: Array, source: Any, mirrored: bool = False) -> None:
        """Turn independent rows into frames; those of mirrored rows are orthogonal to the others as they are."""
        xp, m = self.xp, len(rows)
        z, y = rows[:, : self.n_heads], rows[:, self.n_heads :]
        q, r = xp.linalg.qr(z)
        q *= xp.sign(xp.diagonal(r))
        if not mirrored:
            y -= q @ (q.T @ y)
            # given q, the projected y has in row k the variance 1 - |q_k|^2
            y /= xp.sqrt(1 - (q * q).sum(axis=1, keepdims=True))
        # a row of q is a direction in m dimensions, of which the heads are some
        z[...] = q * xp.sqrt(2 * source.standard_gamma(m / 2, size=(m, 1), dtype=self.dtype))


def stratified_normal(source: Any, m: int, n: int, dtype: np.dtype, xp: ModuleType) -> Array:
    """Standard normal numbers (m, n) whose columns are stratified: a Latin hypercube of the sizes |u|.

    Each column has one size in each m-th part of the half-normal distribution, and signs at random, so that sums over
    the rows of what depends on a single column have next to no noise (McKay, Beckman and Conover, 1979). Row k has
    part `(a k + b) mod m`, with a and b at random for each column: where m is a prime, two rows of a column have any
    two parts, as in a random order, so that what depends on several columns has no more noise than there; and a row by
    itself has independent entries.
    """
    factors = xp.asarray(_coprimes(m))
    parts = xp.arange(m)[:, None] * factors[source.integers(0, len(factors), size=n)]
    parts += source.integers(0, m, size=n)
    parts %= m
    signed = source.random((m, n), dtype=dtype)
    signed *= 2
    signed -= 1
    signed += np.finfo(dtype).eps / 4  # never 0, whose quantile is infinite
    tail = abs(signed)
    tail += parts
    tail *= 0.5 / m
    return xp.copysign(_normal_quantile(xp)(tail), signed)


@functools.lru_cache(32)
def _coprimes(m: int) -> np.ndarray:
    """Which of 1, ..., m have no divisor in common with m: asked for at each update, with few m."""
    return np.array([a for a in range(1, m + 1) if math.gcd(a, m) == 1])


def _normal_quantile(xp: ModuleType) -> Any:
    special = importlib.import_module("scipy.special" if xp is np else "cupyx.scipy.special")
    return special.ndtri


class GivenNoise:
    """A user's `noise=` array (T, M, D) in place of the generator."""

    def __init__(self, noise: np.ndarray, dtype: np.dtype, xp: ModuleType) -> None:
        self.noise, self.dtype, self.xp = noise, dtype, xp

    def draw(self, iteration: int) -> Array:
        """Noise (M, D) of the update `iteration`, counted from 0."""
        return self.xp.asarray(np.ascontiguousarray(self.noise[iteration]), dtype=self.dtype)
