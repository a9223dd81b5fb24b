"""How the item response model keeps its answers: a table with a place for every pair, or a list of the answers alone.

Both give the same sums of the Bernoulli-logit likelihood. A table has whole rows to work on and, where it is complete,
needs no pass over its places at all (`irt_panels`); a list costs time and memory for the answers that there are. Which
one is faster is a matter of the share of places with an answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from pyturingvi.models.irt_answers import Answers, Block
from pyturingvi.models.irt_likelihood import complete_terms, even_part, signed_sums, terms_by_cells
from pyturingvi.models.irt_responses import MISSING
from pyturingvi.models.irt_sparse import SparseTable
from pyturingvi.support.array_namespace import Array, namespace_of

# A place of a table costs this share of what an answer of a list costs (benchmarks/sparse_answers.py).
_SPARSE_BELOW = 0.2
# A table this small takes no more time than the calls around it.
_SMALL_CELLS = 1 << 14

# The model's data where the points are, in their precision: `Model._on` for given points.
OnPoints = Callable[..., tuple[Array, ...]]


class ResponseTable(Protocol):
    """The answers and their likelihood, with half logits `h = (gamma*alpha + beta + mu)/2` and signs s = +-1."""

    n_students: int
    n_items: int
    n_answers: int
    work: int  # places or answers that one log density visits

    def evaluate(
        self,
        on: OnPoints,
        half_gamma: Array,
        half_centre: Array,
        alpha: Array,
        alpha_slopes: Array | None,
        *,
        value: bool,
    ) -> tuple[Array | None, Array | None]:
        """Log likelihood and its derivatives at M points.

        Parameters
        ----------
        on : callable
            Gives arrays of the model where the points are.
        half_gamma, half_centre : (M, K) float64 arrays
            `gamma/2` and `(beta + mu)/2`.
        alpha : (M, J) array
        alpha_slopes : (M, J) array or None
            `sum_k half_gamma_k (s - tanh h) - alpha` is written into it; None leaves the gradient out.
        value : bool
            Whether the log likelihood is wanted.

        Returns
        -------
        logs : (M,) float64 array or None
            Sum of `s*h - log(2 cosh h)` over the answers.
        pulls : (M, K, 2) float64 array or None
            `sum_j alpha_j (s - tanh h)` and `sum_j (s - tanh h)`, with the gradient only.
        """

    def terms(
        self, on: OnPoints, half_gamma: Array, half_centre: Array, alpha: Array, weights: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Log likelihood of each student, and the derivatives of its weighted sum over the students.

        Parameters
        ----------
        half_gamma, half_centre : (M, K) float64 arrays
        alpha : (M, J) float64 array
        weights : (M, J) array or None
            None leaves the derivatives out.

        Returns
        -------
        logs : (M, J) array
            Log probability of each student's answers.
        slopes : (M, J) array or None
            Its derivative in the ability, without the weights: `sum_k half_gamma_k (s - tanh h)`.
        pulls : (M, K, 2) array or None
            `sum_j w_j alpha_j (s - tanh h)` and `sum_j w_j (s - tanh h)`.
        """

    def answers(self) -> Answers:
        """The answers, item by item."""

    def signs(self) -> np.ndarray:
        """All places as a (K, J) int8 array: +1 right, -1 wrong, 0 missing."""

    def blocks(self, size: int) -> list[Block]:
        """The answers of so many students at a time."""


def table_of_codes(codes: np.ndarray) -> ResponseTable:
    """The form that suits a (J, K) table of 1 right, 0 wrong and -1 missing."""
    n_answers = int(np.count_nonzero(codes != MISSING))
    if _is_sparse(n_answers, codes.shape):
        return SparseTable(Answers.of_codes(codes))
    return DenseTable(codes)


def table_of_answers(answers: Answers) -> ResponseTable:
    """The form that suits a list of answers."""
    shape = answers.n_students, answers.n_items
    return SparseTable(answers) if _is_sparse(answers.n_answers, shape) else DenseTable(answers.codes())


def _is_sparse(n_answers: int, shape: tuple[int, ...]) -> bool:
    n_cells = shape[0] * shape[1]
    return n_cells > _SMALL_CELLS and n_answers < _SPARSE_BELOW * n_cells


class DenseTable:
    """A place for every pair of student and item."""

    def __init__(self, codes: np.ndarray) -> None:
        # One byte a place, items first, which is how the sums run.
        signs = np.where(codes == MISSING, 0, 2 * codes - 1).astype(np.int8)
        self._signs = np.ascontiguousarray(signs.T)
        self.complete = bool(self._signs.all())
        self._right_minus_wrong = self._signs.sum(axis=1, dtype=np.float64)
        self.n_items, self.n_students = self._signs.shape
        self.n_answers = int(np.count_nonzero(self._signs))
        # a complete table is summed panel by panel
        self.work = self.n_students + 3 + 2 * self.n_items if self.complete else int(self._signs.size)

    def evaluate(
        self,
        on: OnPoints,
        half_gamma: Array,
        half_centre: Array,
        alpha: Array,
        alpha_slopes: Array | None,
        *,
        value: bool,
    ) -> tuple[Array | None, Array | None]:
        xp = namespace_of(alpha)
        (signs,) = on(signs=self._signs)
        mask = None if self.complete else on(mask=np.abs(self._signs))[0]
        right_minus_wrong = xp.asarray(self._right_minus_wrong)
        alpha_sums = signed_sums(xp, signs, alpha)
        if alpha_slopes is not None:
            alpha_slopes[...] = half_gamma.astype(alpha.dtype) @ signs
            alpha_slopes -= alpha
        logs, pulls = even_part(xp, half_gamma, half_centre, alpha, mask, alpha_slopes, value=value)
        if logs is not None:
            logs = (half_gamma * alpha_sums).sum(axis=1) + half_centre @ right_minus_wrong - logs
        if pulls is not None:
            xp.subtract(alpha_sums, pulls[:, :, 0], out=pulls[:, :, 0])
            xp.subtract(right_minus_wrong, pulls[:, :, 1], out=pulls[:, :, 1])
        return logs, pulls

    def terms(
        self, on: OnPoints, half_gamma: Array, half_centre: Array, alpha: Array, weights: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        xp = namespace_of(alpha)
        (signs,) = on(signs=self._signs)
        if xp is not np or not self.complete:
            return terms_by_cells(xp, half_gamma, half_centre, alpha, signs, weights)
        # neighbouring points often have the same items and other abilities: the nodes of an integral
        same = (half_gamma[1:] == half_gamma[:-1]).all(axis=1) & (half_centre[1:] == half_centre[:-1]).all(axis=1)
        bounds = [0, *(np.flatnonzero(~same) + 1).tolist(), len(alpha)]

        def rows_of(first: int, stop: int) -> tuple[Array, Array, Array, Array, Array | None]:
            rows = slice(first, stop)
            return half_gamma[rows], half_centre[rows], alpha[rows], signs, None if weights is None else weights[rows]

        found = []
        for first, stop in itertools.pairwise(bounds):
            gamma, centre, *rest = rows_of(first, stop)
            found.append((first, stop, complete_terms(gamma[0], centre[0], *rest)))
        parts: list[tuple[Array, Array | None, Array | None]] = []
        for _, group in itertools.groupby(found, lambda one: one[2] is None):
            those = list(group)
            # points for which panels do not pay, as those of a small table, are taken together
            parts += [one for *_, one in those if one is not None] or [
                terms_by_cells(xp, *rows_of(those[0][0], those[-1][1]))
            ]
        logs, slopes, pulls = zip(*parts, strict=True)
        if weights is None:
            return np.concatenate(logs), None, None
        return np.concatenate(logs), np.concatenate(slopes), np.concatenate(pulls)

    def answers(self) -> Answers:
        return Answers.of_codes(self.codes())

    def signs(self) -> np.ndarray:
        return self._signs

    def blocks(self, size: int) -> list[Block]:
        found = []
        for first in range(0, self.n_students, size):
            own = self._signs[:, first : first + size]
            found.append(Block(slice(first, first + size), own > 0, None if self.complete else own != 0))
        return found

    def codes(self) -> np.ndarray:
        """The (J, K) int8 table: 1 right, 0 wrong, -1 missing."""
        return codes_of_signs(self._signs)


def codes_of_signs(signs: np.ndarray) -> np.ndarray:
    """The (J, K) table of 1 right, 0 wrong and -1 missing of a (K, J) one of signs."""
    across = signs.T
    return np.where(across == 0, MISSING, across > 0).astype(np.int8)
