"""Update rules, schedules, averaging, the noise stream and the Monte Carlo objective."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from model_checks import BUNDLED
from scipy import stats
from targets import (
    GaussianTarget,
    assert_same_run,
    dense_location_scale,
    dense_mask,
    exact_noise,
    quick_fit,
    random_flat,
)
from threadpoolctl import threadpool_info, threadpool_limits

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.families import Family, FullRank, MeanField, Structured
from pyturingvi.families.base_distributions import base_distribution
from pyturingvi.layout import Layout
from pyturingvi.optimize.noise import ELBO_STREAM, NoiseStream, generator
from pyturingvi.optimize.objective import Objective
from pyturingvi.optimize.read_rule import rule_from_config
from pyturingvi.optimize.rules import Rule
from pyturingvi.support.parallel import Workers, one_blas_thread

LAYOUT = Layout(2, 3, 2)
MEAN_FIELD = MeanField()
NAN, INF = float("nan"), float("inf")


class GivenGradient:
    """A batch whose gradient is known."""

    def __init__(self, gradient: np.ndarray) -> None:
        self._gradient = gradient

    def gradient(self, work: np.ndarray, energy_only: bool = False) -> np.ndarray:
        return self._gradient


def steps_of(rule: Rule, start: Any, gradients: Any, family: Family = MEAN_FIELD, dtype: str = "float64") -> np.ndarray:
    """Flat parameters after one step for each of `gradients` (flat order)."""
    bound = family.bind(LAYOUT, dtype)
    state = rule.start(bound, Workers(1))
    work = bound.from_flat(start)
    path = []
    for t, gradient in enumerate(gradients, start=1):
        assert state.update(work, GivenGradient(bound.from_flat(gradient)), t)  # type: ignore[arg-type]
        path.append(bound.flat_on_host(work))
    return np.array(path)


def diagonal_of(family: Family) -> np.ndarray:
    """Where the diagonal of C stands in the flat vector."""
    return np.r_[np.zeros(LAYOUT.dim, dtype=bool), np.eye(LAYOUT.dim, dtype=bool).T[dense_mask(family.name, LAYOUT).T]]


def example(family: Family, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    start = random_flat(family, LAYOUT)
    rng = np.random.default_rng(1)
    return start, rng.normal(size=(n, start.size)) * np.exp(rng.normal(size=(n, 1)))


# ---- rules -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("beta1", "beta2", "epsilon"), [(0.9, 0.999, 1e-8), (0.0, 0.5, 0.1), (0.5, 0.0, 1e-100)])
def test_adam_is_the_textbooks(beta1: float, beta2: float, epsilon: float) -> None:
    """Algorithm 1 of Kingma and Ba (2015), with a stepsize that changes."""
    start, gradients = example(Structured())
    schedule = tv.step_decay(0.1, factor=0.3, every=15)
    rule = tv.Adam(schedule, beta1=beta1, beta2=beta2, epsilon=epsilon)
    x, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    expected = []
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        x = x - 0.1 * 0.3 ** ((t - 1) // 15) * m_hat / (np.sqrt(v_hat) + epsilon)
        expected.append(x)
    np.testing.assert_allclose(steps_of(rule, start, gradients, Structured()), expected, rtol=1e-11)


def test_adam_in_float32_stays_near_float64() -> None:
    start, gradients = example(MeanField())
    wide = steps_of(tv.Adam(0.01), start, gradients)
    narrow = steps_of(tv.Adam(0.01), start, gradients, dtype="float32")
    np.testing.assert_allclose(narrow, wide, atol=1e-5)
    assert np.any(narrow != wide)


def test_sgd_subtracts_stepsize_times_gradient() -> None:
    start, gradients = example(FullRank())
    path = steps_of(tv.SGD(tv.step_decay(0.2, factor=0.5, every=10)), start, gradients, FullRank())
    rates = 0.2 * 0.5 ** (np.arange(40) // 10)
    np.testing.assert_allclose(path, start - np.cumsum(rates[:, None] * gradients, axis=0), rtol=1e-12)


@pytest.mark.parametrize("family", [MeanField(), Structured(), FullRank()], ids=lambda f: f.name)
def test_proximal_sgd_steps_then_solves_for_the_diagonal_alone(family: Family) -> None:
    """The result v of the operator minimizes -log v + (v - c)**2/(2 gamma): -1/v + (v - c)/gamma = 0."""
    gamma = 0.05
    start, gradients = example(family, 1)
    stepped = start - gamma * gradients[0]
    after = steps_of(tv.ProximalSGD(gamma), start, gradients, family)[0]
    diagonal = diagonal_of(family)
    np.testing.assert_allclose(after[~diagonal], stepped[~diagonal], rtol=1e-14)
    v, c = after[diagonal], stepped[diagonal]
    assert np.all(v > 0)
    assert np.any(c < 0)  # the start has diagonal entries of both signs
    np.testing.assert_allclose(v * (v - c), gamma, rtol=1e-11)


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.floats(-1e200, 1e200), st.floats(1e-12, 1e3))
def test_proximal_operator_keeps_the_diagonal_positive_and_finite(c: float, gamma: float) -> None:
    start = np.zeros(2 * LAYOUT.dim)
    start[LAYOUT.dim :] = c
    v = steps_of(tv.ProximalSGD(gamma), start, np.zeros((1, start.size)))[0, LAYOUT.dim]
    # the positive root of v**2 - c v - gamma, in the form that does not cancel
    root = (abs(c) + math.hypot(c, 2 * math.sqrt(gamma))) / 2
    assert v == pytest.approx(root if c > 0 else gamma / root, rel=1e-12)
    assert v > 0


def test_proximal_operator_does_not_cancel_in_float32() -> None:
    start = np.full(2 * LAYOUT.dim, -3.0)
    v = steps_of(tv.ProximalSGD(1e-7), start, np.zeros((1, start.size)), dtype="float32")[0, LAYOUT.dim :]
    np.testing.assert_allclose(v, 1e-7 / 3, rtol=1e-5)


def test_projected_sgd_keeps_the_diagonal_above_its_bound() -> None:
    start, gradients = example(Structured(), 30)
    rule = tv.ProjectedSGD(0.3, min_scale=0.2)
    diagonal = diagonal_of(Structured())
    x, expected = start.copy(), []
    for g in gradients:
        x = x - 0.3 * g
        x[diagonal] = np.where(x[diagonal] < 0.2, 0.2, x[diagonal])
        expected.append(x)
    path = steps_of(rule, start, gradients, Structured())
    np.testing.assert_allclose(path, expected, rtol=1e-12)
    assert np.any(path[:, diagonal] == 0.2)
    assert np.any(path[:, ~diagonal] < 0)


@pytest.mark.parametrize(
    "rule",
    [
        tv.Adam(1e-3),
        tv.Adam(tv.step_decay(0.1, 0.5, 7), beta1=0.8, beta2=0.99, epsilon=1e-6),
        tv.SGD(2),
        tv.ProximalSGD(0.1),
        tv.ProjectedSGD(tv.step_decay(0.1), min_scale=0.01),
    ],
    ids=lambda rule: rule.name,
)
def test_config_rebuilds_the_rule(rule: Rule) -> None:
    assert rule_from_config(json.loads(json.dumps(rule.config()))) == rule


@pytest.mark.parametrize("stepsize", [0, -1e-3, NAN, INF, "fast", "0.1", None, True, [0.1], 1e30, 10**400, {"a": 1}])
def test_stepsizes_that_are_no_positive_number_are_refused(stepsize: Any) -> None:
    for rule in (tv.Adam, tv.SGD, tv.ProximalSGD, tv.ProjectedSGD):
        with pytest.raises(InputError, match=f"{rule.__name__}: (the stepsize must be|no fit can use the stepsize)"):
            rule(stepsize)
    with pytest.raises(InputError, match=r"step_decay: (the stepsize must be|no fit can use the stepsize)"):
        tv.step_decay(stepsize)


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (tv.Adam, "beta1", [1.0, -0.1]),
        (tv.Adam, "beta2", [NAN, "x"]),
        (tv.Adam, "epsilon", [-1e-8, 0.0, INF]),
        (tv.ProjectedSGD, "min_scale", [0, NAN]),
        (tv.step_decay, "factor", [0, 1.1]),
        (tv.step_decay, "every", [0, 1.5]),
        (tv.PolynomialAveraging, "eta", [-1, NAN, "x"]),
    ],
)
def test_bad_settings_of_a_rule_are_named(make: Any, name: str, values: list[Any]) -> None:
    needed = () if make in (tv.Adam, tv.PolynomialAveraging) else (0.1,)
    for value in values:
        with pytest.raises(InputError, match=name):
            make(*needed, **{name: value})


# ---- schedules and averaging -------------------------------------------------------------------------------
@pytest.mark.parametrize("eta", [0, 1, 3])
def test_averaging_weights_grow_like_a_power(eta: int) -> None:
    """Unrolled, update t has weight (eta + 1)/(T + eta) prod (s - 1)/(s + eta) ~ rising factorial of t; the start 0."""
    n = 30
    iterates = np.random.default_rng(3).normal(size=(n, 4))
    weights = np.array([math.prod(range(t, t + eta)) for t in range(1, n + 1)], dtype=float)  # t(t+1)...
    average = np.full(4, 9.0)
    for t, x in enumerate(iterates, start=1):
        tv.PolynomialAveraging(eta).update(average, x, t)
        expected = weights[:t] @ iterates[:t] / weights[:t].sum()
        np.testing.assert_allclose(average, expected, rtol=1e-11, atol=1e-13)


# ---- noise -------------------------------------------------------------------------------------------------
def stream(n_iterations: int, seed: int = 0, base: Any = "gaussian", n_threads: int = 1, dim: int = 6) -> Any:
    return NoiseStream(base_distribution(base), seed, (4, dim), n_iterations, np.dtype(float), np, Workers(n_threads))


@pytest.mark.parametrize("base", ["gaussian", "laplace", ("student_t", 6)], ids=str)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_noise_is_the_same_however_long_the_run_and_wherever_it_is_taken_up(base: Any, n_threads: int) -> None:
    whole = stream(900, base=base)
    draws = [whole.draw(t).copy() for t in range(900)]
    for first, last in ((0, 300), (1, 301), (255, 555), (256, 556), (300, 600), (899, 900)):
        other = stream(last, base=base, n_threads=n_threads)
        for t in range(first, last):
            np.testing.assert_array_equal(other.draw(t), draws[t])


def test_every_update_has_noise_of_its_own() -> None:
    source, other = stream(600), stream(600, seed=1)
    draws = np.array([source.draw(t).copy() for t in range(600)])
    assert np.unique(draws).size == draws.size
    assert not np.intersect1d(draws, [other.draw(t).copy() for t in range(600)]).size
    flat = draws.reshape(600, -1)
    assert abs(np.mean(flat[1:] * flat[:-1])) < 4.5 / math.sqrt(flat[1:].size)  # one row of a block to the next
    assert abs(np.mean(flat[256:512] * flat[:256])) < 4.5 / math.sqrt(256 * 24)  # one block to the next
    assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-4


def test_blocks_shrink_for_large_models() -> None:
    large = stream(10, dim=200_000)
    assert large.rows == 1
    np.testing.assert_array_equal(large.draw(7), stream(8, dim=200_000).draw(7))


# ---- objective ---------------------------------------------------------------------------------------------
def exact_gradient(target: GaussianTarget, family: Family, flat: np.ndarray) -> np.ndarray:
    """Of E[-log p] - entropy for a normal target: P(m - mu) for m, P C - 1/C_ii within the pattern for C."""
    location, scale = dense_location_scale(family, target.layout, flat)
    for_scale = target.precision @ scale - np.diag(1 / np.diag(scale))
    mask = dense_mask(family.name, target.layout)
    return np.r_[target.precision @ (location - target.mean), for_scale.T[mask.T]]


each_family = pytest.mark.parametrize("family", [MeanField(), Structured(), FullRank()], ids=lambda family: family.name)
each_family_with_a_base = pytest.mark.parametrize(
    "family", [MeanField("gaussian"), Structured("laplace"), FullRank(("student_t", 9))], ids=lambda family: family.name
)


def at_random(family: Family, target: GaussianTarget, n_samples: int = 8) -> tuple[Objective, Any, np.ndarray]:
    """An objective, its bound family, and parameters in flat order."""
    bound = family.bind(target.layout)
    return Objective(target.model, bound, n_samples, Workers(1)), bound, random_flat(family, target.layout)


@each_family
def test_gradient_is_exact_for_noise_with_exact_moments(family: Family, gaussian_target: GaussianTarget) -> None:
    noise = exact_noise(1, gaussian_target.layout.dim)[0]
    objective, bound, flat = at_random(family, gaussian_target, len(noise))
    work = bound.from_flat(flat)
    out = objective.gradient(work, noise).copy()
    expected = exact_gradient(gaussian_target, family, flat)
    np.testing.assert_allclose(bound.to_flat(out), expected, rtol=1e-10, atol=1e-10)
    difference = objective.gradient(work, noise, energy_only=True) - out
    np.testing.assert_allclose(difference[bound.diagonal], 1 / work[bound.diagonal], rtol=1e-9)
    difference[bound.diagonal] = 0
    np.testing.assert_array_equal(difference, 0)


@each_family_with_a_base
def test_gradient_estimator_is_unbiased(family: Family, gaussian_target: GaussianTarget) -> None:
    """The exact gradient needs the base's first two moments alone, so it is the same for every base."""
    objective, bound, flat = at_random(family, gaussian_target)
    work = bound.from_flat(flat)
    source = NoiseStream(bound.base, 4, (8, bound.layout.dim), 3000, np.dtype(float), np, Workers(1))
    found = np.array([bound.to_flat(objective.gradient(work, source.draw(t)).copy()) for t in range(3000)])
    error = found.mean(axis=0) - exact_gradient(gaussian_target, family, flat)
    z = error / (found.std(axis=0, ddof=1) / math.sqrt(3000))
    assert 0 < np.abs(z).max() < 5  # about 50 entries: 3e-5 for a correct estimator


def exact_elbo(target: GaussianTarget, family: Family, flat: np.ndarray) -> float:
    location, scale = dense_location_scale(family, target.layout, flat)
    d = target.layout.dim
    centred = location - target.mean
    energy = 0.5 * np.trace(target.precision @ scale @ scale.T) + 0.5 * centred @ target.precision @ centred
    energy += 0.5 * d * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(target.precision)[1]
    return float(-energy + family.bind(target.layout).entropy(family.bind(target.layout).from_flat(flat)))


@each_family_with_a_base
def test_elbo_agrees_with_its_closed_form_within_an_honest_error(
    family: Family, gaussian_target: GaussianTarget
) -> None:
    objective, bound, flat = at_random(family, gaussian_target)
    rows = np.array([objective.elbo(bound.from_flat(flat), 256, 0, t) for t in range(400)])
    z = (rows[:, 0] - exact_elbo(gaussian_target, family, flat)) / rows[:, 1]
    assert abs(z.mean()) < 5 / math.sqrt(400)
    # the sd of 400 standardized errors is 1 within 5/sqrt(800), and a heavy tail's share beside it
    assert 0.8 < z.std() < 1.25


@each_family
def test_elbo_is_the_mean_log_density_at_its_draws_plus_the_entropy(
    family: Family, gaussian_target: GaussianTarget
) -> None:
    objective, bound, flat = at_random(family, gaussian_target)
    value, error = objective.elbo(bound.from_flat(flat), 300, 5, 70)
    noise = np.empty((300, bound.layout.dim))
    bound.base.fill(generator(np, 5, ELBO_STREAM, 70, 0), noise)
    location, scale = dense_location_scale(family, gaussian_target.layout, flat)
    posterior = stats.multivariate_normal(gaussian_target.mean, gaussian_target.covariance)
    values = posterior.logpdf(location + noise @ scale.T)
    entropy = stats.multivariate_normal(location, scale @ scale.T).entropy()
    assert value == pytest.approx(values.mean() + entropy, rel=1e-9)
    assert error == pytest.approx(stats.sem(values), rel=1e-9)


def test_one_elbo_sample_has_no_error_estimate(gaussian_target: GaussianTarget) -> None:
    objective, bound, flat = at_random(MeanField(), gaussian_target)
    value, error = objective.elbo(bound.from_flat(flat), 1, 0, 0)
    assert math.isfinite(value)
    assert math.isnan(error)


# ---- threads -----------------------------------------------------------------------------------------------
def irt_in_pieces() -> tv.models.Model:
    responses = (np.random.default_rng(0).uniform(size=(2_600, 50)) < 0.5).astype(float)
    responses[0, 0] = np.nan  # a table with missing cells is summed cell by cell, the work that is worth cutting
    model = tv.models.ItemResponse(responses)
    assert Objective(model, MeanField().bind(model.layout), 8, Workers(1))._pieces is not None
    return model


def many_parameters() -> tv.models.Model:
    model = tv.models.IsotropicGaussian(21_000)
    assert Structured().n_params(model.layout) > 500_000
    return model


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: BUNDLED["poisson"], {"n_iterations": 700, "elbo_every": 200, "elbo_samples": 1024}),
        (irt_in_pieces, {"n_iterations": 4, "elbo_every": 2, "elbo_samples": 100}),
        (many_parameters, {"n_iterations": 3, "n_samples": 2, "optimizer": tv.Adam(1e-2)}),
        (many_parameters, {"n_iterations": 3, "n_samples": 2, "optimizer": tv.ProximalSGD(1e-3)}),
    ],
    ids=["small", "pieces", "adam", "proximal"],
)
def test_threads_change_no_number(make: Any, settings: dict[str, Any]) -> None:
    model = make()
    one, two = (quick_fit(model, n_threads=n, **settings) for n in (1, 2))
    assert_same_run(one, two)
    assert one.n_updates == settings["n_iterations"]


def test_blas_has_one_thread_inside_and_as_many_as_before_outside() -> None:
    def threads() -> set[int]:
        return {found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with one_blas_thread():
            assert threads() == {1}
        assert threads() == before


def test_a_users_function_is_called_from_the_fits_own_thread_alone() -> None:
    """It may keep buffers between calls; the batch is large enough to be cut in pieces otherwise."""
    threads = set()

    def fn(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        threads.add(threading.get_ident())
        return -0.5 * (points**2).sum(axis=1), -points

    model = tv.models.LogDensity(fn, Layout(4, 40_000, 1))
    quick_fit(model, "mean-field", n_iterations=2, n_threads=2)
    assert threads == {threading.get_ident()}


def test_rule_slices_cover_every_parameter_once() -> None:
    """One SGD step with gradient 1 over several slices and threads moves every parameter by the stepsize."""
    layout = Layout(5, 21_000, 3)
    bound = Structured().bind(layout)
    with Workers(2) as workers:
        state = tv.SGD(0.5).start(bound, workers)
        work = np.zeros(bound.n_params)
        state.update(work, GivenGradient(np.ones(bound.n_params)), 1)  # type: ignore[arg-type]
    np.testing.assert_array_equal(work, -0.5)
