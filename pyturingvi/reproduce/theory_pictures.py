"""The three pictures of the theory, drawn from its CSV files alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.plots import pyplot
from pyturingvi.reproduce.figure import COLOURS
from pyturingvi.support.files import write_picture

if TYPE_CHECKING:
    import pandas as pd

# mean-field lies under structured where the theory does not tell them apart: a wide pale line shows both
BOUND_STYLE = {"mean-field": {"lw": 4.0, "alpha": 0.35}, "structured": {"lw": 1.2}, "full-rank": {"lw": 1.2}}


def draw_variance(frame: pd.DataFrame, path: Path) -> None:
    """Bound, exact value and measurement over n; then how loose the bound is, for the three bases."""
    plt = pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.6), layout="constrained", sharex=True)
    sizes = sorted(frame.n.unique())
    styles = {"gaussian": "-", "laplace": "--", "student_t(10)": ":"}
    for row, target in zip(axes, ("isotropic", "coupled"), strict=True):
        here = frame[frame.target == target]
        for ax, point in zip(row, ("start", "optimum"), strict=False):
            for name, colour in COLOURS.items():
                part = here[(here.family == name) & (here.base == "gaussian") & (here.point == point)]
                ax.plot(part.n, part.bound, color=colour, ls="--", **BOUND_STYLE[name])
                ax.plot(part.n, part.exact, color=colour, lw=1.2)
                ax.errorbar(part.n, part.measured, 2 * part.measured_se, fmt="o", ms=4, mfc="none", color=colour)
            ax.set_title(f"{target}, at the {point}", fontsize=10)
        for name, colour in COLOURS.items():
            for base, style in styles.items():
                part = here[(here.family == name) & (here.base == base) & (here.point == "optimum")]
                row[2].plot(part.n, part.loose_by, color=colour, ls=style, lw=1.2)
        row[2].set_title(f"{target}: bound / exact at the optimum", fontsize=10)
        row[0].set_ylabel("trace of the gradient's variance")
    for ax in axes.ravel():
        ax.set(xscale="log", yscale="log")
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.set_xticks([], minor=True)
    for ax in axes[1]:
        ax.set_xlabel("n")
    lines = [plt.Line2D([], [], color=colour, label=name) for name, colour in COLOURS.items()]
    kinds = [
        plt.Line2D([], [], color="0.3", ls="--", label="bound"),
        plt.Line2D([], [], color="0.3", label="exact"),
        plt.Line2D([], [], color="0.3", ls="", marker="o", mfc="none", label="measured"),
    ]
    axes[0, 0].legend(handles=[*lines, *kinds], fontsize=7, ncols=2, loc="upper left")
    bases = [plt.Line2D([], [], color="0.3", ls=style, label=base) for base, style in styles.items()]
    axes[0, 2].legend(handles=bases, fontsize=7, loc="upper left")
    figure.suptitle(
        f"Gradient-variance bound of section 3.2, M = {frame.n_samples[0]}; columns 1 and 2: Gaussian base", fontsize=11
    )
    write_picture(figure, path, dpi=110)


def draw_complexity(frame: pd.DataFrame, path: Path) -> None:
    """Promised and needed updates over n, and the distance left after the promised ones."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.4), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
    )
    for name, colour in COLOURS.items():
        here = frame[frame.family == name]
        is_published = here.published_best_updates.notna()
        small, large = here[~is_published], here[is_published]
        left.plot(here.n, here.promised_updates, color=colour, ls="--", **BOUND_STYLE[name])
        size = 8 if name == "mean-field" else 5
        left.plot(small.n, small.updates_at_stepsize, "o", color=colour, mfc="none", ms=size)
        left.plot(small.n, small.best_updates, "^-", color=colour, mfc="none", ms=5, lw=1)
        left.plot(large.n, large.published_best_updates, "s-", color=colour, ms=3, lw=1)
        style: dict[str, Any] = {"fmt": "o-", "color": colour, "mfc": "none", "ms": 5, "lw": 1, "label": name}
        right.errorbar(small.n, small.distance_after_promised, 2 * small.distance_se, **style)
    left.set(xscale="log", yscale="log", xlabel="n", ylabel="updates to squared distance 1")
    handles = [plt.Line2D([], [], color=colour, label=name) for name, colour in COLOURS.items()]
    handles += [
        plt.Line2D([], [], color="0.3", ls="--", label="promised by the theorem"),
        plt.Line2D([], [], color="0.3", ls="", marker="o", mfc="none", label="needed at the theorem's stepsize"),
        plt.Line2D([], [], color="0.3", marker="^", mfc="none", label="needed at the best stepsize"),
        plt.Line2D([], [], color="0.3", marker="s", ms=3, label="the same, published (figure 2)"),
    ]
    left.legend(handles=handles, fontsize=7, loc="upper left")
    left.set_title(f"synthetic problem, M = {frame.n_samples[0]}", fontsize=10)
    right.axhline(frame.epsilon[0], color="0.3", ls="--", lw=1.2, label="promised")
    right.set(xscale="log", yscale="log", xlabel="n", ylabel="mean squared distance to the optimum")
    right.set_title("after the promised updates", fontsize=10)
    sizes = sorted(frame[frame.published_best_updates.isna()].n.unique())
    right.set_xticks(sizes, [str(n) for n in sizes])
    right.set_xticks([], minor=True)
    right.legend(fontsize=7)
    write_picture(figure, path, dpi=110)


def draw_counterexample(frame: pd.DataFrame, path: Path) -> None:
    """Least eigenvalue of the Hessian of the energy (both parameterizations) and of the negative ELBO."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained", sharey=True)
    columns = {
        "standardized energy": "standardized_energy_least_eigenvalue",
        "non-standardized energy": "energy_least_eigenvalue",
        "non-standardized negative ELBO": "negative_elbo_least_eigenvalue",
    }
    border = 1 / math.sqrt(3)
    for ax, (title, column) in zip(axes, columns.items(), strict=True):
        grid = frame.pivot(index="y", columns="x", values=column)
        picture = ax.pcolormesh(grid.columns, grid.index, grid, cmap="RdBu", vmin=-2.5, vmax=2.5, shading="nearest")
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("x = C_zz")
    axes[0].set_ylabel("y = C_yz or A")
    for ax in axes[1:]:
        for sign in (-1, 1):
            ax.axhline(sign * border, color="k", lw=1, ls="--", label="|y| = 1/√3" if sign > 0 else None)
    x = np.linspace(frame.x.min(), frame.x.max(), 400)
    for sign in (-1, 1):
        y = sign * np.sqrt(1 / 3 + 1 / (6 * x**2))
        y[np.abs(y) > frame.y.max()] = np.nan
        axes[2].plot(x, y, color="k", lw=1.2, label="y² = 1/3 + 1/(6x²)" if sign > 0 else None)
    axes[1].legend(fontsize=7, loc="lower right", framealpha=1)
    axes[2].legend(fontsize=7, loc="lower right", framealpha=1)
    figure.colorbar(
        picture, ax=axes, label="least eigenvalue of the Hessian (red: not convex)", shrink=0.9, extend="both"
    )
    write_picture(figure, path, dpi=110)
