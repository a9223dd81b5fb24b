"""Milliseconds per iteration and peak memory of each family, beside NumPyro on the same model, in one run.

    pip install -e ".[data]" jax numpyro
    python benchmarks/iteration_time.py                 # all cases on 1 and on 2 cores, some twenty minutes
    python benchmarks/iteration_time.py --problems rpoisson-small --families mean-field --cores 1

Each case runs in a process of its own, pinned to the given number of cores. `--rounds` times, all cases of a
problem take turns, ours and NumPyro's, so that whatever else the machine does meets both sides. Both are
timed in chunks of a tenth of a second: `ms` is the fastest chunk, `ms_median` the median over all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from machine import markdown, settings

HERE = Path(__file__).parent
HELP = argparse.RawDescriptionHelpFormatter
PROBLEMS = [f"{kind}-{size}" for kind in ("rpoisson", "irt", "volatility") for size in ("small", "large")]
PROBLEMS.insert(3, "irt-small-missing")
FAMILIES = ["mean-field", "structured", "structured-ns", "markov", "full-rank"]
PEERS = {"mean-field", "full-rank"}  # AutoNormal and AutoMultivariateNormal
TOO_LARGE = {(problem, "full-rank") for problem in PROBLEMS if problem.endswith("large")}  # some 300 bytes a parameter
SHOWN = [
    "problem", "family", "cores", "ms", "floor_ms", "numpyro_ms", "numpyro_over_ours",
    "numpyro_over_ours_median", "over_mean_field", "over_structured", "peak_mib", "numpyro_peak_mib",
    "numpyro_over_ours_peak", "other_cores",
]  # fmt: skip


def case(side: str, problem: str, family: str, cores: set[int], a: Any) -> dict[str, Any] | None:
    """Run one case in its own process; None where it failed (its last line of error is shown)."""
    command = [sys.executable, str(HERE / "one_case.py"), side, problem, family, "--dtype", a.dtype]
    done = subprocess.run(
        [*command, "--seconds", str(a.seconds), "--quiet", str(a.quiet)],
        capture_output=True, text=True, cwd=HERE, preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip
    if done.returncode:
        print(f"  {side} {problem} {family}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def summary(rounds: list[dict[str, Any]], prefix: str = "") -> dict[str, Any]:
    """Fastest and median chunk over the rounds, the largest peak and the foreign load."""
    chunks = [c for r in rounds for c in r["chunks"]]
    return {
        f"{prefix}ms": min(chunks),
        f"{prefix}ms_median": statistics.median(chunks),
        f"{prefix}peak_mib": max(r["peak_mib"] for r in rounds),
        f"{prefix}whole_mib": max(r["whole_mib"] for r in rounds),
        f"{prefix}other_cores": statistics.mean(r["other_cores"] for r in rounds),
    }


def row_of(key: dict[str, Any], ours: list[dict[str, Any]], peer: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the CSV."""
    row = dict(key)
    if ours:
        row |= summary(ours)
        row["floor_ms"] = min(c for r in ours for c in r["floor"])
    if peer:
        row |= summary(peer, "numpyro_")
        row["numpyro_compile_s"] = min(r["compile_s"] for r in peer)
        row["density_difference"] = max(r["density_difference"] for r in peer)
        row["gradient_difference"] = max(r["gradient_difference"] for r in peer)
    if ours and peer:
        row["numpyro_over_ours"] = row["numpyro_ms"] / row["ms"]
        row["numpyro_over_ours_median"] = row["numpyro_ms_median"] / row["ms_median"]
        row["numpyro_over_ours_peak"] = row["numpyro_peak_mib"] / row["peak_mib"]
    return row


def measure(problem: str, n_cores: int, a: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one problem on `n_cores` cores."""
    cores = set(sorted(os.sched_getaffinity(0))[-n_cores:])
    cases = []
    for family in a.families:
        cases.append(("ours", family))  # which refuses by itself what does not fit in memory
        if a.peer == "numpyro" and family in PEERS and (problem, family) not in TOO_LARGE:
            cases.append(("numpyro", family))
    found: dict[tuple[str, str], list[Any]] = {key: [] for key in cases}
    for _ in range(a.rounds):
        for side, family in cases:
            result = case(side, problem, family, cores, a)
            if result is not None:
                found[side, family].append(result)
    rows = []
    for family in a.families:
        key = {"problem": problem, "family": family, "cores": n_cores, "dtype": a.dtype}
        ours, peer = found.get(("ours", family), []), found.get(("numpyro", family), [])
        if ours or peer:
            rows.append(row_of(key, ours, peer))
            if peer:
                last = rows[-1]
                print(
                    f"{problem} {family}: NumPyro's log density differs from ours by a relative "
                    f"{last['density_difference']:.1e}, its gradient by {last['gradient_difference']:.1e}",
                    flush=True,
                )
    ms = {row["family"]: row["ms"] for row in rows if "ms" in row}
    for row in rows:
        for family, column in (("mean-field", "over_mean_field"), ("structured", "over_structured")):
            if family in ms and "ms" in row:
                row[column] = row["ms"] / ms[family]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HELP)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--peer", default="numpyro", choices=["numpyro", "none"])
    parser.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2], help="numbers of cores to pin to")
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each case and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quiet", type=float, default=0.0, help="longest wait for others to pause")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "iteration_time.csv")
    a = parser.parse_args()
    a.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for n_cores in a.cores:
        for problem in a.problems:
            rows += measure(problem, n_cores, a)
            frame = pd.DataFrame(rows).assign(**settings())
            frame.to_csv(a.out, index=False, float_format="%.6g")  # a stopped run keeps its rows
    print(markdown(frame, SHOWN))


if __name__ == "__main__":
    main()
