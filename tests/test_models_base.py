"""What every model says of itself: its engines, its log terms, its optimum; and a user's own model."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import pyturingvi as tv
from pyturingvi.data import simulate_irt, simulate_rpoisson, simulate_volatility
from pyturingvi.errors import EngineError, InputError
from pyturingvi.models import Model

# ---- log terms --------------------------------------------------------------------------------------------
X, Y = simulate_rpoisson(40, 3, seed=4)
WITH_TERMS = {
    "gaussian": tv.models.IsotropicGaussian(6, n_global=2, local_dim=3, mean=1.5, variance=0.3),
    "no locals": tv.models.IsotropicGaussian(0, n_global=2),
    "no globals": tv.models.IsotropicGaussian(4, n_global=0),
    "rpoisson": tv.models.RobustPoisson(X, Y),
    "with offset": tv.models.RobustPoisson(X, Y, np.linspace(-1, 1, 40)),
    "irt": tv.models.ItemResponse(simulate_irt(30, 5, seed=1)),
    "missing": tv.models.ItemResponse(simulate_irt(30, 5, seed=1, missing=0.3)),
    "long": tv.models.ItemResponse(simulate_irt(20_000, 4, seed=1)),  # more than one block of students
}


@pytest.mark.parametrize("case", WITH_TERMS)
def test_log_terms_add_up_to_the_log_density_and_know_one_local_only(case: str) -> None:
    model = WITH_TERMS[case]
    layout, rng = model.layout, np.random.default_rng(2)
    points = rng.normal(scale=0.7, size=(4, model.dim))
    prior, local = model.log_terms(points)
    assert (prior.shape, local.shape) == ((4,), (4, layout.n_local))
    np.testing.assert_allclose(prior + local.sum(axis=1), model.log_density(points), rtol=1e-12)
    # the terms' sizes say little about the rounding of a single one: another local must not change a bit
    for n in {0, layout.n_local // 2, layout.n_local - 1} if layout.n_local else ():
        moved = points.copy()
        moved[:, layout.n_global + n * layout.local_dim] += rng.normal(size=4)
        prior_after, local_after = model.log_terms(moved)
        np.testing.assert_array_equal(prior_after, prior)
        changed = (local_after != local).any(axis=0)
        assert changed[n]
        assert changed.sum() == 1


def test_log_terms_of_float32_points_are_float64() -> None:
    model = WITH_TERMS["missing"]
    points = np.random.default_rng(3).normal(size=(2, model.dim)).astype(np.float32)
    for narrow, wide in zip(model.log_terms(points), model.log_terms(points.astype(float)), strict=True):
        np.testing.assert_array_equal(narrow, wide)


def test_where_there_are_no_log_terms_the_error_says_why() -> None:
    model = tv.models.StochasticVolatility(simulate_volatility(5, 2))
    assert not model.has_log_terms
    with pytest.raises(InputError, match=r"StochasticVolatility: there are no log terms, .* the time before"):
        model.log_terms(np.zeros((1, model.dim)))
    with pytest.raises(InputError, match=r"LogDensity.*does not define"):
        tv.models.LogDensity(lambda p: (-p.sum(axis=1), -np.ones_like(p)), tv.Layout(1, 0, 0)).log_terms(np.zeros(1))


# ---- engines ----------------------------------------------------------------------------------------------
class Wider(tv.models.RobustPoisson):
    """A subclass with another density: nothing of its parent's in Julia may stand for it."""

    def _density_of(self, *args: Any) -> Any:
        return super()._density_of(*args) - 1.0


def test_a_subclass_does_not_pass_for_its_parent() -> None:
    parent, child = tv.models.RobustPoisson(X, Y), Wider(X, Y)
    assert (parent.engines, child.engines) == ({"numpy", "julia"}, {"numpy"})
    assert child.name == child.label == "Wider"
    assert "Wider, a model of your own" in child.description
    assert not child.has_log_terms
    with pytest.raises(InputError, match=r"Wider.*no log terms"):
        child.log_terms(np.zeros((1, child.dim)))
    with pytest.raises(EngineError, match="Wider"):
        tv.sample_nuts(child, 10)


def test_models_say_where_they_run() -> None:
    function = tv.models.LogDensity(lambda p: (-p.sum(axis=1), -np.ones_like(p)), tv.Layout(1, 0, 0))
    assert (function.engines, function.devices) == ({"numpy"}, {"cpu"})
    assert "Python function" in function.description
    turing = tv.models.Turing.__new__(tv.models.Turing)  # without Julia
    assert (turing.engines, turing.devices) == ({"julia"}, {"cpu"})
    for model in WITH_TERMS.values():
        assert (model.engines, model.devices) == ({"numpy", "julia"}, {"cpu", "cuda"})
        assert model.description == f"tv.models.{type(model).__name__}"


def test_the_optimum_is_known_of_the_synthetic_target_alone() -> None:
    location, scale = WITH_TERMS["gaussian"].optimum()
    np.testing.assert_array_equal(location, np.full(20, 1.5))
    assert scale**2 == pytest.approx(0.3, rel=1e-15)
    assert WITH_TERMS["rpoisson"].optimum() is None


# ---- a user's own model -----------------------------------------------------------------------------------
class Schools(Model):
    """Effects y_n ~ N(z, 1) around a common z ~ N(0, 4), seen as x_n ~ N(y_n, 0.25): standard deviations 2 and 0.5."""

    def __init__(self, seen: list[float]) -> None:
        self.seen = np.array(seen)
        self.layout = tv.Layout(n_global=1, n_local=len(seen), local_dim=1)

    def _log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z, y = points[:, :1], points[:, 1:]
        density = -0.5 * (z[:, 0] ** 2 / 4 + ((y - z) ** 2 + 4 * (self.seen - y) ** 2).sum(axis=1))
        to_mean = (y - z).sum(axis=1, keepdims=True) - z / 4
        return density, np.hstack([to_mean, z - y + 4 * (self.seen - y)])


SEEN = [1.0, -0.5, 2.5, 0.2]


def test_a_users_own_model_is_fitted_to_its_posterior() -> None:
    model = Schools(SEEN)
    precision = np.diag([1 / 4 + 4, *[5.0] * 4])
    precision[0, 1:] = precision[1:, 0] = -1.0
    mean = np.linalg.solve(precision, [0.0, *(4 * x for x in SEEN)])
    rate = tv.step_decay(0.05, 0.5, 300)
    fit = tv.fit(model, "structured", tv.Adam(rate), n_iterations=3000, n_samples=64, engine="numpy", progress=False)
    assert fit.model.label == "Schools"
    covariance = (fit.scale @ fit.scale.T).toarray()
    np.testing.assert_allclose(fit.location, mean, atol=0.01)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), atol=0.01)
    assert list(fit.summary().index) == ["z[0]"]
    assert fit.sample(7)["y"].shape == (7, 4, 1)


def test_a_users_own_model_has_what_the_engines_and_files_ask_of_it() -> None:
    model = Schools(SEEN)
    points = np.random.default_rng(0).normal(size=(3, 5))
    density, slope = model.log_density_and_gradient(points)
    np.testing.assert_array_equal(model.log_density(points), density)
    np.testing.assert_array_equal(model.gradient(points), slope)
    np.testing.assert_array_equal(model.unconstrain(model.constrain(points)), points)
    assert model.dims == {"z": ["global"], "y": ["block", "local"]}
    assert model.coords == {"global": [0], "block": [0, 1, 2, 3], "local": [0]}
    assert pickle.loads(pickle.dumps(model)).log_density(points).tolist() == density.tolist()
    # a checkpoint must not go on with other data, which no state tells of
    assert str(model.fingerprint()) == str(Schools(SEEN).fingerprint()) != str(Schools(SEEN[::-1]).fingerprint())
    with pytest.raises(InputError, match="Schools: this model cannot be written"):
        model.get_state()
