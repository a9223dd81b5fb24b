"""Abilities integrated out on one grid of nodes for all students (marginal likelihood: Bock and Aitkin, 1981).

Given the items every ability has the prior N(0, 1), whoever the student, so that the same nodes t serve all. The log
likelihood of a student's answers y at a node is `t (y . gamma) + y . centre` less the softplus of the logits of the
items answered: a table of items by nodes, and matrix products. Where everybody has answered every item the last sum is
the same for all, and a student's score `y . gamma` is all that counts.

Posteriors of abilities are so smooth that a plain sum over equidistant nodes is their integral: its error falls as
exp(-2 pi^2 / h^2) with a step of h standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyturingvi.models.irt_answers import Block
from pyturingvi.models.parts import LOG_2PI

if TYPE_CHECKING:
    from pyturingvi.models.irt import ItemResponse

_STEP = 1.25  # in standard deviations of the narrowest posterior: an error of 3e-6 there, and less for all others
_FEWEST = 40  # nodes of a grid: more than wide posteriors need, for items far steeper than the fit has them
_CELLS = 1 << 18  # of nodes and students at a time: a buffer that stays in cache
_KEPT = 1 << 22  # places of a table that is kept in float64 too: at most 64 MiB
_FINER = 8  # a draw is uniform within a cell, an eighth of a step of the integrals wide
_LARGEST = 4096


def grid_for(mean: np.ndarray, sd: np.ndarray, size: int | None = None) -> np.ndarray:
    """Equidistant nodes (Q,) for posteriors of these means and standard deviations (J,), `size` of them if given.

    Steps of h standard deviations err by exp(-2 pi^2/h^2), and a grid that ends c of them from a mean by exp(-c^2/2):
    the same with c = 2 pi/h.
    """

    def ends(step: float) -> tuple[float, float]:
        reach = 2 * math.pi / step * sd
        return float((mean - reach).min()), float((mean + reach).max())

    def count(step: float) -> int:
        low, high = ends(step)
        return int(min(_LARGEST, math.ceil((high - low) / (step * sd.min())) + 1))

    size = max(_FEWEST, count(_STEP)) if size is None else size
    narrow, wide = 1e-2, 1e2
    for _ in range(50):
        step = math.sqrt(narrow * wide)
        narrow, wide = (step, wide) if count(step) > size else (narrow, step)
    return np.linspace(*ends(wide), size)


class AbilityIntegrals:
    """The log density of the items with every student's ability integrated out.

    Parameters
    ----------
    model : ItemResponse
    grid : (Q,) array
        Equidistant nodes.

    Attributes
    ----------
    size : int
        Number of nodes Q.
    row_bytes : int
        That are worked on for each z.
    """

    def __init__(self, model: ItemResponse, grid: np.ndarray) -> None:
        self.model, self.t, self.size = model, grid, len(grid)
        self._step = float(grid[1] - grid[0])
        self._blocks = model._table.blocks(max(1, _CELLS // len(grid)))
        if model.n_students * model.n_items <= _KEPT:
            self._blocks = [block.in_floats() for block in self._blocks]
        self._n_right = sum(block.right.sum(axis=1) for block in self._blocks)
        self._prior = 0.5 * (grid**2 + LOG_2PI) - math.log(self._step)
        self._powers = np.stack([np.ones_like(grid), grid, grid**2])
        self.row_bytes = 8 * (4 * model.n_items * len(grid) + 2 * model.n_students)

    def evaluate(self, z: np.ndarray, *, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Log density (m,) at globals z (m, d_z), and its gradient (m, d_z) if that is wanted.

        By Fisher's identity the gradient rests on each student's expected ability, and on the numbers of students that
        are expected at each node: of those who answered the item, where not all have.
        """
        model = self.model
        with np.errstate(all="ignore"):
            items = _Items.at(model, z, self.t)
            total = model._global_term(z) + items.centre @ self._n_right
            expected = np.zeros((len(z), model.n_items, 2))  # sums of ability times answer, and of answers
            expected[:, :, 1] = self._n_right
            for block in map(Block.in_floats, self._blocks):
                scores = items.gamma @ block.right
                means = np.empty_like(scores)
                counts = np.empty((len(z), 1 if block.answered is None else model.n_items, self.size))
                for row, (weights, largest) in enumerate(self._weights(items, block, scores)):
                    sums, first = self._powers[:2] @ weights
                    total[row] += (np.log(sums) + largest).sum()
                    if gradient:
                        means[row] = first / sums
                        counts[row] = block.counts(weights, 1 / sums)
                if gradient:
                    expected[:, :, 0] += means @ block.right.T
                    expected -= (items.slopes * counts) @ self._powers[1::-1].T
            if not gradient:
                return total, None
            out = np.empty_like(z)
            precision = np.exp(-2 * z[:, 1:3])
            chi = precision * model._squares(z)
            model._global_gradient(z, 0.5 * items.gamma, 2 * expected, precision, chi, out)
        return total, out

    def moments(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance, both (m, J), of each ability given the globals z (m, d_z) and the answers."""
        found = np.empty((2, len(z), self.model.n_students))
        with np.errstate(all="ignore"):
            items = _Items.at(self.model, z, self.t)
            for block in map(Block.in_floats, self._blocks):
                scores = items.gamma @ block.right
                for row, (weights, _) in enumerate(self._weights(items, block, scores)):
                    sums, first, second = self._powers @ weights
                    mean = first / sums
                    found[:, row, block.students] = mean, second / sums - mean**2
        return found[0], found[1]

    def draw(self, z: np.ndarray, source: np.random.Generator) -> np.ndarray:
        """An ability (m, J) of each student for each of the globals z (m, d_z), given these and the answers."""
        fine = AbilityIntegrals(self.model, np.linspace(self.t[0], self.t[-1], _FINER * (self.size - 1) + 1))
        found = np.empty((len(z), self.model.n_students))
        with np.errstate(all="ignore"):
            for place in range(len(z)):
                items = _Items.at(self.model, z[place : place + 1], fine.t)
                for block in map(Block.in_floats, fine._blocks):
                    ((weights, _),) = fine._weights(items, block, items.gamma @ block.right)
                    mass = np.cumsum(weights, axis=0, out=weights)
                    chosen = (mass < source.uniform(size=mass.shape[1]) * mass[-1]).sum(axis=0)
                    within = source.uniform(-0.5, 0.5, size=len(chosen))
                    found[place, block.students] = fine.t[np.minimum(chosen, fine.size - 1)] + fine._step * within
        return found

    def _weights(self, items: _Items, block: Block, scores: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each z the weights (Q, n) of the nodes, 1 where largest, and logs (n,) of what they were divided by.

        The next ones overwrite them.
        """
        out = np.empty((self.size, scores.shape[1]))
        for row, score in enumerate(scores):
            if block.answered is None:
                base = items.softplus[row].sum(axis=0) + self._prior
                # convex in t: its slope passes the score where `t score - base` is largest
                best = np.searchsorted(np.diff(base) / self._step, score)
                largest = self.t[best] * score - base[best]
                rows, columns = np.stack([self.t, -np.ones_like(base), -base]), np.stack([score, largest, score**0])
                np.matmul(rows.T, columns, out=out)
            else:
                np.multiply(self.t[:, None], score, out=out)
                out -= items.softplus[row].T @ block.answered
                out -= self._prior[:, None]
                largest = out.max(axis=0)
                out -= largest
            yield np.exp(out, out=out), largest


class _Items(NamedTuple):
    """The items at some globals: discriminations and intercepts (m, K), and of the logits of an ability at each node
    the softplus, which is minus the log probability of a wrong answer, and its slope (m, K, Q)."""

    gamma: np.ndarray
    centre: np.ndarray
    softplus: np.ndarray
    slopes: np.ndarray

    @classmethod
    def at(cls, model: ItemResponse, z: np.ndarray, t: np.ndarray) -> _Items:
        items = model._constrain_global(z)
        gamma, centre = items["gamma"], model._intercepts(items)
        logits = gamma[:, :, None] * t + centre[:, :, None]
        small = np.exp(-np.abs(logits))
        softplus = np.maximum(logits, 0.0) + np.log(1.0 + small)  # the sums over items have no use for log1p's digits
        return cls(gamma, centre, softplus, np.where(logits > 0, 1.0, small) / (1.0 + small))
