"""The paper's bounds (section 3) beside what is measured, on targets where every constant is known.

- variance: the gradient-variance bound against the exact variance and a Monte Carlo measurement, over n, families and
  base distributions, on the isotropic target and on one whose terms couple z and y_n, at the start (m = 0, C = I) and
  at each family's optimum.
- complexity: updates that the fixed-stepsize theorem promises against the updates that proximal SGD needs on the
  synthetic problem, at the theorem's stepsize and at the best one, and against the paper's figure 2.
- dimension: the effective dimension of every problem and family, beside what the paper's lemma gives.
- counterexample: where the non-standardized energy of `l = z^2 + y^2` is not convex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi import theory
from pyturingvi.errors import InputError
from pyturingvi.families import FullRank, MeanField, Structured
from pyturingvi.families.base_distributions import BaseSpec
from pyturingvi.layout import Layout
from pyturingvi.models import IsotropicGaussian
from pyturingvi.problems import list_problems
from pyturingvi.reproduce.figure import FAMILIES, Figure, Job
from pyturingvi.reproduce.synthetic.problem import PUBLISHED_SAMPLES, proximal_sgd, published_scaling, stepsizes
from pyturingvi.reproduce.tasks import run_tasks
from pyturingvi.reproduce.theory_report import read, report
from pyturingvi.support.files import write_table
from pyturingvi.theory import QuadraticTarget

if TYPE_CHECKING:
    import pandas as pd

CLASSES = dict(zip(FAMILIES, (MeanField, Structured, FullRank), strict=True))
BASES: dict[str, BaseSpec] = {"gaussian": "gaussian", "laplace": "laplace", "student_t(10)": ("student_t", 10)}
VARIANCE_SAMPLES, EPSILON = 8, 1.0
MOST_UPDATES = 3_000  # of a run that looks for the best stepsize


@dataclass(frozen=True)
class Size:
    """How much a preset computes: the n of each part, pairs of gradients, and seeds."""

    variance_n: tuple[int, ...]
    pairs: int
    complexity_n: dict[str, tuple[int, ...]]
    seeds: int
    best_seeds: int


# the theorem's number of updates grows with n^3 for full-rank: half a million of them at n = 40
SIZES = {
    "quick": Size(
        (10, 20, 40), 100, {"mean-field": (5, 10, 20), "structured": (5, 10, 20), "full-rank": (5, 10)}, 3, 1
    ),
    "paper": Size(
        (10, 20, 40, 80, 160),
        300,
        {"mean-field": (5, 10, 20, 40), "structured": (5, 10, 20, 40), "full-rank": (5, 10, 20)},
        4,
        3,
    ),
}
SCALE, BORDER = np.linspace(0.1, 2.0, 20), np.linspace(-2.0, 2.0, 41)


# ---- variance of the gradient ------------------------------------------------------------------------------
def coupled_target(n_local: int, n_global: int = 5, local_dim: int = 3, seed: int = 0) -> QuadraticTarget:
    """Terms `l_n(z, y_n)` with a dense Hessian of eigenvalues 0.5 to 10 in random directions, and random zbar_n."""
    rng = np.random.default_rng(seed)
    layout = Layout(n_global, n_local, local_dim)
    terms = theory.global_and_own(layout)
    size = n_global + local_dim
    hessians = []
    for _ in terms:
        directions = np.linalg.qr(rng.normal(size=(size, size)))[0]
        hessian = (directions * np.geomspace(0.5, 10.0, size)) @ directions.T
        hessians.append(0.5 * (hessian + hessian.T))
    return QuadraticTarget(layout, terms, hessians, [rng.normal(size=size) for _ in terms])


def variance_rows(n: int, name: str, family: str, base: str, pairs: int) -> list[dict[str, Any]]:
    """Two rows, one at the start and one at the optimum: bound, exact variance and measurement."""
    isotropic = IsotropicGaussian(n)
    target = theory.isotropic_target(isotropic) if name == "isotropic" else coupled_target(n)
    model = isotropic if name == "isotropic" else target.model
    chosen = CLASSES[family](base=BASES[base])
    start = chosen.bind(model.layout).initial_flat(np.zeros(model.dim), 1.0)
    rows = []
    for point, params in (("start", start), ("optimum", target.optimum(chosen))):
        what = (chosen, params, VARIANCE_SAMPLES)
        bound = theory.gradient_variance_bound(target.components, *what)
        exact = theory.exact_gradient_variance(target, *what)
        seen = theory.measured_gradient_variance(model, *what, n_pairs=pairs, seed=n)
        row = {"target": name, "point": point, "family": family, "base": base, "n": n, "d": model.dim}
        row["d_star"] = theory.effective_dimension(model, chosen, target.components.coordinates)
        row["kurtosis"] = chosen.base_distribution.kurtosis
        row["n_samples"] = VARIANCE_SAMPLES
        row["bound"] = bound
        row["bound_per_term"] = theory.gradient_variance_bound(target.components, *what, per_term=True)
        row |= {"exact": exact, "measured": seen.value, "measured_se": seen.std_error}
        row["standard_errors_off"] = (seen.value - exact) / seen.std_error
        row |= {"holds": bound >= exact, "loose_by": bound / exact}
        rows.append(row)
    return rows


def variance(job: Job, size: Size) -> pd.DataFrame:
    """One row a target, n, family, base and point."""
    import pandas as pd

    tasks = [
        (n, target, family, base, size.pairs)
        for n in size.variance_n
        for target in ("isotropic", "coupled")
        for family in FAMILIES
        for base in BASES
    ]
    # the longest, those of the largest n, first
    found = run_tasks(variance_rows, tasks[::-1], job, "variance")[::-1]
    return pd.DataFrame([row for rows in found for row in rows])


# ---- updates that proximal SGD needs -----------------------------------------------------------------------
def promise(family: str, n: int) -> theory.Complexity:
    """The theorem's constants for the synthetic problem, from m = 0, C = I."""
    model = IsotropicGaussian(n)
    target = theory.isotropic_target(model)
    start = CLASSES[family]().bind(model.layout).initial_flat(np.zeros(model.dim), 1.0)
    return theory.fixed_stepsize_complexity(
        target.components,
        family,
        start,
        target.optimum(family),
        strong_convexity=1 / model.variance,  # the Hessian is I / variance: no eigenvalues to find
        smoothness=1 / model.variance,
        n_samples=PUBLISHED_SAMPLES,
        epsilon=EPSILON,
    )


def distances_at(family: str, n: int, constants: theory.Complexity, seeds: int) -> np.ndarray:
    """`||lambda_T - lambda*||^2` after the promised T updates at the promised stepsize, one value a seed."""
    optimum = theory.isotropic_target(IsotropicGaussian(n)).optimum(family)
    stepsize, limit = constants.stepsize, constants.n_updates
    runs = [proximal_sgd(family, n, stepsize, seed=k, max_updates=limit, stop_within=None) for k in range(seeds)]
    return np.array([((run.params - optimum) ** 2).sum() for run in runs])


def mean_updates(family: str, n: int, stepsize: float, seeds: int, limit: int) -> float:
    """Mean number of updates until the accuracy is reached; NaN where one run does not get there."""
    runs = [proximal_sgd(family, n, stepsize, seed=k, max_updates=limit, stop_within=EPSILON) for k in range(seeds)]
    return float(np.mean([run.n_updates if run.arrived else math.nan for run in runs]))


def complexity_row(family: str, n: int, published: float | None, seeds: int, best_seeds: int) -> dict[str, Any]:
    """The promise, and what was needed: here, or T as published in figure 2."""
    constants = promise(family, n)
    row: dict[str, Any] = {"family": family, "n": n, "n_samples": PUBLISHED_SAMPLES, "epsilon": EPSILON}
    row["d_star"] = theory.effective_dimension(IsotropicGaussian(n), family)
    row |= {"sigma2": constants.variance, "expected_smoothness": constants.expected_smoothness}
    row |= {"squared_distance": constants.squared_distance, "c_var": constants.c_var, "c_bias": constants.c_bias}
    row |= {"stepsize": constants.stepsize, "promised_updates": constants.n_updates}
    if published is None:
        distances = distances_at(family, n, constants, seeds)
        row["updates_at_stepsize"] = mean_updates(family, n, constants.stepsize, seeds, constants.n_updates)
        row["loose_by"] = constants.n_updates / row["updates_at_stepsize"]
        row["distance_after_promised"] = distances.mean()
        row["distance_se"] = distances.std(ddof=1) / math.sqrt(seeds)
        row["holds"] = bool(distances.mean() + 2 * row["distance_se"] <= EPSILON)
        tries = [(mean_updates(family, n, step, best_seeds, MOST_UPDATES), step) for step in stepsizes()[20:]]
        row["best_updates"], row["best_stepsize"] = min(t for t in tries if not math.isnan(t[0]))
        row["promised_over_best"] = constants.n_updates / row["best_updates"]
    else:
        row["published_best_updates"] = published + 1  # its T is the updates made minus one
        row["promised_over_best"] = constants.n_updates / row["published_best_updates"]
    return row


def complexity(job: Job, size: Size) -> pd.DataFrame:
    """One row a family and n: run here for small n, the paper's figure 2 for n from 100 on."""
    import pandas as pd

    tasks: list[tuple[Any, ...]] = [(*row, 0, 0) for row in published_scaling().itertuples(index=False, name=None)]
    tasks += [(f, n, None, size.seeds, size.best_seeds) for f, sizes in size.complexity_n.items() for n in sizes]
    # a run first: it takes longest, and its columns come before those of the published
    frame = pd.DataFrame(run_tasks(complexity_row, tasks[::-1], job, "complexity"))
    return frame.sort_values(["family", "n"], ignore_index=True)


# ---- effective dimension -----------------------------------------------------------------------------------
def dimension(job: Job, size: Size) -> pd.DataFrame:
    """One row a problem and family: d* by counting, and by the paper's lemmas."""
    import pandas as pd

    rows = []
    for problem in list_problems().to_dict("records"):
        layout = Layout(problem["d_z"], problem["N"], problem["d_y"])
        series = problem["problem"].startswith("volatility")
        uses = (theory.global_own_and_previous if series else theory.global_and_own)(layout)
        for family in FAMILIES:
            lemma = {"full-rank": layout.dim, "structured": layout.n_global + layout.local_dim}.get(family, pd.NA)
            row = {"problem": problem["problem"], "family": family, "d": layout.dim}
            row |= {"d_z": layout.n_global, "d_y": layout.local_dim}
            row |= {"d_star": theory.effective_dimension(layout, family, uses), "paper": lemma}
            rows.append(row)
    return pd.DataFrame(rows)


# ---- the non-standardized counterexample -------------------------------------------------------------------
def counterexample(job: Job, size: Size) -> pd.DataFrame:
    """One row a point (x, y) = (C_zz, A), with C_yy = 1: formula and the package's own energy, side by side."""
    import pandas as pd

    # N(0, 1/2) each: minus its log density is z^2 + y^2 and a constant
    model = IsotropicGaussian(1, n_global=1, local_dim=1, mean=0.0, variance=0.5)
    rows = []
    for x in SCALE:
        for y in BORDER:
            row: dict[str, Any] = {"x": x, "y": y, "determinant": float(theory.counterexample_determinant(x, y))}
            for name, family in (("", Structured(standardized=False)), ("standardized_", Structured())):
                # the flat vector is [m_z, m_y, C_zz, border, C_yy]; the counterexample holds m at 0
                hessian = theory.energy_hessian(model, family, [0.0, 0.0, x, y, 1.0])[2:, 2:]
                if not name:
                    row["energy_determinant"] = np.linalg.det(hessian)
                    row["determinants_apart"] = abs(row["energy_determinant"] - row["determinant"])
                row[f"{name}energy_least_eigenvalue"] = np.linalg.eigvalsh(hessian)[0]
            elbo = theory.counterexample_elbo_hessian(x, y, 1.0)
            row["negative_elbo_least_eigenvalue"] = np.linalg.eigvalsh(elbo)[0]
            rows.append(row)
    return pd.DataFrame(rows)


PARTS = {"variance": variance, "complexity": complexity, "dimension": dimension, "counterexample": counterexample}


# ---- the files ---------------------------------------------------------------------------------------------
def compute(job: Job) -> None:
    """Write the CSV file of every part that has none yet; DataError, before any work, for one that cannot be used."""
    if job.engine == "julia":
        raise InputError("theory: its runs count updates on the NumPy engine; take engine='auto' or 'numpy'.")
    for part in PARTS:
        if job.file(part).exists():
            read(job, part)
    for part, make in PARTS.items():
        if not job.file(part).exists():
            write_table(job.file(part), make(job, SIZES[job.preset]), float_format="%.8g")


FIGURE = Figure(
    source="Section 3: variance bound, complexity, effective dimension and counterexample, against what is measured",
    presets={
        "quick": "n up to 40 (variance) and 20 (complexity); about a minute",
        "paper": "n up to 160 and 40, more seeds; about three minutes",
    },
    compute=compute,
    report=report,
    computed=[f"{part}.csv" for part in PARTS],
    reported=["variance.png", "complexity.png", "counterexample.png"],
)
