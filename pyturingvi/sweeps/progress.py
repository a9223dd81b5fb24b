"""A bar of cells, weighed by what they are expected to cost."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed} passed, {remaining} left{postfix}"
_USUAL = ("converged", "completed")  # not said


class SweepProgress:
    """Cells done, and the time left as far as the cells of this call tell it.

    `costs` and `to_do` are the expected costs of all cells and of those that are not done.
    """

    def __init__(self, costs: Iterable[float], to_do: Iterable[float], show: bool) -> None:
        from tqdm.auto import tqdm

        whole, left = list(costs), list(to_do)
        self._n_cells, self._n_done = len(whole), len(whole) - len(left)
        self._counts: Counter[str] = Counter()
        self._on_screen = sys.stderr is not None and sys.stderr.isatty()
        self._refreshed = 0.0
        self._bar: Any = tqdm(
            total=sum(whole),
            initial=sum(whole) - sum(left),
            desc="sweep",
            dynamic_ncols=True,
            bar_format=_FORMAT,
            smoothing=0,  # the time left goes by all cells of this call, not by the last ones
            mininterval=0.2 if self._on_screen else 10.0,
            disable=not (show and left) or sys.stderr is None,  # which a program without a console does not have
        )
        self._tell_counts()

    def count(self, status: str, cost: float) -> None:
        """A cell of this expected cost is done."""
        self._counts[status] += 1
        self._n_done += 1
        self._tell_counts()
        self._bar.n = min(self._bar.n + cost, self._bar.total)  # a sum in another order may round above it
        self._bar.update(0)

    def _tell_counts(self) -> None:
        words = [f"{self._n_done}/{self._n_cells} cells"]
        words += [f"{n} {status}" for status, n in sorted(self._counts.items()) if status not in _USUAL]
        self._bar.set_postfix_str(", ".join(words), refresh=False)

    def tick(self) -> None:
        """Let the clock on the screen go on."""
        if self._on_screen and time.monotonic() - self._refreshed > 1.0:
            self._refreshed = time.monotonic()
            self._bar.refresh()

    def tell(self, words: str) -> None:
        """A line above the bar."""
        if not self._bar.disable:
            self._bar.write(f"pyturingvi: {words}", file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.refresh()
        self._bar.close()


def duration(seconds: float) -> str:
    """In the largest unit that leaves two figures, e.g. '45 s', '12 min', '3.5 h'."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h"
