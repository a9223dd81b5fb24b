"""Classes of a user's own, written as a user would, and what passes must run: never a parent, never a base class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import GaussianTarget, quick_fit

import pyturingvi as tv
from pyturingvi.engines.selection import obstacle
from pyturingvi.errors import EngineError, InputError, OutputError
from pyturingvi.optimize.read_rule import rule_from_config
from pyturingvi.settings import Settings
from pyturingvi.support.archive import read_archive, write_archive
from pyturingvi.support.arguments import LARGEST_SEED
from pyturingvi.sweeps.grid import read_grid


def quick(*arguments: Any, **settings: Any) -> tv.Fit:
    return quick_fit(*arguments, **{"engine": "numpy", "elbo_every": 10_000, "elbo_samples": 512, **settings})


# ---- a family: low rank plus diagonal, with more noise than coordinates ---------------------------------------
@dataclass(frozen=True)
class LowRank(tv.families.Family):
    rank: int = 1

    def n_params(self, layout: tv.Layout) -> int:
        return layout.dim * (2 + self.rank)

    def bind(self, layout: tv.Layout, dtype: Any = np.float64, xp: ModuleType = np) -> tv.families.BoundFamily:
        return BoundLowRank(self, layout, dtype, xp)


class BoundLowRank(tv.families.BoundFamily):
    """x = m + exp(s) * u[:d] + V u[d:]."""

    def __init__(self, family: LowRank, layout: tv.Layout, dtype: Any, xp: ModuleType) -> None:
        super().__init__(family, layout, dtype, xp)
        self.noise_dim = layout.dim + family.rank

    def parts(self, work: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        d = self.layout.dim
        return work[:d], np.exp(work[d : 2 * d]), work[2 * d :].reshape(d, -1)

    def transform(self, work: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
        m, s, v = self.parts(work)
        out[:] = m + s * noise[:, : m.size] + noise[:, m.size :] @ v.T

    def pullback(self, work: Any, noise: Any, points: Any, gradient: Any, out: Any) -> None:
        m, s, _ = self.parts(work)
        diagonal = (gradient * noise[:, : m.size]).sum(axis=0) * s
        out[:] = np.concatenate([gradient.sum(axis=0), diagonal, (gradient.T @ noise[:, m.size :]).ravel()])

    def covariance(self, work: np.ndarray) -> np.ndarray:
        _, s, v = self.parts(work)
        return np.diag(s**2) + v @ v.T

    def entropy(self, work: np.ndarray) -> float:
        return 0.5 * float(np.linalg.slogdet(2 * math.pi * math.e * self.covariance(work))[1])

    def subtract_entropy_gradient(self, work: np.ndarray, out: np.ndarray) -> bool:
        (m, s, v), inverse = self.parts(work), np.linalg.inv(self.covariance(work))
        out[m.size :] -= np.concatenate([np.diag(inverse) * s**2, (inverse @ v).ravel()])
        return bool(np.isfinite(inverse).all())

    def log_q(self, work: np.ndarray, points: np.ndarray) -> np.ndarray:
        return np.atleast_1d(stats.multivariate_normal(work[: self.layout.dim], self.covariance(work)).logpdf(points))

    def initial_flat(self, location: np.ndarray, scale: float) -> np.ndarray:
        d = self.layout.dim
        loadings = 0.1 * scale * np.random.default_rng(0).standard_normal(self.n_params - 2 * d)
        return np.concatenate([location, np.full(d, math.log(scale)), loadings])


@pytest.fixture
def low_rank_target() -> GaussianTarget:
    """A normal whose covariance is a diagonal and one outer product: a member of the family."""
    loading = np.array([0.8, -0.5, 0.6, 0.4])
    covariance = np.diag([0.3, 0.5, 0.2, 0.4]) + np.outer(loading, loading)
    return GaussianTarget(np.array([1.0, -1.0, 0.5, 2.0]), np.linalg.inv(covariance), tv.Layout(2, 2, 1))


def test_a_family_of_ones_own_finds_the_posterior_that_it_holds(low_rank_target: GaussianTarget) -> None:
    target = low_rank_target
    rule = tv.Adam(tv.step_decay(0.02, 0.1, 1500))
    fit = quick(target.model, LowRank(), rule, n_iterations=4500, n_samples=32)
    covariance = LowRank().bind(target.layout).covariance(fit.params)  # type: ignore[attr-defined]
    np.testing.assert_allclose(fit.location, target.mean, atol=0.05)
    np.testing.assert_allclose(covariance, target.covariance, atol=0.05)
    last = fit.elbo.iloc[-1]  # of an evidence of 1, within the noise of log p
    assert abs(last["elbo"]) < 4 * last["std_error"] + 0.01
    draws = fit.sample_unconstrained(20_000)
    np.testing.assert_allclose(np.cov(draws.T), target.covariance, atol=0.08)
    np.testing.assert_allclose(fit.summary(20_000)["mean"], target.mean[:2], atol=0.08)
    normal = stats.multivariate_normal(fit.location, covariance)
    assert fit.log_q(target.mean[None]) == pytest.approx(normal.logpdf(target.mean))
    with pytest.raises(InputError, match="LowRank family has no scale matrix"):
        _ = fit.scale
    with pytest.raises(InputError, match="LowRank family has no proximal operator"):
        quick(target.model, LowRank(), tv.ProximalSGD(1e-3), n_iterations=1)


def test_noise_and_checkpoints_go_with_the_families_own_noise(tmp_path: Path, low_rank_target: GaussianTarget) -> None:
    arguments, path = (low_rank_target.model, LowRank()), tmp_path / "run.npz"
    noise = np.random.default_rng(1).standard_normal((30, 8, 5))
    given = quick(*arguments, n_iterations=30, noise=noise)
    quick(*arguments, n_iterations=20, checkpoint=path)
    straight = quick(*arguments, n_iterations=30)
    np.testing.assert_array_equal(quick(*arguments, n_iterations=30, checkpoint=path).params, straight.params)
    assert not np.array_equal(given.params, straight.params)
    with pytest.raises(InputError, match=r"noise must have shape .*\(30, 8, 5\), got \(30, 8, 4\)"):
        quick(*arguments, n_iterations=30, noise=noise[:, :, :4])


# ---- rules ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Momentum(tv.optimize.ElementwiseRule):
    decay: float = 0.9
    n_slots = 1

    def move(self, xp: Any, x: Any, g: Any, slots: Any, scratch: Any, constants: Any) -> None:
        (velocity,) = slots
        velocity *= self.decay
        velocity += g
        x -= constants[0] * velocity


class Frozen(tv.Adam):
    """Adam that does not move: to be told from its parent."""

    def move(self, xp: Any, x: Any, g: Any, slots: Any, scratch: Any, constants: Any) -> None:
        pass


@dataclass(frozen=True)
class Normalized(tv.optimize.Rule):
    """Steps on the location by the mean slope alone, with its running length as state: no pullback is asked for."""

    def start(self, bound: tv.families.BoundFamily, workers: Any) -> tv.optimize.RuleState:
        return NormalizedState(self, bound)


class NormalizedState(tv.optimize.RuleState):
    def step(self, work: np.ndarray, batch: tv.optimize.Batch, iteration: int) -> bool:
        slope = batch.slopes.mean(axis=0)
        length = float(np.sqrt(slope @ slope))
        self.scalars["length"] = 0.9 * self.scalars.get("length", length) + 0.1 * length
        work[: slope.size] += self.schedule(iteration) * slope / self.scalars["length"]
        return math.isfinite(length)


def test_a_rule_of_ones_own_runs_and_finds_the_posterior(gaussian_target: GaussianTarget) -> None:
    rule = Momentum(tv.step_decay(3e-3, 0.2, 1500))
    fit = quick(gaussian_target.model, "full-rank", rule, n_iterations=4500, n_samples=32)
    scale = fit.scale.toarray()
    np.testing.assert_allclose(fit.location, gaussian_target.mean, atol=0.1)
    covariance = gaussian_target.covariance
    np.testing.assert_allclose(scale @ scale.T, covariance, atol=0.15 * covariance.max())


def test_a_subclass_of_adam_does_not_run_as_adam(poisson: tv.models.RobustPoisson) -> None:
    still = quick(poisson, "mean-field", Frozen(1e-2), n_iterations=20)
    start = tv.MeanField().bind(poisson.layout).initial_flat(np.zeros(poisson.dim), 0.1)
    np.testing.assert_array_equal(still.params, start)
    assert still.spec.optimizer["rule"] == "Frozen"
    assert still.spec.optimizer["class"].endswith("test_open_core.Frozen")


def test_a_rules_scalars_are_kept_in_a_checkpoint(tmp_path: Path, gaussian_target: GaussianTarget) -> None:
    arguments = (gaussian_target.model, "mean-field", Normalized(0.1))
    quick(*arguments, n_iterations=15, checkpoint=tmp_path / "run.npz")
    resumed = quick(*arguments, n_iterations=40, checkpoint=tmp_path / "run.npz")
    np.testing.assert_array_equal(resumed.params, quick(*arguments, n_iterations=40).params)


def test_a_checkpoint_of_a_parent_is_not_gone_on_with(tmp_path: Path, poisson: tv.models.RobustPoisson) -> None:
    path = tmp_path / "run.npz"
    quick(poisson, "mean-field", tv.Adam(1e-2), n_iterations=5, checkpoint=path)
    with pytest.raises(InputError, match=r"belongs to another fit \(optimizer was .*adam.*, is .*Frozen"):
        quick(poisson, "mean-field", Frozen(1e-2), n_iterations=5, checkpoint=path)


# ---- operators ------------------------------------------------------------------------------------------------
def test_any_rule_takes_an_operator(poisson: tv.models.RobustPoisson) -> None:
    options = {"n_iterations": 40, "seed": 2}
    pairs = [
        (tv.SGD(1e-3, operator=tv.optimize.ProximalEntropy()), tv.ProximalSGD(1e-3)),
        (tv.SGD(1e-3, operator=tv.optimize.ScaleProjection(0.05)), tv.ProjectedSGD(1e-3, min_scale=0.05)),
    ]
    for one, other in pairs:
        found, expected = (quick(poisson, "structured", rule, **options).params for rule in (one, other))
        np.testing.assert_array_equal(found, expected)
        assert rule_from_config(one.config()) == one
    projected = tv.Adam(0.2, operator=tv.optimize.ScaleProjection(0.3))
    fit = quick(poisson, "mean-field", projected, **options)
    assert fit.params[poisson.dim :].min() == 0.3
    assert quick(poisson, "mean-field", tv.Adam(0.2), **options).params[poisson.dim :].min() < 0.3


# ---- base distributions -----------------------------------------------------------------------------------------
class Uniform(tv.families.BaseDistribution):
    """On (-sqrt 3, sqrt 3): mean 0, variance 1."""

    @property
    def kurtosis(self) -> float:
        return 1.8

    @property
    def entropy(self) -> float:
        return math.log(2 * math.sqrt(3))

    def fill(self, generator: Any, out: np.ndarray) -> None:
        out[...] = generator.uniform(-math.sqrt(3), math.sqrt(3), out.shape)

    def log_density(self, u: np.ndarray) -> np.ndarray:
        return np.where(abs(u) <= math.sqrt(3), -self.entropy, -np.inf)


class Skewless(tv.families.base_distributions.Laplace):
    """A Laplace by another name, which must not be taken for its parent."""


def test_a_base_distribution_of_ones_own_runs(gaussian_target: GaussianTarget) -> None:
    fit = quick(gaussian_target.model, tv.MeanField(base=Uniform()), n_iterations=300)
    draws = (fit.sample_unconstrained(5000) - fit.location) / fit.scale.diagonal()
    assert abs(draws).max() <= math.sqrt(3) + 1e-9
    assert stats.kstest(draws[:, 0], stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)).cdf).pvalue > 1e-3
    assert fit.spec.family["base"] == "Uniform"


def test_a_base_distribution_without_a_slope_takes_no_natural_gradients(gaussian_target: GaussianTarget) -> None:
    with pytest.raises(InputError, match=r"base: Uniform has the Fisher information .*pass optimizer=tv\.Adam\(1e-3\)"):
        tv.fit(gaussian_target.model, tv.MeanField(base=Uniform()), progress=False)


# ---- what runs where --------------------------------------------------------------------------------------------
class Shifted(tv.models.RobustPoisson):
    """Another density than its parent's."""

    def _log_density_and_gradient(self, points: Any) -> Any:
        value, slope = super()._log_density_and_gradient(points)
        return value - 100 * points[:, 0], slope - 100 * np.eye(1, points.shape[1])


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": Frozen(1e-2)}, {"family": LowRank()}, {"family": tv.MeanField(base=Skewless())}, {"model": Shifted}],
    ids=["rule", "family", "base", "model"],
)
def test_julia_never_runs_a_parent_and_auto_takes_numpy(changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((20, 2)), rng.poisson(2, 20)
    options = {"optimizer": tv.Adam(1e-3), **changes}
    model = options.pop("model", tv.models.RobustPoisson)(*data)
    own = model if "model" in changes else next(iter(changes.values()))
    name = type(own).__name__ if "family" not in options else ""
    assert obstacle("numpy", model, Settings.of(**options)) is None
    assert obstacle("julia", model, Settings.of(**options)) is not None
    assert tv.fit(model, n_iterations=2, progress=False, **options).engine == "numpy"
    with pytest.raises(EngineError, match=rf"engine='julia' cannot run .*{name}.*; use engine='numpy'"):
        tv.fit(model, n_iterations=2, progress=False, engine="julia", **options)


def test_where_no_engine_runs_both_the_message_names_both() -> None:
    turing = tv.models.Turing.__new__(tv.models.Turing)
    turing.layout = tv.Layout(2, 0, 0)
    with pytest.raises(EngineError, match=r"No engine runs tv\.models\.Turing.* with your own class .*Frozen"):
        tv.fit(turing, "mean-field", Frozen(1e-2), progress=False)


# ---- what can be rebuilt --------------------------------------------------------------------------------------
@pytest.fixture
def registered() -> Iterator[None]:
    """Whatever a test registers is forgotten after it."""
    kinds: list[Any] = [tv.families.Family, tv.families.BaseDistribution, tv.optimize.Rule]
    before = [dict(kind.registry) for kind in kinds]
    yield
    for kind, classes in zip(kinds, before, strict=True):
        kind.registry.clear()
        kind.registry.update(classes)


@pytest.mark.parametrize(
    ("family", "optimizer", "cls"),
    [
        (LowRank(2), tv.Adam(1e-2), LowRank),
        ("mean-field", Momentum(1e-3, decay=0.5), Momentum),
        (tv.MeanField(base=Uniform()), tv.Adam(1e-2), Uniform),
    ],
    ids=["family", "rule", "base"],
)
@pytest.mark.usefixtures("registered")
def test_a_file_names_the_class_and_is_read_once_it_is_registered(
    tmp_path: Path, family: Any, optimizer: Any, cls: type, isotropic: tv.models.Model
) -> None:
    fit = quick(isotropic, family, optimizer, n_iterations=3)
    path = fit.save(tmp_path / "own.npz")
    if cls is not Momentum:  # a fit that is read needs its family again, but not its rule
        words = rf"own\.npz.*is the class .*test_open_core\.{cls.__name__}.*tv\.register"
        with pytest.raises(OutputError, match=words):
            tv.load_fit(path)
    assert tv.register(cls) is cls
    again = tv.load_fit(path)
    np.testing.assert_array_equal(again.params, fit.params)
    assert type(again.family) is type(fit.family)
    assert again.family.config() == fit.family.config() | again.family.config()
    assert rule_from_config(again.spec.optimizer) == optimizer
    registered_fit = quick(isotropic, family, optimizer, n_iterations=3)
    assert "class" not in {**registered_fit.spec.family, **registered_fit.spec.optimizer}


def test_a_model_of_ones_own_is_given_to_load_fit(tmp_path: Path, isotropic: tv.models.Model) -> None:
    class Own(tv.models.Model):
        layout = tv.Layout(2, 0, 0)

        def _log_density_and_gradient(self, points: Any) -> Any:
            return -0.5 * (points**2).sum(axis=1), -points

    fit = quick(Own(), n_iterations=3)
    path = fit.save(tmp_path / "own.npz")
    with pytest.raises(InputError, match=r"own\.npz' holds no model; pass the fitted 'Own' as model="):
        tv.load_fit(path)
    with pytest.raises(InputError, match=r"is of another model; pass the fitted 'Own'"):
        tv.load_fit(path, model=isotropic)
    np.testing.assert_array_equal(tv.load_fit(path, model=Own()).params, fit.params)


@pytest.mark.usefixtures("registered")
def test_what_cannot_be_registered_is_told() -> None:
    class Adam(tv.Adam):
        name = "adam"

    with pytest.raises(InputError, match=r"the rule 'adam' is pyturingvi\.optimize\.rules\.Adam already"):
        tv.register(Adam)
    with pytest.raises(InputError, match="lacks bind"):
        tv.register(type("Half", (tv.families.Family,), {"n_params": lambda self, layout: 1}))
    for nothing in (int, 3, "adam"):
        with pytest.raises(InputError, match="register takes a class of"):
            tv.register(nothing)  # type: ignore[type-var]


# ---- saved fits of another version ------------------------------------------------------------------------------
OLD = Path(__file__).parent / "files" / "fit_of_version_0.1.0.npz"  # written at commit ed30a4c


def test_a_fit_of_the_first_version_is_read() -> None:
    fit = tv.load_fit(OLD)
    assert (fit.status, fit.n_updates, fit.versions["pyturingvi"]) == ("completed", 60, "0.1.0")
    assert fit.family == tv.Structured(base=("student_t", 8))
    assert rule_from_config(fit.spec.optimizer) == tv.Adam(tv.step_decay(1e-2, every=50))
    assert fit.elbo["iteration"].tolist() == [20, 40, 60]
    # as that version printed it
    np.testing.assert_allclose(fit.params[:4], [-0.36176987, -0.38882493, -0.36350204, 0.13166448], rtol=1e-7)
    np.testing.assert_allclose(fit.summary(200)["mean"].iloc[:3], [0.809021, 0.748438, 0.724095], rtol=1e-5)
    # and the same settings give the same fit today
    rule, averaging = rule_from_config(fit.spec.optimizer), tv.PolynomialAveraging(2.0)
    sizes = {"n_iterations": 60, "elbo_every": 20, "elbo_samples": 32}
    again = quick_fit(fit.model, fit.family, rule, averaging=averaging, seed=4, engine="numpy", **sizes)
    assert again.spec == fit.spec
    np.testing.assert_allclose(again.params, fit.params, rtol=1e-9)


REFINED = OLD.with_name("refined_fit_of_version_0.1.0.npz")  # written at commit d03d4a9


def test_a_refined_fit_by_natural_gradients_is_read() -> None:
    """Its numbers as that version printed them."""
    fit = tv.load_fit(REFINED)
    assert (fit.status, fit.n_updates, fit.warnings, fit.astray) == ("converged", 110, [], False)
    assert rule_from_config(fit.spec.optimizer) == tv.NaturalGradient()
    assert fit.refined is not None
    assert (fit.refined.n_steps, len(fit.refined.draws), fit.refined.weighted) == (110, 450, True)
    np.testing.assert_allclose(fit.params[:4], [-0.88426849, -0.34488503, -1.27878381, 0.12847581], rtol=1e-7)
    np.testing.assert_allclose(fit.refined.log_evidence, -42.739329430325654, rtol=1e-12)
    np.testing.assert_allclose(fit.summary(200)["mean"].iloc[:3], [0.614552, 0.839935, 0.362572], rtol=1e-5)
    assert fit.sample(3)["eta"].shape == (3, 25)


def rewritten(path: Path, fit: Path = OLD, **changes: Any) -> Path:
    """An old fit with other settings in its header; those that are None are left out."""
    header, arrays = read_archive(fit, "fit", "test")
    spec = {**header["spec"], **changes}
    spec = {key: value for key, value in spec.items() if key not in changes or value is not None}
    write_archive(path, {**header, "spec": spec}, arrays)
    return path


def test_settings_that_a_file_lacks_have_their_defaults_and_later_ones_are_named(tmp_path: Path) -> None:
    less = tv.load_fit(rewritten(tmp_path / "less.npz", averaging=None, elbo_samples=None, device=None))
    assert (less.spec.averaging, less.spec.elbo_samples, less.spec.device) == (None, 1024, "cpu")
    with pytest.raises(OutputError, match=r"settings 'subsample', 'warm_up', which .* pyturingvi 0\.1\.0 wrote it"):
        tv.load_fit(rewritten(tmp_path / "more.npz", subsample=3, warm_up=True))
    family = {"family": "structured", "base": "gaussian", "shared": True}
    with pytest.raises(OutputError, match=r"structured family of this version cannot be made .* 'base', 'shared'"):
        tv.load_fit(rewritten(tmp_path / "family.npz", REFINED, family=family))


# ---- one settings object ----------------------------------------------------------------------------------------
@pytest.mark.usefixtures("without_processes")
def test_a_setting_has_the_same_bounds_everywhere(isotropic: tv.models.Model, tmp_path: Path) -> None:
    assert quick(isotropic, n_iterations=1, seed=2**70).spec.seed == 2**70
    grid = {"model": isotropic, "seed": 2**70, "n_iterations": 1, "engine": "numpy"}
    assert (tv.sweep(grid, out=tmp_path, progress=False).frame()["status"] == "completed").all()
    data = {"model": "rpoisson-small", "simulated": True}
    assert tv.load_problem("rpoisson-small", simulated=True, seed=2**70).layout.n_local == 1961
    assert len(read_grid({**data, "data_seed": 2**70})) == 1
    with pytest.raises(InputError, match=r"^seed must"):
        tv.load_problem("rpoisson-small", seed=LARGEST_SEED + 1)
    with pytest.raises(InputError, match=r"^data_seed must"):
        read_grid({**data, "data_seed": LARGEST_SEED + 1})


def test_arguments_after_the_optimizer_are_named(isotropic: tv.models.Model) -> None:
    with pytest.raises(TypeError, match="positional"):
        tv.fit(isotropic, "mean-field", tv.Adam(1e-2), 100)  # type: ignore[misc]


def test_draws_that_do_not_fit_in_memory_are_refused_before_they_are_made(isotropic: tv.models.Model) -> None:
    fit = quick(isotropic, n_iterations=1)
    words = r"sample with n=1,000,000,000,000 at d=.* Nothing was allocated"
    with pytest.raises(tv.errors.MemoryLimitError, match=words):
        fit.sample(10**12)
    with pytest.raises(tv.errors.MemoryLimitError, match="Nothing was allocated"):
        fit.summary(10**12)
    with pytest.raises(tv.errors.MemoryLimitError, match="diagnose with n=1,000,000,000,000"):
        fit.diagnose(10**12)


def test_arviz_is_told_how_the_fit_ended(isotropic: tv.models.Model) -> None:
    fit = quick(isotropic, n_iterations=3, callback=lambda iteration, elbo: True, elbo_every=1)
    attrs = fit.to_arviz(10)["posterior"].attrs
    assert (attrs["status"], attrs["n_updates"], attrs["family"]) == ("interrupted", 1, "structured")
    assert attrs["elbo"] == fit.elbo["elbo"].iloc[-1]


def test_fits_run_without_standard_error(
    isotropic: tv.models.Model, executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under pythonw, or in a service."""
    monkeypatch.setattr("sys.stderr", None)
    monkeypatch.setattr("sys.stdout", None)
    assert tv.fit(isotropic, n_iterations=2, elbo_samples=4).n_updates == 2
    assert tv.sweep({"model": isotropic, "n_iterations": 2}, executor, out=tmp_path).status == "completed"
