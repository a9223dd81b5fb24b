"""`engine="julia"`: the same fit as the embedded engine, and the same promises about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_checks import FAMILIES, assert_noise_is_copied, with_missing
from response_tables import both_forms, make_points, make_sparse_table

import pyturingvi as tv
from pyturingvi.engines.julia_engine import julia_log_density_and_gradient
from pyturingvi.errors import EngineError, InputError, MemoryLimitError

pytestmark = pytest.mark.julia
BASES: list[Any] = ["gaussian", "laplace", ("student_t", 8)]
TRACE = ["iteration", "elbo", "std_error"]


def fit(model: tv.models.Model, family: Any = "structured", **changes: Any) -> tv.Fit:
    settings: dict[str, Any] = {
        "optimizer": tv.Adam(1e-2),
        "n_iterations": 200,
        "elbo_every": 50,
        "elbo_samples": 64,
        "engine": "julia",
        "progress": False,
    }
    return tv.fit(model, family, **{**settings, **changes})


# ---- the same numbers as the embedded engine --------------------------------------------------------------
def test_log_density_and_gradient_agree(bundled_model: tv.models.Model) -> None:
    points = 0.5 * np.random.default_rng(1).standard_normal((5, bundled_model.dim))
    value, slope = julia_log_density_and_gradient(bundled_model, points)
    expected, expected_slope = bundled_model.log_density_and_gradient(points)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(slope, expected_slope, rtol=0, atol=1e-10 * abs(expected_slope).max())


def test_log_terms_and_their_gradients_agree(bundled_model: tv.models.Model) -> None:
    model, rng, runtime = bundled_model, np.random.default_rng(2), tv.start_julia()
    if not model.has_term_gradients:
        pytest.skip("locals that depend on each other")
    points, weights = 0.5 * rng.standard_normal((5, model.dim)), rng.uniform(0, 2, (5, model.layout.n_local))
    columns = [runtime.to_julia(array) for array in (points, weights)]
    found = runtime.call(runtime.module.log_terms_and_gradient, model.to_julia(runtime), *columns)
    expected = model.log_terms_and_gradient(points, weights)
    for julias, numpys in zip(found, expected, strict=True):
        julias = runtime.to_numpy(julias)
        np.testing.assert_allclose(julias, numpys, rtol=0, atol=1e-12 * abs(numpys).max())


@pytest.mark.parametrize(
    ("n_students", "n_items", "share"), [(600, 90, 0.03), (90, 600, 0.3), (700, 7, 1.0), (2, 2, 1.0)]
)
def test_a_list_of_answers_gives_the_numbers_of_the_whole_table(n_students: int, n_items: int, share: float) -> None:
    listed, whole = both_forms(make_sparse_table(n_students, n_items, share))
    points = make_points(listed, 6)
    points[0] *= 3.0
    value, slope = julia_log_density_and_gradient(listed, points)
    numpys, julias = whole.log_density_and_gradient(points), julia_log_density_and_gradient(whole, points)
    for expected, expected_slope in (numpys, julias):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(slope, expected_slope, rtol=0, atol=1e-12 * abs(expected_slope).max())


def test_a_fit_of_few_answers_finds_what_the_numpy_engine_finds() -> None:
    model = tv.models.ItemResponse(make_sparse_table(300, 60, 0.05))
    noise = np.random.default_rng(6).standard_normal((60, 4, model.dim))
    for rule, n in ((tv.Adam(1e-2), 60), (tv.NaturalGradient(rate=0.1), 20)):
        settings: dict[str, Any] = {"optimizer": rule, "noise": noise[:n], "n_samples": 4, "n_iterations": n}
        found, expected = (fit(model, "mean-field", engine=name, **settings) for name in ("julia", "numpy"))
        assert (found.engine, found.n_updates) == ("julia", n)
        np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-10 * abs(expected.params).max())
        single = fit(model, "mean-field", dtype="float32", **settings)
        np.testing.assert_allclose(single.params, expected.params, rtol=0, atol=2e-4 * abs(expected.params).max())


@pytest.mark.parametrize("count", [3.0, 1e5])
def test_float32_points_lose_no_nats_at_large_counts(count: float) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 2))
    eta = np.log(count) + x @ [0.3, -0.2] + 0.3 * rng.normal(size=1000)
    model = tv.models.RobustPoisson(x, rng.poisson(np.exp(eta)))
    start = np.concatenate([[0.0, 0.0, -1.0, np.log(count), 0.3, -0.2], eta])
    points = (start + 0.02 * rng.normal(size=(3, model.dim))).astype(np.float32)
    runtime, values = tv.start_julia(), np.empty(3)
    runtime.call(runtime.module.log_density_at_b, values, model.to_julia(runtime), points.T)
    np.testing.assert_allclose(values, model.log_density(points.astype(float)), rtol=0, atol=2e-3)


@pytest.mark.in_turn
@pytest.mark.parametrize("rule", [tv.Adam(1e-2), tv.SGD(1e-4), tv.ProximalSGD(1e-4), tv.ProjectedSGD(1e-4, 0.05)])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.label} {family!r}"[:60])
def test_the_same_noise_leads_to_the_same_parameters(
    bundled_model: tv.models.Model, family: tv.families.Family, rule: Any
) -> None:
    noise = np.random.default_rng(2).standard_normal((200, 3, bundled_model.dim))
    settings: dict[str, Any] = {"optimizer": rule, "noise": noise, "n_samples": 3}
    found, expected = (fit(bundled_model, family, engine=name, **settings) for name in ("julia", "numpy"))
    assert (found.status, found.engine) == ("completed", "julia")
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-8)


@pytest.mark.parametrize("family", ["mean-field", "structured", "full-rank"])
@pytest.mark.parametrize("epsilon", [4.0, 0.25, 1e-9])
def test_both_engines_stop_after_the_same_update_within_epsilon(family: str, epsilon: float) -> None:
    model = tv.models.IsotropicGaussian(4)
    noise = np.random.default_rng(12).standard_normal((400, 10, model.dim))
    bound = tv.families.get_family(family).bind(model.layout)
    optimum = bound.initial_flat(np.full(model.dim, 5.0), np.sqrt(0.1))
    options: dict[str, Any] = {"optimizer": tv.ProximalSGD(2e-3), "noise": noise, "n_samples": 10, "init_scale": 1.0}
    options |= {"n_iterations": 400, "elbo_every": 400, "stop_within": epsilon}
    outcomes = [fit(model, family, engine=engine, **options) for engine in ("julia", "numpy")]
    found, expected = outcomes
    assert (found.arrived, found.n_updates) == (expected.arrived, expected.n_updates)
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-8)
    distance = ((found.params - optimum) ** 2).sum()
    assert found.arrived == (distance <= epsilon) == (epsilon > 0.1)
    assert (found.n_updates < 400) == found.arrived


@pytest.mark.parametrize(("n_times", "size", "missing"), [(150, 1, 0), (90, 6, 40), (40, 9, 0)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_time_series_leads_to_the_same_parameters(n_times: int, size: int, missing: int, dtype: str) -> None:
    returns = with_missing(np.random.default_rng(13).normal(size=(n_times, size)), missing)
    model = tv.models.StochasticVolatility(returns)
    noise = np.random.default_rng(14).standard_normal((100, 5, model.dim))
    settings: dict[str, Any] = {"noise": noise, "n_samples": 5, "n_iterations": 100}
    found = fit(model, "markov", dtype=dtype, **settings)
    expected = fit(model, "markov", engine="numpy", **settings)
    assert (found.status, found.family) == ("completed", tv.Markov())
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-8 if dtype == "float64" else 2e-4)


def test_missing_returns_are_left_out_in_julia_too() -> None:
    model = tv.models.StochasticVolatility(with_missing(np.random.default_rng(15).normal(size=(30, 3)), 20))
    points = 0.5 * np.random.default_rng(1).standard_normal((5, model.dim))
    value, slope = julia_log_density_and_gradient(model, points)
    expected, expected_slope = model.log_density_and_gradient(points)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(slope, expected_slope, rtol=0, atol=1e-10 * abs(expected_slope).max())


def test_a_run_far_from_its_target_says_that_it_diverged_in_julia_too() -> None:
    from pyturingvi.reproduce.synthetic.problem import proximal_sgd

    found = proximal_sgd("mean-field", 100, 0.5, engine="julia")
    assert (found.arrived, found.status) == (False, "diverged")


def test_schedules_averaging_and_float32_agree_too(poisson: tv.models.Model) -> None:
    noise = np.random.default_rng(3).standard_normal((200, 4, poisson.dim))
    settings: dict[str, Any] = {
        "optimizer": tv.Adam(tv.step_decay(1e-2, 0.3, every=70), beta1=0.8, beta2=0.99, epsilon=1e-6),
        "averaging": tv.PolynomialAveraging(3.0),
        "noise": noise,
        "n_samples": 4,
    }
    found, expected = (fit(poisson, engine=name, **settings) for name in ("julia", "numpy"))
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-8)
    single = fit(poisson, dtype="float32", **settings)
    np.testing.assert_allclose(single.params, expected.params, rtol=0, atol=2e-4)
    assert not np.array_equal(single.params, found.params)


@pytest.mark.parametrize("base", BASES, ids=str)
def test_own_noise_gives_the_same_elbo_within_monte_carlo_error(irt: tv.models.Model, base: Any) -> None:
    # not a Poisson model: under Student-t, the mean of exp(eta) is infinite
    family = tv.Structured(base=base)
    settings: dict[str, Any] = {"n_iterations": 3000, "elbo_every": 3000, "elbo_samples": 8192, "n_samples": 16}
    rule = tv.Adam(tv.step_decay(2e-2, 0.1, every=1000))
    found, expected = (fit(irt, family, engine=name, optimizer=rule, **settings) for name in ("julia", "numpy"))
    last, wanted = found.elbo.iloc[-1], expected.elbo.iloc[-1]
    assert abs(last.elbo - wanted.elbo) < 4 * np.hypot(last.std_error, wanted.std_error) + 0.05
    # the reported value is that of the reported parameters, estimated again from draws and densities in Python
    draws = found.sample_unconstrained(8192, seed=3)
    values = irt.log_density(draws) - found.log_q(draws)
    error = values.std() / np.sqrt(values.size)
    assert abs(values.mean() - last.elbo) < 4 * np.hypot(error, last.std_error)


def test_a_fit_of_one_engine_goes_on_in_the_other(poisson: tv.models.Model, tmp_path: Path) -> None:
    noise = np.random.default_rng(4).standard_normal((400, 2, poisson.dim))
    settings: dict[str, Any] = {"optimizer": tv.SGD(1e-4), "n_samples": 2}
    whole = fit(poisson, engine="numpy", n_iterations=400, noise=noise, **settings)
    for first, second in (("julia", "numpy"), ("numpy", "julia")):
        path = fit(poisson, engine=first, noise=noise[:200], **settings).save(tmp_path / first)
        found = fit(poisson, engine=second, noise=noise[200:], init=tv.load_fit(path), **settings)
        np.testing.assert_allclose(found.params, whole.params, rtol=0, atol=1e-10)


# ---- runs -------------------------------------------------------------------------------------------------
def test_the_seed_gives_the_same_fit_again_and_another_gives_another(bundled_model: tv.models.Model) -> None:
    one, two, other = (fit(bundled_model, seed=seed) for seed in (5, 5, 10**30))
    np.testing.assert_array_equal(one.params, two.params)
    np.testing.assert_array_equal(one.elbo[TRACE], two.elbo[TRACE])
    assert not np.array_equal(one.params, other.params)


def test_the_trace_does_not_depend_on_how_often_it_is_taken(poisson: tv.models.Model) -> None:
    often, seldom = fit(poisson, elbo_every=10), fit(poisson, elbo_every=50)
    np.testing.assert_array_equal(often.elbo[TRACE].iloc[4::5], seldom.elbo[TRACE])
    np.testing.assert_array_equal(often.params, seldom.params)


@pytest.mark.parametrize("averaging", [None, tv.PolynomialAveraging()], ids=["last", "average"])
def test_a_stopped_run_resumes_to_the_numbers_of_an_uninterrupted_one(
    poisson: tv.models.Model, tmp_path: Path, averaging: Any
) -> None:
    settings: dict[str, Any] = {"n_iterations": 700, "averaging": averaging}
    whole = fit(poisson, **settings)
    stopped = fit(poisson, checkpoint=tmp_path / "run.npz", callback=lambda i, e: i >= 300, **settings)
    assert (stopped.status, stopped.n_updates) == ("interrupted", 300)
    resumed = fit(poisson, checkpoint=tmp_path / "run.npz", **settings)
    np.testing.assert_array_equal(resumed.params, whole.params)
    np.testing.assert_array_equal(resumed.elbo[TRACE], whole.elbo[TRACE])


def test_a_checkpoint_of_the_other_engine_is_refused(poisson: tv.models.Model, tmp_path: Path) -> None:
    fit(poisson, engine="numpy", checkpoint=tmp_path / "run.npz")
    with pytest.raises(InputError, match="engine was 'numpy', is 'julia'"):
        fit(poisson, checkpoint=tmp_path / "run.npz")


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_a_diverging_run_says_where_and_keeps_the_last_finite_parameters(poisson: tv.models.Model) -> None:
    found, expected = (fit(poisson, optimizer=tv.SGD(10.0), engine=name) for name in ("julia", "numpy"))
    assert found.status == expected.status == "diverged"
    assert np.isfinite(found.params).all()
    assert "non-finite in" in found.message or "overflowed" in found.message


def test_an_exception_in_the_callback_keeps_the_fit_so_far(poisson: tv.models.Model) -> None:
    def fail(iteration: int, elbo: float) -> None:
        if iteration == 100:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fit(poisson, callback=fail)
    assert caught.value.partial_fit.n_updates == 100  # type: ignore[attr-defined]


def test_a_run_leaves_no_buffers_behind() -> None:
    model = tv.models.IsotropicGaussian(200_000, n_global=1, local_dim=1)
    runtime = tv.start_julia()
    in_use = runtime.seval("Base.gc_live_bytes")
    settings: dict[str, Any] = {"family": "mean-field", "n_iterations": 1, "elbo_every": 1, "elbo_samples": 2}
    fit(model, **settings)
    runtime.seval("GC.gc()")
    before = in_use()
    fit(model, **settings)
    # a gradient and two matrices of 8 points at least
    assert in_use() - before < 8 * model.dim * (2 + 2 * 8) / 2


# ---- which engine -----------------------------------------------------------------------------------------
def test_auto_takes_julia_where_it_is_set_up_and_says_so(
    poisson: tv.models.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(poisson, engine="auto", progress=True).engine == "julia"
    assert "using the julia engine on cpu" in capsys.readouterr().err


def test_what_julia_cannot_do_is_refused_by_name(gaussian_target: Any) -> None:
    target = tv.models.LogDensity(gaussian_target.log_density_and_gradient, gaussian_target.layout)
    with pytest.raises(EngineError, match=r"engine='julia' cannot run tv.models.LogDensity.*use engine='numpy'"):
        fit(target)
    assert fit(target, engine="auto").engine == "numpy"


def test_a_julia_error_is_one_short_message() -> None:
    runtime = tv.start_julia()
    with pytest.raises(EngineError, match=r"^Julia: ArgumentError: Layout: counts must be at least 0") as caught:
        runtime.call(runtime.module.Layout, -1, 2, 3)
    assert len(str(caught.value)) < 200


def test_a_call_that_no_method_takes_is_one_short_message() -> None:
    runtime = tv.start_julia()
    with pytest.raises(EngineError, match="MethodError") as caught:
        runtime.call(runtime.module.advance_session_b, 1, 2, 3)
    assert len(str(caught.value)) <= 200


def test_noise_that_a_callback_changes_is_not_seen_by_the_run(poisson: tv.models.Model) -> None:
    assert_noise_is_copied(poisson, "julia")


def test_an_elbo_estimate_that_does_not_fit_in_memory_is_refused(poisson: tv.models.Model) -> None:
    with pytest.raises(MemoryLimitError, match="elbo_samples=1,000,000,000,000, of which fewer will do"):
        fit(poisson, elbo_samples=10**12)
