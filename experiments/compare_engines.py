"""The cross-language report on five problems: the NumPy engine beside Julia, with verdicts.

Writes `results/compare_PROBLEM.csv`, `.md` and `.png` for the isotropic Gaussian, rpoisson-small as in the paper's text
and as in its released code, volatility-small and a simulated irt-small. Needs a Julia environment (`pyturingvi setup`).

    python experiments/compare_engines.py                      # some seven minutes on two free cores
    python experiments/compare_engines.py gaussian             # one of them
    python experiments/compare_engines.py --from-csv           # write and draw again from the committed CSV

Log densities, paths and ELBOs are the same on a busy machine. Times are not; where other processes ran meanwhile, the
note of a time says so.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproduced import errors_in_one_line

import pyturingvi as tv
from pyturingvi.comparisons.measures import COLUMNS
from pyturingvi.comparisons.result import comparison_targets
from pyturingvi.errors import DataError
from pyturingvi.reproduce.tables import read_table
from pyturingvi.support.files import write_text

RESULTS = Path(__file__).parent / "results"
MODELS: dict[str, Callable[[], tv.models.Model]] = {
    "gaussian": lambda: tv.models.IsotropicGaussian(20),
    "rpoisson-small": lambda: tv.load_problem("rpoisson-small"),
    "volatility-small": lambda: tv.load_problem("volatility-small"),
    "irt-small-simulated": lambda: tv.load_problem("irt-small", simulated=True),
    "rpoisson-small-released": lambda: tv.load_problem("rpoisson-small", variant="released"),
}
# full-rank has six million parameters on irt-small: left out here, `pyturingvi compare irt-small` does it
SETTINGS: dict[str, dict[str, Any]] = {
    "irt-small-simulated": {"families": ["mean-field", "structured"], "n_runs": 3, "fit_iterations": 150},
}


def draw_again(name: str) -> tv.Comparison:
    """The report of a committed CSV; what the CSV does not hold, its remarks, is taken from the Markdown beside it."""
    path = RESULTS / f"compare_{name}.csv"
    numbers = ["iteration", "numpy", "julia", "difference", "tolerance"]
    frame = read_table(path, f"python experiments/compare_engines.py {name}", [*COLUMNS, "source"], numbers)
    beside = path.with_suffix(".md")
    try:
        lines = beside.read_text().split("\n### ")[0].splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{beside}: cannot be read ({error}); it has the remarks of {path.name}.") from None
    remarks = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    label = re.sub("-(simulated|released)$", r" (\1)", name)
    return tv.Comparison(frame, frame["source"][0], label, remarks)


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
