"""The check at the end of a fit: integrals against dense algebra, alarms where grids say so, and none elsewhere."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import GaussianTarget, dense_location_scale, fit_at, hierarchical_normal, quick_fit, random_flat

import pyturingvi as tv
from pyturingvi.diagnosis.check import GlobalsCheck, check_globals
from pyturingvi.diagnosis.from_slopes import SlopeIntegrals
from pyturingvi.diagnosis.verdict import DISTRUST, MORE
from pyturingvi.families import get_family
from pyturingvi.layout import Layout


# ---- integrals ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", [tv.MeanField(), tv.Structured(), tv.Structured(standardized=False)], ids=repr)
@pytest.mark.parametrize("local_dim", [1, 2, 3])
def test_normal_locals_are_integrated_out_from_slopes(family: Any, local_dim: int) -> None:
    """Exactly, from any fit that is not too narrow: the marginal density of a multivariate normal is one."""
    target = hierarchical_normal(2, 4, local_dim)
    layout, flat = target.layout, random_flat(family, target.layout, 3)
    flat[layout.dim :] *= 0.5
    mean, scale = dense_location_scale(family, layout, flat)
    integrals = SlopeIntegrals(target.model, family.bind(layout), flat, np.random.default_rng(0))
    noise = np.random.default_rng(1).normal(size=(7, 2))
    assert integrals.separate(noise[0])
    z = mean[:2] + noise @ scale[:2, :2].T
    expected = stats.multivariate_normal(target.mean[:2], target.covariance[:2, :2]).logpdf(z)
    expected -= stats.multivariate_normal(mean[:2], scale[:2, :2] @ scale[:2, :2].T).logpdf(z)
    np.testing.assert_allclose(integrals.log_ratio(noise), expected, atol=1e-8)


def test_locals_that_depend_on_each_other_are_not_integrated_one_by_one() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(42, 42))
    target = GaussianTarget(np.zeros(42), root @ root.T / 42 + 0.1 * np.eye(42), Layout(2, 40, 1))
    bound = get_family("structured").bind(target.layout)
    flat = bound.nearest_gaussian(target.mean, target.precision)
    assert not SlopeIntegrals(target.model, bound, flat, rng).separate(np.zeros(2))
    assert check_globals(target.model, bound, flat, 0, 1000) is None


# ---- alarms ------------------------------------------------------------------------------------------------
def funnel(n: int) -> tv.models.LogDensity:
    """`z ~ N(0, 3)`, n locals `y ~ N(0, e^{z/2})` (Neal 2003)."""

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z, y = points[:, :1], points[:, 1:]
        square = y**2 * np.exp(-z)
        log_density = -(z[:, 0] ** 2) / 18 - 0.5 * (square + z).sum(axis=1)
        return log_density, np.column_stack([-z[:, 0] / 9 + 0.5 * (square - 1).sum(axis=1), -y * np.exp(-z)])

    return tv.models.LogDensity(density, Layout(1, n, 1))


@pytest.mark.parametrize("n", [10, 100, 10_000])
def test_funnels_of_any_size_are_warned_of(n: int) -> None:
    with pytest.warns(tv.ConvergenceWarning, match="do not trust it"):
        fit = quick_fit(funnel(n), optimizer=None, engine="numpy")
    assert fit.status == "converged"


def groups(n: int, sigma: float, tau: float, centred: bool) -> tuple[tv.models.LogDensity, np.ndarray]:
    """`theta_n ~ N(mu, tau)`, `x_n ~ N(theta_n, sigma)`, and by a fine grid the mean and sd of mu and log tau."""
    rng = np.random.default_rng(0)
    x = 2 + tau * rng.normal(size=n) + sigma * rng.normal(size=n)

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mu, log_tau, y = points[:, :1], points[:, 1:2], points[:, 2:]
        t = np.exp(log_tau)
        e = (y - mu) / t if centred else y
        r = (x - mu - t * e) / sigma
        prior = -0.5 * (mu / 10) ** 2 - np.log1p(t**2) + log_tau - (n * log_tau if centred else 0)
        slope = 1 - 2 * t**2 / (1 + t**2)
        if centred:
            parts = (e / t).sum(1, keepdims=True), (e**2).sum(1, keepdims=True) - n, r / sigma - e / t
        else:
            parts = (r / sigma).sum(1, keepdims=True), (r / sigma * t * e).sum(1, keepdims=True), t * r / sigma - e
        log_density = prior[:, 0] - 0.5 * (r**2 + e**2).sum(axis=1)
        return log_density, np.hstack([parts[0] - mu / 100, parts[1] + slope, parts[2]])

    mu, log_tau = np.meshgrid(np.linspace(-1, 5, 121), np.linspace(-9, 3, 481), indexing="ij")
    variance = sigma**2 + np.exp(2 * log_tau)
    logs = -0.5 * ((x[:, None, None] - mu) ** 2 / variance).sum(0) - 0.5 * n * np.log(variance) - 0.5 * (mu / 10) ** 2
    logs += log_tau - np.log1p(np.exp(2 * log_tau))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    means = np.array([(weights * mu).sum(), (weights * log_tau).sum()])
    squares = np.array([(weights * mu**2).sum(), (weights * log_tau**2).sum()])
    return tv.models.LogDensity(density, Layout(2, n, 1)), np.array([means, np.sqrt(squares - means**2)])


def checked(fit: tv.Fit, n_rows: int = 800) -> GlobalsCheck:
    found = check_globals(fit.model, fit.family.bind(fit.model.layout), fit.params, 0, n_rows)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("n", "sigma", "tau", "centred"),
    [
        (40, 1.0, 0.1, True),
        (200, 1.0, 0.5, True),
        (200, 1.0, 0.5, False),
        (40, 0.3, 1.0, False),
        (200, 1.0, 1.0, False),
    ],
)
def test_scales_of_hierarchies_are_warned_of_where_a_grid_has_them_elsewhere(
    n: int, sigma: float, tau: float, centred: bool
) -> None:
    """From few data on groups that hardly differ, to scales that a non-centred fit has too narrow by a third."""
    model, exact = groups(n, sigma, tau, centred)
    with pytest.warns(tv.ConvergenceWarning, match=r"do not trust it.*z\[1\]"):
        fit = quick_fit(model, optimizer=None, engine="numpy")
    assert exact[1, 1] > 1.3 * fit.global_sds[1]
    found = checked(fit)
    assert found.ratio[0] == pytest.approx(exact[1, 0] / fit.global_sds[0], rel=0.1)  # mu is as it should be
    if exact[1, 1] < 1.6 * fit.global_sds[1]:  # the line is nearly all there is
        assert found.ratio[1] == pytest.approx(exact[1, 1] / fit.global_sds[1], rel=0.05)


@pytest.mark.parametrize(
    ("n", "sigma", "tau", "centred"), [(40, 0.3, 1.0, True), (40, 1.0, 2.0, True), (200, 0.3, 1.0, True)]
)
def test_scales_that_a_grid_has_as_the_fit_are_not_warned_of(n: int, sigma: float, tau: float, centred: bool) -> None:
    model, exact = groups(n, sigma, tau, centred)
    fit = quick_fit(model, optimizer=None, engine="numpy")  # a warning is an error
    off = (fit.location[:2] - exact[0]) / exact[1]
    assert np.abs(off).max() < 0.3
    assert np.abs(fit.global_sds / exact[1] - 1).max() < 0.2
    assert fit.warnings == fit.advice == []


def arrow(seed: int) -> GaussianTarget:
    """A normal hierarchy of more than 30 variables and any shape."""
    rng = np.random.default_rng(seed)
    n_global, local_dim = int(rng.integers(1, 12)), int(rng.integers(1, 4))
    found = hierarchical_normal(n_global, int(rng.integers(32, 200)) // local_dim, local_dim)
    return GaussianTarget(rng.normal(0, 3, found.layout.dim), found.precision, found.layout)


# those of the default tier are small, but for one
_DEFAULT = (0, 2, 3, 5, 6, 8, 9, 10)


@pytest.mark.parametrize(
    "seed", [*_DEFAULT, *(pytest.param(k, marks=pytest.mark.slow) for k in range(50) if k not in _DEFAULT)]
)
def test_no_false_alarm_on_normal_targets(seed: int) -> None:
    target = arrow(seed)
    bound = get_family("structured").bind(target.layout)
    exact = fit_at(target.model, "structured", bound.nearest_gaussian(target.mean, target.precision))
    # as an optimizer leaves it: a twentieth of a standard deviation off in every direction
    off = exact.scale.toarray() @ np.random.default_rng(seed).normal(0, 0.05, size=target.layout.dim)
    near = bound.flat_from_location_scale(exact.location + off, exact.scale * 1.02)
    for flat in (exact.params, near):
        found = check_globals(target.model, bound, flat, seed, 200)
        assert found is not None
        assert not found.told


def test_default_fits_of_normal_targets_tell_nothing() -> None:
    for seed in (1, 2, 6):
        fit = quick_fit(arrow(seed).model, optimizer=None, engine="numpy", seed=seed)
        assert (fit.status, fit.warnings, fit.advice) == ("converged", [], [])


# ---- what is told ------------------------------------------------------------------------------------------
def test_rpoisson_small_is_told_that_refining_is_worth_it() -> None:
    """NUTS has s_eta 1.2 of its standard deviations higher (test_refine), which is 1.6 of the fit's."""
    model = tv.load_problem("rpoisson-small")
    with pytest.warns(tv.RefineWarning, match=r"log s_eta by about \+1.*fit.refine\(\)"):
        fit = quick_fit(model, optimizer=None, engine="numpy")
    assert fit.warnings == []
    assert len(fit.advice) == 1
    assert "advice" in fit._repr_html_()
    found = checked(fit)
    assert found.shift[list(found.labels).index("log s_eta")] == pytest.approx(1.6, abs=0.4)
    assert [found.labels[k] for k in found.moved] == ["log s_eta"]


def test_who_refines_is_not_told_to(poisson: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = quick_fit(poisson, optimizer=None, engine="numpy", refine=True)
    assert fit.refined is not None
    assert fit.advice == []


def test_a_density_that_fails_elsewhere_costs_no_fit() -> None:
    calls = []

    def fragile(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if calls and np.abs(points).max() > calls[0]:
            raise ZeroDivisionError
        return -0.5 * (points**2).sum(axis=1), -points

    model = tv.models.LogDensity(fragile, Layout(1, 40, 1))
    fit = quick_fit(model, optimizer=None, engine="numpy")
    calls.append(1e-3)
    from pyturingvi.diagnosis.shape import shape_problems

    assert shape_problems(fit, 0) == ([], [])


def eight_schools(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`mu ~ N(0, 5)`, `tau ~ Cauchy+(0, 5)`, `theta_n = mu + tau e_n` (Rubin 1981), over [mu, log tau, e]."""
    y, sigma = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    mu, tau, e = points[:, :1], np.exp(points[:, 1:2]), points[:, 2:]
    r = (y - mu - tau * e) / sigma
    prior = -0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + points[:, 1:2]
    slopes = (r / sigma).sum(1, keepdims=True) - mu / 25, (r / sigma * tau * e).sum(1, keepdims=True) + 1
    tail = 2 * tau**2 / (25 + tau**2)
    return prior[:, 0] - 0.5 * (r**2 + e**2).sum(1), np.hstack([slopes[0], slopes[1] - tail, tau * r / sigma - e])


def test_a_scale_that_is_too_narrow_is_not_called_good() -> None:
    """NUTS (NumPyro's, four chains of 2,000, r-hat 1.001) has log tau at 0.772 with a standard deviation of 1.195.

    The fit's own draws have weights that look well, since the tail that they leave out is in none of them.
    """
    fit = quick_fit(tv.models.LogDensity(eight_schools, Layout(2, 8, 1)), optimizer=None, engine="numpy")
    assert fit.global_sds[1] < 1.195 / 1.4
    found = fit.diagnose()
    assert found.verdict == "usable with care"
    assert any("z[1] wider" in reason for reason in found.reasons)


@pytest.mark.parametrize("n_local", [2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_a_global_without_an_end_is_not_called_good(n_local: int, seed: int) -> None:
    """Its density falls like 1/|z|, whose integral is infinite: draws near its middle do not see that."""

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z, y = points[:, :1], points[:, 1:]
        return -0.5 * np.log1p(z[:, 0] ** 2) - 0.5 * (y**2).sum(axis=1), np.hstack([-z / (1 + z**2), -y])

    fit = tv.fit(tv.models.LogDensity(density, Layout(1, n_local, 1)), seed=seed, progress=False)
    assert fit.diagnose().verdict != "good"


def test_a_verdict_is_no_better_than_what_the_fit_itself_warned_of(gaussian_target: GaussianTarget) -> None:
    fit = quick_fit(gaussian_target.model, "structured", optimizer=tv.NaturalGradient(), n_iterations=None)
    assert fit.diagnose().verdict == "good"
    fit.warnings = [f"{DISTRUST} By the slopes, means would move: mu by about +3.0. {MORE}"]
    found = fit.diagnose()
    assert found.verdict == "do not trust"
    assert found.reasons[0] == "tv.fit found, by other draws: By the slopes, means would move: mu by about +3.0."
