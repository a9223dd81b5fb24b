"""The data behind a log density of one's own, in NumPy or JAX: likelihood, data anew, terms, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats
from targets import quick_fit

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.models.jax_batches import in_64_bits
from pyturingvi.models.jax_terms import terms_of

Y, SIGMA = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOLS = list("ABCDEFGH")
SHAPES = {"mu": 0.0, "log_tau": 0.0, "theta": np.zeros(8)}
N = 4_000
logpdf = jax.scipy.stats.norm.logpdf


# ---- JAX ---------------------------------------------------------------------------------------------------
def schools(p: dict[str, Any]) -> Any:
    """Centred: mu ~ N(0, 5), log tau ~ N(1, 0.5), theta ~ N(mu, tau), y ~ N(theta, sigma)."""
    effects = logpdf(p["theta"], p["mu"], jnp.exp(p["log_tau"])).sum() + logpdf(Y, p["theta"], SIGMA).sum()
    return logpdf(p["mu"], 0.0, 5.0) + logpdf(p["log_tau"], 1.0, 0.5) + effects


def likelihood(p: dict[str, Any]) -> Any:
    return logpdf(Y, p["theta"], SIGMA)


def anew(p: dict[str, Any], key: Any) -> Any:
    return p["theta"] + SIGMA * jax.random.normal(key, (8,))


@pytest.fixture(scope="module")
def fit() -> tv.Fit:
    model = tv.models.Jax(
        schools,
        SHAPES,
        observed=Y,
        log_likelihood=likelihood,
        predictive=anew,
        dims={"theta": ["school"], "y": ["school"]},
        coords={"school": SCHOOLS},
    )
    assert model.structure == "globals: log_tau, mu; 8 local blocks of 1: theta by school"
    return tv.fit(model, progress=False)


def test_the_data_of_a_jax_function_stand_in_the_tree(fit: tv.Fit, tmp_path: Path) -> None:
    tree, draws = fit.to_arviz(N), fit.sample(N)
    assert tree["observed_data"]["y"].dims == ("school",)
    assert tree["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert tree["log_likelihood"]["school"].values.tolist() == SCHOOLS
    logs = stats.norm.logpdf(Y, draws["theta"], SIGMA)
    np.testing.assert_allclose(tree["log_likelihood"]["y"].values[0], logs, rtol=1e-12)
    rest = (tree["posterior_predictive"]["y"].values[0] - draws["theta"]) / SIGMA
    assert stats.kstest(rest.ravel(), "norm").pvalue > 1e-3
    # the weights 1/p are so even here that leaving one out is, nearly, their plain harmonic mean
    by_hand = np.log(N) - special.logsumexp(-logs, axis=0)
    np.testing.assert_allclose(arviz_stats.loo(tree, pointwise=True).elpd_i.values, by_hand, atol=0.02)
    loaded = tv.load_fit(fit.save(tmp_path / "fit.npz"))
    with pytest.raises(InputError, match="read from a file"):
        loaded.predict()
    assert loaded.sample(3)["theta"].shape == (3, 8)


def test_refining_a_jax_function_gives_its_evidence(fit: tv.Fit) -> None:
    """With theta integrated out by hand y ~ N(mu, tau^2 + sigma^2); mu and log tau by a fine grid."""
    mu, v = np.meshgrid(np.linspace(-25, 25, 401), np.linspace(-2, 4, 301))
    logs = stats.norm.logpdf(mu, 0, 5) + stats.norm.logpdf(v, 1, 0.5)
    for y, sigma in zip(Y, SIGMA, strict=True):
        logs += stats.norm.logpdf(y, mu, np.hypot(np.exp(v), sigma))
    weights = np.exp(logs - special.logsumexp(logs))
    refined = fit.refine(progress=False)
    assert refined.refined is not None
    assert refined.refined.weighted
    evidence = special.logsumexp(logs) + np.log(50 / 400 * 6 / 300)
    assert abs(refined.refined.log_evidence - evidence) < 5 * refined.refined.log_evidence_error + 1e-3
    table = refined.summary(seed=1)
    for name, grid in (("mu", mu), ("log_tau", v)):
        mean = (weights * grid).sum()
        sd = np.sqrt((weights * (grid - mean) ** 2).sum())
        assert abs(table.loc[name, "mean"] - mean) < 5 * sd / np.sqrt(refined.refined.ess)
        assert abs(table.loc[name, "sd"] / sd - 1) < 5 / np.sqrt(2 * refined.refined.ess)


def test_terms_are_read_from_the_sums() -> None:
    data = np.arange(4.0)

    def helper(x: Any, mu: Any) -> Any:
        return logpdf(x, mu, 2.0).sum()

    def density(p: Any) -> Any:
        t, r = jnp.exp(p[1]), data - p[2:]
        found = logpdf(p[0], 0.0, 5.0) + jax.jit(helper)(p[2:], p[0]) - 0.5 * r @ r / 2.0
        found += 3 * jnp.mean(p[2:] ** 2) - jnp.sum(jnp.sum(p[2:].reshape(2, 2), axis=0)) * t - jax.nn.softplus(p[0])
        return jnp.where(t > 0, found, -jnp.inf)

    with in_64_bits():
        point = jnp.array([0.1, 0.2, 1.0, 2.0, 3.0, 4.0])
        terms = jax.jit(terms_of(density))
        np.testing.assert_allclose(terms(point).sum(), jax.jit(density)(point), rtol=1e-14)
        slopes = jax.jit(jax.jacobian(terms))(point)
        np.testing.assert_allclose(slopes.sum(0), jax.jit(jax.grad(density))(point), rtol=1e-13)
    assert np.count_nonzero(slopes[:, 2:], axis=1).max() == 1  # no term of two locals


def mixed(p: Any) -> Any:
    """The logarithm of a sum is no sum of terms, and yet of one block each: log prod = sum log."""
    return jnp.log(jnp.prod(jnp.exp(-0.5 * (p["x"] - p["m"]) ** 2))) - 0.5 * p["m"] ** 2


def test_terms_that_cannot_be_read_are_given() -> None:
    example = {"m": 0.0, "x": np.zeros(3)}
    model = tv.models.Jax(mixed, example)
    assert not model.has_log_terms
    with pytest.raises(InputError, match="pass terms=, a function that returns such terms"):
        quick_fit(model, n_iterations=1).refine()
    given = tv.models.Jax(mixed, example, terms=lambda p: (-0.5 * p["m"] ** 2, -0.5 * (p["x"] - p["m"]) ** 2))
    point = np.array([[0.5, 1.0, 2.0, 3.0]])
    top, each, slope = given.log_terms_and_gradient(point, np.array([[1.0, 0.0, 2.0]]))
    np.testing.assert_allclose(top, -0.125)
    np.testing.assert_allclose(each, -0.5 * (point[:, 1:] - 0.5) ** 2, rtol=1e-14)
    np.testing.assert_allclose(slope, [[-0.5 + 0.5 + 2 * 2.5, -0.5, 0.0, -2 * 2.5]], rtol=1e-14)
    with pytest.raises(InputError, match="terms add up to"):
        tv.models.Jax(mixed, example, terms=lambda p: -0.5 * p["x"] ** 2)
    with pytest.raises(InputError, match="one of them rests on several local blocks"):
        tv.models.Jax(mixed, example, terms=lambda p: mixed(p))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"log_likelihood": likelihood}, "pass observed="),
        ({"observed": {"theta": Y}}, "'theta' is a leaf of example too"),
        ({"observed": np.array(["a"])}, "real numbers, got dtype"),
        (
            {"observed": Y, "log_likelihood": schools},
            r"each value of 'y', whose shape is \(8,\); it returned \(\)\. .* one observation.* the shape \(1, 8\)",
        ),
        ({"observed": [[1.0], [2.0, 3.0]]}, "'y' must be an array of real numbers"),
        ({"observed": Y, "log_likelihood": lambda p: p["theta"][:3]}, r"shape is \(8,\); it returned \(3,\)"),
        ({"observed": Y, "log_likelihood": lambda p: {"z": p["theta"]}}, "arrays for 'y'; it returned 'z'"),
        ({"observed": Y, "predictive": lambda p, key: p["theta"][:3]}, r"shape \(8,\), it returned \(3,\)"),
        ({"observed": Y, "predictive": lambda p: p["theta"]}, "predictive cannot be traced"),
        (
            {"observed": Y, "log_likelihood": lambda p: p["theta"] + 1j},
            "real numbers for 'y'; it returned dtype complex",
        ),
        (
            {"observed": Y, "predictive": lambda p, key: np.array(["low"] * 8)},
            r"predictive must return an array of real numbers",
        ),
        (
            {"observed": Y, "log_likelihood": lambda p: jnp.log(p["theta"] - 1)},
            r"^Jax: log_likelihood .* NaN for y\[0\]",
        ),
        ({"observed": Y, "predictive": lambda p, key: p["theta"] / 0}, r"^Jax: predictive returned NaN for y\[0\]"),
        ({"dims": {"thet": ["school"]}}, "Did you mean 'theta'"),
        ({"dims": {"theta": []}}, "must name 1 axes"),
        ({"terms": 3}, "terms must be a function"),
    ],
)
def test_what_does_not_fit_a_jax_function_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.models.Jax(schools, SHAPES, **settings)


def test_all_values_can_be_one_observation() -> None:
    """Of shape (1, 8), as the words about a single number for eight values say."""
    model = tv.models.Jax(schools, SHAPES, observed=Y[None], log_likelihood=lambda p: likelihood(p).sum()[None])
    assert model.log_likelihood(np.zeros((2, 10)))["y"].shape == (2, 1)
    own = tv.models.LogDensity(
        conjugate, LAYOUT, constrain=REAL, observed=DATA[None], log_likelihood=lambda v: each(v).sum(1, keepdims=True)
    )
    assert own.log_likelihood(np.zeros((2, 1)))["y"].shape == (2, 1)


# ---- NumPy -------------------------------------------------------------------------------------------------
LAYOUT = tv.Layout(n_global=1, n_local=0, local_dim=0)
REAL = {"m": tv.transforms.Real()}
VARIANCE = 1 / (1 + 8)  # of m ~ N(0, 1) after eight values of variance 1
DATA = Y / 10


def conjugate(v: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rest = DATA - v["m"][:, None]
    return -0.5 * (v["m"] ** 2 + (rest**2).sum(1)), {"m": rest.sum(1) - v["m"]}


def each(v: dict[str, np.ndarray]) -> np.ndarray:
    return stats.norm.logpdf(DATA, v["m"][:, None], 1.0)


def again(v: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    return v["m"][:, None] + rng.standard_normal((len(v["m"]), 8))


def test_a_function_of_ones_own_has_loo_and_predictions() -> None:
    """A conjugate normal mean, put into a fit by hand: leaving one out has a closed form."""
    model = tv.models.LogDensity(
        conjugate,
        LAYOUT,
        constrain=REAL,
        observed=DATA,
        log_likelihood=each,
        predictive=again,
        dims={"y": ["school"]},
        coords={"school": SCHOOLS},
    )
    mean = VARIANCE * DATA.sum()
    fit = quick_fit(model, "full-rank", tv.SGD(1e-12), n_iterations=1, init=np.array([mean, np.sqrt(VARIANCE)]))
    tree = fit.to_arviz(N)
    assert tree["observed_data"]["school"].values.tolist() == SCHOOLS
    rest = [(np.delete(DATA, k).sum() / 8, 1 / 8) for k in range(8)]
    by_hand = [stats.norm.logpdf(DATA[k], m, np.sqrt(v + 1)) for k, (m, v) in enumerate(rest)]
    # the error of 4,000 draws: a standard deviation of some 1.5 of the weighted densities, relative to their mean
    np.testing.assert_allclose(arviz_stats.loo(tree, pointwise=True).elpd_i.values, by_hand, atol=5 * 1.5 / np.sqrt(N))
    found = fit.predict(n_draws=N)["y"]
    sd = np.sqrt(VARIANCE + 1)
    assert (np.abs(found.mean(0) - mean) < 5 * sd / np.sqrt(N)).all()
    assert (np.abs(found.std(0) / sd - 1) < 5 / np.sqrt(2 * N)).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"log_likelihood": each}, "pass observed="),
        ({"observed": {"m": DATA}}, "'m' is a variable of the model too"),
        ({"observed": DATA, "log_likelihood": lambda v: each(v).sum(0)}, r"of shape \(3, 8\); it returned \(8,\)"),
        ({"observed": DATA, "predictive": lambda v, rng: v["m"]}, r"'y' of shape \(3, 8\) for 3 points"),
        ({"observed": DATA, "predictive": 1}, "predictive must be a function"),
        ({"observed": {}}, "at least one array"),
        (
            {"observed": DATA, "log_likelihood": lambda v: each(v).astype(str)},
            "real numbers for 'y'; it returned dtype <U",
        ),
        ({"observed": DATA, "predictive": lambda v, rng: again(v, rng) + 1j}, "'y'; it returned dtype complex128"),
        ({"observed": DATA, "log_likelihood": lambda v: np.log(each(v))}, r"returned NaN for y\[0\] near 0"),
        (
            {"observed": DATA, "predictive": lambda v, rng: again(v, rng) * np.nan},
            r"predictive returned NaN for y\[0\]",
        ),
        (
            {"observed": DATA[:3], "log_likelihood": lambda v: each(v)[:, :3].T},
            r"of shape \(4, 3\); it returned \(3, 4\)",
        ),
        ({"observed": [[1.0], [2.0, 3.0]]}, r"'y' must be an array of real numbers \(.*inhomogeneous"),
        (
            {"observed": DATA, "log_likelihood": lambda v: each(v).sum(1)},
            r"of shape \(3, 8\); it returned \(3,\)\. .* one observation.* the shape \(1, 8\)",
        ),
    ],
)
def test_what_does_not_fit_a_numpy_function_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.models.LogDensity(conjugate, LAYOUT, constrain=REAL, **settings)


def test_data_that_are_missing_may_have_no_likelihood() -> None:
    observed = np.where(np.arange(8) == 2, np.nan, DATA)
    for settings in ({"log_likelihood": lambda v: stats.norm.logpdf(observed, v["m"][:, None])}, {"predictive": again}):
        model = tv.models.LogDensity(conjugate, LAYOUT, constrain=REAL, observed=observed, **settings)
    assert model.replicate(np.zeros((2, 1)), np.random.default_rng(0))["y"].shape == (2, 8)
    jax_model = tv.models.Jax(
        schools, SHAPES, observed=observed, log_likelihood=lambda p: logpdf(observed, p["theta"], SIGMA)
    )
    assert jax_model.log_likelihood(np.zeros((2, 10)))["y"].shape == (2, 7)


def broken(*given: Any) -> Any:
    raise ZeroDivisionError("in the user's code.\nA page of more.")


def test_a_function_that_fails_is_named_with_what_it_was_given() -> None:
    """At once, and where it fails for other draws alone; what it raised is chained."""
    given, shapes = {"observed": DATA}, r"with the values of 3 points, of shapes 'm' \(3,\)"
    for name in ("log_likelihood", "predictive", "terms"):
        words = rf"^LogDensity: {name} failed \(ZeroDivisionError: in the user's code\) {shapes}"
        with pytest.raises(InputError, match=words) as caught:
            tv.models.LogDensity(conjugate, LAYOUT, constrain=REAL, **given, **{name: broken})
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def for_three(points: np.ndarray) -> np.ndarray:
        return stats.norm.logpdf(DATA, points, np.ones((3, 1)))

    def plain(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = conjugate({"m": points[:, 0]})
        return value, slope["m"][:, None]

    model = tv.models.LogDensity(plain, LAYOUT, observed=DATA, log_likelihood=for_three)
    words = r"log_likelihood failed \(ValueError: .*\) with an array of points \(5, 1\).* their number varies\.$"
    with pytest.raises(InputError, match=words):
        model.log_likelihood(np.zeros((5, 1)))


def test_a_loaded_fit_says_how_it_gets_its_functions_again(tmp_path: Path) -> None:
    model = tv.models.LogDensity(conjugate, LAYOUT, constrain=REAL, observed=DATA, predictive=again)
    path = quick_fit(model, n_iterations=1).save(tmp_path / "fit.npz")
    loaded = tv.load_fit(path)
    for call in (loaded.predict, loaded.refine, lambda: loaded.model.log_density(np.zeros((1, 1)))):
        with pytest.raises(InputError, match=r"pass it as tv\.load_fit\(path, model=\.\.\.\)"):
            call()
    assert tv.load_fit(path, model=model).predict(n_draws=2)["y"].shape == (2, 8)


def test_what_was_not_given_is_said() -> None:
    fit = quick_fit(tv.models.LogDensity(conjugate, LAYOUT, constrain=REAL, observed=DATA), n_iterations=1)
    assert set(fit.to_arviz(2).children) == {"posterior", "sample_stats", "observed_data", "optimization"}
    for call, words in ((fit.predict, "predictive= was not given"), (fit.model.draw_prior, "_draw_prior")):
        with pytest.raises(InputError, match=words):
            call(*(() if call == fit.predict else (1, np.random.default_rng(0))))
    with pytest.raises(InputError, match="there is no prediction, since fn does not tell what it says of other data"):
        fit.predict(3)
    with pytest.raises(InputError, match="log_likelihood= was not given"):
        fit.model.log_likelihood(np.zeros((1, 1)))


def by_columns(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return -points[:, 5], points


@pytest.mark.parametrize(
    ("fn", "settings", "words"),
    [
        (conjugate, {}, "fn takes named values .* pass constrain="),
        (lambda v: (-v.get("m"), {}), {}, "fn takes named values .*no attribute 'get'.* pass constrain="),
        (by_columns, {}, r"out of bounds.* d = 1 columns are the layout's n_global \+ n_local"),
        (lambda x: (-((x - np.zeros((3, 7))).sum(1)), x[:, :1, 0]), {}, "the layout must be that which fn is written"),
        (lambda v: (-v["k"], {}), {"constrain": REAL}, r"looks up 'k', which constrain does not name: 'm' \(3,\)"),
        (lambda v: (-v["m"] @ np.ones(7), {}), {"constrain": REAL}, r"of shapes 'm' \(3,\): the layout and constrain"),
    ],
)
def test_a_wrong_layout_or_names_without_constrain_are_told(fn: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.models.LogDensity(fn, LAYOUT, **settings)
