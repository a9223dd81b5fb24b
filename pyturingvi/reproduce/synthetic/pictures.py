"""Figures 1 and 2 drawn: published curves as lines, ours as circles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.plots import pyplot
from pyturingvi.reproduce.figure import COLOURS, Job
from pyturingvi.reproduce.synthetic.plan import STATED_SAMPLES
from pyturingvi.reproduce.synthetic.problem import (
    CURVE_SIZES,
    MAX_UPDATES,
    PUBLISHED_SAMPLES,
    SCALING_SIZES,
    best_t,
    finite_points,
)
from pyturingvi.support.files import write_picture

if TYPE_CHECKING:
    import pandas as pd

_MARKERS = {"mean-field": 8, "structured": 5.5, "full-rank": 3.5}  # sizes: the curves lie on each other


def draw_curves(found: pd.DataFrame, job: Job) -> None:
    """Figure 1: published curves as lines, ours as circles, M = 8 as crosses."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(CURVE_SIZES), figsize=(13, 4.2), layout="constrained", sharey=True)
    for ax, n in zip(axes, CURVE_SIZES, strict=True):
        for family, colour in COLOURS.items():
            published = finite_points(family, n)
            ax.plot(published.stepsize, published.iterations + 1, color=colour, lw=1, label=f"{family}, published")
            here = found[(found.family == family) & (found.n == n)]
            for n_samples, marker in ((PUBLISHED_SAMPLES, "o"), (STATED_SAMPLES, "x")):
                ours = here[here.n_samples == n_samples]
                label = f"{family}, ours, M = {n_samples}" if len(ours) else None
                style = {"color": colour, "mfc": "none", "ms": _MARKERS[family], "alpha": 0.8, "label": label}
                ax.plot(ours.stepsize, ours.ours + 1, marker, **style)
        ax.axhline(MAX_UPDATES, color="0.6", lw=0.8, ls=":")
        ax.set(xscale="log", yscale="log", xlabel="stepsize", title=f"n = {n}", xlim=(5e-6, 6e-2))
    axes[0].set_ylabel("updates to accuracy (dotted: not reached)")
    axes[0].legend(fontsize=6, loc="lower left")
    write_picture(figure, job.file("curves", ".png"), dpi=150)


def draw_scaling(figure2: pd.DataFrame, fitted: pd.DataFrame, job: Job) -> None:
    """Figure 2: published points as lines, ours as circles, and the fitted powers."""
    plt = pyplot()
    figure, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    for family, colour in COLOURS.items():
        published = [best_t(family, n) + 1 for n in SCALING_SIZES]
        ax.plot(SCALING_SIZES, published, color=colour, lw=1, marker=".", label=f"{family}, published")
        ours = figure2[figure2.family == family] if len(figure2) else figure2
        if len(ours):
            ax.plot(ours.n, ours.ours + 1, "o", color=colour, mfc="none", ms=7, label=f"{family}, ours")
        for row in fitted[fitted.family == family].to_dict("records") if len(fitted) else []:
            power = row["ours_factor"] * np.array(SCALING_SIZES, dtype=float) ** row["ours"]
            label = f"n^{row['ours']:.2f}  [{row['ours_low']:.2f}, {row['ours_high']:.2f}]"
            ax.plot(SCALING_SIZES, power, color=colour, lw=0.8, ls="--", label=label)
    ax.set(xscale="log", yscale="log", xlabel="n", ylabel="updates to accuracy at the best stepsize")
    ax.set_xticks(SCALING_SIZES, [str(n) for n in SCALING_SIZES], fontsize=8)
    ax.minorticks_off()
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    write_picture(figure, job.file("scaling", ".png"), dpi=150)
