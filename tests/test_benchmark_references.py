"""Fits beside NUTS and quadrature: `benchmarks/references.py`, the files beside it, and what it has found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RESULTS = BENCHMARKS / "results"
FITS = pd.read_csv(RESULTS / "references.csv").fillna({"verdict": ""})
FAR, WIDE = 0.3, 1.5  # of a mean in standard deviations, of a standard deviation as a factor


def test_a_mixed_model_over_a_grid_is_a_multivariate_normal(monkeypatch):
    pytest.importorskip("numpyro")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from reference_exact import mixed

    rng = np.random.default_rng(0)
    group, y = np.array([0, 0, 1, 1, 1, 2]), rng.normal(size=6)
    fixed, effects = rng.normal(size=(6, 2)), rng.normal(size=(6, 2))
    prior_sd = np.array([2.0, 0.5])
    axes = [np.array([-1.0, 0.3]), np.array([-5.0, 0.1]), np.array([-0.4, 0.2])]
    logs, moments = mixed(y, group, effects, fixed, prior_sd, axes, ["a", "b", "u", "v", "w"])
    same = group[:, None] == group
    prior = fixed * prior_sd**2 @ fixed.T
    expected, means, variances = [], [], []
    for point in np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1):
        d, s = np.exp(point[:2]), np.exp(point[2])
        covariance = prior + same * (effects * d**2 @ effects.T) + s**2 * np.eye(6)
        scales = stats.halfnorm.logpdf(np.exp(point)).sum() + point.sum()
        expected.append(stats.multivariate_normal(np.zeros(6), covariance).logpdf(y) + scales)
        gain = (fixed * prior_sd**2).T @ np.linalg.inv(covariance)
        means.append(gain @ y)
        variances.append(prior_sd**2 - np.diag(gain @ (fixed * prior_sd**2)))
    np.testing.assert_allclose(np.diff(logs), np.diff(expected), atol=1e-10)
    for k, name in enumerate("ab"):
        np.testing.assert_allclose(moments[name][0], np.array(means)[:, k])
        np.testing.assert_allclose(moments[name][1], np.array(variances)[:, k])


# ---- what was found -----------------------------------------------------------------------------------------------
def test_nuts_has_what_quadrature_has():
    """Means within four standard errors; standard deviations to a twelfth, which the long tails of log scales need."""
    nuts, exact = (pd.read_csv(RESULTS / f"references_{name}.csv") for name in ("nuts", "exact"))
    both = nuts.merge(exact, on=["problem", "global"], suffixes=("_nuts", ""))
    assert len(both) >= 11
    error = both["sd"] / np.sqrt(both["ess_bulk"])
    assert ((both["mean_nuts"] - both["mean"]).abs() < 4 * error).all()
    np.testing.assert_allclose(both["sd_nuts"] / both["sd"], 1, atol=1 / 12)
    assert (nuts["r_hat"].dropna() < 1.01).all()


@pytest.mark.parametrize("problem", list(dict.fromkeys(FITS["problem"])))
def test_no_verdict_is_good_on_what_is_far_off(problem):
    good = FITS[(FITS["problem"] == problem) & (FITS["verdict"] == "good")]
    assert (good["bias"].abs() <= FAR).all()
    assert good["ratio"].between(1 / WIDE, WIDE).all()


@pytest.mark.parametrize("problem", list(dict.fromkeys(FITS["problem"])))
def test_what_is_refined_is_as_nuts_has_it_or_is_not_good(problem):
    refined = FITS[(FITS["problem"] == problem) & (FITS["method"] == "refined")]
    near = (refined["bias"].abs() <= 0.2).all() and refined["ratio"].between(0.85, 1.15).all()
    assert near or (refined["verdict"] != "good").all()
