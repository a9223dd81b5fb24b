"""Beyond the paper: Adam at its best stepsize beside the default fit, on the nine problems, as preset `laptop`.

Writes `results/beyond_laptop_fits.csv` (one row a fit), `results/beyond_laptop_claims.csv` (each claim with a verdict)
and `results/beyond_laptop_elbo.png`. Adam's fits are those of `results/stepsize_laptop_elbo.csv`.

    python experiments/beyond.py              # the default fits anew, on the NumPy engine, in this process, then draw
    python experiments/beyond.py --from-csv   # draw and judge again from the committed CSV
"""

from __future__ import annotations

import argparse
import shutil

from reproduced import HERE, PRESET, errors_in_one_line

from pyturingvi.reproduce.beyond import FIGURE
from pyturingvi.reproduce.figure import Job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from-csv", action="store_true", help="draw and judge again from the committed CSV")
    from_csv = parser.parse_args().from_csv
    committed = Job("beyond", PRESET, HERE / "results")
    FIGURE.check_files(committed, from_csv)
    if not from_csv:
        # elsewhere, and kept there until all is done: the same call goes on after an interruption
        anew = HERE / "cells" / "beyond"
        anew.mkdir(parents=True, exist_ok=True)
        job = Job("beyond", PRESET, anew, "numpy", n_workers=1)
        FIGURE.compute(job)
        job.file("fits").replace(committed.file("fits"))
        shutil.rmtree(anew)
    print(FIGURE.report(committed))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
