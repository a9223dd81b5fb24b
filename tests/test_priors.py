"""Priors of standard deviations against SciPy's, and what the bundled models make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from model_checks import BUNDLED, assert_gradient_is_the_slope, assert_survives_pickle_and_state, draw_points
from model_checks import unit_directions as directions
from scipy import stats

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.priors import HalfCauchy, HalfNormal, HalfStudentT, ScalePrior
from pyturingvi.priors.base import prior_from_config
from pyturingvi.settings import model_digest
from pyturingvi.transforms.maps import interval, interval_log_jacobian, lkj_cholesky, lkj_log_normalizer, log_cosh

PRIORS: dict[str, tuple[ScalePrior, Any]] = {
    "t4": (HalfStudentT(), stats.t(4)),
    "t3 of scale 2.5": (HalfStudentT(3, 2.5), stats.t(3, scale=2.5)),
    "normal": (HalfNormal(), stats.norm()),
    "normal of scale 0.2": (HalfNormal(0.2), stats.norm(scale=0.2)),
    "cauchy of scale 5": (HalfCauchy(5), stats.cauchy(scale=5)),
}


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_is_twice_scipys_density_above_0(name: str) -> None:
    prior, whole = PRIORS[name]
    v = np.linspace(-30, 4, 69)
    expected = np.log(2) + whole.logpdf(np.exp(v)) + v
    np.testing.assert_allclose(prior.log_density(v), expected, rtol=1e-13, atol=1e-13)
    v = v[v > -8]
    step = 1e-5
    slope = (prior.log_density(v + step) - prior.log_density(v - step)) / (2 * step) - 1
    np.testing.assert_allclose(prior.slope(np.exp(-2 * v)), slope, rtol=1e-7, atol=1e-8)
    draws = prior.draw(np.random.default_rng(0), 4000)
    assert draws.min() > 0
    assert stats.kstest(draws, lambda s: 2 * whole.cdf(s) - 1).pvalue > 1e-3
    assert prior_from_config(prior.config()) == prior


@pytest.mark.parametrize("value", [0, -1.0, np.inf, np.nan, "1", True])
def test_a_scale_that_is_not_above_0_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="HalfNormal: scale must be a finite number above 0"):
        HalfNormal(value)
    with pytest.raises(InputError, match="HalfStudentT: nu must be"):
        HalfStudentT(value)


# ---- in the models -----------------------------------------------------------------------------------------
SCALES = {"poisson": ("s_alpha", "s_beta", "s_eta"), "irt": ("s_beta", "s_gamma"), "volatility": ("tau",)}


def with_priors(kind: str, priors: Any, **options: Any) -> Any:
    model: Any = BUNDLED[kind]
    data = {"poisson": ("X", "y"), "irt": ("responses",), "volatility": ("returns",)}[kind]
    arrays = [getattr(model, name) for name in data]
    if kind == "irt":
        arrays = [np.where(arrays[0] < 0, np.nan, arrays[0])]
    return type(model)(*arrays, priors=priors, **options)


def log_scales(kind: str, points: np.ndarray) -> np.ndarray:
    places = {"poisson": [0, 1, 2], "irt": [1, 2], "volatility": [4, 5]}[kind]
    return points[:, places]


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("name", PRIORS)
def test_a_models_density_changes_by_that_of_its_priors(kind: str, name: str) -> None:
    """The model with its usual priors is held against SciPy term by term in its own file."""
    prior, whole = PRIORS[name]
    usual = stats.cauchy(scale=5) if kind == "volatility" else stats.t(4)
    model, base = with_priors(kind, prior), BUNDLED[kind]
    points = draw_points(base, 6)
    v = log_scales(kind, points)
    change = (whole.logpdf(np.exp(v)) - usual.logpdf(np.exp(v))).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), base.log_density(points) + change, rtol=1e-12)
    assert_gradient_is_the_slope(model, points, directions(model, 4, seed=2))


def test_each_scale_has_the_prior_of_its_name() -> None:
    model = with_priors("poisson", {"s_eta": HalfNormal(0.5), "s_alpha": HalfCauchy(2)})
    points = draw_points(model, 5)
    v = log_scales("poisson", points)
    change = stats.norm.logpdf(np.exp(v[:, 2]), scale=0.5) - stats.t.logpdf(np.exp(v[:, 2]), 4)
    change += stats.cauchy.logpdf(np.exp(v[:, 0]), scale=2) - stats.t.logpdf(np.exp(v[:, 0]), 4)
    expected = BUNDLED["poisson"].log_density(points) + change
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)
    assert_gradient_is_the_slope(model, points, directions(model, 4, seed=2))
    draws = model.draw_prior(4000, np.random.default_rng(1))
    np.testing.assert_allclose(np.median(draws["s_eta"]), 0.5 * stats.norm.ppf(0.75), rtol=0.06)
    np.testing.assert_allclose(np.median(draws["s_alpha"]), 2.0, rtol=0.06)
    np.testing.assert_allclose(np.median(draws["s_beta"]), stats.t(4).ppf(0.75), rtol=0.06)


@pytest.mark.parametrize("kind", SCALES)
def test_files_hold_priors_and_name_none_that_is_usual(kind: str) -> None:
    base = BUNDLED[kind]
    usual = HalfCauchy(5) if kind == "volatility" else HalfStudentT(4, 1)
    assert "priors" not in with_priors(kind, usual).get_state()
    assert model_digest(with_priors(kind, usual)) == model_digest(with_priors(kind, None)) == model_digest(base)
    changed = with_priors(kind, HalfNormal(0.3))
    assert model_digest(changed) != model_digest(base)
    points = draw_points(changed, 3)
    assert_survives_pickle_and_state(changed, points)
    restored = type(changed).from_state(changed.get_state())
    assert restored.priors.given == dict.fromkeys(SCALES[kind], HalfNormal(0.3))


def test_a_fit_with_priors_is_saved_and_read(tmp_path: Any) -> None:
    model = with_priors("poisson", {"s_eta": HalfNormal(0.5)})
    fit = tv.fit(model, "mean-field", tv.Adam(1e-2), n_iterations=20, progress=False)
    loaded = tv.load_fit(fit.save(tmp_path / "fit.npz"))
    points = draw_points(model, 2)
    np.testing.assert_array_equal(loaded.model.log_density(points), model.log_density(points))


@pytest.mark.parametrize(
    ("priors", "words"),
    [
        ("half-normal", "priors must be one of tv.priors, or a dictionary of them"),
        ({"s_eta": 1.0}, "the prior of s_eta must be one of tv.priors, got 1.0"),
        ({"s_et": HalfNormal()}, "'s_et'.*Did you mean 's_eta'"),
        ({"s_eta": HalfNormal}, r"That is the class: give one of it, HalfNormal\(\.\.\.\)\.$"),
        (HalfNormal, r"dictionary of them, got .*That is the class: give one of it, HalfNormal"),
    ],
)
def test_what_is_no_prior_is_refused(priors: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        with_priors("poisson", priors)


def test_a_prior_of_ones_own() -> None:
    @dataclass(frozen=True)
    class Exponential(ScalePrior):
        rate: float = 1.0

        @property
        def log_constant(self) -> float:
            return float(np.log(self.rate))

        def log_kernel(self, v: Any) -> Any:
            return -self.rate * np.exp(v)

        def slope(self, precision: Any) -> Any:
            return -self.rate / np.sqrt(precision)

        def draw(self, rng: np.random.Generator, size: Any) -> np.ndarray:
            return rng.exponential(1 / self.rate, size)

    model = with_priors("volatility", Exponential(3.0))
    points = draw_points(model, 4)
    v = log_scales("volatility", points)
    change = stats.expon.logpdf(np.exp(v), scale=1 / 3) - np.log(2) - stats.cauchy.logpdf(np.exp(v), scale=5)
    expected = BUNDLED["volatility"].log_density(points) + change.sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)
    assert_gradient_is_the_slope(model, points, directions(model, 3, seed=4))
    with pytest.raises(InputError, match=r"prior 'Exponential' is the class .*tv\.register"):
        type(model).from_state(model.get_state())


def test_volatility_with_a_prior_term_by_term() -> None:
    model = with_priors("volatility", HalfNormal(0.4))
    point = draw_points(model, 1)[0]
    mu, v_phi, log_tau, v_partial = point[:2], point[2:4], point[4:6], point[None, 6:7]
    y = point[7:].reshape(12, 2)
    factor = np.exp(log_tau)[:, None] * lkj_cholesky(v_partial, 2)[0][0]
    mean = np.vstack([mu, mu + interval(v_phi) * (y[:-1] - mu)])
    total = sum(stats.multivariate_normal.logpdf(y[t], mean[t], factor @ factor.T) for t in range(12))
    seen = ~np.isnan(model.returns)
    total += stats.norm.logpdf(model.returns[seen], 0, np.exp(y[seen] / 2)).sum()
    total += stats.cauchy.logpdf(mu, 0, 10).sum() + (interval_log_jacobian(v_phi) + np.log(0.5)).sum()
    total += (np.log(2) + stats.norm.logpdf(np.exp(log_tau), scale=0.4) + log_tau).sum()
    total += float((-2 * log_cosh(v_partial)).sum()) - lkj_log_normalizer(2)  # of two series LKJ(1) is uniform
    np.testing.assert_allclose(model.log_density(point), [total], rtol=1e-10)
