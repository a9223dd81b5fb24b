"""The item response model on few answers: the numbers of the whole table, at a cost that goes with the answers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from model_checks import (
    assert_batches_are_independent,
    assert_float32_agrees,
    assert_gradient_is_the_slope,
    assert_survives_pickle_and_state,
    unit_directions,
)
from response_tables import both_forms, make_points, make_sparse_table

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.models import irt_sparse
from pyturingvi.models.irt import ItemResponse
from pyturingvi.models.irt_sparse import SparseTable
from pyturingvi.models.irt_tables import DenseTable
from pyturingvi.settings import model_digest

COLUMNS = {"student": "who", "item": "what", "response": "right"}


def as_long(table, seed=0):
    """The answers of an array one row each, in any order."""
    j, k = np.nonzero(~np.isnan(table))
    order = np.random.default_rng(seed).permutation(len(j))
    j, k = j[order], k[order]
    return pd.DataFrame({"who": j, "what": np.char.add("q", k.astype(str)), "right": table[j, k].astype(int)})


# ---- the same numbers ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", [1, 1 << 16])
@pytest.mark.parametrize(
    ("n_students", "n_items", "share"), [(600, 90, 0.03), (90, 600, 0.3), (40, 7, 1.0), (2, 2, 1.0)]
)
def test_a_list_of_answers_gives_the_numbers_of_the_whole_table(monkeypatch, n_students, n_items, share, block):
    monkeypatch.setattr(irt_sparse, "_BLOCK_ANSWERS", block)
    listed, whole = both_forms(make_sparse_table(n_students, n_items, share))
    points = make_points(listed, 6)
    points[0] *= 3.0
    (value, slope), (expected, expected_slope) = (m.log_density_and_gradient(points) for m in (listed, whole))
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(slope, expected_slope, rtol=0, atol=1e-12 * np.abs(expected_slope).max())
    np.testing.assert_allclose(listed.log_density(points), expected, rtol=1e-12)
    np.testing.assert_array_equal(listed.gradient(points), slope)
    for terms, same in zip(listed.log_terms(points), whole.log_terms(points), strict=True):
        np.testing.assert_allclose(terms, same, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sum(t.reshape(6, -1).sum(1) for t in listed.log_terms(points)), expected, rtol=1e-12)


def test_its_gradient_is_the_slope_and_batches_do_not_mix():
    model = ItemResponse(make_sparse_table(300, 80, 0.05))
    assert isinstance(model._table, SparseTable)
    points = make_points(model, 5)
    assert_gradient_is_the_slope(model, points, unit_directions(model, 4, seed=3))
    assert_batches_are_independent(model, points)
    assert_float32_agrees(model, points, relative=1e-6, of_gradient=1e-5)
    assert_survives_pickle_and_state(model, points)


def test_what_a_gpu_computes_are_the_same_sums():
    """The arrays of NumPy stand in for a GPU's: only the order of the sums is another."""
    listed, _ = both_forms(make_sparse_table(400, 60, 0.05))
    table, rng = listed._table, np.random.default_rng(2)
    half_gamma, half_centre, ability = np.exp(rng.normal(size=60)) / 2, rng.normal(size=60), rng.normal(size=400)
    slopes, pulls, others, other_pulls = np.zeros(400), np.zeros((60, 2)), np.zeros(400), np.zeros((60, 2))
    value = irt_sparse.sums_by_numbers(
        np, *table._numbers(np), half_gamma, half_centre, ability, slopes, pulls, value=True
    )
    expected = table._by_blocks(half_gamma, half_centre, ability, others, other_pulls, value=True)
    assert value == pytest.approx(expected, rel=1e-13)
    np.testing.assert_allclose(slopes, others, rtol=0, atol=1e-13 * np.abs(others).max())
    np.testing.assert_allclose(pulls, other_pulls, rtol=0, atol=1e-13 * np.abs(pulls).max())


def test_large_logits_neither_overflow_nor_warn():
    listed, whole = both_forms(make_sparse_table(200, 90, 0.05))
    point = make_points(listed, 1)
    point[:, listed.layout.n_global :] *= 500.0
    np.testing.assert_allclose(listed.log_density(point), whole.log_density(point), rtol=1e-12)
    np.testing.assert_allclose(listed.gradient(point), whole.gradient(point), rtol=1e-12, atol=1e-12)
    point[0, 3] = 1e4
    assert not np.isfinite(listed.log_density(point)).any()
    assert not np.isfinite(listed.gradient(point)).all()
    assert np.isnan(listed.log_density(np.full(listed.dim, np.nan))).all()


# ---- which form, and what it costs --------------------------------------------------------------------------
def test_the_share_of_answers_decides_how_they_are_kept():
    few, many = make_sparse_table(400, 80, 0.05), make_sparse_table(400, 80, 0.6)
    assert isinstance(ItemResponse(few)._table, SparseTable)
    assert isinstance(ItemResponse(many)._table, DenseTable)
    assert isinstance(ItemResponse.from_long(as_long(few), **COLUMNS)._table, SparseTable)
    assert isinstance(ItemResponse.from_long(as_long(many), **COLUMNS)._table, DenseTable)
    assert ItemResponse(few).work_per_point == ItemResponse(few).n_answers == np.isfinite(few).sum()
    assert ItemResponse(many).work_per_point == many.size


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_memory_goes_with_the_answers(dtype):
    rng = np.random.default_rng(0)
    n_students, n_items, n = 20_000, 2_000, 120_000
    students, items = np.divmod(rng.choice(n_students * n_items, n, replace=False), n_items)
    students[:n_students], items[n_students : n_students + n_items] = np.arange(n_students), np.arange(n_items)
    df = pd.DataFrame({"who": students, "what": items, "right": rng.integers(0, 2, n)})
    df = df.drop_duplicates(["who", "what"])
    tracemalloc.start()
    try:
        model = ItemResponse.from_long(df, **COLUMNS)
        read = tracemalloc.get_traced_memory()[1]
        points = (0.3 * rng.standard_normal((8, model.dim))).astype(dtype)
        out = np.empty_like(points)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        model._gradient(points, out)
        model.log_density_and_gradient(points[:1])
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert model.layout.n_local == n_students
    assert np.isfinite(out).all()
    # the table of all pairs has 40 million cells: 40 MB at one byte each, 640 MB as float64 with its mask
    assert read < 15e6
    assert peak < 8e6


def test_reading_a_long_table_takes_less_than_a_hundred_bytes_a_row():
    rng = np.random.default_rng(1)
    pairs = rng.permutation(np.unique(rng.integers(0, 20_000 * 5_000, 300_000)))
    df = pd.DataFrame({"who": pairs // 5_000, "what": pairs % 5_000, "right": rng.integers(0, 2, len(pairs))})
    tracemalloc.start()
    try:
        model = ItemResponse.from_long(df, **COLUMNS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.n_answers == len(df)
    assert peak < 100 * len(df)  # ten million rows in less than 1 GB


# ---- long tables --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [0.05, 0.6])
def test_a_long_table_is_read_as_pandas_pivots_it(share):
    long = as_long(make_sparse_table(150, 120, share))
    long.loc[5, "right"] = -1
    long["right"] = long["right"].astype("Int8").where(long["right"] >= 0)
    model = ItemResponse.from_long(long, **COLUMNS)
    wide = long.pivot(index="who", columns="what", values="right").astype(float)
    wide = wide.loc[model.coords["student"], model.coords["item"]]
    np.testing.assert_array_equal(model.responses, wide.fillna(-1).to_numpy())
    assert model.coords["student"] == list(dict.fromkeys(long["who"]))
    assert model.coords["item"] == list(dict.fromkeys(long["what"]))


def test_what_is_wrong_with_a_long_table_is_said():
    long = as_long(make_sparse_table(60, 300, 0.05))
    assert isinstance(ItemResponse.from_long(long, **COLUMNS)._table, SparseTable)
    twice = pd.concat([long, long.iloc[[7, 9]].assign(right=1 - long["right"].iloc[[7, 9]])])
    who, what = long["who"].iloc[7], long["what"].iloc[7]
    with pytest.raises(InputError, match=rf"student {who} answers item '{what}' more than once \(2 repeated"):
        ItemResponse.from_long(twice, **COLUMNS)
    with pytest.raises(InputError, match=rf"7.* at student {who}, item '{what}' is not 0, 1 or NaN \(1 such rows"):
        ItemResponse.from_long(long.assign(right=long["right"].where(long.index != 7, 7)), **COLUMNS)
    words = long.assign(right=long["right"].map({0: "no", 1: "yes"}))
    with pytest.raises(InputError, match=rf"is not a number \({len(long)} such rows.*Recode"):
        ItemResponse.from_long(words, **COLUMNS)
    lists = long.assign(right=[[1]] * len(long))
    with pytest.raises(InputError, match="column 'right' has lists or the like as entries"):
        ItemResponse.from_long(lists, **COLUMNS)
    with pytest.raises(InputError, match="column 'who' has lists or the like"):
        ItemResponse.from_long(long.assign(who=[[1]] * len(long)), **COLUMNS)
    silent = long.assign(right=long["right"].astype(float).where(long["who"] != who))
    with pytest.raises(InputError, match=rf"student {who} has no response at all \(1 such students\)"):
        ItemResponse.from_long(silent, **COLUMNS)
    unasked = long.assign(right=long["right"].astype(float).where(long["what"] != what))
    with pytest.raises(InputError, match=rf"item '{what}' has no response at all"):
        ItemResponse.from_long(unasked, **COLUMNS)
    alike = long.assign(what=long["what"].astype(object).where(long.index != 3, 1).where(long.index != 4, "1"))
    with pytest.raises(InputError, match="item '1' occurs more than once in the column 'what', as words"):
        ItemResponse.from_long(alike, **COLUMNS)
    with pytest.raises(InputError, match="only one student"):
        ItemResponse.from_long(long[long["who"] == who], **COLUMNS)


def test_a_subclass_reads_long_tables_as_itself():
    class Marked(ItemResponse):
        def __init__(self, responses):
            super().__init__(responses)
            self.mark = 1

    assert Marked.from_long(as_long(make_sparse_table(30, 20, 0.5)), **COLUMNS).mark == 1


# ---- files and fits -----------------------------------------------------------------------------------------
def test_a_small_table_keeps_the_digest_of_earlier_versions():
    rng = np.random.default_rng(12)
    table = np.full((300, 80), np.nan)
    rows = np.arange(300)
    table[rows, rows % 80] = rng.integers(0, 2, 300)
    table[rows, (7 * rows + 3) % 80] = rng.integers(0, 2, 300)
    model = ItemResponse(table)
    assert isinstance(model._table, SparseTable)
    assert model_digest(model) == "17384cd86047542a"  # of the commit before answers were kept as lists
    np.testing.assert_array_equal(model.get_state()["responses"], np.where(np.isnan(table), -1, table))


def test_a_large_sparse_table_is_saved_as_its_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("pyturingvi.models.irt._LARGEST_TABLE", 1_000)
    model = ItemResponse.from_long(as_long(make_sparse_table(300, 100, 0.05)), **COLUMNS)
    state = model.get_state()
    assert max(v.size for v in state.values() if isinstance(v, np.ndarray)) == model.n_answers
    fit = tv.fit(model, "mean-field", tv.Adam(1e-2), n_iterations=5, progress=False)
    restored = tv.load_fit(fit.save(tmp_path / "fit.npz"))
    points = make_points(model, 3)
    np.testing.assert_array_equal(restored.model.log_density(points), model.log_density(points))
    np.testing.assert_array_equal(restored.model.responses, model.responses)
    assert restored.model.coords == model.coords
    assert restored.summary().equals(fit.summary())
    for key in ("starts", "answerers"):
        with pytest.raises(ValueError, match="answers"):
            ItemResponse.from_state({**state, key: state[key][:-1]})
    with pytest.raises(ValueError, match="students that it does not have"):
        ItemResponse.from_state({**state, "n_students": 5})


def test_a_fit_of_few_answers_finds_what_the_whole_table_finds():
    listed, whole = both_forms(make_sparse_table(300, 60, 0.05))
    noise = np.random.default_rng(3).standard_normal((40, 4, listed.dim))
    settings = {"n_iterations": 40, "noise": noise, "n_samples": 4, "engine": "numpy", "progress": False}
    found, expected = (tv.fit(m, "mean-field", tv.Adam(1e-2), **settings) for m in (listed, whole))
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-10)
