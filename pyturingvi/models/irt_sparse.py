"""The sums of the item response model over a list of answers: time and memory go with their number.

Answers lie item by item. For a block of items, abilities are gathered and discriminations and intercepts repeated into
buffers that stay in the cache; the sums over an item's answers are then sums of neighbours, and those over a student's
the product with a sparse matrix. Terms are computed in the precision of the points, sums in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from pyturingvi.models.irt_answers import Answers, Block
from pyturingvi.support.array_namespace import Array, namespace_of

_BLOCK_ANSWERS = 1 << 16
# Factors (1, 2] multiplied before one logarithm: 2**96 is far below the overflow of float32.
_FACTORS = 96
_LOG_2 = float(np.log(2.0))


class SparseTable:
    """A list of answers with its sums: a `ResponseTable`, whose contract stands in `irt_tables`."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.n_students, self.n_items = answers.n_students, answers.n_items
        self.n_answers = self.work = answers.n_answers
        self._blocks = list(_blocks(answers))

    def evaluate(
        self,
        on: Any,
        half_gamma: Array,
        half_centre: Array,
        alpha: Array,
        alpha_slopes: Array | None,
        *,
        value: bool,
    ) -> tuple[Array | None, Array | None]:
        xp = namespace_of(alpha)
        logs = xp.zeros(alpha.shape[0]) if value else None
        pulls = None if alpha_slopes is None else xp.zeros((*half_gamma.shape, 2))
        for m in range(alpha.shape[0]):
            ability = alpha[m]
            slopes = None if alpha_slopes is None else -ability.astype(np.float64)
            target = None if pulls is None else pulls[m]
            if xp is np:
                log = self._by_blocks(half_gamma[m], half_centre[m], ability, slopes, target, value=value)
            else:
                log = sums_by_numbers(
                    xp, *self._numbers(xp), half_gamma[m], half_centre[m], ability, slopes, target, value=value
                )
            if logs is not None:
                logs[m] = log
            if alpha_slopes is not None:
                alpha_slopes[m] = slopes
        return logs, pulls

    def terms(
        self, on: Any, half_gamma: Array, half_centre: Array, alpha: Array, weights: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        xp = namespace_of(alpha)
        logs = xp.zeros_like(alpha)
        slopes = None if weights is None else xp.zeros_like(alpha)
        pulls = None if weights is None else xp.zeros((*half_gamma.shape, 2))
        for students, items, signs in self._pieces(xp):
            for m in range(alpha.shape[0]):
                ability, weight = alpha[m].take(students), half_gamma[m].take(items)
                h = weight * ability + half_centre[m].take(items)
                logs[m] += xp.bincount(students, log_sigmoid(xp, 2.0 * signs * h), self.n_students)
                if weights is not None and slopes is not None and pulls is not None:
                    pull = signs - xp.tanh(h)
                    slopes[m] += xp.bincount(students, weight * pull, self.n_students)
                    pull *= weights[m].take(students)
                    pulls[m, :, 0] += xp.bincount(items, ability * pull, self.n_items)
                    pulls[m, :, 1] += xp.bincount(items, pull, self.n_items)
        return logs, slopes, pulls

    def answers(self) -> Answers:
        return self._answers

    def signs(self) -> np.ndarray:
        found = np.zeros((self.n_items, self.n_students), dtype=np.int8)
        found[self._answers.items, self._answers.students] = self._answers.signs
        return found

    def blocks(self, size: int) -> list[Block]:
        from scipy.sparse import csr_array

        own, shape = self._answers, (self.n_items, self.n_students)
        both = [
            csr_array((values.astype(np.float64), own.students, own.starts), shape=shape).tocsc()
            for values in (own.signs > 0, np.abs(own.signs))
        ]
        both[0].eliminate_zeros()
        parts = (slice(first, first + size) for first in range(0, self.n_students, size))
        return [Block(part, *(matrix[:, part].tocsr() for matrix in both)) for part in parts]

    def _by_blocks(
        self,
        half_gamma: np.ndarray,
        half_centre: np.ndarray,
        ability: np.ndarray,
        slopes: np.ndarray | None,
        pulls: np.ndarray | None,
        *,
        value: bool,
    ) -> float:
        """The log likelihood of one point, 0 without `value`; slopes (J,) are added to, pulls (K, 2) written."""
        from scipy.sparse import csr_array

        log, kind = 0.0, ability.dtype
        half_gamma_here, half_centre = half_gamma.astype(kind), half_centre.astype(kind)
        # h, the abilities, tanh h and the factors of a logarithm
        buffers = np.empty((4, max(block.size for block in self._blocks) + _FACTORS), dtype=kind)
        for block in self._blocks:
            students, signs = self._answers.students[block.answers], self._answers.signs[block.answers]
            h, gathered, pull, _ = buffers[:, : block.size]
            ability.take(students, out=gathered, mode="clip")
            np.multiply(np.repeat(half_gamma_here[block.items], block.counts), gathered, out=h)
            h += np.repeat(half_centre[block.items], block.counts)
            if slopes is None or pulls is None:
                log += _log_likelihood(h, signs, None, buffers[3])
                continue
            np.tanh(h, out=pull)
            if value:
                log += _log_likelihood(h, signs, pull, buffers[3])
            np.subtract(signs, pull, out=pull)
            starts = block.starts[:-1]
            pulls[block.items, 1] = np.add.reduceat(pull, starts, dtype=np.float64)
            shape = len(block.counts), self.n_students
            slopes += csr_array((pull, students, block.starts), shape=shape).T @ half_gamma[block.items]
            pull *= gathered
            pulls[block.items, 0] = np.add.reduceat(pull, starts, dtype=np.float64)
        return log

    def _pieces(self, xp: ModuleType) -> Iterator[tuple[Array, Array, Array]]:
        """Student, item and sign of each answer, for the CPU in pieces that stay in the cache."""
        if xp is not np:
            yield self._numbers(xp)
            return
        for block in self._blocks:
            items = np.repeat(np.arange(block.items.start, block.items.stop), block.counts)
            yield self._answers.students[block.answers], items, self._answers.signs[block.answers]

    def _numbers(self, xp: ModuleType) -> tuple[Array, Array, Array]:
        """Student, item and sign of each answer on a GPU, put there once."""
        kept: dict[str, tuple[Array, Array, Array]] = self.__dict__.setdefault("_device_cache", {})
        if xp.__name__ not in kept:
            answers = self._answers
            students, items, signs = (xp.asarray(a) for a in (answers.students, answers.items, answers.signs))
            kept[xp.__name__] = students, items, signs
        return kept[xp.__name__]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_device_cache"}


class _Block(NamedTuple):
    """The answers of some neighbouring items."""

    items: slice
    answers: slice
    counts: np.ndarray  # of each item
    starts: np.ndarray  # (items + 1,) int32, from 0

    @property
    def size(self) -> int:
        return int(self.answers.stop - self.answers.start)


def _blocks(answers: Answers) -> Iterator[_Block]:
    """Cut the items so that a block's answers stay in the cache, and are more than there are students to add up."""
    starts, limit = answers.starts, max(_BLOCK_ANSWERS, answers.n_students)
    first = 0
    while first < answers.n_items:
        stop = max(first + 1, int(np.searchsorted(starts, starts[first] + limit, side="right")) - 1)
        own = (starts[first : stop + 1] - starts[first]).astype(np.int32)
        theirs = slice(int(starts[first]), int(starts[stop]))
        yield _Block(slice(first, stop), theirs, np.diff(own), own)
        first = stop


def _log_likelihood(h: np.ndarray, signs: np.ndarray, tanh: np.ndarray | None, factors: np.ndarray) -> float:
    """`sum s*h - log(2 cosh h)`; overwrites `h` and `factors`.

    `log(2 cosh h)` is `|h| + log(1 + exp(-2|h|))`, or `|h| + log 2 - log(1 + |tanh h|)` where tanh is known.
    """
    n = h.size
    factors = factors[: -(-n // _FACTORS) * _FACTORS]
    factors[n:] = 0.0
    terms = np.multiply(signs, h, out=factors[:n])
    np.abs(h, out=h)
    terms -= h
    total = float(terms.sum(dtype=np.float64))
    if tanh is None:
        h *= -2.0
        np.exp(h, out=factors[:n])
    else:
        np.abs(tanh, out=factors[:n])
    factors += 1.0
    logs = float(np.log(factors.reshape(_FACTORS, -1).prod(axis=0)).sum(dtype=np.float64))
    return total - logs if tanh is None else total + logs - n * _LOG_2


def log_sigmoid(xp: ModuleType, x: Array) -> Array:
    """`log(1 / (1 + exp(-x)))` without overflow."""
    return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))


def sums_by_numbers(
    xp: ModuleType,
    students: Array,
    items: Array,
    signs: Array,
    half_gamma: Array,
    half_centre: Array,
    ability: Array,
    slopes: Array | None,
    pulls: Array | None,
    *,
    value: bool,
) -> Array | float:
    """What the blocks give, from the numbers of each answer's student and item, in whole arrays, as suits a GPU.

    A GPU adds in no fixed order here: its sums come out the same up to rounding.
    """
    gathered, weight = ability.take(students), half_gamma.take(items)
    h = weight.astype(ability.dtype) * gathered
    h += half_centre.astype(ability.dtype).take(items)
    if slopes is not None and pulls is not None:
        pull = signs - xp.tanh(h)
        slopes += xp.bincount(students, weight * pull, len(slopes))
        pulls[:, 1] = xp.bincount(items, pull, len(pulls))
        pulls[:, 0] = xp.bincount(items, gathered * pull, len(pulls))
    return log_sigmoid(xp, 2.0 * signs * h).sum(dtype=np.float64) if value else 0.0
