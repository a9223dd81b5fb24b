"""The Julia engine beside the numpy engine and AdvancedVI, in one run on the same cores.

    python benchmarks/engines.py                      # some fifteen minutes
    python benchmarks/engines.py --problems rpoisson-small --families mean-field

Needs a Julia environment (`pyturingvi setup`). Each case runs in a process of its own, pinned to `--cores`; Julia runs
on one thread in any case. A row: milliseconds an iteration of each engine (noise, gradient, Adam inside `tv.fit`, the
fastest tenth of a second), AdvancedVI's on the same log density where it has the family (its own Adam and ClipScale,
M = 8), and what crossing between the languages costs: the share of a 10,000-iteration fit with the default trace that
is not spent inside Julia.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from machine import markdown, settings
from one_case import family_of, load

HERE = Path(__file__).parent
PROBLEMS = ["rpoisson-small", "rpoisson-large", "irt-small", "irt-small-missing", "irt-large"]
PROBLEMS += ["volatility-small", "volatility-large"]
FAMILIES = ["mean-field", "structured", "markov", "full-rank"]
PEER = ("rpoisson-small", "volatility-small")  # AdvancedVI needs minutes for the others
BACKENDS = ["zygote", "mooncake"]


def per_iteration(model: Any, family: str, engine: str, seconds: float) -> float:
    """Milliseconds an update inside `tv.fit`."""
    import pyturingvi as tv
    from pyturingvi.comparisons.timing import update_times

    def run(n: int, **options: Any) -> Any:
        shared = {"elbo_samples": 1, "engine": engine, "progress": False}
        return tv.fit(model, family_of(family), tv.Adam(1e-4), n_iterations=n, **shared, **options)

    return min(update_times(run, seconds))


def crossing(model: Any, family: str) -> float:
    """Share of a 10,000-iteration fit with the default trace that is spent outside Julia."""
    import pyturingvi as tv

    runtime = tv.start_julia()
    code = "(f, x...; named...) -> (start = time_ns(); value = f(x...; named...); (value, (time_ns() - start) / 1e9))"
    timed, call, inside = runtime.seval(code), runtime.call, 0.0

    def timed_call(function: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal inside
        value, seconds = call(timed, function, *arguments, **named)
        inside += float(seconds)
        return value

    runtime.call = timed_call  # type: ignore[method-assign]
    try:
        for n in (200, 10_000):  # the first compiles what the measurement itself adds
            inside = 0.0
            fit = tv.fit(model, family_of(family), tv.Adam(1e-4), n_iterations=n, engine="julia", progress=False)
    finally:
        runtime.call = call  # type: ignore[method-assign]
    return 1 - inside / fit.seconds


def advanced_vi(model: Any, family: str, seconds: float) -> dict[str, float]:
    """Milliseconds an iteration of AdvancedVI with each backend."""
    import pyturingvi as tv

    runtime = tv.start_julia()
    runtime.seval(f'include(raw"{HERE / "advancedvi.jl"}")')
    measure = runtime.seval("AdvancedVIPeer.milliseconds")
    inner = model.to_julia(runtime)
    found = {}
    for backend in BACKENDS if family == "mean-field" else BACKENDS[:1]:
        found[f"advancedvi_{backend}_ms"] = float(runtime.call(measure, inner, family, backend, seconds))
    return found


def one(problem: str, family: str, seconds: float) -> dict[str, Any]:
    """All figures of one row."""
    model = load(problem)
    row: dict[str, Any] = {"problem": problem, "family": family}
    for engine in ("numpy", "julia"):
        row[f"{engine}_ms"] = per_iteration(model, family, engine, seconds)
    row["numpy_over_julia"] = row["numpy_ms"] / row["julia_ms"]
    if problem == "rpoisson-small" and family == "mean-field":
        row["crossing_percent"] = 100 * crossing(model, family)
    if problem in PEER and family in ("mean-field", "full-rank"):
        row |= advanced_vi(model, family, seconds)
        row["advancedvi_over_julia"] = min(v for k, v in row.items() if k.startswith("advancedvi_")) / row["julia_ms"]
    return row


def start_up() -> dict[str, float]:
    """Seconds of a first fit in a fresh process with each engine, imports and data included."""
    found = {}
    for engine in ("numpy", "julia"):
        code = (
            "import pyturingvi as tv; tv.fit(tv.load_problem('rpoisson-small'), optimizer=tv.Adam(1e-3), "
            f"n_iterations=100, elbo_samples=64, engine={engine!r}, progress=False)"
        )
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        found[engine] = min(times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    parser.add_argument("--cores", default="0", help="Cores to pin each case to, such as 0 or 0,1.")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "engines.csv")
    parser.add_argument("--case", nargs=2)
    a = parser.parse_args()
    if a.case:
        print(json.dumps(one(*a.case, a.seconds)))
        return
    cores = {int(core) for core in a.cores.split(",")}
    rows = []
    for problem in a.problems:
        for family in a.families:
            if family == "full-rank" and not problem.endswith("small"):
                continue
            if family == "markov" and not problem.startswith("volatility"):
                continue
            command = [sys.executable, __file__, "--case", problem, family, "--seconds", str(a.seconds)]
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=HERE, preexec_fn=lambda: os.sched_setaffinity(0, cores)
            )
            if done.returncode:
                print(f"{problem} {family}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                continue
            rows.append({**json.loads(done.stdout.strip().splitlines()[-1]), "cores": len(cores)})
            print(rows[-1], flush=True)
            pd.DataFrame(rows).to_csv(a.out, index=False, float_format="%.4g")
    table = pd.DataFrame(rows)
    print(markdown(table, list(table.columns)))
    print("first fit in a fresh process, seconds:", {k: round(v, 2) for k, v in start_up().items()})
    print(settings())


if __name__ == "__main__":
    main()
