"""Plots: the ELBO trace, variables of a fit, and the scale matrices of the three families."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import DataError, InputError
from pyturingvi.families import FullRank, MeanField, Structured
from pyturingvi.layout import Layout
from pyturingvi.outputs.summary import chosen_variables
from pyturingvi.support.files import as_path, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pyturingvi.result import Fit

# one colour a family in every picture, told apart by colour-blind readers too
COLOURS = {"mean-field": "#0072B2", "structured": "#D55E00", "markov": "#CC79A7", "full-rank": "#009E73"}
_MOST_ROWS, _MOST_PAIRED, _MOST_PANELS = 200, 12, 40


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
    ax.plot(x, y, color=colour, marker=marker, lw=1.4, label=fit.family.label)
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


def plot_forest(fit: Fit, variables: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Plot the median and the central 90 % of each variable, one below the other.

    Parameters
    ----------
    fit : Fit
    variables : sequence of str, optional
        Names or labels as `Fit.summary` takes them; by default the globals.
    ax : Axes, optional
        Where to draw; a new figure by default, as high as there are rows.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        If a name is unknown, or there are more than 200 rows.
    """
    table = fit.summary(variables=variables)
    if len(table) > _MOST_ROWS:
        raise InputError(f"plot_forest: there are {len(table):,} rows, more than {_MOST_ROWS}; name fewer variables.")
    if ax is None:
        ax = pyplot().subplots(figsize=(6.4, 1.0 + 0.22 * len(table)), layout="constrained")[1]
    rows = np.arange(len(table))[::-1]
    colour = COLOURS.get(fit.family.name)
    ax.hlines(rows, table["q5"], table["q95"], color=colour, lw=1.6)
    ax.plot(table["median"], rows, "o", color=colour, ms=4)
    ax.set_yticks(rows, list(table.index), fontsize=8)
    ax.set_ylim(-0.7, len(table) - 0.3)
    ax.set_xlabel("median and central 90 %")
    ax.set_title(f"{fit.model.label}, {fit.family.label}")
    return ax


def plot_pair(fit: Fit, variables: Sequence[str] | None = None, n: int = 1000, seed: int = 0) -> Figure:
    """Plot draws of each scalar against each other one, with histograms between.

    Parameters
    ----------
    fit : Fit
    variables : sequence of str, optional
        Names or labels as `Fit.summary` takes them, 2 to 12 scalars in all; by default the first six of the globals.
    n, seed : int
        Draws.

    Returns
    -------
    Figure

    Raises
    ------
    InputError
        If a name is unknown, or there are too few or too many scalars.
    """
    scalars = _scalars(fit, variables, 6, fit.sample(n, seed))
    if not 2 <= len(scalars) <= _MOST_PAIRED:
        raise InputError(f"plot_pair: {len(scalars)} scalars are named; it takes 2 to {_MOST_PAIRED}.")
    size = len(scalars)
    figure: Figure
    figure, axes = pyplot().subplots(size, size, figsize=(1.7 * size, 1.7 * size), layout="constrained", sharex="col")
    colour = COLOURS.get(fit.family.name)
    for i, (row, down) in enumerate(scalars.items()):
        for j, (column, across) in enumerate(scalars.items()):
            ax = axes[i, j]
            if j > i:
                ax.set_visible(False)
            elif i == j:
                ax.hist(down, bins=30, color=colour, alpha=0.7)
                ax.set_yticks([])
            else:
                ax.plot(across, down, ".", color=colour, ms=2, alpha=0.5)
            if i == size - 1:
                ax.set_xlabel(column, fontsize=8)
            if j == 0 and i > 0:
                ax.set_ylabel(row, fontsize=8)
            ax.tick_params(labelsize=7)
    return figure


def plot_prior(fit: Fit, variables: Sequence[str] | None = None, n: int = 4000, seed: int = 0) -> Figure:
    """Plot the density of globals under the fit, and under their prior.

    Parameters
    ----------
    fit : Fit
    variables : sequence of str, optional
        Names or labels of globals as `Fit.summary` takes them, up to 40 scalars; by default the first nine.
    n, seed : int
        Draws of each.

    Returns
    -------
    Figure

    Raises
    ------
    InputError
        If a name is unknown or of a local, there are too many scalars, or the model does not tell its prior.
    """
    prior = fit.model.draw_prior(n, np.random.default_rng(seed))
    after = _scalars(fit, variables, 9, fit.sample(n, seed, local=False))
    before = _scalars(fit, variables, 9, prior)
    if len(after) > _MOST_PANELS:
        raise InputError(f"plot_prior: {len(after)} scalars are named; it takes up to {_MOST_PANELS}.")
    columns = min(3, len(after))
    rows = -(-len(after) // columns)
    figure: Figure
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(2.6 * columns, 1.9 * rows), layout="constrained", squeeze=False
    )
    for ax, (label, values) in zip(axes.flat, after.items(), strict=False):
        low, high = np.quantile(values, [0.001, 0.999])
        width = max(high - low, 1e-12)
        bins = np.linspace(low - width, high + width, 121)  # a prior that is wider shows as a low line
        heights = np.histogram(before[label], bins[::4])[0] / (n * (bins[4] - bins[0]))
        ax.stairs(heights, bins[::4], color="0.4", label="prior")
        ax.hist(values, bins, density=True, color=COLOURS.get(fit.family.name), alpha=0.7, label="fit")
        ax.set_title(label, fontsize=9)
        ax.set_yticks([])
        ax.tick_params(labelsize=7)
    for ax in axes.flat[len(after) :]:
        ax.set_visible(False)
    axes[0, 0].legend(fontsize=7)
    return figure


def _scalars(
    fit: Fit, variables: Sequence[str] | None, most: int, draws: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Draws (n,) of the scalars chosen, by label; of the first globals where nothing is said."""
    if variables is None:
        variables = [label for name in fit.model.global_names for label in fit.model.scalar_labels(name)][:most]
    found: dict[str, np.ndarray] = {}
    for name, labels in chosen_variables(fit.model, variables).items():
        if name not in draws:
            raise InputError(f"{name} is a local variable, and the prior drawn here is that of the globals.")
        every = fit.model.scalar_labels(name)
        columns = draws[name].reshape(len(draws[name]), -1)
        found |= {label: columns[:, every.index(label)] for label in labels or every}
    return found


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
