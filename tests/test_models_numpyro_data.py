"""What comes after the fit of a NumPyro model: its likelihood, data anew, predictions, against conjugate formulas."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from known_line import (
    DAYS,
    NOISE,
    PRIOR,
    N,
    X,
    Y,
    assert_data_anew_and_prior,
    assert_loo_is_exact,
    assert_predicted_at_3,
    exact_fit,
)
from numpyro.contrib.control_flow import scan
from numpyro.infer import log_likelihood
from scipy import stats
from targets import quick_fit

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.models.jax_batches import in_64_bits


def line(x: np.ndarray, y: np.ndarray | None = None, n_sites: int = 3) -> None:
    """Linear regression with known noise; sites tell nothing of the data, so that their posterior is their prior."""
    b = numpyro.sample("b", dist.Normal(0.0, PRIOR).expand([2]).to_event(1))
    with numpyro.plate("site", n_sites):
        numpyro.sample("shift", dist.Normal(b[0], 1.0))
    mu = numpyro.deterministic("mu", b[0] + b[1] * x)
    with numpyro.plate("day", len(x)):
        numpyro.sample("y", dist.Normal(mu, NOISE), obs=y)


@pytest.fixture(scope="module")
def fit() -> tv.Fit:
    return exact_fit(tv.models.NumPyro(line, (X, Y), coords={"day": DAYS}))


def test_the_likelihood_is_scipys_and_numpyros(fit: tv.Fit) -> None:
    points = fit.sample_unconstrained(5)
    draws = fit.model.constrain(points)
    found = fit.model.log_likelihood(points)["y"]
    mu = draws["b"][:, :1] + draws["b"][:, 1:] * X
    np.testing.assert_allclose(found, stats.norm.logpdf(Y, mu, NOISE), rtol=1e-12)
    with in_64_bits():
        theirs = log_likelihood(line, {name: draws[name] for name in ("b", "shift")}, X, Y)
    np.testing.assert_allclose(found, theirs["y"], rtol=1e-12)
    prior = stats.norm.logpdf(draws["b"], 0, PRIOR).sum(1) + stats.norm.logpdf(
        draws["shift"], draws["b"][:, :1], 1
    ).sum(1)
    np.testing.assert_allclose(found.sum(1) + prior, fit.model.log_density(points), rtol=1e-12)


def test_loo_and_the_groups_of_the_tree(fit: tv.Fit) -> None:
    tree = fit.to_arviz(N)
    assert set(tree.children) == {
        "posterior", "sample_stats", "log_likelihood", "posterior_predictive", "observed_data", "prior", "optimization"
    }  # fmt: skip
    assert tree["observed_data"]["y"].dims == ("day",)
    np.testing.assert_array_equal(tree["observed_data"]["y"], Y)
    for group in ("log_likelihood", "posterior_predictive", "observed_data"):
        assert tree[group]["day"].values.tolist() == DAYS
    assert_loo_is_exact(tree)


def test_data_anew_and_the_prior_have_the_moments_of_their_formulas(fit: tv.Fit) -> None:
    assert_data_anew_and_prior(fit)


def test_predictions_for_new_rows_and_new_groups(fit: tv.Fit, capsys: pytest.CaptureFixture[str]) -> None:
    new = np.array([0.0, 3.0])
    found, draws = fit.predict({"x": new, "y": None}, N), fit.sample(N)
    assert set(found) == {"mu", "y"}
    assert "from the fit b, shift; drawn: mu, y" in capsys.readouterr().err
    np.testing.assert_allclose(found["mu"], draws["b"][:, :1] + draws["b"][:, 1:] * new, rtol=1e-12)
    assert_predicted_at_3(found["y"][:, 1])
    more = fit.predict((new,), N, kwargs={"n_sites": 7})
    assert more["shift"].shape == (N, 7)
    assert stats.kstest((more["shift"] - draws["b"][:, :1])[:, 0], "norm").pvalue > 1e-3
    assert "from the fit b; drawn: shift, mu, y" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("new", "options", "words"),
    [
        (3, {}, "new is a dictionary of the arguments"),
        ({"z": X}, {}, "no argument 'z'; it has 'x', 'y', 'n_sites'"),
        ({"x": np.zeros((2, 5, 3))}, {}, "cannot be run with these arguments"),
        ({"x": X}, {"anew": ["shfit"]}, "Did you mean 'shift'"),
        ({"x": X}, {"kwargs": {}}, "kwargs goes with a tuple"),
    ],
)
def test_predictions_that_cannot_be_are_refused(fit: tv.Fit, new: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit.predict(new, 4, **options)


# ---- data that are no arrays -----------------------------------------------------------------------------------
def slope(x: Any, y: Any = None, of: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("row", 6):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


WHOLE, GAPS = [1, 0, 2, 1, 1, 3], [1, None, 2, 1, None, 3]


@pytest.fixture(scope="module")
def of_arrays() -> tuple[tv.Fit, np.ndarray]:
    """A fit of the model with its data as arrays, and what it predicts for an array."""
    fit = quick_fit(tv.models.NumPyro(slope, (np.array(WHOLE),), {"y": np.array(WHOLE)}), n_iterations=3)
    return fit, fit.predict({"x": np.array(WHOLE), "y": None}, 4)["y"]


@pytest.mark.parametrize(
    "column",
    [
        WHOLE,
        tuple(WHOLE),
        pd.Series(WHOLE, index=list("fedcba")),
        pd.Series(WHOLE, dtype="Int64"),
        np.array(WHOLE, dtype=object),
        pytest.param("polars", marks=pytest.mark.skipif(find_spec("polars") is None, reason="no polars")),
    ],
    ids=["list", "tuple", "Series", "Int64", "objects", "polars"],
)
def test_columns_and_lists_of_numbers_are_arrays(column: Any, of_arrays: tuple[tv.Fit, np.ndarray]) -> None:
    if isinstance(column, str):
        column = importlib.import_module("polars").Series(WHOLE)
    model, (fit, expected) = tv.models.NumPyro(slope, (column,), {"y": column}), of_arrays
    points = np.linspace(-1, 1, 5)[:, None]
    np.testing.assert_array_equal(model.log_density(points), fit.model.log_density(points))
    np.testing.assert_array_equal(model.observations["y"].values, WHOLE)
    np.testing.assert_array_equal(fit.predict({"x": column, "y": None}, 4)["y"], expected)


def test_a_column_whose_index_the_model_asks_for_stays_one() -> None:
    def indexed(y: pd.Series[Any]) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(b * y.index.to_numpy(), 1.0), obs=y.to_numpy())

    assert tv.models.NumPyro(indexed, (pd.Series(WHOLE),)).observations["y"].values.tolist() == WHOLE


@pytest.mark.parametrize(
    ("given_as", "y", "words"),
    [
        ("args", list("abcdef"), "The argument 'y' does not hold numbers alone: 'a' in row 0"),
        ("kwargs", pd.Series([1, 2, "many", 4, 5, 6]), "The argument 'y' does not hold numbers alone: 'many' in row 2"),
        (
            "kwargs",
            pd.Series(list("ababab"), dtype="category"),
            "The argument 'y' does not hold numbers alone: 'a' in row 0",
        ),
        ("args", pd.DataFrame({"n": WHOLE}), r"The argument 'y' is a table: use its columns .* y\['n'\]\.to_numpy\(\)"),
        (
            "kwargs",
            np.zeros(5),
            r"site 'y' is observed with data \(the argument 'y'\) of shape \(5,\), but .* shape \(6,\)",
        ),
        (
            "args",
            GAPS,
            r"'y' is observed, but 2 of its 6 values are NaN \(missing\), the first in row 1 .* or mask them",
        ),
        ("kwargs", pd.Series(GAPS, dtype="Int64"), r"'y' is observed, but 2 of its 6 values are NaN \(missing\)"),
        ("args", np.array(GAPS, dtype=float), r"'y' is observed, but 2 of its 6 values are NaN \(missing\)"),
    ],
)
def test_data_that_cannot_be_are_refused_by_name(given_as: str, y: Any, words: str) -> None:
    args, kwargs = ((np.ones(6), y), {}) if given_as == "args" else ((np.ones(6),), {"y": y})
    with pytest.raises(InputError, match=f"NumPyro: .*{words}"):
        tv.models.NumPyro(slope, args, kwargs)


def test_nan_that_is_masked_is_no_gap() -> None:
    y = np.array(GAPS, dtype=float)

    def masked() -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.handlers.mask(mask=~np.isnan(y)):
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

    assert tv.models.NumPyro(masked).observations["y"].values.tolist() == [1, 2, 1, 3]


# ---- what is not a number a row ----------------------------------------------------------------------------
PAIRS, COUNTS = np.random.default_rng(0).normal(size=(4, 2)), np.array([3, 0, 2, -1])


def odd() -> None:
    """Vectors, counts of which one is masked, a factor, and data inside of a scan."""
    rate = numpyro.sample("rate", dist.LogNormal(0, 1))
    numpyro.factor("pull", -rate)
    with numpyro.plate("pair", 4):
        numpyro.sample("pairs", dist.Normal(jnp.zeros(2), jnp.sqrt(rate)).to_event(1), obs=PAIRS)
        with numpyro.handlers.mask(mask=COUNTS >= 0):
            numpyro.sample("counts", dist.GeometricProbs(1 / (1 + rate)), obs=COUNTS)


def looping() -> None:
    rate = numpyro.sample("rate", dist.LogNormal(0, 1))
    scan(lambda last, y: (numpyro.sample("y", dist.Normal(0.5 * last, rate), obs=y), None), 0.0, Y)


def test_vectors_have_one_number_and_masked_cells_none() -> None:
    model = tv.models.NumPyro(odd, coords={"pair": list("abcd")})
    assert set(model.observations) == {"pairs", "counts"}
    tree = quick_fit(model, n_iterations=1).to_arviz(3)
    logs, seen, rate = tree["log_likelihood"], tree["observed_data"], tree["posterior"]["rate"].values[0]
    assert logs["pairs"].dims == ("chain", "draw", "pair")
    assert seen["pairs"].dims == ("pair", "pairs_dim_1")
    assert tree["posterior_predictive"]["pairs"].shape == (1, 3, 4, 2)
    vectors = stats.norm.logpdf(PAIRS, 0, np.sqrt(rate[:, None, None])).sum(2)
    np.testing.assert_allclose(logs["pairs"].values[0], vectors, rtol=1e-12)
    assert seen["counts_pair"].values.tolist() == list("abc")
    np.testing.assert_array_equal(seen["counts"], COUNTS[:3])
    geometric = stats.geom(1 / (1 + rate[:, None]), loc=-1)  # SciPy counts from 1
    np.testing.assert_allclose(logs["counts"].values[0], geometric.logpmf(COUNTS[:3]), rtol=1e-12)


def test_data_inside_of_a_scan_have_a_likelihood_but_are_not_drawn() -> None:
    fit = quick_fit(tv.models.NumPyro(looping), n_iterations=1)
    tree = fit.to_arviz(3)
    assert "posterior_predictive" not in tree.children
    before = np.concatenate([[0.0], Y[:-1]])
    rate = tree["posterior"]["rate"].values[0]
    by_hand = stats.norm.logpdf(Y, 0.5 * before, rate[:, None])
    np.testing.assert_allclose(tree["log_likelihood"]["y"].values[0], by_hand, rtol=1e-12)
    with pytest.raises(InputError, match="'y' is observed inside of a scan"):
        fit.predict()
