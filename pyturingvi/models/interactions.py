"""Which variables of a log density touch each other: some are moved, and the gradient is watched elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pyturingvi.errors import InputError

APART, CHAINED, CROSSED = 0, 1, 2  # blocks that never touch; that touch their neighbours only; that touch others too
_ROWS = 16  # points in a call of the gradient, always: a function that is compiled for a size is compiled once
_FEW, _MANY = 8, 40  # probes that end most vain attempts, and those after which a pair has hidden with odds of 1e-4
_SHARE = 0.25  # of the blocks that a probe moves
_SPREADS = (0.3, 0.03, 0.003, 0.0)  # around 0: the first at which the gradient is finite
_LEAST_STEP = 1e-3
_RELATIVE, _ROUNDING = 1e-6, 1e-11  # of what moving a variable does to its own gradient, and of the gradient itself


@dataclass(frozen=True)
class Variable:
    """An array of unconstrained numbers under one name; its elements stand in C order in the flat vector.

    Parameters
    ----------
    name : str
    shape : tuple of int
        In unconstrained space.
    axes : tuple of str
        A name for each axis, "" where it has none.
    first : int
        What its indices count from in messages: 1 for Julia's.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...] = ()
    first: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def part(self, index: dict[int, int]) -> str:
        """Its name with the index along some of its axes, e.g. `z[:,3]`."""
        if not self.shape:
            return self.name
        shown = (str(index[axis] + self.first) if axis in index else ":" for axis in range(len(self.shape)))
        return f"{self.name}[{','.join(shown)}]"


def split(flat: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Arrays (..., *shape) by name, whose elements stand one after the other in the last axis of `flat`."""
    found, offset = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        found[name] = flat[..., offset : offset + size].reshape((*flat.shape[:-1], *shape))
        offset += size
    return found


@dataclass(frozen=True)
class Member:
    """A variable cut into blocks along some of its axes."""

    place: int  # of the variable, among all
    variable: Variable
    axes: tuple[int, ...]
    offset: int  # of the variable in the flat vector

    @cached_property
    def n_blocks(self) -> int:
        return math.prod(self.variable.shape[axis] for axis in self.axes)

    @cached_property
    def coordinates(self) -> np.ndarray:
        """Places in the flat vector, (n_blocks, elements of a block)."""
        places = self.offset + np.arange(self.variable.size).reshape(self.variable.shape)
        return np.moveaxis(places, self.axes, range(len(self.axes))).reshape(self.n_blocks, -1)

    @property
    def index_name(self) -> str:
        """What the blocks are counted by: the names of the axes."""
        names = [self.variable.axes[axis] for axis in self.axes] if self.variable.axes else []
        return " and ".join(names) if all(names) else ""

    def block_name(self, n: int) -> str:
        """The block's part of the variable, e.g. `theta[3]`."""
        index = np.unravel_index(n, [self.variable.shape[axis] for axis in self.axes])
        return self.variable.part({axis: int(one) for axis, one in zip(self.axes, index, strict=True)})


def members(variables: Sequence[Variable]) -> Iterator[Member]:
    """Each way to cut each variable into at least two blocks."""
    offset = 0
    for place, variable in enumerate(variables):
        long = [axis for axis, size in enumerate(variable.shape) if size > 1]
        for count in range(1, len(long) + 1):
            if 1 < count < len(long) and len(long) > 3:
                continue
            for axes in itertools.combinations(long, count):
                yield Member(place, variable, axes, offset)
        offset += variable.size


class Interactions:
    """Tells by probes which blocks of variables touch each other in a log density.

    Two coordinates touch where moving one changes the gradient with respect to the other. A probe moves a quarter of
    the blocks of one variable, by steps at random, so that one gradient tells of very many pairs. That a pair hides
    from all probes is a matter of chance, with odds that shrink with each of them.

    Parameters
    ----------
    gradient : callable
        Of points (M, d), the gradient (M, d) of the log density.
    variables : sequence of Variable
        In the order in which they stand in the point.
    who : str
        How messages begin.

    Raises
    ------
    InputError
        If the gradient is not finite at 0.
    """

    def __init__(
        self, gradient: Callable[[np.ndarray], np.ndarray], variables: Sequence[Variable], who: str = "structure"
    ) -> None:
        self._gradient, self.variables, self._who = gradient, list(variables), who
        self.dim = sum(variable.size for variable in variables)
        self._rng = np.random.default_rng(0)
        self._kept: dict[tuple[int, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] = {}
        self._settle()

    # ---- where ----------------------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Two points near 0 with a finite gradient, a length of step, and what counts as a change of the gradient."""
        ends = np.cumsum([variable.size for variable in self.variables])
        for spread in _SPREADS:
            self._step = max(spread, _LEAST_STEP)
            self._bases = spread * self._rng.standard_normal((2, self.dim))
            self._slopes = self._at(self._bases)
            if not np.isfinite(self._slopes).all():
                continue
            steps = np.zeros((2 * len(self.variables), self.dim))
            for k, (end, variable) in enumerate(zip(ends, self.variables, strict=True)):
                own = slice(end - variable.size, end)
                steps[2 * k : 2 * k + 2, own] = self._random_steps((2, variable.size))
            changes = self._changes(steps)
            if np.isfinite(changes).all() or spread == 0.0:
                break
        else:
            bad = ~np.isfinite(self._slopes[0])
            raise InputError(
                f"{self._who}: the gradient of the log density is not finite at 0, in {int(bad.sum())} of {self.dim} "
                f"entries, the first in {self._name_of(int(np.argmax(bad)))}. Check the data and the priors; in "
                "unconstrained space the log density must be finite everywhere."
            )
        own_change = np.zeros(self.dim)
        for k, (end, variable) in enumerate(zip(ends, self.variables, strict=True)):
            own = slice(end - variable.size, end)
            own_change[own] = np.nan_to_num(np.abs(changes[2 * k : 2 * k + 2, own]).max(axis=0))
        self._tolerance = _RELATIVE * own_change + _ROUNDING * np.abs(self._slopes).max(axis=0)

    def _name_of(self, coordinate: int) -> str:
        for variable in self.variables:
            if coordinate < variable.size:
                return variable.part(dict(enumerate(map(int, np.unravel_index(coordinate, variable.shape)))))
            coordinate -= variable.size
        raise IndexError(coordinate)

    def _at(self, points: np.ndarray) -> np.ndarray:
        """The gradient at points, a fixed number of them a call."""
        found = np.empty_like(points)
        for first in range(0, len(points), _ROWS):
            piece = points[first : first + _ROWS]
            full = np.concatenate([piece, np.repeat(piece[-1:], _ROWS - len(piece), axis=0)])
            with np.errstate(all="ignore"):
                found[first : first + _ROWS] = self._gradient(full)[: len(piece)]
        return found

    def _changes(self, steps: np.ndarray) -> np.ndarray:
        """Changes (K, d) of the gradient after steps (K, d), from one base and the other in turn."""
        which = np.arange(len(steps)) % 2
        with np.errstate(all="ignore"):
            return np.asarray(self._at(self._bases[which] + steps) - self._slopes[which])

    def _random_steps(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray(self._step * self._rng.uniform(0.5, 1.5, shape) * self._rng.choice([-1.0, 1.0], shape))

    # ---- which blocks ---------------------------------------------------------------------------------------
    def _probes(self, member: Member, count: int) -> tuple[np.ndarray, np.ndarray]:
        """At least `count` probes of a member: steps (K, d), and whether each entry of the gradient changed (K, d)."""
        key = member.place, member.axes
        steps, moved = self._kept.get(key, (np.empty((0, self.dim)), np.empty((0, self.dim), dtype=bool)))
        if len(steps) < count:
            more = np.zeros((count - len(steps), self.dim))
            chosen = self._rng.uniform(size=(len(more), member.n_blocks)) < _SHARE
            drawn = self._random_steps((len(more), *member.coordinates.shape))
            more[:, member.coordinates] = chosen[:, :, None] * drawn
            changed = np.abs(self._changes(more)) > self._tolerance
            self._kept[key] = steps, moved = np.concatenate([steps, more]), np.concatenate([moved, changed])
        return steps, moved

    def _far(self, first: Member, second: Member, count: int, reach: int) -> np.ndarray:
        """Whether (K, n_blocks) a block of `second` changed that lies farther than `reach` from all moved ones."""
        steps, moved = self._probes(first, count)
        near = np.asarray(steps[:, first.coordinates].any(axis=2))
        if reach:
            inner = near.copy()
            near[:, 1:] |= inner[:, :-1]
            near[:, :-1] |= inner[:, 1:]
        return np.asarray(moved[:, second.coordinates].any(axis=2) & ~near)

    def relation(self, first: Member, second: Member) -> int:
        """APART, CHAINED or CROSSED: how the blocks of two members with equally many touch at other indices."""
        for count in (_FEW, _MANY):
            pairs = [(first, second)] if first == second else [(first, second), (second, first)]
            if any(self._far(one, other, count, 1).any() for one, other in pairs):
                return CROSSED
        near = any(self._far(one, other, _MANY, 0).any() for one, other in pairs)
        return CHAINED if near else APART

    def pair(self, first: Member, second: Member, reach: int) -> tuple[str, str]:
        """Names of a block of each that touch farther apart than `reach`, as `relation` found there are."""
        for one, other in ((first, second), (second, first)):
            far = self._far(one, other, _MANY, reach)
            if far.any():
                k, m = (int(index) for index in np.argwhere(far)[0])
                step = self._probes(one, _MANY)[0][k]
                blocks = np.flatnonzero(step[one.coordinates].any(axis=1))
                while len(blocks) > 1:
                    half = blocks[: len(blocks) // 2]
                    blocks = half if self._changes_at(one, half, step, other, m, k) else blocks[len(half) :]
                return one.block_name(int(blocks[0])), other.block_name(m)
        raise ValueError("these members do not touch so far apart")

    def _changes_at(self, one: Member, blocks: np.ndarray, step: np.ndarray, other: Member, m: int, k: int) -> bool:
        """Whether the step of these blocks alone changes the gradient at block m, from the base of probe k."""
        part = np.zeros((2, self.dim))  # both bases; the one of probe k counts
        places = one.coordinates[blocks]
        part[:, places] = step[places]
        places = other.coordinates[m]
        return bool((np.abs(self._changes(part)[k % 2, places]) > self._tolerance[places]).any())
