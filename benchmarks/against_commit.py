"""This checkout beside another one in one run: milliseconds an update and import time, or parameters bit by bit.

    git worktree add ../before COMMIT
    python benchmarks/against_commit.py ../before             # times, some five minutes
    python benchmarks/against_commit.py ../before --equal     # the same noise gives the same parameters, one minute

Both are driven through `tv.fit` alone, each in a child process of its own, pinned to the same cores. Timed fits take
turns, a few tenths of a second each, so that whatever else the machine does meets both sides. `ms` is the fastest
tenth of a second of each, `ratio` that of this checkout over the other's. Time is the processor's, which on one core is
the time that passes less the time that other processes take (`--clock wall` for that too). `--engine julia` does the
same with Julia.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
TIMING = HERE.parent / "pyturingvi" / "comparisons" / "timing.py"  # imports nothing of the package
PROBLEMS = ["rpoisson-small", "irt-small", "volatility-small"]  # irt simulated
FAMILIES = ["mean-field", "structured", "full-rank"]
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
IMPORTS = {"import pyturingvi": "tv", "and what a fit needs": "tv.fit, tv.Adam, tv.models.RobustPoisson, tv.Structured"}


# ---- in a child, with either version of the package --------------------------------------------------------
@cache
def model_of(problem: str) -> Any:
    import pyturingvi as tv

    return tv.load_problem(problem, simulated=problem.startswith("irt"))


def answer(problem: str, family: str, engine: str, clock: str, seconds: float, every: int | None) -> Any:
    """How many updates a tenth of a second has, or the times of so many."""
    import pyturingvi as tv

    def run(n: int, **options: Any) -> Any:
        shared = {"elbo_samples": 1, "engine": engine, "progress": False}
        return tv.fit(model_of(problem), family, tv.Adam(1e-4), n_iterations=n, **shared, **options)

    timing = runpy.run_path(str(TIMING))
    if every is None:
        return timing["updates_in"](run, 0.1)
    return timing["update_times"](run, seconds, every, CLOCKS[clock])


def equal_cases(engine: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of small fits, and the fits: models by families by rules along given noise, and settings one by one."""
    import pyturingvi as tv

    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    counts = rng.poisson(np.exp(0.3 + X @ [0.5, -0.4]))
    answers = (rng.uniform(size=(20, 5)) < 0.6).astype(float)
    incomplete = answers.copy()
    incomplete[3, 2] = np.nan
    models: dict[str, Any] = {
        "gaussian": tv.models.IsotropicGaussian(6),
        "rpoisson": tv.models.RobustPoisson(X, counts),
        "irt": tv.models.ItemResponse(answers),
        "irt with a missing answer": tv.models.ItemResponse(incomplete),
        "volatility": tv.models.StochasticVolatility(rng.normal(size=(12, 2))),
    }
    families: dict[str, Any] = {name: name for name in FAMILIES}
    families["structured, not standardized"] = tv.Structured(standardized=False)
    for base in ("laplace", ("student_t", 5.0)):
        families |= {f"{family.name}, {base}": family for family in (tv.Structured(base=base), tv.FullRank(base=base))}
    rules = {"Adam": tv.Adam(1e-2), "SGD": tv.SGD(1e-3)}
    rules |= {"ProximalSGD": tv.ProximalSGD(1e-3), "ProjectedSGD": tv.ProjectedSGD(1e-3, 0.05)}
    usual = {"n_iterations": 30, "n_samples": 4, "elbo_every": 10, "elbo_samples": 50}

    def fit(model: Any, family: Any = "structured", rule: Any = rules["Adam"], **changed: Any) -> Callable[[], Any]:
        options = {**usual, "engine": engine, "progress": False, **changed}
        return lambda: tv.fit(model, family, rule, **options)

    for kind, model in models.items():
        noise = rng.standard_normal((30, 4, model.dim))
        for family_name, family in families.items():
            for rule_name, rule in rules.items():
                yield f"{kind}; {family_name}; {rule_name}", fit(model, family, rule, noise=noise)
    model = models["rpoisson"]
    for name, changed in {
        "seed": {"seed": 2**63 + 1},
        "float32": {"dtype": "float32"},
        "start": {"init_location": 0.1, "init_scale": 0.5},
        "averaging": {"averaging": tv.PolynomialAveraging(8.0)},
        "step decay": {"rule": tv.Adam(tv.step_decay(1e-2, 0.5, 10))},
        "another family's fit": {"init": fit(model, "mean-field")()},
    }.items():
        yield f"rpoisson; {name}", fit(model, **changed)
    large = tv.load_problem("irt-small", simulated=True)  # so many parameters that threads share an update
    for name in FAMILIES[:2]:
        yield f"irt-small; {name}", fit(large, name, n_samples=8)


def next_line() -> str:
    os.set_blocking(sys.stdin.fileno(), True)  # Julia, once it runs in this process, has changed that
    return sys.stdin.readline().strip()


def serve(mode: str, engine: str) -> None:
    """Answer the parent: requests as JSON on standard input, answers on standard output."""
    if mode == "equal":
        arrays = {}
        for name, run in equal_cases(engine):
            fit = run()
            arrays[name] = np.concatenate([fit.params, fit.elbo[["elbo", "std_error"]].to_numpy().ravel()])
        np.savez(next_line(), **arrays)
        return
    while line := next_line():
        print(json.dumps(answer(**json.loads(line))), flush=True)


# ---- the parent ---------------------------------------------------------------------------------------------
class Child:
    """A process with the package of one checkout, pinned to the last cores."""

    def __init__(self, checkout: Path, mode: str, a: argparse.Namespace) -> None:
        cores = set(sorted(os.sched_getaffinity(0))[-a.cores :])
        command = [sys.executable, __file__, str(checkout), "--child", mode, "--engine", a.engine]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)}, preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        """Send one request and wait for its answer."""
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit("A child ended: see above.")
        return json.loads(line)


def time_updates(checkouts: list[Path], a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row a problem and family."""
    children = [Child(checkout, "time", a) for checkout in checkouts]
    for problem, family in itertools.product(a.problems, a.families):
        case = {"problem": problem, "family": family, "engine": a.engine, "clock": a.clock, "seconds": a.seconds}
        every = max(child.ask(**case, every=None) for child in children)
        rounds = []
        for k in range(a.rounds):
            order = children if k % 2 else children[::-1]
            times = {child: min(child.ask(**case, every=every)) for child in order}
            rounds.append([times[child] for child in children])
        yield {"what": f"{problem}, {family}", **ratios(rounds)}
    for child in children:
        child.process.communicate()


def time_imports(checkouts: list[Path], a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Milliseconds of an import in a fresh process, the start of Python left out."""
    now = CLOCKS[a.clock].__name__
    for what, more in IMPORTS.items():
        code = (
            f"from time import {now}; start = {now}(); import pyturingvi as tv; {more}; print(1e3 * ({now}() - start))"
        )
        rounds = []
        for _ in range(2 * a.rounds):
            environments = [{**os.environ, "PYTHONPATH": str(checkout)} for checkout in checkouts]
            command = [sys.executable, "-c", code]
            rounds.append([float(subprocess.check_output(command, env=one, cwd=HERE)) for one in environments])
        yield {"what": what, **ratios(rounds)}


def ratios(rounds: list[list[float]]) -> dict[str, float]:
    """Fastest times of both sides, their ratio, and the median of the rounds' ratios."""
    ms, before = (min(times) for times in zip(*rounds, strict=True))
    median = statistics.median(here / there for here, there in rounds)
    return {"ms": ms, "before_ms": before, "ratio": ms / before, "median_ratio": median}


def count_different(checkouts: list[Path], a: argparse.Namespace) -> int:
    """Make the same fits in both; how many differ."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{k}.npz" for k in (0, 1)]
        for checkout, path in zip(checkouts, paths, strict=True):
            Child(checkout, "equal", a).process.communicate(str(path))
            if not path.is_file():
                raise SystemExit("A child ended: see above.")
        new, old = (dict(np.load(path)) for path in paths)
    different = [name for name in new if not np.array_equal(new[name], old[name], equal_nan=True)]
    for name in different:
        print(f"{name}: differs by {abs(new[name] - old[name]).max():.1e} at most")
    print(f"{len(new) - len(different)} of {len(new)} fits are equal, bit for bit")
    return len(different)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of the other checkout")
    parser.add_argument("--equal", action="store_true", help="compare parameters instead of times")
    parser.add_argument("--engine", default="numpy", choices=["numpy", "julia"])
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    parser.add_argument("--cores", type=int, default=1, help="number of cores to pin both to")
    parser.add_argument("--clock", default="cpu", choices=list(CLOCKS))
    parser.add_argument("--seconds", type=float, default=0.3, help="time of one timed fit")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="CSV file for the rows")
    parser.add_argument("--child", choices=["time", "equal"], help=argparse.SUPPRESS)
    a = parser.parse_args()
    checkouts = [HERE.parent.resolve(), a.checkout.resolve()]
    if a.child:
        import pyturingvi

        if Path(pyturingvi.__file__).resolve().parents[1] != checkouts[1]:
            parser.error(f"{pyturingvi.__file__} is imported instead of the package in {checkouts[1]}.")
        serve(a.child, a.engine)
        return
    if a.equal:
        sys.exit(min(count_different(checkouts, a), 1))
    rows = []
    for row in itertools.chain(time_imports(checkouts, a), time_updates(checkouts, a)):
        rows.append(row)
        print("{what:<30} {ms:9.4f} ms, before {before_ms:9.4f} ms: ratio {ratio:.3f}".format(**row), end=" ")
        print(f"(median of the rounds {row['median_ratio']:.3f})", flush=True)
    print(f"largest ratio: {max(row['ratio'] for row in rows):.3f}")
    if a.out is not None:
        import pandas as pd
        from machine import settings  # which needs the package, as a child must not

        pd.DataFrame(rows).assign(engine=a.engine, cores=a.cores, **settings()).to_csv(a.out, index=False)


if __name__ == "__main__":
    main()
