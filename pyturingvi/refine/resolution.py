"""How many nodes the integrals over the locals need, and along which globals twice as many still change something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pyturingvi.diagnosis.chained_locals import PIECE
from pyturingvi.diagnosis.integrals import IntegratedDensity, Map
from pyturingvi.diagnosis.integrated import integrals_of
from pyturingvi.diagnosis.nodes import count_of, is_grid
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model
from pyturingvi.optimize.memory import available_memory, refine_bytes
from pyturingvi.refine.proposals import Gaussian
from pyturingvi.refine.tails import LOOKED
from pyturingvi.support.progress_bar import progress_bar

_FIRST_SIZES = {1: 8, 2: 6}  # nodes along each variable of a local, doubled where that changes something
_FIRST_DRAWS = 128


def first_size(local_dim: int) -> int:
    """Nodes along each variable of a local of this many, or draws, that integrals begin with."""
    return _FIRST_SIZES[local_dim] if is_grid(local_dim) else _FIRST_DRAWS


def most_nodes(local_dim: int, size: int | None, *, chain: bool) -> int:
    """Nodes of a local's integral that are had at once: in the end twice the size tells the error of the integrals."""
    return max(2 * PIECE, size or 0) if chain else count_of(local_dim, 2 * (size or first_size(local_dim)))


class Resolution:
    """The integrals of one model around one fit's conditionals, with as many nodes as are asked for.

    Parameters
    ----------
    map_ : callable
        Goes through chunks of globals.
    chain : bool
        Whether the locals are integrated out as a chain.
    """

    def __init__(self, model: Model, parts: GlobalsAndLocals, seed: int, map_: Map, *, chain: bool = False) -> None:
        self.model, self.parts, self.seed, self._map, self.chain = model, parts, seed, map_, chain
        self._bar: Any = None

    def at(self, size: int | None) -> IntegratedDensity:
        """The integrals with so many nodes along each variable, or with as many as they begin with."""
        first = first_size(self.model.layout.local_dim)
        found = integrals_of(self.model, self.parts, size, self.seed, first, chain=self.chain)
        found.map = self._counted
        return found

    @contextmanager
    def bar(self, words: str, progress: bool) -> Iterator[None]:
        """While in this context, a progress bar counts the globals at which the locals have been integrated out."""
        with progress_bar(words, "row", progress, delay=1) as bar:
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def _counted(self, function: Callable[[Any], Any], chunks: Iterable[Any]) -> Iterable[Any]:
        bar = self._bar
        if bar is None:
            return self._map(function, chunks)

        def counted(chunk: Any) -> Any:
            found = function(chunk)
            bar.update(len(chunk))
            return found

        return self._map(counted, chunks)

    def enough(self, integrals: IntegratedDensity, z: np.ndarray) -> tuple[IntegratedDensity, list[str]]:
        """The integrals, or the first with twice, four times, .. the nodes that twice more would not change at z.

        Returns
        -------
        integrals : IntegratedDensity
        problems : list of str
            What is wrong where no number of nodes that fits is enough.
        """
        here = integrals.log_density(z)
        while True:
            double = 2 * integrals.size
            count = integrals.count(double)
            if count > integrals.most or refine_bytes(self.model.layout, count, 0) > available_memory():
                return integrals, [
                    f"The integrals over the locals still change with the number of nodes, which is {integrals.size}; "
                    "the locals may have tails or modes that no such nodes see."
                ]
            finer = self.at(double)
            there = finer.log_density(z)
            if float(np.std(there - here)) <= integrals.tolerance:
                return integrals, []
            integrals, here = finer, there

    def coarse(self, integrals: IntegratedDensity, finer: IntegratedDensity, q: Gaussian, top: float) -> list[str]:
        """Globals along which twice the nodes change the density far out, where a tail would be hidden or made up.

        Looked at to either side of the mean of q, the others as they go with it, where the density is not too far below
        `top`.
        """
        z = np.concatenate([q.place(t * q.along) for t in (*-LOOKED, *LOOKED)])
        here, there = integrals.log_density(z), finer.log_density(z)
        change = there - here
        off = (np.abs(change - np.median(change)) > integrals.far) & (np.fmax(here, there) > top - integrals.low)
        which = off.reshape(-1, len(q.mean)).any(axis=0)
        return [label for label, coarse in zip(self.model.global_labels, which, strict=True) if coarse]
