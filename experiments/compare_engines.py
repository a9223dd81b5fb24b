"""The cross-language report on four problems: the NumPy engine beside Julia, with verdicts.

Writes `results/compare_PROBLEM.csv`, `.md` and `.png` for the isotropic Gaussian, rpoisson-small, volatility-small and
a simulated irt-small. Needs a Julia environment (`pyturingvi setup`).

    python experiments/compare_engines.py                      # some five minutes on two free cores
    python experiments/compare_engines.py gaussian             # one of them
    python experiments/compare_engines.py --from-csv           # write and draw again from the committed CSV

Log densities, paths and ELBOs are the same on a busy machine. Times are not; where other processes ran meanwhile, the
note of a time says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from reproduced import errors_in_one_line

import pyturingvi as tv
from pyturingvi.comparisons.measures import COLUMNS
from pyturingvi.comparisons.result import comparison_targets
from pyturingvi.errors import DataError
from pyturingvi.families import FAMILIES
from pyturingvi.reproduce.tables import Table, read_table
from pyturingvi.support.files import write_text

RESULTS = Path(__file__).parent / "results"
MODELS: dict[str, Callable[[], tv.models.Model]] = {
    "gaussian": lambda: tv.models.IsotropicGaussian(20),
    "rpoisson-small": lambda: tv.load_problem("rpoisson-small"),
    "volatility-small": lambda: tv.load_problem("volatility-small"),
    "irt-small-simulated": lambda: tv.load_problem("irt-small", simulated=True),
}
# full-rank has six million parameters on irt-small: left out here, `pyturingvi compare irt-small` does it
SETTINGS: dict[str, dict[str, Any]] = {
    "irt-small-simulated": {"families": ["mean-field", "structured"], "n_runs": 3, "fit_iterations": 150},
}


FIGURES = ("numpy", "julia", "difference")
TABLE = Table(
    columns=("model", "quantity", "source", "note", "unit", "optimizer"),
    numbers=(*FIGURES, "numpy_error", "julia_error", "tolerance"),
    natural=("iteration",),
    words={
        "part": ("points", "path", "elbo", "time", "skipped"),
        "family": tuple(FAMILIES),
        "agrees": ("True", "False"),
    },
    empty=(*COLUMNS[2:5], *COLUMNS[6:]),
)


def read_comparison(path: Path, families: list[str]) -> pd.DataFrame:
    """A committed CSV; DataError, which names it, unless every family has every part of the report."""
    command = f"python experiments/compare_engines.py {path.stem.removeprefix('compare_')}"
    if not path.is_file():
        raise DataError(f"{path}: not found. Compute it: {command}")
    advice = f"Move it away and compute it: {command}"
    return read_table(path, TABLE, advice, check=lambda frame: check_whole(frame, families))


def check_whole(frame: pd.DataFrame, families: list[str]) -> None:
    """DataError for the first thing that a report of these families has and the table does not."""
    measured = frame[frame["part"] != "skipped"]
    unfit = measured[list(FIGURES)].isna().any(axis=1)
    if unfit.any():
        raise DataError(f"lacks a figure in line {measured.index[unfit][0] + 2}")
    if frame["source"].nunique() != 1:
        raise DataError("has more than one source")
    if frame.duplicated(COLUMNS[:6]).any():
        raise DataError("has a row twice")
    here = set(measured.groupby(["part", "family"], dropna=False).groups)
    skipped = set(frame.loc[frame["part"] == "skipped", "family"])
    wanted = [(part, name) for part in ("path", "elbo", "time") for name in families if name not in skipped]
    if lost := [f"{part} of {name}" for part, name in wanted if (part, name) not in here]:
        raise DataError(f"has no {lost[0]}: rows are missing")
    if set(frame.loc[frame["part"] == "points", "quantity"]) != {"log density", "gradient"}:
        raise DataError("has not both points, log density and gradient")
    paths = measured[measured["part"] == "path"].groupby(["family", "optimizer"])
    stops = paths["iteration"].agg(tuple)
    if stops.nunique() != 1 or stops.groupby("family").size().nunique() != 1 or not paths["agrees"].any().all():
        raise DataError("has paths that are not whole")


def draw_again(name: str) -> tv.Comparison:
    """The report of a committed CSV; what the CSV does not hold, its remarks, is taken from the Markdown beside it."""
    path = RESULTS / f"compare_{name}.csv"
    frame = read_comparison(path, SETTINGS.get(name, {}).get("families", list(FAMILIES)))
    beside = path.with_suffix(".md")
    try:
        lines = beside.read_text().split("\n### ")[0].splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{beside}: cannot be read ({error}); it has the remarks of {path.name}.") from None
    remarks = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    if not remarks:
        raise DataError(f"{beside}: has no remarks, of which each report has one at least.")
    return tv.Comparison(frame, frame["source"][0], name.replace("-simulated", " (simulated)"), remarks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PROBLEM", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--from-csv", action="store_true", help="draw again from the committed files")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in MODELS]:
        parser.error(f"unknown problem {unknown[0]!r}; known: {', '.join(MODELS)}")
    names = options.names or list(MODELS)
    again = {name: draw_again(name) for name in names if options.from_csv}
    for name in names:
        if found := again.get(name):
            _, markdown, picture = comparison_targets(RESULTS, found.label)
            write_text(markdown, found.to_markdown())
            found.plot(picture)
        else:
            found = tv.compare(MODELS[name](), reference="julia", **SETTINGS.get(name, {}))
            found.save(RESULTS)
        print(found.to_markdown(), flush=True)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
