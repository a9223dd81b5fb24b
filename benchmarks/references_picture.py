"""Draw `results/references.csv`: every global of every problem, as each method has it, beside the truth.

python benchmarks/references_picture.py     # docs/images/references.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

ROOT = Path(__file__).parent.parent
METHODS = {
    "AutoNormal": ("NumPyro AutoNormal", "tab:gray"),
    "mean-field": ("mean-field", "tab:orange"),
    "structured": ("structured", "tab:blue"),
    "conditional": ("structured, conditional widths", "tab:purple"),
    "refined": ("refined", "tab:green"),
}
SYMBOLS = {"good": "o", "usable with care": "^", "do not trust": "x", "": "."}
MOST_BIAS, RATIOS = 2.5, (0.25, 3.0)  # what lies beyond is drawn at the edge
NEAR, ALLOWED = {"bias": (-0.2, 0.2), "ratio": (0.85, 1.15)}, {"bias": (-0.3, 0.3), "ratio": (2 / 3, 3 / 2)}


def draw(frame: pd.DataFrame) -> plt.Figure:
    """Two panels over the problems: biases of means, ratios of standard deviations."""
    problems = list(dict.fromkeys(frame["problem"]))
    shown = [method for method in METHODS if method in set(frame["method"])]
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.62 * len(problems) + 2), sharey=True, layout="constrained")
    for axis, column in zip(axes, ("bias", "ratio"), strict=True):
        axis.axvspan(*ALLOWED[column], color="0.93", lw=0)
        axis.axvspan(*NEAR[column], color="0.83", lw=0)
        low, high = (-MOST_BIAS, MOST_BIAS) if column == "bias" else RATIOS
        for row, problem in enumerate(problems):
            axis.axhline(row - 0.5, color="0.8", lw=0.5)
            for k, method in enumerate(shown):
                part = frame[(frame["problem"] == problem) & (frame["method"] == method)].dropna(subset=[column])
                if part.empty:
                    continue
                y = np.full(len(part), row - 0.36 + 0.72 * (k + 0.5) / len(shown))
                symbol, color = SYMBOLS[part["verdict"].iloc[0]], METHODS[method][1]
                axis.scatter(part[column].clip(low, high), y, s=22, marker=symbol, color=color, alpha=0.75, lw=1)
        if column == "ratio":
            axis.set_xscale("log")
            axis.set_xticks(ticks := [0.25, 0.5, 0.67, 1, 1.5, 2, 3], [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
        pad = 1.08
        axis.set_xlim((low * pad, high * pad) if column == "bias" else (low / pad, high * pad))
    axes[0].set_yticks(range(len(problems)), problems)
    axes[0].set_ylim(len(problems) - 0.5, -0.5)
    axes[0].set_xlabel("mean: distance from the true one, in standard deviations")
    axes[1].set_xlabel("standard deviation over the true one")
    handles = [plt.Line2D([], [], ls="", marker="s", color=METHODS[m][1], label=METHODS[m][0]) for m in shown]
    handles += [
        plt.Line2D([], [], ls="", marker=symbol, color="black", label=f"verdict: {name}" if name else "no verdict")
        for name, symbol in SYMBOLS.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=ROOT / "benchmarks" / "results" / "references.csv")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "references.png")
    a = parser.parse_args()
    matplotlib.use("Agg")
    draw(pd.read_csv(a.csv).fillna({"verdict": ""})).savefig(a.out, dpi=110)
    print(f"wrote {a.out}")


if __name__ == "__main__":
    main()
