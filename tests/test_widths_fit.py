"""Fits with conditional widths: where they end, and what can be done with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets import assert_same_run

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError

WIDTHS = tv.Structured(conditional_scale=True)
SLOPE = 0.6


def funnel(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """z ~ N(1, 2^2), y_n ~ N(n/2 + z, exp(0.6 z)^2), for 5 locals: normalized."""
    z, y = points[:, :1], points[:, 1:]
    width, away = np.exp(SLOPE * z), (z - 1) / 2
    r = (y - np.arange(5) / 2 - z) / width
    value = -0.5 * away**2 - np.log(2) + (-0.5 * r**2 - SLOPE * z).sum(axis=1, keepdims=True)
    slope = -away / 2 + (r / width + SLOPE * r**2 - SLOPE).sum(axis=1, keepdims=True)
    return value[:, 0] - 3 * np.log(2 * np.pi), np.hstack([slope, -r / width])


def fit(model: tv.models.Model, family: Any = WIDTHS, **settings: Any) -> tv.Fit:
    return tv.fit(model, family, **{"progress": False, "engine": "numpy", **settings})


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_a_funnel_is_found_where_structured_falls_short() -> None:
    """The posterior is a member: m_z = 1, C_zz = 2, C_nz = 2, b = 0.6 * 2, width exp(0.6) at the mean, evidence 1.

    A run ends where its steps' noise may cost a tenth of a nat; more of them come nearer.
    """
    model = tv.models.LogDensity(funnel, tv.Layout(1, 5, 1))
    found = fit(model)
    assert found.status == "converged"
    expected = [1.0, *(np.arange(5) / 2 + 1), 2.0, *[2.0] * 5, *[np.exp(SLOPE)] * 5, *[2 * SLOPE] * 5]
    np.testing.assert_allclose(np.abs(found.params), expected, atol=0.02)
    assert abs(found.last_elbo) < 0.01
    noise = np.random.default_rng(1).standard_normal((300, 48, 6))
    steps = {"optimizer": tv.NaturalGradient(rate=0.3), "noise": noise, "n_samples": 48, "n_iterations": 300}
    exact = fit(model, init=found, **steps)
    np.testing.assert_allclose(np.abs(exact.params), expected, rtol=1e-9)
    assert abs(exact.last_elbo) < 1e-9
    plain = fit(model, "structured")
    assert plain.last_elbo < -0.5
    assert plain.global_sds[0] < 1.7
    assert found.global_sds[0] == pytest.approx(2, abs=0.02)


@pytest.mark.slow  # the page families.md, which test_site.py runs, prints the same two widths
def test_rpoisson_small_has_the_width_of_s_eta_that_structured_has_not() -> None:
    """NUTS, 10,000 draws: 1.3555 with a standard deviation of 0.037; the width is mended, the shift is not."""
    model = tv.load_problem("rpoisson-small")
    found, plain = fit(model, elbo_samples=8192), fit(model, "structured", elbo_samples=8192)
    assert found.status == "converged"
    row, narrow = found.summary().loc["s_eta"], plain.summary().loc["s_eta"]
    assert narrow["sd"] < 0.029
    assert row["sd"] == pytest.approx(0.035, abs=0.0025)
    assert row["mean"] == pytest.approx(1.310, abs=0.006)
    last, other = found.elbo.iloc[-1], plain.elbo.iloc[-1]
    assert last.elbo > other.elbo - 2 * np.hypot(last.std_error, other.std_error)
    draws = found.sample_unconstrained(4000, seed=3)  # the ELBO again, from draws and densities
    values = model.log_density(draws) - found.log_q(draws)
    assert abs(values.mean() - last.elbo) < 4 * np.hypot(values.std() / np.sqrt(len(values)), last.std_error)


def test_it_goes_on_from_a_structured_fit_and_loses_nothing(poisson: tv.models.Model) -> None:
    plain = fit(poisson, "structured")
    there = tv.fit(poisson, WIDTHS, tv.SGD(1e-300), n_iterations=1, init=plain, progress=False, engine="numpy")
    draws = plain.sample_unconstrained(5)
    np.testing.assert_array_equal(there.sample_unconstrained(5), draws)
    np.testing.assert_array_equal(there.log_q(draws), plain.log_q(draws))
    found = fit(poisson, init=plain)
    assert found.status == "converged"
    assert found.last_elbo > plain.last_elbo - 0.3
    words = r"^init: the structured family .* conditional-scale structured .* init_location=fit\.location"
    with pytest.raises(InputError, match=words):
        fit(poisson, "structured", init=found)
    assert tv.fit(poisson, "structured", n_iterations=1, init_location=found.location, progress=False).n_updates == 1
    with pytest.raises(InputError, match="has no scale matrix"):
        _ = found.scale


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_adam_raises_the_elbo_too(poisson: tv.models.Model, dtype: Any) -> None:
    found = fit(poisson, optimizer=tv.Adam(1e-2), n_iterations=1500, elbo_every=100, dtype=dtype)
    plain = fit(poisson, "structured")
    assert found.elbo.elbo.iloc[-5:].mean() == pytest.approx(plain.last_elbo, abs=1.0)
    assert found.params[tv.Structured().n_params(poisson.layout) :].any()


@pytest.mark.parametrize(
    "optimizer", [tv.ProximalSGD(1e-4), tv.ProjectedSGD(1e-4), tv.NaturalGradient(rate=0.1)], ids=repr
)
def test_every_optimizer_runs_and_a_killed_run_goes_on(
    poisson: tv.models.Model, optimizer: Any, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "n_iterations": 40, "n_samples": 24, "elbo_every": 10}
    whole = fit(poisson, **settings)
    path = tmp_path / "run.npz"

    def stop(iteration: int, elbo: float) -> bool:
        return iteration >= 20

    fit(poisson, checkpoint=path, callback=stop, **settings)
    assert_same_run(fit(poisson, checkpoint=path, **settings), whole)


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_a_fit_is_saved_summarized_drawn_from_and_judged(poisson: tv.models.RobustPoisson, tmp_path: Path) -> None:
    found = fit(poisson)
    back = tv.load_fit(found.save(tmp_path / "fit.npz"))
    assert back.family == WIDTHS
    np.testing.assert_array_equal(back.params, found.params)
    np.testing.assert_array_equal(back.sample(3)["eta"], found.sample(3)["eta"])
    assert "conditional-scale structured" in repr(back)
    # the standard deviation of a local: that of the mean and of the width, which is E exp(2 b u) times as large squared
    draws = found.sample_unconstrained(20_000)
    head, covariance = found.family.bind(poisson.layout).local_parts(found.params)
    d_z = poisson.layout.n_global
    expected = (head[d_z:] ** 2).sum(axis=1) + covariance[:, 0, 0]
    np.testing.assert_allclose(draws[:, d_z:].var(axis=0), expected, rtol=0.05)
    np.testing.assert_allclose(draws[:, :d_z].std(axis=0), found.global_sds, rtol=0.02)
    table = found.summary(local=True)
    assert len(table) == len(found.summary()) + len(poisson.y)
    tree = found.to_arviz(50)
    assert tree["posterior"].attrs["family"] == "conditional-scale structured"
    assert found.predict(n_draws=7)["y"].shape == (7, len(poisson.y))
    said = found.diagnose()
    assert str(said).startswith(f"{poisson.label}, conditional-scale structured: ")
    assert said.globals is not None
    refined = found.refine(n_draws=500, progress=False)
    assert refined.family == tv.Structured()
    expected_moves = fit(poisson, "structured").refine(n_draws=500, progress=False)
    error = np.hypot(1, 1) * refined.global_sds / np.sqrt(200)
    assert (np.abs(refined.location - expected_moves.location)[:d_z] < 4 * error).all()


def test_julia_on_a_gpu_is_refused_by_name(poisson: tv.models.Model) -> None:
    with pytest.raises(EngineError, match="the conditional-scale structured family on a GPU"):
        tv.fit(poisson, WIDTHS, tv.Adam(1e-3), engine="julia", device="cuda", n_iterations=1, progress=False)
