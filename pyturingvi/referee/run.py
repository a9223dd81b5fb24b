"""What a sampler gives back, whichever it is, and its progress bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.support.progress_bar import progress_bar


@dataclass(frozen=True)
class NutsRun:
    """Draws of all chains.

    Attributes
    ----------
    points : (n_chains, n_draws, d) array
    divergent : (n_chains, n_draws) bool array
    tree_depth : (n_chains, n_draws) int array
    step_size : (n_chains,) array
    n_tuned : int
        Steps of the warm-up that each chain has made.
    failure : str
        What the model threw, and where; empty if it did not.
    """

    points: np.ndarray
    divergent: np.ndarray
    tree_depth: np.ndarray
    step_size: np.ndarray
    n_tuned: int
    failure: str = ""

    @classmethod
    def without_draws(cls, n_chains: int, dim: int, n_tuned: int, failure: str) -> NutsRun:
        """A run that ended in its warm-up."""
        none = np.empty((n_chains, 0))
        return cls(np.empty((n_chains, 0, dim)), none, none, np.empty(n_chains), n_tuned, failure)


def bar_of(label: str, total: int, progress: bool) -> Any:
    """A progress bar over the steps of a run."""
    return progress_bar(f"{label} NUTS", "step", progress, total=total)


def show(bar: Any, done: int, words: str) -> None:
    """Move the bar to `done` steps of every chain."""
    bar.set_postfix_str(words, refresh=False)
    bar.update(done - bar.n)
