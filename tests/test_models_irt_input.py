"""The item response model's input, names and natural space."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from response_tables import make_points, make_table
from scipy import sparse

from pyturingvi.errors import InputError
from pyturingvi.models.irt import ItemResponse


# ---- input ------------------------------------------------------------------------------------------------
def test_long_form_equals_wide_form():
    wide = pd.DataFrame(make_table(12, 4, missing=0.2), columns=list("abcd"), index=[f"s{j}" for j in range(12)])
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
        "mu_beta", "log s_beta", "log s_gamma", "log gamma[add]", "log gamma[divide]",
        "beta[add]", "beta[divide]",
    ]  # fmt: skip
    assert model.coords == {"item": ["add", "divide"], "student": ["ann", "bob", "eve"]}
    assert ItemResponse(table.to_numpy()).global_labels[3] == "log gamma[item1]"
    assert model.layout.n_global == len(model.global_labels) == 7
    assert model.layout.n_local == 3
    assert ItemResponse([[1, 0], [0, np.nan], [1, 1]]).work_per_point == 6
    points = make_points(model, 2)
    natural = model.constrain(points)
    np.testing.assert_allclose(natural["gamma"], np.exp(points[:, 3:5]))
    np.testing.assert_array_equal(natural["beta"], points[:, 5:7])
    np.testing.assert_array_equal(natural["alpha"], points[:, 7:])


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
        [[Decimal(1), Decimal(0)], [None, Decimal("1.0")], [Decimal("0.00"), True]],
        pd.DataFrame({"a": [Decimal(1), Decimal("NaN"), Decimal(0)], "b": [Fraction(0), 1, 1]}, dtype=object),
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
    "sparse": (sparse.csr_array([[0, 1], [1, 0]]), r"sparse matrix.*\.toarray\(\).*missing.*from_long"),
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
    with pytest.raises(InputError, match=r"'studnt'.*Did you mean 'student'"):
        ItemResponse.from_long(good, **{**names, "student": "studnt"})
    with pytest.raises(InputError, match=r"student 1 answers item a more|student 1 answers item 'a' more"):
        ItemResponse.from_long(pd.concat([good, good.iloc[:1]]), **names)
    with pytest.raises(InputError, match="column 'item' is missing in row 2"):
        ItemResponse.from_long(good.assign(item=["a", "b", None, "b"]), **names)
    with pytest.raises(InputError, match=r"'no'.*Recode"):
        ItemResponse.from_long(good.assign(response=["no", "yes", "no", "no"]), **names)
    with pytest.raises(InputError, match="no rows"):
        ItemResponse.from_long(good.iloc[:0], **names)
    for column in names.values():
        with pytest.raises(InputError, match=f"more than one column named '{column}'"):
            ItemResponse.from_long(pd.concat([good, good[[column]]], axis=1), **names)
    with pytest.raises(InputError, match="DataFrame"):
        ItemResponse.from_long([[0, 1]], **names)
