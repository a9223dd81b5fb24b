"""Seconds until an answer: `tv.fit(model, "structured")` with no other argument, beside Adam and other libraries.

    pip install -e ".[data]" jax numpyro blackjax pymc      # the peers are optional
    python benchmarks/time_to_answer.py                     # all parts; hours
    python benchmarks/time_to_answer.py --only answer --problems rpoisson-small irt-small
    python benchmarks/time_to_answer.py --only peers --peers nuts

Parts: `answer`, the default fit of each problem, and that with the model's own family where it is another one: its
seconds against those of a number of structured Adam updates on the same engine, its ELBO against the one to reach.
`adam`, what Adam reaches at the stepsizes of `--adam` where that is the one to reach. `peers`, other libraries on the
same model, between two default fits of ours. `seeds`, the spread of the ELBO over `--seeds` seeds. Each case runs in a
process of its own, pinned to `--cores`; its rows replace those of the same case in `results/time_to_answer.csv`, the
others stay. The last lines say which goals are missed or open.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from answer_problems import GOALS, SPREAD
from answer_tables import PARTS, judged, merged, not_met, read, shown, write

HERE = Path(__file__).parent
PEERS = ["nuts", "autonormal", "advi", "pathfinder"]
PEER_PROBLEMS = {"eight-schools": PEERS, "rpoisson-small": PEERS, "rpoisson-large": ["nuts"]}
OWN_FAMILY = {"volatility-small", "volatility-middle", "volatility-large"}  # Markov


def case(script: str, part: str, problem: str, a: argparse.Namespace, *options: Any) -> list[dict[str, Any]]:
    """Rows of one case, from a process of its own; none where it failed (its last line of error is shown)."""
    command = [sys.executable, str(HERE / script), part, problem, "--quiet", str(a.quiet), *map(str, options)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=HERE, preexec_fn=lambda: os.sched_setaffinity(0, a.cores)
    )
    if done.returncode:
        print(f"  {part} {problem}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return []
    rows: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return rows


def answers(problem: str, engine: str, a: argparse.Namespace, family: str = "structured") -> list[dict[str, Any]]:
    timing = ["--engine", engine, "--seconds", a.seconds, "--fits", a.fits, "--family", family]
    method = "default" if family == "structured" else f"{family} family"
    rows = case("answer_case.py", "answer", problem, a, *timing)
    return [{"part": "answer", "problem": problem, "engine": engine, "method": method, **row} for row in rows]


def measure(part: str, problem: str, engines: list[str], a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one part on one problem."""
    for engine in engines:
        key = {"part": part, "problem": problem, "engine": engine}
        if part == "answer":
            for family in ["structured", "own"] if problem in OWN_FAMILY and engine == "numpy" else ["structured"]:
                if family in a.families:
                    yield from answers(problem, engine, a, family)
        elif part == "adam" and isinstance(GOALS[problem].elbo, str):
            family = GOALS[problem].elbo
            options = ["--engine", engine, "--family", family, "--iterations", a.iterations, "--stepsizes", *a.adam]
            for row in case("answer_case.py", "adam", problem, a, *options):
                yield {**key, "family": family, **row, "method": f"{family} {row['method']}"}
        elif part == "seeds" and problem in SPREAD:
            for row in case("answer_case.py", "seeds", problem, a, "--engine", engine, "--seeds", a.seeds):
                yield {**key, "method": f"seed {row['seed']}", **row}
    if part == "peers":
        yield from beside_peers(problem, engines, a)


def beside_peers(problem: str, engines: list[str], a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Other libraries on a problem, between two default fits of each engine."""
    wanted = [peer for peer in PEER_PROBLEMS.get(problem, []) if peer in a.peers]
    if not wanted:
        return
    ours = [row for engine in engines for row in answers(problem, engine, a)]
    found = [{"method": peer, **row} for peer in wanted for row in case("answer_peers.py", peer, problem, a)]
    again = [row for engine in engines for row in answers(problem, engine, a)]
    yield from again
    for engine in engines:
        mine = [row for row in ours + again if row["engine"] == engine]
        if mine:
            beside = {"ours_s": statistics.mean(row["seconds"] for row in mine), "ours_elbo": mine[-1]["elbo"]}
            yield from ({"part": "peers", "problem": problem, "engine": engine, **row, **beside} for row in found)


def engines_here(wanted: list[str]) -> list[str]:
    """Those of the wanted engines that are set up."""
    from pyturingvi.bridge.environment import find_environment

    if "julia" in wanted and find_environment() is None:
        print("no Julia is set up (`pyturingvi setup`): the Julia engine is left out", file=sys.stderr)
        return [engine for engine in wanted if engine != "julia"]
    return wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(GOALS), choices=list(GOALS), metavar="PROBLEM")
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, help="parts to run")
    parser.add_argument("--engines", nargs="+", default=["numpy", "julia"], choices=["numpy", "julia"])
    parser.add_argument("--families", nargs="+", default=["structured", "own"], choices=["structured", "own"])
    parser.add_argument("--fits", type=int, default=0, help="timed default fits; 0: five, three or one, by size")
    parser.add_argument("--adam", nargs="*", type=float, default=[1e-4, 5.6e-4, 1.8e-3], help="stepsizes")
    parser.add_argument("--iterations", type=int, default=50_000, help="updates of Adam")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    parser.add_argument("--cores", nargs="+", type=int, default=[0, 1], help="to pin each case to")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing Adam's updates, twice")
    parser.add_argument("--quiet", type=float, default=0.0, help="longest wait for others to pause")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "time_to_answer.csv")
    a = parser.parse_args()
    a.cores = set(a.cores) & os.sched_getaffinity(0) or os.sched_getaffinity(0)
    engines = engines_here(a.engines)
    frame = read(a.out)
    for problem in a.problems:
        for part in a.only:
            rows = list(measure(part, problem, engines, a))
            if rows:
                frame = merged(frame, [{**row, "cores": len(a.cores)} for row in rows])
                write(frame, a.out)  # a stopped run keeps its rows
                print(f"{part} {problem}: {len(rows)} rows", flush=True)
    if frame.empty:
        raise SystemExit("Error: nothing was measured.")
    tables = judged(frame)
    for part, table in tables.items():
        print(f"\n{part}\n\n{shown(part, table)}")
    print("\nNot met or open:", *not_met(tables) or ["nothing"], sep="\n  ")


if __name__ == "__main__":
    main()
