"""Natural gradients in the Markov family: its coordinates against dense matrices, and whole fits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from targets import GaussianTarget
from test_markov import dense_markov, each_layout, matrices, random_markov

import pyturingvi as tv
from pyturingvi.families import Markov, MeanField, Structured
from pyturingvi.layout import Layout
from pyturingvi.optimize.natural_plan import stages_of


class Placed:
    """Random parameters at work, and steps from there."""

    def __init__(self, layout: Layout, base: Any = "gaussian", seed: int = 0) -> None:
        self.layout, self.bound = layout, Markov(base=base).bind(layout)
        self.coordinates = self.bound.natural_coordinates()
        self.flat = random_markov(layout, seed)
        self.work = self.bound.from_flat(self.flat)
        self.m, self.c = dense_markov(layout, self.flat)
        self.random = np.random.default_rng(seed + 1)

    def step(self) -> np.ndarray:
        return self.bound.from_flat(self.random.normal(size=self.bound.n_params))

    def moved(self, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Location and dense scale after a step."""
        work = self.work.copy()
        self.coordinates.retract(work, step.copy())
        return dense_markov(self.layout, self.bound.to_flat(work))

    def derivative(self, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends = [self.moved(sign * 1e-5 * step) for sign in (1, -1)]
        return (ends[0][0] - ends[1][0]) / 2e-5, (ends[0][1] - ends[1][1]) / 2e-5


@each_layout
def test_the_inner_product_is_the_fisher_metric_of_the_distribution(layout: Layout) -> None:
    """Of normal distributions: `dm' S^-1 dm + tr(S^-1 dS S^-1 dS)/2`, along what two steps change."""
    placed = Placed(layout)
    precision = np.linalg.inv(placed.c @ placed.c.T)
    changes, steps = [], [placed.step(), placed.step()]
    for step in steps:
        location, scale = placed.derivative(step)
        changes.append((location, precision @ (scale @ placed.c.T + placed.c @ scale.T)))
    (m, s), (m_2, s_2) = changes
    expected = m @ precision @ m_2 + np.trace(s @ s_2) / 2
    np.testing.assert_allclose(placed.coordinates.inner(*steps), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("base", ["gaussian", "laplace", ("student_t", 6.0)], ids=str)
@each_layout
def test_the_direction_is_the_gradient_in_that_metric(layout: Layout, base: Any) -> None:
    """For any step s: `<direction, s>` is the derivative of the sum of `g . x(u)` along s."""
    placed = Placed(layout, base)
    slopes, noise = placed.random.normal(size=(2, 4, layout.dim))
    whitened = placed.coordinates.whiten(placed.work, slopes.copy())
    np.testing.assert_allclose(whitened, slopes @ placed.c, rtol=1e-11, atol=1e-11)
    direction = np.full_like(placed.work, np.nan)
    placed.coordinates.direction(placed.work, noise, whitened, direction)
    placed.coordinates.normalize(placed.work, direction)
    for _ in range(3):
        step = placed.step()
        location, scale = placed.derivative(step)
        expected = (slopes * (location + noise @ scale.T)).sum()
        np.testing.assert_allclose(placed.coordinates.inner(direction, step), expected, rtol=1e-5, atol=1e-5)


@each_layout
@pytest.mark.parametrize("size", [0.3, 20.0])
def test_a_large_step_keeps_the_signs_and_steps_the_rest_as_structured_does(layout: Layout, size: float) -> None:
    placed = Placed(layout)
    step = size * placed.step()
    moved = placed.work.copy()
    placed.coordinates.retract(moved, step)
    np.testing.assert_array_equal(np.sign(moved[placed.bound.diagonal]), np.sign(placed.work[placed.bound.diagonal]))
    assert placed.coordinates.usable(moved)

    d_y, d_z = layout.local_dim, layout.n_global
    m, c = dense_markov(layout, placed.bound.to_flat(moved))
    a, k = dense_markov_step(layout, placed.bound.to_flat(step))
    np.testing.assert_allclose(m, placed.m + placed.c @ a, rtol=1e-10, atol=1e-10)
    e_zz = np.eye(d_z) + k[:d_z, :d_z] + k[:d_z, :d_z] @ k[:d_z, :d_z] / 2
    np.testing.assert_allclose(c[:d_z, :d_z], placed.c[:d_z, :d_z] @ e_zz, rtol=1e-10, atol=1e-10 * size**2)
    border = placed.c[d_z:, :d_z] @ e_zz + placed.c[d_z:, d_z:] @ k[d_z:, :d_z]
    np.testing.assert_allclose(c[d_z:, :d_z], border, rtol=1e-10, atol=1e-9 * size**2)
    chain, before = matrices(layout, placed.bound.to_flat(moved)), matrices(layout, placed.flat)
    lagged = matrices(layout, placed.bound.to_flat(step))
    covariance = placed.c[d_z:, d_z:] @ placed.c[d_z:, d_z:].T
    for n in range(layout.n_local):
        block = layout.block_slice(n)
        own, change = placed.c[block, block], k[block, block]
        expected = own @ (np.eye(d_y) + change + change @ change / 2)
        np.testing.assert_allclose(c[block, block], expected, rtol=1e-10, atol=1e-10 * size**2)
        if n:
            last = slice(block.start - d_z - d_y, block.start - d_z)
            root = np.linalg.cholesky(covariance[last, last])
            expected = before[n - 1] + own @ lagged[n - 1] @ np.linalg.inv(root)
            np.testing.assert_allclose(chain[n - 1], expected, rtol=1e-8, atol=1e-8 * size)


def dense_markov_step(layout: Layout, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The part of a step that the structured family has too."""
    without_chain = flat.copy()
    without_chain[Structured().n_params(layout) :] = 0
    return dense_markov(layout, without_chain)


@pytest.mark.parametrize("trust", [1e-3, 2.0, 1e3])
@each_layout
def test_each_block_of_a_step_is_shortened_to_the_trust_region(layout: Layout, trust: float) -> None:
    placed = Placed(layout)
    step = placed.step()
    d_z, n = layout.n_global, layout.n_local
    flat = placed.bound.to_flat(step)
    (a, k), chain = dense_markov_step(layout, flat), matrices(layout, flat)
    factors: list[float] = []
    longer: list[bool] = []
    for rows in [np.arange(d_z), *(np.arange(layout.dim)[layout.block_slice(i)] for i in range(n))]:
        if not len(rows):
            continue
        i = (rows[0] - d_z) // layout.local_dim if rows[0] >= d_z else 0
        norm = np.sqrt((a[rows] ** 2).sum() + (k[rows] ** 2).sum() + ((chain[i - 1] ** 2).sum() if i else 0))
        longer.append(norm > trust)
        factors.append(
            min(1.0, trust / norm, -1 / min(k[rows, rows].min(), -1.0))
        )  # no scale falls by more than a half
        a[rows] *= factors[-1]
        k[rows] *= factors[-1]
        if i:
            chain[i - 1] *= factors[-1]
    share = placed.coordinates.limit(step, trust)
    assert share == pytest.approx(np.mean(longer))
    found = placed.bound.to_flat(step)
    (found_a, found_k), found_chain = dense_markov_step(layout, found), matrices(layout, found)
    for one, other in ((found_a, a), (found_k, k), (found_chain, chain)):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_parameters_that_are_no_distribution_are_not_usable(broken: float) -> None:
    placed = Placed(Layout(2, 3, 2))
    assert placed.coordinates.usable(placed.work)
    for place in range(placed.work.size):
        work = placed.work.copy()
        work[place] = broken
        assert not placed.coordinates.usable(work)


def test_a_covariance_that_is_singular_to_rounding_makes_no_step_and_raises_nothing() -> None:
    placed = Placed(Layout(1, 3, 2))
    work = placed.work.copy()
    work[placed.bound.diagonal] = 1e-200
    direction = np.ones_like(work)
    placed.coordinates.normalize(work, direction)
    assert not np.isfinite(direction).all()


# ---- whole fits --------------------------------------------------------------------------------------------
def autoregressive(n_times: int = 30, size: int = 2) -> GaussianTarget:
    """z ~ N(0, I), y_n = B y_{n-1} + C z + noise, x_n = y_n + noise, given some x: normal, its precision banded."""
    rng = np.random.default_rng(3)
    layout = Layout(2, n_times, size)
    precision, linear = np.zeros((layout.dim, layout.dim)), np.zeros(layout.dim)
    precision[:2, :2] = np.eye(2)
    b, c = 0.8 * np.eye(size) + 0.1 * rng.normal(size=(size, size)), 0.3 * rng.normal(size=(size, 2))
    for n in range(n_times):
        rows = np.zeros((size, layout.dim))  # the innovation, a combination of coordinates
        rows[:, layout.block_slice(n)] = np.eye(size)
        rows[:, :2] = -c
        if n:
            rows[:, layout.block_slice(n - 1)] = -b
        precision += 4 * rows.T @ rows
        precision[layout.block_slice(n), layout.block_slice(n)] += 2 * np.eye(size)
        linear[layout.block_slice(n)] += 2 * rng.normal(1.0, 1.0, size=size)
    return GaussianTarget(np.linalg.solve(precision, linear), precision, layout)


@pytest.mark.parametrize("size", [1, 2])
def test_a_normal_time_series_is_found_exactly(size: int) -> None:
    """Given the globals its chain is a Markov one: the log evidence, means and the whole covariance."""
    target = autoregressive(size=size)
    fit = tv.fit(target.model, "markov", engine="numpy", progress=False, seed=4)
    assert fit.status == "converged"
    value, error = fit.elbo.iloc[-1][["elbo", "std_error"]]
    assert abs(value) < 5 * error + 0.2  # the density is normalized
    covariance, sd = target.covariance, np.sqrt(np.diag(target.covariance))
    np.testing.assert_allclose((fit.location - target.mean) / sd, 0, atol=0.1)
    c = fit.scale.toarray()
    np.testing.assert_allclose((c @ c.T - covariance) / np.outer(sd, sd), 0, atol=0.1)
    plain = tv.fit(target.model, "structured", engine="numpy", progress=False)
    assert plain.elbo.elbo.iloc[-1] < value - 1


@pytest.mark.parametrize(
    ("base", "dtype"), [("laplace", "float64"), (("student_t", 6), "float64"), ("gaussian", "float32")]
)
def test_other_bases_and_float32_reach_the_same_location_and_scale(base: Any, dtype: str) -> None:
    """The optimum of a location-scale family on a normal target is the same for every base."""
    target = autoregressive(n_times=12)
    fit = tv.fit(target.model, Markov(base=base), engine="numpy", progress=False, dtype=dtype)
    assert fit.status == "converged"
    sd = np.sqrt(np.diag(target.covariance))
    np.testing.assert_allclose((fit.location - target.mean) / sd, 0, atol=0.3)
    np.testing.assert_allclose(np.sqrt((fit.scale.toarray() ** 2).sum(axis=1)) / sd, 1, atol=0.25)


def test_smaller_families_go_first() -> None:
    layout = Layout(2, 5, 1)
    assert stages_of(Markov(), layout, warm=True) == [MeanField(), Structured(), Markov()]
    laplace = Markov(base="laplace")
    assert stages_of(laplace, layout, warm=True) == [MeanField(), Structured(), Markov(), laplace]
    assert stages_of(Markov(), layout, warm=False) == [Markov()]
    assert stages_of(Markov(), Layout(4, 0, 0), warm=True) == [MeanField(), Markov()]


def simulated_returns(seed: int) -> np.ndarray:
    """500 returns of a series with mu = 0.005, phi = 0.98 and tau = 0.2."""
    random, mu, phi, tau = np.random.default_rng(seed), 0.005, 0.98, 0.2
    y = np.empty(500)
    y[0] = mu + tau * random.normal()
    for t in range(1, 500):
        y[t] = mu + phi * (y[t - 1] - mu) + tau * random.normal()
    return np.exp(y / 2) * random.normal(size=500)


# NumPyro 0.22, NUTS with target_accept_prob=0.9 on the same model with these returns, its path non-centred, 2 chains of
# 1,000 + 3,000 draws: mean and sd of phi and tau; r-hat at most 1.002, at least 2,250 effective draws. The centred form
# (2 x 4,000) gives 0.978 and 0.212, 0.992 and 0.157, with some 100 effective draws of tau.
NUTS = {0: ((0.9787, 0.0122), (0.2093, 0.0451)), 1: ((0.9922, 0.0061), (0.1584, 0.0308))}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_volatility_that_persists_refined_has_what_nuts_has(seed: int) -> None:
    """README's table has the first."""
    model = tv.models.StochasticVolatility(simulated_returns(seed)[:, None])
    refined = tv.fit(model, engine="numpy", progress=False, refine=True)
    assert refined.refined is not None
    assert refined.refined.weighted
    draws = refined.sample(20_000, local=False)
    for name, (mean, sd) in zip(("phi", "tau"), NUTS[seed], strict=True):
        assert abs(draws[name].mean() - mean) < 0.1 * sd
        assert draws[name].std() == pytest.approx(sd, rel=0.07)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_volatility_that_persists_is_found_where_nuts_finds_it(seed: int) -> None:
    """Within half a standard deviation of NUTS; the structured family takes it for days without a memory."""
    model = tv.models.StochasticVolatility(simulated_returns(seed)[:, None])
    with pytest.warns(tv.RefineWarning, match=r"log tau\[series1\] wider"):  # 4 times, by NUTS
        markov = tv.fit(model, "markov", engine="numpy", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tv.ConvergenceWarning)
        structured = tv.fit(model, "structured", engine="numpy", progress=False)
    assert markov.status == "converged"
    assert markov.elbo.elbo.iloc[-1] > structured.elbo.elbo.iloc[-1] + 30
    for name, (mean, sd) in zip(("phi[series1]", "tau[series1]"), NUTS[seed], strict=True):
        assert abs(markov.summary().loc[name, "mean"] - mean) < sd / 2
        assert abs(structured.summary().loc[name, "mean"] - mean) > 10 * sd
