"""The tree of a fit for ArviZ before 1.0, which comes with PyMC 5: what it needs and, where it is there, what it says.

Without it, a stand-in for `arviz.InferenceData` takes the groups as that of 0.23.4 does.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats
from targets import quick_fit

import pyturingvi as tv
from pyturingvi.support.arviz import is_before_1

old = pytest.mark.skipif(not is_before_1(), reason="no ArviZ before 1.0")


class Groups:
    """Like `arviz.InferenceData`: each group is a plain data set by keyword (its `from_datatree`)."""

    def __init__(self, **groups: Any) -> None:
        assert all(type(group) is xr.Dataset for group in groups.values())
        self.groups = groups


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    if is_before_1():
        pytest.skip("there is the real one")
    module = ModuleType("arviz")
    module.InferenceData = Groups  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "arviz", module)
    real = metadata.version
    monkeypatch.setattr("pyturingvi.support.arviz.version", lambda name: "0.23.4" if name == "arviz" else real(name))


def counts() -> tv.models.RobustPoisson:
    x = np.random.default_rng(5).normal(size=(30, 2))
    return tv.models.RobustPoisson(x, np.random.default_rng(4).poisson(np.exp(0.3 + x @ [0.5, -0.4])))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")  # of few draws
def test_groups_are_what_its_functions_take() -> None:
    found = quick_fit(counts(), n_iterations=20, elbo_every=5).to_arviz(7)
    assert isinstance(found, Groups)
    for name, group in found.groups.items():
        # InferenceData.to_dataframe, and concat(..., dim="chain"), of every group that is not of data
        assert name.endswith("data") or "chain" in group.dims, name
        # netCDF and its summaries of groups: attributes are plain
        assert all(isinstance(value, str | int | float) for value in group.attrs.values()), name
    likelihood, observed = found.groups["log_likelihood"]["y"], found.groups["observed_data"]["y"]
    assert likelihood.dims == ("chain", "draw", *observed.dims)  # az.loo stacks the first two
    assert found.groups["posterior_predictive"]["y"].dims == likelihood.dims  # plot_ppc pairs them by name
    draws = tv.sample_nuts(counts(), 5, 5, 2, progress=False).to_arviz()
    assert {group.sizes.get("chain", 2) for group in draws.groups.values()} >= {2}


def test_without_it_the_tree_is_xarrays() -> None:
    if is_before_1():
        pytest.skip("it is installed")
    assert isinstance(quick_fit(counts(), n_iterations=3).to_arviz(3), xr.DataTree)


# ---- the real one ------------------------------------------------------------------------------------------
@old
@pytest.mark.filterwarnings("ignore")  # it warns of its own future, and of fits of few updates
def test_its_loo_tables_and_plots(tmp_path: Path) -> None:
    import arviz as az
    import matplotlib.pyplot as plt

    fit, other = (
        quick_fit(counts(), family, n_iterations=300 + k) for k, family in enumerate(("structured", "mean-field"))
    )
    tree = fit.to_arviz(500)
    logs = tree["log_likelihood"]["y"].values[0]
    np.testing.assert_allclose(logs, stats.poisson(np.exp(fit.sample(500)["eta"])).logpmf(fit.model.y), rtol=1e-10)
    waic = (np.log(np.exp(logs).mean(axis=0)) - logs.var(axis=0)).sum()  # as it is defined
    assert az.waic(tree).elpd_waic == pytest.approx(waic, rel=1e-10)
    assert az.loo(tree).n_data_points == 30
    assert set(az.compare({"structured": tree, "mean-field": other.to_arviz(500)}).index) == {
        "structured",
        "mean-field",
    }
    summary = az.summary(tree, round_to="none")
    assert summary.loc["alpha", "mean"] == pytest.approx(fit.sample(500)["alpha"].mean())
    assert isinstance(tree.to_dataframe(), pd.DataFrame)
    assert az.concat(tree, other.to_arviz(500), dim="chain")["posterior"].sizes["chain"] == 2
    tree.to_netcdf(str(tmp_path / "fit.nc"))
    assert az.from_netcdf(str(tmp_path / "fit.nc"))["posterior"].attrs["status"] == fit.status
    az.plot_ppc(tree, num_pp_samples=20)
    for kind in ("trace", "rank_bars", "rank_vlines"):
        az.plot_trace(tree, kind=kind, var_names=["alpha", "beta"])
    az.plot_forest(tree, var_names=["beta"])
    plt.close("all")
