"""The answers of a table of responses as a list, item by item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pyturingvi.models.irt_responses import MISSING


@dataclass(frozen=True)
class Answers:
    """Answers sorted by item and, of one item, by student; five bytes each.

    Attributes
    ----------
    n_students : int
    starts : (K + 1,) int64 array
        Those of item k are number `starts[k]` to `starts[k + 1]`.
    students : (n,) int32 array
        Number of the student.
    signs : (n,) int8 array
        +1 right, -1 wrong.
    """

    n_students: int
    starts: np.ndarray
    students: np.ndarray
    signs: np.ndarray

    @property
    def n_items(self) -> int:
        return len(self.starts) - 1

    @property
    def n_answers(self) -> int:
        return len(self.students)

    @property
    def items(self) -> np.ndarray:
        """Number of the item of each answer, (n,) int32."""
        return np.repeat(np.arange(self.n_items, dtype=np.int32), np.diff(self.starts))

    @classmethod
    def of_codes(cls, codes: np.ndarray) -> Answers:
        """The answers of a (J, K) table of 1 right, 0 wrong and -1 missing."""
        across = np.ascontiguousarray(codes.T)
        there = across != MISSING
        students = np.nonzero(there)[1].astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        return cls(codes.shape[0], starts, students, (2 * across[there] - 1).astype(np.int8))

    def codes(self) -> np.ndarray:
        """The (J, K) int8 table: 1 right, 0 wrong, -1 missing."""
        codes = np.full((self.n_students, self.n_items), MISSING, dtype=np.int8)
        codes[self.students, self.items] = self.signs > 0
        return codes

    def placed(self, places: np.ndarray, n_items: int) -> Answers:
        """The same answers among `n_items` items, of which item k becomes number `places[k]`."""
        items = np.asarray(places)[self.items]
        order = np.argsort(items, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=n_items))])
        return Answers(self.n_students, starts, self.students[order], self.signs[order])

    def to_state(self) -> dict[str, Any]:
        """What a file holds of them."""
        return {"n_students": self.n_students, "starts": self.starts, "answerers": self.students, "signs": self.signs}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Answers:
        """Inverse of `to_state`; a ValueError where the arrays do not belong together."""
        found = cls(int(state["n_students"]), *(np.asarray(state[key]) for key in ("starts", "answerers", "signs")))
        n = found.n_answers
        if not (
            found.starts[0] == 0 and found.starts[-1] == n == len(found.signs) and (np.diff(found.starts) > 0).all()
        ):
            raise ValueError("its answers are not those of a table")
        if n and not 0 <= found.students.min() <= found.students.max() < found.n_students:
            raise ValueError("its answers are of students that it does not have")
        return found


class Block(NamedTuple):
    """The answers of some neighbouring students, items first: matrices of True and False, or sparse ones of 1."""

    students: slice
    right: Any
    answered: Any  # None where all are

    def in_floats(self) -> Block:
        """The same in float64, as sums of products want it."""
        both = (None if one is None else one.astype(np.float64, copy=False) for one in (self.right, self.answered))
        return Block(self.students, *both)

    def counts(self, weights: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Sums of weights (Q, n) of nodes times factors (n,) over the students who answered an item, (K or 1, Q)."""
        if self.answered is None:
            return np.asarray(weights @ factors)[None]
        return np.asarray(self.answered @ (weights * factors).T)
