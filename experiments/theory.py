"""The paper's bounds (section 3) beside what is measured: `pyturingvi reproduce theory --preset paper`.

Writes `results/theory_paper_*.csv` and `.png`, and prints what was found.

    python experiments/theory.py              # compute, then draw (about three minutes on two cores)
    python experiments/theory.py --from-csv   # draw and print again from the committed CSVs
"""

from __future__ import annotations

import argparse
from pathlib import Path

from reproduced import errors_in_one_line

from pyturingvi.reproduce.figure import reproduce

RESULTS = Path(__file__).parent / "results"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from-csv", action="store_true", help="draw and print again from the committed CSVs")
    from_csv = parser.parse_args().from_csv
    if not from_csv:
        for path in RESULTS.glob("theory_paper_*.csv"):  # or nothing would be missing
            path.unlink()
    with errors_in_one_line():
        print(reproduce("theory", "paper", RESULTS, from_csv=from_csv))
