"""The cross-language report on four problems: the embedded engine beside Julia, with verdicts.

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

import pyturingvi as tv

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


def draw_again(name: str) -> tv.Comparison:
    """The report of a committed CSV; what the CSV does not hold, its remarks, is taken from the Markdown beside it."""
    frame = pd.read_csv(RESULTS / f"compare_{name}.csv")
    lines = (RESULTS / f"compare_{name}.md").read_text().split("\n### ")[0].splitlines()
    remarks = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    return tv.Comparison(frame, frame["source"][0], name.replace("-simulated", " (simulated)"), remarks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PROBLEM", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--from-csv", action="store_true", help="draw again from the committed files")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in MODELS]:
        parser.error(f"unknown problem {unknown[0]!r}; known: {', '.join(MODELS)}")
    for name in options.names or MODELS:
        if options.from_csv:
            found = draw_again(name)
        else:
            found = tv.compare(MODELS[name](), reference="julia", **SETTINGS.get(name, {}))
        found.save(RESULTS)
        print(found.to_markdown(), flush=True)


if __name__ == "__main__":
    main()
