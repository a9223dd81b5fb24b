"""Linear regression with known noise, whose posterior and predictions have closed forms: what a fit of it must tell.

`b` ~ N(0, PRIOR) are the coefficients; the three of `shift` ~ N(b[0], 1) tell nothing of the data, so that their
posterior is their prior; `mu` = b[0] + b[1] x, and `y` ~ N(mu, NOISE) on 12 days.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import quick_fit

import pyturingvi as tv
from pyturingvi.support.arviz import is_before_1

X = np.linspace(-1.0, 1.0, 12)
Y = 1.0 + 2.0 * X + 0.5 * np.random.default_rng(3).standard_normal(12)
DAYS = [f"day {k}" for k in range(12)]
N = 4_000
NOISE, PRIOR = 0.5, 2.0


def posterior(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the coefficients, by the normal equations."""
    design = np.column_stack([np.ones_like(x), x])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(2) / PRIOR**2)
    return covariance @ design.T @ y / NOISE**2, covariance


def exact_fit(model: tv.models.Model) -> tv.Fit:
    """The exact posterior, which is Gaussian: put into a fit of full rank by hand."""
    mean, covariance = posterior(X, Y)
    scale = np.eye(5)
    scale[:2, :2] = np.linalg.cholesky(covariance)
    scale[2:, :2] = scale[0, :2]  # shift = b[0] + noise
    location = np.concatenate([mean, np.repeat(mean[0], 3)])
    init = np.concatenate([location, *(scale[j:, j] for j in range(5))])
    found = quick_fit(model, "full-rank", tv.SGD(1e-12), n_iterations=1, init=init)
    np.testing.assert_allclose(found.location, location, atol=1e-8)
    return found


def assert_loo_is_exact(tree: Any) -> None:
    """Leaving one out of a linear regression has a closed form: the normal equations without that row."""
    before_1 = is_before_1()
    arviz = pytest.importorskip("arviz" if before_1 else "arviz_stats")
    by_hand = []
    for k in range(12):
        rest = np.arange(12) != k
        mean, covariance = posterior(X[rest], Y[rest])
        row = np.array([1.0, X[k]])
        by_hand.append(stats.norm.logpdf(Y[k], row @ mean, np.sqrt(row @ covariance @ row + NOISE**2)))
    found = arviz.loo(tree, pointwise=True)
    found = found.loo_i if before_1 else found.elpd_i
    # the error of 4,000 draws: a standard deviation of some 1.5 of the weighted densities, relative to their mean
    np.testing.assert_allclose(found.values, by_hand, atol=5 * 1.5 / np.sqrt(N))


def assert_data_anew_and_prior(fit: tv.Fit) -> None:
    """Data drawn anew and the prior have the moments of their formulas."""
    mean, covariance = posterior(X, Y)
    design = np.column_stack([np.ones(12), X])
    sd = np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design) + NOISE**2)
    found = fit.predict(n_draws=N)["y"]
    assert (np.abs(found.mean(0) - design @ mean) < 5 * sd / np.sqrt(N)).all()
    assert (np.abs(found.std(0) / sd - 1) < 5 / np.sqrt(2 * N)).all()
    rest = found[:, 0] - fit.sample(N)["mu"][:, 0]  # the noise is drawn besides the coefficients
    assert stats.kstest(rest / NOISE, "norm").pvalue > 1e-3
    np.testing.assert_array_equal(fit.predict(n_draws=8, seed=4)["y"], fit.predict(n_draws=8, seed=4)["y"])
    assert not (fit.predict(n_draws=8, seed=4)["y"] == fit.predict(n_draws=8, seed=5)["y"]).any()
    prior = fit.model.draw_prior(N, np.random.default_rng(0))
    assert set(prior) == set(fit.model.global_names)
    assert stats.kstest(prior["b"].ravel() / PRIOR, "norm").pvalue > 1e-3


def assert_predicted_at_3(y: np.ndarray) -> None:
    """Predictions (N,) where x is 3."""
    mean, covariance = posterior(X, Y)
    sd = np.sqrt(np.array([1.0, 3.0]) @ covariance @ np.array([1.0, 3.0]) + NOISE**2)
    assert abs(y.mean() - mean @ [1.0, 3.0]) < 5 * sd / np.sqrt(N)
    assert abs(y.std() / sd - 1) < 5 / np.sqrt(2 * N)
