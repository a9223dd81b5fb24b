"""Multivariate stochastic volatility against SciPy's densities, finite differences and bad input."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from model_checks import (
    assert_float32_agrees,
    assert_gradient_is_the_slope,
    assert_round_trip,
    assert_survives_pickle_and_state,
    draw_points,
    unit_directions,
    with_missing,
)
from scipy import integrate, stats

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.models import StochasticVolatility


def make(n_times: int, size: int, seed: int = 0) -> StochasticVolatility:
    return StochasticVolatility(0.01 * np.random.default_rng(seed).standard_t(4, size=(n_times, size)))


def lkj_by_scipy(v: np.ndarray, size: int) -> float:
    """LKJ(1) by its construction: the partial correlation of column j is a Beta variable on (-1, 1)."""
    total, place = 0.0, 0
    for i in range(1, size):
        for j in range(i):
            shape = (size - 1 - (j + 1)) / 2 + 1
            r = math.tanh(v[place])
            total += stats.beta.logpdf((r + 1) / 2, shape, shape) - math.log(2) + math.log1p(-r * r)
            place += 1
    return total


def by_scipy(model: StochasticVolatility, point: np.ndarray) -> float:
    n_times, size = model.returns.shape
    mu, v_phi, log_tau = point[:size], point[size : 2 * size], point[2 * size : 3 * size]
    v_partial = point[3 * size : model.layout.n_global]
    if model.partials == "columns":  # (2,1), (3,1), ..., (3,2), ...
        table, places = np.zeros((size, size)), np.tril_indices(size, -1)
        table.T[np.triu_indices(size, 1)] = v_partial
        v_partial = table[places]
    y = point[model.layout.n_global :].reshape(n_times, size)
    phi, tau = np.tanh(v_phi / 2), np.exp(log_tau)
    factor, place = np.zeros((size, size)), 0
    for i in range(size):
        left = 1.0
        for j in range(i):
            factor[i, j] = math.tanh(v_partial[place]) * math.sqrt(left)
            left -= factor[i, j] ** 2
            place += 1
        factor[i, i] = math.sqrt(left)
    root = np.diag(tau) @ factor if model.tau_of == "series" else factor @ np.diag(tau)
    covariance = stats.Covariance.from_cholesky(root)
    total = stats.cauchy.logpdf(mu, 0, 10).sum() + stats.halfcauchy.logpdf(tau, 0, 5).sum() + log_tau.sum()
    total += stats.uniform.logpdf(phi, -1, 2).sum() + np.log((1 - phi**2) / 2).sum()
    total += lkj_by_scipy(v_partial, size)
    means = np.vstack([mu, mu + phi * (y[:-1] - mu)])
    total += stats.multivariate_normal(np.zeros(size), covariance).logpdf(y - means).sum()
    observed = ~np.isnan(model.returns)
    y = y if model.bound is None else np.clip(y, -model.bound, model.bound)
    return float(total + stats.norm.logpdf(model.returns[observed], 0, np.exp(y / 2)[observed]).sum())


@pytest.mark.parametrize(("n_times", "size"), [(262, 6), (2, 1), (40, 2), (7, 4)])
def test_log_density_is_the_sum_of_scipys_densities(n_times: int, size: int) -> None:
    model = make(n_times, size)
    points = draw_points(model, 20)
    np.testing.assert_allclose(model.log_density(points), [by_scipy(model, x) for x in points], rtol=1e-10)


@pytest.mark.parametrize(("n_times", "size", "n_missing"), [(262, 6, 200), (40, 1, 15), (7, 4, 9)])
def test_missing_returns_are_left_out_of_scipys_sum(n_times: int, size: int, n_missing: int) -> None:
    model = StochasticVolatility(with_missing(make(n_times, size).returns, n_missing))
    assert np.isnan(model.returns).sum() == n_missing
    points = draw_points(model, 10)
    np.testing.assert_allclose(model.log_density(points), [by_scipy(model, x) for x in points], rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "n_missing"),
    [
        ({"tau_of": "shocks"}, 9),
        ({"partials": "columns"}, 0),
        ({"bound": 9.0}, 0),
        ({"bound": 9.0}, 9),
        ({"tau_of": "shocks", "partials": "columns", "bound": 9.0}, 9),
    ],
    ids=lambda case: "-".join(map(str, case.values())) if isinstance(case, dict) else str(case),
)
def test_the_options_of_the_released_code(options: dict[str, Any], n_missing: int) -> None:
    """Beyond a bound of 9, amid log variances around -9, the likelihood is flat."""
    plain = StochasticVolatility(with_missing(make(12, 4).returns, n_missing))
    model = StochasticVolatility(plain.returns, **options)
    points = draw_points(model, 10)
    np.testing.assert_allclose(model.log_density(points), [by_scipy(model, x) for x in points], rtol=1e-10)
    assert np.abs(model.log_density(points) - plain.log_density(points)).min() > 1e-3
    if model.bound is not None:  # no kink within the steps of a difference
        y = points[:, model.layout.n_global :]
        y[np.abs(np.abs(y) - 9.0) < 0.05] -= 0.2
    assert_gradient_is_the_slope(model, points, np.vstack([np.eye(model.dim)[:18], unit_directions(model, 4, seed=2)]))
    assert_round_trip(model, points)
    assert_survives_pickle_and_state(model, points)
    assert_float32_agrees(model, points, 1e-5, 1e-4)
    natural = model.constrain(points)
    tau, factor = natural["tau"], natural["L"]
    root = factor * tau[:, None, :] if model.tau_of == "shocks" else factor * tau[:, :, None]
    np.testing.assert_allclose(natural["Q"], root @ root.transpose(0, 2, 1), rtol=1e-12)
    seen = np.clip(natural["y"], -9, 9) if model.bound else natural["y"]
    expected = stats.norm.logpdf(model.returns, 0, np.exp(seen / 2))
    found = model.log_likelihood(points)["returns"]
    np.testing.assert_allclose(found.reshape(10, -1), expected[:, ~np.isnan(model.returns)], rtol=1e-10)
    ahead = model.forecast(points, 3, np.random.default_rng(0))
    if model.bound:
        assert ahead["volatility"].min() >= np.exp(-4.5)
    else:
        shocks = np.random.default_rng(0).standard_normal((10, 4, 1))[:, :, 0]
        step = np.exp((natural["mu"] + natural["phi"] * (natural["y"][:, -1] - natural["mu"])) / 2)
        np.testing.assert_allclose(ahead["volatility"][:, 0], step * np.exp((root @ shocks[..., None])[..., 0] / 2))


def test_labels_tell_which_correlation_stands_where() -> None:
    labels = [StochasticVolatility(make(12, 4).returns, partials=order).global_labels for order in ("rows", "columns")]
    assert labels[1][:12] == labels[0][:12]
    # row by row (2,1), (3,1), (3,2), (4,1), (4,2), (4,3); the columns have (4,1) before (3,2)
    assert labels[1][12:] == [labels[0][12 + k] for k in (0, 1, 3, 2, 4, 5)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tau_of": "shock"}, "'shock'.*shocks"),
        ({"partials": "row"}, "'row'.*rows"),
        ({"bound": 0}, "bound must be a finite number above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        StochasticVolatility(make(5, 2).returns, **options)


def test_days_without_any_return_keep_their_place() -> None:
    returns = make(8, 2).returns
    returns[[3, 7]] = np.nan
    model = StochasticVolatility(pd.DataFrame(returns).astype(object).where(~np.isnan(returns), None))
    assert model.layout.n_local == 8
    points = draw_points(model, 5)
    np.testing.assert_allclose(model.log_density(points), [by_scipy(model, x) for x in points], rtol=1e-10)
    masked = StochasticVolatility(np.ma.masked_invalid(returns))
    np.testing.assert_array_equal(masked.log_density(points), model.log_density(points))
    assert_survives_pickle_and_state(model, points)


@pytest.mark.julia
@pytest.mark.slow  # julia/test/test_turing.jl, and the parametrizations, have the same lines
def test_missing_returns_are_left_out_of_the_turing_form() -> None:
    model = StochasticVolatility(with_missing(make(12, 2).returns, 5))
    runtime = tv.start_julia()
    runtime.load("Turing")
    points = draw_points(model, 5)
    found = runtime.call(runtime.module.turing_log_density, model.to_julia(runtime), runtime.to_julia(points))
    np.testing.assert_allclose(runtime.to_numpy(found), [by_scipy(model, x) for x in points], rtol=1e-8)


def test_the_papers_small_problem_has_its_dimensions() -> None:
    assert (make(262, 6).dim, make(262, 6).layout.n_global) == (1605, 33)


def test_natural_values_are_what_the_names_say() -> None:
    model = make(3, 2)
    point = np.array([1.0, 2.0, 0.4, -0.6, 0.1, 0.2, 0.7, *range(6)])
    natural = model.constrain(point)
    np.testing.assert_array_equal(natural["mu"], [[1.0, 2.0]])
    np.testing.assert_allclose(natural["phi"], np.tanh([[0.2, -0.3]]))
    np.testing.assert_allclose(natural["tau"], np.exp([[0.1, 0.2]]))
    r, tau = np.tanh(0.7), np.exp([0.1, 0.2])
    np.testing.assert_allclose(natural["L"], [[[1, 0], [r, np.sqrt(1 - r * r)]]])
    np.testing.assert_allclose(natural["Q"][0], np.array([[1, r], [r, 1]]) * np.outer(tau, tau))
    np.testing.assert_array_equal(natural["y"], [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]])
    assert model.global_names == ["mu", "phi", "tau", "L", "Q"]


def test_a_data_frame_keeps_its_names_and_gives_the_same_density() -> None:
    plain = make(4, 3)
    frame = pd.DataFrame(plain.returns, columns=["EUR", "JPY", "GBP"], index=pd.date_range("2006-05-17", periods=4))
    named = StochasticVolatility(frame)
    points = draw_points(plain, 3)
    np.testing.assert_array_equal(named.log_density(points), plain.log_density(points))
    assert named.global_labels[0] == "mu[EUR]"
    assert named.global_labels[4] == "logit phi[JPY]"
    assert named.global_labels[-3:] == [
        f"atanh partial correlation[{pair}]" for pair in ("JPY,EUR", "GBP,EUR", "GBP,JPY")
    ]
    assert_survives_pickle_and_state(named, points)


def test_far_points_give_no_warning_and_near_singular_ones_stay_finite() -> None:
    model = make(5, 3)
    points = draw_points(model, 4)
    points[0, -1] = -1000.0  # exp(-y) overflows
    points[1, 6:9] = -800.0  # tau underflows to 0
    points[2, 9:12] = 1000.0  # L is singular
    points[3, 9:12] = 12.0  # correlations within 1e-10 of 1
    density, gradient = model.log_density_and_gradient(points)
    assert not np.isfinite(density[:3]).any()
    assert not np.isfinite(gradient[:3]).all(axis=1).any()
    # The values of one point must not depend on the others of its batch.
    alone, alone_gradient = model.log_density_and_gradient(points[3:])
    assert np.isfinite(alone).all()
    assert np.isfinite(alone_gradient).all()
    np.testing.assert_allclose(density[3], alone[0], rtol=1e-12)
    np.testing.assert_allclose(gradient[3], alone_gradient[0], atol=1e-12 * np.abs(alone_gradient).max())


def test_strong_correlations_keep_their_accuracy() -> None:
    model = make(30, 4)
    points = draw_points(model, 10, seed=5)
    points[:, 12:18] *= 6.0
    np.testing.assert_allclose(model.log_density(points), [by_scipy(model, x) for x in points], rtol=1e-8)


GOOD = np.array([[0.01, -0.02], [0.02, 0.03], [-0.01, 0.01]])
FRAME = pd.DataFrame(GOOD, columns=["EUR", "JPY"])
DAYS = pd.DatetimeIndex(["2006-05-17", "2006-05-18", "2006-05-19"])
MANY = np.exp(np.cumsum(make(25, 1).returns, axis=0))  # prices near 1


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        (GOOD[:, 0], r"must be a table .*shape \(3,\)"),
        (GOOD[:1], "has only 1 row"),
        (np.where(GOOD == 0.03, -np.inf, GOOD), r"1 infinite entries, .*row 1 .*column 'series2'. .*Write NaN"),
        (np.where(GOOD > 0.01, np.nan, GOOD)[:2], r"column 'series1' has 1 returns"),
        (GOOD * [1.0, 0.0], "column 'series2' is constant"),
        (FRAME.assign(JPY=0.25), "column 'JPY' is constant"),
        (FRAME.assign(JPY=[0.25, np.nan, 0.25]), r"column 'JPY' is constant \(0.25 at all 2 times"),
        (1e102 * GOOD, r"hold 3e\+100"),
        (GOOD.T.repeat(2, axis=1), r"has 2 rows and 6 columns.*transpose"),
        (MANY, r"'series1' runs from .* never changes its sign.*log\(prices\).diff"),
        (-MANY, "never changes its sign"),
        (FRAME.assign(JPY=[118.2, 117.9, 118.0]), "column 'JPY' runs from 117.9 to 118.2"),
        (FRAME.assign(EUR=[0.0, 0.01, 0.0]), r"2 are exactly 0, the first at 0 \(EUR\), 2 \(EUR\)\. .*improper"),
        (
            pd.DataFrame(GOOD - 0.01, index=DAYS),
            r"2 are exactly 0, the first at 2006-05-17 \(0\), 2006-05-19 \(1\)\. .*returns.where\(returns != 0\)",
        ),
        (FRAME.set_index(DAYS[::-1]), r"not in the order of time: 2006-05-18 in row 1 .*after 2006-05-19"),
        (FRAME.set_index(DAYS[[0, 2, 1]].tz_localize("Asia/Tokyo")), r"order of time: 2006-05-18.* in row 2"),
        (FRAME.set_index(DAYS[[0, 2, 1]].to_period("D")), r"order of time: 2006-05-18 in row 2"),
        (FRAME.set_index(DAYS[[0, 2, 1]].date), r"order of time: 2006-05-18 in row 2"),
        (FRAME.set_index(DAYS[[0, 2, 1]].astype(str)), r"order of time: 2006-05-18 in row 2"),
        (FRAME.set_index(DAYS[[0, 1, 1]]), r"2006-05-18 stands twice in the index, the second time in row 2"),
        (FRAME.set_index(DAYS[:2].append(pd.DatetimeIndex([None]))), "a date is missing in the index in row 2"),
    ],
)
def test_bad_returns_are_refused_by_name_and_place(returns: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"StochasticVolatility: returns.*{words}"):
        StochasticVolatility(returns)


def test_few_returns_of_one_sign_and_labels_that_are_no_dates_are_taken() -> None:
    assert StochasticVolatility(abs(GOOD)).layout.n_local == 3
    assert StochasticVolatility(FRAME.set_index(pd.Index(["c", "a", "a"]))).layout.n_local == 3
    assert StochasticVolatility(FRAME.set_index(DAYS)).coords["time"] == list(DAYS.to_numpy())


def test_the_term_of_a_return_of_zero_grows_as_the_refusal_says() -> None:
    # the mean of the likelihood of one return over its log variance, by quadrature: bounded unless the return is 0
    def mean_likelihood(x: float, tau: float) -> float:
        def term(e: float) -> float:
            return float(np.exp(stats.norm.logpdf(x, 0, np.exp(tau * e / 2)) + stats.norm.logpdf(e)))

        return float(integrate.quad(term, -20, 20, points=[-tau / 2, 0], limit=400)[0])

    for tau in (1.0, 4.0, 8.0):
        assert mean_likelihood(0.0, tau) == pytest.approx(np.exp(tau**2 / 8) / np.sqrt(2 * np.pi), rel=1e-6)
        assert mean_likelihood(0.1, tau) < 1 / (0.1 * np.sqrt(2 * np.pi * np.e))


def test_a_file_of_an_earlier_version_may_hold_zeros() -> None:
    state = {**StochasticVolatility(FRAME).get_state(), "returns": GOOD - 0.01}
    model = StochasticVolatility.from_state(state)
    points = draw_points(model, 3)
    np.testing.assert_allclose(model.log_density(points), [by_scipy(model, x) for x in points], rtol=1e-10)


def test_zeros_that_were_centred_are_warned_of() -> None:
    returns = make(100, 2).returns
    returns[::20, 1] = 0.0  # five days on which a price did not move
    returns -= returns.mean(axis=0)
    advice = StochasticVolatility(returns).advice()
    assert len(advice) == 1
    assert re.search(r"'series2' has the same return, .*, 5 times in 100: .*missing", advice[0])
    returns[::20, 1] = np.nan
    assert StochasticVolatility(returns).advice() == []
    rounded = np.round(make(400, 2).returns, 4)
    assert StochasticVolatility(np.where(rounded == 0, np.nan, rounded)).advice() == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("phi", np.array([[0.5, 1.0]]), "phi must be inside"),
        ("tau", np.array([[0.5, -1.0]]), "tau must be positive"),
        ("L", np.array([[[1.0, 0.5], [0.6, 0.8]]]), "L must be lower triangular"),
        ("L", np.array([[[1.0, 0.0], [0.6, 0.9]]]), "rows of length 1"),
        ("L", np.array([[[1.0, 0.0], [0.6, -0.8]]]), "positive on its diagonal"),
        ("L", np.eye(3)[None], r"L must have shape \(M, 2, 2\)"),
        ("mu", np.array([[np.nan, 0.0]]), "mu has NaN"),
    ],
)
def test_unconstrain_refuses_values_outside_their_support(name: str, value: np.ndarray, words: str) -> None:
    model = StochasticVolatility(GOOD)
    natural = model.constrain(np.zeros((1, model.dim)))
    with pytest.raises(InputError, match=words):
        model.unconstrain({**natural, name: value})
