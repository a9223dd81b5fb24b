"""`tv.sample_nuts` by mici, on the package's own gradients: no Julia."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import pyturingvi as tv
from pyturingvi.errors import ConvergenceWarning, EngineError
from pyturingvi.nuts import NutsDraws
from pyturingvi.referee import run

few_draws = pytest.mark.filterwarnings(
    "ignore::pyturingvi.errors.ConvergenceWarning"
)  # which is told, and not the point
COVARIANCE = np.array([[4.0, 1.5, 0.0], [1.5, 1.0, 0.03], [0.0, 0.03, 0.01]])


def correlated(hook: Callable[[np.ndarray], None] = lambda points: None) -> tv.models.LogDensity:
    precision = np.linalg.inv(COVARIANCE)

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hook(points)
        slopes = -points @ precision
        return (points * slopes).sum(axis=1) / 2, slopes

    return tv.models.LogDensity(density, tv.Layout(3, 0, 0))


def test_a_gaussian_has_its_moments() -> None:
    draws = tv.sample_nuts(correlated(), 500, 200, 2, seed=1, progress=False)
    assert (draws.status, draws.sampler, draws.points.shape) == ("completed", "mici", (2, 500, 3))
    points, summary = draws.points.reshape(-1, 3), draws.summary()
    errors = np.sqrt(np.diag(COVARIANCE) / summary["ess_bulk"])
    assert (abs(points.mean(axis=0)) < 4 * errors).all()
    np.testing.assert_allclose(np.corrcoef(points.T)[0, 1], 0.75, atol=0.07)
    np.testing.assert_allclose(points.std(axis=0), np.sqrt(np.diag(COVARIANCE)), rtol=0.15)
    assert summary["r_hat"].max() < 1.02
    assert draws.diagnostics().loc["z", "min_ess_bulk"] == summary["ess_bulk"].min()
    assert draws.to_arviz()["posterior"].attrs["inference_library"] == "mici"
    assert len(np.unique(draws.points[..., 0])) > 950  # each round of draws has noise of its own


@few_draws
def test_the_seed_decides() -> None:
    first, again, other = (tv.sample_nuts(correlated(), 30, 20, 2, seed=seed, progress=False) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.points, again.points)
    assert not np.isin(other.points, first.points).any()


def test_counts_equal_their_conjugate_posterior() -> None:
    """Poisson counts with a Gamma prior on the rate: log rate has a density that is not Gaussian."""

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rate = np.exp(points)
        return (3.0 * points - 2.0 * rate).sum(axis=1), 3.0 - 2.0 * rate

    draws = tv.sample_nuts(tv.models.LogDensity(density, tv.Layout(1, 0, 0)), 500, 200, 2, progress=False)
    expected = stats.gamma(3.0, scale=0.5)
    found = np.exp(draws.points.ravel())
    error = expected.std() / np.sqrt(draws.summary()["ess_bulk"].min())
    assert abs(found.mean() - expected.mean()) < 4 * error
    np.testing.assert_allclose(np.quantile(found, [0.1, 0.5, 0.9]), expected.ppf([0.1, 0.5, 0.9]), atol=5 * error)


@pytest.mark.parametrize(("stop_at", "kept"), [(60, True), (5, False)])
def test_ctrl_c_keeps_the_draws_of_all_chains(ctrl_c_at: Callable[[int], None], stop_at: int, kept: bool) -> None:
    ctrl_c_at(stop_at)
    settings: dict[str, Any] = {"n_draws": 200, "n_tune": 20, "n_chains": 2, "progress": False}
    if kept:
        draws = tv.sample_nuts(correlated(), **settings)
        assert draws.status == "interrupted"
        assert draws.points.shape == (2, 40, 3)
        assert np.isfinite(draws.summary().to_numpy()).all()
    else:
        with pytest.raises(KeyboardInterrupt, match=r"after 5 of 20 warm-up steps: no draws yet"):
            tv.sample_nuts(correlated(), **settings)


@pytest.mark.parametrize(("after", "kept"), [(2_000, True), (10, False)])
def test_an_error_of_the_model_keeps_the_draws_of_all_chains(after: int, kept: bool) -> None:
    calls = []

    def fails(points: np.ndarray) -> None:
        calls.append(len(points))
        if len(calls) > after:
            raise ValueError("not here")

    settings: dict[str, Any] = {"n_draws": 10_000, "n_tune": 20, "n_chains": 2, "progress": False}
    if kept:
        with pytest.warns(RuntimeWarning, match=r"fails in draw \d+: ValueError: not here.*are kept"):
            draws = tv.sample_nuts(correlated(fails), **settings)
        assert draws.status == "failed"
        assert 20 <= draws.points.shape[1] < 10_000
        assert "not here" in draws.message
    else:
        with pytest.raises(EngineError, match=r"fails in warm-up step \d+: ValueError: not here.*no draws yet"):
            tv.sample_nuts(correlated(fails), **settings)


def test_chains_that_have_not_mixed_are_told() -> None:
    """Two modes, 20 standard deviations apart: no chain leaves its own."""

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        near = np.where(points > 0, 10.0, -10.0)
        return -((points - near) ** 2).sum(axis=1) / 2, near - points

    model = tv.models.LogDensity(density, tv.Layout(1, 0, 0))
    with pytest.warns(ConvergenceWarning, match=r"largest R-hat of a global variable is [1-9]\.\d+ .*no referee yet"):
        tv.sample_nuts(model, 100, 50, 4, seed=3, progress=False)


@pytest.mark.parametrize(
    ("n_draws", "n_tune", "n_chains", "words"),
    [
        (1000, 100, 1, r"no second chain shows by R-hat .* \(n_chains=4\); \d+ of 1,000 draws diverged\. Draw more"),
        (
            40,
            100,
            1,
            r"smallest effective sample size of a global variable is [1-9]\d? \(of 40 draws\); no second chain",
        ),
        (
            40,
            100,
            2,
            r"R-hat of a global variable is \d\.\d+ and the smallest effective sample size \d+ \(of 80 draws\)",
        ),
        (3, 10, 2, r"3 draws of a chain are too few to tell"),
    ],
)
def test_one_chain_and_few_draws_are_told(n_draws: int, n_tune: int, n_chains: int, words: str) -> None:
    with pytest.warns(ConvergenceWarning, match=words):
        draws = tv.sample_nuts(correlated(), n_draws, n_tune, n_chains, progress=False)
    if n_chains == 1:
        worst = draws.diagnostics().loc["z"]
        assert np.isnan(worst["max_r_hat"])
        assert worst["min_ess_bulk"] == draws.summary()["ess_bulk"].min()


def test_a_chain_that_stands_still_is_told() -> None:
    """Its effective sample size, as it is computed, is all of its draws."""
    found = run.NutsRun(np.ones((2, 200, 3)), np.ones((2, 200), bool), np.ones((2, 200), int), np.ones(2), 200)
    doubts = NutsDraws(correlated(), found, "mici", "completed", 1.0).doubts()
    assert doubts == "2 of 2 chains did not move; 400 of 400 draws diverged"


@few_draws
def test_a_density_that_ends_somewhere_is_sampled_inside() -> None:
    """Half-normal: -inf and NaN beyond 0 end a trajectory and cost nothing else."""

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(invalid="ignore"):
            slopes = np.where(points > 0, -points, np.nan)
        return np.where(points > 0, -(points**2) / 2, -np.inf).sum(axis=1), slopes

    model = tv.models.LogDensity(density, tv.Layout(1, 0, 0))
    points = tv.sample_nuts(model, 20, 20, 1, seed=0, progress=False).points
    assert (points > 0).all()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mici", None)
    with pytest.raises(EngineError, match=r"needs mici: pip install 'pyturingvi\[nuts\]'"):
        tv.sample_nuts(correlated(), 10, 10, 1)
