"""Forecasts against a simulation of their own, exact moments, and the draws of the fit that they continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import quick_fit

import pyturingvi as tv
from pyturingvi.errors import InputError, MemoryLimitError

MU, PHI, TAU = np.array([-9.0, -8.0]), np.array([0.9, -0.4]), np.array([0.3, 0.7])
CORRELATION, LAST = 0.6, np.array([-8.0, -9.5])
COVARIANCE = np.array([[TAU[0] ** 2, CORRELATION * TAU.prod()], [CORRELATION * TAU.prod(), TAU[1] ** 2]])


@pytest.fixture
def model() -> tv.models.StochasticVolatility:
    return tv.models.StochasticVolatility(0.01 * np.random.default_rng(0).standard_t(4, size=(12, 2)))


def known(model: tv.models.StochasticVolatility) -> np.ndarray:
    """The point (1, d) with the parameters above."""
    factor = np.array([[1.0, 0.0], [CORRELATION, np.sqrt(1 - CORRELATION**2)]])
    path = np.full(model.returns.shape, -7.0)
    path[-1] = LAST
    return model.unconstrain({"mu": MU, "phi": PHI, "tau": TAU, "L": factor, "y": path})


def simulate(n: int, h: int, seed: int) -> np.ndarray:
    """Log variances (n, h, 2) after LAST, each vector of innovations by SciPy."""
    steps = stats.multivariate_normal(np.zeros(2), COVARIANCE, seed=np.random.default_rng(seed)).rvs((n, h))
    paths = np.empty((n, h, 2))
    for i in range(n):
        before = LAST
        for t in range(h):
            before = paths[i, t] = MU + PHI * (before - MU) + steps[i, t]
    return paths


def test_given_the_parameters_a_forecast_is_a_simulation(model: tv.models.StochasticVolatility) -> None:
    n, h = 5_000, 4
    found = model.forecast(np.repeat(known(model), n, axis=0), h, np.random.default_rng(1))
    assert {name: value.shape for name, value in found.items()} == {"volatility": (n, h, 2), "returns": (n, h, 2)}
    paths = simulate(n, h, 2)
    returns = stats.norm(0, np.exp(paths / 2)).rvs(random_state=np.random.default_rng(3))
    for t in range(h):
        for k in range(2):
            assert stats.ks_2samp(found["volatility"][:, t, k], np.exp(paths[:, t, k] / 2)).pvalue > 1e-3
            assert stats.ks_2samp(found["returns"][:, t, k], returns[:, t, k]).pvalue > 1e-3
    # sums over times and series see how these hang together
    for weights in (np.ones((h, 2)), np.outer(np.ones(h), [1, -1]), np.outer([1, -1, 1, -1], [1, 1])):
        ours, theirs = (np.tensordot(y, weights) for y in (2 * np.log(found["volatility"]), paths))
        assert stats.ks_2samp(ours, theirs).pvalue > 1e-3
    standard = found["returns"] / found["volatility"]
    assert stats.kstest(standard.ravel(), stats.norm.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(standard.reshape(n, -1).T) - np.eye(2 * h)).max() < 5 / np.sqrt(n)


def test_log_volatilities_have_the_autoregressions_moments(model: tv.models.StochasticVolatility) -> None:
    n, h = 200_000, 3
    draws = 2 * np.log(model.forecast(np.repeat(known(model), n, axis=0), h, np.random.default_rng(4))["volatility"])
    covariance = np.zeros((2, 2))
    for t in range(h):
        covariance = np.outer(PHI, PHI) * covariance + COVARIANCE
        sd = np.sqrt(np.diag(covariance))
        mean = MU + PHI ** (t + 1) * (LAST - MU)
        assert (abs(draws[:, t].mean(axis=0) - mean) < 5 * sd / np.sqrt(n)).all()
        assert (abs(np.cov(draws[:, t].T) - covariance) < 5 * np.sqrt(2) * np.outer(sd, sd) / np.sqrt(n)).all()


def test_a_fits_forecast_goes_on_from_the_fits_own_draws(model: tv.models.StochasticVolatility, tmp_path: Path) -> None:
    fit = quick_fit(model, n_iterations=300)
    n, h = 4_000, 2
    found, draws = fit.forecast(h, n_draws=n, seed=5), fit.sample(n, seed=5)
    y = np.concatenate([draws["y"][:, -1:], 2 * np.log(found["volatility"])], axis=1) - draws["mu"][:, None]
    steps = (y[:, 1:] - draws["phi"][:, None] * y[:, :-1]) / draws["tau"][:, None]
    standard = np.linalg.solve(draws["L"][:, None], steps[..., None])[..., 0].reshape(n, -1)
    assert stats.kstest(standard.ravel(), stats.norm.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(standard.T) - np.eye(2 * h)).max() < 5 / np.sqrt(n)
    saved = tv.load_fit(fit.save(tmp_path / "fit.npz")).forecast(h, n_draws=n, seed=5)
    for name, value in found.items():
        np.testing.assert_array_equal(saved[name], value)
        assert (fit.forecast(h, n_draws=n, seed=6)[name] != value).all()
    assert fit.forecast(1)["returns"].shape == (1000, 1, 2)


def test_models_without_times_refuse_by_name(poisson: tv.models.RobustPoisson) -> None:
    with pytest.raises(InputError, match=r"tv.models.RobustPoisson: there is no forecast, since its locals do not"):
        quick_fit(poisson, n_iterations=2).forecast(3)


def test_a_model_of_your_own_declares_its_forecast() -> None:
    class Walk(tv.models.Model):
        layout = tv.Layout(n_global=0, n_local=5, local_dim=1)

        def _log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return -0.5 * (points**2).sum(axis=1), -points

        def _forecast(self, points: np.ndarray, h: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
            return {"y": points[:, -1:, None] + rng.standard_normal((len(points), h, 1)).cumsum(axis=1)}

    class Other(Walk):  # whose times may follow each other in another way
        pass

    fit = quick_fit(Walk(), "mean-field", n_iterations=2)
    first, last = fit.forecast(2, n_draws=50)["y"][:, 0, 0], fit.sample(50)["y"][:, -1, 0]
    assert stats.kstest(first - last, stats.norm.cdf).pvalue > 1e-3
    with pytest.raises(InputError, match="Other, a model of your own: there is no forecast"):
        quick_fit(Other(), "mean-field", n_iterations=2).forecast(2)


def test_arguments_of_a_forecast_are_checked(
    model: tv.models.StochasticVolatility, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = quick_fit(model, n_iterations=2)
    bad: Any
    for bad in (0, 1.5, "3"):
        with pytest.raises(InputError, match="h must be a whole number of at least 1"):
            fit.forecast(bad)
        with pytest.raises(InputError, match="n_draws must be a whole number of at least 1"):
            fit.forecast(3, n_draws=bad)
    with pytest.raises(InputError, match="seed must be"):
        fit.forecast(3, seed=-1)
    monkeypatch.setattr("pyturingvi.optimize.memory.available_memory", lambda device="cpu": 10**6)
    with pytest.raises(MemoryLimitError, match="forecast with n=1,000 at d=200 needs"):
        fit.forecast(100)
