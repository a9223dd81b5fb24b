"""PyMC models as they are: their own log density, the structure found, names, dims, draws after a file."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from model_checks import assert_gradient_is_the_slope, assert_round_trip
from scipy import stats

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError
from pyturingvi.layout import Layout

try:
    import pymc as pm
except (ImportError, AttributeError) as missing:  # the latter: its ArviZ with another one's parts and matplotlib 3.11
    pytest.skip(f"no PyMC: {missing}", allow_module_level=True)

Y, SIGMA = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOLS = list("ABCDEFGH")
RNG = np.random.default_rng(0)


def eight_schools() -> pm.Model:
    with pm.Model(name="", coords={"school": SCHOOLS, "unused": [1, 2]}) as model:
        sigma = pm.Data("sigma", SIGMA, dims="school")
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, sigma, observed=Y, dims="school")
        pm.Deterministic("both", mu + tau)
        pm.Deterministic("first", theta[0])
    return model


def slopes() -> pm.Model:
    """Correlated intercepts and slopes, a simplex, an ordered vector, bounds that rest on a variable, a potential."""
    group, x, y = np.repeat(np.arange(6), 4), RNG.normal(size=24), RNG.normal(size=24)
    with pm.Model(coords={"term": ["intercept", "slope"], "part": list("abc")}) as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        shares = pm.Dirichlet("shares", np.ones(3), dims="part")
        cut = pm.Normal("cut", 0, 1, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0])
        top = pm.Gamma("top", 2, 1)
        below = pm.Uniform("below", 0, top)
        pm.Potential("pull", -0.5 * (cut**2).sum())
        b = pm.MvNormal("b", np.zeros(2), chol=chol, shape=(6, 2))
        pm.Normal("y", b[group, 0] + b[group, 1] * x, shares[0] + below, observed=y)
    return model


def chain() -> pm.Model:
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        h = pm.GaussianRandomWalk("h", sigma=tau, init_dist=pm.Normal.dist(0, 1), steps=29)
        pm.StudentT("y", 4, mu=h, sigma=0.5, observed=RNG.normal(size=30))
    return model


def crossed() -> pm.Model:
    student, item = np.repeat(np.arange(12), 5), np.tile(np.arange(5), 12)
    with pm.Model(coords={"student": np.arange(100, 112), "item": list("vwxyz")}) as model:
        sds = pm.HalfNormal("sds", 1, shape=2)
        ability = pm.Normal("ability", 0, sds[0], dims="student")
        easiness = pm.Normal("easiness", 0, sds[1], dims="item")
        pm.Bernoulli("correct", logit_p=ability[student] + easiness[item], observed=RNG.integers(0, 2, 60))
    return model


CASES: dict[str, tuple[Callable[[], pm.Model], Layout, str]] = {
    "eight schools": (eight_schools, Layout(2, 8, 1), "globals: mu, tau; 8 local blocks of 1: theta by school"),
    "slopes": (
        slopes,
        Layout(10, 6, 2),
        "globals: chol[3], shares[2], cut[3], top, below; 6 local blocks of 2: b",
    ),
    "chain": (chain, Layout(1, 30, 1), "globals: tau; a chain of 30 local blocks of 1: h; the markov family"),
    "crossed": (
        crossed,
        Layout(7, 12, 1),
        "globals: sds[2], easiness[5]; 12 local blocks of 1: ability by student",
    ),
}
_built: dict[str, tuple[pm.Model, tv.models.PyMC]] = {}


def built(name: str) -> tuple[pm.Model, tv.models.PyMC]:
    """One of the cases, compiled once."""
    if name not in _built:
        own = CASES[name][0]()
        _built[name] = own, tv.models.PyMC(own)
    return _built[name]


def by_pymc(own: pm.Model, model: tv.models.PyMC, points: np.ndarray) -> tuple[list[float], list[dict[str, Any]]]:
    """PyMC's own log densities, and its variables, by PyTensor in Python without JAX."""
    order = np.argsort(model._order)  # the place in our point of each of PyMC's numbers
    compiling: dict[str, Any] = {"inputs": own.value_vars, "mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    density, naturals = own.compile_fn(own.logp(), **compiling), own.compile_fn(own.unobserved_value_vars, **compiling)
    found, values = [], []
    for point in points:
        start, flat, offset = own.initial_point(), point[order], 0
        for one in own.value_vars:
            size = start[one.name].size
            start[one.name] = flat[offset : offset + size].reshape(start[one.name].shape)
            offset += size
        found.append(float(density(start)))
        names = [one.name for one in own.unobserved_value_vars]
        hidden = {own.rvs_to_values[one].name for one in own.free_RVs} - {one.name for one in own.free_RVs}
        values.append({key: at for key, at in zip(names, naturals(start), strict=True) if key not in hidden})
    return found, values


@pytest.mark.parametrize("name", CASES)
def test_the_log_density_is_pymcs_own_and_the_structure_is_found(name: str) -> None:
    own, model = built(name)
    assert (model.layout, model.structure) == CASES[name][1:]
    points = np.random.default_rng(1).normal(0.0, 0.5, (3, model.dim))
    densities, values = by_pymc(own, model, points)
    np.testing.assert_allclose(model.log_density(points), densities, rtol=1e-11)
    natural = model.constrain(points)
    assert set(natural) == set(values[0])
    for m, expected in enumerate(values):
        for one in expected:
            np.testing.assert_allclose(natural[one][m], expected[one], rtol=1e-10, atol=1e-12, err_msg=one)
    directions = np.random.default_rng(2).normal(size=(4, model.dim))
    assert_gradient_is_the_slope(model, points, directions / np.linalg.norm(directions, axis=1, keepdims=True))
    np.testing.assert_allclose(model.unconstrain(natural), points, atol=1e-9)


def test_eight_schools_are_scipys() -> None:
    _, model = built("eight schools")
    points = np.random.default_rng(3).normal(size=(4, 10))
    of = model.constrain(points)
    mu, tau, theta = of["mu"], of["tau"], of["theta"]
    expected = stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5) + np.log(tau)
    expected += stats.norm.logpdf(theta, mu[:, None], tau[:, None]).sum(axis=1)
    expected += stats.norm.logpdf(Y, theta, SIGMA).sum(axis=1)
    assert_a_constant_apart(model.log_density(points), expected)
    assert_round_trip(model, points)


def assert_a_constant_apart(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for a constant below 1e-6: PyMC has logarithms of whole numbers in single precision."""
    apart = found - expected
    np.testing.assert_allclose(apart, apart[0], rtol=0, atol=1e-12 * np.abs(expected).max())
    assert abs(apart[0]) < 1e-6


def test_names_dims_and_coords_are_the_models() -> None:
    _, model = built("eight schools")
    assert model.global_names == ["mu", "tau", "both"]
    assert model.global_labels == ["mu", "log tau"]
    assert list(model.constrain(np.zeros(10))) == ["mu", "tau", "both", "theta", "first"]
    assert (model.dims["theta"], model.coords) == (["school"], {"school": SCHOOLS})
    assert model.scalar_labels("theta")[1] == "theta[B]"
    assert (model.label, model.local) == ("pymc", ("theta",))
    _, other = built("crossed")
    assert other.scalar_labels("ability")[:2] == ["ability[100]", "ability[101]"]
    _, third = built("slopes")
    assert third.dims["shares"] == ["part"]
    assert third.dims["b"] == ["b_dim_0", "b_dim_1"]
    assert third.global_labels[3:9] == [*(f"unconstrained shares[{k}]" for k in (0, 1)), *third.global_labels[5:9]]
    assert third.global_labels[-2:] == ["log top", "unconstrained below"]


def test_data_that_are_set_later_do_not_count() -> None:
    own, model = eight_schools(), built("eight schools")[1]
    fresh = tv.models.PyMC(own)
    with own:
        pm.set_data({"sigma": 2 * SIGMA})
    points = np.random.default_rng(4).normal(size=(2, 10))
    np.testing.assert_array_equal(fresh.log_density(points), model.log_density(points))
    np.testing.assert_array_equal(fresh.constrain(points)["both"], model.constrain(points)["both"])


def test_log_terms_split_by_block() -> None:
    _, model = built("eight schools")
    points = np.random.default_rng(5).normal(size=(2, 10))
    at_top, each = model.log_terms(points)
    np.testing.assert_allclose(at_top + each.sum(axis=1), model.log_density(points), rtol=1e-12)
    of = model.constrain(points)
    prior = stats.norm.logpdf(of["mu"], 0, 5) + stats.halfcauchy.logpdf(of["tau"], scale=5) + np.log(of["tau"])
    assert_a_constant_apart(at_top, prior)


@pytest.fixture(scope="module")
def radon() -> Iterator[ModuleType]:
    """The module of the benchmarks that holds one model in several languages."""
    folder = str(Path(__file__).parent.parent / "benchmarks")
    sys.path.insert(0, folder)
    import radon

    yield radon
    sys.path.remove(folder)
    del sys.modules["radon"]


@pytest.mark.filterwarnings("ignore:.*The fit converged, but do not trust it")  # its scales, which refining widens
def test_radon_is_the_same_by_hand_by_numpyro_and_by_pymc(radon: ModuleType) -> None:
    arrays = radon.data()
    by_hand, in_numpyro, in_pymc = radon.by_hand(**arrays), radon.in_numpyro(**arrays), radon.in_pymc(**arrays)
    assert in_pymc.structure == in_numpyro.structure
    points = np.random.default_rng(6).normal(0.0, 0.5, (3, 176))
    assert_a_constant_apart(in_pymc.log_density(points), by_hand.log_density(points))
    np.testing.assert_allclose(in_pymc.gradient(points), by_hand.gradient(points), rtol=1e-9, atol=1e-9)
    settings: dict[str, Any] = {"n_samples": 16, "progress": False, "elbo_every": 10_000}
    ends = [tv.fit(model, **settings).elbo.iloc[-1] for model in (in_numpyro, in_pymc)]
    assert abs(ends[1]["elbo"] - ends[0]["elbo"]) < 2 * np.hypot(ends[1]["std_error"], ends[0]["std_error"])


def test_a_saved_fit_has_names_draws_and_summary_without_the_model(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    _, model = built("eight schools")
    fit = tv.fit(model, n_iterations=20, n_samples=16, progress=False)
    again = tv.load_fit(fit.save(tmp_path / "schools.npz"))
    assert again.summary(local=True).equals(fit.summary(local=True))
    assert list(again.summary(local=True).index)[:5] == ["mu", "tau", "both", "theta[A]", "theta[B]"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).sample(5)["theta"], fit.sample(5)["theta"])
    with pytest.raises(InputError, match=r"PyMC: 'pymc' was read from a file, .*: the log density needs it"):
        again.model.log_density(np.zeros(10))
    assert tv.load_fit(tmp_path / "schools.npz", model=model).model.log_density(np.zeros(10)).shape == (1,)


def test_nothing_compiles_anew_for_another_number_of_points() -> None:
    _, model = built("eight schools")
    compiled = model._function("density")
    points = np.random.default_rng(7).normal(size=(100, 10))
    for n in (100, 7, 8, 100):
        assert model.log_density(points[:n]).shape == (n,)
    assert model._function("density") is compiled
    assert compiled._call._cache_size() <= 4  # sizes 8, 16 (of the structure), 112 (of 100)


# ---- what is refused ---------------------------------------------------------------------------------------------
def with_(build: Callable[[], Any]) -> pm.Model:
    with pm.Model() as model:
        build()
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: eight_schools, r"model must be a pymc\.Model, as in `with pm\.Model\(\) as model:`, got <function"),
        (lambda: with_(lambda: pm.Poisson("k", 3.0)), r"'k' is discrete \(int64\) and not observed"),
        (lambda: with_(lambda: pm.Normal("x", 0, 1, observed=1.0)), "no latent variable"),
        (
            lambda: with_(lambda: [pm.modelcontext(None).add_coord("sample", range(6)), pm.Normal("x", dims="sample")]),
            r"got \['sample'\]\. Rename the dim in the model: 'sample'\.",
        ),
        (lambda: with_(lambda: pm.Normal("x", dtype="float32")), "'x' has float32; fits are in 64 bits"),
    ],
)
def test_what_cannot_be_fitted_is_refused(model: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=f"PyMC: .*{words}"):
        tv.models.PyMC(model())


def test_local_names_are_checked() -> None:
    with pytest.raises(InputError, match="Did you mean 'theta'"):
        tv.models.PyMC(eight_schools(), local=["thta"])
    assert tv.models.PyMC(eight_schools(), local=[]).layout == Layout(10, 0, 0)


def test_the_extra_is_named_where_pymc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(EngineError, match=r"tv\.models\.PyMC needs pymc, .*pip install 'pyturingvi\[pymc\]'"):
        tv.models.PyMC(None)
