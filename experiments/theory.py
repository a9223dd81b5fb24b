"""The paper's bounds (section 3) beside what is measured, on targets where every constant is known.

- `theory_variance`: the gradient-variance bound against the exact variance and a Monte Carlo measurement, over n,
  families and base distributions, on the isotropic target and on one whose terms couple z and y_n, at the start
  (m = 0, C = I) and at each family's optimum.
- `theory_complexity`: updates that the fixed-stepsize theorem promises against the updates that proximal SGD needs on
  the synthetic problem, at the theorem's stepsize and at the best one, and against the paper's figure 2.
- `theory_counterexample`: where the non-standardized energy of `l = z^2 + y^2` is not convex.

Each writes a CSV and a PNG into `results/`.

    python experiments/theory.py              # compute, then draw (about three minutes on one core)
    python experiments/theory.py --from-csv   # draw and print again from the committed CSVs
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import pandas as pd
from theory_pictures import draw_complexity, draw_counterexample, draw_variance
from tqdm import tqdm

import pyturingvi as tv
from pyturingvi.families import FAMILIES
from pyturingvi.reproduce.synthetic import published_scaling, stepsizes, updates_to_accuracy
from pyturingvi.theory import QuadraticTarget

RESULTS = Path(__file__).parent / "results"
BASES = {"gaussian": "gaussian", "laplace": "laplace", "student_t(10)": ("student_t", 10)}
SIZES = (10, 20, 40, 80, 160)
M_VARIANCE, PAIRS = 8, 300
M_COMPLEXITY, EPSILON, SEEDS, BEST_SEEDS = 10, 1.0, 4, 3
# the theorem's number of updates grows with n^3 for full-rank: half a million of them at n = 40
COMPLEXITY_SIZES = {"mean-field": (5, 10, 20, 40), "structured": (5, 10, 20, 40), "full-rank": (5, 10, 20)}
SCALE, BORDER = np.linspace(0.1, 2.0, 20), np.linspace(-2.0, 2.0, 41)


# ---- variance of the gradient ------------------------------------------------------------------------------
def coupled_target(n_local: int, n_global: int = 5, local_dim: int = 3, seed: int = 0) -> QuadraticTarget:
    """Terms `l_n(z, y_n)` with a dense Hessian of eigenvalues 0.5 to 10 in random directions, and random zbar_n."""
    rng = np.random.default_rng(seed)
    layout = tv.Layout(n_global, n_local, local_dim)
    terms = tv.theory.global_and_own(layout)
    size = n_global + local_dim
    hessians = []
    for _ in terms:
        directions = np.linalg.qr(rng.normal(size=(size, size)))[0]
        hessian = (directions * np.geomspace(0.5, 10.0, size)) @ directions.T
        hessians.append(0.5 * (hessian + hessian.T))
    return QuadraticTarget(layout, terms, hessians, [rng.normal(size=size) for _ in terms])


def variance_rows() -> pd.DataFrame:
    """One row a target, n, family, base and point."""
    rows = []
    for n in tqdm(SIZES, desc="variance", mininterval=5):
        isotropic = tv.models.IsotropicGaussian(n)
        targets = {
            "isotropic": (tv.theory.isotropic_target(isotropic), isotropic),
            "coupled": (coupled := coupled_target(n), coupled.model),
        }
        for name, (target, model) in targets.items():
            for family in FAMILIES.values():
                for base, spec in BASES.items():
                    chosen = family(base=spec)
                    start = chosen.bind(model.layout).initial_flat(np.zeros(model.dim), 1.0)
                    for point, params in (("start", start), ("optimum", target.optimum(chosen))):
                        what = (chosen, params, M_VARIANCE)
                        bound = tv.theory.gradient_variance_bound(target.components, *what)
                        exact = tv.theory.exact_gradient_variance(target, *what)
                        seen = tv.theory.measured_gradient_variance(model, *what, n_pairs=PAIRS, seed=n)
                        rows.append(
                            {
                                "target": name,
                                "point": point,
                                "family": chosen.name,
                                "base": base,
                                "n": n,
                                "d": model.dim,
                                "d_star": tv.theory.effective_dimension(model, chosen, target.components.coordinates),
                                "kurtosis": chosen.base_distribution.kurtosis,
                                "n_samples": M_VARIANCE,
                                "bound": bound,
                                "bound_per_term": tv.theory.gradient_variance_bound(
                                    target.components, *what, per_term=True
                                ),
                                "exact": exact,
                                "measured": seen.value,
                                "measured_se": seen.std_error,
                                "standard_errors_off": (seen.value - exact) / seen.std_error,
                                "holds": bound >= exact,
                                "loose_by": bound / exact,
                            }
                        )
    return pd.DataFrame(rows)


def print_variance(frame: pd.DataFrame) -> None:
    """Where the bound holds, and by what factor it is loose."""
    print(
        f"gradient variance: the bound holds in {int(frame.holds.sum())} of {len(frame)} cells; measured against exact:"
    )
    off = frame.standard_errors_off
    print(f"  rms {np.sqrt((off**2).mean()):.2f}, largest {off.abs().max():.2f} standard errors")
    print(f"  loose by {frame.loose_by.min():.0f} (least) to {frame.loose_by.max():.0f} (most)")
    ends = frame[(frame.base == "gaussian") & frame.n.isin((SIZES[0], SIZES[-1]))]
    table = ends.pivot_table(index=["target", "point", "family"], columns="n", values="loose_by")
    table["exponent in n"] = np.log(table[SIZES[-1]] / table[SIZES[0]]) / math.log(SIZES[-1] / SIZES[0])
    print("  loose by (Gaussian base), and how that factor grows:")
    print(table.round(2).to_string())


# ---- updates that proximal SGD needs -----------------------------------------------------------------------
def promise(family: str, n: int) -> tv.theory.Complexity:
    """The theorem's constants for the synthetic problem, from m = 0, C = I."""
    model = tv.models.IsotropicGaussian(n)
    target = tv.theory.isotropic_target(model)
    start = FAMILIES[family]().bind(model.layout).initial_flat(np.zeros(model.dim), 1.0)
    return tv.theory.fixed_stepsize_complexity(
        target.components,
        family,
        start,
        target.optimum(family),
        strong_convexity=1 / model.variance,  # the Hessian is I / variance: no eigenvalues to find
        smoothness=1 / model.variance,
        n_samples=M_COMPLEXITY,
        epsilon=EPSILON,
    )


def distances_at(family: str, n: int, constants: tv.theory.Complexity) -> np.ndarray:
    """`||lambda_T - lambda*||^2` after the promised T updates at the promised stepsize, one value a seed."""
    model = tv.models.IsotropicGaussian(n)
    optimum = tv.theory.isotropic_target(model).optimum(family)
    distances = []
    for seed in range(SEEDS):
        fit = tv.fit(
            model,
            family,
            tv.ProximalSGD(constants.stepsize),
            n_iterations=constants.n_updates,
            n_samples=M_COMPLEXITY,
            elbo_every=constants.n_updates,
            elbo_samples=1,
            init_scale=1.0,
            seed=seed,
            engine="numpy",
            progress=False,
            n_threads=1,
        )
        distances.append(((fit.params - optimum) ** 2).sum())
    return np.array(distances)


def mean_updates(family: str, n: int, stepsize: float, seeds: int, limit: int) -> float:
    """Mean number of updates until the accuracy is reached; NaN where one run does not get there."""
    runs = [updates_to_accuracy(family, n, stepsize, M_COMPLEXITY, s, limit, EPSILON).updates for s in range(seeds)]
    return math.nan if None in runs else float(np.mean([r for r in runs if r is not None]))


def complexity_rows() -> pd.DataFrame:
    """One row a family and n: run here for small n, the paper's figure 2 for n from 100 on."""
    rows = []
    published = published_scaling()
    cells = [(family, n, False) for family, sizes in COMPLEXITY_SIZES.items() for n in sizes]
    cells += [(row.family, row.n, True) for row in published.itertuples()]
    for family, n, in_paper in tqdm(cells, desc="complexity", mininterval=5):
        constants = promise(family, n)
        row = {
            "family": family,
            "n": n,
            "n_samples": M_COMPLEXITY,
            "epsilon": EPSILON,
            "d_star": tv.theory.effective_dimension(tv.models.IsotropicGaussian(n), family),
            "sigma2": constants.variance,
            "expected_smoothness": constants.expected_smoothness,
            "squared_distance": constants.squared_distance,
            "c_var": constants.c_var,
            "c_bias": constants.c_bias,
            "stepsize": constants.stepsize,
            "promised_updates": constants.n_updates,
        }
        if in_paper:
            found = published[(published.family == family) & (published.n == n)]
            row["published_best_updates"] = found.iterations.item() + 1  # its T is the updates made minus one
            row["promised_over_best"] = constants.n_updates / row["published_best_updates"]
        else:
            distances = distances_at(family, n, constants)
            row["updates_at_stepsize"] = mean_updates(family, n, constants.stepsize, SEEDS, constants.n_updates)
            row["loose_by"] = constants.n_updates / row["updates_at_stepsize"]
            row["distance_after_promised"] = distances.mean()
            row["distance_se"] = distances.std(ddof=1) / math.sqrt(SEEDS)
            row["holds"] = bool(distances.mean() + 2 * row["distance_se"] <= EPSILON)
            tries = [(mean_updates(family, n, step, BEST_SEEDS, 3_000), step) for step in stepsizes()[20:]]
            row["best_updates"], row["best_stepsize"] = min(t for t in tries if not math.isnan(t[0]))
            row["promised_over_best"] = constants.n_updates / row["best_updates"]
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["family", "n"], ignore_index=True)


def print_complexity(frame: pd.DataFrame) -> None:
    """What is promised, what was needed."""
    ran = frame[frame.updates_at_stepsize.notna()]
    holds = int(ran.holds.astype(bool).sum())
    print(
        f"complexity: the promise is kept in {holds} of {len(ran)} cells (distance after T at most eps = {EPSILON:g})"
    )
    names = ["family", "n", "d_star", "c_var", "c_bias", "stepsize", "promised_updates", "updates_at_stepsize"]
    names += ["loose_by", "distance_after_promised", "best_updates", "promised_over_best"]
    print(ran[names].to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    rates = []
    for family, here in frame.groupby("family"):
        paper = here[here.published_best_updates.notna()]
        for name in ("promised_updates", "published_best_updates"):
            rates.append((family, name, np.polyfit(np.log(paper.n), np.log(paper[name]), 1)[0]))
    print("  growth over n = 100..500, as a power of n: " + "; ".join(f"{f} {w} {r:.2f}" for f, w, r in rates))


# ---- the non-standardized counterexample -------------------------------------------------------------------
def counterexample_rows() -> pd.DataFrame:
    """One row a point (x, y) = (C_zz, A), with C_yy = 1: formula and the package's own energy, side by side."""
    # N(0, 1/2) each: minus its log density is z^2 + y^2 and a constant
    model = tv.models.IsotropicGaussian(1, n_global=1, local_dim=1, mean=0.0, variance=0.5)
    rows = []
    for x in SCALE:
        for y in BORDER:
            row = {"x": x, "y": y, "determinant": float(tv.theory.counterexample_determinant(x, y))}
            for name, family in (("", tv.Structured(standardized=False)), ("standardized_", tv.Structured())):
                # the flat vector is [m_z, m_y, C_zz, border, C_yy]; the counterexample holds m at 0
                hessian = tv.theory.energy_hessian(model, family, [0.0, 0.0, x, y, 1.0])[2:, 2:]
                if not name:
                    row["energy_determinant"] = np.linalg.det(hessian)
                    row["determinants_apart"] = abs(row["energy_determinant"] - row["determinant"])
                row[f"{name}energy_least_eigenvalue"] = np.linalg.eigvalsh(hessian)[0]
            elbo = tv.theory.counterexample_elbo_hessian(x, y, 1.0)
            row["negative_elbo_least_eigenvalue"] = np.linalg.eigvalsh(elbo)[0]
            rows.append(row)
    return pd.DataFrame(rows)


def print_counterexample(frame: pd.DataFrame) -> None:
    """Whether the sign of the determinant is what the formula says."""
    apart = frame.determinants_apart.max()
    beyond = frame.y.abs() > 1 / math.sqrt(3)
    print(
        f"counterexample: the package's energy against 8x^2(1 - 3y^2) at {len(frame)} points: at most {apart:.1e} apart"
    )
    for where, mask in (("|y| > 1/sqrt(3)", beyond), ("|y| < 1/sqrt(3) (where the paper says negative)", ~beyond)):
        here = frame[mask]
        print(f"  {where}: determinant negative at {int((here.energy_determinant < 0).sum())} of {len(here)} points")
    print(f"  negative ELBO not convex at {int((frame.negative_elbo_least_eigenvalue < 0).sum())} points")
    print(f"  standardized energy: least eigenvalue {frame.standardized_energy_least_eigenvalue.min():.6f} everywhere")


PARTS = {
    "variance": (variance_rows, draw_variance, print_variance),
    "complexity": (complexity_rows, draw_complexity, print_complexity),
    "counterexample": (counterexample_rows, draw_counterexample, print_counterexample),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from-csv", action="store_true", help="draw and print again from the committed CSVs")
    parser.add_argument("--only", choices=list(PARTS), help="one of the three parts")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    for name, (compute, draw, show) in PARTS.items():
        if arguments.only not in (None, name):
            continue
        path = RESULTS / f"theory_{name}.csv"
        if not arguments.from_csv:
            compute().to_csv(path, index=False, float_format="%.8g")
        frame = pd.read_csv(path)
        draw(frame, path.with_suffix(".png"))
        show(frame)


if __name__ == "__main__":
    main()
