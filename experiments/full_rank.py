"""Full-rank on rpoisson-small and volatility-small to T = 50,000, beside structured of the figure `stepsize`.

The paper's protocol, in float32, with the stepsizes of its appendix; a fit takes a quarter of an hour of one core.
Writes what is finished as `results/full_rank_elbo.csv`, and tells by how much structured ends higher.

    python experiments/full_rank.py                    # fit what the CSV lacks, into experiments/cells/full_rank
    python experiments/full_rank.py --from-cells DIR   # take what the sweep in DIR has by now, and fit nothing
    python experiments/full_rank.py --from-csv         # tell again from the committed CSV
"""

from __future__ import annotations

import argparse
from collections.abc import Set
from pathlib import Path
from typing import Any

import pandas as pd
from reproduced import HERE, errors_in_one_line

import pyturingvi as tv
from pyturingvi.reproduce import realistic
from pyturingvi.reproduce.realistic_tables import elbo_table
from pyturingvi.reproduce.tables import read_table
from pyturingvi.support.files import write_table
from pyturingvi.sweeps.cell_file import FINISHED

FILE = HERE / "results" / "full_rank_elbo.csv"


def grid(known: Set[tuple[str, str, int]] = frozenset()) -> list[dict[str, Any]]:
    """One seed of each problem before the next, without those that are known."""
    fits = {**realistic.SETTINGS, "family": "full-rank", "engine": "numpy", "dtype": "float32", "elbo_every": 500}
    return [
        {**fits, "model": f"{kind}-small", "stepsize": [stepsize], "seed": [seed]}
        for seed in range(2)
        for kind in ("rpoisson", "volatility")
        for stepsize in realistic.PUBLISHED_TRACES[kind]
        if (f"{kind}-small", f"{stepsize:.6g}", seed) not in known
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--from-csv", action="store_true", help="tell again from the committed CSV")
    source.add_argument("--from-cells", type=Path, metavar="DIR", help="take what a sweep's folder has; fit nothing")
    arguments = parser.parse_args()
    words, numbers = ["problem", "family"], ["stepsize", "n_iterations", "elbo"]
    full = read_table(FILE, "python experiments/full_rank.py", words, numbers)
    missing = grid({(row.problem, f"{row.stepsize:.6g}", row.seed) for row in full.itertuples()})
    if not arguments.from_csv and missing:
        cells = arguments.from_cells or HERE / "cells" / "full_rank"
        found = tv.load_sweep(cells, missing) if arguments.from_cells else tv.sweep(missing, out=cells)
        table = elbo_table(found)
        write_table(FILE, pd.concat([full, table[table.status.isin(FINISHED)]]), float_format="%.8g")
        full = read_table(FILE, "python experiments/full_rank.py", words, numbers)
    others = read_table(FILE.with_name("stepsize_laptop_elbo.csv"), "python experiments/stepsize.py", words, numbers)
    structured = others[(others.family == "structured") & (others.n_iterations == realistic.PAPER_ITERATIONS)]
    for (problem, stepsize), fits in full.groupby(["problem", "stepsize"], sort=False):
        same = structured[(structured.problem == problem) & ((structured.stepsize / stepsize - 1).abs() < 1e-6)]
        ends = ", ".join(f"{elbo:,.1f}" for elbo in fits.elbo)
        print(
            f"{problem}, stepsize {stepsize:.3g}: full-rank {ends}; structured {same.elbo.median():,.1f} (median of "
            f"{len(same)}), {same.elbo.median() - fits.elbo.median():+,.1f} nats"
        )


if __name__ == "__main__":
    with errors_in_one_line():
        main()
