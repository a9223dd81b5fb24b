"""How the time of an iteration grows with the number of local variables: the exponent should not exceed 1.

    python benchmarks/scaling.py

Mean-field and structured on rpoisson (rows of rwm5yr) and item response (simulated students). Writes
`results/scaling.csv` and prints, for each, the slope of log time on log N over the sizes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pyturingvi as tv
from pyturingvi.data.rwm5yr import load_rwm5yr
from pyturingvi.data.simulate import simulate_irt

HERE = Path(__file__).parent
SIZES = {"rpoisson": (1_000, 2_000, 4_000, 8_000, 19_609), "irt": (1_000, 3_348, 6_695, 15_000, 33_475)}


def build(kind: str, n: int) -> Any:
    """A model with n local variables."""
    return tv.models.RobustPoisson(*load_rwm5yr(n)) if kind == "rpoisson" else tv.models.ItemResponse(simulate_irt(n))


def milliseconds(model: Any, family: str, seconds: float) -> float:
    """Smallest mean over chunks of iterations; the ELBO is taken once, at the end, and does not count."""
    marks: list[float] = []
    n = 200
    while True:
        start = time.perf_counter()
        tv.fit(model, family, tv.Adam(1e-4), n_iterations=n, elbo_every=n + 1, elbo_samples=1, progress=False)
        whole = time.perf_counter() - start
        start = time.perf_counter()
        tv.fit(model, family, tv.Adam(1e-4), n_iterations=1, elbo_every=2, elbo_samples=1, progress=False)
        marks.append((whole - (time.perf_counter() - start)) / (n - 1) * 1e3)
        if sum(marks) * n / 1e3 > seconds and len(marks) > 1:
            return min(marks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    rows = []
    for kind, sizes in SIZES.items():
        for family in ("mean-field", "structured"):
            for n in sizes:
                ms = milliseconds(build(kind, n), family, seconds)
                rows.append({"model": kind, "family": family, "N": n, "ms": ms})
                print(rows[-1], flush=True)
    frame = pd.DataFrame(rows)
    (HERE / "results").mkdir(exist_ok=True)
    frame.to_csv(HERE / "results" / "scaling.csv", index=False)
    for (kind, family), group in frame.groupby(["model", "family"]):
        slope = np.polyfit(np.log(group["N"]), np.log(group["ms"]), 1)[0]
        print(f"{kind} {family}: time grows like N^{slope:.2f}")


if __name__ == "__main__":
    main()
