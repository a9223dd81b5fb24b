"""Robust Poisson regression against SciPy's densities, finite differences and bad input."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from model_checks import assert_survives_pickle_and_state, draw_points
from scipy import sparse, stats
from targets import quick_fit

from pyturingvi.errors import ConvergenceWarning, InputError
from pyturingvi.models import RobustPoisson


def make(n: int, p: int, *, offset: bool = False, seed: int = 0) -> RobustPoisson:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    eta = X @ rng.normal(0, 0.2, size=p) + 0.5 + rng.normal(size=n)
    return RobustPoisson(X, rng.poisson(np.exp(eta)), rng.normal(size=n) if offset else None)


def by_scipy(model: RobustPoisson, point: np.ndarray) -> float:
    """The model's statement, term by term; each scale has Jacobian s in log s."""
    p = model.X.shape[1]
    s_alpha, s_beta, s_eta = np.exp(point[:3])
    alpha, beta, eta = point[3], point[4 : 4 + p], point[4 + p :]
    total = sum(np.log(2) + stats.t.logpdf(s, 4) + np.log(s) for s in (s_alpha, s_beta, s_eta))
    total += stats.norm.logpdf(alpha, 0, s_alpha) + stats.norm.logpdf(beta, 0, s_beta).sum()
    total += stats.norm.logpdf(eta, model.X @ beta + alpha + model.offset, s_eta).sum()
    return float(total + stats.poisson.logpmf(model.y.astype(int), np.exp(eta)).sum())


@pytest.mark.parametrize("offset", [False, True])
def test_log_density_is_the_sum_of_scipys_densities_at_the_papers_small_size(offset: bool) -> None:
    model = make(1961, 12, offset=offset)
    assert model.dim == 1977
    points = draw_points(model, 20)
    np.testing.assert_allclose(model.log_density(points), [by_scipy(model, x) for x in points], rtol=1e-10)


@pytest.mark.parametrize("count", [3.0, 1e3, 1e5, 1e7])
def test_float32_points_lose_no_nats_at_large_counts(count: float) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1000, 2))
    eta = np.log(count) + X @ [0.3, -0.2] + 0.3 * rng.normal(size=1000)
    model = RobustPoisson(X, rng.poisson(np.exp(eta)))
    start = np.concatenate([[0.0, 0.0, -1.0, np.log(count), 0.3, -0.2], eta])
    points = (start + 0.02 * rng.normal(size=(3, model.dim))).astype(np.float32)
    expected = [by_scipy(model, x) for x in points.astype(float)]
    for density in (model.log_density(points), model.log_density_and_gradient(points)[0]):
        np.testing.assert_allclose(density, expected, rtol=0, atol=2e-3)


def test_natural_values_are_what_the_names_say() -> None:
    model = make(3, 2)
    natural = model.constrain(np.arange(9.0))
    np.testing.assert_allclose(natural["s_beta"], [np.e])
    np.testing.assert_array_equal(natural["alpha"], [3.0])
    np.testing.assert_array_equal(natural["beta"], [[4.0, 5.0]])
    np.testing.assert_array_equal(natural["eta"], [[6.0, 7.0, 8.0]])
    assert model.global_names == ["s_alpha", "s_beta", "s_eta", "alpha", "beta"]


def test_a_data_frame_keeps_its_names_and_gives_the_same_density() -> None:
    plain = make(4, 2)
    index = ["r1", "r2", "r3", "r4"]
    frame = pd.DataFrame(plain.X, columns=["age", "educ"], index=index)
    named = RobustPoisson(frame, pd.Series(plain.y.astype(int), index=index))
    points = draw_points(plain, 3)
    np.testing.assert_array_equal(named.log_density(points), plain.log_density(points))
    assert named.global_labels == [
        *("log s_alpha", "log s_beta", "log s_eta", "alpha"),
        *("beta[age]", "beta[educ]"),
    ]
    assert named.coords == {"covariate": ["age", "educ"], "row": index}
    assert_survives_pickle_and_state(named, points)


def test_overflow_gives_no_warning_and_a_value_that_is_not_finite() -> None:
    model = make(4, 2)
    point = np.zeros((1, model.dim))
    point[0, -1] = 1000.0
    density, gradient = model.log_density_and_gradient(point)
    assert density[0] == -np.inf
    assert not np.isfinite(gradient).all()
    point[0, -1], point[0, :3] = 0.0, (-800.0, 800.0, -800.0)
    assert not np.isfinite(model.log_density(point)[0])


def test_the_models_data_does_not_follow_later_changes_of_the_users() -> None:
    X, y = np.ones((3, 1)), np.array([1.0, 2.0, 3.0])
    model = RobustPoisson(X, y)
    before = model.log_density(np.zeros((1, 8)))
    X[:], y[:] = 7.0, 9.0
    np.testing.assert_array_equal(model.log_density(np.zeros((1, 8))), before)


GOOD_X = np.array([[1.0, 0.5], [0.0, 0.25], [2.0, 1.5]])
GOOD_Y = np.array([0, 3, 1])


@pytest.mark.parametrize(
    "y",
    [
        np.array([True, False, True]),
        [1, 0, 1],
        pd.Series([1, 0, 1]),
        pd.Series([1, 0, 1], dtype="Int64"),
        pd.Series([True, False, True], dtype="boolean"),
        pd.DataFrame({"n": [1, 0, 1]}),
        np.array([[1], [0], [1]], dtype=np.uint8),
        np.array([1, Fraction(0), 1.0], dtype=object),
    ],
    ids=lambda y: f"{type(y).__name__}-{getattr(y, 'dtype', '')}",
)
def test_counts_are_taken_in_any_numeric_form(y: Any) -> None:
    np.testing.assert_array_equal(RobustPoisson(GOOD_X, y).y, [1.0, 0.0, 1.0])


def with_entry(array: np.ndarray, place: tuple[int, ...], value: float) -> np.ndarray:
    changed = array.astype(float)
    changed[place] = value
    return changed


FRAME = pd.DataFrame(GOOD_X, columns=["age", "educ"])


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (GOOD_X[:, 0], r"X must be a table .*shape \(3,\)"),
        (FRAME["age"], r"X must be a table"),
        (GOOD_X[None], "X must be a table"),
        (GOOD_X[:2], "X has 2 rows but y has 3"),
        (GOOD_X[:0], "X is empty"),
        (FRAME.iloc[:0], "X is empty"),
        (GOOD_X[:, :0], "X has no columns"),
        (FRAME[[]], "X has no columns"),
        (with_entry(GOOD_X, (1, 1), np.nan), r"X has 1 entries .* row 1 .*column 'x2': NaN"),
        (with_entry(GOOD_X, (2, 0), np.inf), r"X has 1 entries .* row 2 .*column 'x1': infinite"),
        (FRAME.assign(educ=[1.0, None, 2.0]), r"X .* row 1 .*column 'educ': NaN"),
        (FRAME.assign(educ=pd.array([1, 2, None], dtype="Int64")), r"X .* row 2 .*column 'educ': NaN"),
        (FRAME.assign(educ=["low", "high", "low"]), r"X, column 'educ'.*'low'.*row 0"),
        (FRAME.assign(educ=pd.Categorical(["low", "high", "low"])), "X, column 'educ'"),
        (FRAME.assign(educ=pd.date_range("2020-01-01", periods=3)), "X, column 'educ'.*datetime64"),
        (FRAME.set_axis(["age", "age"], axis=1), "X has more than one column named 'age'"),
        (GOOD_X.astype(str), "X must hold numbers"),
        (GOOD_X + 1j, "X is complex"),
        (np.array([[1, 2], [3, None], [4, 5]], dtype=object), r"X .* row 1 .*NaN"),
        (np.array([[1, 2], [3, 2j], [4, 5]], dtype=object), r"X must hold numbers; 2j"),
        (np.ma.masked_array(GOOD_X, mask=GOOD_X == 0), "X is a masked array"),
        (sparse.csr_array(GOOD_X), "X is a sparse matrix"),
        ([[1.0, 2.0], [3.0], [4.0, 5.0]], "X: its rows have different lengths"),
        (None, "X"),
    ],
)
def test_bad_covariates_are_refused_by_name_and_place(X: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"RobustPoisson: {words}"):
        RobustPoisson(X, GOOD_Y)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([0, -1, -3], r"2 are negative, the first in row 1 .*: -1"),
        ([0, 1.5, 2], r"1 are fractional, the first in row 1 .*: 1.5"),
        ([0, 1e300, 2], r"1e\+300"),
        ([0, np.nan, 2], r"row 1 .*NaN"),
        (pd.Series([0, None, 2], dtype="Int64"), r"row 1 .*NaN"),
        ([0, np.inf, 2], r"row 1 .*infinite"),
        ([0, 1], "has 2"),
        ([], "empty"),
        (np.zeros((3, 2)), r"one-dimensional, got shape \(3, 2\)"),
        (pd.DataFrame({"a": GOOD_Y, "b": GOOD_Y}), "one column"),
        (["1", "2", "3"], "must hold numbers"),
        (np.array(["2", "1", "many"], dtype=object), r"must hold numbers; 'many' in row 2 .* is of type str"),
        (3, r"one-dimensional, got shape \(\)"),
        (np.ma.masked_array(GOOD_Y, mask=[1, 0, 0]), "masked"),
    ],
)
def test_bad_counts_are_refused_by_name_and_place(y: Any, words: str) -> None:
    with pytest.raises(InputError, match=rf"RobustPoisson: .*\by\b.*{words}"):
        RobustPoisson(GOOD_X, y)


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        ([0.0, np.nan, 1.0], r"offset .* row 1"),
        ([0.0, np.inf, 1.0], r"offset .* row 1"),
        ([0.0, 1.0], "X has 3 rows but offset has 2"),
        (["a", "b", "c"], "offset must hold numbers"),
    ],
)
def test_bad_offsets_are_refused(offset: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        RobustPoisson(GOOD_X, GOOD_Y, offset)


def test_pandas_inputs_whose_rows_are_in_another_order_are_refused() -> None:
    shuffled = pd.Series(GOOD_Y, index=[2, 0, 1])
    with pytest.raises(InputError, match="X and y have different index labels"):
        RobustPoisson(FRAME, shuffled)
    with pytest.raises(InputError, match="y and offset have different index labels"):
        RobustPoisson(GOOD_X, pd.Series(GOOD_Y), shuffled * 0.1)
    assert RobustPoisson(FRAME, shuffled.loc[FRAME.index]).dim == 9
    assert RobustPoisson(np.ones((3, 1)), GOOD_Y).dim == 8  # a constant covariate is allowed


# ---- advice ------------------------------------------------------------------------------------------------
YEARS = np.tile(np.arange(1984.0, 2005.0, 4.0), 10)


def advice(column: np.ndarray) -> list[str]:
    x = pd.DataFrame({"income": np.linspace(-1.7, 1.7, len(column)), "year": column})
    return RobustPoisson(x, np.ones(len(column))).advice()


def test_advice_names_the_covariate_and_the_remedy() -> None:
    (words,) = advice(YEARS)
    assert "Covariate 'year' of X has mean 1994 and standard deviation 6.83" in words
    assert "Subtract its mean and divide by its standard deviation" in words
    assert len(advice(1e4 * (YEARS - YEARS.mean()))) == 1
    assert len(advice(1e-4 * (YEARS - YEARS.mean()))) == 1


@pytest.mark.parametrize(
    "column",
    [
        (YEARS - YEARS.mean()) / YEARS.std(),
        YEARS - 1984,
        np.ones(60),
        np.full(60, 1984.0),
        np.eye(1, 60)[0],
        1 - np.eye(1, 60)[0],
    ],
    ids=["standardized", "from 0 on", "ones", "constant", "rare group", "rare gap"],
)
def test_no_advice_where_the_scale_is_usual(column: np.ndarray) -> None:
    assert advice(column) == []


def test_the_advice_comes_before_the_work_and_once() -> None:
    model = RobustPoisson(YEARS[:, None], np.ones(len(YEARS)))
    done: list[int] = []
    with pytest.warns(ConvergenceWarning) as caught:
        quick_fit(model, "mean-field", n_iterations=2, elbo_every=1, callback=lambda *_: done.append(len(caught)))
    assert done[0] == 1
    assert [model.advice()[0] in str(one.message) for one in caught].count(True) == 1
