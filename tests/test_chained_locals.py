"""Locals that form a chain, integrated out, and fits refined so: against closed forms and a filter on a grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import fit_at, quick_fit
from test_chain_check import LocalLevel, filtered, normal_chain

import pyturingvi as tv
from pyturingvi.data import simulate_volatility
from pyturingvi.diagnosis.chain_curvature import ChainCurvature, ChainFactor
from pyturingvi.diagnosis.chained_locals import ChainedLocals
from pyturingvi.errors import InputError
from pyturingvi.families import get_family
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.layout import Layout
from pyturingvi.refine.refine import check_refinable


def somewhere(model: Any, family: str = "markov", seed: int = 1) -> GlobalsAndLocals:
    """A random member of a family, far from the locals' mode."""
    bound, rng = get_family(family).bind(model.layout), np.random.default_rng(seed)
    return GlobalsAndLocals.of(bound, bound.initial_flat(rng.normal(size=model.layout.dim), 0.3))


# ---- normal given the globals: all is exact ------------------------------------------------------------------
@pytest.mark.parametrize(("n", "local_dim"), [(1, 1), (2, 2), (40, 1), (13, 3)])
@pytest.mark.parametrize("family", ["markov", "mean-field"])
def test_a_linear_chain_is_integrated_out_exactly(family: str, n: int, local_dim: int) -> None:
    problem = LocalLevel(n, local_dim, (0.7, 0.5))
    model = problem.model
    integrals = ChainedLocals(model, somewhere(model, family), None)
    z = np.random.default_rng(2).normal(-0.5, 0.5, size=(5, 2))
    a, b = z.T
    expected = problem.log_marginal(a, b)
    np.testing.assert_allclose(integrals.log_density(z), expected, atol=1e-8)
    values, slopes = integrals.log_density_and_gradient(z)
    np.testing.assert_allclose(values, expected, atol=1e-8)
    step = 1e-5
    there = [problem.log_marginal(a + da, b + db) for da, db in step * np.array([(1, 0), (-1, 0), (0, 1), (0, -1)])]
    differences = np.column_stack([there[0] - there[1], there[2] - there[3]]) / (2 * step)
    # slopes are quadratic in neighbours, whose second moments are exact but for what is 16 variables away
    np.testing.assert_allclose(slopes, differences, rtol=1e-6, atol=5e-2 if n * local_dim > 16 else 1e-5)


def test_moments_neighbours_and_draws_are_those_of_the_smoother() -> None:
    problem = LocalLevel(12, 2, (0.7, 0.5))
    integrals = ChainedLocals(problem.model, somewhere(problem.model), None)
    z = np.array([[-0.2, -0.9]])
    covariance = np.linalg.inv(np.exp(0.4) * problem.chain + np.exp(1.8) * np.eye(24))
    mean = np.exp(1.8) * covariance @ problem.x
    blocks = covariance.reshape(12, 2, 12, 2)
    found, spread, lagged = integrals.moments_and_neighbours(z)
    np.testing.assert_allclose(found.ravel(), mean, atol=1e-6)
    for n in range(12):
        np.testing.assert_allclose(spread[0, n], blocks[n, :, n], atol=1e-4)
    for n in range(1, 12):
        np.testing.assert_allclose(lagged[0, n - 1], blocks[n, :, n - 1], atol=1e-4)
    n_draws = 4000
    draws = integrals.draw(np.repeat(z, n_draws, axis=0), np.random.default_rng(3))
    error = np.sqrt(np.diag(covariance) / n_draws)
    assert np.abs((draws.mean(0) - mean) / error).max() < 4.5
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).T)
    np.testing.assert_allclose(whitened @ whitened.T / n_draws, np.eye(24), atol=5 / np.sqrt(n_draws))


def test_the_markov_member_has_the_moments_it_is_made_of() -> None:
    rng = np.random.default_rng(4)
    layout = Layout(2, 5, 2)
    bound = get_family("markov").bind(layout)
    flat = bound.initial_flat(rng.normal(size=layout.dim), 0.3)
    flat[layout.dim :] += 0.1 * rng.normal(size=len(flat) - layout.dim)
    parts, scale = GlobalsAndLocals.of(bound, flat), bound.scale(flat).toarray()
    of_locals = scale[2:, 2:] @ scale[2:, 2:].T
    lagged = np.stack([of_locals[2 * n + 2 : 2 * n + 4, 2 * n : 2 * n + 2] for n in range(4)])
    np.testing.assert_allclose(parts.markov_flat(lagged), flat, atol=1e-12)


def test_a_factor_spreads_noise_by_the_inverse_and_bends_what_is_not_positive() -> None:
    target = normal_chain(3)
    layout = target.layout
    d_z, n, d = layout.n_global, layout.n_local, layout.local_dim
    precision = target.precision[d_z:, d_z:]
    blocks = precision.reshape(n, d, n, d)
    diagonal = np.stack([blocks[k, :, k] for k in range(n)])
    below = np.stack([blocks[k + 1, :, k] for k in range(n - 1)])
    factor = ChainFactor.of(diagonal, below)
    assert factor is not None
    root = factor.spread(np.eye(n * d))
    np.testing.assert_allclose(root @ root.T @ precision, np.eye(n * d), atol=1e-8)
    assert factor.half_log_det == pytest.approx(0.5 * np.linalg.slogdet(precision)[1])
    np.testing.assert_allclose(precision @ factor.solve(np.arange(n * d)), np.arange(n * d), atol=1e-7)
    bent = ChainFactor.of(-0.2 * np.eye(d) + 0 * diagonal, 0 * below)
    assert bent is not None
    assert np.isfinite(bent.half_log_det)
    assert ChainFactor.of(-1e9 * np.eye(d) + 0 * diagonal, below) is None
    assert ChainFactor.of(np.nan * diagonal, below) is None


# ---- volatility: a filter on a grid is the reference ---------------------------------------------------------
def volatility(n: int, seed: int = 3) -> tv.models.StochasticVolatility:
    return tv.models.StochasticVolatility(simulate_volatility(n, 1, seed=seed))


def middle_of(model: tv.models.StochasticVolatility) -> np.ndarray:
    """Globals that the returns may well have been simulated with."""
    return np.array([np.log(np.var(model.returns)) - 0.3, 3.5, -1.6])


def integrals_of(model: tv.models.StochasticVolatility, pairs: int | None = None) -> ChainedLocals:
    """Around a constant volatility, which is no fit."""
    bound, middle = get_family("markov").bind(model.layout), middle_of(model)
    location = np.concatenate([middle, np.full(len(model.returns), middle[0])])
    return ChainedLocals(model, GlobalsAndLocals.of(bound, bound.initial_flat(location, 0.3)), pairs)


def some_globals(model: tv.models.StochasticVolatility) -> np.ndarray:
    return middle_of(model) + 0.3 * np.random.default_rng(5).normal(size=(8, 3))


@pytest.mark.parametrize(("n", "pairs", "within"), [(60, 32, 0.1), (200, 32, 0.2), (200, 128, 0.1)])
def test_volatility_is_integrated_out_as_a_filter_does(n: int, pairs: int, within: float) -> None:
    """Up to a constant, which weights and steps do not feel; the variance's noise falls with the number of draws."""
    model = volatility(n)
    integrals, z = integrals_of(model, pairs), some_globals(model)
    off = integrals.log_density(z) - [filtered(model.returns[:, 0], one) for one in z]
    assert abs(off.mean()) < 0.3
    assert off.std() < within


def test_slopes_are_those_of_the_filter() -> None:
    """For moves of a standard deviation of each global."""
    model = volatility(120)
    integrals, z = integrals_of(model), some_globals(model)[:4]
    slopes = integrals.log_density_and_gradient(z)[1]
    step = 1e-3 * np.eye(3)
    expected = [
        [(filtered(model.returns[:, 0], one + e) - filtered(model.returns[:, 0], one - e)) / 2e-3 for e in step]
        for one in z
    ]
    sds = np.array([0.3, 0.7, 0.3])
    np.testing.assert_allclose(slopes * sds, expected * sds, atol=0.15)


def test_large_variances_are_not_taken_for_those_of_many_small_parts() -> None:
    """Locals as free as here are skewed one by one: half the variance would put the density nats above the filter's."""
    model = volatility(60)
    integrals, z = integrals_of(model, 64), middle_of(model) + np.array([[0, -2.5, 0], [0, -2.5, 3.6]])
    middle, out = integrals.log_density(z) - [filtered(model.returns[:, 0], one) for one in z]
    assert abs(middle) < 0.3
    found = integrals._nearest(z)
    noise = np.random.default_rng(0).standard_normal((60, 500))
    points = integrals._points(z[1], found, 1, noise)
    even, odd = integrals._log_ratios(model.log_density(points), found, 1, noise)
    by_variance = even.mean() + 0.5 * (even.var() + (odd**2).mean()) - filtered(model.returns[:, 0], z[1])
    assert by_variance > 2.0
    assert out < 0.5


# ---- refined fits --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("family", "problem"),
    [
        ("markov", LocalLevel(60, 1, (0.3, 1.0))),
        ("mean-field", LocalLevel(60, 1, (0.5, 1.0), 1)),
        ("structured", LocalLevel(20, 2, (0.5, 1.0))),
    ],
)
def test_a_refined_local_level_has_the_globals_of_a_grid(
    family: str, problem: LocalLevel, recwarn: pytest.WarningsRecorder
) -> None:
    model = problem.model
    model.default_family = "markov"
    fit = quick_fit(model, family, None, engine="numpy")
    recwarn.clear()  # of scales that are off, which is what is corrected
    refined = fit.refine(progress=False)
    assert not recwarn.list
    assert refined.refined is not None
    assert refined.refined.weighted
    assert refined.family.name == "markov"
    mean, sd = problem.moments()
    weights, z = refined.refined.weights, refined.refined.draws
    found = weights @ z
    spread = np.sqrt(weights @ (z - found) ** 2)
    assert np.abs((found - mean) / sd).max() < 0.1
    np.testing.assert_allclose(spread, sd, rtol=0.07)
    np.testing.assert_allclose(refined.global_sds, spread, rtol=1e-6)
    assert refined.diagnose().verdict == "good"


def test_a_refined_volatility_has_the_globals_of_the_filter_and_is_kept_in_a_file(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Its draws, weighted anew by the filter, have the same means and standard deviations."""
    model = volatility(100)
    fit = quick_fit(model, None, None, engine="numpy")
    assert any("fit.refine()" in words and "wider" in words for words in fit.advice)
    recwarn.clear()
    refined = fit.refine(progress=False)
    found = refined.refined
    assert found is not None
    assert found.weighted
    few = np.random.default_rng(0).choice(len(found.draws), size=300, p=found.weights)
    z = found.draws[few]
    exact = np.array([filtered(model.returns[:, 0], one) for one in z])
    integrals = ChainedLocals(model, GlobalsAndLocals.of(refined.family.bind(model.layout), refined.params), None)
    logs = exact - integrals.log_density(z)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean, sd = weights @ z, np.sqrt(weights @ (z - weights @ z) ** 2)
    assert np.abs((z.mean(0) - mean) / sd).max() < 0.1
    np.testing.assert_allclose(z.std(0), sd, rtol=0.1)
    assert (found.importance.mean(found.draws)[2] - fit.location[2]) / fit.global_sds[2] != pytest.approx(0, abs=0.5)
    refined.save(tmp_path / "refined.npz")
    again = tv.load_fit(tmp_path / "refined.npz")
    draws = refined.sample(50, seed=3)
    for name, values in again.sample(50, seed=3).items():
        np.testing.assert_array_equal(values, draws[name])
    assert refined.forecast(3)["returns"].shape == (1000, 3, 1)
    # the Gaussian that is kept has the paths of the draws, their memory too
    gaussian = GlobalsAndLocals.of(refined.family.bind(model.layout), refined.params)
    paths = refined.sample(2000)["y"][:, :, 0]
    assert np.abs((paths.mean(0) - gaussian.local_mean) / paths.std(0)).max() < 0.25
    bound = refined.family.bind(model.layout)
    noise = np.random.default_rng(1).standard_normal((4000, bound.noise_dim))
    points = np.empty((4000, model.dim))
    bound.transform(bound.from_flat(refined.params), noise, points)
    np.testing.assert_allclose(points[:, 3:].std(0), paths.std(0), rtol=0.25)
    lag = [np.corrcoef(one[:, 49], one[:, 50])[0, 1] for one in (points[:, 3:], paths)]
    assert lag[0] == pytest.approx(lag[1], abs=0.12)


@pytest.mark.slow
def test_a_random_walk_of_numpyro_refined_has_the_globals_of_nuts() -> None:
    jnp, numpyro = pytest.importorskip("jax.numpy"), pytest.importorskip("numpyro")
    import jax
    import numpyro.distributions as dist

    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(1 + np.cumsum(0.15 * rng.standard_normal(80))))

    def walk(y: Any) -> None:
        scale, level = numpyro.sample("scale", dist.HalfNormal(1.0)), numpyro.sample("level", dist.Normal(0, 3))
        x = numpyro.sample("x", dist.GaussianRandomWalk(scale, num_steps=len(y)))
        numpyro.sample("y", dist.Poisson(jnp.exp(level + x)), obs=y)

    refined = quick_fit(tv.models.NumPyro(walk, (counts,)), None, None, refine=True)
    nuts = numpyro.infer.MCMC(numpyro.infer.NUTS(walk), num_warmup=1000, num_samples=8000, progress_bar=False)
    nuts.run(jax.random.PRNGKey(0), counts)
    reference = {name: np.asarray(nuts.get_samples()[name]) for name in ("scale", "level")}
    draws = refined.sample(4000, local=False)
    for name, exact in reference.items():
        assert abs(draws[name].mean() - exact.mean()) < 0.15 * exact.std()
        assert draws[name].std() == pytest.approx(exact.std(), rel=0.12)


# ---- what is refused -----------------------------------------------------------------------------------------
def test_locals_that_touch_others_than_their_neighbours_are_refused() -> None:
    target = normal_chain(0, reach=2)
    with pytest.raises(InputError, match=r"refine cannot help .*others than their neighbours"):
        check_refinable(target.model, tv.Markov())
    with pytest.raises(InputError, match=r"refine cannot help .*pass `terms=`"):
        check_refinable(target.model, tv.Structured())
    with pytest.raises(InputError, match=r"refine cannot help .*others than its neighbours"):
        ChainedLocals(target.model, somewhere(target.model, "structured"), None)
    check_refinable(normal_chain(0).model, tv.Markov())


def test_locals_far_from_normal_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a third order that grows along a global."""
    problem = LocalLevel(40, 1, (0.3, 1.0))
    with pytest.warns(tv.RefineWarning):
        fit = quick_fit(problem.model, "markov", None, engine="numpy")
    monkeypatch.setattr(ChainedLocals, "doubt", lambda self, z: float(np.std(3 * z[:, 0])))
    with pytest.warns(tv.ConvergenceWarning, match=r"far from normal given the globals.*off by [1-9]\.\d nats"):
        refined = fit.refine(progress=False)
    assert refined.refined is not None
    assert refined.refined.doubt > 0.5
    assert refined.diagnose().verdict != "good"


def test_where_no_gaussian_is_found_the_density_is_0() -> None:
    class Upward(tv.models.Model):
        """Locals that no normal distribution holds beyond z = 1."""

        layout = Layout(1, 4, 1)

        def _log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            z, y = points[:, :1], points[:, 1:]
            bend = np.where(z < 1, 1.0, -1e6)
            return -0.5 * (z[:, 0] ** 2 + (bend * y**2).sum(axis=1)), np.hstack([-z, -bend * y])

    model = Upward()
    integrals = ChainedLocals(model, somewhere(model), None)
    integrals._offset = integrals._offset - integrals._start(np.zeros((1, 1)))[0]
    z = np.array([[0.5], [2.0]])
    values, slopes = integrals.log_density_and_gradient(z)
    assert values[0] == pytest.approx(stats.norm.logpdf(0.5) + 2.5 * np.log(2 * np.pi))
    assert values[1] == -np.inf
    assert np.isnan(slopes[1]).all()
    assert np.isfinite(integrals.draw(z, np.random.default_rng(0))).all()
    assert np.isfinite(integrals.moments(z)[1]).all()


def test_the_curvature_costs_what_it_says() -> None:
    problem = LocalLevel(9, 2, (0.7, 0.5))
    model, calls = problem.model, []
    plain = model._log_density_and_gradient
    model._log_density_and_gradient = lambda points: (calls.append(len(points)), plain(points))[1]  # type: ignore
    curvature = ChainCurvature(model)
    curvature.expand(np.zeros((3, 2)), np.zeros((3, 9, 2)), np.ones((9, 2)), np.ones((9, 2)))
    assert sum(calls) == 3 * curvature.cost


def test_a_family_without_a_memory_is_not_trusted() -> None:
    """Slopes around a fit tell nothing of a place that is far from it: in benchmarks/results/references.csv one is."""
    model = volatility(60)
    for family, far in ((tv.Structured(), True), (tv.MeanField(), True), (tv.Markov(), False)):
        bound = family.bind(model.layout)
        found = fit_at(model, family, bound.initial_flat(np.zeros(model.dim), 0.1)).diagnose()
        assert any("take tv.Markov()" in reason for reason in found.reasons) == far
        assert found.verdict == "do not trust" or not far
