"""The ArviZ tree of a fit: its numbers against SciPy and by hand, what ArviZ makes of it, and its file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import arviz_stats
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import special, stats
from targets import Counting, quick_fit

import pyturingvi as tv
from pyturingvi.diagnosis.weights import importance_weights
from pyturingvi.errors import InputError, MemoryLimitError
from pyturingvi.layout import Layout

far_from_good = pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")  # fits of few updates
DAYS = pd.bdate_range("2024-01-01", periods=12)


def returns(missing: bool) -> tv.models.StochasticVolatility:
    table = pd.DataFrame(np.random.default_rng(7).normal(size=(12, 2)), columns=["usd", "gbp"], index=DAYS)
    if missing:
        table.iloc[3, 1] = np.nan
    return tv.models.StochasticVolatility(table)


def answers(missing: bool) -> tv.models.ItemResponse:
    table = pd.DataFrame((np.random.default_rng(6).uniform(size=(20, 5)) < 0.6).astype(float), columns=list("abcde"))
    if missing:
        table.iloc[3, 2] = np.nan
    return tv.models.ItemResponse(table)


def counts(missing: bool = False) -> tv.models.RobustPoisson:
    x = np.random.default_rng(5).normal(size=(30, 2))
    y = np.random.default_rng(4).poisson(np.exp(0.3 + x @ [0.5, -0.4]))
    return tv.models.RobustPoisson(x, y)


def likelihood(model: Any, draws: dict[str, np.ndarray]) -> tuple[str, np.ndarray, Any]:
    """The observed variable, its values as a table with NaN, and SciPy's distribution at the draws (M, ...)."""
    if isinstance(model, tv.models.RobustPoisson):
        return "y", model.y, stats.poisson(np.exp(draws["eta"]))
    if isinstance(model, tv.models.StochasticVolatility):
        return "returns", model.returns, stats.norm(0, np.exp(draws["y"] / 2))
    logit = (
        draws["gamma"][:, None] * draws["alpha"][:, :, None] + draws["beta"][:, None] + draws["mu_beta"][:, None, None]
    )
    table = np.where(model.responses < 0, np.nan, model.responses)
    return "responses", table, stats.bernoulli(special.expit(logit))


CASES = [(counts, False), *((make, missing) for make in (answers, returns) for missing in (False, True))]


@pytest.mark.parametrize(("make", "missing"), CASES)
def test_log_likelihoods_are_those_of_scipy(make: Any, missing: bool) -> None:
    fit = quick_fit(make(missing), n_iterations=3)
    tree = fit.to_arviz(7)
    name, table, distribution = likelihood(fit.model, fit.sample(7))
    logs = getattr(distribution, "logpmf" if hasattr(distribution.dist, "pmf") else "logpdf")(np.nan_to_num(table))
    found, observed = tree["log_likelihood"][name], tree["observed_data"][name]
    assert found.dims[:2] == ("chain", "draw")
    assert found.dims[2:] == observed.dims
    if name == "y" or (name == "returns" and not missing):
        np.testing.assert_allclose(found.values[0], logs, rtol=1e-10)
        np.testing.assert_array_equal(observed, table)
        return
    assert observed.size == np.count_nonzero(~np.isnan(table))
    rows, columns = ("time", "series") if name == "returns" else ("student", "item")
    row_labels, column_labels = (list(fit.model.coords[axis]) for axis in (rows, columns))
    for k in range(observed.size):
        one = observed[k]
        row, column = row_labels.index(one[rows].values[()]), column_labels.index(str(one[columns].values))
        assert one == table[row, column]
        np.testing.assert_allclose(found.values[0, :, k], logs[:, row, column], rtol=1e-10)


@pytest.mark.parametrize(("make", "missing"), CASES)
def test_replicated_data_have_the_distribution_of_the_draws(make: Any, missing: bool) -> None:
    """At one point, 4,000 times: mean and variance of each value are SciPy's, within five standard errors."""
    model, n = make(missing), 4_000
    point = quick_fit(model, n_iterations=3).sample_unconstrained(1)
    name, table, distribution = likelihood(model, model.constrain(point))
    found = model.replicate(np.repeat(point, n, axis=0), np.random.default_rng(0))[name]
    mean, variance, excess = (moment[0] for moment in distribution.stats("mvk"))
    if missing or name == "responses":
        order = np.argwhere(~np.isnan(table)) if name == "returns" else np.argwhere(~np.isnan(table.T))[:, ::-1]
        mean, variance, excess = (moment[tuple(order.T)] for moment in (mean, variance, excess))
    assert (np.abs(found.mean(axis=0) - mean) < 5 * np.sqrt(variance / n)).all()
    spread = variance * np.sqrt((excess + 2 + 2 / n) / n) + 1e-12
    assert (np.abs(found.var(axis=0) - variance) < 5 * spread + 5 * variance / n).all()


def test_likelihood_and_prior_make_up_the_log_density() -> None:
    """Data given twice with the same prior: the log density differs by the likelihood."""
    model = answers(False)
    points = np.random.default_rng(0).normal(size=(4, model.dim))
    once = model.log_likelihood(points)["responses"].sum(axis=1)
    draws = model.constrain(points)
    prior = stats.norm.logpdf(draws["alpha"]).sum(axis=1)
    for name, scale in (("beta", "s_beta"), ("log gamma", "s_gamma")):
        values = np.log(draws["gamma"]) if name == "log gamma" else draws["beta"]
        prior += stats.norm.logpdf(values, 0, draws[scale][:, None]).sum(axis=1)
        prior += np.log(2) + stats.t.logpdf(draws[scale], 4) + np.log(draws[scale])
    prior += stats.t.logpdf(draws["mu_beta"], 4)
    np.testing.assert_allclose(once + prior, model.log_density(points), rtol=1e-10)


def test_what_stands_beside_the_draws() -> None:
    fit = quick_fit(returns(False), n_iterations=40, elbo_every=10)
    tree = fit.to_arviz(5, seed=3)
    points = fit.sample_unconstrained(5, seed=3)
    np.testing.assert_array_equal(tree["sample_stats"]["lp"].values[0], fit.model.log_density(points))
    np.testing.assert_array_equal(tree["sample_stats"]["log_q"].values[0], fit.log_q(points))
    trace = tree["optimization"].to_dataset().to_dataframe().reset_index()
    pd.testing.assert_frame_equal(trace[list(fit.elbo)], fit.elbo, check_dtype=False)
    assert tree["posterior"].attrs["status"] == "completed"
    assert tree["observed_data"]["time"].values.tolist() == DAYS.to_numpy().tolist()
    assert set(fit.to_arviz(2, log_likelihood=False, posterior_predictive=False).children) == {
        "posterior", "sample_stats", "observed_data", "prior", "optimization"
    }  # fmt: skip


def test_a_model_that_does_not_tell_its_data_has_what_there_is(tmp_path: Path) -> None:
    fit = quick_fit(tv.models.LogDensity(Counting(), Layout(2, 3, 1)), n_iterations=5)
    assert set(fit.to_arviz(3).children) == {"posterior", "sample_stats", "optimization"}
    loaded = tv.load_fit(fit.save(tmp_path / "fit.npz"))  # without its function
    assert list(loaded.to_arviz(3)["sample_stats"].data_vars) == ["log_q"]
    with pytest.raises(InputError, match="observed= was not given"):
        fit.model.log_likelihood(fit.sample_unconstrained(2))
    with pytest.raises(MemoryLimitError, match="to_arviz with n="):
        quick_fit(counts(), n_iterations=1).to_arviz(10**12)


# ---- what ArviZ makes of it --------------------------------------------------------------------------------
@far_from_good
@pytest.mark.parametrize(("make", "missing"), CASES)
def test_loo_is_the_sum_of_weighted_means_by_hand(make: Any, missing: bool) -> None:
    """Leave one out by importance sampling: p(y_i | rest) is the mean of p(y_i | draw) under weights 1/p, smoothed."""
    fit = quick_fit(make(missing), "mean-field", n_iterations=3)
    tree = fit.to_arviz(400)
    (name,) = tree["log_likelihood"].data_vars
    logs = tree["log_likelihood"][name].values.reshape(400, -1)
    by_hand = sum(np.log(importance_weights(-column).weights @ np.exp(column)) for column in logs.T)
    found = arviz_stats.loo(tree)
    assert found.elpd == pytest.approx(by_hand, rel=1e-3)
    assert found.n_data_points == logs.shape[1]


@far_from_good
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # ArviZ's own
def test_loo_compares_and_summaries_agree() -> None:
    fit, other = (quick_fit(counts(), family, n_iterations=300) for family in ("structured", "mean-field"))
    trees = {"structured": fit.to_arviz(500), "mean-field": other.to_arviz(500)}
    assert set(arviz_stats.compare(trees).index) == set(trees)
    theirs, ours = arviz_stats.summary(trees["structured"], round_to="none"), fit.summary(["alpha", "beta"], seed=0)
    draws = fit.sample(500)
    for label, values in (("alpha", draws["alpha"]), ("beta[x1]", draws["beta"][:, 0])):
        assert theirs.loc[label, "mean"] == pytest.approx(values.mean())
        assert abs(theirs.loc[label, "mean"] - ours.loc[label, "mean"]) < 5 * values.std() / np.sqrt(500)


def test_plots_of_arviz_are_drawn() -> None:
    try:
        import arviz_plots
    except (ImportError, AttributeError) as error:  # its versions for Python 3.11 do not know matplotlib 3.11
        pytest.skip(f"no arviz-plots: {error}")
    tree = quick_fit(counts(), n_iterations=3).to_arviz(50)
    arviz_plots.plot_ppc_dist(tree, kind="ecdf", backend="matplotlib")
    arviz_plots.plot_forest(tree, var_names=["beta"], backend="matplotlib")
    plt.close("all")


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")  # of few draws
def test_draws_of_nuts_have_the_same_groups() -> None:
    model = counts()
    draws = tv.sample_nuts(model, 5, 5, 2, progress=False)
    tree = draws.to_arviz()
    found = tree["log_likelihood"]["y"].values
    assert found.shape == (2, 5, 30)
    np.testing.assert_array_equal(found[1], model.log_likelihood(draws.points[1])["y"])
    assert set(tree.children) == {
        "posterior", "sample_stats", "log_likelihood", "posterior_predictive", "observed_data", "prior"
    }  # fmt: skip


@far_from_good
def test_a_file_opens_where_this_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = quick_fit(returns(True), n_iterations=3)
    tree = fit.to_arviz(100)
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyturingvi"]:
        monkeypatch.setitem(sys.modules, name, None)  # to import it raises an ImportError
    with xr.open_datatree(tmp_path / "fit.nc", engine="h5netcdf") as found:
        assert arviz_stats.loo(found).elpd == arviz_stats.loo(tree).elpd
        assert found["posterior"].attrs["status"] == fit.status
        assert found["observed_data"]["time"].dtype.kind == "M"


def test_odd_names_and_labels_are_written_as_a_file_can_hold_them(tmp_path: Path) -> None:
    from pyturingvi.support.arviz import Group, tree_of_groups

    group = Group({"site/x": np.zeros((1, 2, 3))}, {"site/x": ["site/x"]}, {"site/x": ["a", 1, None]})
    tree = tree_of_groups({"posterior": group})
    tree.to_netcdf(tmp_path / "odd.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "odd.nc", engine="h5netcdf") as found:
        assert found["posterior"]["site.x"].coords["site.x_dim"].values.tolist() == ["a", "1", "None"]
