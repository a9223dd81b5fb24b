"""The diagnosis of a fit: weights against closed forms, integrals against grids, verdicts where truth is known."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import targets
from scipy import integrate, stats
from targets import GaussianTarget, dense_location_scale, fit_at, quick_fit, random_flat

import pyturingvi as tv
from pyturingvi.diagnosis.findings import Findings, GlobalMoves, RestartEnd
from pyturingvi.diagnosis.integrated import log_marginal
from pyturingvi.diagnosis.moves import OWN_DRAWS, Moves, find_moves
from pyturingvi.diagnosis.problems import convergence_problems
from pyturingvi.diagnosis.trend import last_third
from pyturingvi.diagnosis.verdict import judge
from pyturingvi.diagnosis.weights import (
    ImportanceWeights,
    fit_generalized_pareto,
    importance_weights,
    pareto_quantiles,
)
from pyturingvi.errors import InputError
from pyturingvi.families import get_family
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.layout import Layout

FAMILIES = [tv.MeanField(), tv.Structured(), tv.Structured(standardized=False), tv.FullRank()]
BASES: list[Any] = ["gaussian", "laplace", ("student_t", 7.0)]


def normal_logpdf(x: Any, mean: Any = 0.0, sd: Any = 1.0) -> Any:
    """SciPy's, as a test below sees: densities call it at each update, and SciPy's checks take longest there."""
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def test_the_normal_density_of_these_tests_is_scipys() -> None:
    x, mean, sd = np.random.default_rng(0).uniform(0.1, 9, size=(3, 50))
    np.testing.assert_allclose(normal_logpdf(x, mean, sd), stats.norm.logpdf(x, mean, sd), rtol=1e-12, atol=1e-12)


# ---- weights -----------------------------------------------------------------------------------------------
def normal_ratios(sd: float, n: int, seed: int = 0) -> np.ndarray:
    """Log weights of standard normal draws for a normal with another sd."""
    x = np.random.default_rng(seed).normal(size=n)
    return stats.norm(0, sd).logpdf(x) - stats.norm.logpdf(x)


@pytest.mark.parametrize("sd", [1.2, 1.5, 2.0])
def test_k_hat_is_the_index_of_the_tail(sd: float) -> None:
    """The weights of N(0, s^2) under N(0, 1) have a tail of index 1 - 1/s^2, up to a logarithm."""
    found = np.mean([importance_weights(normal_ratios(sd, 20_000, seed)).k_hat for seed in range(5)])
    assert found == pytest.approx(1 - 1 / sd**2, abs=0.1)


@pytest.mark.parametrize("sd", [0.7, 1.0, 1.1, 1.2])
def test_the_effective_sample_size_is_that_of_normal_weights(sd: float) -> None:
    """1 / E w^2 = s^2 sqrt(2/s^2 - 1) of the draws, in closed form; at 1.2 the weights' fourth moment is infinite."""
    n = 50_000
    found = importance_weights(normal_ratios(sd, n))
    assert found.ess / n == pytest.approx(sd**2 * np.sqrt(2 / sd**2 - 1), rel=0.02)
    assert found.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.3, 0.7, 1.2])
def test_the_pareto_fit_finds_shape_and_scale(shape: float) -> None:
    draws = np.sort(stats.genpareto(shape, scale=2.5).rvs(20_000, random_state=1))
    found, scale = fit_generalized_pareto(draws)
    assert found == pytest.approx(shape, abs=0.05)
    assert scale == pytest.approx(2.5, rel=0.05)
    p = np.array([0.1, 0.5, 0.99])
    np.testing.assert_allclose(pareto_quantiles(p, shape, 2.5), stats.genpareto(shape, scale=2.5).ppf(p))


def test_weights_without_a_tail() -> None:
    equal = importance_weights(np.full(1000, -3.0))
    assert (equal.k_hat, equal.ess, equal.spread) == (-np.inf, pytest.approx(1000), 0)
    single = importance_weights(np.where(np.arange(1000) == 7, 0.0, -np.inf))
    assert single.k_hat == np.inf
    assert single.ess == pytest.approx(1)
    assert single.mean(np.arange(1000.0)) == 7
    assert importance_weights(np.full(200, np.nan)).ess == 0
    assert importance_weights(np.array([np.inf, *np.zeros(199)])).k_hat == np.inf
    with_nan = importance_weights(np.array([np.nan, *np.zeros(999)]))
    assert with_nan.weights[0] == 0
    assert not with_nan.spread < np.inf


# ---- conditionals and integrals ----------------------------------------------------------------------------
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("local_dim", [1, 2])
def test_locals_given_the_globals_are_those_of_the_dense_gaussian(family: Any, local_dim: int) -> None:
    layout = Layout(3, 4, local_dim)
    flat = random_flat(family, layout)
    mean, scale = dense_location_scale(family, layout, flat)
    covariance = scale @ scale.T
    parts = GlobalsAndLocals.of(family.bind(layout), flat)
    np.testing.assert_allclose(parts.scale @ parts.scale.T, covariance[:3, :3], atol=1e-12)
    gain = covariance[3:, :3] @ np.linalg.inv(covariance[:3, :3])
    u = np.random.default_rng(0).normal(size=3)
    np.testing.assert_allclose(parts.local_mean + u @ parts.border, mean[3:] + gain @ (parts.scale @ u), atol=1e-10)
    conditional = covariance[3:, 3:] - gain @ covariance[:3, 3:]
    for n in range(4):
        block = slice(n * local_dim, (n + 1) * local_dim)
        root = parts.local_scale[n]
        np.testing.assert_allclose(root @ root.T, conditional[block, block], atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_locals_are_integrated_out(poisson: Any, family: Any) -> None:
    """Against a fine grid over each local; from nodes around a poor guess too."""
    rng = np.random.default_rng(3)
    d_z, bound = poisson.layout.n_global, family.bind(poisson.layout)
    near = quick_fit(poisson, family, tv.Adam(2e-2), n_iterations=500).params
    eta = np.linspace(-20, 15, 7001)
    for flat in (near, bound.initial_flat(np.zeros(poisson.dim), 0.3)):
        parts = GlobalsAndLocals.of(bound, flat)
        noise = rng.normal(size=(5, d_z))
        for row, found in zip(noise, log_marginal(poisson, parts, noise), strict=True):
            points = np.empty((len(eta), poisson.dim))
            points[:, :d_z] = parts.mean + parts.scale @ row
            points[:, d_z:] = eta[:, None]  # every local at once: a term knows no other
            prior, terms = poisson.log_terms(points)
            total = prior[0] + np.log(integrate.trapezoid(np.exp(terms), eta, axis=0)).sum()
            assert found == pytest.approx(total, abs=0.01)  # the sum of 30 integrals by 11 nodes each


@pytest.mark.parametrize(("local_dim", "tolerance"), [(1, 1e-5), (2, 1e-5), (3, 0.5)])
def test_what_is_left_of_independent_normals_is_the_density_of_the_globals(local_dim: int, tolerance: float) -> None:
    """Three variables a local are integrated by draws, whose error is the same for all z but for noise."""
    model = tv.models.IsotropicGaussian(5, n_global=2, local_dim=local_dim)
    location = np.full(model.dim, 5.1)
    family = get_family("structured").bind(model.layout)
    parts = GlobalsAndLocals.of(family, family.initial_flat(location, 0.25))
    noise = np.random.default_rng(0).normal(size=(20, 2))
    z = parts.mean + noise @ parts.scale.T
    expected = stats.norm(5, np.sqrt(0.1)).logpdf(z).sum(axis=1)
    found = log_marginal(model, parts, noise)
    np.testing.assert_allclose(found, expected, atol=tolerance)
    np.testing.assert_allclose(np.diff(found), np.diff(expected), atol=1e-6)


# ---- where the density is ----------------------------------------------------------------------------------
@pytest.mark.parametrize("base", BASES, ids=str)
def test_moves_lead_to_a_gaussian_elsewhere(base: Any) -> None:
    """Mean and covariance are known; of 1,000 draws a mean has an error of a thirtieth of the sd."""
    rng = np.random.default_rng(1)
    mean = np.array([2.5, 0.0, -1.0])
    root = np.array([[2.0, 0, 0], [1.0, 0.5, 0], [0, 0, 1.5]])
    target = stats.multivariate_normal(mean, root @ root.T)
    distribution = tv.MeanField(base=base).base_distribution
    draws = np.empty((1000, 3))
    distribution.fill(rng, draws)
    found = find_moves(target.logpdf, draws, distribution.log_density(draws).sum(axis=1), rng)
    assert found.by == "corrected draws"
    assert found.first.ess < 100
    assert found.last.ess > 500
    np.testing.assert_allclose(found.mean, mean, atol=0.25)
    np.testing.assert_allclose(found.covariance, root @ root.T, atol=0.6)
    assert np.all(np.abs(found.mean - mean) < 5 * found.error)


def test_moves_of_a_density_that_is_nowhere_finite() -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(200, 2))
    found = find_moves(lambda u: np.full(len(u), -np.inf), draws, stats.norm.logpdf(draws).sum(axis=1), rng)
    assert found.by == "slope and curvature"
    assert found.first.ess == 0


class Overdispersed(tv.models.Model):
    """`x_n ~ Poisson(exp(y_n))`, `y_n ~ N(1, e^z)`, `z ~ N(-1, 1)`: one global, so that its density is a curve."""

    x = np.array([2.0, 3, 1, 4, 2, 9, 0, 2, 3, 1, 5, 2, 3, 0, 2, 2, 4, 3, 1, 2])
    layout = Layout(1, 20, 1)

    def _log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        prior, terms = self._log_terms(points)
        z, y = points[:, :1], points[:, 1:]
        square = ((y - 1) * np.exp(-z)) ** 2
        g_z = -(z[:, 0] + 1) + (square - 1).sum(axis=1)
        return prior + terms.sum(axis=1), np.column_stack([g_z, self.x - np.exp(y) - (y - 1) * np.exp(-2 * z)])

    def _log_terms(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z, y = points[:, :1], points[:, 1:]
        terms = normal_logpdf(y, 1, np.exp(z)) + self.x * y - np.exp(y)
        return normal_logpdf(z[:, 0], -1, 1), terms


def test_corrected_globals_are_those_of_the_integrated_density() -> None:
    """A Gaussian whose locals' widths do not depend on z puts z elsewhere; the exact density is a curve in z."""
    model = Overdispersed()
    y, weights = np.polynomial.hermite_e.hermegauss(80)
    grid = np.linspace(-5, 1.5, 400)
    at = 1 + np.exp(grid)[:, None] * y  # nodes of the prior of y given z
    likelihood = np.exp(model.x[:, None, None] * at - np.exp(at)) @ (weights / weights.sum())
    log_density = stats.norm.logpdf(grid, -1, 1) + np.log(likelihood).sum(axis=0)
    density = np.exp(log_density - log_density.max())
    mean = np.average(grid, weights=density)
    sd = np.sqrt(np.average((grid - mean) ** 2, weights=density))

    fit = quick_fit(model, "structured", tv.Adam(2e-2), n_iterations=3000)
    found = fit.diagnose(n=4000)
    row = found.globals.loc["z[0]"]
    assert abs(row["mean"] - mean) > 0.4 * sd  # what is to be mended
    assert found.verdict != "good"
    assert row["corrected_mean"] == pytest.approx(mean, abs=0.1 * sd)
    assert row["corrected_sd"] == pytest.approx(sd, rel=0.15)
    assert found.table.loc["k-hat, globals", "value"] > 0.5


# ---- verdicts ----------------------------------------------------------------------------------------------
def correlated(rho: float) -> GaussianTarget:
    return GaussianTarget(np.zeros(2), np.linalg.inv([[1, rho], [rho, 1]]), Layout(2, 0, 0))


def best_fit(target: GaussianTarget, family: str) -> tv.Fit:
    bound = get_family(family).bind(target.layout)
    return fit_at(target.model, family, bound.nearest_gaussian(target.mean, target.precision))


def random_gaussian(seed: int) -> tuple[GaussianTarget, str]:
    """A Gaussian target with a family that holds it: full-rank, or structured where locals part."""
    rng = np.random.default_rng(seed)
    layout = Layout(int(rng.integers(1, 8)), int(rng.integers(1, 30)), 1)
    d, d_z = layout.dim, layout.n_global
    root = rng.normal(size=(d, d))
    precision = root @ root.T / d + 0.1 * np.eye(d)
    if seed % 2:
        precision[d_z:, d_z:] = np.diag(np.diag(precision[d_z:, d_z:]))
        precision += max(0.0, 0.1 - np.linalg.eigvalsh(precision)[0]) * np.eye(d)
    return GaussianTarget(rng.normal(0, 3, size=d), precision, layout), "structured" if seed % 2 else "full-rank"


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(k, marks=pytest.mark.slow) for k in range(12, 50))])
def test_no_false_alarm_where_the_family_holds_the_target(seed: int) -> None:
    target, family = random_gaussian(seed)
    exact = best_fit(target, family)
    assert exact.diagnose(n=400, seed=seed).verdict == "good"
    # as an optimizer leaves it: a hundredth of a standard deviation off in every direction
    rng = np.random.default_rng(seed)
    bound = exact.family.bind(target.layout)
    off = exact.scale.toarray() @ rng.normal(0, 0.01, size=target.layout.dim)
    near = bound.flat_from_location_scale(exact.location + off, exact.scale * 1.01)
    assert fit_at(target.model, family, near).diagnose(n=400, seed=seed).verdict == "good"


@pytest.mark.slow
def test_no_false_alarm_in_fifty_default_fits() -> None:
    """As they end, with all the noise that the optimizer leaves; any warning is an error."""
    for seed in range(50):
        target, family = random_gaussian(seed)
        fit = quick_fit(target.model, family, None, seed=seed, engine="numpy")
        found = fit.diagnose(seed=seed)
        assert (fit.status, found.verdict) == ("converged", "good"), (seed, found.reasons)


@pytest.mark.parametrize("rho", [0.95, 0.99])
def test_weights_are_bad_for_mean_field_on_a_correlated_target_and_good_for_the_right_family(rho: float) -> None:
    """The weights' tail has the index `1 - 1/s^2`, with s^2 the largest variance of the density in the fit's units.

    s^2 is (1 + rho) / (1 - rho^2), along the diagonal.
    """
    target = correlated(rho)
    index = 1 - (1 - rho**2) / (1 + rho)
    bad = best_fit(target, "mean-field").diagnose(n=4000).table["value"]
    assert bad["k-hat, all variables"] == pytest.approx(index, abs=0.3)
    assert bad["k-hat, all variables"] > 0.7
    assert bad["effective sample size"] < 4000 / 4
    good = best_fit(target, "full-rank").diagnose(n=4000).table["value"]
    assert good["k-hat, all variables"] < 0.5
    assert good["effective sample size"] == pytest.approx(4000)


@pytest.mark.parametrize(("ess", "verdict"), [(999.0, "good"), (600.0, "usable with care")])
def test_a_heavy_tail_of_weights_that_are_all_alike_does_not_count(ess: float, verdict: str) -> None:
    """As of a logistic regression of 3,000 rows: k-hat 0.70 and an effective sample size of 999 of 1,000."""
    weights = ImportanceWeights(np.full(1000, 1e-3), k_hat=0.75, ess=ess, spread=0.03)
    moves = Moves(weights, weights, np.zeros(2), np.eye(2), np.zeros(2), OWN_DRAWS, 1)
    unmoved = GlobalMoves(["a", "b"], np.zeros(2), np.zeros(2), np.ones(2), OWN_DRAWS)
    found = Findings("converged", "", False, False, 2, -1.0, 0.01, 0.03, weights, moves=moves, globals=unmoved)
    assert judge(found)[0] == verdict


@pytest.mark.parametrize("size", [1e160, 1e305])
def test_what_has_exploded_lets_no_warning_of_numpys_through(size: float) -> None:
    fit = quick_fit(GaussianTarget(np.zeros(6), np.eye(6), Layout(2, 4, 1)).model, "mean-field", n_iterations=2)
    fit.params = np.full_like(fit.params, size)
    assert fit.diagnose().verdict == "do not trust"
    assert fit.summary(local=True).shape == (fit.model.dim, 5)
    assert fit.sample(100, local=False)
    assert importance_weights(-size * np.arange(1.0, 201)).ess == 1.0
    assert convergence_problems("completed", "", [(k, -size * 100, size, 0.0) for k in range(40)]) == []


def test_an_elbo_that_is_too_noisy_compares_no_fits() -> None:
    weights = ImportanceWeights(np.full(1000, 1e-3), k_hat=3.0, ess=1.0, spread=2e4)
    for error, distance, words in (
        (664.0, 0.7, "standard error, 664 nats, is too large to say which of 1 .* up to 0.70 standard deviations away"),
        (0.5, 0.7, r"1 of 1 fits from other seeds and starts end with the same ELBO, to 5\.0 nats"),
    ):
        ends = [RestartEnd(1, -2.0, distance, "mu", np.zeros(2))]
        found = Findings("converged", "", False, False, 5, -1.0, error, 2e4, weights, restarts=ends)
        told = " ".join(judge(found)[1])
        assert re.search(words, told), told
        assert ("same ELBO" in told) == (error < 1)


def test_a_standard_deviation_that_grows_under_weights_with_a_tail_is_told() -> None:
    """Three groups of zero counts, by quadrature: log tau 1.67 times as wide as the fit; draws say 1.32, k-hat 0.62."""
    for k_hat, verdict in ((0.62, "usable with care"), (0.2, "good")):
        weights = ImportanceWeights(np.full(1000, 1e-3), k_hat=k_hat, ess=627.0, spread=1.0)
        moves = Moves(weights, weights, np.zeros(2), np.eye(2), np.zeros(2), OWN_DRAWS, 1)
        ratio = np.array([1.0, 1.32])
        wider = GlobalMoves(["mu", "log tau"], np.zeros(2), np.full(2, 0.07), ratio, OWN_DRAWS)
        found = Findings("converged", "", False, False, 5, 3.2, 0.2, 6.0, weights, moves=moves, globals=wider)
        assert judge(found)[0] == verdict


def test_a_fit_between_two_modes_is_not_good_though_its_weights_have_no_tail() -> None:
    """Draws of a wide fit reach both modes: weights are bounded, but differ by nats from draw to draw."""

    def two(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right, left = points.copy(), points.copy()
        right[:, 0] -= 4
        left[:, 0] += 4
        logs = np.stack([-0.5 * (part**2).sum(axis=1) for part in (right, left)])
        total = np.logaddexp(*logs)
        share = np.exp(logs - total)[:, :, None]
        return total, -(share[0] * right + share[1] * left)

    model = tv.models.LogDensity(two, Layout(1, 3, 1))
    found = tv.fit(model, family=tv.Structured(conditional_scale=True), progress=False)
    between = abs(found.location[0]) < 2
    assert found.diagnose().verdict == ("usable with care" if between else "good")


@pytest.mark.parametrize("seed", range(3))
def test_mean_field_is_not_trusted_on_a_correlated_target(seed: int) -> None:
    target = correlated(0.95)
    found = best_fit(target, "mean-field").diagnose(seed=seed)
    assert found.verdict == "do not trust"
    assert found.table.loc["largest change of an sd", "value"] == pytest.approx(1 / np.sqrt(1 - 0.95**2), rel=0.1)
    np.testing.assert_allclose(found.globals["corrected_sd"], 1, atol=0.15)
    assert best_fit(target, "full-rank").diagnose(seed=seed).verdict == "good"


@pytest.mark.parametrize("dim", [24, 27, 30])
def test_mean_field_is_not_trusted_in_as_many_variables_as_are_judged_at_once(dim: int) -> None:
    """Standard deviations a tenth of the true ones."""
    precision = np.linalg.inv(0.01 * np.eye(dim) + 0.99)
    target = GaussianTarget(np.zeros(dim), precision, Layout(1, dim - 1, 1))
    assert best_fit(target, "mean-field").diagnose().verdict == "do not trust"


def test_the_elbo_is_exact_where_the_fit_is_the_density() -> None:
    target, family = random_gaussian(3)
    found = best_fit(target, family).diagnose().table.loc["ELBO"]
    assert found["value"] == pytest.approx(0, abs=1e-8)  # the density is normalized
    assert found["std_error"] < 1e-8


def test_many_variables_without_terms_are_not_called_right() -> None:
    layout = Layout(2, 60, 1)
    rng = np.random.default_rng(0)
    root = rng.normal(size=(62, 62))
    target = GaussianTarget(np.zeros(62), root @ root.T / 62 + 0.05 * np.eye(62), layout)
    found = best_fit(target, "mean-field").diagnose()
    assert found.verdict == "usable with care"
    assert any("cannot be told" in reason for reason in found.reasons)
    assert found.globals["shift"].isna().all()
    assert found.corrected_by == "nothing"


def test_a_run_that_went_wrong_is_not_trusted(poisson: Any) -> None:
    with pytest.warns(tv.ConvergenceWarning, match="exploded: its ELBO was -.* at the start"):
        exploded = quick_fit(poisson, optimizer=tv.Adam(1.0), n_iterations=300)
    found = exploded.diagnose(n=100)
    assert found.verdict == "do not trust"
    cut_short = quick_fit(poisson, optimizer=tv.Adam(1e-3), n_iterations=100, elbo_every=5)
    found = cut_short.diagnose(n=100)
    assert found.verdict == "do not trust"
    assert any("still rising" in reason for reason in found.reasons)
    diverged = fit_at(poisson, "structured", cut_short.params)
    diverged.status, diverged.message = "diverged", "somewhere"
    assert diverged.diagnose(n=100).reasons[0].startswith("The fit diverged: somewhere")


def test_natural_gradients_that_did_not_end_are_told(poisson: Any) -> None:
    found = quick_fit(poisson, optimizer=tv.NaturalGradient(), n_iterations=30).diagnose(n=100)
    assert found.verdict != "good"
    assert any("had not converged: 30 updates" in reason for reason in found.reasons)
    assert not any("no longer rising" in reason for reason in found.reasons)


def test_a_fit_without_bounds_is_judged_without_a_word_from_numpy() -> None:
    model = tv.models.LogDensity(lambda x: (np.zeros(len(x)), np.zeros_like(x)), Layout(1, 0, 0))
    fit = fit_at(model, "mean-field", np.array([1e308, 1e308]))  # draws of it overflow
    fit.status = "diverged"
    assert fit.diagnose(n=100).verdict == "do not trust"


def two_modes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equal parts of N(-6, 1) and N(6, 1)."""
    x = points[:, 0]
    log_density = np.logaddexp(normal_logpdf(x, -6), normal_logpdf(x, 6)) - np.log(2)
    return log_density, (6 * np.tanh(6 * x) - x)[:, None]


def wide_modes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`two_modes` at -3 and 3."""
    x = points[:, 0]
    log_density = np.logaddexp(normal_logpdf(x, -3), normal_logpdf(x, 3)) - np.log(2)
    return log_density, (3 * np.tanh(3 * x) - x)[:, None]


def test_one_gaussian_over_two_modes_is_not_called_good() -> None:
    """Its mean and standard deviation are right, its shape is not."""
    model = tv.models.LogDensity(wide_modes, Layout(1, 0, 0))
    bound = get_family("full-rank").bind(model.layout)
    for seed in range(3):
        found = fit_at(model, "full-rank", bound.initial_flat(np.zeros(1), 2.74)).diagnose(seed=seed)
        assert found.verdict == "usable with care"
        assert any("another shape" in reason for reason in found.reasons)


def funnel(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`z ~ N(0, 3)`, nine `y_n ~ N(0, e^{z/2})` (Neal 2003)."""
    z, y = points[:, :1], points[:, 1:]
    log_density = normal_logpdf(z[:, 0], 0, 3) + normal_logpdf(y, 0, np.exp(z / 2)).sum(axis=1)
    g_z = -z[:, 0] / 9 + 0.5 * (y**2 * np.exp(-z) - 1).sum(axis=1)
    return log_density, np.column_stack([g_z, -y * np.exp(-z)])


def test_a_funnel_without_log_terms_has_one_story() -> None:
    """Its locals are integrated out by the slopes; that they "cannot be integrated out" was said beside it."""
    fit = fit_at(tv.models.LogDensity(funnel, Layout(1, 40, 1)), "structured", np.ones(41 + 41 + 40))
    found = fit.diagnose()
    words = " ".join(found.reasons)
    assert found.verdict != "good"
    assert "By the slopes, with the locals integrated out, " in words
    assert "tv.sample_nuts is the reference" in words
    assert "cannot be" not in words


def test_a_funnel_is_not_trusted() -> None:
    fit = quick_fit(tv.models.LogDensity(funnel, Layout(1, 9, 1)), optimizer=tv.Adam(1e-2), n_iterations=2000)
    for seed in range(2):
        assert fit.diagnose(seed=seed).verdict == "do not trust"


def test_a_fit_of_one_of_two_modes_is_not_called_good_without_a_word_of_others() -> None:
    model = tv.models.LogDensity(two_modes, Layout(1, 0, 0))
    one = fit_at(model, "full-rank", np.array([6.0, 1.0])).diagnose(n=200)
    assert one.verdict == "good"  # its draws are those of its mode
    assert any("cannot show another mode" in reason for reason in one.reasons)


def test_restarts_find_the_other_mode() -> None:
    model = tv.models.LogDensity(two_modes, Layout(1, 0, 0), names=["x"])
    fit = quick_fit(model, "full-rank", tv.Adam(5e-2), n_iterations=500)
    found = fit.diagnose(n=200, seeds=range(1, 6))
    assert found.verdict == "do not trust"
    row = found.table.loc["means of restarts apart", "value"]
    assert row == pytest.approx(12, rel=0.15)
    assert "more than one mode" in found.reasons[0]
    assert {round(one.distance / 12) for one in found.restarts} == {0, 1}
    again = fit.diagnose(n=200, seeds=[3]).restarts[0]
    assert again.params.tobytes() == found.restarts[2].params.tobytes()


def uneven_modes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equal parts of N(2, 0.7) and N(-4, 0.7): from 0 the way leads up to the first."""
    parts = normal_logpdf(points, [2.0, -4.0], 0.7) - np.log(2)
    total = np.logaddexp(parts[:, 0], parts[:, 1])
    slopes = ([2.0, -4.0] - points) / 0.49
    return total, (np.exp(parts - total[:, None]) * slopes).sum(axis=1, keepdims=True)


def test_restarts_start_far_apart_and_find_a_mode_that_one_place_does_not() -> None:
    """All runs from 0, whatever their seed, climb to the mode there."""
    model = tv.models.LogDensity(uneven_modes, Layout(1, 0, 0), names=["x"])
    fits = [quick_fit(model, "full-rank", None, seed=seed) for seed in range(6)]
    assert min(fit.location[0] for fit in fits) > 1.9
    found = fits[0].diagnose(n=200, seeds=range(1, 6))
    assert max(one.distance for one in found.restarts) == pytest.approx(6 / 0.7, rel=0.05)
    assert found.verdict == "do not trust"
    assert "more than one mode" in found.reasons[0]


def test_a_lesser_mode_and_a_better_one_are_told_apart() -> None:
    """Modes at -5 and 5, the second as heavy, lighter, or of no weight: ELBOs differ by log odds."""
    for weight, from_, verdict, words in (
        (0.3, -5.0, "do not trust", "same ELBO"),
        (0.01, -5.0, "usable with care", "a mode of less weight"),
        (0.01, 5.0, "do not trust", "nats higher: take that one"),
        (1e-5, -5.0, "good", "ended lower, where they had been caught"),
    ):
        logs = np.log([1 - weight, weight])

        def modes(points: np.ndarray, logs: np.ndarray = logs) -> tuple[np.ndarray, np.ndarray]:
            parts = normal_logpdf(points, [-5.0, 5.0]) + logs
            total = np.logaddexp(parts[:, 0], parts[:, 1])
            return total, (np.exp(parts - total[:, None]) * ([-5.0, 5.0] - points)).sum(axis=1, keepdims=True)

        model = tv.models.LogDensity(modes, Layout(1, 0, 0))
        fit = quick_fit(model, "full-rank", tv.Adam(5e-2), n_iterations=400, init=np.array([from_, 1.0]))
        fit.spec = quick_fit(model, "full-rank", tv.Adam(5e-2), n_iterations=400).spec
        found = fit.diagnose(n=200, seeds=range(1, 7))
        assert found.verdict == verdict, (weight, found.reasons)
        assert any(words in reason for reason in found.reasons), found.reasons
        alone = any(reason.startswith("No global would move") for reason in found.reasons)
        assert alone == (verdict == "good"), found.reasons  # beside another mode that is no news


def test_restarts_of_one_gaussian_agree() -> None:
    target, family = random_gaussian(1)
    fit = quick_fit(target.model, family, tv.Adam(tv.step_decay(5e-2, 0.5, 500)), n_iterations=4000)
    found = fit.diagnose(n=400, seeds=[1, 2])
    assert found.table.loc["means of restarts apart", "value"] < 0.3
    assert found.verdict == "good"


class OneScale(tv.families.Family):
    """N(m, s^2 I), which tells no scale matrix."""

    def n_params(self, layout: Layout) -> int:
        return layout.dim + 1

    def bind(self, layout: Layout, dtype: Any = np.float64, xp: Any = np) -> Any:
        return BoundOneScale(self, layout, dtype, xp)


class BoundOneScale(tv.families.BoundFamily):
    def transform(self, work: Any, noise: Any, out: Any) -> None:
        out[...] = noise * work[-1] + work[:-1]

    def pullback(self, work: Any, noise: Any, points: Any, gradient: Any, out: Any) -> None:
        out[:-1], out[-1] = gradient.sum(0), (gradient * noise).sum()

    def entropy(self, work: Any) -> float:
        return self.layout.dim * float(self.base.entropy + np.log(abs(work[-1])))

    def subtract_entropy_gradient(self, work: Any, out: Any) -> bool:
        out[-1] -= self.layout.dim / work[-1]
        return True

    def log_q(self, work: Any, points: Any) -> Any:
        return stats.norm(work[:-1], work[-1]).logpdf(points).sum(axis=1)

    def initial_flat(self, location: Any, scale: float) -> Any:
        return np.append(location, scale)


def test_a_family_of_ones_own_is_judged_by_its_weights() -> None:
    model = tv.models.IsotropicGaussian(3, n_global=2, local_dim=1)
    good = fit_at(model, OneScale(), np.append(np.full(5, 5.0), np.sqrt(0.1))).diagnose()
    assert good.verdict == "good"
    assert good.table.loc["ELBO", "value"] == pytest.approx(0, abs=1e-8)
    poor = fit_at(model, OneScale(), np.append(np.full(5, 5.0), 0.1)).diagnose()
    assert poor.verdict == "usable with care"


# ---- what fit warns of -------------------------------------------------------------------------------------
def trace(elbo: Any, noise: float = 1.0, n: int = 300) -> list[tuple[int, float, float, float]]:
    t = np.arange(1, n + 1)
    values = elbo(t / n) + np.random.default_rng(0).normal(0, noise, size=n)
    return [(100 * int(k), float(value), noise, 0.0) for k, value in zip(t, values, strict=True)]


def test_the_trend_is_that_of_a_line() -> None:
    rows = trace(lambda t: 30 * t, noise=1.0)
    found = last_third(rows)
    assert found is not None
    assert found.rise == pytest.approx(10, abs=4 * found.error)
    # least squares: sigma / sqrt(sum of squares of n points over the unit interval, about n / 12)
    assert found.error == pytest.approx(np.sqrt(12 / 100), rel=0.2)
    flattening = last_third(trace(lambda t: 30 * np.minimum(t, 0.85), noise=0.1))
    assert flattening is not None
    assert not flattening.is_rising  # although its last third is
    slowing = last_third(trace(lambda t: 100 * np.minimum(t, 0.8) + 6 * t, noise=0.1))
    assert slowing is not None
    assert slowing.rise == pytest.approx(2, abs=4 * slowing.error)
    assert last_third(rows[:9]) is None
    assert last_third([]) is None
    assert last_third([*rows[:20], (9999, np.nan, 0.0, 0.0)]) is None
    exploded = last_third(trace(lambda t: -1e200 * t, noise=0.0))
    assert exploded is not None
    assert not exploded.is_rising


def test_problems_of_a_run() -> None:
    flat, rising = trace(lambda t: 0 * t - 50), trace(lambda t: 60 * t - 110)
    start = (-100.0, 2.0)
    assert convergence_problems("completed", "", flat, start) == []
    assert convergence_problems("converged", "", rising, start) == []
    assert "still rising" in convergence_problems("completed", "", rising, start)[0]
    assert convergence_problems("completed", "", rising, start, budget_chosen=True) == []
    assert convergence_problems("completed", "", rising, start, budget_chosen=True, advice=["Scale x."]) == ["Scale x."]
    assert "at update 7" in convergence_problems("diverged", "at update 7", flat, start)[0]
    fallen = [*flat, (40_000, -500.0, 1.0, 0.0)]
    assert (
        "-100 at the start and is -500" in convergence_problems("completed", "", fallen, start, budget_chosen=True)[0]
    )
    assert "exploded" in convergence_problems("completed", "", [(1, -np.inf, np.nan, 0.0)], start)[0]
    within_noise = [(1, -110.0, 2.0, 0.0)]
    assert convergence_problems("completed", "", within_noise, start) == []
    assert convergence_problems("completed", "", [(1, -110.0, np.nan, 0.0)], start) == []  # one draw has no error
    assert convergence_problems("interrupted", "", [], None) == []


def test_fit_warns_of_a_covariate_far_from_zero() -> None:
    year = np.tile(np.arange(1984.0, 2005.0, 4.0), 5)
    model = tv.models.RobustPoisson(year[:, None], np.arange(30) % 4)
    with pytest.warns(tv.ConvergenceWarning, match="Covariate 'x1' of X has mean 1994 .* Subtract its mean") as caught:
        fit = quick_fit(model, n_iterations=2)
    assert len(caught) == 1
    assert caught[0].filename == str(Path(targets.__file__))  # where the user's call stands
    assert [f"rpoisson: {words}" for words in fit.warnings] == [str(caught[0].message)]
    assert any("Subtract its mean" in reason for reason in fit.diagnose(n=100).reasons)


# ---- words and files ---------------------------------------------------------------------------------------
def test_a_diagnosis_reads_as_text(poisson: Any) -> None:
    poisson.label = "counts <i>"
    fit = quick_fit(poisson, optimizer=tv.Adam(2e-2), n_iterations=1500)
    found = fit.diagnose()
    assert list(found.globals.index) == poisson.global_labels
    text = str(found)
    assert text.startswith(f"counts <i>, structured: {found.verdict}")
    assert "k-hat, globals" in text
    assert all(word in text for word in found.reasons[0].split())
    assert "counts &lt;i&gt;" in found._repr_html_()
    assert repr(found) == f"<Diagnosis of counts <i>, structured: {found.verdict}>"
    again = fit.diagnose()
    np.testing.assert_array_equal(found.table["value"], again.table["value"])


def test_what_was_to_be_gained_is_the_optimizers_own_word(poisson: Any, tmp_path: Any) -> None:
    fit = quick_fit(poisson, optimizer=tv.NaturalGradient())
    assert fit.status == "converged"
    assert fit.gain is not None
    row = fit.diagnose(n=100).table.loc["gain still to be had"]
    assert (row["value"], row["std_error"]) == fit.gain
    assert fit.gain[0] < 1 + 3 * fit.gain[1]
    assert tv.load_fit(fit.save(tmp_path / "fit.npz")).gain == fit.gain


def test_the_verdict_stays_with_the_fit(poisson: Any, tmp_path: Any) -> None:
    fit = quick_fit(poisson, n_iterations=20)
    attrs = fit.to_arviz(n=10).posterior.attrs
    assert attrs["status"] == "completed"
    assert "verdict" not in attrs
    found = fit.diagnose(n=100)
    assert fit.to_arviz(n=10).posterior.attrs["verdict"] == found.verdict
    assert tv.load_fit(fit.save(tmp_path / "fit.npz")).verdict == found.verdict


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 99}, "n must be a whole number of at least 100"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seeds": 3}, "seeds must be a list of seeds"),
        ({"seeds": [0.5]}, "seeds must be a whole number"),
    ],
)
def test_refused(poisson: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        quick_fit(poisson, n_iterations=1).diagnose(**arguments)


def test_restarts_need_a_start_that_is_known(poisson: Any) -> None:
    fit = quick_fit(poisson, n_iterations=1, init_location=np.zeros(poisson.dim))
    with pytest.raises(InputError, match="began at a location of its own"):
        fit.diagnose(n=100, seeds=[1])


def test_the_default_fit_warns_of_a_funnel() -> None:
    for seed in range(3):
        with pytest.warns(tv.ConvergenceWarning, match="do not trust it"):
            tv.fit(tv.models.LogDensity(funnel, Layout(1, 9, 1)), seed=seed, progress=False, engine="numpy")


@pytest.mark.parametrize("sd", [1e-3, 1.0])
def test_float32_that_cannot_resolve_a_variable_is_told(sd: float) -> None:
    """Numbers near 10,000 lie 1e-3 apart in float32."""

    def narrow(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r = (np.asarray(points, dtype=np.float64) - 1e4) / sd
        return -0.5 * (r**2).sum(axis=1), -r / sd

    model = tv.models.LogDensity(narrow, Layout(2, 0, 0))
    options = {"progress": False, "engine": "numpy", "init_location": 1e4, "init_scale": sd / 2}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit = tv.fit(model, "mean-field", dtype="float32", n_iterations=3000, **options)
    told = [str(one.message) for one in seen if issubclass(one.category, tv.ConvergenceWarning)]
    if sd == 1.0:
        assert (fit.status, told) == ("converged", [])
    else:
        assert fit.status != "converged" or any("float32 cannot resolve 2 of the 2" in text for text in told)
        assert told
