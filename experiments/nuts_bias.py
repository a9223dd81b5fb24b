"""Why the Gaussian families differ from NUTS on robust Poisson regression: NUTS, the optimizer, or the families?

The data and fits are those of `nuts_referee.py`, where the structured family's log s_eta is 0.6 posterior standard
deviations from NUTS and 0.7 times as wide. Three checks, none of which uses NUTS:

- the posterior of the globals with every eta_i integrated out by quadrature, by importance sampling in 16 dimensions
  (no funnel of eta, no divergences), and the evidence with it;
- a structured fit twice as long as there, and a full-rank one started from it at smaller steps: full-rank holds the
  structured family, so it tells what that pattern costs;
- what Gaussian locals cost as s_eta changes. Given the globals, the ELBO replaces each row's log likelihood by the
  same less the KL divergence of the best Gaussian from p(eta_i | z), which grows with s_eta, the rows with few counts
  being skewed. A slope k in log s_eta moves a Gaussian posterior of variance v by -k v. And the locals of such a
  family are as wide whatever s_eta is, which holds s_eta near the value that this width fits.

Found: NUTS is right about log s_eta and about every mean (0.05 sds); its sds of log s_alpha and log s_beta are 0.93
and 0.86 times those of importance sampling, the others within 7 %. Full-rank is where structured is, in ELBO and in
every moment. Both are 0.55 sds below in log s_eta, of which the locals explain 0.54, and 0.71 times as wide; with the
coefficients held, locals of fixed width make that 0.81.

Writes `results/nuts_bias.csv` (one row a variable) and `.json`.

    python experiments/nuts_bias.py              # about two minutes on one core
    python experiments/nuts_bias.py --from-csv   # print again from the committed files
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from nuts_referee import ROWS
from referee import RESULTS, run_experiment
from reproduced import errors_in_one_line
from scipy import stats
from scipy.special import gammaln, logsumexp

import pyturingvi as tv
from pyturingvi.data.rwm5yr import load_rwm5yr

DRAWS, SEED, NU = 40_000, 0, 8
STRUCTURED = {"n_iterations": 60_000, "elbo_every": 60_000}, {"initial": 1e-2, "factor": 0.1, "every": 20_000}
FULL_RANK = {"n_iterations": 20_000, "elbo_every": 20_000}, {"initial": 1e-4, "factor": 0.1, "every": 10_000}
NODES = np.linspace(-8.0, 8.0, 129)  # the trapezoidal rule is exact to rounding for such integrands
NUMBERS = [
    "mean",
    "sd",
    "mean_se",
    "nuts_mean",
    "nuts_sd",
    "structured_mean",
    "structured_sd",
    "full_rank_mean",
    "full_rank_sd",
]
LOG_WEIGHTS = stats.norm.logpdf(NODES) + np.log(NODES[1] - NODES[0])


def row_log_likelihood(mean: np.ndarray, s_eta: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`log int Poisson(count | exp(eta)) N(eta | mean, s_eta) d eta`, over arrays that broadcast with counts last."""
    eta = mean[..., None] + s_eta[..., None] * NODES
    terms = counts[:, None] * eta - np.exp(eta) + LOG_WEIGHTS
    return logsumexp(terms, axis=-1) - gammaln(counts + 1)


def log_prior(z: np.ndarray) -> np.ndarray:
    """Of the globals (S, 16), log-Jacobians of the three scales included."""
    scales = np.exp(z[:, :3])
    value = (stats.t(4).logpdf(scales) + np.log(2) + z[:, :3]).sum(axis=1)
    value += stats.norm.logpdf(z[:, 3], 0, scales[:, 0])
    return value + stats.norm.logpdf(z[:, 4:], 0, scales[:, 1:2]).sum(axis=1)


def pareto_k(log_ratios: np.ndarray) -> float:
    """Shape of a generalized Pareto fitted to the largest importance ratios: below 0.7 they can be relied on."""
    ordered = np.sort(log_ratios)
    m = int(min(0.2 * len(ordered), 3 * np.sqrt(len(ordered))))
    ratios = np.exp(ordered[-m - 1 :] - ordered[-1])
    return float(stats.genpareto.fit(ratios[1:] - ratios[0], floc=0)[0])


def importance_sample(model: tv.models.RobustPoisson, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Globals (S, 16) and log importance ratios (S,); `centre` (16,) only decides how efficient it is.

    The log scales are proposed from t distributions, then (alpha, beta) given them from one about the mode of a
    quadratic approximation of the likelihood: with small s_beta its draws are small too.
    """
    rng = np.random.default_rng(SEED)
    design = np.column_stack([np.ones(len(model.y)), model.X])
    width = np.array([1.4, 0.6, 0.11])
    scores = rng.standard_t(NU, size=(DRAWS, 3))
    log_scales = centre[:3] + width * scores
    log_q = (stats.t(NU).logpdf(scores) - np.log(width)).sum(axis=1)
    # l(mu) is about l' mu + l''/2 (mu - mu_0)^2 in each row
    mu, s_eta, h = design @ centre[3:], np.exp(centre[2]), 0.02
    low, mid, high = (row_log_likelihood(mu + e, np.array(s_eta), model.y) for e in (-h, 0.0, h))
    slope, curvature = (high - low) / (2 * h), -(high - 2 * mid + low) / h**2
    information = (design.T * curvature) @ design
    linear = design.T @ (slope + curvature * mu)
    prior = np.exp(-2 * log_scales[:, [0] + [1] * model.X.shape[1]])
    precision = information + np.eye(prior.shape[1]) * prior[:, None, :]
    mode = np.linalg.solve(precision, np.broadcast_to(linear, prior.shape)[..., None])[..., 0]
    root = np.linalg.cholesky(precision)
    size = prior.shape[1]
    noise = stats.multivariate_t(np.zeros(size), np.eye(size), df=NU, seed=rng)
    e = noise.rvs(DRAWS)
    coefficients = mode + np.linalg.solve(root.transpose(0, 2, 1), e[..., None])[..., 0]
    log_q += noise.logpdf(e) + np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    z = np.hstack([log_scales, coefficients])
    likelihood = [
        row_log_likelihood(part[:, 3:] @ design.T, np.exp(part[:, 2:3]), model.y).sum(axis=1)
        for part in np.array_split(z, DRAWS // 200)
    ]
    return z, log_prior(z) + np.concatenate(likelihood) - log_q


def gaussian_locals(
    model: tv.models.RobustPoisson, coefficients: np.ndarray, log_s_eta: float
) -> tuple[float, float, float]:
    """Log likelihood, KL divergence and precision: what the best Gaussian of each `p(eta_i | z)` loses, over all rows.

    The precision is that of log s_eta, coefficients held, where these Gaussians move linearly but keep their width.
    """
    mu, s2 = model.X @ coefficients[1:] + coefficients[0], np.exp(2 * log_s_eta)
    mean, variance = np.log(model.y + 0.3), np.full(len(model.y), 0.3)
    for _ in range(500):
        variance = 0.5 * variance + 0.5 / (1 / s2 + np.exp(mean + variance / 2))
        rate = np.exp(mean + variance / 2)
        mean += 0.5 * (model.y - rate - (mean - mu) / s2) / (rate + 1 / s2)
    rate = np.exp(mean + variance / 2)
    elbo = model.y * mean - rate - gammaln(model.y + 1) - ((mean - mu) ** 2 + variance) / (2 * s2)
    elbo += 0.5 * np.log(variance / s2) + 0.5
    likelihood = row_log_likelihood(mu, np.array(np.exp(log_s_eta)), model.y).sum()
    # second derivatives of a row's ELBO in log s_eta (l) and in the mean (m), the mean being where it is best
    ll, lm, mm = -2 * ((mean - mu) ** 2 + variance) / s2, 2 * (mean - mu) / s2, -rate - 1 / s2
    return float(likelihood), float(likelihood - elbo.sum()), float((lm**2 / mm - ll).sum())


def cost_of_gaussian_locals(model: tv.models.RobustPoisson, mean: np.ndarray, sd: float) -> dict[str, float]:
    """At the posterior mean of the globals: the cost, its slope in log s_eta, and what they do to its mean and sd."""
    step = 0.02
    low, mid, high = (gaussian_locals(model, mean[3:], mean[2] + e) for e in (-step, 0.0, step))
    slope, curvature = (high[1] - low[1]) / (2 * step), -(high[0] - 2 * mid[0] + low[0]) / step**2
    return {
        "cost": mid[1],
        "slope": slope,
        "shift_in_sds": -slope * sd,
        "sd_given_coefficients": curvature**-0.5,
        "sd_with_fixed_widths": mid[2] ** -0.5,
    }


def globals_of(fit: tv.Fit) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the globals."""
    k = fit.model.layout.n_global
    return fit.location[:k], np.sqrt((fit.scale[:k, :k].toarray() ** 2).sum(axis=1))


def compute() -> tuple[pd.DataFrame, dict[str, Any]]:
    """All three checks."""
    model = tv.models.RobustPoisson(*load_rwm5yr(ROWS, seed=0))
    common = {"n_samples": 8, "elbo_samples": 65_536, "engine": "numpy", "progress": False, "n_threads": 1}
    settings, decay = STRUCTURED
    structured = tv.fit(model, "structured", tv.Adam(tv.step_decay(**decay)), seed=0, **settings, **common)
    dense = structured.scale.toarray()
    start = np.concatenate([structured.location, *(dense[j:, j] for j in range(model.dim))])  # m, then C by columns
    settings, decay = FULL_RANK
    full = tv.fit(model, "full-rank", tv.Adam(tv.step_decay(**decay)), seed=1, init=start, **settings, **common)

    z, log_ratios = importance_sample(model, structured.location[: model.layout.n_global])
    weights = np.exp(log_ratios - logsumexp(log_ratios))
    mean = weights @ z
    sd = np.sqrt(weights @ (z - mean) ** 2)
    table = pd.DataFrame({"mean": mean, "sd": sd}, index=pd.Index(model.global_labels, name="variable"))
    table["mean_se"] = np.sqrt(weights**2 @ (z - mean) ** 2)
    nuts = pd.read_csv(RESULTS / "nuts_referee.csv", index_col="variable").groupby(level=0).first().loc[table.index]
    table["nuts_mean"], table["nuts_sd"] = nuts.nuts_mean, nuts.nuts_sd
    for name, fit in (("structured", structured), ("full_rank", full)):
        table[f"{name}_mean"], table[f"{name}_sd"] = globals_of(fit)
    elbo = {name: fit.elbo.iloc[-1][["elbo", "std_error"]].to_dict() for name, fit in (("s", structured), ("f", full))}
    facts = {
        "settings": {"rows": ROWS, "draws": DRAWS, "seed": SEED, "structured": STRUCTURED, "full_rank": FULL_RANK},
        "importance": {"ess": float(1 / (weights**2).sum()), "pareto_k": pareto_k(log_ratios)},
        "log_evidence": float(logsumexp(log_ratios) - np.log(DRAWS)),
        "elbo": {"structured": elbo["s"], "full_rank": elbo["f"]},
        "gaussian_locals": cost_of_gaussian_locals(model, mean, sd[2]),
    }
    return table, facts


def show(table: pd.DataFrame, facts: dict[str, Any]) -> None:
    """The three checks in words."""
    shown = table[["mean", "mean_se", "sd"]].copy()
    for name in ("nuts", "structured", "full_rank"):
        shown[f"{name} bias"] = (table[f"{name}_mean"] - table["mean"]) / table["sd"]
        shown[f"{name} sd ratio"] = table[f"{name}_sd"] / table["sd"]
    importance, locals_ = facts["importance"], facts["gaussian_locals"]
    print(f"posterior by importance sampling: ESS {importance['ess']:.0f}, Pareto k {importance['pareto_k']:.2f}")
    print("biases in its sds, sd ratios to its sds:")
    print(shown.round(3).to_string())
    print(f"log evidence {facts['log_evidence']:.2f}")
    for name, value in facts["elbo"].items():
        gap = facts["log_evidence"] - value["elbo"]
        print(f"  ELBO {name}: {value['elbo']:.2f} +- {value['std_error']:.2f}, KL divergence {gap:.2f}")
    print(
        f"Gaussian locals cost {locals_['cost']:.2f} nats at the posterior mean and {locals_['slope']:.2f} more a unit "
        f"of log s_eta: a shift of {locals_['shift_in_sds']:.2f} sds"
    )
    print(
        f"sd of log s_eta, coefficients held: {locals_['sd_given_coefficients']:.4f}, with locals of fixed width "
        f"{locals_['sd_with_fixed_widths']:.4f}; found {table.structured_sd['log s_eta']:.4f} (structured)"
    )
    for name in ("structured", "full_rank"):
        print(f"  found ({name}): {shown[f'{name} bias']['log s_eta']:.2f} sds")


def draw(table: pd.DataFrame, path: Path) -> None:
    """No picture: `nuts_referee.png` has it."""


if __name__ == "__main__":
    with errors_in_one_line():
        run_experiment(__doc__, "nuts_bias", compute, draw, show, [], NUMBERS)
