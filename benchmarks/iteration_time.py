"""Milliseconds per iteration and peak memory of each family, beside NumPyro on the same model, in one run.

    pip install -e ".[data]" numpyro
    python benchmarks/iteration_time.py                 # all cases, some ten minutes
    python benchmarks/iteration_time.py --problems rpoisson-small --families mean-field

Each case runs in a process of its own, ours and NumPyro's one after the other, `--rounds` times in turn; the smallest
median counts for both. Writes `results/iteration_time.csv` and prints a Markdown table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).parent
PROBLEMS = [f"{kind}-{size}" for kind in ("rpoisson", "irt", "volatility") for size in ("small", "large")]
FAMILIES = ["mean-field", "structured", "structured-ns", "full-rank"]
PEERS = {"mean-field", "full-rank"}  # AutoNormal and AutoMultivariateNormal
NO_FULL_RANK = {"rpoisson-large", "irt-large", "volatility-large"}  # one triangle does not fit beside its Adam state


def case(side: str, problem: str, family: str, dtype: str, seconds: float) -> dict[str, Any] | None:
    """Run one case in its own process; None where it failed (its last line of error is shown)."""
    command = [sys.executable, str(HERE / "one_case.py"), side, problem, family, "--dtype", dtype]
    done = subprocess.run([*command, "--seconds", str(seconds)], capture_output=True, text=True, cwd=HERE)
    if done.returncode:
        print(f"  {side} {problem} {family}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def best(rounds: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The round with the smallest median, but the largest peak."""
    usable = [r for r in rounds if r is not None]
    if not usable:
        return None
    return {**min(usable, key=lambda r: r["ms"]), "peak_mib": max(r["peak_mib"] for r in usable)}


def measure(problem: str, family: str, dtype: str, seconds: float, n_rounds: int) -> dict[str, Any]:
    """One row of the table."""
    sides = ["ours", "floor"] + (["numpyro"] if family in PEERS else [])
    rounds: dict[str, list[Any]] = {side: [] for side in sides}
    for _ in range(n_rounds):
        for side in sides:
            rounds[side].append(case(side, problem, family, dtype, seconds))
    ours, floor, peer = (best(rounds.get(side, [])) for side in ("ours", "floor", "numpyro"))
    row: dict[str, Any] = {"problem": problem, "family": family, "dtype": dtype}
    if ours:
        row |= {"ms": ours["ms"], "peak_mib": ours["peak_mib"]}
    if floor:
        row["floor_ms"] = floor["ms"]
    if peer:
        row |= {"numpyro_ms": peer["ms"], "numpyro_peak_mib": peer["peak_mib"], "numpyro_compile_s": peer["compile_s"]}
        row["log_density_relative_difference"] = peer["log_density_relative_difference"]
    if ours and peer:
        row["numpyro_over_ours"] = peer["ms"] / ours["ms"]
    return row


def settings() -> dict[str, str]:
    """What the figures were measured on."""
    names = ["pyturingvi", "numpy", "scipy", "numpyro", "jax"]
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "-"
    cpu = next((ln.split(":")[1].strip() for ln in open("/proc/cpuinfo") if ln.startswith("model name")), "?")
    found |= {"python": platform.python_version(), "cpu": cpu, "cores": str(len(os.sched_getaffinity(0)))}
    return {**found, "date": str(datetime.date.today())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--seconds", type=float, default=4.0, help="time spent on each case and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "iteration_time.csv")
    a = parser.parse_args()
    rows = []
    for problem in a.problems:
        for family in a.families:
            if family == "full-rank" and problem in NO_FULL_RANK:
                continue
            rows.append(measure(problem, family, a.dtype, a.seconds, a.rounds))
            print(rows[-1], file=sys.stderr, flush=True)
    frame = pd.DataFrame(rows)
    for key, value in settings().items():
        frame[key] = value
    a.out.parent.mkdir(exist_ok=True)
    frame.to_csv(a.out, index=False)
    shown = ["problem", "family", "ms", "floor_ms", "numpyro_ms", "numpyro_over_ours", "peak_mib", "numpyro_peak_mib"]
    shown = [c for c in shown if c in frame]
    print("| " + " | ".join(shown) + " |\n|" + "---|" * len(shown))
    for record in frame[shown].itertuples(index=False):
        cells = [v if isinstance(v, str) else ("" if pd.isna(v) else f"{v:.3g}") for v in record]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
