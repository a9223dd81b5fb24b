"""Five models from every language: our fit beside the language's own variational inference and its sampler.

    pip install -e ".[data,numpyro,pymc]"            # and, elsewhere, `.[data,stan]` with numpyro, and pystan
    python benchmarks/doors.py                       # some thirty minutes
    python benchmarks/doors.py --doors Stan          # where BridgeStan is; the rows of the others stay
    python benchmarks/doors.py --problems radon --parts fit --anew
    python benchmarks/doors.py --parts               # nothing anew: the table alone

Each part of a case runs in a process of its own, and its figures are written as they come: to `results/doors.csv`, and
means and standard deviations of the globals to `results/doors_means.csv`. What is there already is left alone without
`--anew`. Packages that are missing are told, and their doors left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from machine import markdown, settings

HERE = Path(__file__).parent
TABLE, MEANS = HERE / "results" / "doors.csv", HERE / "results" / "doors_means.csv"
BOTH = ["NumPyro", "PyMC"]
PROBLEMS = {
    "eight schools": [*BOTH, "Stan"],
    "radon": [*BOTH, "Jax"],
    "sleepstudy": [*BOTH, "Stan"],
    "VerbAgg": BOTH,
    "grouseticks": BOTH,
}
PARTS = {"fit": ["NumPyro", "PyMC", "Jax", "Stan"], "vi": BOTH, "nuts": [*BOTH, "Stan"]}  # and who has them
DRAWS = {("VerbAgg", "NumPyro"): 3000, ("grouseticks", "NumPyro"): 3000, ("radon", "PyMC"): 3000}  # of others 1,000
DONE = {"fit": "elbo", "vi": "vi_elbo", "nuts": "nuts_s"}  # the column that tells
NEEDS = {"NumPyro": ["numpyro"], "PyMC": ["pymc"], "Jax": ["jax"], "Stan": ["bridgestan"], "Stan nuts": ["stan"]}
KEY = ["problem", "door"]
Table = dict[tuple[str, str], dict[str, Any]]
TIMES = [
    f"{name}{clock}" for name in ("build", "fit", "fit_again", "refine", "vi", "nuts") for clock in ("_s", "_cpu_s")
]
COLUMNS = [
    *KEY, "d", "structure", "family", "difference", "status", "verdict", "elbo", "elbo_se", "gap", "gap_of",
    "gap_refined", "refine_ess", "not_refined", "model_lines", "lines_more", *TIMES,
    "vi", "vi_elbo", "vi_elbo_se", "nuts_draws", "nuts_r_hat", "nuts_ess",
    "nuts_divergent", "nuts_gap",
    *(f"{part}_{what}" for part in ("fit", "vi", "nuts") for what in ("others", "load", "on")), "machine_cores", "date",
]  # fmt: skip
SHOWN = [
    *KEY, "difference", "elbo", "elbo_se", "gap", "gap_refined", "lines_more", "build_cpu_s", "fit_cpu_s",
    "vi_elbo", "vi_cpu_s", "nuts_draws", "nuts_cpu_s", "nuts_r_hat",
]  # fmt: skip


def read() -> Table:
    """The known figures of each case."""
    if not TABLE.exists():
        return {}
    rows = pd.read_csv(TABLE).to_dict("records")
    return {(row["problem"], row["door"]): {k: v for k, v in row.items() if pd.notna(v)} for row in rows}


def read_means() -> pd.DataFrame:
    """The long table of means."""
    return pd.read_csv(MEANS) if MEANS.exists() else pd.DataFrame()


def case(problem: str, door: str, part: str, draws: int) -> dict[str, Any] | None:
    """The figures of one part; None where it failed, with its last lines told."""
    command = [sys.executable, str(HERE / "door_case.py"), problem, door, part, "--draws", str(draws)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    if done.returncode:
        print("\n".join([f"{problem}, {door}, {part}:", *done.stderr.strip().splitlines()[-3:]]), file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def with_means(means: pd.DataFrame, problem: str, door: str, found: dict[str, dict[str, list[float]]]) -> pd.DataFrame:
    """The long table of means with those of one case in the place of its earlier ones."""
    rows = [
        {"problem": problem, "door": door, "by": by, "global": name, "mean": mean, "sd": sd}
        for by, values in found.items()
        for name, (mean, sd) in values.items()
    ]
    if not means.empty:
        old = (means["problem"] == problem) & (means["door"] == door) & means["by"].isin(list(found))
        means = means[~old]
    return pd.concat([means, pd.DataFrame(rows)], ignore_index=True)


def largest_gap(means: pd.DataFrame, problem: str, door: str, by: str) -> tuple[float, str]:
    """Largest difference of a global's mean from NumPyro's NUTS, in that one's standard deviations, and whose it is."""
    here = means[means["problem"] == problem]
    reference = here[(here["door"] == "NumPyro") & (here["by"] == "nuts")].set_index("global")
    ours = here[(here["door"] == door) & (here["by"] == by)].set_index("global")
    gap = ((ours["mean"] - reference["mean"]).abs() / reference["sd"]).dropna()
    return (float("nan"), "") if gap.empty else (float(gap.max()), str(gap.idxmax()))


def with_gaps(table: Table, means: pd.DataFrame) -> Table:
    """The table with the largest gaps of fits, refined fits and the other samplers."""
    for (problem, door), row in table.items():
        for by, column in {"fit": "gap", "refined": "gap_refined", "nuts": "nuts_gap"}.items():
            if not (by == "nuts" and door == "NumPyro"):
                row[column], worst = largest_gap(means, problem, door, by)
            if by == "fit":
                row["gap_of"] = worst
    return table


def globals_alone(means: pd.DataFrame) -> pd.DataFrame:
    """Of the samplers' variables, those that are global to a fit of the problem."""
    fits = means[means["by"] == "fit"]
    known = set(zip(fits["problem"], fits["global"], strict=True))
    keep = [pair in known for pair in zip(means["problem"], means["global"], strict=True)]
    return means[keep]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="*", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--doors", nargs="*", choices=list(PARTS["fit"]), default=list(PARTS["fit"]))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--draws", type=int, help="of NUTS, a chain, and as many to adapt; by default DRAWS")
    parser.add_argument("--anew", action="store_true", help="also what is there already")
    a = parser.parse_args()
    wanted = [
        (part, problem, door)
        for part in a.parts
        for problem in a.problems
        for door in PROBLEMS[problem]
        if door in a.doors and door in PARTS[part]
    ]
    for part, problem, door in wanted:
        missing = [p for p in NEEDS[door] + NEEDS.get(f"{door} {part}", []) if importlib.util.find_spec(p) is None]
        if missing:
            print(f"{problem}, {door}, {part}: not installed: {', '.join(missing)}", file=sys.stderr)
            continue
        if not a.anew and DONE[part] in read().get((problem, door), {}):
            continue
        row = case(problem, door, part, a.draws or DRAWS.get((problem, door), 1000))
        if row is None:
            continue
        means = with_means(read_means(), problem, door, row.pop("means", {}))
        table = read()  # as it is now: another process may have written meanwhile
        table[problem, door] = {**table.get((problem, door), {}), "problem": problem, "door": door, **row}
        table = with_gaps(table, means)
        write(table, means)
        print(problem, door, part, {name: row[name] for name in row if name.endswith(("_s", "elbo"))}, flush=True)
    print(markdown(pd.DataFrame(read().values()), SHOWN))
    print({name: value for name, value in settings().items() if value != "-"})


def write(table: Table, means: pd.DataFrame) -> None:
    """Both files, problems and doors in their order."""
    rows = [table[problem, door] for problem, doors in PROBLEMS.items() for door in doors if (problem, door) in table]
    pd.DataFrame(rows, columns=COLUMNS).to_csv(TABLE, index=False, float_format="%.6g")
    globals_alone(means).to_csv(MEANS, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
