"""What the tests of every model ask (gradients, float32, pickling, saved state), and those of both engines (noise)."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

import pyturingvi as tv
from pyturingvi.models import Model


def _small_models() -> dict[str, Model]:
    table = np.random.default_rng(5)
    x = table.normal(size=(30, 2))
    counts = table.poisson(np.exp(0.3 + x @ [0.5, -0.4]))
    answers = (np.random.default_rng(6).uniform(size=(20, 5)) < 0.6).astype(float)
    answers[3, 2] = np.nan
    returns = np.random.default_rng(7).normal(size=(12, 2))
    returns[4, 1] = np.nan
    return {
        "isotropic": tv.models.IsotropicGaussian(4, n_global=2, local_dim=3),
        "poisson": tv.models.RobustPoisson(x, counts),
        "irt": tv.models.ItemResponse(answers),
        "volatility": tv.models.StochasticVolatility(returns),
    }


BUNDLED = _small_models()  # one of each bundled model, which tests of everything else run on too: see conftest.py

# for what takes long with each: the others are slow
ONE_BUNDLED = [name if name == "poisson" else pytest.param(name, marks=pytest.mark.slow) for name in BUNDLED]

# every form of every bundled family, which both engines have
FAMILIES = [
    tv.MeanField(),
    tv.Structured(),
    tv.Structured(standardized=False),
    tv.Markov(),
    tv.FullRank(),
    tv.Structured(conditional_scale=True),
]


def with_missing(table: Any, n_missing: int) -> np.ndarray:
    """The table's values with NaN in `n_missing` cells."""
    values = np.array(table, dtype=float)
    cells = np.random.default_rng(0).choice(values.size, n_missing, replace=False)
    values.flat[cells] = np.nan
    return values


def assert_gradient_is_the_slope(model: Model, points: np.ndarray, directions: np.ndarray) -> None:
    """Central differences along each direction (a row), to 1e-6 of the largest gradient component."""
    gradient = model.gradient(points)
    density, same_gradient = model.log_density_and_gradient(points)
    np.testing.assert_allclose(same_gradient, gradient, rtol=1e-12, atol=1e-12 * np.abs(gradient).max())
    np.testing.assert_allclose(density, model.log_density(points), rtol=1e-13)
    scale = np.abs(gradient).max()
    for direction in directions:
        # Richardson's extrapolation of two steps: the error is of fourth order, so that steps may be large
        slopes = []
        for step in (2e-3, 1e-3):
            above = model.log_density(points + step * direction)
            below = model.log_density(points - step * direction)
            slopes.append((above - below) / (2 * step))
        slope = (4 * slopes[1] - slopes[0]) / 3
        np.testing.assert_allclose(gradient @ direction, slope, atol=1e-6 * scale, rtol=0)


def draw_points(model: Model, n: int, seed: int = 1, spread: float = 0.5) -> np.ndarray:
    """Points at random; log variances of a size that belongs to returns of some percent."""
    points = np.random.default_rng(seed).normal(0.0, spread, size=(n, model.dim))
    if model.name == "volatility":
        points[:, model.layout.n_global :] -= 9.0
        points[:, : model.layout.local_dim] -= 8.5
    return points


def unit_directions(model: Model, n: int, seed: int) -> np.ndarray:
    directions = np.random.default_rng(seed).normal(size=(n, model.dim))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True)


def assert_float32_agrees(model: Model, points: np.ndarray, relative: float, of_gradient: float) -> None:
    narrow = points.astype(np.float32)
    density, gradient = model.log_density_and_gradient(narrow.astype(float))
    density32, gradient32 = model.log_density_and_gradient(narrow)
    assert density32.dtype == np.float64
    assert gradient32.dtype == np.float32
    assert model.log_density(narrow).dtype == np.float64
    np.testing.assert_allclose(density32, density, rtol=relative)
    np.testing.assert_allclose(model.log_density(narrow), density, rtol=relative)
    scale = np.abs(gradient).max(axis=1, keepdims=True)
    np.testing.assert_allclose(gradient32 / scale, gradient / scale, atol=of_gradient)
    np.testing.assert_array_equal(model.gradient(narrow), gradient32)


def assert_batches_are_independent(model: Model, points: np.ndarray) -> None:
    """A point gives the same numbers alone, in a batch and in a batch large enough to be cut in pieces."""
    original = points.copy()
    density, gradient = model.log_density_and_gradient(points)
    many = np.tile(points, (-(-1024 // len(points)), 1))
    for k in range(len(points)):
        np.testing.assert_allclose(model.log_density(points[k]), density[k : k + 1], rtol=1e-12)
        np.testing.assert_allclose(
            model.gradient(points[k])[0], gradient[k], rtol=1e-10, atol=1e-12 * np.abs(gradient).max()
        )
    repeats = len(many) // len(points)
    np.testing.assert_allclose(model.log_density(many), np.tile(density, repeats), rtol=1e-12)
    np.testing.assert_allclose(
        model.gradient(many), np.tile(gradient, (repeats, 1)), rtol=1e-10, atol=1e-12 * np.abs(gradient).max()
    )
    np.testing.assert_array_equal(points, original)


def assert_round_trip(model: Model, points: np.ndarray) -> None:
    natural = model.constrain(points)
    np.testing.assert_allclose(model.unconstrain(natural), points, rtol=1e-10, atol=1e-11)
    for name, value in model.constrain_global(points[:, : model.layout.n_global]).items():
        np.testing.assert_array_equal(value, natural[name])
    for name, value in natural.items():
        axes = [len(model.coords[axis]) for axis in model.dims[name]]
        assert value.shape == (len(points), *axes), name
    assert set(natural) == set(model.dims)
    assert len(model.global_labels) == len(set(model.global_labels)) == model.layout.n_global


def assert_survives_pickle_and_state(model: Model, points: np.ndarray) -> None:
    expected = model.log_density(points)  # also fills the model's cache, which must not travel
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).log_density(points), expected)
    state = model.get_state()
    plain = {key: value for key, value in state.items() if not isinstance(value, np.ndarray)}
    restored = type(model).from_state({**state, **json.loads(json.dumps(plain))})
    np.testing.assert_array_equal(restored.log_density(points), expected)
    assert restored.layout == model.layout
    assert restored.global_labels == model.global_labels
    assert restored.coords == model.coords


def assert_noise_is_copied(model: Model, engine: str) -> None:
    """A run does not see what a callback makes of the noise= that it was given."""
    noise = np.random.default_rng(3).normal(size=(6, 2, model.dim))
    settings: dict[str, Any] = {
        "optimizer": tv.Adam(1e-3),
        "n_iterations": 6,
        "n_samples": 2,
        "elbo_every": 2,
        "elbo_samples": 8,
        "progress": False,
    }
    expected = tv.fit(model, engine=engine, noise=noise.copy(), **settings)
    given = noise.copy()
    found = tv.fit(model, engine=engine, noise=given, callback=lambda *_: given.fill(np.nan), **settings)
    assert np.isnan(given).all()
    assert found.status == "completed"
    np.testing.assert_array_equal(found.params, expected.params)
