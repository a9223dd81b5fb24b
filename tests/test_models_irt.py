"""The item response model against scipy's densities, finite differences and its own missing-data rule."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from pyturingvi.errors import InputError
from pyturingvi.models import irt_likelihood
from pyturingvi.models.irt import ItemResponse


def make_table(n_students, n_items, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    table = (rng.random((n_students, n_items)) < 0.6).astype(float)
    if missing:
        lost = rng.random(table.shape) < missing
        # A student and an item keep one answer each, else the table is refused.
        lost[np.arange(n_students), np.arange(n_students) % n_items] = False
        lost[np.arange(n_items) % n_students, np.arange(n_items)] = False
        table[lost] = np.nan
    return table


def make_points(model, n, seed=1, spread=0.7):
    return spread * np.random.default_rng(seed).standard_normal((n, model.dim))


def reference_log_density(table, point):
    """Sum of scipy densities in the natural space and of the log-Jacobians of the three exponentials."""
    n_items = table.shape[1]
    mu, log_s_beta, log_s_gamma = point[:3]
    log_gamma, beta = point[3 : 3 + n_items], point[3 + n_items : 3 + 2 * n_items]
    alpha = point[3 + 2 * n_items :]
    s_beta, s_gamma, gamma = np.exp(log_s_beta), np.exp(log_s_gamma), np.exp(log_gamma)
    total = stats.t(4).logpdf(mu)
    total += np.log(2) + stats.t(4).logpdf(s_beta) + log_s_beta
    total += np.log(2) + stats.t(4).logpdf(s_gamma) + log_s_gamma
    total += (stats.lognorm(s=s_gamma, scale=1.0).logpdf(gamma) + log_gamma).sum()
    total += stats.norm(0, s_beta).logpdf(beta).sum() + stats.norm(0, 1).logpdf(alpha).sum()
    logits = np.outer(alpha, gamma) + beta + mu
    seen = ~np.isnan(table)
    return total + stats.bernoulli(special.expit(logits[seen])).logpmf(table[seen]).sum()


# ---- density and gradient ---------------------------------------------------------------------------------
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_log_density_is_the_sum_of_scipy_densities(missing):
    table = make_table(3348, 95, missing=missing)
    model = ItemResponse(table)
    points = make_points(model, 20)
    expected = [reference_log_density(table, point) for point in points]
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-10)
    np.testing.assert_allclose(model.log_density_and_gradient(points)[0], expected, rtol=1e-10)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_gradient_is_the_central_difference_in_every_coordinate(missing, spread):
    model = ItemResponse(make_table(40, 5, seed=3, missing=missing))
    for point in make_points(model, 3, spread=spread):
        step = 1e-5 * np.eye(model.dim)
        numeric = (model.log_density(point + step) - model.log_density(point - step)) / 2e-5
        gradient = model.gradient(point)[0]
        assert np.abs(gradient - numeric).max() <= 1e-6 * np.abs(gradient).max()


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_gradient_is_the_central_difference_along_directions_at_the_real_size(missing):
    model = ItemResponse(make_table(3348, 95, missing=missing))
    rng = np.random.default_rng(5)
    for point in make_points(model, 3):
        gradient = model.gradient(point)[0]
        for part in (slice(None), model.layout.global_slice, model.layout.local_slice):
            direction = np.zeros(model.dim)
            direction[part] = rng.standard_normal(direction[part].size)
            direction /= np.linalg.norm(direction)
            step = 1e-4
            numeric = np.diff(model.log_density(point + np.outer([-step, step], direction)))[0] / (2 * step)
            assert abs(gradient @ direction - numeric) <= 1e-6 * np.abs(gradient).max()


def test_gradient_alone_and_with_the_value_agree():
    model = ItemResponse(make_table(500, 30, missing=0.1))
    points = make_points(model, 4)
    np.testing.assert_allclose(
        model.gradient(points), model.log_density_and_gradient(points)[1], rtol=1e-12, atol=1e-12
    )


def test_a_missing_cell_changes_the_density_by_its_own_log_probability():
    table = make_table(30, 6, seed=2)
    model = ItemResponse(table)
    point = make_points(model, 1)[0]
    holes = table.copy()
    holes[4, 2] = holes[7, 0] = np.nan
    logit = np.outer(point[15:], np.exp(point[3:9])) + point[9:15] + point[0]
    removed = sum(special.log_expit((2 * table[j, k] - 1) * logit[j, k]) for j, k in ((4, 2), (7, 0)))
    difference = model.log_density(point) - ItemResponse(holes).log_density(point)
    np.testing.assert_allclose(difference, removed, rtol=1e-9)


@pytest.mark.parametrize("size", [0.0, 3.0, 30.0])
def test_large_logits_neither_overflow_nor_lose_accuracy(size):
    table = make_table(50, 8, seed=4)
    model = ItemResponse(table)
    point = make_points(model, 1)[0]
    point[19:] *= size
    logit = np.outer(point[19:], np.exp(point[3:11])) + point[11:19] + point[0]
    likelihood = special.log_expit((2 * table - 1) * logit).sum()
    prior = reference_log_density(np.full(table.shape, np.nan), point)
    np.testing.assert_allclose(model.log_density(point), likelihood + prior, rtol=1e-11)
    residual = table - special.expit(logit)
    np.testing.assert_allclose(
        model.gradient(point)[0, 19:], residual @ np.exp(point[3:11]) - point[19:], rtol=1e-9, atol=1e-11
    )


def test_overflow_gives_infinity_or_nan_without_a_warning():
    model = ItemResponse(make_table(10, 4))
    point = np.zeros(model.dim)
    point[3] = 1e4
    assert not np.isfinite(model.log_density(point)).any()
    assert not np.isfinite(model.gradient(point)).all()
    assert np.isnan(model.log_density(np.full(model.dim, np.nan))).all()
    far = np.zeros(model.dim)
    far[1] = -1e4
    far[11:] = 1.0
    assert not np.isfinite(model.log_density(far)).any() or model.log_density(far)[0] < 0


def test_float32_stays_float32_and_is_close_to_float64():
    model = ItemResponse(make_table(3348, 95, missing=0.1))
    points = make_points(model, 3).astype(np.float32)
    value, gradient = model.log_density_and_gradient(points)
    value64, gradient64 = model.log_density_and_gradient(points.astype(np.float64))
    assert gradient.dtype == np.float32
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, value64, rtol=1e-6)
    np.testing.assert_allclose(model.log_density(points), value64, rtol=1e-6)
    assert np.abs(gradient - gradient64).max() <= 1e-5 * np.abs(gradient64).max()


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("block", [1, 4096, 1 << 24])
def test_block_size_does_not_change_the_result(monkeypatch, missing, block):
    table = make_table(203, 101, missing=missing)
    model = ItemResponse(table)
    points = make_points(model, 7)
    expected = [reference_log_density(table, point) for point in points]
    gradient = model.gradient(points)
    monkeypatch.setattr(irt_likelihood, "_CPU_BLOCK_BYTES", block)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-11)
    value, blocked = model.log_density_and_gradient(points)
    np.testing.assert_allclose(value, expected, rtol=1e-11)
    np.testing.assert_allclose(blocked, gradient, rtol=1e-10, atol=1e-10)


def test_each_point_of_a_batch_counts_alone():
    model = ItemResponse(make_table(60, 7))
    points = make_points(model, 5)
    one_by_one = np.concatenate([model.log_density(point) for point in points])
    np.testing.assert_allclose(model.log_density(points), one_by_one, rtol=1e-13)
    gradients = np.concatenate([model.gradient(point) for point in points])
    np.testing.assert_allclose(model.gradient(points), gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_memory_beyond_the_points_stays_small_at_the_largest_size(dtype):
    model = ItemResponse(make_table(33475, 95))
    points = np.zeros((48, model.dim), dtype=dtype)
    model.log_density(points[:1])  # the responses in this dtype, kept for all calls
    out = np.empty_like(points)
    tracemalloc.start()
    try:
        model.log_density(points)
        model._gradient(points, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40e6  # one float64 table of cells for all points would take 1.2 GB
    assert sum(a.nbytes for a in model._device_cache.values()) <= 33475 * 95 * points.itemsize


# ---- input ------------------------------------------------------------------------------------------------
def test_long_form_equals_wide_form():
    wide = pd.DataFrame(
        make_table(12, 4, missing=0.2), columns=list("abcd"), index=[f"s{j}" for j in range(12)]
    )
    rows = [(s, i, wide.loc[s, i]) for s in wide.index for i in wide.columns if not np.isnan(wide.loc[s, i])]
    long = pd.DataFrame(rows, columns=["who", "what", "right"])
    model = ItemResponse.from_long(long, student="who", item="what", response="right")
    order = [list(model.coords[key]) for key in ("student", "item")]
    point = make_points(model, 2)
    same = ItemResponse(wide.loc[order[0], order[1]])
    np.testing.assert_array_equal(model.responses, same.responses)
    np.testing.assert_array_equal(model.log_density(point), same.log_density(point))
    assert model.global_labels == same.global_labels


def test_names_come_from_the_table():
    table = pd.DataFrame([[1, 0], [0, 1], [1, 1]], columns=["add", "divide"], index=["ann", "bob", "eve"])
    model = ItemResponse(table)
    assert model.global_labels == [
        "mu_beta", "log s_beta", "log s_gamma", "log gamma[add]", "log gamma[divide]", "beta[add]", "beta[divide]",
    ]  # fmt: skip
    assert model.coords == {"item": ["add", "divide"], "student": ["ann", "bob", "eve"]}
    assert ItemResponse(table.to_numpy()).global_labels[3] == "log gamma[item1]"
    assert model.layout.n_global == len(model.global_labels) == 7
    assert model.layout.n_local == 3
    assert model.work_per_point == 6
    assert set(model.dims) == set(model.constrain(np.zeros((1, model.dim))))


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"a": [1, None, 0], "b": [0, 1, 1]}),
        pd.DataFrame({"a": pd.array([1, None, 0], dtype="Int64"), "b": pd.array([0, 1, 1], dtype="Int8")}),
        pd.DataFrame({"a": pd.array([True, None, False], dtype="boolean"), "b": [False, True, True]}),
        pd.DataFrame({"a": [1, pd.NA, 0], "b": [0, 1, 1]}, dtype=object),
        [[1, 0], [np.nan, 1], [0, 1]],
        [[1, 0], [None, 1], [0, 1]],
        np.ma.masked_equal([[1, 0], [9, 1], [0, 1]], 9),
    ],
)
def test_every_way_to_say_missing(table):
    np.testing.assert_array_equal(ItemResponse(table).responses, [[1, 0], [-1, 1], [0, 1]])


BAD_TABLES = {
    "one dimension": ([0, 1, 1], r"two dimensions.*\(3,\)"),
    "empty": (np.empty((0, 3)), "empty"),
    "ragged": ([[0, 1], [1]], "different lengths"),
    "one student": ([[0, 1, 1]], "only one student"),
    "one item": ([[0], [1]], "only one item"),
    "other value": ([[0, 1], [2, 1], [3, 0]], r"2 at student 1, item 'item1'.*\(2 such.*wrong as 0"),
    "fraction": ([[0, 0.5], [1, 1]], r"0\.5 at student 0, item 'item2'.*\(1 such"),
    "infinite": ([[0, 1], [1, np.inf]], "inf at student 1, item 'item2'"),
    "silent student": ([[0, 1], [np.nan, np.nan]], r"student 1 has no response.*\(1 such.*rows"),
    "silent item": ([[0, np.nan], [1, np.nan]], r"item 'item2' has no response.*columns"),
    "words": ([["yes", "no"], ["no", "yes"]], r"'yes' at student 0, item 'item1'.*4 such.*Recode"),
    "words in a frame": (
        pd.DataFrame({"a": [0, 1], "b": ["yes", "no"]}),
        "'yes' at student 0, item 'b'.*Recode",
    ),
    "value in a frame": (
        pd.DataFrame({"a": [0, 1], "b": [1, 7]}, index=["x", "y"]),
        "7.* at student 'y', item 'b'",
    ),
    "same column twice": (
        pd.DataFrame([[0, 1], [1, 0]], columns=["a", "a"]),
        "item 'a' occurs more than once",
    ),
    "same student twice": (
        pd.DataFrame([[0, 1], [1, 0]], index=["x", "x"]),
        "student 'x' occurs more than once",
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_are_refused_with_the_place(case):
    table, message = BAD_TABLES[case]
    with pytest.raises(InputError, match=message):
        ItemResponse(table)


def test_equal_responses_of_a_student_or_item_are_legitimate():
    model = ItemResponse([[1, 1], [1, 0]])
    assert np.isfinite(model.log_density(np.zeros(model.dim))).all()


def test_bad_long_tables_are_refused():
    good = pd.DataFrame({"student": [1, 1, 2, 2], "item": list("abab"), "response": [0, 1, 1, 0]})
    names = {"student": "student", "item": "item", "response": "response"}
    assert ItemResponse.from_long(good, **names).n_students == 2
    with pytest.raises(InputError, match="'studnt'.*Did you mean 'student'"):
        ItemResponse.from_long(good, **{**names, "student": "studnt"})
    with pytest.raises(InputError, match=r"student 1 answers item a more|student 1 answers item 'a' more"):
        ItemResponse.from_long(pd.concat([good, good.iloc[:1]]), **names)
    with pytest.raises(InputError, match="column 'item' is missing in row 2"):
        ItemResponse.from_long(good.assign(item=["a", "b", None, "b"]), **names)
    with pytest.raises(InputError, match="'no'.*Recode"):
        ItemResponse.from_long(good.assign(response=["no", "yes", "no", "no"]), **names)
    with pytest.raises(InputError, match="no rows"):
        ItemResponse.from_long(good.iloc[:0], **names)
    with pytest.raises(InputError, match="DataFrame"):
        ItemResponse.from_long([[0, 1]], **names)


# ---- natural space, state ---------------------------------------------------------------------------------
def test_constrain_and_unconstrain_are_inverse():
    model = ItemResponse(make_table(9, 4))
    points = make_points(model, 6)
    values = model.constrain(points)
    assert {name: value.shape for name, value in values.items()} == {
        "mu_beta": (6,), "s_beta": (6,), "s_gamma": (6,), "gamma": (6, 4), "beta": (6, 4), "alpha": (6, 9),
    }  # fmt: skip
    np.testing.assert_allclose(values["gamma"], np.exp(points[:, 3:7]))
    np.testing.assert_array_equal(values["beta"], points[:, 7:11])
    np.testing.assert_array_equal(values["alpha"], points[:, 11:])
    np.testing.assert_allclose(model.unconstrain(values), points, rtol=1e-13, atol=1e-13)


def test_unconstrain_refuses_bad_values():
    model = ItemResponse(make_table(9, 4))
    values = model.constrain(make_points(model, 2))
    for name, bad, message in (
        ("gamma", -values["gamma"], "gamma must be positive"),
        ("s_beta", 0 * values["s_beta"], "s_beta must be positive"),
        ("alpha", values["alpha"][:, :3], r"alpha must have shape \(M, 9\), got \(2, 3\)"),
        ("mu_beta", values["beta"], r"mu_beta must have shape \(M,\)"),
        ("beta", values["beta"] * np.nan, "beta must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            model.unconstrain({**values, name: bad})
    del values["s_gamma"]
    with pytest.raises(InputError, match="needs 's_gamma'"):
        model.unconstrain(values)


@pytest.mark.parametrize("copy", ["pickle", "state"])
def test_copies_are_the_same_model(copy):
    table = pd.DataFrame(make_table(9, 4, missing=0.2), columns=list("abcd"), index=range(10, 19))
    model = ItemResponse(table)
    points = make_points(model, 2)
    expected = model.log_density(points)
    other = (
        pickle.loads(pickle.dumps(model)) if copy == "pickle" else ItemResponse.from_state(model.get_state())
    )
    np.testing.assert_array_equal(other.log_density(points), expected)
    assert other.global_labels == model.global_labels
    assert other.coords == model.coords == {"item": list("abcd"), "student": list(range(10, 19))}
