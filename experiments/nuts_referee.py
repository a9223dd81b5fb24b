"""Turing's NUTS as referee of the fits: robust Poisson regression on 200 rows of rwm5yr.

For every global coefficient, the bias of a fit's mean in posterior standard deviations of NUTS, and the ratio of its
standard deviation to that of NUTS: structured fits of both engines and mean-field fits, several seeds each. The
scales are there as they are and as logarithms, on which the families are Gaussian. Writes `results/nuts_referee.csv`
(one row a run and coefficient), `.json` (settings, versions, how good the draws are) and `.png`.

The structured family's means of alpha and beta lie within 0.2 posterior standard deviations of NUTS, its sds are 0.86
to 1 times as wide; its log s_eta is 0.56 away and 0.70 times as wide, its log s_alpha and log s_beta 0.35 and 0.27 away
and 0.64 and 0.51 times as wide. `nuts_bias.py` tells why: it is the Gaussian families, not the optimizer or the pattern
of C. Nor is it NUTS, in spite of 192 divergences: importance sampling has the same means, and sds within 7 % but for
log s_alpha and log s_beta, where they are 1.08 and 1.17 times as large (and the families' sd ratios still smaller).

    python experiments/nuts_referee.py              # compute, then draw (about five minutes on one core)
    python experiments/nuts_referee.py --from-csv   # draw and print again from the committed files
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from referee import against, print_nuts, run_experiment, versions
from reproduced import errors_in_one_line

import pyturingvi as tv
from pyturingvi.data.rwm5yr import load_rwm5yr
from pyturingvi.plots import COLOURS, pyplot
from pyturingvi.support.files import write_picture

ROWS = 200
NUTS = {"n_draws": 1_500, "n_tune": 1_000, "n_chains": 4, "seed": 0, "sampler": "turing"}
FIT = {"n_iterations": 30_000, "n_samples": 8, "elbo_every": 30_000, "elbo_samples": 16_384}
DECAY = {"initial": 1e-2, "factor": 0.1, "every": 10_000}
# every run has a seed of its own
RUNS = {
    ("structured", "numpy"): range(0, 10),
    ("structured", "julia"): range(10, 20),
    ("mean-field", "numpy"): range(0, 4),
}
WORDS = ["family", "engine"]
NUMBERS = ["seed", "nuts_mean", "nuts_sd", "r_hat", "ess", "mean", "sd", "bias", "sd_ratio"]
LABELS = {"structured numpy": ("o", -0.2), "structured julia": ("s", 0.0), "mean-field numpy": ("^", 0.2)}


def moments_of_fit(fit: tv.Fit) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the globals, exactly; then those of the three scales, which are log-normal."""
    n_global = fit.model.layout.n_global
    scale = fit.scale[:n_global, :n_global].toarray()
    mean, variance = fit.location[:n_global], (scale**2).sum(axis=1)
    natural = np.exp(mean[:3] + variance[:3] / 2)
    return np.append(mean, natural), np.append(np.sqrt(variance), natural * np.sqrt(np.expm1(variance[:3])))


def compute() -> tuple[pd.DataFrame, dict[str, Any]]:
    """All runs against NUTS, and what they were made with."""
    model = tv.models.RobustPoisson(*load_rwm5yr(ROWS, seed=0))
    n_global = model.layout.n_global
    names = [*model.global_labels, *model.global_names[:3]]
    draws = tv.sample_nuts(model, progress=False, **NUTS)
    points = draws.points.reshape(-1, model.dim)[:, :n_global]
    values = np.column_stack([points, np.exp(points[:, :3])])
    summary = draws.summary()  # s_alpha, s_beta, s_eta, alpha, beta: ranks do not see the logarithm
    summary = pd.concat([summary, summary.iloc[:3]]).set_axis(names)
    referee = pd.DataFrame(
        {
            "nuts_mean": values.mean(axis=0),
            "nuts_sd": values.std(axis=0, ddof=1),
            "r_hat": summary.r_hat,
            "ess": summary.ess_bulk,
        },
        index=pd.Index(names, name="variable"),
    )
    print_nuts(draws)
    parts, fits = [], []
    for (family, engine), seeds in RUNS.items():
        for seed in seeds:
            rule = tv.Adam(tv.step_decay(**DECAY))
            fit = tv.fit(model, family, rule, seed=seed, engine=engine, progress=False, n_threads=1, **FIT)
            mean, sd = moments_of_fit(fit)
            part = against(referee, mean, sd)
            parts.append(part.assign(family=family, engine=engine, seed=seed))
            last = fit.elbo.iloc[-1]
            fits.append(
                {
                    "family": family,
                    "engine": engine,
                    "seed": seed,
                    "elbo": float(last.elbo),
                    "std_error": float(last.std_error),
                }
            )
            print(fits[-1], f"{fit.seconds:.0f} s", flush=True)
    frame = pd.concat(parts)
    facts = {
        "settings": {"rows": ROWS, "nuts": NUTS, "fit": FIT, "adam_step_decay": DECAY},
        "versions": versions(),
        "nuts": {"divergent": draws.n_divergent, "max_r_hat_with_locals": float(draws.diagnostics().max_r_hat.max())},
        "fits": fits,
    }
    return frame, facts


def engines_apart(frame: pd.DataFrame) -> pd.DataFrame:
    """Welch's t of numpy against julia for each coefficient: of the mean, and of the log of the sd."""
    here = frame[frame.family == "structured"]
    found = {}
    for name, values in (("mean", here["mean"]), ("sd", np.log(here["sd"]))):
        groups = values.groupby([here.index, here.engine], sort=False)
        mean, error = groups.mean().unstack(), groups.var().unstack() / groups.size().unstack()
        found[f"t_{name}"] = (mean["numpy"] - mean["julia"]) / np.sqrt(error["numpy"] + error["julia"])
        found[f"difference_{name}"] = mean["numpy"] - mean["julia"]
    return pd.DataFrame(found)


def show(frame: pd.DataFrame, facts: dict[str, Any]) -> None:
    """Coefficient by coefficient, the mean over seeds; then whether the engines agree."""
    keys = [frame.index, "family", "engine"]
    means = frame.groupby(keys, sort=False)[["bias", "sd_ratio"]].mean().unstack(["family", "engine"])
    referee = frame[["nuts_mean", "nuts_sd", "r_hat", "ess"]].groupby(level=0, sort=False).first()
    table = referee.copy()
    for what in ("bias", "sd_ratio"):
        for family, engine in RUNS:
            table[f"{what} {family[0]}{engine[0]}"] = means[what, family, engine]
    print(f"NUTS: {facts['nuts']['divergent']} divergent, largest r-hat {referee.r_hat.max():.4f}")
    print("bias in posterior sds of NUTS and ratio of sds (sn, sj: structured numpy, julia; mn: mean-field):")
    print(table.round(3).to_string())
    for family, engine in RUNS:
        one = frame[(frame.family == family) & (frame.engine == engine)]
        spread = one.groupby(level=0).bias.std(ddof=1)
        mean = one.groupby(level=0, sort=False)[["bias", "sd_ratio"]].mean()
        elbos = [fit["elbo"] for fit in facts["fits"] if (fit["family"], fit["engine"]) == (family, engine)]
        print(
            f"{family} {engine}: |bias| mean {mean.bias.abs().mean():.3f}, largest {mean.bias.abs().max():.3f} "
            f"({mean.bias.abs().idxmax()}); sd ratios {mean.sd_ratio.min():.3f} to {mean.sd_ratio.max():.3f}; "
            f"spread of the bias over seeds {spread.median():.4f} (median), {spread.max():.4f} (largest); "
            f"ELBO {np.mean(elbos):.2f}"
        )
    apart = engines_apart(frame).drop(index=["s_alpha", "s_beta", "s_eta"])  # their logarithms tell the same
    df = sum(len(seeds) - 1 for (family, _), seeds in RUNS.items() if family == "structured")
    rms = {name: np.sqrt((apart[f"t_{name}"] ** 2).mean()) for name in ("mean", "sd")}
    largest = {name: apart[f"t_{name}"].abs() for name in ("mean", "sd")}
    print(
        f"engines: Welch's t of numpy - julia over {len(apart)} coefficients: rms {rms['mean']:.2f} (means), "
        f"{rms['sd']:.2f} (log sds), {np.sqrt(df / (df - 2)):.2f} expected by chance with {df} degrees of freedom; "
        f"largest |t| {largest['mean'].max():.2f} ({largest['mean'].idxmax()}), "
        f"{largest['sd'].max():.2f} ({largest['sd'].idxmax()})"
    )


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Bias and sd ratio, coefficient by coefficient; one mark a seed."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(10, 6), layout="constrained", sharey=True)
    names = list(dict.fromkeys(frame.index))
    places = pd.Series(np.arange(len(names), dtype=float)[::-1], index=names)
    error = 2 / np.sqrt(frame.ess.groupby(level=0, sort=False).first())
    for ax, column, centre, title in (
        (axes[0], "bias", 0.0, "(mean − NUTS mean) / NUTS sd"),
        (axes[1], "sd_ratio", 1.0, "sd / NUTS sd"),
    ):
        width = error if column == "bias" else error / np.sqrt(2)
        ax.barh(places, 2 * width, left=centre - width, height=0.8, color="0.88", label="NUTS ± 2 standard errors")
        ax.axvline(centre, color="0.3", lw=0.8)
        for (family, engine), _ in RUNS.items():
            marker, shift = LABELS[f"{family} {engine}"]
            part = frame[(frame.family == family) & (frame.engine == engine)]
            ax.plot(
                part[column],
                places[part.index] - shift,
                marker,
                color=COLOURS[family],
                mfc="none",
                ms=4,
                label=f"{family}, {engine}",
            )
        ax.set_xlabel(title)
    axes[0].set_yticks(places, names)
    figure.legend(*axes[1].get_legend_handles_labels(), fontsize=8, ncols=4, loc="outside lower center")
    figure.suptitle(f"rpoisson, {ROWS} rows of rwm5yr: fits against NUTS, one mark a seed", fontsize=11)
    write_picture(figure, path, dpi=110)


if __name__ == "__main__":
    with errors_in_one_line():
        run_experiment(__doc__, "nuts_referee", compute, draw, show, WORDS, NUMBERS)
