"""What each family gets right of stochastic volatility: phi, tau and mu beside a long run of NUTS.

Mean-field, structured and markov fits, and what `tv.fit` does where nothing is named (markov, from two starts), of
three simulated series and of the six currencies of volatility-small; NUTS's figures are those of `volatility_nuts.py`.
Writes `results/volatility_families.csv` (one row a family and variable) and `.png`.

    python experiments/volatility_families.py              # compute, then draw (a minute on one core)
    python experiments/volatility_families.py --from-csv   # draw and print again from the committed file
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from reproduced import errors_in_one_line
from volatility_nuts import RESULTS, cases

import pyturingvi as tv
from pyturingvi.plots import COLOURS, pyplot
from pyturingvi.reproduce.tables import read_table
from pyturingvi.support.files import write_picture, write_table

FAMILIES = {"mean-field": "mean-field", "structured": "structured", "markov": "markov", "default": None}
FIT: dict[str, Any] = {"seed": 0, "elbo_samples": 10_000, "engine": "numpy", "progress": False, "n_threads": 1}
COMMAND = "python experiments/volatility_families.py"
NUMBERS = ["mean", "sd", "nuts_mean", "nuts_sd", "r_hat", "ess", "bias", "sd_ratio", "elbo", "std_error", "seconds"]
MARKS = {"mean-field": ("^", -0.24), "structured": ("s", -0.08), "markov": ("D", 0.08), "default": ("o", 0.24)}


def compute(nuts: pd.DataFrame) -> pd.DataFrame:
    """All fits beside NUTS: bias in its sds, ratio of the sds."""
    tables = []
    for case, model in cases().items():
        referee = nuts[nuts.case == case].set_index("variable")[["nuts_mean", "nuts_sd", "r_hat", "ess"]]
        for name, family in FAMILIES.items():
            fit = tv.fit(model, family, **FIT)
            table = referee.join(fit.summary(20_000)[["mean", "sd"]])
            last = fit.elbo.iloc[-1]
            table = table.assign(
                case=case,
                family=name,
                bias=(table["mean"] - table.nuts_mean) / table.nuts_sd,
                sd_ratio=table["sd"] / table.nuts_sd,
                elbo=last.elbo,
                std_error=last.std_error,
                n_updates=fit.n_updates,
                seconds=round(fit.seconds, 2),
            )
            tables.append(table.reset_index())
    return pd.concat(tables)


def show(frame: pd.DataFrame) -> None:
    """ELBO of each fit, and the largest bias and the sd ratios of phi and tau."""
    for (case, family), part in frame.groupby(["case", "family"], sort=False):
        first = part.iloc[0]
        print(f"{case}, {family}: ELBO {first.elbo:.2f} +- {first.std_error:.2f} in {first.seconds:.1f} s")
        for name in ("phi", "tau"):
            rows = part[part.variable.str.startswith(name)]
            print(
                f"  {name}: {', '.join(f'{value:.3f}' for value in rows['mean'])}; in NUTS's sds off by "
                f"{', '.join(f'{value:+.2f}' for value in rows.bias)}; sd ratios {rows.sd_ratio.min():.2f} to "
                f"{rows.sd_ratio.max():.2f}"
            )


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Means and sds of phi and tau, a row a series."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(10, 6), layout="constrained", sharey=True)
    keys = list(dict.fromkeys(zip(frame.case, frame.variable.str.extract(r"\[(.*)\]")[0], strict=True)))
    words = [case if case != "volatility-small" else series for case, series in keys]
    for ax, name in zip(axes, ("phi", "tau"), strict=True):
        for place, (case, series) in enumerate(keys):
            rows = frame[(frame.case == case) & (frame.variable == f"{name}[{series}]")].set_index("family")
            first, y = rows.iloc[0], len(keys) - place
            ax.barh(y, 2 * first.nuts_sd, left=first.nuts_mean - first.nuts_sd, height=0.8, color="0.88")
            ax.plot([first.nuts_mean] * 2, [y - 0.4, y + 0.4], color="0.3", lw=1)
            for family, (marker, shift) in MARKS.items():
                row, colour = rows.loc[family], COLOURS.get(family, "k")
                ax.errorbar(row["mean"], y - shift, xerr=row["sd"], fmt=marker, color=colour, mfc="none", ms=4, lw=1)
        ax.set_xlabel(f"{name}, mean ± sd")
    axes[0].set_yticks(len(keys) - np.arange(len(keys)), words)
    handles = [
        plt.Line2D([], [], marker=marker, color=COLOURS.get(family, "k"), mfc="none", ls="", label=family)
        for family, (marker, _) in MARKS.items()
    ]
    figure.legend(
        [*handles, plt.Rectangle((0, 0), 1, 1, color="0.88")], [*MARKS, "NUTS"], loc="outside lower center", ncols=5
    )
    figure.suptitle("Stochastic volatility: three simulated series, and volatility-small", fontsize=11)
    write_picture(figure, path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from-csv", action="store_true", help="draw and print again from the committed file")
    path = RESULTS / "volatility_families.csv"
    if not parser.parse_args().from_csv:
        nuts = read_table(
            RESULTS / "volatility_nuts.csv",
            "python experiments/volatility_nuts.py",
            ["case", "variable"],
            ["nuts_mean"],
        )
        write_table(path, compute(nuts), index=False, float_format="%.6g")
    frame = read_table(path, COMMAND, ["case", "family", "variable"], NUMBERS)
    draw(frame, path.with_suffix(".png"))
    show(frame)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
