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
    GaussianTarget,
    dense_location_scale,
    dense_mask,
    dense_parameters,
    exact_noise,
    hierarchical_normal,
    random_flat,
)

import pyturingvi as tv
from pyturingvi.families import Family
from pyturingvi.layout import Layout

QUIET: dict[str, Any] = {"progress": False, "elbo_samples": 64}
TRACE = ["iteration", "elbo", "std_error"]


def covariance(fit: tv.Fit) -> np.ndarray:
    factor = fit.scale.toarray()
    return np.asarray(factor @ factor.T)


# ---- a posterior in closed form ----------------------------------------------------------------------------
def test_structured_holds_the_posterior_of_a_hierarchical_normal_model(
    gaussian_target: GaussianTarget,
) -> None:
    """With the globals first, the Cholesky factor of an arrow's inverse has the structured pattern.

    Cov(y | z) is block-diagonal, and the factor's local corner is its Cholesky factor. With the globals last
    the factor fills in.
    """
    layout = gaussian_target.layout
    mask = dense_mask("structured", layout)
    factor = np.linalg.cholesky(gaussian_target.covariance)
    assert np.abs(factor[~mask]).max() < 1e-13
    assert np.abs(factor[mask]).min() > 1e-4
    last = np.r_[np.arange(layout.n_global, layout.dim), np.arange(layout.n_global)]
    filled = np.linalg.cholesky(gaussian_target.covariance[np.ix_(last, last)])
    assert np.abs(filled[layout.local_dim, 0]) > 1e-3  # y_2 with y_1


@pytest.mark.parametrize(
    "family",
    ["structured", "full-rank", tv.Structured(standardized=False)],
    ids=["structured", "full", "non-std"],
)
@pytest.mark.parametrize("layout", [(2, 3, 2), (1, 5, 1), (3, 2, 1)], ids=str)
def test_posterior_is_found_to_rounding_where_gradients_are_exact(family: Any, layout: tuple[int, int, int]) -> None:
    """Noise with exact moments makes the run plain gradient descent on the exact negative ELBO."""
    target = hierarchical_normal(*layout)
    fit = tv.fit(
        target.model,
        family,
        tv.SGD(0.5 / np.linalg.eigvalsh(target.precision)[-1]),
        n_iterations=4000,
        n_samples=2 * target.layout.dim,
        noise=exact_noise(4000, target.layout.dim),
        init_scale=0.5,
        elbo_every=4000,
        **QUIET,
    )
    assert fit.status == "completed"
    np.testing.assert_allclose(fit.location, target.mean, atol=1e-8)
    np.testing.assert_allclose(covariance(fit), target.covariance, atol=1e-8)


def test_mean_field_finds_the_conditional_standard_deviations(gaussian_target: GaussianTarget) -> None:
    """The optimum over diagonal C is C_ii = P_ii^{-1/2}, which is less than the marginal sd."""
    fit = tv.fit(
        gaussian_target.model,
        "mean-field",
        tv.SGD(0.5 / np.linalg.eigvalsh(gaussian_target.precision)[-1]),
        n_iterations=4000,
        n_samples=2 * gaussian_target.layout.dim,
        noise=exact_noise(4000, gaussian_target.layout.dim),
        **QUIET,
    )
    np.testing.assert_allclose(fit.location, gaussian_target.mean, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance(fit))), np.diag(gaussian_target.precision) ** -0.5, rtol=1e-8)
    assert np.all(np.diag(covariance(fit)) < 0.99 * np.diag(gaussian_target.covariance))


@pytest.mark.parametrize("family", ["structured", "full-rank"])
@pytest.mark.parametrize("make", [tv.SGD, tv.ProximalSGD, tv.ProjectedSGD], ids=lambda make: make.__name__)
def test_posterior_is_found_from_noisy_gradients(family: str, make: Any, gaussian_target: GaussianTarget) -> None:
    """Averaged SGD within five standard errors of its central limit theorem (Polyak and Juditsky, 1992).

    The average over T updates with weights t^eta has covariance w/(MT) H^{-1} S H^{-1}, where
    w = (eta+1)^2/(2 eta+1). For the location, H is the precision P and S too, which gives w/(MT) P^{-1}. For
    column j of C, H is at least P's block on the rows of that column, and S = Cov(G u_j) is
    (1 + [i = j] ...)-weighted, at most 3 P's block: the error of C_ij is at most sqrt(3 w/(MT)) sd_i.
    """
    n_iterations, n_samples, eta = 20_000, 8, 3.0
    fit = tv.fit(
        gaussian_target.model,
        family,
        make(0.02),
        n_iterations=n_iterations,
        n_samples=n_samples,
        averaging=tv.PolynomialAveraging(eta),
        init_scale=0.5,
        elbo_every=n_iterations,
        **QUIET,
    )
    w = (eta + 1) ** 2 / (2 * eta + 1)
    relative = math.sqrt(w / (n_samples * n_iterations))
    sd = np.sqrt(np.diag(gaussian_target.covariance))
    assert np.all(np.abs(fit.location - gaussian_target.mean) < 5 * relative * sd)
    factor = np.linalg.cholesky(gaussian_target.covariance)
    error = np.abs(fit.scale.toarray() - factor)
    assert np.all(error < 5 * math.sqrt(3) * relative * sd[:, None])


def test_adam_with_step_decay_finds_the_posterior(gaussian_target: GaussianTarget) -> None:
    """At the end Adam is SGD with rates a/sqrt(S_i), S_i the gradient's variance: Var = a sqrt(S_i)/(2 H_i).

    KL = sum H_i Var_i/2 is then a/4 sum sqrt(S_i), with S_i at most P_ii/M for the location and 3 P_ii/M for
    row i of C. A sum of 34 such terms exceeds three times its mean only for a wrong optimizer.
    """
    fit = tv.fit(
        gaussian_target.model,
        "structured",
        tv.Adam(tv.step_decay(0.02, factor=0.1, every=3000)),
        n_iterations=9000,
        elbo_every=9000,
        **QUIET,
    )
    location, scale = fit.location, fit.scale.toarray()
    p = gaussian_target.precision
    centred = location - gaussian_target.mean
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
    [tv.MeanField(), tv.Structured(), tv.Structured(standardized=False), tv.FullRank()],
    ids=["mean-field", "structured", "non-standardized", "full-rank"],
)
def test_given_noise_gives_the_numbers_of_a_loop_written_by_hand(
    family: Family, poisson: tv.models.RobustPoisson
) -> None:
    """Dense matrices and textbook Adam on the model's gradient."""
    layout, n, m = poisson.layout, 30, 3
    noise = np.random.default_rng(3).normal(size=(n, m, layout.dim))
    fit = tv.fit(poisson, family, tv.Adam(0.01), n_iterations=n, n_samples=m, noise=noise, init_location=0.2, **QUIET)
    mask = dense_mask(family.name, layout)
    d_z = layout.n_global
    location, matrix = np.full(layout.dim, 0.2), 0.1 * np.eye(layout.dim)
    moments = [np.zeros_like(location), np.zeros_like(matrix)] * 2
    moments = [x.copy() for x in moments]
    non_standardized = isinstance(family, tv.Structured) and not family.standardized
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
            moments[k] = 0.9 * moments[k] + 0.1 * g
            moments[2 + k] = 0.999 * moments[2 + k] + 0.001 * g**2
            x -= 0.01 * (moments[k] / (1 - 0.9**t)) / (np.sqrt(moments[2 + k] / (1 - 0.999**t)) + 1e-8)
    found_m, found_c = dense_parameters(family, layout, fit.params)
    if non_standardized:  # the start is the same distribution: with A = 0 the two parameterizations agree
        assert fit.params[:d_z] == pytest.approx(location[:d_z], rel=1e-9)
    np.testing.assert_allclose(found_m, location, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found_c, matrix, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_same_seed_same_numbers_and_another_seed_others(poisson: tv.models.RobustPoisson, dtype: str) -> None:
    first, again, other = (tv.fit(poisson, n_iterations=300, seed=seed, dtype=dtype, **QUIET) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.params, again.params)
    np.testing.assert_array_equal(first.elbo[TRACE], again.elbo[TRACE])
    assert np.all(first.params != other.params)
    assert np.all(first.elbo["elbo"] != other.elbo["elbo"])


def test_float32_follows_float64_on_given_noise(bundled_model: tv.models.Model) -> None:
    noise = np.random.default_rng(1).normal(size=(50, 4, bundled_model.dim))
    wide, narrow = (
        tv.fit(
            bundled_model,
            optimizer=tv.SGD(1e-4),
            n_iterations=50,
            n_samples=4,
            noise=noise,
            dtype=dtype,
            **QUIET,
        )
        for dtype in ("float64", "float32")
    )
    assert narrow.params.dtype == np.float64
    assert np.any(narrow.params != wide.params)
    np.testing.assert_allclose(narrow.params, wide.params, atol=2e-4)


def test_noise_of_the_seed_is_not_what_the_trace_sees(isotropic: tv.models.IsotropicGaussian) -> None:
    """The ELBO's draws are apart from the gradient's: how often it is taken changes no parameter."""
    often, seldom = (tv.fit(isotropic, n_iterations=120, elbo_every=every, **QUIET) for every in (10, 40))
    np.testing.assert_array_equal(often.params, seldom.params)
    assert often.elbo["iteration"].tolist() == list(range(10, 121, 10))
    assert seldom.elbo["iteration"].tolist() == [40, 80, 120]
    np.testing.assert_array_equal(often.elbo[TRACE].iloc[3::4], seldom.elbo[TRACE])


@pytest.mark.parametrize(("n_iterations", "rows"), [(7, [7]), (100, [100]), (250, [100, 200, 250])])
def test_the_trace_ends_with_the_last_update(
    isotropic: tv.models.IsotropicGaussian, n_iterations: int, rows: list[int]
) -> None:
    fit = tv.fit(isotropic, n_iterations=n_iterations, **QUIET)
    assert fit.elbo["iteration"].tolist() == rows
    assert list(fit.elbo.columns) == ["iteration", "elbo", "std_error", "seconds"]
    assert np.all(fit.elbo["std_error"] > 0)
    assert np.all(np.diff(fit.elbo["seconds"]) >= 0)
    assert fit.n_updates == n_iterations


def test_a_longer_fit_passes_through_the_shorter_one(isotropic: tv.models.IsotropicGaussian) -> None:
    short = tv.fit(isotropic, n_iterations=60, elbo_every=20, **QUIET)
    long = tv.fit(isotropic, n_iterations=120, elbo_every=20, **QUIET)
    np.testing.assert_array_equal(short.elbo[TRACE], long.elbo[TRACE].iloc[:3])


def test_averaging_returns_the_mean_of_the_iterates(isotropic: tv.models.IsotropicGaussian) -> None:
    ends = [tv.fit(isotropic, optimizer=tv.SGD(0.01), n_iterations=n, **QUIET).params for n in range(1, 13)]
    averaged = tv.fit(isotropic, optimizer=tv.SGD(0.01), n_iterations=12, averaging=tv.PolynomialAveraging(0), **QUIET)
    np.testing.assert_allclose(averaged.params, np.mean(ends, axis=0), rtol=1e-12, atol=1e-14)
    # the trace is that of what is returned
    again = tv.fit(isotropic, optimizer=tv.SGD(0.01), n_iterations=12, **QUIET)
    assert averaged.elbo["elbo"].iloc[-1] != again.elbo["elbo"].iloc[-1]


# ---- where it starts ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("standardized", [True, False])
def test_start_is_what_was_asked_for(isotropic: tv.models.IsotropicGaussian, standardized: bool) -> None:
    """One update with a stepsize that rounding swallows."""
    location = np.linspace(-1, 1, isotropic.dim)
    fit = tv.fit(
        isotropic,
        tv.Structured(standardized=standardized),
        tv.SGD(1e-300),
        n_iterations=1,
        init_location=location,
        init_scale=0.3,
        **QUIET,
    )
    np.testing.assert_allclose(fit.location, location, atol=1e-15)
    np.testing.assert_allclose(fit.scale.toarray(), 0.3 * np.eye(isotropic.dim), atol=1e-15)


def test_init_takes_a_fit_and_its_flat_vector_alike(poisson: tv.models.RobustPoisson) -> None:
    family = tv.Structured(standardized=False)
    start = tv.fit(poisson, family, n_iterations=50, **QUIET)
    kept = start.params.copy()
    from_fit = tv.fit(poisson, family, n_iterations=20, init=start, seed=1, **QUIET)
    from_vector = tv.fit(poisson, family, n_iterations=20, init=start.params.tolist(), seed=1, **QUIET)
    np.testing.assert_array_equal(from_fit.params, from_vector.params)
    np.testing.assert_array_equal(start.params, kept)
    assert np.any(from_fit.params != start.params)


@pytest.mark.parametrize("larger", [tv.Structured(), tv.Structured(standardized=False), tv.FullRank()], ids=repr)
def test_a_mean_field_fit_is_embedded_in_a_larger_family(poisson: tv.models.RobustPoisson, larger: Family) -> None:
    small = tv.fit(poisson, "mean-field", n_iterations=100, **QUIET)
    fit = tv.fit(poisson, larger, tv.SGD(1e-300), n_iterations=1, init=small, **QUIET)
    np.testing.assert_allclose(fit.location, small.location, atol=1e-14)
    np.testing.assert_allclose(fit.scale.toarray(), small.scale.toarray(), rtol=1e-14, atol=1e-200)


def test_structured_goes_into_full_rank_but_not_back(gaussian_target: GaussianTarget) -> None:
    model = gaussian_target.model
    small = tv.fit(model, "structured", n_iterations=50, **QUIET)
    large = tv.fit(model, "full-rank", tv.SGD(1e-300), n_iterations=1, init=small, **QUIET)
    np.testing.assert_allclose(large.scale.toarray(), small.scale.toarray(), rtol=1e-14, atol=1e-200)
    with pytest.raises(tv.errors.InputError, match="mean-field family does not have"):
        tv.fit(model, "mean-field", n_iterations=1, init=small, **QUIET)


# ---- how it ends -------------------------------------------------------------------------------------------
def test_a_true_answer_of_the_callback_ends_the_run(isotropic: tv.models.IsotropicGaussian) -> None:
    seen: list[tuple[int, float]] = []

    def stop_at_30(iteration: int, elbo: float) -> bool:
        seen.append((iteration, elbo))
        return iteration >= 30

    fit = tv.fit(isotropic, n_iterations=100, elbo_every=10, callback=stop_at_30, **QUIET)
    assert (fit.status, fit.n_updates) == ("interrupted", 30)
    assert "the callback after 30 of 100" in fit.message
    assert [s[0] for s in seen] == [10, 20, 30]
    assert [s[1] for s in seen] == fit.elbo["elbo"].tolist()
    short = tv.fit(isotropic, n_iterations=30, elbo_every=10, **QUIET)
    np.testing.assert_array_equal(fit.params, short.params)


def test_a_callback_that_stops_at_the_last_update_leaves_a_completed_run(
    isotropic: tv.models.IsotropicGaussian,
) -> None:
    fit = tv.fit(isotropic, n_iterations=20, callback=lambda i, e: True, **QUIET)
    assert fit.status == "completed"


@pytest.mark.parametrize("optimizer", [tv.SGD, tv.ProximalSGD, tv.ProjectedSGD], ids=lambda o: o.__name__)
@pytest.mark.parametrize("stepsize", [10.0, 1e5, 1e15])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", ["mean-field", "structured", "full-rank", "non-standardized"])
def test_a_diverged_run_keeps_finite_parameters_and_says_where(
    isotropic: tv.models.IsotropicGaussian, optimizer: Any, stepsize: float, dtype: str, family: str
) -> None:
    chosen = tv.Structured(standardized=False) if family == "non-standardized" else family
    fit = tv.fit(isotropic, chosen, optimizer(stepsize), n_iterations=10_000, dtype=dtype, **QUIET)
    assert fit.status == "diverged"
    assert fit.n_updates < 10_000
    assert np.isfinite(fit.params).all()
    assert f"at update {fit.n_updates + 1} " in fit.message
    assert f"the parameters after {fit.n_updates} updates are kept" in fit.message
    assert "smaller stepsize" in fit.message
    assert fit.elbo["iteration"].iloc[-1] == fit.n_updates
    assert "diverged" in repr(fit)


def test_a_diverged_run_ends_at_its_last_update(isotropic: tv.models.IsotropicGaussian) -> None:
    fit = tv.fit(isotropic, "mean-field", tv.SGD(1e5), n_iterations=1000, **QUIET)
    shorter = tv.fit(isotropic, "mean-field", tv.SGD(1e5), n_iterations=fit.n_updates, **QUIET)
    assert shorter.n_updates == fit.n_updates
    np.testing.assert_array_equal(fit.params, shorter.params)
    # all its updates are made, but an ELBO that is not finite is no usable fit
    assert shorter.status == "diverged"
    assert "ELBO" in shorter.message


def test_divergence_names_the_variable_whose_gradient_is_not_finite() -> None:
    """Beyond 3 the gradient of the second global is NaN."""

    def fn(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope = np.ones_like(points)
        slope[points[:, 1] > 3, 1] = np.nan
        return points.sum(axis=1), slope

    model = tv.models.LogDensity(fn, Layout(2, 3, 1), names=["first", "second"])
    # without noise the points are m, which grows by 1/8 an update: 3.125 after 25 of them
    fit = tv.fit(model, "mean-field", tv.SGD(0.125), n_iterations=200, noise=np.zeros((200, 8, 5)), **QUIET)
    assert fit.status == "diverged"
    assert "non-finite in 1 coordinates, first in 'second'" in fit.message
    assert fit.n_updates == 25
    np.testing.assert_array_equal(fit.location, 3.125)


def test_divergence_in_a_local_names_its_block() -> None:
    def fn(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope = np.ones_like(points)
        slope[points[:, 5] > 3, 5] = np.inf
        return points.sum(axis=1), slope

    model = tv.models.LogDensity(fn, Layout(2, 3, 2))
    fit = tv.fit(model, "mean-field", tv.SGD(0.1), n_iterations=200, init_scale=0.1, **QUIET)
    assert "first in 'local block 1'" in fit.message


@pytest.mark.parametrize("n_threads", [1, 2])
def test_divergence_in_threads_warns_no_one(n_threads: int) -> None:
    """Overflow in a worker thread is as expected there as in the main one (warnings are errors here)."""
    model = tv.models.IsotropicGaussian(9000)
    fit = tv.fit(
        model,
        "structured",
        tv.SGD(1e5),
        n_iterations=100,
        elbo_every=10,
        elbo_samples=64,
        progress=False,
        n_threads=n_threads,
    )
    assert fit.status == "diverged"
    assert np.isfinite(fit.params).all()


def test_progress_names_the_engine_and_the_elbo(
    isotropic: tv.models.IsotropicGaussian, capsys: pytest.CaptureFixture[str]
) -> None:
    tv.fit(isotropic, n_iterations=20, elbo_samples=16)
    shown = capsys.readouterr()
    assert "numpy engine on cpu" in shown.out
    assert "20/20" in shown.err
    assert "ELBO" in shown.err
    tv.fit(isotropic, n_iterations=20, **QUIET)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


# ---- import ------------------------------------------------------------------------------------------------
def test_importing_the_package_imports_no_heavy_library() -> None:
    code = "import sys, pyturingvi; print(*sorted(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(tv.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    loaded = set(done.stdout.split())
    assert "pyturingvi" in loaded
    assert not loaded & {
        "pandas",
        "matplotlib",
        "scipy",
        "juliacall",
        "juliapkg",
        "arviz_base",
        "cupy",
        "tqdm",
    }


def test_every_public_name_can_be_imported() -> None:
    for name in dir(tv):
        if name not in tv.__all__:
            continue
        assert getattr(tv, name) is not None
    assert tv.__version__
    with pytest.raises(AttributeError, match="no attribute 'Adamm'"):
        _ = tv.Adamm  # type: ignore[attr-defined]


def test_random_start_of_the_helpers_is_what_the_family_says() -> None:
    """The dense forms used in these tests agree with a Fit's location and scale."""
    target = hierarchical_normal(1, 2, 2)
    for family in (tv.Structured(), tv.Structured(standardized=False)):
        flat = random_flat(family, target.layout)
        fit = tv.fit(target.model, family, tv.SGD(1e-300), n_iterations=1, init=flat, **QUIET)
        location, scale = dense_location_scale(family, target.layout, flat)
        np.testing.assert_allclose(fit.location, location, atol=1e-14)
        np.testing.assert_allclose(fit.scale.toarray(), scale, atol=1e-14)


def test_an_exception_in_a_users_function_carries_the_fit_so_far() -> None:
    calls = 0

    def fails_later(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise ZeroDivisionError("in the user's code")
        return -0.5 * (x**2).sum(axis=1), -x

    model = tv.models.LogDensity(fails_later, tv.Layout(2, 3, 1))
    with pytest.raises(ZeroDivisionError, match="in the user's code") as caught:
        tv.fit(model, n_iterations=1_000, progress=False)
    partial = caught.value.partial_fit  # type: ignore[attr-defined]
    assert partial.status == "interrupted"
    assert 0 < partial.n_updates < 41
    assert "partial_fit" in caught.value.__notes__[0]
    # the same parameters as a run that stops there by itself
    model = tv.models.LogDensity(lambda x: (-0.5 * (x**2).sum(axis=1), -x), model.layout)
    whole = tv.fit(model, n_iterations=partial.n_updates, progress=False)
    np.testing.assert_array_equal(partial.params, whole.params)


def test_numpy_scalars_are_numbers_too() -> None:
    model = tv.models.IsotropicGaussian(2)
    schedule = tv.step_decay(np.float32(0.5), np.float64(0.5), np.int64(5))
    rule = tv.Adam(schedule, beta1=np.float32(0.5))
    plain = tv.Adam(tv.step_decay(0.5, 0.5, 5), beta1=0.5)
    one, other = (tv.fit(model, "mean-field", r, n_iterations=12, progress=False).params for r in (rule, plain))
    np.testing.assert_array_equal(one, other)


def test_noise_that_a_callback_changes_is_not_seen_by_the_run(poisson: tv.models.Model) -> None:
    assert_noise_is_copied(poisson, "numpy")
