"""What an ELBO trace says of a run's end: whether it was still rising."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_GAIN = 1.0  # nats in a third of the run: less than this changes nothing that anybody sees
_LEAST_ROWS = 4

Row = tuple[int, float, float, float]


@dataclass(frozen=True)
class Trend:
    """Rise of the ELBO in a third of the updates, at the pace of the run's end, with its standard error in nats."""

    rise: float
    error: float

    @property
    def is_rising(self) -> bool:
        """Whether the rise is beyond its noise and large enough to matter."""
        return self.rise > LEAST_GAIN and self.rise > 3 * self.error


def last_third(rows: Sequence[Row]) -> Trend | None:
    """The trend of a trace's last third, or None where it has too few estimates for one.

    A curve that flattens rises over its last third and not at its end: where the third rises and the last ninth has
    estimates enough, the trend is that of the ninth, three times.
    """
    trend = _line(rows, 3)
    if trend is None or not trend.is_rising:
        return trend
    end = _line(rows, 9)
    return trend if end is None or end.rise > trend.rise else end


def _line(rows: Sequence[Row], part: int) -> Trend | None:
    """Least squares over the last 1/part of the updates."""
    kept = np.array([row for row in rows if row[0] > (1 - 1 / part) * rows[-1][0]], dtype=float)
    if len(kept) < _LEAST_ROWS:
        return None
    t, elbo = kept[:, 0], kept[:, 1]
    if not np.isfinite(elbo).all():
        return None
    scale = max(
        float(np.abs(elbo).max()), 1.0
    )  # squares of what an exploded run leaves would overflow; x is in thirds of the run
    x, y = 3 * (t - t.mean()) / rows[-1][0], (elbo - elbo.mean()) / scale
    slope = float(x @ y / (x @ x))
    noise = math.sqrt(float(((y - slope * x) ** 2).sum()) / (len(x) - 2) / float(x @ x))
    return Trend(slope * scale, noise * scale)
