"""What a user's own classes carry with them: it tells one object from another in checkpoints, files and sweeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets import quick_fit as fit

import pyturingvi as tv
from pyturingvi.engines.selection import obstacle
from pyturingvi.errors import InputError, OutputError
from pyturingvi.optimize.read_rule import rule_from_config
from pyturingvi.settings import Settings, model_digest
from pyturingvi.support.archive import read_archive, write_archive

DATA = np.random.default_rng(0).standard_normal((20, 2)), np.random.default_rng(1).poisson(2, 20)


class Wide(tv.models.RobustPoisson):
    """Its parent's density times a factor, which its parent's `get_state` does not know."""

    factor = 1.0

    def _log_density_and_gradient(self, points: Any) -> Any:
        density, slope = super()._log_density_and_gradient(points)
        return density * self.factor, slope * self.factor


@pytest.fixture
def two() -> tuple[Wide, Wide]:
    one, other = Wide(*DATA), Wide(*DATA)
    other.factor = 5.0
    return one, other


@pytest.fixture(autouse=True)
def _forget() -> Any:
    registries: list[Any] = [tv.models.Model.registry, tv.optimize.Rule.registry, tv.families.Family.registry]
    before = [dict(known) for known in registries]
    yield
    for known, classes in zip(registries, before, strict=True):
        known.clear()
        known.update(classes)


def test_models_whose_parent_tells_their_state_are_told_apart(tmp_path: Path, two: tuple[Wide, Wide]) -> None:
    one, other = two
    assert model_digest(one) != model_digest(other) != model_digest(tv.models.RobustPoisson(*DATA))
    tv.register(Wide)
    path = fit(other, n_iterations=5).save(tmp_path / "wide.npz")
    with pytest.raises(InputError, match="holds no model"):
        tv.load_fit(path)
    with pytest.raises(InputError, match="is of another model"):
        tv.load_fit(path, model=one)
    assert tv.load_fit(path, model=other).model is other
    fit(one, n_iterations=5, checkpoint=tmp_path / "run.npz")
    with pytest.raises(InputError, match="belongs to another fit"):
        fit(other, n_iterations=5, checkpoint=tmp_path / "run.npz")


def test_a_sweep_runs_the_models_that_it_was_given(tmp_path: Path, two: tuple[Wide, Wide]) -> None:
    """In processes that have never seen the class."""
    tv.register(Wide)
    grid = {"model": list(two), "stepsize": 1e-3, "n_iterations": 10, "engine": "numpy", "elbo_samples": 32}
    table = tv.sweep(grid, out=tmp_path, n_workers=1, progress=False).frame()
    assert table["status"].tolist() == ["completed"] * 2
    direct = [fit(model, n_iterations=10, elbo_samples=32, elbo_every=100).elbo["elbo"].iloc[-1] for model in two]
    np.testing.assert_allclose(np.sort(table["elbo"]), np.sort(direct), rtol=1e-12)


class Rate(type(tv.step_decay(1e-3))):  # type: ignore[misc]
    def __call__(self, iteration: int) -> float:
        return 1e-4


class Slow(type(tv.Adam(1e-3).schedule)):  # type: ignore[misc]
    """Of a fixed stepsize."""

    def __call__(self, iteration: int) -> float:
        return 1e-4


class Last(tv.PolynomialAveraging):
    def update(self, average: Any, work: Any, iteration: int) -> None:
        average[...] = work


def test_schedules_and_averages_of_ones_own_do_not_run_as_their_parents() -> None:
    model, own, fixed = tv.models.RobustPoisson(*DATA), Rate(1e-3, 0.5, 10), Slow(1e-3)
    usual = Settings.of(stepsize=1e-3, averaging=Last())
    for settings in (Settings.of(optimizer=tv.SGD(own)), Settings.of(optimizer=tv.SGD(fixed)), usual):
        assert "your own class" in str(obstacle("julia", model, settings))
        assert "class" in str(settings.describe())
    for one in (own, fixed):
        slow = fit(model, optimizer=tv.SGD(one), n_iterations=5).params
        np.testing.assert_array_equal(slow, fit(model, optimizer=tv.SGD(1e-4), n_iterations=5).params)
        with pytest.raises(InputError, match=r"the stepsize is the class .*(Rate|Slow), which is not rebuilt"):
            rule_from_config(tv.SGD(one).config())
    last = fit(model, averaging=Last(), n_iterations=5).params
    np.testing.assert_array_equal(last, fit(model, n_iterations=5).params)


def test_one_method_is_enough_for_another_density_than_the_parents() -> None:
    class Twice(tv.models.IsotropicGaussian):
        def _log_density_and_gradient(self, points: Any) -> Any:
            density, slope = super()._log_density_and_gradient(points)
            return 2 * density, 2 * slope

    one, twice, points = tv.models.IsotropicGaussian(1), Twice(1), np.random.default_rng(2).normal(size=(3, 8))
    np.testing.assert_array_equal(twice.log_density(points), 2 * one.log_density(points))
    np.testing.assert_array_equal(twice.gradient(points), 2 * one.gradient(points))


class Own(tv.optimize.Rule):
    ends_by_itself = True

    def start(self, bound: Any, workers: Any) -> Any:
        raise AssertionError


class Stepped(tv.NaturalGradient):
    def start(self, bound: Any, workers: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Own(1e-2), r"Own\.ends_by_itself is True, but only tv\.NaturalGradient can end by itself"),
        (Stepped(), r"the start of Stepped would never be called, .* a subclass of tv\.optimize\.Rule"),
    ],
)
def test_a_rule_that_would_not_run_as_it_says_is_refused(rule: tv.optimize.Rule, words: str) -> None:
    with pytest.raises(InputError, match=f"^optimizer: {words}"):
        fit(tv.models.RobustPoisson(*DATA), optimizer=rule)


def test_a_subclass_of_a_turing_model_runs_nowhere() -> None:
    class Mine(tv.models.Turing):
        pass

    mine = Mine.__new__(Mine)
    assert not mine.engines
    assert "Mine, a model of your own" in mine.description


@dataclass(frozen=True)
class Weighted(tv.optimize.ElementwiseRule):
    weights: Any = None

    def move(self, xp: Any, x: Any, g: Any, slots: Any, scratch: Any, constants: Any) -> None:
        x -= constants[0] * g


class Plain(tv.optimize.ElementwiseRule):
    """No dataclass: its decay is an attribute like any other."""

    def __init__(self, stepsize: float, decay: float) -> None:
        super().__init__(stepsize)
        object.__setattr__(self, "decay", decay)

    move = Weighted.move


def test_rules_of_unlike_state_are_told_apart(tmp_path: Path) -> None:
    model, weights = tv.models.RobustPoisson(*DATA), np.ones(3000)
    changed = np.where(np.arange(3000) == 2000, 2.0, weights)
    pairs: list[tuple[Any, Any]] = [
        (Weighted(1e-3, weights), Weighted(1e-3, changed)),
        (Plain(1e-3, 0.1), Plain(1e-3, 1.0)),
    ]
    for k, (one, other) in enumerate(pairs):
        path = tmp_path / f"run{k}.npz"
        fit(model, optimizer=one, n_iterations=5, checkpoint=path)
        with pytest.raises(InputError, match="optimizer was"):
            fit(model, optimizer=other, n_iterations=5, checkpoint=path)
    tv.register(Weighted)
    with pytest.raises(InputError, match="settings that files do not hold, such as arrays"):
        rule_from_config(Weighted(1e-3, weights).config())


def test_an_array_in_a_base_distribution_is_not_taken_for_a_setting() -> None:
    class Skewed(tv.families.BaseDistribution):
        kurtosis, entropy = 3.0, 0.0

        def __init__(self, weights: np.ndarray) -> None:
            self.weights = weights

        def fill(self, generator: Any, out: Any) -> None:
            generator.standard_normal(out=out)

        def log_density(self, u: Any) -> Any:
            return -0.5 * u * u

    config = tv.MeanField(base=Skewed(np.ones(3))).config()
    assert config != tv.MeanField(base=Skewed(np.zeros(3))).config()
    with pytest.raises(InputError, match="settings that files do not hold, such as arrays"):
        tv.families.family_from_config(config)


def test_an_optimum_is_not_inherited() -> None:
    class Moved(tv.models.IsotropicGaussian):
        def _log_density_and_gradient(self, points: Any) -> Any:
            return -0.5 * (points**2).sum(axis=1), -points

    with pytest.raises(InputError, match="stop_within: Moved does not know its optimum"):
        fit(Moved(2), stop_within=1.0)


def test_a_sweep_refuses_an_unknown_optimum_before_it_works(tmp_path: Path) -> None:
    grid = {"model": tv.models.RobustPoisson(*DATA), "stepsize": 1e-3, "stop_within": 1.0}
    with pytest.raises(InputError, match="stop_within: rpoisson does not know its optimum"):
        tv.sweep(grid, out=tmp_path / "out", progress=False)


def test_a_run_that_arrived_stays_there_when_it_is_resumed(tmp_path: Path) -> None:
    model, path = tv.models.IsotropicGaussian(2), tmp_path / "run.npz"
    options: dict[str, Any] = {"optimizer": tv.Adam(0.1), "n_iterations": 2000, "stop_within": 1.0, "checkpoint": path}
    first, again = (fit(model, **options) for _ in range(2))
    assert first.arrived
    assert again.arrived
    assert first.n_updates == again.n_updates < 2000
    assert again.message == first.message
    np.testing.assert_array_equal(first.params, again.params)


class Counting(tv.optimize.RuleState):
    value: Any = np.float32(0.5)

    def step(self, work: Any, batch: tv.optimize.Batch, iteration: int) -> bool:
        self.scalars["value"] = self.value
        return True


@dataclass(frozen=True)
class CountingRule(tv.optimize.Rule):
    state: Any = Counting

    def start(self, bound: Any, workers: Any) -> tv.optimize.RuleState:
        return Counting(self, bound)


def test_an_odd_scalar_does_not_cost_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = tv.models.RobustPoisson(*DATA), tmp_path / "run.npz"
    fit(model, optimizer=CountingRule(1e-3), n_iterations=3, checkpoint=path)
    assert read_archive(path, "checkpoint", "test")[0]["scalars"] == {"value": 0.5}
    monkeypatch.setattr(Counting, "value", np.ones(2))
    with pytest.warns(RuntimeWarning, match="cannot write"):
        assert fit(model, optimizer=CountingRule(1e-3), n_iterations=5, checkpoint=path).n_updates == 5


@pytest.fixture(scope="module")
def whole_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Header and arrays of one after three updates."""
    path = tmp_path_factory.mktemp("whole") / "run.npz"
    fit(tv.models.RobustPoisson(*DATA), n_iterations=3, checkpoint=path)
    return read_archive(path, "checkpoint", "test")


@pytest.mark.parametrize(
    ("header", "arrays"),
    [
        ({"spec": 3}, {}),
        ({"iteration": None}, {}),
        ({"iteration": -1}, {}),
        ({"scalars": None}, {}),
        ({"scalars": {"a": "x"}}, {}),
        ({"seconds": "x"}, {}),
        ({}, {"params": np.zeros(3)}),
        ({}, {"slot0": np.array(0.0)}),
        ({}, {"slot1": np.array(["a"] * 3)}),
        ({}, {"rows": np.array("x")}),
        ({}, {"slot7": np.zeros(3)}),
    ],
    ids=str,
)
def test_a_damaged_checkpoint_is_told(
    tmp_path: Path, whole_checkpoint: Any, header: dict[str, Any], arrays: dict[str, Any]
) -> None:
    model, path = tv.models.RobustPoisson(*DATA), tmp_path / "run.npz"
    kept, vectors = whole_checkpoint
    write_archive(path, {**kept, **header}, {**vectors, **arrays})
    with pytest.raises((InputError, OutputError), match=r"checkpoint: '.*run\.npz'"):
        fit(model, n_iterations=5, checkpoint=path)


def test_a_family_of_ones_own_goes_on_from_its_own_fit() -> None:
    class Same(tv.MeanField):
        pass

    model = tv.models.RobustPoisson(*DATA)
    first = fit(model, Same(), n_iterations=5)
    bound, other = (Same().bind(model.layout) for _ in range(2))
    for embed in (bound.embed, super(type(bound).__mro__[1], bound).embed):  # its own, and that of any family
        np.testing.assert_array_equal(embed(other, first.params), first.params)
    with pytest.raises(InputError, match=r"^init: .* cannot go on .* It is of the structured family"):
        tv.families.BoundFamily.embed(bound, tv.Structured().bind(model.layout), first.params)
    assert fit(model, Same(), init=first, n_iterations=1).spec.init.keys() == {"params"}


@pytest.mark.parametrize("name", ["../x", "a/b", "a\0b", "x" * 65, "", ".hidden"])
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="files are named by it"):
        tv.register(type("Odd", (tv.MeanField,), {"name": name}))


def test_a_class_that_replaces_another_one_is_told() -> None:
    def make() -> type:
        class Twin(tv.MeanField):
            pass

        return Twin

    tv.register(make())
    with pytest.warns(UserWarning, match=r"another class .*Twin takes the first one's place"):
        tv.register(make())


@pytest.mark.parametrize("value", [np.float16(2), np.float32(2), np.int8(2)])
def test_small_numpy_numbers_are_whole_numbers(value: Any) -> None:
    assert Settings(seed=value, n_samples=value).seed == 2


@pytest.mark.parametrize("name", ["init_scale", "stop_within"])
def test_numbers_too_large_for_a_float_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be a finite number above 0"):
        Settings.of(stepsize=1e-3, **{name: 10**400})
