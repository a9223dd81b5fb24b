"""What comes after the fit of a PyMC model: its likelihood, data anew, predictions, against conjugate formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from known_line import (
    DAYS,
    NOISE,
    PRIOR,
    N,
    X,
    Y,
    assert_data_anew_and_prior,
    assert_loo_is_exact,
    assert_predicted_at_3,
    exact_fit,
)
from scipy import special, stats
from targets import quick_fit

import pyturingvi as tv
from pyturingvi.errors import InputError

try:
    import pymc as pm
except (ImportError, AttributeError) as missing:  # the latter: its ArviZ with another one's parts and matplotlib 3.11
    pytest.skip(f"no PyMC: {missing}", allow_module_level=True)

DIGITS = 1e-8  # of a normal density: PyMC has the logarithm of the root of 2 pi in single precision


def line() -> pm.Model:
    """Linear regression with known noise; sites tell nothing of the data, so that their posterior is their prior."""
    with pm.Model(coords={"day": DAYS, "site": list("abc")}) as model:
        x = pm.Data("x", X, dims="day")
        b = pm.Normal("b", 0, PRIOR, shape=2)
        pm.Normal("shift", b[0], 1.0, dims="site")
        mu = pm.Deterministic("mu", b[0] + b[1] * x, dims="day")
        pm.Normal("y", mu, NOISE, shape=mu.shape, observed=Y, dims="day")
    return model


@pytest.fixture(scope="module")
def own() -> pm.Model:
    return line()


@pytest.fixture(scope="module")
def fit(own: pm.Model) -> tv.Fit:
    return exact_fit(tv.models.PyMC(own))


def test_the_likelihood_is_scipys_and_makes_up_the_density_with_the_prior(fit: tv.Fit) -> None:
    points = fit.sample_unconstrained(5)
    draws = fit.model.constrain(points)
    found = fit.model.log_likelihood(points)["y"]
    mu = draws["b"][:, :1] + draws["b"][:, 1:] * X
    np.testing.assert_allclose(found, stats.norm.logpdf(Y, mu, NOISE), rtol=0, atol=DIGITS)
    prior = stats.norm.logpdf(draws["b"], 0, PRIOR).sum(1)
    prior += stats.norm.logpdf(draws["shift"], draws["b"][:, :1], 1).sum(1)
    np.testing.assert_allclose(found.sum(1) + prior, fit.model.log_density(points), rtol=0, atol=20 * DIGITS)


def test_loo_and_the_groups_of_the_tree(fit: tv.Fit) -> None:
    tree = fit.to_arviz(N)
    assert set(tree) == {
        "posterior", "sample_stats", "log_likelihood", "posterior_predictive", "observed_data", "prior", "optimization"
    }  # fmt: skip
    assert tree["posterior"]["shift"].dims == ("chain", "draw", "site")
    for group in ("log_likelihood", "posterior_predictive", "observed_data"):
        assert tree[group]["day"].values.tolist() == DAYS
    assert_loo_is_exact(tree)


def test_data_anew_and_the_prior_have_the_moments_of_their_formulas(fit: tv.Fit) -> None:
    assert_data_anew_and_prior(fit)


def test_predictions_for_new_rows_and_new_groups(
    own: pm.Model, fit: tv.Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    new, coords = np.array([0.0, 3.0]), {"day": ["monday", "tuesday"]}
    own.set_data("x", np.zeros(12))  # later than the model was built: it does not count
    found, draws = fit.predict({"x": new}, N, coords=coords), fit.sample(N)
    assert set(found) == {"mu", "y"}
    assert "from the fit b, shift; drawn: mu, y" in capsys.readouterr().err
    np.testing.assert_allclose(found["mu"], draws["b"][:, :1] + draws["b"][:, 1:] * new, rtol=1e-12)
    assert_predicted_at_3(found["y"][:, 1])
    same = fit.predict({}, 4, anew=["shift"])
    np.testing.assert_allclose(same["mu"], fit.sample(4)["mu"], rtol=1e-12)
    more = fit.predict({"x": new}, N, coords={**coords, "site": list("defghij")})
    assert more["shift"].shape == (N, 7)
    assert stats.kstest((more["shift"] - draws["b"][:, :1])[:, 0], "norm").pvalue > 1e-3
    assert "from the fit b; drawn: shift, mu, y" in capsys.readouterr().err
    assert len(own.coords["day"]) == 12


@pytest.mark.parametrize(
    ("new", "options", "words"),
    [
        (3, {}, "new is a dictionary of its pm.Data"),
        ({"z": X}, {}, r"Unknown pm.Data in new 'z'\. .*Known: x"),
        ({"x": np.zeros((2, 5))}, {}, "new does not fit the model: .*1 dimension"),
        ({"x": X[:3]}, {}, "new does not fit the model: .*new coord values"),
        ({"x": X}, {"anew": ["shfit"]}, "Did you mean 'shift'"),
    ],
)
def test_predictions_that_cannot_be_are_refused(fit: tv.Fit, new: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit.predict(new, 4, **options)


def test_what_cannot_be_drawn_is_left_out_or_refused() -> None:
    with pm.Model() as custom:
        rate = pm.LogNormal("rate", 0, 1)
        pm.CustomDist("y", rate, logp=lambda value, rate: pm.math.log(rate) - rate * value, observed=np.abs(Y))
    fit = quick_fit(tv.models.PyMC(custom), n_iterations=1)
    tree = fit.to_arviz(3)
    assert "posterior_predictive" not in set(tree)
    rate = tree["posterior"]["rate"].values[0]
    by_hand = stats.expon.logpdf(np.abs(Y), scale=1 / rate[:, None])
    np.testing.assert_allclose(tree["log_likelihood"]["y"].values[0], by_hand, rtol=1e-12)
    with pytest.raises(InputError, match="PyMC cannot draw 'y'"):
        fit.predict()
    with pytest.raises(InputError, match=r"no pm\.Data"):
        fit.predict({"x": X})


def test_observed_values_that_are_nan_are_told_by_name() -> None:
    with pm.Model() as gaps:
        pm.Normal("y", pm.Normal("b"), 1.0, observed=pm.Data("seen", Y))
        pm.set_data({"seen": np.where(np.arange(len(Y)) == 2, np.nan, Y)})
    with pytest.raises(InputError, match=r"PyMC: 'y' is observed, but 1 of its .* are NaN .* row 2 .* pm\.Data"):
        tv.models.PyMC(gaps)


def test_refining_a_pymc_model_gives_its_evidence() -> None:
    """Eight schools with theta integrated out by hand: y ~ N(mu, tau^2 + sigma^2); mu and log tau by a fine grid."""
    y, sigma = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model(coords={"school": list("ABCDEFGH")}) as schools:
        m, tau = pm.Normal("mu", 0, 5), pm.LogNormal("tau", 1, 0.5)
        theta = pm.Normal("theta", m, tau, dims="school")
        pm.Normal("y", theta, sigma, observed=y, dims="school")
    mu, v = np.meshgrid(np.linspace(-25, 25, 401), np.linspace(-2, 4, 301))
    logs = stats.norm.logpdf(mu, 0, 5) + stats.norm.logpdf(v, 1, 0.5)
    for one, width in zip(y, sigma, strict=True):
        logs += stats.norm.logpdf(one, mu, np.hypot(np.exp(v), width))
    refined = tv.fit(tv.models.PyMC(schools), progress=False, refine=True)
    assert refined.refined is not None
    assert refined.refined.weighted
    evidence = special.logsumexp(logs) + np.log(50 / 400 * 6 / 300)
    assert abs(refined.refined.log_evidence - evidence) < 5 * refined.refined.log_evidence_error + 1e-3
    weights = np.exp(logs - special.logsumexp(logs))
    for name, grid in (("mu", mu), ("tau", np.exp(v))):
        mean = (weights * grid).sum()
        sd = np.sqrt((weights * (grid - mean) ** 2).sum())
        assert abs(refined.summary().loc[name, "mean"] - mean) < 5 * sd / np.sqrt(refined.refined.ess)


def test_missing_values_are_variables_and_the_others_are_data() -> None:
    gaps = np.where(np.arange(12) == 3, np.nan, Y)
    with pm.Model() as model:
        m = pm.Normal("m", 0, 1)
        with pytest.warns(pm.exceptions.ImputationWarning):
            pm.Normal("y", m, NOISE, observed=gaps)
    found = tv.models.PyMC(model)
    assert [one.values.tolist() for one in found.observations.values()] == [np.delete(Y, 3).tolist()]
    points = np.random.default_rng(0).normal(size=(2, 2))
    (logs,) = found.log_likelihood(points).values()
    by_hand = stats.norm.logpdf(np.delete(Y, 3), found.constrain(points)["m"][:, None], NOISE)
    np.testing.assert_allclose(logs, by_hand, rtol=0, atol=DIGITS)
