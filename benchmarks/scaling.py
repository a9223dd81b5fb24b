"""How the time of an iteration grows with the number of local variables: the exponent should not exceed 1.

    python benchmarks/scaling.py

Mean-field and structured on rpoisson (rows of rwm5yr) and item response (simulated students), all in one
process and on one core. All sizes take turns `--rounds` times and the fastest chunk of a tenth of a second
counts. Writes `results/scaling.csv` and prints, for each, the slope of log time on log N over the sizes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HELP = argparse.RawDescriptionHelpFormatter
SIZES = {"rpoisson": (1_000, 2_000, 4_000, 8_000, 19_609), "irt": (1_000, 3_348, 6_695, 15_000, 33_475)}


def build(kind: str, n: int) -> Any:
    """A model with n local variables."""
    import pyturingvi as tv
    from pyturingvi.data.rwm5yr import load_rwm5yr
    from pyturingvi.data.simulate import simulate_irt

    if kind == "rpoisson":
        return tv.models.RobustPoisson(*load_rwm5yr(n))
    return tv.models.ItemResponse(simulate_irt(n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HELP)
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each case and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scaling.csv")
    a = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # before NumPy counts the cores
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import numpy as np
    import pandas as pd
    from machine import settings
    from one_case import time_ours

    rows = []
    for kind, sizes in SIZES.items():
        models = {n: build(kind, n) for n in sizes}
        best: dict[tuple[str, int], float] = {}
        for _ in range(a.rounds):
            for family in ("mean-field", "structured"):
                for n, model in models.items():
                    ms = min(time_ours(model, family, "float64", a.seconds))
                    best[family, n] = min(ms, best.get((family, n), ms))
        for family in ("mean-field", "structured"):
            times = [best[family, n] for n in sizes]
            slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
            last = np.diff(np.log(times))[-1] / np.diff(np.log(sizes))[-1]
            print(f"{kind} {family}: time grows like N^{slope:.2f}; over the last two sizes N^{last:.2f}")
            for n, ms in zip(sizes, times, strict=True):
                rows.append({"model": kind, "family": family, "N": n, "ms": ms, "exponent": slope})
                print(f"  N={n}: {ms:.3f} ms", flush=True)
    frame = pd.DataFrame(rows).assign(cores=1, **settings())
    a.out.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(a.out, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
