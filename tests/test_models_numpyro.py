"""NumPyro models as they are: their own log density, the structure found, names, plates, draws after a file."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from model_checks import assert_gradient_is_the_slope, assert_round_trip
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density, potential_energy, unconstrain_fn
from scipy import stats

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError
from pyturingvi.layout import Layout
from pyturingvi.models.jax_batches import in_64_bits
from pyturingvi.models.term_blocks import GLOBAL, blocks_of_terms

Y, SIGMA = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOLS = list("ABCDEFGH")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def jax_in_32_bits() -> Iterator[None]:
    """JAX as a user finds it, whatever a test before this one has set in the process."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", before)


def eight_schools(sigma: np.ndarray, y: np.ndarray | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
    numpyro.deterministic("both", mu + tau)
    numpyro.deterministic("first", theta[0])


def chain(y: np.ndarray) -> None:
    phi = numpyro.sample("phi", dist.Uniform(-1, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))

    def step(last: Any, _: Any) -> Any:
        h = numpyro.sample("h", dist.Normal(phi * last, tau))
        return h, h

    _, h = scan(step, 0.0, None, length=len(y))
    numpyro.sample("y", dist.Normal(h, 1.0), obs=y)


def crossed(student: np.ndarray, item: np.ndarray, correct: np.ndarray) -> None:
    sds = numpyro.sample("sds", dist.HalfNormal(1).expand([2]).to_event(1))
    with numpyro.plate("students", 12):
        ability = numpyro.sample("ability", dist.Normal(0, sds[0]))
    with numpyro.plate("items", 5):
        easiness = numpyro.sample("easiness", dist.Normal(0, sds[1]))
    numpyro.sample("correct", dist.Bernoulli(logits=ability[student] + easiness[item]), obs=correct)


def slopes(group: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Correlated intercepts and slopes, and a simplex."""
    corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("groups", 6):
        b = numpyro.sample("b", dist.MultivariateNormal(jnp.zeros(2), scale_tril=corr), infer={"event_dims": ["term"]})
    numpyro.sample("y", dist.Normal(b[group, 0] + b[group, 1] * x, shares[0]), obs=y)


@pytest.fixture(scope="module")
def radon() -> Iterator[ModuleType]:
    """The module of the benchmarks that holds one model in three languages."""
    folder = str(Path(__file__).parent.parent / "benchmarks")
    sys.path.insert(0, folder)
    import radon

    yield radon
    sys.path.remove(folder)
    del sys.modules["radon"]


CASES: dict[str, tuple[Any, tuple[Any, ...], Layout, str]] = {
    "eight schools": (
        eight_schools,
        (SIGMA, Y),
        Layout(2, 8, 1),
        "globals: mu, tau; 8 local blocks of 1: theta by school",
    ),
    "eight schools, non-centred": (
        numpyro.handlers.reparam(eight_schools, config={"theta": LocScaleReparam(0)}),
        (SIGMA, Y),
        Layout(2, 8, 1),
        "globals: mu, tau; 8 local blocks of 1: theta_decentered by school",
    ),
    "chain": (
        chain,
        (RNG.normal(size=30),),
        Layout(2, 30, 1),
        "globals: phi, tau; a chain of 30 local blocks of 1: h; the markov family",
    ),
    "crossed": (
        crossed,
        (np.repeat(np.arange(12), 5), np.tile(np.arange(5), 12), RNG.integers(0, 2, 60)),
        Layout(7, 12, 1),
        "globals: sds[2], easiness[5]; 12 local blocks of 1: ability by students",
    ),
    "slopes": (
        slopes,
        (np.repeat(np.arange(6), 4), RNG.normal(size=24), RNG.normal(size=24)),
        Layout(3, 6, 2),
        "globals: corr[1], shares[2]; 6 local blocks of 2: b by groups",
    ),
}
_built: dict[str, tv.models.NumPyro] = {}


def built(name: str) -> tv.models.NumPyro:
    """One of the cases, compiled once."""
    if name not in _built:
        model, args, *_ = CASES[name]
        coords = {"school": SCHOOLS} if name.startswith("eight") else None
        _built[name] = tv.models.NumPyro(model, args, coords=coords)
    return _built[name]


@pytest.mark.parametrize(  # README's and the docstring's eight schools are non-centred too
    "name", [pytest.param(name, marks=pytest.mark.slow if name.endswith("non-centred") else ()) for name in CASES]
)
def test_the_log_density_is_numpyros_own_and_the_structure_is_found(name: str) -> None:
    function, args, layout, words = CASES[name]
    model = built(name)
    assert (model.layout, model.structure) == (layout, words)
    points = np.random.default_rng(1).normal(0.0, 0.5, (3, model.dim))
    natural = model.constrain(points)
    seeded = numpyro.handlers.seed(function, 0)

    def by_numpyro(values: Any) -> Any:  # by way of the values in the model's own space
        return -potential_energy(seeded, args, {}, unconstrain_fn(seeded, args, {}, values))

    with in_64_bits():
        expected = jax.jit(jax.vmap(by_numpyro))({one.name: natural[one.name] for one in model._variables})
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)
    directions = np.random.default_rng(2).normal(size=(4, model.dim))
    assert_gradient_is_the_slope(model, points, directions / np.linalg.norm(directions, axis=1, keepdims=True))
    np.testing.assert_allclose(model.unconstrain(natural), points, atol=1e-10)


def test_eight_schools_are_scipys() -> None:
    model = built("eight schools")
    points = np.random.default_rng(3).normal(size=(4, 10))
    of = model.constrain(points)
    mu, tau, theta = of["mu"], of["tau"], of["theta"]
    expected = stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5) + np.log(tau)
    expected += stats.norm.logpdf(theta, mu[:, None], tau[:, None]).sum(axis=1)
    expected += stats.norm.logpdf(Y, theta, SIGMA).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-13)
    assert_round_trip(model, points)


def test_jax_stays_in_32_bits_elsewhere() -> None:
    built("eight schools").log_density(np.zeros(10))
    assert not jax.config.jax_enable_x64
    assert jnp.ones(2).dtype == np.float32
    np.testing.assert_array_equal(jnp.float32(2) * Y, 2 * Y)  # data may be used elsewhere, in 32 bits


def test_names_dims_and_coords_are_the_models() -> None:
    model = built("eight schools")
    assert model.global_names == ["mu", "tau", "both"]
    assert model.global_labels == ["mu", "log tau"]
    assert list(model.constrain(np.zeros(10))) == ["mu", "tau", "both", "theta", "first"]
    assert (model.dims["theta"], model.coords) == (["school"], {"school": SCHOOLS})
    assert model.scalar_labels("theta")[1] == "theta[B]"
    assert (model.label, model.local) == ("eight_schools", ("theta",))
    other = built("slopes")
    assert other.dims["b"] == ["groups", "term"]
    assert other.dims["corr"] == ["corr_dim_0", "corr_dim_1"]
    assert other.global_labels == ["unconstrained corr[0]", "unconstrained shares[0]", "unconstrained shares[1]"]
    points = np.random.default_rng(0).normal(size=(3, 15))
    np.testing.assert_array_equal(other.constrain_global(points[:, :3])["shares"], other.constrain(points)["shares"])
    with pytest.raises(InputError, match=r"NumPyro: shares must be inside of its support; \d values are not"):
        other.unconstrain({**other.constrain(points), "shares": np.full((3, 3), -1.0)})


def test_globals_have_the_labels_of_their_axes_as_in_a_summary() -> None:
    model = tv.models.NumPyro(crossed, CASES["crossed"][1], coords={"items": list("abcde")})
    assert model.global_labels == ["log sds[0]", "log sds[1]", *(f"easiness[{item}]" for item in "abcde")]
    assert model.scalar_labels("easiness") == model.global_labels[2:]


# ---- terms ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["eight schools", "crossed"])
def test_log_terms_split_by_block(name: str) -> None:
    model = built(name)
    layout = model.layout
    points = np.random.default_rng(4).normal(size=(2, model.dim))
    at_top, each = model.log_terms(points)
    np.testing.assert_allclose(at_top + each.sum(axis=1), model.log_density(points), rtol=1e-12)
    weights = np.random.default_rng(5).uniform(size=(2, layout.n_local))
    *same, slope = model.log_terms_and_gradient(points, weights)
    np.testing.assert_allclose(same[1], each, rtol=1e-12)
    direction = np.random.default_rng(6).normal(size=model.dim)
    sums = []
    for step in (1e-5, -1e-5):
        top, terms = model.log_terms(points + step * direction)
        sums.append(top + (weights * terms).sum(axis=1))
    np.testing.assert_allclose(slope @ direction, (sums[0] - sums[1]) / 2e-5, rtol=1e-6, atol=1e-6)
    for n in (0, layout.n_local - 1):
        moved = points.copy()
        moved[:, layout.block_slice(n)] += 1
        same_top, changed = model.log_terms(moved)
        np.testing.assert_allclose(same_top, at_top, rtol=1e-13)
        assert [k for k in range(layout.n_local) if not np.allclose(changed[:, k], each[:, k], rtol=1e-12)] == [n]
    if name == "eight schools":  # the prior of the globals, by SciPy
        of = model.constrain(points)
        prior = stats.norm.logpdf(of["mu"], 0, 5) + stats.halfcauchy.logpdf(of["tau"], scale=5) + np.log(of["tau"])
        np.testing.assert_allclose(at_top, prior, rtol=1e-12)


def test_a_chain_has_no_log_terms() -> None:
    with pytest.raises(InputError, match="no log terms, since it has no locals that are independent"):
        built("chain").log_terms(np.zeros((1, 32)))


def test_a_site_with_an_improper_prior_is_fitted_as_it_is() -> None:
    """Its density is that of the factor which ties neighbours, so that the site is a chain."""

    def walk(y: np.ndarray) -> None:
        with numpyro.plate("year", len(y)):
            level = numpyro.sample("level", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.factor("walk", dist.Normal(level[:-1], 0.5).log_prob(level[1:]).sum())
        numpyro.sample("y", dist.Normal(level, 1.0).to_event(1), obs=y)

    y = np.random.default_rng(0).normal(size=6)
    model = tv.models.NumPyro(walk, (y,))
    assert model.structure == "globals: none; a chain of 6 local blocks of 1: level by year; the markov family"
    level = np.random.default_rng(1).normal(size=6)
    wanted = stats.norm.logpdf(level[1:], level[:-1], 0.5).sum() + stats.norm.logpdf(y, level).sum()
    np.testing.assert_allclose(model.log_density(level[None]), wanted, rtol=1e-12)


def bounded(y: np.ndarray | None = None) -> None:
    top = numpyro.sample("top", dist.Gamma(3.0, 1.0))
    low = numpyro.sample("low", dist.Normal(0.0, 1.0))
    numpyro.sample("above", dist.TruncatedNormal(0.0, 1.0, low=low))
    with numpyro.plate("row", 5):
        x = numpyro.sample("x", dist.Uniform(0.0, top))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def test_bounds_may_be_another_sites_value() -> None:
    model = tv.models.NumPyro(bounded, (np.arange(5) / 3,))
    assert model.structure == "globals: top, low, above; 5 local blocks of 1: x by row"
    assert model.global_labels == ["log top", "low", "unconstrained above"]
    points = RNG.normal(size=(4, model.dim))
    assert_gradient_is_the_slope(model, points, np.eye(model.dim))
    draws = model.constrain(points)
    top, low, above, x = (draws[name] for name in ("top", "low", "above", "x"))
    inside = np.log(x) + np.log(top[:, None] - x) - np.log(top[:, None])  # the slope of a logistic between the bounds
    jacobian = np.log(top) + np.log(above - low) + inside.sum(axis=1)
    with in_64_bits():  # compiled as a whole: by themselves its operations compile one by one
        theirs = np.asarray(jax.jit(jax.vmap(lambda at: log_density(bounded, (np.arange(5) / 3,), {}, at)[0]))(draws))
    np.testing.assert_allclose(model.log_density(points), theirs + jacobian, rtol=1e-10)
    np.testing.assert_allclose(model.unconstrain(draws), points, atol=1e-9)
    prior, terms, _ = model.log_terms_and_gradient(points)
    np.testing.assert_allclose(prior + terms.sum(axis=1), model.log_density(points), rtol=1e-10)


def test_terms_are_told_by_the_digits_of_their_block() -> None:
    layout = Layout(2, 5, 2)

    def terms(points: np.ndarray) -> np.ndarray:
        z, y = points[:, :2], points[:, 2:].reshape(-1, 5, 2)
        return np.column_stack([z.sum(axis=1), y[:, 4, 1] ** 2, y[:, 0, 0] * z[:, 0], y[:, 2].sum(axis=1)])

    np.testing.assert_array_equal(blocks_of_terms(terms, layout), [GLOBAL, 4, 0, 2])
    assert blocks_of_terms(lambda points: points[:, 2:4] * points[:, 4:6], layout) is None


# ---- fits -----------------------------------------------------------------------------------------------------
@pytest.mark.slow  # test_models_jax.py has two doors to small data, test_benchmarks.py NumPyro's beside its source
@pytest.mark.filterwarnings("ignore:.*The fit converged, but do not trust it")  # its scales, which refining widens
def test_three_doors_to_radon_agree(radon: ModuleType) -> None:
    arrays = radon.data()
    by_hand, in_jax, in_numpyro = radon.by_hand(**arrays), radon.in_jax(**arrays), radon.in_numpyro(**arrays)
    assert in_numpyro.structure.endswith(
        "sd_level, sd_effect, sd_house; 85 local blocks of 2: level, floor by counties"
    )
    points = np.random.default_rng(5).normal(0.0, 0.5, (3, 176))
    np.testing.assert_allclose(in_numpyro.log_density(points), by_hand.log_density(points), rtol=1e-12)
    np.testing.assert_allclose(in_numpyro.gradient(points), by_hand.gradient(points), rtol=1e-9, atol=1e-9)
    natural = in_numpyro.constrain(points)
    same = {name: values for name, values in natural.items() if not name.startswith("sd_")}
    same |= {f"log {name}": np.log(natural[name]) for name in natural if name.startswith("sd_")}
    np.testing.assert_allclose(in_jax.log_density(in_jax.unconstrain(same)), by_hand.log_density(points), rtol=1e-12)
    assert in_jax.has_log_terms
    of_jax, of_numpyro = in_jax.log_terms(in_jax.unconstrain(same)), in_numpyro.log_terms(points)
    np.testing.assert_allclose(of_jax[1], of_numpyro[1], rtol=1e-11, atol=1e-11)  # each county's, read from sums
    np.testing.assert_allclose(of_jax[0], of_numpyro[0], rtol=1e-11, atol=1e-11)
    settings: dict[str, Any] = {"n_samples": 16, "n_iterations": 30, "progress": False}
    one, two = (tv.fit(model, **settings) for model in (by_hand, in_numpyro))
    np.testing.assert_allclose(one.params, two.params, rtol=1e-7, atol=1e-7)  # the same noise, and the same slopes


def test_a_saved_fit_has_names_draws_and_summary_without_the_model(tmp_path: Path) -> None:
    model = built("eight schools")
    fit = tv.fit(model, n_iterations=20, n_samples=16, progress=False)
    again = tv.load_fit(fit.save(tmp_path / "schools.npz"))
    assert again.summary(local=True).equals(fit.summary(local=True))
    assert list(again.summary(local=True).index)[:5] == ["mu", "tau", "both", "theta[A]", "theta[B]"]
    assert repr(again.model) == repr(model)
    third = tv.load_fit(again.save(tmp_path / "again.npz"))
    np.testing.assert_array_equal(third.sample(5)["tau"], fit.sample(5)["tau"])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(third)).sample(5)["theta"], fit.sample(5)["theta"])
    with pytest.raises(InputError, match=r"'eight_schools' was read from a file, .*: the log density needs it"):
        again.model.log_density(np.zeros(10))
    with pytest.raises(InputError, match=r"unconstrain needs it"):
        again.model.unconstrain(fit.sample(2))
    with pytest.raises(InputError, match="since it was read from a file"):
        again.model.log_terms(np.zeros(10))
    assert tv.load_fit(tmp_path / "again.npz", model=model).model.log_density(np.zeros(10)).shape == (1,)


# ---- what is refused ------------------------------------------------------------------------------------------
def test_local_names_are_checked() -> None:
    with pytest.raises(InputError, match="Did you mean 'theta'"):
        tv.models.NumPyro(eight_schools, (SIGMA, Y), local=["thta"])

    def walk(y: np.ndarray) -> None:
        steps = numpyro.sample("steps", dist.Normal(0, 1).expand([len(y)]))
        numpyro.sample("y", dist.Normal(jnp.cumsum(steps), 1.0), obs=y)

    with pytest.raises(InputError, match=r"local=\['steps'\] contradicts .* steps\[\d+\] and steps\[\d+\] touch"):
        tv.models.NumPyro(walk, (np.zeros(12),), local=["steps"])


def subsampled(n: int) -> None:
    with numpyro.plate("rows", n, subsample_size=2):
        numpyro.sample("x", dist.Normal(0, 1))


def axis_of_arviz() -> None:
    with numpyro.plate("sample", 6):
        numpyro.sample("x", dist.Normal(0, 1))


def without_data() -> None:
    raise ValueError("There are no data.")


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (3, {}, "must be a function"),
        (eight_schools, {"args": SIGMA}, r"args must be a tuple, as in args=\(y,\), got ndarray"),
        (eight_schools, {"args": (SIGMA,), "kwargs": [Y]}, "kwargs must be a dictionary"),
        (eight_schools, {}, "cannot be run with these args and kwargs: TypeError: .*sigma"),
        (without_data, {}, r"kwargs: ValueError: There are no data\.$"),
        (lambda: numpyro.sample("k", dist.Poisson(3.0)), {}, r"'k' is discrete \(Poisson\) .* Sum it out"),
        (lambda: numpyro.sample("x", dist.Normal(0, 1), obs=1.0), {}, "no latent variable"),
        (lambda: numpyro.sample("x", dist.Delta(1.0)), {}, "'x' has a Delta distribution"),
        (lambda: numpyro.param("w", 1.0), {}, r"'w' is a numpyro\.param"),
        (subsampled, {"args": (5,)}, "the plate 'rows' takes 2 of 5 rows"),
        (axis_of_arviz, {}, r"got \['sample'\]\. Rename the plate in the model: 'sample'\."),
        (
            lambda: numpyro.factor("never", -jnp.inf + numpyro.sample("x", dist.Normal(0, 1))),
            {},
            "the log density of 'numpyro' is -inf near 0",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(model: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"NumPyro: .*{words}"):
        tv.models.NumPyro(model, **settings)


@pytest.mark.parametrize(
    ("coords", "words"),
    [
        ({"pupil": range(8)}, "Unknown axis in NumPyro's coords 'pupil'"),
        ({"school": "ABC"}, "'school' must be 8 labels, got 3"),
    ],
)
def test_labels_that_do_not_fit_are_refused(coords: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.models.NumPyro(eight_schools, (SIGMA, Y), coords={k: list(v) for k, v in coords.items()})


def test_the_extra_is_named_where_numpyro_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(EngineError, match=r"tv\.models\.NumPyro needs numpyro, .*pip install 'pyturingvi\[numpyro\]'"):
        tv.models.NumPyro(eight_schools, (SIGMA, Y))
