"""Plots: the ELBO trace and the scale matrices of the three families."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import DataError
from pyturingvi.families import FullRank, MeanField, Structured
from pyturingvi.layout import Layout
from pyturingvi.support.files import as_path, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pyturingvi.result import Fit

# one colour a family in every picture, told apart by colour-blind readers too
COLOURS = {"mean-field": "#0072B2", "structured": "#D55E00", "markov": "#CC79A7", "full-rank": "#009E73"}


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to get it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise DataError("Plots need matplotlib: pip install 'pyturingvi[plot]'.") from None
    return plt


def plot_elbo(fit: Fit, ax: Axes | None = None) -> Axes:
    """Plot a fit's ELBO trace with a band of two Monte Carlo standard errors.

    The vertical axis shows the last nine tenths of the climb, which would vanish beside the first steps.

    Parameters
    ----------
    fit : Fit
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes
    """
    if ax is None:
        ax = pyplot().subplots(figsize=(6.4, 4.0), layout="constrained")[1]
    trace = fit.elbo
    x, y, error = (trace[c].to_numpy() for c in ("iteration", "elbo", "std_error"))
    colour = COLOURS.get(fit.family.name)
    marker = "o" if len(x) < 3 else None
    ax.plot(x, y, color=colour, marker=marker, lw=1.4, label=fit.family.name)
    ax.fill_between(x, y - 2 * error, y + 2 * error, color=colour, alpha=0.25, lw=0)
    finite = y[np.isfinite(y)]
    if finite.size > 10:
        low, high = np.quantile(finite, 0.1), finite.max()
        if high > low:
            ax.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    ax.set_xlabel("iteration")
    ax.set_ylabel("ELBO (nats)")
    ax.set_title(f"{fit.model.label}, {fit.engine} engine")
    ax.legend(loc="lower right")
    return ax


def plot_scale_patterns(layout: Layout | None = None) -> Figure:
    """Draw the nonzeros of C in the three families side by side (paper, figure 3)."""
    plt = pyplot()
    layout = layout or Layout(n_global=4, n_local=6, local_dim=2)
    figure: Figure
    figure, axes = plt.subplots(1, 3, figsize=(9.0, 3.5), layout="constrained")
    for ax, chosen in zip(axes, (MeanField(), Structured(), FullRank()), strict=True):
        indptr, rows = chosen.pattern(layout)
        columns = np.repeat(np.arange(layout.dim), np.diff(indptr))
        picture = np.zeros((layout.dim, layout.dim))
        picture[rows, columns] = 1.0
        ax.imshow(picture, cmap=_two_colours(COLOURS[chosen.name]), vmin=0, vmax=1, interpolation="nearest")
        for line in range(layout.n_global, layout.dim, layout.local_dim):
            ax.axhline(line - 0.5, color="0.8", lw=0.5)
            ax.axvline(line - 0.5, color="0.8", lw=0.5)
        ax.set_title(f"{chosen.name}\np = {chosen.n_params(layout)}", fontsize=10)
        ax.set_xticks([])
        ax.set_yticks([])
    axes[0].set_ylabel("z, then y_1 ... y_N")
    return figure


def save_elbo_plot(fit: Fit, path: str | os.PathLike[str]) -> None:
    """Write the ELBO plot of a fit to a picture file, without a window."""
    pyplot()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    plot_elbo(fit, figure.add_subplot())
    write_picture(figure, as_path(path, "plot"), dpi=150)


def _two_colours(colour: str) -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap(["white", colour])
