"""Fit every model of the gallery once, as `tv.fit` does it by itself, and write `gallery.csv`.

    pip install -e ".[data,numpyro]"
    python docs/gallery/run.py                 # some minutes; those in the file already are left alone
    python docs/gallery/run.py "seeds" "wells" # these alone, anew

A row has what was found to be local, how the fit ended, the verdict of `fit.diagnose()`, the ELBO, and the seconds of
processor time for building, fitting and judging, compilation included; or the reason for which the model is refused.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import hierarchical
import pandas as pd
import regression
import series
from entries import Entry

import pyturingvi as tv

ENTRIES: list[Entry] = [*hierarchical.ENTRIES, *regression.ENTRIES, *series.ENTRIES]
FILE = Path(__file__).parent / "gallery.csv"
COLUMNS = "name gallery source data door d structure family status verdict elbo seconds reason".split()


def row_of(entry: Entry) -> dict[str, Any]:
    """What the package makes of a model."""
    row: dict[str, Any] = {name: getattr(entry, name) for name in COLUMNS[:4]}
    start = time.process_time()
    try:
        model = entry.build()
    except tv.errors.InputError as error:
        return {**row, "status": "refused", "reason": str(error)}
    row |= {"door": type(model).__name__, "d": model.dim, "structure": getattr(model, "structure", str(model.layout))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tv.ConvergenceWarning)  # the verdict says it too
        fit = tv.fit(model, progress=False)
        verdict = fit.diagnose()
    row |= {
        "family": fit.family.name,
        "status": fit.status,
        "verdict": verdict.verdict,
        "elbo": round(fit.last_elbo, 1),
    }
    row["seconds"] = round(time.process_time() - start, 1)
    return row if verdict.verdict == "good" else {**row, "reason": verdict.reasons[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of models to fit anew")
    names = parser.parse_args().names
    unknown = set(names) - {entry.name for entry in ENTRIES}
    if unknown:
        sys.exit(f"no model is called {', '.join(sorted(unknown))}")
    done = {}
    if FILE.exists():
        rows = pd.read_csv(FILE, dtype=str, keep_default_na=False).to_dict("records")
        done = {row["name"]: row for row in rows}
    for entry in ENTRIES:
        if entry.name in names or not (names or entry.name in done):
            done[entry.name] = row_of(entry)
            print(entry.name, {key: done[entry.name].get(key) for key in ("status", "verdict", "seconds")}, flush=True)
        rows = [done[one.name] for one in ENTRIES if one.name in done]
        table = pd.DataFrame(rows, columns=COLUMNS)
        table["d"] = pd.to_numeric(table["d"]).astype("Int64")  # a refused model has none
        table.to_csv(FILE, index=False)


if __name__ == "__main__":
    main()
