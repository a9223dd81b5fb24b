"""What an ELBO trace says of a run's end: whether it was still rising."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_GAIN = 1.0  # nats in a third of the run: less than this changes nothing that anybody sees
_LEAST_ROWS = 9

Row = tuple[int, float, float, float]


@dataclass(frozen=True)
class Trend:
    """Rise of the ELBO over the last third of its estimates, by a straight line, with its standard error in nats."""

    rise: float
    error: float

    @property
    def is_rising(self) -> bool:
        """Whether the rise is beyond its noise and large enough to matter."""
        return self.rise > LEAST_GAIN and self.rise > 3 * self.error


def last_third(rows: Sequence[Row]) -> Trend | None:
    """The trend of a trace, or None where it has too few estimates for one."""
    if len(rows) < _LEAST_ROWS:
        return None
    part = np.array(rows[-(len(rows) // 3) :], dtype=float)
    t, elbo = part[:, 0], part[:, 1]
    if not np.isfinite(elbo).all() or np.ptp(t) == 0:
        return None
    scale = max(float(np.abs(elbo).max()), 1.0)  # squares of what an exploded run leaves would overflow
    x, y = (t - t.mean()) / np.ptp(t), (elbo - elbo.mean()) / scale
    rise = float(x @ y / (x @ x))
    noise = math.sqrt(float(((y - rise * x) ** 2).sum()) / (len(x) - 2) / float(x @ x))
    return Trend(rise * scale, noise * scale)
