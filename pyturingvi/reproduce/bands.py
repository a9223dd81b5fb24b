"""Median and 80 % band over replications, some of which may have diverged: the numbers and their drawing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.plots import pyplot
from pyturingvi.reproduce.figure import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = {"median": 0.5, "q10": 0.1, "q90": 0.9}


def band(values: np.ndarray) -> dict[str, float]:
    """Median, 10 % and 90 % quantile; minus infinity stands for a diverged replication."""
    ordered = np.sort(values)
    return {name: _quantile(ordered, q) for name, q in BAND.items()}


def _quantile(ordered: np.ndarray, q: float) -> float:
    """Linear interpolation between order statistics, which np.quantile cannot do next to an infinite one."""
    place = q * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return float(low) if np.isneginf(low) else float(low + (place - math.floor(place)) * (high - low))


def panels(n_rows: int, n_columns: int) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of panels, all switched off, and a legend of the three families."""
    plt = pyplot()
    size = (max(3.8 * n_columns, 7.0), 2.9 * n_rows + 1.2)
    figure, axes = plt.subplots(n_rows, n_columns, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    handles = [plt.Line2D([], [], color=colour, label=family) for family, colour in COLOURS.items()]
    handles.append(plt.Line2D([], [], color="0.3", marker="x", ls="", label="diverged"))
    figure.legend(handles=handles, fontsize=9, ncols=4, loc="outside lower center")
    return figure, axes


def draw_band(
    ax: Axes,
    x: np.ndarray,
    bands: list[dict[str, float]],
    family: str,
    marker: str | None = None,
    below: float | None = None,
) -> None:
    """A family's curve of medians with its band; a cross at the bottom edge where the median fit has diverged.

    With `below`, drawn is how far below this value the ELBO is, at least a nat, for an axis of `below_axis`.
    """
    median, low, high = (np.array([b[name] for b in bands], dtype=float) for name in BAND)
    gone, colour = ~np.isfinite(median), COLOURS[family]
    # where a tenth has diverged the band reaches down to the lowest median
    floor = np.nanmin(np.where(gone, np.nan, median)) if not gone.all() else math.nan
    median, high, low = np.where(gone, np.nan, median), np.where(gone, np.nan, high), np.fmax(low, floor)
    if below is not None:
        median, high, low = (np.fmax(below - values, 1.0) for values in (median, high, low))
        median, high = np.where(gone, np.nan, median), np.where(gone, np.nan, high)
    ax.plot(x, median, color=colour, marker=marker, ms=4, lw=1.4)
    ax.fill_between(x, low, high, color=colour, alpha=0.25, lw=0)
    if gone.any():
        ax.plot(x[gone], np.full(gone.sum(), 0.03), "x", color=colour, transform=ax.get_xaxis_transform())


def below_axis(ax: Axes, best: float) -> None:
    """Logarithmic, best on top: for values that differ by a few nats here and by thousands there."""
    ax.set_yscale("log")
    ax.invert_yaxis()
    ax.set_ylabel(f"nats below {best:.1f} (the best)")
