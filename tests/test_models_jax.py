"""JAX functions as models: the density to the last digits, JAX's own settings left alone, what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_checks import assert_gradient_is_the_slope, assert_round_trip
from scipy import stats

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError, OutputError
from pyturingvi.layout import Layout
from pyturingvi.models.jax_batches import Batched, batch_size, coarse_size
from pyturingvi.settings import model_digest

Y, SIGMA = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SHAPES = {"mu": 0.0, "log_tau": 0.0, "theta": np.zeros(8)}


def eight_schools(p: dict[str, Any]) -> Any:
    """Centred: mu ~ N(0, 5), tau ~ half-Cauchy(5) through its logarithm, theta ~ N(mu, tau), y ~ N(theta, sigma)."""
    tau = jnp.exp(p["log_tau"])
    cauchy = jnp.log(2 / (5 * jnp.pi)) - jnp.log1p((tau / 5) ** 2) + p["log_tau"]
    normal = jax.scipy.stats.norm.logpdf
    effects = normal(p["theta"], p["mu"], tau).sum() + normal(Y, p["theta"], SIGMA).sum()
    return normal(p["mu"], 0.0, 5.0) + cauchy + effects


@pytest.fixture(autouse=True)
def jax_in_32_bits() -> Iterator[None]:
    """JAX as a user finds it, whatever a test before this one has set in the process."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def schools() -> tv.models.Jax:
    return tv.models.Jax(eight_schools, SHAPES)


def by_scipy(log_tau: np.ndarray, mu: np.ndarray, theta: np.ndarray) -> np.ndarray:
    tau = np.exp(log_tau)
    globals_ = stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5) + log_tau
    effects = stats.norm.logpdf(theta, mu[:, None], tau[:, None]) + stats.norm.logpdf(Y, theta, SIGMA)
    return np.asarray(globals_ + effects.sum(axis=1))


def test_the_density_is_scipys_to_the_last_digits(schools: tv.models.Jax) -> None:
    points = np.random.default_rng(0).normal(size=(5, 10))
    np.testing.assert_allclose(schools.log_density(points), by_scipy(**schools.constrain(points)), rtol=1e-13)
    assert_gradient_is_the_slope(schools, points, np.eye(10))
    assert_round_trip(schools, points)


def test_globals_come_first_and_are_found(schools: tv.models.Jax) -> None:
    assert schools.layout == Layout(2, 8, 1)
    assert (schools.local, schools.default_family) == (("theta",), "structured")
    assert schools.global_labels == ["log_tau", "mu"]  # the order of a dictionary's leaves in JAX
    assert repr(schools) == (
        "<tv.models.Jax, a JAX function eight_schools: globals: log_tau, mu; 8 local blocks of 1: theta>"
    )


def test_jax_stays_in_32_bits_elsewhere_and_single_points_come_back(schools: tv.models.Jax) -> None:
    narrow = np.zeros((1, 10), dtype=np.float32)
    value, slope = schools.log_density_and_gradient(narrow)
    assert (value.dtype, slope.dtype) == (np.float64, np.float32)
    assert jnp.ones(2).dtype == np.float32
    assert not jax.config.jax_enable_x64


def test_arrays_may_be_used_in_32_bits_before_and_after() -> None:
    """JAX remembers a NumPy array in the bits in which a traced function holds it."""
    data = np.arange(8.0) + 0.1

    def density(x: Any) -> Any:
        return -jnp.sum((x - data) ** 2)

    narrow = jax.jit(density)
    assert narrow(jnp.zeros(8)).dtype == np.float32
    model = tv.models.Jax(density, np.zeros(8))
    assert model.log_density(np.zeros(8))[0] == pytest.approx(-(data**2).sum(), rel=1e-15)
    assert (jnp.float32(2) * data).dtype == jnp.sum(data).dtype == narrow(jnp.ones(8)).dtype == np.float32
    fresh = np.arange(4.0)
    tv.models.Jax(lambda x: -jnp.sum((x - fresh) ** 2), np.zeros(4))
    np.testing.assert_array_equal(jnp.float32(2) * fresh, 2 * np.arange(4))


def test_nothing_compiles_anew_for_another_number_of_points() -> None:
    traced = []

    def counted(p: Any) -> Any:
        traced.append(p.shape)
        return -0.5 * jnp.sum(p**2)

    model = tv.models.Jax(counted, np.zeros(3))
    points = np.random.default_rng(0).normal(size=(700, 3))
    for n in (1, 2, 7, 8, 250, 256, 700):
        np.testing.assert_allclose(model.log_density(points[:n]), -0.5 * (points[:n] ** 2).sum(axis=1), rtol=1e-14)
    before = len(traced)
    for n in (3, 5, 249, 255, 512, 690):
        np.testing.assert_allclose(model.gradient(points[:n]), -points[:n], rtol=1e-14)
    assert len(traced) == before


def test_sizes_of_batches_are_few_and_near() -> None:
    sizes = [batch_size(n) for n in range(1, 257)]
    assert all(size >= n for n, size in enumerate(sizes, 1))
    assert all(size <= 1.25 * n for n, size in enumerate(sizes, 1) if n >= 16)
    assert len(set(sizes)) == 18
    assert [batch_size(n) for n in (1, 8, 9, 16, 112, 256)] == [16, 8, 16, 16, 112, 256]
    assert {coarse_size(n) for n in range(1, 257)} == {16, 32, 64, 128, 256}
    assert all(n <= coarse_size(n) < max(17, 2 * n) for n in range(1, 257))


def test_the_diagnosis_of_a_small_fit_compiles_its_log_terms_for_five_sizes_at_most() -> None:
    def density(p: dict[str, Any]) -> Any:
        return -0.5 * ((p["x"] - p["m"]) ** 2).sum() - 0.5 * p["m"] ** 2

    model = tv.models.Jax(density, {"m": 0.0, "x": np.zeros(4)})
    points = np.random.default_rng(0).normal(size=(300, 5))
    for n in range(1, 300, 7):
        model.log_terms(points[:n])
    assert model._function("sums")._call._cache_size() == 5


def chain(p: dict[str, Any]) -> Any:
    """h_1 ~ N(0, 1), h_n ~ N(tanh(a) h_{n-1}, 1), observed at 1 with noise 1."""
    h = p["states"]["h"]
    steps = h[1:] - jnp.tanh(p["a"]) * h[:-1]
    return -0.5 * (p["a"] ** 2 + h[0] ** 2 + jnp.sum(steps**2) + jnp.sum((h - 1) ** 2))


CHAIN = {"a": 0.0, "states": {"h": np.zeros(30)}}


def test_a_chain_is_told_from_independent_locals(capsys: pytest.CaptureFixture[str]) -> None:
    model = tv.models.Jax(chain, CHAIN)
    words = "chain: globals: a; a chain of 30 local blocks of 1: states.h; the markov family"
    assert capsys.readouterr() == ("", f"pyturingvi: {words}\n")
    assert (model.layout, model.default_family) == (Layout(1, 30, 1), "markov")
    with pytest.warns(tv.RefineWarning, match="a wider"):  # 1.4 times, by a grid of a
        fit = tv.fit(model, n_samples=16, progress=False)
    assert (fit.family.name, fit.engine) == ("markov", "numpy")
    # given a, the states are exactly normal: their mean at the fitted a, by dense algebra
    a = np.tanh(fit.location[0])
    precision = np.diag(np.r_[np.full(29, 2 + a**2), 2]) - a * (np.eye(30, k=1) + np.eye(30, k=-1))
    np.testing.assert_allclose(fit.location[1:], np.linalg.solve(precision, np.ones(30)), atol=0.1)


def test_two_doors_give_one_elbo(schools: tv.models.Jax) -> None:
    """The same density by hand, with locals where LogDensity wants them."""

    def by_hand(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_tau, mu, theta = x[:, 0], x[:, 1], x[:, 2:]
        tau, r = np.exp(log_tau), (theta - mu[:, None]) / np.exp(log_tau)[:, None]
        of_tau = 1 - 2 * (tau / 5) ** 2 / (1 + (tau / 5) ** 2) + (r**2 - 1).sum(axis=1)
        of_mu = -mu / 25 + r.sum(axis=1) / tau
        return by_scipy(log_tau, mu, theta), np.column_stack(
            [of_tau, of_mu, -r / tau[:, None] + (Y - theta) / SIGMA**2]
        )

    other = tv.models.LogDensity(by_hand, schools.layout)
    settings: dict[str, Any] = {"n_iterations": 60, "n_samples": 16, "family": "structured", "progress": False}
    one, two = (tv.fit(model, **settings) for model in (schools, other))
    np.testing.assert_allclose(one.params, two.params, rtol=1e-6, atol=1e-8)
    assert one.last_elbo == pytest.approx(two.last_elbo, rel=1e-8)


def test_a_saved_fit_reads_back_without_the_function(schools: tv.models.Jax, tmp_path: Path) -> None:
    fit = tv.fit(schools, n_iterations=20, n_samples=16, progress=False)
    path = fit.save(tmp_path / "schools.npz")
    again = tv.load_fit(path)
    assert again.summary(local=True).equals(fit.summary(local=True))
    assert repr(again.model) == repr(schools)
    for name, draws in fit.sample(10).items():
        np.testing.assert_array_equal(again.sample(10)[name], draws)
    with pytest.raises(InputError, match=r"'eight_schools' was read from a file, .* tv\.load_fit\(path, model="):
        again.model.log_density(np.zeros((1, 10)))
    assert tv.load_fit(path, model=schools).model is schools
    with pytest.raises(InputError, match="is of another model"):
        tv.load_fit(path, model=tv.models.Jax(lambda p: 2 * eight_schools(p), SHAPES, local=["theta"]))
    content = dict(np.load(path))
    del content["model.order"]
    np.savez(tmp_path / "broken.npz", **content)
    with pytest.raises(OutputError, match="damaged"):
        tv.load_fit(tmp_path / "broken.npz")


def test_a_model_survives_pickling(schools: tv.models.Jax) -> None:
    copy = pickle.loads(pickle.dumps(schools))
    points = np.random.default_rng(3).normal(size=(2, 10))
    np.testing.assert_array_equal(copy.log_density(points), schools.log_density(points))
    assert model_digest(copy) == model_digest(schools)


def test_local_names_are_checked_against_the_gradient() -> None:
    with pytest.raises(InputError, match=r"Jax: local=\['u'\] contradicts the log density: .* u\[\d+\] and u\[\d+\]"):
        tv.models.Jax(lambda p: -(jnp.sum(p["u"]) ** 2) - jnp.sum(p["u"] ** 2), {"u": np.zeros(12)}, local=["u"])
    with pytest.raises(InputError, match=r"Did you mean 'states\.h'"):
        tv.models.Jax(chain, CHAIN, local=["state.h"])


def not_traceable(p: Any) -> Any:
    return -1.0 if p["x"] > 0 else -2.0


@pytest.mark.parametrize(
    ("function", "example", "words"),
    [
        (3, {"x": 0.0}, "must be a function"),
        (lambda p: p["x"][None], {"x": 0.0}, r"one real number .*shape=\(1,\)"),
        (lambda p: -(p["x"] ** 2).astype(int), {"x": 0.0}, "one real number"),
        (lambda p: (p["x"], p["x"]), {"x": 0.0}, "one real number"),
        (lambda p: p["y"], {"x": 0.0}, r"cannot be traced \(KeyError: 'y'\)"),
        (not_traceable, {"x": 0.0}, r"cannot be traced \(Tracer.*without branches on values"),
        (lambda p: jnp.log(-(p["x"] ** 2) - 1), {"x": 0.0}, "the log density of 'jax' is nan near 0"),
        (lambda p: jnp.sqrt(-1 - p["x"] ** 2), {"x": 0.0}, "gradient of the log density is not finite at 0"),
        (lambda p: 0.0, {}, "at least one number"),
        (lambda p: 0.0, {"x": np.zeros(0)}, "at least one number"),
        (lambda p: 0.0, {"x": "abc"}, "'x' must be an array of real numbers"),
        (lambda p: 0.0, {"x": True}, "'x' must be an array of real numbers"),
        (lambda p: 0.0, {"a.b": 0.0, "a": {"b": 0.0}}, "both be called 'a.b'"),
    ],
)
def test_what_is_no_log_density_is_refused(function: Any, example: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.models.Jax(function, example)


def test_the_extra_is_named_where_jax_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(EngineError, match=r"tv\.models\.Jax needs jax, .*pip install 'pyturingvi\[jax\]'"):
        tv.models.Jax(lambda p: -(p**2), 0.0)


def test_leaves_of_any_pytree_have_names() -> None:
    model = tv.models.Jax(
        lambda p: -jnp.sum(p["w"][0] ** 2) - jnp.sum(p["w"][1] ** 2) - p["b"] ** 2 - jnp.sum(p["w"][0]) ** 2,
        {"w": [np.zeros((2, 3)), np.zeros(2)], "b": 0},
        local=[],
    )
    shapes = {name: value.shape for name, value in model.constrain(np.zeros((4, 9))).items()}
    assert shapes == {"b": (4,), "w.0": (4, 2, 3), "w.1": (4, 2)}
    assert model.dims["w.0"] == ["w.0_dim_0", "w.0_dim_1"]
    assert model.scalar_labels("w.0")[4] == "w.0[1,1]"
    assert list(tv.models.Jax(lambda x: -(x**2), 0.0).constrain(np.zeros((1, 1)))) == ["x"]


def test_batches_of_several_outputs_keep_their_places() -> None:
    batched = Batched(lambda x: {"sum": x.sum(), "twice": (2 * x, x[0])})
    points = np.random.default_rng(0).normal(size=(300, 4))
    found = batched(points)
    np.testing.assert_allclose(found["sum"], points.sum(axis=1), rtol=1e-13)
    np.testing.assert_array_equal(found["twice"][0], 2 * points)
    np.testing.assert_array_equal(found["twice"][1], points[:, 0])
