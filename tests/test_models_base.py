"""What every bundled model keeps, what it says of itself (engines, log terms, optimum); and a user's own model."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from model_checks import (
    BUNDLED,
    assert_batches_are_independent,
    assert_float32_agrees,
    assert_gradient_is_the_slope,
    assert_round_trip,
    assert_survives_pickle_and_state,
    draw_points,
    unit_directions,
    with_missing,
)

import pyturingvi as tv
from pyturingvi.data import simulate_irt, simulate_rpoisson, simulate_volatility
from pyturingvi.errors import EngineError, InputError
from pyturingvi.models import IsotropicGaussian, ItemResponse, Model, RobustPoisson, StochasticVolatility

X, Y = simulate_rpoisson(30, 3, seed=4)
SMALL: dict[str, Model] = {
    **{f"bundled {name}": model for name, model in BUNDLED.items()},
    "gaussian": IsotropicGaussian(6, n_global=2, local_dim=3, mean=1.5, variance=0.3),
    "no locals": IsotropicGaussian(0, n_global=2),
    "no globals": IsotropicGaussian(4, n_global=0),
    "with offset": RobustPoisson(X, Y, np.linspace(-1, 1, 30)),
    "irt": ItemResponse(simulate_irt(30, 5, seed=1)),
    "missing": ItemResponse(simulate_irt(30, 5, seed=1, missing=0.3)),
    "panels": ItemResponse(simulate_irt(120, 3, seed=2)),
    **{
        f"volatility {size}": StochasticVolatility(simulate_volatility(n, size, seed=size))
        for n, size in ((2, 1), (5, 1), (4, 2), (3, 3), (6, 6))
    },
    "volatility missing": StochasticVolatility(with_missing(simulate_volatility(6, 3, seed=4), 5)),
}
REAL: dict[str, tuple[Model, float, float]] = {  # of the paper's small problems' size, with the accuracies of float32
    "rpoisson": (RobustPoisson(*simulate_rpoisson(1961, 12, seed=1)), 2e-5, 2e-5),
    "with offset": (RobustPoisson(*simulate_rpoisson(1961, 12, seed=1), np.linspace(-1, 1, 1961)), 2e-5, 2e-5),
    "volatility": (StochasticVolatility(simulate_volatility(262, 6)), 5e-5, 5e-5),
    "volatility missing": (StochasticVolatility(with_missing(simulate_volatility(262, 6), 150)), 5e-5, 5e-5),
    "irt": (ItemResponse(simulate_irt(3348, 95)), 1e-6, 1e-5),
    "missing": (ItemResponse(simulate_irt(3348, 95, missing=0.2)), 1e-6, 1e-5),
}


# ---- what every model keeps -------------------------------------------------------------------------------
@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_the_gradient_is_the_slope_in_every_coordinate(case: str, spread: float) -> None:
    model = SMALL[case]
    assert_gradient_is_the_slope(model, draw_points(model, 3, spread=spread), np.eye(model.dim))


@pytest.mark.parametrize("case", REAL)
def test_the_gradient_is_the_slope_at_the_real_size(case: str) -> None:
    model = REAL[case][0]
    d_z = model.layout.n_global
    directions = unit_directions(model, 6, 2)
    directions[2:4, d_z:] = directions[4:, :d_z] = 0.0  # globals alone, and locals alone
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    assert_gradient_is_the_slope(model, draw_points(model, 2), directions)


@pytest.mark.parametrize("case", SMALL)
def test_round_trips_copies_and_batches(case: str) -> None:
    model = SMALL[case]
    points = draw_points(model, 4)
    assert_round_trip(model, points)
    assert_survives_pickle_and_state(model, points)
    assert_batches_are_independent(model, points)


@pytest.mark.parametrize("case", REAL)
def test_float32_at_the_real_size(case: str) -> None:
    model, of_density, of_gradient = REAL[case]
    assert_float32_agrees(model, draw_points(model, 3), of_density, of_gradient)


# a thousand points, cell by cell; test_models_irt.py has the pieces of answers in small
@pytest.mark.parametrize(
    "case",
    ["rpoisson", "volatility missing", *(pytest.param(k, marks=pytest.mark.slow) for k in ("irt", "with offset"))],
)
def test_a_batch_cut_in_pieces_at_the_real_size(case: str) -> None:
    assert_batches_are_independent(REAL[case][0], draw_points(REAL[case][0], 3))


@pytest.mark.parametrize("name", ["s_beta", "gamma"])
def test_unconstrain_refuses_what_is_not_there_or_outside_its_support(name: str) -> None:
    model = SMALL["irt"]
    natural = model.constrain(draw_points(model, 2))
    with pytest.raises(InputError, match=f"{name} must be positive"):
        model.unconstrain({**natural, name: -natural[name]})
    with pytest.raises(InputError, match=rf"{name} must have shape \(M,.*\), got \(2, 9\)"):
        model.unconstrain({**natural, name: np.ones((2, 9))})
    with pytest.raises(InputError, match=f"{name} holds 1 points, the others hold 2"):
        model.unconstrain({**natural, name: natural[name][:1]})
    with pytest.raises(InputError, match=f"{name} has NaN"):
        model.unconstrain({**natural, name: natural[name] * np.nan})
    with pytest.raises(InputError, match=f"unconstrain needs '{name}'"):
        model.unconstrain({key: value for key, value in natural.items() if key != name})
    one = {key: value[0] for key, value in natural.items()}
    np.testing.assert_array_equal(model.unconstrain(one), model.unconstrain(natural)[:1])


def test_points_of_a_wrong_shape_or_kind_are_refused() -> None:
    model = SMALL["no locals"]
    with pytest.raises(InputError, match=r"\(M, 2\), got \(3, 1\)"):
        model.log_density(np.zeros((3, 1)))
    with pytest.raises(InputError, match=r"global points must have shape \(M, 2\), got \(3, 1\)"):
        model.constrain_global(np.zeros((3, 1)))
    for points in ([[1, 2], [3]], [["a", "b"]], np.zeros((3, 2), dtype=complex)):
        with pytest.raises(InputError, match="real numbers"):
            model.log_density(points)
    for values in (5, None, np.zeros(2), {"z": [[1j, 0]]}):
        with pytest.raises(InputError):
            model.unconstrain(values)


# ---- log terms --------------------------------------------------------------------------------------------
WITH_TERMS = {case: model for case, model in SMALL.items() if model.has_log_terms}
WITH_TERMS["long"] = ItemResponse(simulate_irt(20_000, 4, seed=1))  # more than one block of students


@pytest.mark.parametrize("case", WITH_TERMS)
def test_log_terms_add_up_to_the_log_density_and_know_one_local_only(case: str) -> None:
    model = WITH_TERMS[case]
    layout, rng = model.layout, np.random.default_rng(2)
    points = draw_points(model, 4)
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


@pytest.mark.parametrize("case", WITH_TERMS)
def test_the_gradient_of_log_terms_is_the_slope_of_their_weighted_sum(case: str) -> None:
    model = WITH_TERMS[case]
    rng, points = np.random.default_rng(4), draw_points(model, 3)
    np.testing.assert_allclose(
        model.log_terms_and_gradient(points)[2],
        model.gradient(points),
        rtol=1e-10,
        atol=1e-12 * np.abs(model.gradient(points)).max(),
    )
    weights = rng.uniform(0, 2, size=(3, model.layout.n_local))
    prior, local, gradient = model.log_terms_and_gradient(points, weights)
    for same, expected in zip((prior, local), model.log_terms(points), strict=True):
        np.testing.assert_allclose(same, expected, rtol=1e-13)

    def weighted(points: np.ndarray) -> np.ndarray:
        prior, local = model.log_terms(points)
        return np.asarray(prior + (weights * local).sum(axis=1))

    for direction in unit_directions(model, 4, seed=5):
        slopes = [(weighted(points + h * direction) - weighted(points - h * direction)) / (2 * h) for h in (2e-3, 1e-3)]
        slope = (4 * slopes[1] - slopes[0]) / 3
        np.testing.assert_allclose(gradient @ direction, slope, atol=1e-6 * np.abs(gradient).max())
    z = points[:, : model.layout.n_global]
    np.testing.assert_allclose(model._global_term(z), prior, rtol=1e-13, atol=1e-13)


def test_weights_of_log_terms_have_one_shape() -> None:
    with pytest.raises(InputError, match=r"weights must have shape \(1, 20\), got \(3,\)"):
        WITH_TERMS["bundled irt"].log_terms_and_gradient(np.zeros(WITH_TERMS["bundled irt"].dim), np.ones(3))


def test_log_terms_of_float32_points_are_float64() -> None:
    model = WITH_TERMS["missing"]
    points = np.random.default_rng(3).normal(size=(2, model.dim)).astype(np.float32)
    for narrow, wide in zip(model.log_terms(points), model.log_terms(points.astype(float)), strict=True):
        np.testing.assert_array_equal(narrow, wide)


def test_where_there_are_no_log_terms_the_error_says_why() -> None:
    model = SMALL["volatility 2"]
    assert not model.has_log_terms
    assert len(WITH_TERMS) >= 9
    with pytest.raises(InputError, match=r"StochasticVolatility: there are no log terms, .* the time before"):
        model.log_terms(np.zeros((1, model.dim)))
    with pytest.raises(InputError, match=r"LogDensity.*does not define"):
        tv.models.LogDensity(lambda p: (-p.sum(axis=1), -np.ones_like(p)), tv.Layout(1, 0, 0)).log_terms(np.zeros(1))


# ---- engines ----------------------------------------------------------------------------------------------
class Wider(RobustPoisson):
    """A subclass with another density: nothing of its parent's in Julia may stand for it."""

    def _log_density(self, points: Any) -> Any:
        return super()._log_density(points) - 1.0


def test_a_subclass_does_not_pass_for_its_parent() -> None:
    parent, child = RobustPoisson(X, Y), Wider(X, Y)
    assert (parent.engines, child.engines) == ({"numpy", "julia"}, {"numpy"})
    assert child.name == child.label == "Wider"
    assert "Wider, a model of your own" in child.description
    assert not child.has_log_terms
    with pytest.raises(InputError, match=r"Wider.*no log terms"):
        child.log_terms(np.zeros((1, child.dim)))
    with pytest.raises(EngineError, match="Wider"):
        tv.sample_nuts(child, 10, sampler="turing")


def test_models_say_where_they_run() -> None:
    function = tv.models.LogDensity(lambda p: (-p.sum(axis=1), -np.ones_like(p)), tv.Layout(1, 0, 0))
    assert (function.engines, function.devices) == ({"numpy"}, {"cpu", "cuda"})
    assert "Python function" in function.description
    turing = tv.models.Turing.__new__(tv.models.Turing)  # without Julia
    assert (turing.engines, turing.devices) == ({"julia"}, {"cpu"})
    for model in SMALL.values():
        assert (model.engines, model.devices) == ({"numpy", "julia"}, {"cpu", "cuda"})
        assert model.description == f"tv.models.{type(model).__name__}"


def test_the_optimum_is_known_of_the_synthetic_target_alone() -> None:
    location, scale = WITH_TERMS["gaussian"].optimum()
    np.testing.assert_array_equal(location, np.full(20, 1.5))
    assert scale**2 == pytest.approx(0.3, rel=1e-15)
    assert WITH_TERMS["bundled poisson"].optimum() is None


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


def test_a_model_without_a_layout_is_told_what_to_add() -> None:
    class Bare(tv.models.Model):
        def _log_density_and_gradient(self, points: Any) -> Any:
            return -0.5 * (points**2).sum(axis=1), -points

    with pytest.raises(InputError, match=r"Bare, a model of your own needs `layout = tv\.Layout"):
        tv.fit(Bare(), engine="numpy", progress=False)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda density, slope: density, "two arrays"),
        (lambda density, slope: (density[:, None], slope), r"log density of shape \(1,\) .*returned \(1, 1\)"),
        (lambda density, slope: (density, slope.T), r"gradient of shape \(1, 5\) .*returned \(5, 1\)"),
        (lambda density, slope: (density, slope * 1j), "gradient of dtype complex"),
    ],
)
def test_a_model_that_returns_something_else_is_refused_before_a_run(returned: Any, words: str) -> None:
    class Wrong(Schools):
        def _log_density_and_gradient(self, points: np.ndarray) -> Any:
            return returned(*super()._log_density_and_gradient(points))

    with pytest.raises(InputError, match=f"Wrong: _log_density_and_gradient .*{words}"):
        tv.fit(Wrong(SEEN), n_iterations=10, progress=False)


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
