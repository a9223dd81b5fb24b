"""Refining: integrals and their slopes against fine grids, closed forms of a normal hierarchy, a long run of NUTS."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats
from targets import fit_at

import pyturingvi as tv
from pyturingvi.diagnosis.integrated import LocalIntegrals
from pyturingvi.diagnosis.nodes import Rule
from pyturingvi.diagnosis.weights import importance_weights
from pyturingvi.errors import InputError
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.refine.proposals import (
    Gaussian,
    Mixture,
    Surrogate,
    draw_surrogate,
    log_mixture,
    mixture_through,
    surrogate_through,
)
from pyturingvi.refine.refine import expected_seconds
from pyturingvi.refine.resolution import Resolution
from pyturingvi.refine.start import newton_step
from pyturingvi.refine.weighted_draws import WeightedDraws


def default_fit(model: Any, **settings: Any) -> tv.Fit:
    return tv.fit(model, "structured", engine="numpy", progress=False, **settings)


def log_normal(rest: np.ndarray, sd: float = 1.0) -> np.ndarray:
    """SciPy's `norm.logpdf` in a tenth of its time, for densities that are called thousands of times."""
    return -0.5 * (rest / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))


# ---- a normal hierarchy, all in closed form ------------------------------------------------------------------
class NormalHierarchy:
    """z ~ N(0, I), y_n ~ N(B_n z, I), x_n ~ N(y_n, I/2), with the locals d_y long."""

    def __init__(self, local_dim: int, n_local: int = 6, n_global: int = 2) -> None:
        rng = np.random.default_rng(local_dim)
        self.layout = tv.Layout(n_global, n_local, local_dim)
        self.slopes = rng.normal(size=(n_local, local_dim, n_global))
        self.x = rng.normal(1.0, 2.0, size=(n_local, local_dim))
        self.model = tv.models.LogDensity(self.density, self.layout, terms=self.terms)

    def terms(self, points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        d_z = self.layout.n_global
        z, y = points[:, :d_z], points[:, d_z:].reshape(len(points), *self.x.shape)
        rest, miss = y - np.einsum("nij,mj->mni", self.slopes, z), self.x - y
        local = (log_normal(rest) + log_normal(miss, np.sqrt(0.5))).sum(axis=2)
        w = weights[:, :, None]
        g_y = w * (2 * miss - rest)
        g_z = -z + np.einsum("mni,nij->mj", w * rest, self.slopes)
        return log_normal(z).sum(axis=1), local, np.hstack([g_z, g_y.reshape(len(points), -1)])

    def density(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        prior, local, gradient = self.terms(points, np.ones((len(points), self.layout.n_local)))
        return prior + local.sum(axis=1), gradient

    @property
    def log_evidence(self) -> float:
        b = self.slopes.reshape(-1, self.layout.n_global)
        return float(stats.multivariate_normal(np.zeros(len(b)), b @ b.T + 1.5 * np.eye(len(b))).logpdf(self.x.ravel()))

    @property
    def globals_(self) -> tuple[np.ndarray, np.ndarray]:
        b = self.slopes.reshape(-1, self.layout.n_global)
        covariance = np.linalg.inv(np.eye(b.shape[1]) + b.T @ b / 1.5)
        return covariance @ b.T @ self.x.ravel() / 1.5, covariance


@pytest.mark.parametrize(("local_dim", "tolerance"), [(1, 1e-3), (2, 1e-3), (3, 0.3)])
def test_the_bound_is_the_log_evidence_of_a_normal_hierarchy(local_dim: int, tolerance: float) -> None:
    """Locals of three variables are integrated by draws, whose error is told; it is the same for all globals."""
    target = NormalHierarchy(local_dim)
    refined = default_fit(target.model).refine(progress=False, n_draws=1000)
    found = refined.refined
    assert found is not None
    assert refined.status == "converged"
    assert refined.warnings == []
    assert found.weighted
    assert found.bound == pytest.approx(target.log_evidence, abs=tolerance)
    assert found.log_evidence == pytest.approx(target.log_evidence, abs=tolerance)
    assert abs(found.log_evidence - target.log_evidence) < max(5 * found.integration_error, 1e-3)
    assert found.ess > 900
    mean, covariance = target.globals_
    sds = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(refined.location[:2] / sds, mean / sds, atol=4 / np.sqrt(1000))
    np.testing.assert_allclose(refined.global_sds / sds, 1, atol=4 / np.sqrt(2 * 1000))
    # y_n given z and x_n: precision 3
    points = refined.sample_unconstrained(1000, seed=3)
    means = np.einsum("nij,j->ni", target.slopes, mean)
    expected = (means + 2 * target.x) / 3
    spread = 1 / 3 + np.einsum("nij,jk,nik->ni", target.slopes, covariance, target.slopes) / 9
    draws = points[:, 2:].reshape(1000, *target.x.shape)
    np.testing.assert_allclose((draws.mean(axis=0) - expected) / np.sqrt(spread), 0, atol=4.5 / np.sqrt(1000))
    np.testing.assert_allclose(draws.var(axis=0) / spread, 1, atol=5 * np.sqrt(2 / 1000))


# ---- integrals -----------------------------------------------------------------------------------------------
def fine(model: Any, z: np.ndarray) -> float:
    """The integrated density of robust Poisson regression at z (d_z,), by the trapezoidal rule."""
    mean = model.X @ z[4:] + z[3]
    t = np.linspace(-12, 12, 4001)
    points = np.empty((len(t), model.dim))
    points[:, : len(z)] = z
    points[:, len(z) :] = mean + np.exp(z[2]) * t[:, None]
    prior, terms = model.log_terms(points)
    largest = terms.max(axis=0)
    sums = integrate.trapezoid(np.exp(terms - largest), t, axis=0) * np.exp(z[2])
    return float(prior[0] + (np.log(sums) + largest).sum())


@pytest.mark.parametrize("log_s_eta", [-12.0, -5.0, -2.0, 0.0, 0.7])
def test_nodes_follow_the_globals(poisson: Any, log_s_eta: float) -> None:
    """From nodes 0.3 wide around 0, to locals a thousandth as wide far away from there."""
    bound = tv.Structured().bind(poisson.layout)
    parts = GlobalsAndLocals.of(bound, bound.initial_flat(np.zeros(poisson.dim), 0.3))
    z = np.array([0.1, -0.3, log_s_eta, 0.8, 0.6, -0.5])
    integrals = LocalIntegrals(poisson, parts, Rule.of(30, 1, 15))
    value, slope = integrals.log_density_and_gradient(z[None])
    assert value[0] == pytest.approx(fine(poisson, z), abs=2e-3)
    h = 1e-4
    for k in range(6):
        step = h * np.eye(6)[k]
        expected = (fine(poisson, z + step) - fine(poisson, z - step)) / (2 * h)
        assert slope[0, k] == pytest.approx(expected, abs=0.01 + 1e-3 * abs(expected))


@pytest.mark.parametrize("spread", [0.3, 400.0])
@pytest.mark.parametrize("nodes", ["a grid", "draws"])
def test_a_models_own_way_of_nodes_gives_what_its_log_terms_do(spread: float, nodes: str) -> None:
    """With an offset; nodes of the usual scale, whose exponentials overflow at 400, and after all have moved."""
    rng = np.random.default_rng(5)
    model = tv.models.RobustPoisson(rng.normal(size=(40, 2)), rng.poisson(3.0, size=40), rng.normal(size=40))
    bound = tv.Structured().bind(model.layout)
    parts = GlobalsAndLocals.of(bound, bound.initial_flat(np.full(model.dim, 0.4), spread))
    t = 1.3 * rng.normal(size=(24, 40, 1))
    rule = Rule.of(40, 1, 9) if nodes == "a grid" else Rule(t, 0.5 * (t * t).sum(axis=2), 24)
    own, plain = LocalIntegrals(model, parts, rule), LocalIntegrals(model, parts, rule)
    assert own._own is not None
    plain._own = None
    z = parts.mean + 0.5 * rng.normal(size=(7, 6))
    centre = np.broadcast_to(parts.local_mean[:, None], (7, 40, 1)) + 0.1 * rng.normal(size=(7, 40, 1))
    scale = np.broadcast_to(parts.local_scale, (7, 40, 1, 1))
    for found, expected in zip(own.sums(z, centre, scale), plain.sums(z, centre, scale), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    for found, expected in zip(own.log_density_and_gradient(z), plain.log_density_and_gradient(z), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_subclass_has_its_own_log_terms_at_nodes(poisson: Any) -> None:
    class Other(tv.models.RobustPoisson):
        pass

    bound = tv.Structured().bind(poisson.layout)
    parts = GlobalsAndLocals.of(bound, bound.initial_flat(np.zeros(poisson.dim), 0.3))
    assert LocalIntegrals(Other(poisson.X, poisson.y), parts, Rule.of(30, 1, 9))._own is None


@pytest.mark.parametrize("size", [4, 6, 7, 11])
@pytest.mark.parametrize("width", [0.02, 0.2, 0.4, 0.6, 0.8, 1.2])
def test_a_local_between_two_nodes_is_not_missed(size: int, width: float) -> None:
    """Twenty pairs `y ~ N(0, e^{2z} I)`, whose integrals are 1, from nodes that are 1 wide."""

    def terms(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z, y = points[:, :1], points[:, 1:].reshape(-1, 20, 2) * np.exp(-points[:, :1, None])
        each = -0.5 * (y**2).sum(axis=2) - 2 * z - np.log(2 * np.pi)
        slope = (weights * ((y**2).sum(axis=2) - 2)).sum(axis=1, keepdims=True)
        return 0 * z[:, 0], each, np.hstack([slope, (-weights[..., None] * y * np.exp(-z)[..., None]).reshape(-1, 40)])

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        prior, each, slopes = terms(points, np.ones((len(points), 20)))
        return prior + each.sum(axis=1), slopes

    model = tv.models.LogDensity(density, tv.Layout(1, 20, 2), terms=terms)
    bound = tv.Structured().bind(model.layout)
    parts = GlobalsAndLocals.of(bound, bound.initial_flat(np.zeros(41), 1.0))
    found = LocalIntegrals(model, parts, Rule.of(20, 2, size)).log_density(np.array([[np.log(width)]]))
    assert found[0] == pytest.approx(0, abs=0.15 if size == 4 else 0.05)


# ---- proposals -----------------------------------------------------------------------------------------------
def test_a_mixture_is_one_of_t_distributions() -> None:
    rng = np.random.default_rng(0)
    roots = np.tril(rng.normal(size=(2, 3, 3))) + 2 * np.eye(3)
    mixture = Mixture(np.array([0.3, 0.7]), rng.normal(size=(2, 3)), roots)
    z = rng.normal(size=(5, 3))
    expected = sum(
        share * stats.multivariate_t(mean, root @ root.T * 6 / 8, df=8).pdf(z)
        for share, mean, root in zip(mixture.shares, mixture.means, mixture.roots, strict=True)
    )
    np.testing.assert_allclose(np.exp(mixture.log_density(z)), expected)
    draws = mixture.draw(200_000, rng)
    np.testing.assert_allclose(draws.mean(axis=0), mixture.shares @ mixture.means, atol=0.03)
    gaussian = Gaussian(mixture.means[0], roots[0])
    np.testing.assert_allclose(
        gaussian.log_density(z), stats.multivariate_normal(gaussian.mean, roots[0] @ roots[0].T).logpdf(z)
    )
    both = np.logaddexp(np.log(0.25) + gaussian.log_density(z), np.log(0.75) + mixture.log_density(z))
    np.testing.assert_allclose(log_mixture(z, [(10, gaussian), (30, mixture)]), both)


@pytest.mark.parametrize(("d", "wide"), [(16, 1.35), (40, 1.15)])
@pytest.mark.parametrize("seed", [0, 1])
def test_draws_are_not_weighted_by_a_mixture_that_only_holds_them(d: int, wide: float, seed: int) -> None:
    """A normal density of many variables, from draws of a narrower one, that is too few for even one covariance.

    With mixtures through them all the same its log total was 0.2 to 0.5 nats too low, twenty standard errors.
    """
    target = stats.multivariate_normal(np.r_[0.6, np.zeros(d - 1)], wide**2 * np.eye(d))
    draws = WeightedDraws(target.logpdf, None, seed)
    draws.draw_from(Gaussian(np.zeros(d), np.eye(d)), 2000)
    assert len(draws.drawn) > 1
    total, error = draws.log_total()
    assert total == pytest.approx(0, abs=4 * error)
    weights = importance_weights(draws.log_ratios)
    mean = weights.mean(draws.z)
    assert mean[0] == pytest.approx(0.6, abs=4.5 * wide / np.sqrt(weights.ess))
    sds = np.sqrt(weights.weights @ (draws.z - mean) ** 2)
    assert (sds / wide).mean() == pytest.approx(1, abs=0.015)  # d of them: their mean is known to 0.004


def test_a_mixture_through_draws_of_two_clusters_finds_them() -> None:
    rng = np.random.default_rng(1)
    z = np.concatenate([rng.normal(-4, 0.5, size=(800, 1)), rng.normal(4, 1.0, size=(200, 1))])
    weights = np.where(z[:, 0] < 0, 1.0, 3.0)  # of 2,000 draws, 600 to the right
    found = mixture_through(z, weights / weights.sum(), 900.0, rng)
    x = np.linspace(-60, 60, 6001)
    density = np.exp(found.log_density(x[:, None]))
    assert integrate.trapezoid(density, x) == pytest.approx(1, abs=1e-4)
    assert integrate.trapezoid(density * (x > 0), x) == pytest.approx(600 / 1400, abs=0.03)
    assert density[np.argmin(np.abs(x))] < 0.01


def funnel(z: np.ndarray) -> np.ndarray:
    """`v ~ N(-1, 1.5^2)`, `a ~ N(0, e^v)`."""
    v, a = z.T
    return np.asarray(stats.norm.logpdf(v, -1, 1.5) + stats.norm.logpdf(a, 0, np.exp(v)))


def test_a_surrogate_has_the_bend_of_the_prior() -> None:
    """Data that say a = 0.3 +- 0.2: total and moments by an integral over v; a Gaussian would miss the neck."""

    def log_p(z: np.ndarray) -> np.ndarray:
        return np.asarray(funnel(z) + stats.norm.logpdf(0.3, z[:, 1], 0.2))

    v, step = np.linspace(-9, 5, 1501, retstep=True)
    density = stats.norm.pdf(v, -1, 1.5) * stats.norm.pdf(0.3, 0, np.hypot(np.exp(v), 0.2))  # a integrated out
    total = density.sum() * step
    mean, second = (density @ v**k * step / total for k in (1, 2))
    sd = np.sqrt(second - mean**2)
    rng = np.random.default_rng(2)
    frame = Gaussian(np.array([-0.7, 0.25]), np.diag([0.9, 0.2]))
    z = frame.draw(500, rng)
    surrogate = surrogate_through(funnel, frame, z, log_p(z))
    assert isinstance(surrogate, Surrogate)
    found = draw_surrogate(surrogate, 1000, rng)
    assert found is not None
    draws, normalized, error = found
    assert error < 0.03
    shift = log_p(draws) - normalized.log_density(draws)  # the same everywhere: what the data say is a Gaussian
    np.testing.assert_allclose(shift, np.log(total), atol=0.1)
    assert draws[:, 0].mean() == pytest.approx(mean, abs=0.15 * sd)
    assert draws[:, 0].std() == pytest.approx(sd, rel=0.1)
    assert surrogate_through(funnel, frame, z[:15], log_p(z[:15])) is None


def test_without_a_prior_that_costs_nothing_a_mixture_finds_the_tails() -> None:
    """A normal density from draws of another one, which its log total shows: 0 where it is normalized."""
    target = stats.multivariate_normal([0.5, -1.0], [[2.0, 0.6], [0.6, 0.8]])
    draws = WeightedDraws(target.logpdf, None, 0)
    draws.draw_from(Gaussian(np.zeros(2), 0.7 * np.eye(2)), 1000)
    assert len(draws.drawn) > 1
    total, error = draws.log_total()
    assert error < 0.05
    assert total == pytest.approx(0, abs=4 * error)
    weights = importance_weights(draws.log_ratios)
    np.testing.assert_allclose(weights.mean(draws.z), [0.5, -1.0], atol=0.15)
    q = stats.multivariate_normal(np.zeros(2), 0.49 * np.eye(2))
    precision = np.linalg.inv(target.cov)
    expected = -0.5 * (0.49 * np.trace(precision) + target.mean @ precision @ target.mean) - 0.5 * np.log(
        (2 * np.pi) ** 2 * np.linalg.det(target.cov)
    )
    bound, bound_error = draws.bound()
    assert bound == pytest.approx(expected + q.entropy(), abs=4 * bound_error)


# ---- where the steps begin ------------------------------------------------------------------------------------
def test_a_newton_step_from_a_narrow_fit_finds_a_normal_density() -> None:
    """Three globals with correlations of 0.999, from a fit that has each by itself; a saddle and a slope stay."""
    sds = np.array([0.1, 2.0, 30.0])
    mean, covariance = np.array([1.0, -2.0, 50.0]), np.outer(sds, sds) * (0.999 + 0.001 * np.eye(3))
    precision = np.linalg.inv(covariance)

    def normal(z: np.ndarray, sign: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        slopes = -(z - mean) @ precision
        slopes[:, 2] *= sign
        return 0.5 * np.einsum("ij,ij->i", z - mean, slopes), slopes

    frame = Gaussian(np.array([1.05, -3.0, 40.0]), np.diag(0.05 * sds))
    found = newton_step(frame, normal)
    assert found is not None
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(found.root @ found.root.T, covariance, rtol=1e-8)
    assert newton_step(frame, lambda z: normal(z, -1.0)) is None
    assert newton_step(frame, lambda z: (z[:, 0], np.ones_like(z))) is None


# ---- against NUTS ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def groups() -> tuple[tv.Fit, tv.Fit]:
    """Four groups of Poisson counts without overdispersion: its scale lies near 0, where no fixed width fits."""
    rng = np.random.default_rng(0)
    X = np.kron(np.eye(4), np.ones((30, 1)))
    y = rng.poisson(np.exp(X @ [0.5, 1.0, 1.5, 2.0]))
    fit = default_fit(tv.models.RobustPoisson(X, y))
    return fit, fit.refine(progress=False)


def test_a_scale_near_0_is_as_nuts_has_it(groups: tuple[tv.Fit, tv.Fit]) -> None:
    """NumPyro's NUTS, non-centred, four chains of 5,000 draws, r-hat 1.001, effective 4,600 at least."""
    nuts = {"s_eta": (0.1036, 0.0701), "s_alpha": (1.213, 0.819)}
    fit, refined = groups
    assert refined.refined is not None
    assert refined.refined.weighted
    mean, sd = refined.summary().loc["s_eta", ["mean", "sd"]]
    assert mean == pytest.approx(nuts["s_eta"][0], abs=0.25 * nuts["s_eta"][1])
    assert sd == pytest.approx(nuts["s_eta"][1], rel=0.25)
    assert fit.summary().loc["s_eta", "mean"] > nuts["s_eta"][0] + 0.5 * nuts["s_eta"][1]  # what was to be mended
    at = np.array([0.96531515, -0.55084991, 0.14352623, 0.58654796, 1.09681641])  # alpha and beta
    sds = np.array([0.53868913, 0.54019246, 0.54410291, 0.54295818, 0.5428116])
    np.testing.assert_allclose((refined.location[3:8] - at) / sds, 0, atol=0.25)


def test_the_diagnosis_of_a_refined_fit_is_that_of_its_own_draws(tmp_path: Path) -> None:
    """A funnel: of the Gaussian behind the refined fit, log p - log q differs by a million nats."""

    def terms(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        s, x = points[:, :1], points[:, 1:]
        half_log, pull = 0.5 * np.log(2 * np.pi), x * np.exp(-s)
        slopes = np.concatenate(
            [-s / 9 + (weights * (0.5 * pull * x - 0.5)).sum(axis=1, keepdims=True), -weights * pull], 1
        )
        return (-(s**2) / 18 - np.log(3) - half_log)[:, 0], -0.5 * pull * x - 0.5 * s - half_log, slopes

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at_top, each, slopes = terms(points, np.ones((len(points), 100)))
        return at_top + each.sum(axis=1), slopes

    model = tv.models.LogDensity(density, tv.Layout(1, 100, 1), terms=terms)
    with pytest.warns(tv.RefineWarning, match="corrects the globals"):
        fit = tv.fit(model, progress=False)
    assert tv.load_fit(fit.save(tmp_path / "fit.npz"), model).advice == fit.advice != []
    refined = fit.refine(progress=False)
    assert refined.refined is not None
    found = refined.diagnose()
    assert found.verdict == "good"
    assert "exploded" not in str(found)
    assert found.table.loc["ELBO", "value"] == pytest.approx(refined.refined.bound)
    assert found.table.loc["ELBO", "value"] == pytest.approx(0.0, abs=0.2)  # every integral here is 1
    assert found.table.loc["effective sample size", "meaning"].startswith(f"of {len(refined.refined.draws):,} draws")


def test_a_refined_fit_is_a_fit(groups: tuple[tv.Fit, tv.Fit], tmp_path: Path) -> None:
    fit, refined = groups
    found = refined.refined
    assert found is not None
    assert "refined" in repr(refined)
    assert refined.elbo["elbo"].iloc[-1] == found.bound > fit.last_elbo
    assert f"effective sample size {found.ess:,.0f}" in refined.message
    loaded = tv.load_fit(refined.save(tmp_path / "refined.npz"))
    for one, other in zip(refined.sample(50, 3).values(), loaded.sample(50, 3).values(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert repr(loaded.refined) == repr(found)
    assert loaded.spec == refined.spec
    # weights are what `sample` and `summary` follow
    draws = refined.sample(200_000, local=False)["s_eta"]  # each draw as often as its weight says, but for one
    assert draws.mean() == pytest.approx(found.weights @ np.exp(found.draws[:, 2]), rel=1e-3)
    tree = refined.to_arviz(20, log_likelihood=False, posterior_predictive=False)
    assert tree["posterior"].attrs["log_evidence"] == found.log_evidence
    diagnosis = refined.diagnose(n=100)
    assert diagnosis.verdict != "do not trust"
    assert diagnosis.table.loc["effective sample size", "value"] == found.ess
    assert any("fit.refine()" in reason for reason in fit.diagnose(n=500).reasons)
    again = refined.refine(n_draws=200, progress=False)  # one of a refined fit
    assert again.refined is not None
    assert again.refined.bound == pytest.approx(found.bound, abs=1)


@pytest.mark.slow
def test_rpoisson_small_is_as_nuts_has_it() -> None:
    """NumPyro's NUTS, alpha non-centred, four chains of 2,500 draws, r-hat 1.005, effective 2,200 at least."""
    mean = np.array(
        [
            -1.4419,
            -1.5032,
            0.3038,
            0.0224,
            0.1753,
            -0.0009,
            -0.0646,
            0.2414,
            0.3442,
            0.1339,
            -0.2663,
            -0.1694,
            0.0382,
            0.1536,
            -0.0329,
            -0.1359,
        ]
    )
    sd = np.array(
        [
            1.3180,
            0.2698,
            0.0273,
            0.1346,
            0.0411,
            0.0708,
            0.0393,
            0.0816,
            0.0785,
            0.0861,
            0.0839,
            0.1354,
            0.1386,
            0.1530,
            0.1477,
            0.1880,
        ]
    )
    fit = default_fit(tv.load_problem("rpoisson-small"))
    refined = fit.refine(progress=False)
    found = refined.refined
    assert found is not None
    assert found.weighted
    assert found.ess > 0.3 * len(found.draws)
    np.testing.assert_allclose((refined.location[:16] - mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(refined.global_sds[1:] / sd[1:], 1, atol=0.1)
    assert refined.global_sds[0] == pytest.approx(sd[0], rel=0.15)  # log s_alpha: a tail that is sampled by few


# ---- steps ------------------------------------------------------------------------------------------------------
def test_the_steps_resume_from_a_checkpoint(poisson: Any, tmp_path: Path) -> None:
    fit = default_fit(poisson)
    whole = fit.refine(n_draws=200, progress=False)
    path = tmp_path / "refine.npz"
    kept = fit.refine(n_draws=200, progress=False, checkpoint=path)
    assert path.exists()
    resumed = fit.refine(n_draws=200, progress=False, checkpoint=path)  # nothing is left to step
    for other in (kept, resumed):
        np.testing.assert_array_equal(whole.params, other.params)
    with pytest.raises(InputError, match=r"another fit .*n_nodes"):
        fit.refine(n_nodes=5, n_draws=200, progress=False, checkpoint=path)


def test_weights_that_prove_nothing_are_not_used() -> None:
    """Two modes of z, of which a Gaussian sees one: no, a t with so heavy a tail that every draw has another weight."""

    def terms(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z, y = points[:, :-1], points[:, -1:]
        # ten banana-shaped pairs
        bend = z[:, 1::2] - 3 * z[:, ::2] ** 2
        prior = log_normal(z[:, ::2]).sum(axis=1) + log_normal(bend, 0.1).sum(axis=1)
        g_z = np.empty_like(z)
        g_z[:, 1::2] = -bend / 0.01
        g_z[:, ::2] = -z[:, ::2] + 6 * z[:, ::2] * bend / 0.01
        return prior, log_normal(y), np.hstack([g_z, -weights * y])

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        prior, local, gradient = terms(points, np.ones((len(points), 1)))
        return prior + local[:, 0], gradient

    layout = tv.Layout(20, 1, 1)
    model = tv.models.LogDensity(density, layout, terms=terms)
    bound = tv.Structured().bind(layout)
    fit = fit_at(model, "structured", bound.initial_flat(np.full(21, 0.1), 0.1))
    with pytest.warns(tv.ConvergenceWarning, match="cannot prove its answer here"):
        refined = fit.refine(n_draws=400, progress=False)
    assert refined.refined is not None
    assert not refined.refined.weighted
    used = refined.refined.weights > 0
    assert len(set(refined.refined.weights[used])) == 1
    assert np.isfinite(refined.sample(10)["z"]).all()
    assert refined.diagnose(n=100).verdict != "good"


def test_fit_refines_at_once_or_refuses_before_any_work(poisson: Any) -> None:
    fit = default_fit(poisson)
    at_once = default_fit(poisson, refine=True)
    assert at_once.refined is not None
    np.testing.assert_array_equal(at_once.params, fit.refine(progress=False).params)
    with pytest.raises(InputError, match=r"refine cannot help .*they are no chain"):
        tv.fit(crossed(), "markov", refine=True)
    with pytest.raises(InputError, match=r"refine cannot help .*LogDensity.*pass `terms=`"):
        tv.fit(crossed(), refine=True)
    with pytest.raises(InputError, match="refine must be True or False"):
        tv.fit(poisson, refine=3)  # type: ignore[arg-type]


# ---- what is refused ---------------------------------------------------------------------------------------------
class WithoutSlopes(tv.models.Model):
    layout = tv.Layout(1, 2, 1)

    def _log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -0.5 * (points**2).sum(axis=1), -points

    def _log_terms(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -0.5 * points[:, 0] ** 2, -0.5 * points[:, 1:] ** 2


def crossed() -> tv.models.LogDensity:
    """Locals that all touch each other."""

    def density(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sums = p[:, 1:].sum(axis=1, keepdims=True)
        gradient = -p - np.hstack([0 * sums, np.repeat(sums, p.shape[1] - 1, axis=1)])
        return -0.5 * (p**2).sum(axis=1) - 0.5 * sums[:, 0] ** 2, gradient

    return tv.models.LogDensity(density, tv.Layout(1, 4, 1))


def test_where_refining_cannot_help_it_says_so_before_any_work() -> None:
    cases = {
        "LogDensity.*pass `terms=`": crossed(),
        "needs the gradients of log terms, and WithoutSlopes": WithoutSlopes(),
        "has no locals": tv.models.IsotropicGaussian(0, n_global=3),
        "has no globals": tv.models.IsotropicGaussian(3, n_global=0),
    }
    for words, model in cases.items():
        family = tv.Structured().bind(model.layout)
        fit = fit_at(model, "structured", family.initial_flat(np.zeros(model.dim), 0.1))
        with pytest.raises(InputError, match=words):
            fit.refine()
    model = tv.models.IsotropicGaussian(2, n_global=1, local_dim=1)
    fit = fit_at(model, "structured", tv.Structured().bind(model.layout).initial_flat(np.full(3, 5.0), 0.1))
    for arguments, words in (
        ({"n_nodes": 1}, "n_nodes must be a whole number of at least 2"),
        ({"n_draws": 10}, "n_draws must be a whole number of at least 100"),
        ({"seed": -1}, "seed"),
        ({"checkpoint": "/nowhere/at/all.npz"}, "does not exist"),
    ):
        with pytest.raises((InputError, tv.PyTuringVIError), match=words):
            fit.refine(**arguments)  # type: ignore[arg-type]
    fit.status, fit.message = "diverged", "somewhere"
    with pytest.raises(InputError, match="diverged"):
        fit.refine()


def test_what_does_not_fit_in_memory_is_refused_before_any_work(poisson: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 draws of 6 globals in three copies, and 16 nodes of 30 locals, a value and three figures each."""
    fit = fit_at(poisson, "structured", tv.Structured().bind(poisson.layout).initial_flat(np.zeros(poisson.dim), 0.1))
    monkeypatch.setattr("pyturingvi.optimize.memory.available_memory", lambda device="cpu": 300_000)
    monkeypatch.setattr(type(poisson), "_log_terms_and_gradient", None)
    needed = 8 * (3 * 2000 * 6 + 4 * 16 * (36 + 4 * 30))
    with pytest.raises(tv.errors.MemoryLimitError, match=f"refine with 16 nodes .* needs {needed:,} bytes"):
        fit.refine()
    with pytest.raises(tv.errors.MemoryLimitError, match=r"300,000 bytes .* are free"):
        tv.fit(poisson, refine=True, max_memory=1e9)


def test_terms_that_are_wrong_are_refused() -> None:
    target = NormalHierarchy(1)

    def spoiled(what: str) -> Any:
        def terms(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            prior, local, gradient = target.terms(points, np.ones_like(weights) if what == "deaf" else weights)
            return {
                "sum": (prior + 1, local, gradient),
                "slope": (prior, local, gradient + 1),
                "deaf": (prior, local, gradient),
                "shape": (prior, local.T, gradient),
                "order": (prior, local[:, ::-1], gradient),
                "shared": (prior, local + points[:, 2:3] * [1, 0, -1, 0, 0, 0], gradient),
                "global": (prior + points[:, 5], local - points[:, 5:6] * [0, 0, 0, 1, 0, 0], gradient),
                "weights": (prior, local, target.terms(points, weights[:, ::-1])[2]),
            }[what]

        return terms

    words = {
        "sum": "terms add up to .* where fn has",
        "slope": "terms have, with weights of 1, the gradient",
        "deaf": "where all weights are 0",
        "shape": r"table of local terms of shape \(3, 6\)",
        # as much in sum, and yet the locals would be integrated out of each other's terms
        "order": r"local term (\d) changes where local block (?!\1)\d is moved",
        "shared": r"local term 2 changes where local block 0 is moved .* and block 2 alone: return local terms in the",
        "global": r"the global term changes where local block 3 is moved .* and no local",
        "weights": r"given weights that differ, returned a wrong gradient.* differences of global_term \+ \(weights",
    }
    for what, message in words.items():
        with pytest.raises(InputError, match=message):
            tv.models.LogDensity(target.density, target.layout, terms=spoiled(what))
    with pytest.raises(InputError, match="terms must be a function"):
        tv.models.LogDensity(target.density, target.layout, terms=3)  # type: ignore[arg-type]
    assert target.model.has_log_terms
    assert not tv.models.LogDensity(target.density, target.layout).has_term_gradients
    many = NormalHierarchy(1, n_local=1000)  # which block of many it is

    def turned(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        prior, local, gradient = many.terms(points, weights)
        return prior, local[:, ::-1], gradient

    with pytest.raises(InputError) as caught:
        tv.models.LogDensity(many.density, many.layout, terms=turned)
    term, block = map(int, re.findall(r"(?:term|block) (\d+) (?:changes|is)", str(caught.value)))
    assert term + block == 999
    saved = tv.models.LogDensity.from_state(target.model.get_state())
    with warnings.catch_warnings(), pytest.raises(InputError, match="no log terms"):
        saved.log_terms(np.zeros((1, saved.dim)))


# ---- what takes long ---------------------------------------------------------------------------------------------
def test_ctrl_c_while_refining_keeps_the_fit(poisson: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pyturingvi.refine.weighted_draws.WeightedDraws.draw_from", interrupt)
    fit = default_fit(poisson, refine=True)
    assert fit.status == "interrupted"
    assert "refining was interrupted" in fit.message
    assert fit.refined is None
    assert np.isfinite(fit.params).all()


def test_weights_have_a_bar_and_their_time_is_foreseen(
    poisson: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clock that goes on by a second at each look: of the time for some slopes, one."""
    fit = default_fit(poisson)
    monkeypatch.setattr("pyturingvi.refine.refine.time.perf_counter", iter(range(100)).__next__)
    z_rows = []
    plain = LocalIntegrals.log_density_and_gradient
    monkeypatch.setattr(
        LocalIntegrals, "log_density_and_gradient", lambda self, z: (z_rows.append(len(z)), plain(self, z))[1]
    )
    assert expected_seconds(fit) == pytest.approx((60 * 2 * 12 + 4000 + 300 * 6) / z_rows[0])
    monkeypatch.undo()
    nodes = Resolution(poisson, GlobalsAndLocals.of(fit.family.bind(poisson.layout), fit.params), 0, map)
    z = np.tile(fit.location[:6], (7, 1))
    with nodes.bar("weights", True):
        nodes.at(None).log_density(z)
        assert nodes._bar.n == 7
    with nodes.bar("weights", False):
        nodes.at(None).log_density(z)
    assert nodes._bar is None
