"""The paper's bounds (section 3) beside what is measured: `pyturingvi reproduce theory --preset paper`.

Writes `results/theory_paper_*.csv` and `.png`, and prints what was found.

    python experiments/theory.py              # compute, then draw (about three minutes on two cores)
    python experiments/theory.py --from-csv   # draw and print again from the committed CSVs
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from reproduced import errors_in_one_line

from pyturingvi.reproduce.figure import reproduce

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from-csv", action="store_true", help="draw and print again from the committed CSVs")
    from_csv = parser.parse_args().from_csv
    if from_csv:
        print(reproduce("theory", "paper", RESULTS, from_csv=True))
    else:  # from the start, elsewhere: the committed files give way to whole new ones only
        with TemporaryDirectory(dir=RESULTS) as folder:
            print(reproduce("theory", "paper", Path(folder)))
            for path in Path(folder).iterdir():
                path.replace(RESULTS / path.name)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
