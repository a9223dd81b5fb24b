"""Predictions against exact moments and SciPy, resampled draws against known densities, and what fits show."""

from __future__ import annotations

import copy
import re
from typing import Any
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from model_checks import BUNDLED
from scipy import integrate, special, stats
from targets import GaussianTarget, fit_at, quick_fit

import pyturingvi as tv
from pyturingvi.errors import InputError, UnreliableError


# ---- new rows ----------------------------------------------------------------------------------------------
@pytest.fixture
def rows() -> tv.models.RobustPoisson:
    x = np.random.default_rng(5).normal(size=(30, 2))
    table = pd.DataFrame(x, columns=["age", "dose"])
    return tv.models.RobustPoisson(table, np.random.default_rng(4).poisson(2.0, size=30))


def test_new_rows_have_the_moments_of_a_poisson_log_normal(rows: tv.models.RobustPoisson) -> None:
    """At one point: E y = exp(m + s^2/2), Var y = E y + (exp(s^2) - 1) (E y)^2."""
    n = 40_000
    point = rows.unconstrain(
        {"s_alpha": 1.0, "s_beta": 1.0, "s_eta": 0.4, "alpha": 0.5, "beta": [0.3, -0.2], "eta": np.zeros(30)}
    )
    new = pd.DataFrame({"dose": [0.0, 2.0], "more": ["a", "b"], "age": [1.0, 0.0]})
    found = rows.predict(np.repeat(point, n, axis=0), new, np.random.default_rng(0), offset=[0.0, 1.0])
    mean = np.array([0.5 + 0.3, 0.5 - 0.4 + 1.0])
    for k in range(2):
        assert stats.kstest(found["eta"][:, k], stats.norm(mean[k], 0.4).cdf).pvalue > 1e-3
    expected = np.exp(mean + 0.08)
    variance = expected + np.expm1(0.16) * expected**2
    assert (np.abs(found["y"].mean(axis=0) - expected) < 5 * np.sqrt(variance / n)).all()
    np.testing.assert_allclose(found["y"].var(axis=0), variance, rtol=0.08)


def test_a_fit_predicts_over_its_own_draws(rows: tv.models.RobustPoisson) -> None:
    fit = quick_fit(rows, n_iterations=20)
    new = rows.X[:3]
    found, draws = fit.predict(new, 50, seed=2), fit.sample(50, seed=2)
    residual = found["eta"] - draws["alpha"][:, None] - draws["beta"] @ new.T
    assert stats.kstest((residual / draws["s_eta"][:, None]).ravel(), stats.norm.cdf).pvalue > 1e-3
    table = pd.DataFrame(new[:, ::-1], columns=["dose", "age"])
    np.testing.assert_array_equal(fit.predict(table, 50, seed=2)["y"], found["y"])


def test_rows_that_do_not_fit_the_model_are_refused(rows: tv.models.RobustPoisson) -> None:
    fit = quick_fit(rows, n_iterations=1)
    for new, words in (
        (pd.DataFrame({"age": [1.0]}), "new has no column 'dose'"),
        (np.zeros((2, 3)), "must have the model's 2 columns, got 3"),
        ([[np.nan, 0.0]], "NaN"),
    ):
        with pytest.raises(InputError, match=words):
            fit.predict(new)
    with pytest.raises(InputError, match="new has 2 rows but offset has 1"):
        fit.predict(np.zeros((2, 2)), offset=[1.0])
    with pytest.raises(InputError, match="offset goes with new data"):
        fit.predict(offset=[1.0])
    exposed = tv.models.RobustPoisson(rows.X, rows.y, np.ones(30))
    with pytest.raises(InputError, match="the model has an offset"):
        quick_fit(exposed, n_iterations=1).predict(np.zeros((2, 2)))
    with pytest.raises(InputError, match="n_draws must be a whole number"):
        fit.predict(n_draws=0)


# ---- new students ------------------------------------------------------------------------------------------
def test_abilities_of_new_students_have_their_posterior(irt: tv.models.ItemResponse) -> None:
    """Given the items, the posterior of one ability by quadrature; without answers N(0, 1)."""
    n = 2_000
    point = quick_fit(irt, n_iterations=20).sample_unconstrained(1, seed=1)
    items = irt.constrain(point)
    gamma, centre = items["gamma"][0], (items["beta"] + items["mu_beta"][:, None])[0]
    table = np.array([[1, 1, 0, np.nan, 1], [np.nan] * 5, [0, 0, 0, 0, 0]])
    found = irt.predict(np.repeat(point, n, axis=0), table, np.random.default_rng(0))

    def density(a: float, answers: np.ndarray) -> float:
        p = special.expit(gamma * a + centre)
        return float(stats.norm.pdf(a) * np.prod(np.where(np.isnan(answers), 1.0, np.where(answers == 1, p, 1 - p))))

    nodes = np.linspace(-8, 8, 2001)
    for j, answers in enumerate(table):
        mass = integrate.cumulative_trapezoid([density(a, answers) for a in nodes], nodes, initial=0)
        assert stats.kstest(found["alpha"][:, j], lambda a, m=mass: np.interp(a, nodes, m / m[-1])).pvalue > 1e-3
        chances = special.expit(gamma * found["alpha"][:, j, None] + centre)
        error = np.sqrt((chances * (1 - chances)).mean(axis=0) / n)
        assert (np.abs(found["responses"][:, j].mean(axis=0) - chances.mean(axis=0)) < 5 * error).all()


def test_new_students_are_read_as_score_reads_them(irt: tv.models.ItemResponse) -> None:
    fit = quick_fit(irt, n_iterations=5)
    long = pd.DataFrame({"who": ["ann", "ann", "bo"], "what": ["item1", "item3", "item1"], "right": [1, 0, 1]})
    found = fit.predict(long, 20, student="who", item="what", response="right")
    assert found["alpha"].shape == (20, 2)
    wide = pd.DataFrame({"item3": [0, np.nan], "item1": [1, 1]}, index=["ann", "bo"])
    np.testing.assert_array_equal(fit.predict(wide, 20)["responses"], found["responses"])
    with pytest.raises(InputError, match="Unknown item 'item9'"):
        fit.predict(pd.DataFrame({"item9": [1.0]}))
    with pytest.raises(InputError, match="predict: an array must have a column for each of the 5 items"):
        fit.predict([[1.0, 0.0]])


def test_days_are_a_forecast_and_the_data_anew_those_of_arviz() -> None:
    fit = quick_fit(copy.deepcopy(BUNDLED["volatility"]), n_iterations=5)
    found, forecast = fit.predict(3, 20, seed=1), fit.forecast(3, 20, seed=1)
    for name in ("volatility", "returns"):
        np.testing.assert_array_equal(found[name], forecast[name])
    with pytest.raises(InputError, match="days ahead, must be a whole number"):
        fit.predict([[1.0, 2.0]])
    again = fit.predict(n_draws=6, seed=4)["returns"]
    np.testing.assert_array_equal(fit.to_arviz(6, seed=4)["posterior_predictive"]["returns"].values[0], again)


def test_a_model_without_data_does_not_predict(isotropic: tv.models.Model) -> None:
    fit = quick_fit(isotropic, n_iterations=1)
    with pytest.raises(InputError, match="does not define `_predict`"):
        fit.predict([[1.0]])
    with pytest.raises(InputError, match="nothing observed"):
        fit.predict()


# ---- resampling --------------------------------------------------------------------------------------------
def test_resampled_draws_are_of_the_density_and_no_longer_of_the_fit(gaussian_target: GaussianTarget) -> None:
    """A mean-field fit, off by half a standard deviation: mean and covariance come out as the density has them."""
    target, n = gaussian_target, 20_000
    sd = np.sqrt(np.diag(target.covariance))
    flat = np.concatenate([target.mean + 0.3 * sd, 1.1 * sd])
    fit = fit_at(target.model, "mean-field", flat)
    found = fit.resample(n, seed=1)
    points = np.hstack([found["z"], found["y"].reshape(n, -1)])
    error = 5 * np.sqrt(8 / n)  # a fraction of the draws counts
    assert (np.abs(points.mean(axis=0) - target.mean) < error * sd).all()
    assert np.abs(np.cov(points.T) / np.outer(sd, sd) - target.covariance / np.outer(sd, sd)).max() < 0.12
    assert (np.abs(fit.sample(n)["z"].mean(axis=0) - target.mean[:2]) > 0.25 * sd[:2]).all()


def test_globals_are_resampled_with_the_locals_integrated_out() -> None:
    """Of 300 locals the joint weights are hopeless; those of the globals, N(5, 0.1) each, are not."""
    model = tv.models.IsotropicGaussian(300, n_global=2, local_dim=1)
    scale = np.sqrt(0.1)
    flat = np.concatenate([np.full(model.dim, 5 + 0.3 * scale), np.full(model.dim, 1.2 * scale)])
    fit = fit_at(model, "mean-field", flat)
    with pytest.raises(UnreliableError, match=r"302 variables at once have k-hat .* resample\(local=False\)"):
        fit.resample(100)
    found = fit.resample(1_000, local=False)
    assert list(found) == ["z"]
    for k in range(2):
        assert abs(found["z"][:, k].mean() - 5) < 5 * scale * np.sqrt(2 / 1_000)
        assert found["z"][:, k].std() == pytest.approx(scale, rel=0.1)
    far = fit_at(model, "mean-field", np.concatenate([np.full(model.dim, 9.0), np.full(model.dim, 0.1 * scale)]))
    with pytest.raises(UnreliableError, match="2 globals with the locals integrated out"):
        far.resample(100, local=False)


# ---- priors ------------------------------------------------------------------------------------------------
def test_draws_of_the_prior_have_the_priors_of_the_models() -> None:
    n, rng = 4_000, np.random.default_rng(1)
    half_t = stats.t(4)

    def agrees(values: np.ndarray, distribution: Any, half: bool = False) -> None:
        cdf = (lambda x: 2 * distribution.cdf(x) - 1) if half else distribution.cdf
        for column in values.reshape(n, -1).T:
            assert stats.kstest(column, cdf).pvalue > 1e-3

    found = BUNDLED["poisson"].draw_prior(n, rng)
    for name in ("s_alpha", "s_beta", "s_eta"):
        agrees(found[name], half_t, half=True)
    agrees(found["alpha"] / found["s_alpha"], stats.norm)
    agrees(found["beta"] / found["s_beta"][:, None], stats.norm)
    found = BUNDLED["irt"].draw_prior(n, rng)
    agrees(found["mu_beta"], half_t)
    agrees(np.log(found["gamma"]) / found["s_gamma"][:, None], stats.norm)
    agrees(found["beta"] / found["s_beta"][:, None], stats.norm)
    three = tv.models.StochasticVolatility(np.random.default_rng(7).normal(size=(12, 3)))
    found = three.draw_prior(n, rng)
    agrees(found["mu"], stats.cauchy(0, 10))
    agrees(found["phi"], stats.uniform(-1, 2))
    agrees(found["tau"], stats.cauchy(0, 5), half=True)
    correlations = (found["L"] @ found["L"].transpose(0, 2, 1))[:, *np.tril_indices(3, -1)]
    agrees((1 + correlations) / 2, stats.beta(1.5, 1.5))  # of LKJ(1) in three dimensions
    with pytest.raises(InputError, match="no draws of the prior"):
        BUNDLED["isotropic"].draw_prior(3, rng)


# ---- plots -------------------------------------------------------------------------------------------------
def test_a_forest_shows_the_summary(poisson: tv.models.RobustPoisson) -> None:
    fit = quick_fit(poisson, n_iterations=20)
    axes = fit.plot_forest(["beta", "eta"])
    table = fit.summary(["beta", "eta"])
    assert [label.get_text() for label in axes.get_yticklabels()] == list(table.index)
    points = axes.get_lines()[0]
    np.testing.assert_array_equal(points.get_xdata(), table["median"])
    assert list(points.get_ydata()) == sorted(points.get_ydata(), reverse=True)
    ends = np.array([segment[:, 0] for segment in axes.collections[0].get_segments()])
    np.testing.assert_array_equal(ends, table[["q5", "q95"]])
    assert len(fit.plot_forest().get_yticklabels()) == 6
    long = tv.models.RobustPoisson(np.zeros((201, 1)), np.ones(201))
    with pytest.raises(InputError, match="201 rows, more than 200"):
        quick_fit(long, n_iterations=1).plot_forest(["eta"])
    plt.close("all")


def test_pairs_and_priors_show_the_draws(poisson: tv.models.RobustPoisson) -> None:
    fit = quick_fit(poisson, n_iterations=20)
    draws, chosen = fit.sample(50, seed=3), ["alpha", "beta[x2]", "eta[4]"]
    figure = fit.plot_pair(chosen, 50, seed=3)
    below = figure.axes[2 * 3 + 1]  # of the last row, the middle one
    np.testing.assert_array_equal(below.get_lines()[0].get_xdata(), draws["beta"][:, 1])
    np.testing.assert_array_equal(below.get_lines()[0].get_ydata(), draws["eta"][:, 4])
    assert sum(axes.get_visible() for axes in figure.axes) == 6
    panels = fit.plot_prior(["s_eta", "beta"]).axes
    assert [axes.get_title() for axes in panels] == ["s_eta", "beta[x1]", "beta[x2]"]
    heights, edges = panels[0].patches[0].get_data()[:2]  # the part of the prior in sight, of a half Student-t(4)
    inside = np.diff(2 * stats.t.cdf(np.maximum(edges[[0, -1]], 0), 4) - 1)[0]
    assert (heights * np.diff(edges)).sum() == pytest.approx(inside, abs=5 * 0.5 / np.sqrt(4_000))
    for refused, words in (
        (lambda: fit.plot_pair(["alpha"]), "1 scalars are named; it takes 2 to 12"),
        (lambda: fit.plot_prior(["eta"]), "eta is a local variable"),
        (lambda: fit.plot_pair(["alpa", "beta"]), "Unknown variable 'alpa'"),
    ):
        with pytest.raises(InputError, match=words):
            refused()
    plt.close("all")


# ---- what is shown -----------------------------------------------------------------------------------------
def test_a_notebook_shows_a_table_with_the_course_of_the_elbo(rows: tv.models.RobustPoisson) -> None:
    rows.label = "counts <i>"
    fit = quick_fit(rows, n_iterations=300, elbo_every=10)
    page = ElementTree.fromstring(fit._repr_html_().replace("<br>", "<br/>"))  # well formed, and escaped
    shown = {row[0].text: "".join(row[1].itertext()) for row in page.iter("tr")}
    assert shown["model"] == "counts <i>, d = 36"
    assert shown["status"].startswith("completed after 300 updates")
    assert "diagnose" in shown["verdict"]
    line = next(page.iter("polyline")).attrib["points"].split()
    heights = np.array([float(point.split(",")[1]) for point in line])
    values = fit.elbo["elbo"].to_numpy()
    assert len(heights) == len(values)
    high = np.clip(values, np.quantile(values, 0.1), None)
    assert np.corrcoef(heights, high)[0, 1] < -0.999  # down the page is down
    fit.warnings.append("mind <the> gap")
    assert "mind &lt;the&gt; gap" in fit._repr_html_()
    found = fit.diagnose(100)
    assert f"verdict: {found.verdict}" in repr(fit)
    assert len(repr(fit).splitlines()) == 5


def test_models_tell_what_they_hold() -> None:
    words = {
        "isotropic": r"<IsotropicGaussian 'gaussian': d=14 \(2 global, 4 local of 3\)>",
        "poisson": r"<RobustPoisson 'rpoisson': 30 rows, 2 covariates, d=36 \(6 global, 30 local of 1\)>",
        "irt": r"<ItemResponse 'irt': 20 students, 5 items, 99 answers, .*>",
        "volatility": r"<StochasticVolatility 'volatility': 12 times, 2 series, .*>",
    }
    for name, pattern in words.items():
        assert re.fullmatch(pattern, repr(BUNDLED[name]))
