"""Lower triangles packed column by column, of which the families' scales are made."""

from __future__ import annotations

import numpy as np


def triangle_size(n: int) -> int:
    """Entries of a lower triangle of order n."""
    return n * (n + 1) // 2


def column_starts(n: int) -> np.ndarray:
    """Where each column of a packed lower triangle begins, and its end: (n+1,)."""
    j = np.arange(n + 1, dtype=np.int64)
    return j * n - j * (j - 1) // 2


def triangle_pattern(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a packed lower triangle of order n, column by column."""
    columns = np.repeat(np.arange(n), np.arange(n, 0, -1))
    rows = np.arange(triangle_size(n)) - column_starts(n)[columns] + columns
    return rows, columns
