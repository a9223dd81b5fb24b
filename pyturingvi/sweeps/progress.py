"""Cells done and time left, weighed by what the cells are expected to cost."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any


class SweepProgress:
    """A bar of cells, with the time left as far as finished cells tell it.

    Parameters
    ----------
    n_cells, n_done : int
        All cells, and those done in earlier calls.
    show : bool
    """

    def __init__(self, n_cells: int, n_done: int, show: bool) -> None:
        self._cost = self._seconds = 0.0  # of the cells that finished, in earlier calls too
        self._now_seconds, self._start = 0.0, time.monotonic()  # of this call
        self._counts: Counter[str] = Counter()
        self._shown = 0.0
        self._on_screen = sys.stderr is not None and sys.stderr.isatty()
        self._bar: Any = None
        if show and sys.stderr is not None:  # which a program without a console does not have
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=n_cells,
                initial=n_done,
                desc="sweep",
                unit="cell",
                dynamic_ncols=True,
                bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} cells, {elapsed} passed{postfix}",
                mininterval=0.2 if self._on_screen else 10.0,
            )

    def learn(self, cost: float, seconds: float, earlier: bool = False) -> None:
        """A cell of this expected cost took so many seconds, in this call or in an earlier one."""
        self._cost += cost
        self._seconds += seconds
        self._now_seconds += 0.0 if earlier else seconds

    def count(self, status: str) -> None:
        """A cell is done."""
        self._counts[status] += 1
        if self._bar is not None:
            self._bar.update(1)

    def seconds_left(
        self, waiting: list[float], running: list[tuple[float, float]], n_parallel: float | None
    ) -> float | None:
        """Estimate of the time left; None as long as no cell has finished.

        Parameters
        ----------
        waiting : list of float
            Expected costs of cells that have not begun.
        running : list of (float, float)
            Expected costs of those at work, and the seconds since they were handed out.
        n_parallel : float or None
            Cells at work at a time. None where only an executor knows: then as many as there were on average so far,
            and nobody tells which of those handed out have begun.
        """
        if not self._cost:
            return None
        if n_parallel is None:
            waiting, running = waiting + [cost for cost, _ in running], []
            n_parallel = max(1.0, self._now_seconds / max(time.monotonic() - self._start, 1e-9))
        rate = self._seconds / self._cost
        left = [rate * cost for cost in waiting] + [max(rate * cost - since, 0.0) for cost, since in running]
        return max(sum(left) / n_parallel, max(left, default=0.0))

    def is_due(self) -> bool:
        """Whether to draw the bar anew: once a second."""
        return self._bar is not None and time.monotonic() - self._shown >= 1.0

    def show(self, seconds_left: float | None) -> None:
        """Draw the bar anew."""
        self._shown = time.monotonic()
        words = [f"{count} {status}" for status, count in sorted(self._counts.items()) if status != "completed"]
        if seconds_left is not None:
            words.append(f"about {duration(seconds_left)} left")
        self._bar.set_postfix_str(", ".join(words), refresh=self._on_screen)

    def tell(self, words: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.write(f"pyturingvi: {words}")

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(f"{n} {status}" for status, n in sorted(self._counts.items())))
            self._bar.close()


def duration(seconds: float) -> str:
    """In the largest unit that leaves two figures, e.g. '45 s', '12 min', '3.5 h'."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h"
