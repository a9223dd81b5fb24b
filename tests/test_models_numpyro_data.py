"""What comes after the fit of a NumPyro model: its likelihood, data anew, predictions, against conjugate formulas."""

from __future__ import annotations

from typing import Any

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer import log_likelihood
from scipy import stats
from targets import quick_fit

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.models.jax_batches import in_64_bits

X = np.linspace(-1.0, 1.0, 12)
Y = 1.0 + 2.0 * X + 0.5 * np.random.default_rng(3).standard_normal(12)
DAYS = [f"day {k}" for k in range(12)]
N = 4_000
NOISE, PRIOR = 0.5, 2.0


def line(x: np.ndarray, y: np.ndarray | None = None, n_sites: int = 3) -> None:
    """Linear regression with known noise; sites tell nothing of the data, so that their posterior is their prior."""
    b = numpyro.sample("b", dist.Normal(0.0, PRIOR).expand([2]).to_event(1))
    with numpyro.plate("site", n_sites):
        numpyro.sample("shift", dist.Normal(b[0], 1.0))
    mu = numpyro.deterministic("mu", b[0] + b[1] * x)
    with numpyro.plate("day", len(x)):
        numpyro.sample("y", dist.Normal(mu, NOISE), obs=y)


def posterior(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the coefficients, by the normal equations."""
    design = np.column_stack([np.ones_like(x), x])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(2) / PRIOR**2)
    return covariance @ design.T @ y / NOISE**2, covariance


@pytest.fixture(scope="module")
def fit() -> tv.Fit:
    """The exact posterior, which is Gaussian: put into a fit of full rank by hand."""
    model = tv.models.NumPyro(line, (X, Y), coords={"day": DAYS})
    mean, covariance = posterior(X, Y)
    scale = np.eye(5)
    scale[:2, :2] = np.linalg.cholesky(covariance)
    scale[2:, :2] = scale[0, :2]  # shift = b[0] + noise
    location = np.concatenate([mean, np.repeat(mean[0], 3)])
    init = np.concatenate([location, *(scale[j:, j] for j in range(5))])
    found = quick_fit(model, "full-rank", tv.SGD(1e-12), n_iterations=1, init=init)
    np.testing.assert_allclose(found.location, location, atol=1e-8)
    return found


def test_the_likelihood_is_scipys_and_numpyros(fit: tv.Fit) -> None:
    points = fit.sample_unconstrained(5)
    draws = fit.model.constrain(points)
    found = fit.model.log_likelihood(points)["y"]
    mu = draws["b"][:, :1] + draws["b"][:, 1:] * X
    np.testing.assert_allclose(found, stats.norm.logpdf(Y, mu, NOISE), rtol=1e-12)
    with in_64_bits():
        theirs = log_likelihood(line, {name: draws[name] for name in ("b", "shift")}, X, Y)
    np.testing.assert_allclose(found, theirs["y"], rtol=1e-12)
    prior = stats.norm.logpdf(draws["b"], 0, PRIOR).sum(1) + stats.norm.logpdf(
        draws["shift"], draws["b"][:, :1], 1
    ).sum(1)
    np.testing.assert_allclose(found.sum(1) + prior, fit.model.log_density(points), rtol=1e-12)


def test_loo_and_the_groups_of_the_tree(fit: tv.Fit) -> None:
    """Leaving one out of a linear regression has a closed form: the normal equations without that row."""
    tree = fit.to_arviz(N)
    assert set(tree.children) == {
        "posterior", "sample_stats", "log_likelihood", "posterior_predictive", "observed_data", "prior", "optimization"
    }  # fmt: skip
    assert tree["observed_data"]["y"].dims == ("day",)
    np.testing.assert_array_equal(tree["observed_data"]["y"], Y)
    for group in ("log_likelihood", "posterior_predictive", "observed_data"):
        assert tree[group]["day"].values.tolist() == DAYS
    by_hand = []
    for k in range(12):
        rest = np.arange(12) != k
        mean, covariance = posterior(X[rest], Y[rest])
        row = np.array([1.0, X[k]])
        by_hand.append(stats.norm.logpdf(Y[k], row @ mean, np.sqrt(row @ covariance @ row + NOISE**2)))
    found = arviz_stats.loo(tree, pointwise=True)
    # the error of 4,000 draws: a standard deviation of some 1.5 of the weighted densities, relative to their mean
    np.testing.assert_allclose(found.elpd_i.values, by_hand, atol=5 * 1.5 / np.sqrt(N))


def test_data_anew_and_the_prior_have_the_moments_of_their_formulas(fit: tv.Fit) -> None:
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


def test_predictions_for_new_rows_and_new_groups(fit: tv.Fit, capsys: pytest.CaptureFixture[str]) -> None:
    new = np.array([0.0, 3.0])
    found, draws = fit.predict({"x": new, "y": None}, N), fit.sample(N)
    assert set(found) == {"mu", "y"}
    assert "from the fit b, shift; drawn: mu, y" in capsys.readouterr().err
    np.testing.assert_allclose(found["mu"], draws["b"][:, :1] + draws["b"][:, 1:] * new, rtol=1e-12)
    mean, covariance = posterior(X, Y)
    sd = np.sqrt(np.array([1.0, 3.0]) @ covariance @ np.array([1.0, 3.0]) + NOISE**2)
    assert abs(found["y"][:, 1].mean() - mean @ [1.0, 3.0]) < 5 * sd / np.sqrt(N)
    assert abs(found["y"][:, 1].std() / sd - 1) < 5 / np.sqrt(2 * N)
    more = fit.predict((new,), N, kwargs={"n_sites": 7})
    assert more["shift"].shape == (N, 7)
    assert stats.kstest((more["shift"] - draws["b"][:, :1])[:, 0], "norm").pvalue > 1e-3
    assert "from the fit b; drawn: shift, mu, y" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("new", "options", "words"),
    [
        (3, {}, "new is a dictionary of the arguments"),
        ({"z": X}, {}, "no argument 'z'; it has 'x', 'y', 'n_sites'"),
        ({"x": np.zeros((2, 5, 3))}, {}, "cannot be run with these arguments"),
        ({"x": X}, {"anew": ["shfit"]}, "Did you mean 'shift'"),
        ({"x": X}, {"kwargs": {}}, "kwargs goes with a tuple"),
    ],
)
def test_predictions_that_cannot_be_are_refused(fit: tv.Fit, new: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit.predict(new, 4, **options)


# ---- what is not a number a row ----------------------------------------------------------------------------
PAIRS, COUNTS = np.random.default_rng(0).normal(size=(4, 2)), np.array([3, 0, 2, -1])


def odd() -> None:
    """Vectors, counts of which one is masked, a factor, and data inside of a scan."""
    rate = numpyro.sample("rate", dist.LogNormal(0, 1))
    numpyro.factor("pull", -rate)
    with numpyro.plate("pair", 4):
        numpyro.sample("pairs", dist.MultivariateNormal(jnp.zeros(2), rate * jnp.eye(2)), obs=PAIRS)
        with numpyro.handlers.mask(mask=COUNTS >= 0):
            numpyro.sample("counts", dist.Poisson(rate), obs=COUNTS)


def looping() -> None:
    rate = numpyro.sample("rate", dist.LogNormal(0, 1))
    scan(lambda last, y: (numpyro.sample("y", dist.Normal(0.5 * last, rate), obs=y), None), 0.0, Y)


def test_vectors_have_one_number_and_masked_cells_none() -> None:
    model = tv.models.NumPyro(odd, coords={"pair": list("abcd")})
    assert set(model.observations) == {"pairs", "counts"}
    tree = quick_fit(model, n_iterations=1).to_arviz(3)
    logs, seen, rate = tree["log_likelihood"], tree["observed_data"], tree["posterior"]["rate"].values[0]
    assert logs["pairs"].dims == ("chain", "draw", "pair")
    assert seen["pairs"].dims == ("pair", "pairs_dim_1")
    assert tree["posterior_predictive"]["pairs"].shape == (1, 3, 4, 2)
    vectors = stats.norm.logpdf(PAIRS, 0, np.sqrt(rate[:, None, None])).sum(2)
    np.testing.assert_allclose(logs["pairs"].values[0], vectors, rtol=1e-12)
    assert seen["counts_pair"].values.tolist() == list("abc")
    np.testing.assert_array_equal(seen["counts"], COUNTS[:3])
    np.testing.assert_allclose(logs["counts"].values[0], stats.poisson.logpmf(COUNTS[:3], rate[:, None]), rtol=1e-12)


def test_data_inside_of_a_scan_have_a_likelihood_but_are_not_drawn() -> None:
    fit = quick_fit(tv.models.NumPyro(looping), n_iterations=1)
    tree = fit.to_arviz(3)
    assert "posterior_predictive" not in tree.children
    before = np.concatenate([[0.0], Y[:-1]])
    rate = tree["posterior"]["rate"].values[0]
    by_hand = stats.norm.logpdf(Y, 0.5 * before, rate[:, None])
    np.testing.assert_allclose(tree["log_likelihood"]["y"].values[0], by_hand, rtol=1e-12)
    with pytest.raises(InputError, match="'y' is observed inside of a scan"):
        fit.predict()
