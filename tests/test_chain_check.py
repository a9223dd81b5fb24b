"""The check of the globals where locals are a chain: exact integrals, alarms and silence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import GaussianTarget, quick_fit

import pyturingvi as tv
from pyturingvi.data import simulate_volatility
from pyturingvi.diagnosis.chain_slopes import ChainIntegrals
from pyturingvi.diagnosis.check import check_globals
from pyturingvi.families import get_family
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.layout import Layout


# ---- a linear Gaussian chain with unknown scales -----------------------------------------------------------
@dataclass
class LocalLevel:
    """`y_t = Phi y_{t-1} + e^a R e_t`, `x_t ~ N(y_t, e^b)`, over [a, b, y]; x is simulated.

    The priors of a and b are around what x was simulated with where they are narrow, else around 0.
    """

    n: int
    d: int
    scales: tuple[float, float]
    seed: int = 0
    prior_sd: float = 1.0
    prior: np.ndarray = field(init=False)
    chain: np.ndarray = field(init=False)  # precision of y, where a is 0
    x: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.prior = np.zeros(2) if self.prior_sd == 1 else np.log(self.scales)
        n, d, rng = self.n, self.d, np.random.default_rng(self.seed)
        phi = 0.9 * np.eye(d) + (0.1 * rng.normal(size=(d, d)) if d > 1 else 0)
        root = np.eye(d) + 0.3 * np.tril(rng.normal(size=(d, d)), -1)
        steps = np.kron(np.eye(n), np.linalg.inv(root)) @ (np.eye(n * d) - np.kron(np.eye(n, k=-1), phi))
        self.chain = steps.T @ steps
        y = self.scales[0] * np.linalg.solve(steps, rng.normal(size=n * d))
        self.x = y + self.scales[1] * rng.normal(size=n * d)

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a, b, y = points[:, :1], points[:, 1:2], points[:, 2:]
        pulled, rest = np.exp(-2 * a) * (y @ self.chain), np.exp(-2 * b) * (self.x - y)
        off = (points[:, :2] - self.prior) / self.prior_sd
        squares = (y * pulled).sum(1), ((self.x - y) * rest).sum(1)
        count = self.x.size
        log_density = -0.5 * (squares[0] + squares[1] + (off**2).sum(1)) - count * (a + b)[:, 0]
        log_density += 0.5 * np.linalg.slogdet(self.chain)[1] - (1 + count) * np.log(2 * np.pi)
        log_density -= 2 * np.log(self.prior_sd)
        slopes = np.column_stack([squares[0] - count, squares[1] - count]) - off / self.prior_sd
        return log_density, np.hstack([slopes, rest - pulled])

    @property
    def model(self) -> tv.models.LogDensity:
        return tv.models.LogDensity(self, Layout(2, self.n, self.d))

    def log_marginal(self, a: Any, b: Any) -> Any:
        """log p(a, b, x), in the coordinates in which the locals are independent."""
        values, vectors = np.linalg.eigh(self.chain)
        sd = np.sqrt(np.exp(2 * np.asarray(a))[..., None] / values + np.exp(2 * np.asarray(b))[..., None])
        of_data = stats.norm.logpdf(vectors.T @ self.x, 0, sd).sum(-1)
        return of_data + sum(
            stats.norm.logpdf(one, at, self.prior_sd) for one, at in zip((a, b), self.prior, strict=True)
        )

    def moments(self, reach: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of a and b, by a fine grid."""
        around = self.prior if reach < 4 else np.full(2, -2.0)
        a, b = np.meshgrid(*(np.linspace(at - reach, at + reach, 241) for at in around), indexing="ij")
        logs = self.log_marginal(a, b)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        mean = np.array([(weights * a).sum(), (weights * b).sum()])
        return mean, np.sqrt(np.array([(weights * a**2).sum(), (weights * b**2).sum()]) - mean**2)


def chain_fit(problem: LocalLevel) -> tv.Fit:
    return quick_fit(problem.model, "markov", None, engine="numpy")


@pytest.mark.parametrize(("n", "local_dim"), [(2, 1), (3, 2), (4, 1), (11, 1), (12, 2), (13, 3)])
@pytest.mark.parametrize("family", ["markov", "structured", "mean-field", "full-rank"])
def test_a_linear_chain_is_integrated_out_exactly(family: str, n: int, local_dim: int) -> None:
    """Whatever the fit is: this one is at a random place, far from the locals' mode."""
    problem, rng = LocalLevel(n, local_dim, (0.7, 0.5)), np.random.default_rng(1)
    model = problem.model
    bound = get_family(family).bind(model.layout)
    flat = bound.initial_flat(rng.normal(size=model.layout.dim), 0.3)
    integrals = ChainIntegrals(model, bound, flat, rng)
    assert integrals.separate(np.zeros(2))
    noise = rng.normal(size=(7, 2))
    a, b = (integrals.parts.mean + noise @ integrals.parts.scale.T).T
    covariance = [
        np.exp(2 * one) * np.linalg.inv(problem.chain) + np.exp(2 * other) * np.eye(n * local_dim)
        for one, other in zip(a, b, strict=True)
    ]
    expected = [stats.multivariate_normal(np.zeros(n * local_dim), one).logpdf(problem.x) for one in covariance]
    expected += stats.norm.logpdf([a, b]).sum(0) - stats.norm.logpdf(noise).sum(1) + 2 * np.log(0.3)
    np.testing.assert_allclose(integrals.log_ratio(noise), expected, atol=1e-8)


def test_borders_and_correlated_locals_of_a_fit_are_followed() -> None:
    """A random member of the family, whose globals are correlated and carry the locals along."""
    problem, rng = LocalLevel(9, 2, (0.7, 0.5)), np.random.default_rng(2)
    bound = get_family("markov").bind(problem.model.layout)
    flat = bound.initial_flat(rng.normal(size=problem.model.layout.dim), 0.3)
    flat += 0.1 * rng.normal(size=len(flat))
    integrals = ChainIntegrals(problem.model, bound, flat, rng)
    noise = rng.normal(size=(5, 2))
    a, b = (integrals.parts.mean + noise @ integrals.parts.scale.T).T
    expected = problem.log_marginal(a, b) - stats.norm.logpdf(noise).sum(1)
    expected += np.linalg.slogdet(integrals.parts.scale)[1]
    np.testing.assert_allclose(integrals.log_ratio(noise), expected, atol=1e-8)


@pytest.mark.parametrize(("n", "scales", "seed"), [(100, (0.3, 1.0), 0), (150, (0.5, 1.0), 1)])
def test_scales_of_a_local_level_are_warned_of_where_a_grid_has_them_wider(
    n: int, scales: tuple[float, float], seed: int
) -> None:
    problem = LocalLevel(n, 1, scales, seed)
    sd = problem.moments()[1]
    with pytest.warns(tv.RefineWarning, match=r"locals integrated out.*z\[0\] wider.*fit\.refine"):
        fit = chain_fit(problem)
    assert sd[0] > 1.3 * fit.global_sds[0]
    found = check_globals(fit.model, fit.family.bind(fit.model.layout), fit.params, 0, 800)
    assert found is not None
    assert found.ratio[1] == pytest.approx(sd[1] / fit.global_sds[1], rel=0.1)
    assert 2 < found.ratio[0] < sd[0] / fit.global_sds[0]  # the line ends before the tail does
    diagnosis = fit.diagnose()
    assert diagnosis.verdict != "good"
    assert any("z[0] wider" in reason for reason in diagnosis.reasons)
    assert not any("cannot" in reason for reason in diagnosis.reasons)


def test_the_line_of_a_scale_gives_its_width_where_that_ends_on_it() -> None:
    problem = LocalLevel(100, 1, (1.0, 1.0))
    sd = problem.moments()[1]
    with pytest.warns(tv.RefineWarning, match=r"z\[0\] wider, z\[1\] wider"):
        fit = chain_fit(problem)
    found = check_globals(fit.model, fit.family.bind(fit.model.layout), fit.params, 0, 800)
    assert found is not None
    np.testing.assert_allclose(found.ratio, sd / fit.global_sds, rtol=0.1)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 8))])
def test_scales_that_a_grid_has_as_the_fit_are_not_warned_of(seed: int) -> None:
    """Priors say most of them."""
    problem = LocalLevel(60, 1 + seed % 2, (0.8, 0.5), seed, prior_sd=0.03)
    fit = chain_fit(problem)  # a warning is an error
    mean, sd = problem.moments(0.2)
    assert np.abs((fit.location[:2] - mean) / sd).max() < 0.3
    np.testing.assert_allclose(fit.global_sds, sd, rtol=0.15)
    found = check_globals(fit.model, fit.family.bind(fit.model.layout), fit.params, 0, 800)
    assert found is not None
    assert found.fine


# ---- normal targets ----------------------------------------------------------------------------------------
def normal_chain(seed: int, reach: int = 1) -> GaussianTarget:
    """Globals that touch all, and locals that touch others as far as `reach` away, of any shape."""
    rng = np.random.default_rng(seed)
    n_global, d_y = int(rng.integers(1, 8)), int(rng.integers(1, 4))
    n = int(rng.integers(32, 120)) // d_y
    layout = Layout(n_global, n, d_y)
    steps = np.eye(n * d_y)
    for k in range(1, reach + 1):
        steps -= np.kron(np.eye(n, k=-k), (0.9 if k == 1 else 0.3) * np.eye(d_y) + 0.1 * rng.normal(size=(d_y, d_y)))
    precision = np.eye(layout.dim)
    precision[n_global:, n_global:] = 3 * steps.T @ steps + 0.5 * np.eye(n * d_y)
    border = rng.normal(size=(n_global, n * d_y))
    precision[:n_global, n_global:], precision[n_global:, :n_global] = border, border.T
    explained = border @ np.linalg.solve(precision[n_global:, n_global:], border.T)
    precision[:n_global, :n_global] = explained + np.eye(n_global) + 0.3  # the globals are correlated too
    return GaussianTarget(rng.normal(0, 3, layout.dim), precision, layout)


def as_markov(target: GaussianTarget) -> np.ndarray:
    """Flat parameters of the family's member that is the target."""
    layout, d_z, d_y = target.layout, target.layout.n_global, target.layout.local_dim
    precision = target.precision[d_z:, d_z:].copy()
    scale = np.linalg.cholesky(target.covariance[:d_z, :d_z])
    border = -np.linalg.solve(precision, target.precision[d_z:, :d_z] @ scale).T
    blocks, chain = np.empty((layout.n_local, d_y, d_y)), []
    for n in range(layout.n_local - 1, -1, -1):  # what a local is given its predecessor, those after it integrated out
        here = slice(n * d_y, (n + 1) * d_y)
        blocks[n] = np.linalg.cholesky(np.linalg.inv(precision[here, here]))
        if n:
            before = slice(here.start - d_y, here.start)
            on_last = -np.linalg.solve(precision[here, here], precision[here, before])
            precision[before, before] += precision[before, here] @ on_last
            chain.append(on_last.T.ravel())
    parts = GlobalsAndLocals(target.mean[:d_z], scale, target.mean[d_z:], border, blocks)
    return np.concatenate([parts.structured_flat(), *chain[::-1]])


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(k, marks=pytest.mark.slow) for k in range(8, 40))])
def test_no_false_alarm_on_normal_chains(seed: int) -> None:
    target = normal_chain(seed)
    layout, flat = target.layout, as_markov(target)
    bound = get_family("markov").bind(layout)
    scale = bound.scale(flat)
    np.testing.assert_allclose(scale @ scale.T @ target.precision, np.eye(layout.dim), atol=1e-9)
    near = flat.copy()  # as an optimizer leaves it: a twentieth of a standard deviation off in every direction
    near[: layout.dim] += scale @ np.random.default_rng(seed).normal(0, 0.05, size=layout.dim)
    near[layout.dim : get_family("structured").n_params(layout)] *= 1.02
    for one in (flat, near):
        found = check_globals(target.model, bound, one, seed, 200)
        assert found is not None
        assert not found.told


@pytest.mark.parametrize("seed", [1, 6, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 2, 3, 4, 5, 7))])
def test_default_fits_of_normal_chains_tell_nothing(seed: int) -> None:
    target = normal_chain(seed)
    fit = quick_fit(target.model, "markov", None, engine="numpy", seed=seed)
    assert (fit.status, fit.warnings, fit.advice) == ("converged", [], [])
    d_z = target.layout.n_global
    np.testing.assert_allclose(fit.global_sds, np.sqrt(np.diag(target.covariance))[:d_z], rtol=0.1)
    assert fit.diagnose().verdict == "good"


def test_locals_that_touch_second_neighbours_are_not_judged() -> None:
    target = normal_chain(0, reach=2)
    bound = get_family("structured").bind(target.layout)
    flat = bound.nearest_gaussian(target.mean, target.precision)
    middle = np.zeros(target.layout.n_global)
    assert not ChainIntegrals(target.model, bound, flat, np.random.default_rng(0)).separate(middle)
    assert check_globals(target.model, bound, flat, 0, 1000) is None


# ---- volatility --------------------------------------------------------------------------------------------
def filtered(returns: np.ndarray, z: np.ndarray) -> float:
    """log p(z, x) of one series, its log variances integrated out on a grid, one time after the other."""
    mu, v_phi, log_tau = z
    phi, tau = np.tanh(v_phi / 2), np.exp(log_tau)
    y = mu + np.linspace(-8, 8, 401) * tau / np.sqrt(1 - phi**2)
    moves = stats.norm.pdf(y[:, None], mu + phi * (y - mu), tau) * (y[1] - y[0])
    density, total = stats.norm.pdf(y, mu, tau), 0.0
    for t, x in enumerate(returns):
        density = (moves @ density if t else density) * stats.norm.pdf(x, 0, np.exp(y / 2))
        total += np.log(density.sum())
        density /= density.sum()
    total += np.log(y[1] - y[0]) + stats.cauchy.logpdf(mu, 0, 10) + stats.halfcauchy.logpdf(tau, 0, 5) + log_tau
    return float(total + np.log((1 - phi**2) / 4))


def test_volatility_is_warned_of_and_integrated_as_a_filter_does() -> None:
    """Two quick steps and their bends, which are as the filter has them to a fifth of a nat within 2 of its sds."""
    returns = simulate_volatility(120, 1, seed=3)
    model = tv.models.StochasticVolatility(returns)
    with pytest.warns(tv.ConvergenceWarning):  # of its two starts too
        fit = quick_fit(model, None, None, engine="numpy")
    assert any("phi[series1] wider" in words and "fit.refine()" in words for words in fit.advice)
    bound = fit.family.bind(model.layout)
    integrals = ChainIntegrals(model, bound, fit.params, np.random.default_rng(0))
    parts = integrals.parts
    u = np.array([-2.0, 0.0, 2.0])[:, None, None] * parts.scale / np.linalg.norm(parts.scale, axis=1)[:, None]
    found = integrals.log_ratio(u.reshape(-1, 3)) + stats.norm.logpdf(u.reshape(-1, 3)).sum(1)
    expected = np.array([filtered(model.returns[:, 0], parts.mean + parts.scale @ one) for one in u.reshape(-1, 3)])
    off = found - np.linalg.slogdet(parts.scale)[1] - expected
    assert np.abs(off - off.mean()).max() < 0.2
