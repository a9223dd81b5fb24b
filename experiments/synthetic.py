"""Figures 1 and 2 of the paper into `results/synthetic_PRESET_*`, as `pyturingvi reproduce synthetic` makes them.

python experiments/synthetic.py                             # every published point: 40 minutes with Julia
python experiments/synthetic.py --preset quick              # minutes, also without
python experiments/synthetic.py --from-csv                  # draw and judge again from the committed runs
"""

from __future__ import annotations

import argparse
from pathlib import Path

from reproduced import errors_in_one_line

from pyturingvi.reproduce.figure import reproduce

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="paper", choices=["quick", "paper", "full"])
    parser.add_argument("--engine", default="auto", choices=["auto", "numpy", "julia"])
    parser.add_argument("--from-csv", action="store_true", help="use the runs that are there")
    a = parser.parse_args()
    cells = RESULTS.parent / "cells"
    print(reproduce("synthetic", a.preset, RESULTS, from_csv=a.from_csv, engine=a.engine, cells=cells))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
