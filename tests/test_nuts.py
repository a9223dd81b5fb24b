"""`tv.sample_nuts` by Turing: right draws, the same again from one seed, and what is kept after Ctrl-C."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from model_checks import ONE_BUNDLED
from turing_sources import schools_by_quadrature, turing_model

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError, MemoryLimitError
from pyturingvi.referee import run, turing

julia = pytest.mark.julia


@julia
def test_eight_schools_equal_quadrature() -> None:
    draws = tv.sample_nuts(turing_model("non-centred"), 2500, 1000, 2, target_acceptance=0.95, progress=False)
    summary = draws.summary(local=True)
    expected = schools_by_quadrature()
    for name, rows in (("mu", ["mu"]), ("tau", ["tau"]), ("theta", [f"theta[{j}]" for j in range(1, 9)])):
        found = summary.loc[rows]
        error = found["sd"] / np.sqrt(found["ess_bulk"])
        assert (abs(found["mean"] - expected[name]) < 4 * error).all(), name
    assert summary["r_hat"].max() < 1.02
    assert summary["ess_bulk"].min() > 400
    assert draws.n_divergent < 50
    worst = draws.diagnostics()
    assert worst.loc["theta", "max_r_hat"] == summary.loc[[f"theta[{j}]" for j in range(1, 9)], "r_hat"].max()


@julia
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")  # of few draws
def test_draws_have_the_form_of_a_fits() -> None:
    model = turing_model("varying")
    draws = tv.sample_nuts(model, 30, 30, 3, progress=False)
    fit = tv.fit(model, optimizer=tv.Adam(1e-3), n_iterations=5, elbo_every=5, elbo_samples=8, progress=False)
    found, likewise = draws.sample(), fit.sample(90)
    assert {name: value.shape for name, value in found.items()} == {name: v.shape for name, v in likewise.items()}
    assert draws.by_chain()["slopes"].shape == (3, 30, 2, 4)
    np.testing.assert_array_equal(draws.by_chain()["slopes"][1, 0], found["slopes"][30])
    assert list(draws.summary().index) == list(fit.summary(10).index)
    assert (draws.status, draws.divergent.shape, draws.step_size.shape) == ("completed", (3, 30), (3,))
    tree = draws.to_arviz()
    assert tree["posterior"]["slopes"].shape == (3, 30, 2, 4)
    assert tree["sample_stats"]["diverging"].shape == (3, 30)


@julia
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")  # of few draws
def test_the_seed_decides() -> None:
    settings: dict[str, Any] = {"n_draws": 20, "n_tune": 20, "n_chains": 2, "progress": False}
    model = turing_model("line")
    first, again, other = (tv.sample_nuts(model, seed=seed, **settings) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.points, again.points)
    assert not np.array_equal(first.points, other.points)
    assert not np.array_equal(first.points[0], first.points[1])


@julia
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")  # of few draws
@pytest.mark.parametrize("bundled_model", ONE_BUNDLED, indirect=True)
def test_bundled_models_run_in_their_turing_form(bundled_model: tv.models.Model) -> None:
    draws = tv.sample_nuts(bundled_model, 10, 20, 2, ad="reversediff", progress=False)
    assert draws.points.shape == (2, 10, bundled_model.dim)
    assert np.isfinite(bundled_model.log_density(draws.points.reshape(20, -1))).all()
    assert {name: value.shape[1:] for name, value in draws.sample().items()} == {
        name: value.shape[1:] for name, value in bundled_model.constrain(np.zeros((1, bundled_model.dim))).items()
    }


@julia
def test_the_synthetic_target_has_its_moments() -> None:
    model = tv.models.IsotropicGaussian(2, n_global=2, local_dim=1)
    points = tv.sample_nuts(model, 1500, 500, 2, sampler="turing", progress=False).points.reshape(-1, 4)
    np.testing.assert_allclose(points.mean(axis=0), 5.0, atol=0.03)
    np.testing.assert_allclose(np.cov(points.T), 0.1 * np.eye(4), atol=0.015)


def test_the_bar_counts_steps_and_does_without_a_console(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run.bar_of("line", 200, progress=True) as bar:
        run.show(bar, 20, "warm-up")
        run.show(bar, 70, "3 divergent")
        bar.refresh()
        assert bar.n == 70
    shown = capsys.readouterr().err
    assert "line NUTS" in shown
    assert "70/200" in shown
    assert "3 divergent" in shown
    for progress, console in ((False, sys.stderr), (True, None)):
        monkeypatch.setattr(sys, "stderr", console)
        with run.bar_of("line", 200, progress=progress) as bar:
            run.show(bar, 20, "warm-up")
    assert capsys.readouterr().err == ""


@julia
@pytest.mark.parametrize(("stop_at", "kept"), [(60, True), (5, False)])
def test_ctrl_c_keeps_the_draws_of_all_chains(
    monkeypatch: pytest.MonkeyPatch, ctrl_c_at: Callable[[int], None], stop_at: int, kept: bool
) -> None:
    monkeypatch.setattr(turing, "_CHUNK_SECONDS", 0.0)
    ctrl_c_at(stop_at)
    settings: dict[str, Any] = {"n_draws": 200, "n_tune": 20, "n_chains": 2, "progress": False}
    if kept:
        draws = tv.sample_nuts(turing_model("line"), **settings)
        assert draws.status == "interrupted"
        assert 40 <= draws.points.shape[1] < 200
        assert np.isfinite(draws.summary().to_numpy()).all()
    else:
        with pytest.raises(KeyboardInterrupt, match="no draws yet"):
            tv.sample_nuts(turing_model("line"), **settings)


FAILING = """
@model function failing(y)
    m ~ Normal(0, 3)
    3.0 < m < 3.2 && throw(DomainError(m, "not here"))
    y ~ Normal(m, 1)
end
"""


@julia
def test_an_error_of_the_model_keeps_the_draws_of_all_chains() -> None:
    model = tv.models.Turing(FAILING, {"y": 0.0}, ad="forwarddiff")
    with pytest.warns(RuntimeWarning, match=r"(?s)failing fails in chain [12], step .*not here.*are kept"):
        draws = tv.sample_nuts(model, 20_000, 20, 2, seed=3, progress=False)
    assert (draws.status, draws.points.shape[0]) == ("failed", 2)
    assert 1 <= draws.points.shape[1] < 20_000
    assert np.isfinite(model.log_density(draws.points.reshape(-1, 1))).all()
    assert "DomainError" in draws.message
    assert "failed in" in repr(draws)


@julia
def test_an_error_in_the_warm_up_has_no_draws_to_keep() -> None:
    model = tv.models.Turing(FAILING, {"y": 0.0}, ad="forwarddiff")
    with pytest.raises(EngineError, match=r"(?s)failing fails in chain .*not here.*There are no draws yet"):
        tv.sample_nuts(model, 10, 20_000, 2, seed=3, progress=False)


@julia
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")  # of few draws
def test_a_single_draw_has_a_summary() -> None:
    summary = tv.sample_nuts(turing_model("line"), 1, 10, 1, progress=False).summary()
    assert np.isfinite(summary["mean"]).all()
    assert summary["sd"].isna().all()


@pytest.mark.parametrize("change", [{"n_chains": 10**9}, {"n_draws": 10**12}, {"n_chains": 10**9, "n_draws": 1}])
def test_draws_that_do_not_fit_in_memory_are_refused_before_julia_starts(
    change: dict[str, int], isotropic: tv.models.Model
) -> None:
    """At least a float64 for each coordinate of each draw."""
    n_chains, n_draws = change.get("n_chains", 4), change.get("n_draws", 1000)
    with pytest.raises(MemoryLimitError, match=f"n_chains={n_chains:,} and n_draws={n_draws:,}") as caught:
        tv.sample_nuts(isotropic, **change)
    found = re.search(r"needs ([\d,]+) bytes", str(caught.value))
    assert found is not None
    assert int(found[1].replace(",", "")) >= 8 * isotropic.dim * n_chains * n_draws


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_draws": 0}, "n_draws"),
        ({"n_tune": -1}, "n_tune"),
        ({"n_chains": 1.5}, "n_chains"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**1024}, r"seed must be at most 2\*\*1024 - 1"),
        ({"target_acceptance": 1e-300}, "target_acceptance"),
        ({"target_acceptance": 1.0}, "target_acceptance"),
        ({"target_acceptance": "high"}, "target_acceptance"),
        ({"ad": "enzyme"}, "Unknown ad"),
    ],
)
def test_wrong_arguments_are_refused_before_julia_starts(
    change: dict[str, Any], words: str, isotropic: tv.models.Model
) -> None:
    with pytest.raises(InputError, match=words):
        tv.sample_nuts(isotropic, **change)


@julia
def test_a_turing_model_is_not_sampled_in_python() -> None:
    with pytest.raises(EngineError, match="runs in Python and cannot call"):
        tv.sample_nuts(turing_model("line"), sampler="mici")


def test_each_sampler_says_what_it_cannot_run(isotropic: tv.models.Model) -> None:
    model = tv.models.LogDensity(lambda p: (-(p**2).sum(axis=1) / 2, -p), tv.Layout(1, 0, 0))
    with pytest.raises(EngineError, match=r"runs in Julia and cannot call .*LogDensity"):
        tv.sample_nuts(model, sampler="turing")
    with pytest.raises(InputError, match="must be one of"):
        tv.sample_nuts("rpoisson")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Unknown sampler 'numpyro'"):
        tv.sample_nuts(isotropic, sampler="numpyro")
    with pytest.raises(InputError, match="ad='zygote' is for"):
        tv.sample_nuts(isotropic, ad="zygote", sampler="mici")
