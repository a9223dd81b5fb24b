"""Centred, residual and non-centred locals of robust Poisson regression: one posterior, three shapes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from model_checks import (
    BUNDLED,
    assert_batches_are_independent,
    assert_float32_agrees,
    assert_gradient_is_the_slope,
    assert_round_trip,
    assert_survives_pickle_and_state,
    draw_points,
    unit_directions,
)
from scipy import stats

import pyturingvi as tv
from pyturingvi.engines import selection
from pyturingvi.errors import EngineError, InputError
from pyturingvi.models import ItemResponse, RobustPoisson
from pyturingvi.settings import Settings, model_digest

FORMS = ("centred", "residual", "noncentred")
PRIORS: dict[str, tuple[Any, Any]] = {
    "t": (tv.priors.HalfStudentT(3, 2), stats.t(3, scale=2)),
    "normal": (tv.priors.HalfNormal(0.7), stats.norm(scale=0.7)),
    "cauchy": (tv.priors.HalfCauchy(1.5), stats.cauchy(scale=1.5)),
}


def make(n: int, p: int, form: str, *, offset: bool = False, priors: Any = None) -> RobustPoisson:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p))
    y = rng.poisson(np.exp(X @ rng.normal(0, 0.2, size=p) + 0.5 + rng.normal(size=n)))
    return RobustPoisson(X, y, rng.normal(size=n) if offset else None, parametrization=form, priors=priors)


def by_scipy(model: RobustPoisson, point: np.ndarray, priors: Any) -> float:
    p = model.X.shape[1]
    scales = np.exp(point[:3])
    (s_alpha, s_beta, s_eta), alpha, beta, local = scales, point[3], point[4 : 4 + p], point[4 + p :]
    mean = model.X @ beta + alpha + model.offset
    total = sum(np.log(2) + prior.logpdf(s) + np.log(s) for prior, s in zip(priors, scales, strict=True))
    total += stats.norm.logpdf(alpha, 0, s_alpha) + stats.norm.logpdf(beta, 0, s_beta).sum()
    centre, width = {"centred": (mean, s_eta), "residual": (0, s_eta), "noncentred": (0, 1)}[model.parametrization]
    total += stats.norm.logpdf(local, centre, width).sum()
    eta = {"centred": local, "residual": mean + local, "noncentred": mean + s_eta * local}[model.parametrization]
    return float(total + stats.poisson.logpmf(model.y.astype(int), np.exp(eta)).sum())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", [False, True])
def test_log_density_is_the_sum_of_scipys_at_the_papers_small_size(form: str, offset: bool) -> None:
    model = make(1961, 12, form, offset=offset)
    points = draw_points(model, 10)
    expected = [by_scipy(model, x, [stats.t(4)] * 3) for x in points]
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", list(itertools.product(PRIORS, repeat=3)), ids="-".join)
def test_every_combination_of_priors(form: str, names: tuple[str, ...]) -> None:
    scales = ("s_alpha", "s_beta", "s_eta")
    chosen = {scale: PRIORS[name][0] for scale, name in zip(scales, names, strict=True)}
    model = make(9, 2, form, offset=True, priors=chosen)
    points = draw_points(model, 3)
    expected = [by_scipy(model, x, [PRIORS[name][1] for name in names]) for x in points]
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-11)
    assert_gradient_is_the_slope(model, points, unit_directions(model, 3, seed=2))


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("offset", [False, True])
def test_what_is_asked_of_every_model(form: str, offset: bool) -> None:
    model = make(30, 2, form, offset=offset)
    points = draw_points(model, 4)
    assert_gradient_is_the_slope(model, points, np.vstack([np.eye(model.dim)[:7], unit_directions(model, 4, seed=2)]))
    assert_float32_agrees(model, points, 1e-5, 1e-4)
    assert_batches_are_independent(model, points)
    assert_round_trip(model, points)
    assert_survives_pickle_and_state(model, points)
    restored = RobustPoisson.from_state(model.get_state())
    assert restored.parametrization == form


@pytest.mark.parametrize("form", FORMS[1:])
def test_log_terms_sum_to_the_density_and_their_gradient_is_the_slope(form: str) -> None:
    model = make(6, 2, form, offset=True)
    points = draw_points(model, 3)
    prior, terms = model.log_terms(points)
    np.testing.assert_allclose(prior + terms.sum(axis=1), model.log_density(points), rtol=1e-12)
    np.testing.assert_allclose(model._global_term(points[:, : model.layout.n_global]), prior, rtol=1e-13)
    weights = np.random.default_rng(3).uniform(0, 2, size=(3, 6))
    *same, gradient = model.log_terms_and_gradient(points, weights)
    np.testing.assert_allclose(same[1], terms, rtol=1e-12, atol=1e-13)

    def weighted(x: np.ndarray) -> np.ndarray:
        prior, terms = model.log_terms(x)
        return np.asarray(prior + (weights * terms).sum(axis=1))

    for k in range(model.dim):
        step = np.zeros(model.dim)
        step[k] = 1e-5
        slope = (weighted(points + step) - weighted(points - step)) / 2e-5
        np.testing.assert_allclose(gradient[:, k], slope, rtol=1e-6, atol=1e-6)


def test_large_counts_lose_no_nats_in_float32() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 2))
    counts = rng.poisson(np.exp(np.log(1e6) + X @ [0.3, -0.2] + 0.3 * rng.normal(size=400)))
    for form in FORMS[1:]:
        model = RobustPoisson(X, counts, parametrization=form)
        start = np.concatenate([[0.0, 0.0, -1.0, np.log(1e6), 0.3, -0.2], np.zeros(400)])
        points = (start + 0.02 * rng.normal(size=(3, model.dim))).astype(np.float32)
        expected = [by_scipy(model, x, [stats.t(4)] * 3) for x in points.astype(float)]
        np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-11)


def locals_of(form: str, centred: RobustPoisson, point: np.ndarray) -> np.ndarray:
    """The same draw in another parametrization, from its globals and log rates."""
    other = RobustPoisson(centred.X, centred.y, centred.offset, parametrization=form)
    return other.unconstrain(centred.constrain(point))


def test_the_same_draw_has_the_same_density_up_to_the_jacobian() -> None:
    """eps = eta - mean shifts, e = eps/s_eta divides each of the N locals by s_eta."""
    models = {form: make(12, 3, form, offset=True) for form in FORMS}
    points = draw_points(models["centred"], 5)
    expected = models["centred"].log_density(points)
    for form, jacobian in (("residual", 0), ("noncentred", 12)):
        same = locals_of(form, models["centred"], points)
        np.testing.assert_allclose(models[form].log_density(same), expected + jacobian * points[:, 2], rtol=1e-12)
        likelihood = models["centred"].log_likelihood(points)["y"]
        np.testing.assert_allclose(models[form].log_likelihood(same)["y"], likelihood, rtol=1e-10, atol=1e-10)
        replicated = models[form].replicate(same, np.random.default_rng(0))["y"]
        np.testing.assert_array_equal(replicated, models["centred"].replicate(points, np.random.default_rng(0))["y"])
        new = np.ones((2, 3))
        rows = [
            model.predict(x, new, np.random.default_rng(1), offset=[0.1, 0.2])["eta"]
            for model, x in ((models["centred"], points), (models[form], same))
        ]
        np.testing.assert_array_equal(*rows)


def test_with_the_locals_integrated_out_all_three_are_one() -> None:
    """The integral of each term over its local, on a fine grid, is what `refine` and `diagnose` rest on."""
    z = draw_points(make(4, 2, "centred"), 1)[0, :6]
    grid = np.linspace(-30, 30, 60_001)
    found = []
    for form in FORMS:
        model = make(4, 2, form)
        points = np.hstack([np.tile(z, (len(grid), 1)), np.tile(grid[:, None], (1, 4))])
        prior, terms = model.log_terms(points)
        found.append(prior[0] + np.log(np.trapezoid(np.exp(terms), grid, axis=0)).sum())
    np.testing.assert_allclose(found[1:], found[0], rtol=1e-10)


def test_refine_gives_the_same_evidence() -> None:
    evidence = []
    for form in FORMS:
        fit = tv.fit(make(30, 2, form), progress=False, n_iterations=300).refine(n_draws=1000, progress=False)
        assert fit.refined is not None
        evidence.append((fit.refined.log_evidence, fit.refined.log_evidence_error))
        assert fit.summary().loc["s_eta", "mean"] > 0
    for value, error in evidence[1:]:
        assert abs(value - evidence[0][0]) < 4 * np.hypot(error, evidence[0][1])


def test_an_unknown_parametrization_is_refused() -> None:
    with pytest.raises(InputError, match=r"'non-centred'.*noncentred"):
        make(3, 1, "non-centred")


def test_files_do_not_name_the_centred_one() -> None:
    plain = BUNDLED["poisson"]
    named = RobustPoisson(plain.X, plain.y, parametrization="centred")  # type: ignore[attr-defined]
    assert set(named.get_state()) == {"X", "y", "offset", "covariates", "rows"} | set(named._rows.to_state("rows"))
    assert model_digest(named) == model_digest(plain)
    assert model_digest(make(4, 2, "residual")) != model_digest(make(4, 2, "centred"))


# ---- which engine --------------------------------------------------------------------------------------------
def with_settings() -> dict[str, tuple[Any, str]]:
    poisson: Any = BUNDLED["poisson"]
    answers = np.where(BUNDLED["irt"].responses < 0, np.nan, BUNDLED["irt"].responses)  # type: ignore[attr-defined]
    returns = np.random.default_rng(3).normal(size=(40, 4))
    returns[5, 1] = np.nan
    normal, t3, cauchy = tv.priors.HalfNormal(0.5), tv.priors.HalfStudentT(3, 2), tv.priors.HalfCauchy(2)
    volatility = tv.models.StochasticVolatility
    mixed = {"s_alpha": t3, "s_eta": cauchy}
    offset = np.linspace(-1, 1, 30)
    return {
        "priors": (RobustPoisson(poisson.X, poisson.y, priors=mixed), "priors other than the paper's"),
        "residual": (RobustPoisson(poisson.X, poisson.y, offset, parametrization="residual"), "parametrization='resid"),
        "noncentred": (
            RobustPoisson(poisson.X, poisson.y, offset, parametrization="noncentred", priors=normal),
            "parametrization='noncentred' and priors other than the paper's",
        ),
        "irt": (ItemResponse(answers, beta="difficulty", priors={"s_gamma": normal}), "beta='difficulty' and priors"),
        "volatility": (volatility(returns, priors=normal), "a prior other than the paper's"),
        "shocks": (volatility(returns, tau_of="shocks"), "tau_of='shocks'"),
        "columns": (volatility(returns, partials="columns", bound=1.0), "partials='columns' and bound=1.0"),
    }


SETTINGS = with_settings()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_record_is_of_the_usual_settings(name: str) -> None:
    model, words = SETTINGS[name]
    assert model.unusual.startswith(words)
    with pytest.raises(InputError, match=r"reference='recorded'.*was not recorded"):
        tv.compare(model, reference="recorded")


class Fixed(tv.priors.HalfNormal):
    """A prior of one's own, which Julia does not have."""


def test_a_prior_of_ones_own_runs_on_numpy_or_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(3, 1, "centred", priors={"s_eta": Fixed(0.5)})
    words = r"tv\.models\.RobustPoisson with the prior .*Fixed"
    monkeypatch.setattr(selection, "_julia_is_ready", lambda: True)
    assert selection.select_engine(model, Settings()).name == "numpy"
    with pytest.raises(EngineError, match=rf"engine='julia' cannot run {words}; use engine='numpy'"):
        tv.fit(model, engine="julia")
    with pytest.raises(InputError, match=rf"compare: engine 'julia' cannot run {words}"):
        tv.compare(model)
    with pytest.raises(EngineError, match=rf'sampler="turing" runs in Julia and cannot call {words}'):
        tv.sample_nuts(model, sampler="turing")


@pytest.mark.julia
@pytest.mark.parametrize("name", SETTINGS)
def test_julia_gives_the_same_densities_and_slopes(name: str) -> None:
    from pyturingvi.engines.julia_engine import julia_log_density_and_gradient

    model, _ = SETTINGS[name]
    points = 0.5 * np.random.default_rng(4).normal(size=(5, model.dim))
    values, slopes = julia_log_density_and_gradient(model, points)
    density, gradient = model.log_density_and_gradient(points)
    np.testing.assert_allclose(values, density, rtol=1e-11)
    np.testing.assert_allclose(slopes, gradient, rtol=0, atol=1e-11 * np.abs(gradient).max())


@pytest.mark.julia
@pytest.mark.parametrize("name", SETTINGS)
def test_the_turing_form_has_the_same_density(name: str) -> None:
    model, _ = SETTINGS[name]
    runtime = tv.start_julia()
    runtime.load("Turing")
    points = 0.5 * np.random.default_rng(6).normal(size=(5, model.dim))
    found = runtime.call(runtime.module.turing_log_density, model.to_julia(runtime), runtime.to_julia(points))
    np.testing.assert_allclose(runtime.to_numpy(found), model.log_density(points), rtol=1e-8)


@pytest.mark.julia
@pytest.mark.slow  # test_nuts.py draws from a Turing form, and the densities are compared above
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")  # of few draws
def test_draws_of_the_turing_form_are_points_of_the_model() -> None:
    """Where a chain has gone to, the package's own density is far above that of the starts."""
    model, _ = SETTINGS["noncentred"]
    draws = tv.sample_nuts(model, 20, 60, 1, ad="reversediff", progress=False)
    starts = np.random.default_rng(7).uniform(-2, 2, size=(20, model.dim))
    assert model.log_density(draws.points[0]).min() > model.log_density(starts).max()
    assert set(draws.sample()) == set(model.dims)


@pytest.mark.julia
@pytest.mark.parametrize("name", ["noncentred", "irt", "columns"])
@pytest.mark.parametrize("rule", ["adam", "natural"])
def test_both_engines_walk_the_same_path(name: str, rule: str) -> None:
    model, _ = SETTINGS[name]
    noise = np.random.default_rng(5).normal(size=(30, 8, model.dim))
    settings: dict[str, Any] = {"noise": noise, "n_iterations": 30, "n_samples": 8, "progress": False}
    if rule == "adam":
        settings["optimizer"] = tv.Adam(1e-2)
    ends = [tv.fit(model, "structured", engine=engine, **settings).params for engine in ("numpy", "julia")]
    np.testing.assert_allclose(ends[1], ends[0], rtol=0, atol=1e-8 * np.abs(ends[0]).max())


# ---- easiness or difficulty ------------------------------------------------------------------------------------
def test_difficulty_is_easiness_with_the_other_sign() -> None:
    easy: Any = BUNDLED["irt"]
    table = np.where(easy.responses < 0, np.nan, easy.responses)
    hard = ItemResponse(table, beta="difficulty")
    points = draw_points(easy, 4)
    sign = np.ones(easy.dim)
    sign[[0, *range(3 + easy.n_items, 3 + 2 * easy.n_items)]] = -1  # mu_beta and beta
    np.testing.assert_array_equal(hard.log_density(points), easy.log_density(points * sign))
    np.testing.assert_allclose(hard.gradient(points), sign * easy.gradient(points * sign), rtol=1e-14)
    for mine, same in zip(hard.log_terms(points), easy.log_terms(points * sign), strict=True):
        np.testing.assert_allclose(mine, same, rtol=1e-14)
    assert_gradient_is_the_slope(hard, points, unit_directions(hard, 4, seed=5))
    assert_survives_pickle_and_state(hard, points)
    likelihood = easy.log_likelihood(points * sign)["responses"]
    np.testing.assert_array_equal(hard.log_likelihood(points)["responses"], likelihood)
    draws = [
        model.predict(x, table[:3], np.random.default_rng(2)) for model, x in ((hard, points), (easy, points * sign))
    ]
    np.testing.assert_array_equal(draws[0]["responses"], draws[1]["responses"])
    with pytest.raises(InputError, match=r"'hard'"):
        ItemResponse(table, beta="hard")


@pytest.mark.slow
# the funnel of alpha and s_alpha, which all three have, makes some draws diverge; errors are by effective sample size
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_the_three_have_one_posterior() -> None:
    """NUTS on 200 rows of the registry: means of the globals within four Monte Carlo errors."""
    X, y = tv.data.load_rwm5yr(200)
    draws = [
        tv.sample_nuts(
            RobustPoisson(X, y, parametrization=form),
            1000,
            500,
            n_chains=2,
            target_acceptance=0.9,
            progress=False,
            sampler="mici",
        )
        for form in FORMS
    ]
    # of the scales the logarithms, whose moments a long tail does not rule; the effective sample size is of ranks
    n_global = draws[0].model.layout.n_global
    means, errors = [], []
    for one in draws:
        points = one.points[..., :n_global].reshape(-1, n_global)
        means.append(points.mean(axis=0))
        errors.append(points.std(axis=0) / np.sqrt(one.summary()["ess_bulk"].to_numpy()))
    for mean, error in zip(means[1:], errors[1:], strict=True):
        assert (abs(mean - means[0]) < 4 * np.hypot(error, errors[0])).all()
