"""What a sampler gives back, whichever it is, and its progress bar."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np


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
    from tqdm.auto import tqdm

    shown = progress and sys.stderr is not None  # a program without a console has none
    interval = 0.2 if shown and sys.stderr.isatty() else 10.0  # a log file wants few lines
    return tqdm(
        total=total,
        desc=f"{label} NUTS",
        unit="step",
        dynamic_ncols=True,
        mininterval=interval,
        disable=not shown,
    )


def show(bar: Any, done: int, words: str) -> None:
    """Move the bar to `done` steps of every chain."""
    bar.set_postfix_str(words, refresh=False)
    bar.update(done - bar.n)
