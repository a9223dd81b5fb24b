"""How right fits are: each global of twelve problems against quadrature or a long run of NUTS, and the fits' verdicts.

    python benchmarks/reference_exact.py                   # quadrature where it can be: results/references_exact.csv
    python benchmarks/references.py nuts [PROBLEM ...]     # NUTS, once: results/references_nuts.csv
    python benchmarks/references.py fits [PROBLEM ...]     # the fits beside it: results/references.csv
    python benchmarks/references.py race [PROBLEM ...]     # rpoisson-small, fit and refined, beside NUTS: seconds
    python benchmarks/references.py table                  # compared anew, the worst global of each fit, as Markdown

`bias` is the distance of a mean from the reference in its standard deviations, `ratio` that of the standard
deviations. Scales are compared as logarithms. Rows are written as they are found, in place of those of the same problem
(and method); every process of an hour can be stopped.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from machine import markdown
from reference_problems import PROBLEMS
from reference_runs import METHODS, TARGET, clock, fitted, refined, run_nuts, scalars

RESULTS = Path(__file__).parent / "results"
NUTS_FILE, EXACT_FILE, FILE, RACE_FILE = (
    RESULTS / f"references{name}.csv" for name in ("_nuts", "_exact", "", "_race")
)
RACE = "rpoisson-small"
COLUMNS = ["problem", "global", "mean", "sd"]


# ---- files ----------------------------------------------------------------------------------------------------
def write(path: Path, key: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """Put the rows of a problem (and method) into a table, in place of those it has."""
    new = pd.DataFrame([{**key, **row} for row in rows])
    if path.exists():
        old = pd.read_csv(path)
        same = np.logical_and.reduce([old[column] == value for column, value in key.items()])
        new = pd.concat([old[~same], new]) if (~same).any() else new
    order = {name: k for k, name in enumerate(PROBLEMS)}
    new = new.sort_values("problem", key=lambda column: column.map(order), kind="stable")
    new.to_csv(path, index=False, float_format="%.5g")


def reference() -> pd.DataFrame:
    """True mean and sd by problem and global: of `reference_exact.py` where it has them, else of NUTS."""
    tables = [pd.read_csv(path) for path in (EXACT_FILE, NUTS_FILE) if path.exists()]
    found = pd.concat(tables).drop_duplicates(["problem", "global"]) if tables else pd.DataFrame(columns=COLUMNS)
    return found[COLUMNS].set_index(COLUMNS[:2])


def compared(fits: pd.DataFrame) -> pd.DataFrame:
    """Rows of fits with `bias` and `ratio` against the reference as it now is; nan where there is none."""
    right = reference().reindex(pd.MultiIndex.from_frame(fits[COLUMNS[:2]]))
    mean, sd = right["mean"].to_numpy(), right["sd"].to_numpy()
    return fits.assign(bias=(fits["mean"] - mean) / sd, ratio=fits["sd"] / sd)


# ---- parts ----------------------------------------------------------------------------------------------------
def nuts(a: argparse.Namespace) -> None:
    """Chains of NUTS on each problem, its table written anew after every chain."""
    for name in a.problems or PROBLEMS:
        for rows in run_nuts(PROBLEMS[name](), 60 * a.minutes, a.warmup, a.draws):
            write(NUTS_FILE, {"problem": name}, rows)
            worst, least = max(row["r_hat"] for row in rows), min(row["ess_bulk"] for row in rows)
            print(f"{name}: {rows[0]['chains']} chains, R-hat {worst:.4f}, ESS {least:.0f}, {rows[0]['seconds']} s",
                  flush=True)  # fmt: skip


def fits(a: argparse.Namespace) -> None:
    """Each method on each problem."""
    for name in a.problems or PROBLEMS:
        problem = PROBLEMS[name]()
        for method in a.methods:
            found = METHODS[method](problem, method)
            seconds, cpu = found.seconds.round(2)
            common = {"seconds": seconds, "cpu_s": cpu, "load": round(os.getloadavg()[0], 1), "verdict": found.verdict,
                      "told": found.told}  # fmt: skip
            figures = {label: (values.mean(), values.std()) for label, values in found.draws.items()}
            rows = [{"global": label, "mean": mean, "sd": sd, **common} for label, (mean, sd) in figures.items()]
            rows = rows or [{"global": "", "mean": np.nan, "sd": np.nan, **common}]
            rows = compared(pd.DataFrame(rows).assign(problem=name)).to_dict("records")
            write(FILE, {"problem": name, "method": method}, rows)
            print(worst_of(pd.DataFrame(rows).assign(problem=name, method=method)).to_string(header=False), flush=True)


def race(a: argparse.Namespace) -> None:
    """Fit and refine on both engines, beside NUTS with 500 + 500 draws of one chain, compilation included."""
    for name in a.problems or [RACE]:
        race_on(name, a)
    frame = pd.read_csv(RACE_FILE)
    print(markdown(frame, list(frame)))


def race_on(name: str, a: argparse.Namespace) -> None:
    """The rows of one problem."""
    from numpyro.infer import MCMC, NUTS

    problem, right = PROBLEMS[name](), reference().loc[name]
    start = clock()
    mcmc = MCMC(NUTS(problem.peer), num_warmup=500, num_samples=500, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0))
    draws = jax.block_until_ready(mcmc.get_samples())
    of_nuts = clock() - start

    def add(method: str, seconds: Any, of_refine: Any, ess_share: float, draws: dict[str, np.ndarray]) -> None:
        ratios = [values.std() / right.loc[label, "sd"] for label, values in draws.items()]
        off = [abs(values.mean() - right.loc[k, "mean"]) / right.loc[k, "sd"] for k, values in draws.items()]
        row = {"seconds": seconds[0], "cpu_s": seconds[1], "of_refine": of_refine[0], "of_refine_cpu": of_refine[1],
               "share_of_nuts": seconds[0] / of_nuts[0], "share_of_nuts_cpu": seconds[1] / of_nuts[1],
               "ess_share": ess_share, "largest_bias": max(off), "least_ratio": min(ratios),
               "largest_ratio": max(ratios), "load": os.getloadavg()[0]}  # fmt: skip
        write(RACE_FILE, {"problem": name, "method": method}, [row])

    add("NumPyro NUTS", of_nuts, (np.nan, np.nan), np.nan, scalars(draws, problem.globals_))
    for engine in a.engines:
        fitted(PROBLEMS["four-groups"](), "structured", engine)  # imports, and the start of Julia
        for family in a.families:
            fit, seconds = fitted(problem, family, engine)
            found, more = refined(fit)
            draws = scalars(found.sample(20_000, local=False), problem.globals_)
            share = found.refined.ess / len(found.refined.draws)
            first = "fit" if family == "structured" else family
            add(f"{first} and refine, {engine}", seconds + more, more, share, draws)


# ---- what is shown --------------------------------------------------------------------------------------------
def worst_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each problem and method the largest bias, the ratio farthest from 1, seconds and verdict."""
    rows = []
    for (problem, method), part in frame.groupby(["problem", "method"], sort=False):
        row = {"problem": problem, "method": method, "bias": np.nan, "ratio": np.nan}
        if part["bias"].notna().any():
            row |= {"bias": part["bias"].iloc[part["bias"].abs().argmax()],
                    "ratio": part["ratio"].iloc[np.log(part["ratio"]).abs().argmax()]}  # fmt: skip
        rows.append(
            {
                **row,
                "seconds": part["seconds"].iloc[0],
                "cpu_s": part["cpu_s"].iloc[0],
                "verdict": part["verdict"].iloc[0],
            }
        )
    return pd.DataFrame(rows)


def table(a: argparse.Namespace) -> None:
    """Compare all fits with the reference as it now is, and show the worst global of each."""
    fits = compared(pd.read_csv(FILE).fillna({"verdict": "", "global": ""}))
    fits.to_csv(FILE, index=False, float_format="%.5g")
    frame = worst_of(fits)
    print(markdown(frame, list(frame)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["nuts", "fits", "race", "table"])
    parser.add_argument("problems", nargs="*", help=", ".join(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="of fits")
    parser.add_argument("--engines", nargs="+", default=["numpy", "julia"], help="of the race")
    parser.add_argument("--families", nargs="+", default=["structured"], help="of the race, to be refined")
    parser.add_argument("--minutes", type=float, default=12.0, help="of NUTS, for each problem")
    parser.add_argument("--warmup", type=int, default=1000, help=f"of a chain of NUTS (target acceptance {TARGET})")
    parser.add_argument("--draws", type=int, default=2000, help="of a chain of NUTS")
    a = parser.parse_args()
    unknown = set(a.problems) - set(PROBLEMS)
    if unknown:
        parser.error(f"no problem is called {', '.join(sorted(unknown))}")
    jax.config.update("jax_enable_x64", True)
    {"nuts": nuts, "fits": fits, "race": race, "table": table}[a.part](a)


if __name__ == "__main__":
    main()
