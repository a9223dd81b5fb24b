"""Tails that no draw of a Gaussian reaches: the walk to them, the draws along them, and scales that may be 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

import pyturingvi as tv
from pyturingvi.diagnosis.integrals import IntegratedDensity
from pyturingvi.diagnosis.weights import importance_weights
from pyturingvi.refine.proposals import Gaussian
from pyturingvi.refine.refinement import Refinement
from pyturingvi.refine.resolution import Resolution
from pyturingvi.refine.tails import LARGEST_BEYOND, Ridge, Tails, find_ridges
from pyturingvi.refine.weighted_draws import WeightedDraws


class Slanted:
    """`v` is the logit of a Beta(a, b), which falls as e^{a v} to the left; `x ~ N(v / 2, 1)`, twice.

    Mean and variance of v: digamma(a) - digamma(b), trigamma(a) + trigamma(b).
    """

    def __init__(self, a: float, b: float) -> None:
        self.a, self.b = a, b

    def log_p(self, z: np.ndarray) -> np.ndarray:
        v, rest = z[:, 0], z[:, 1:] - z[:, :1] / 2
        beta = self.a * v - (self.a + self.b) * np.logaddexp(0, v) - special.betaln(self.a, self.b)
        return np.asarray(beta + stats.norm.logpdf(rest).sum(axis=1))

    def with_gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v, rest = z[:, :1], z[:, 1:] - z[:, :1] / 2
        slope = self.a - (self.a + self.b) * special.expit(v) + rest.sum(axis=1, keepdims=True) / 2
        return self.log_p(z), np.hstack([slope, -rest])

    @property
    def moments(self) -> tuple[float, float]:
        variance = special.polygamma(1, self.a) + special.polygamma(1, self.b)
        return float(special.digamma(self.a) - special.digamma(self.b)), float(np.sqrt(variance))

    @property
    def laplace(self) -> Gaussian:
        """The Gaussian at the mode of v, with the curvature there."""
        mode, sd = np.log(self.a / self.b), np.sqrt((self.a + self.b) / (self.a * self.b))
        root = np.array([[sd, 0, 0], [sd / 2, 1, 0], [sd / 2, 0, 1]])
        return Gaussian(mode * np.array([1, 0.5, 0.5]), root)


def test_a_walk_follows_the_others_out_to_where_the_density_is_low() -> None:
    target = Slanted(0.5, 4.0)
    frame = target.laplace
    crooked = Gaussian(frame.mean, np.diag(np.diag(frame.root)))  # which does not know that x goes with v
    ridge = find_ridges(crooked, target.with_gradient)[0]
    z = crooked.place(ridge.points)
    assert ridge.k == 0
    np.testing.assert_allclose(z[:, 1:], z[:, :1] / 2 * np.ones(2), atol=0.05)
    np.testing.assert_allclose(ridge.logs, target.log_p(z))
    assert ridge.logs.max() - ridge.logs[0] > 12
    assert ridge.logs.max() - ridge.logs[-1] > 12
    assert ridge.beyond < LARGEST_BEYOND


def test_what_is_normal_has_no_ridges() -> None:
    rng = np.random.default_rng(0)
    root = np.tril(rng.normal(size=(6, 6))) + 3 * np.eye(6)
    frame = Gaussian(rng.normal(size=6), root)

    def with_gradient(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return frame.log_density(z), -np.linalg.solve(root.T, frame.noise(z).T).T

    assert find_ridges(frame, with_gradient) == []


def test_a_density_that_hardly_falls_has_no_end() -> None:
    def log_p(z: np.ndarray) -> np.ndarray:
        return -np.logaddexp(1e-3 * -z[:, 0], z[:, 0] ** 3)

    def with_gradient(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        h = 1e-5
        return log_p(z), ((log_p(z + h) - log_p(z - h)) / (2 * h))[:, None]

    (ridge,) = find_ridges(Gaussian(np.zeros(1), np.eye(1)), with_gradient)
    assert ridge.places[0] == -60
    assert ridge.beyond > LARGEST_BEYOND


def test_draws_along_ridges_have_the_density_that_is_told() -> None:
    frame = Gaussian(np.array([1.0, -1.0]), np.array([[0.7, 0.0], [0.4, 1.3]]))
    bent = Ridge(
        0,
        np.array([1.0, 0.0]),
        np.array([-4.0, -2, 0, 1, 3]),
        np.array([[0, 1.0], [0, 0.5], [0, 0], [0, 0], [0, 0.3]]),
        np.array([-6.0, -2, 0, -1, -9]),
    )
    straight = Ridge(
        1, np.array([0.6, 0.8]), np.array([-3.0, 0, 3]), np.zeros((3, 2)), np.array([-4.5, 0, -4.5])
    )  # fmt: skip
    tails = Tails(frame, [bent, straight])
    x, y = np.meshgrid(np.linspace(-6, 6, 601), np.linspace(-12, 10, 801), indexing="ij")
    density = np.exp(tails.log_density(np.column_stack([x.ravel(), y.ravel()]))).reshape(x.shape)
    area = (x[1, 0] - x[0, 0]) * (y[0, 1] - y[0, 0])
    assert density.sum() * area == pytest.approx(1, abs=5e-3)
    draws = tails.draw(100_000, np.random.default_rng(0))
    for column, grid in zip(draws.T, (x, y), strict=True):
        mean = (grid * density).sum() * area
        assert column.mean() == pytest.approx(mean, abs=0.02)
        assert column.std() == pytest.approx(np.sqrt((grid**2 * density).sum() * area - mean**2), rel=0.02)
    left = density[x < -0.5].sum() * area
    assert (draws[:, 0] < -0.5).mean() == pytest.approx(left, abs=4 * np.sqrt(left / 100_000) + 0.005)


@pytest.mark.parametrize(("a", "b"), [(0.3, 5.0), (0.8, 5.0), (2.0, 0.4)])
def test_a_tail_that_even_weights_hide_is_drawn_from(a: float, b: float) -> None:
    target = Slanted(a, b)
    mean, sd = target.moments
    without, draws = (WeightedDraws(target.log_p, None, 0, *more) for more in ([], [target.with_gradient]))
    without.draw_from(target.laplace, 4000)
    draws.draw_from(target.laplace, 4000)
    found = importance_weights(draws.log_ratios)
    assert draws.ridges[0].k == 0
    weighted = found.weights @ draws.z[:, 0]
    assert weighted == pytest.approx(mean, abs=0.1 * sd)
    assert np.sqrt(found.weights @ (draws.z[:, 0] - weighted) ** 2) == pytest.approx(sd, rel=0.1)
    assert found.ess > 0.25 * len(draws.z)
    total, error = draws.log_total()
    assert total == pytest.approx(0, abs=4 * error)
    assert error < 0.05


def test_the_error_of_a_standard_deviation_is_that_over_repetitions() -> None:
    """Weights of N(0, 1) for draws of a t distribution, and of a far tail that one draw in a thousand reaches."""
    rng = np.random.default_rng(0)
    sds, errors = [], []
    for _ in range(300):
        z = rng.standard_t(6, size=(1000, 1))
        found = importance_weights(stats.norm.logpdf(z[:, 0]) - stats.t.logpdf(z[:, 0], 6))
        mean = found.mean(z)
        sds.append(np.sqrt(found.mean((z - mean) ** 2))[0])
        errors.append(found.sd_errors(z)[0])
    assert np.mean(errors) == pytest.approx(np.std(sds), rel=0.15)
    z = np.append(rng.normal(size=999), -40.0)[:, None]
    assert importance_weights(np.zeros(1000)).sd_errors(z)[0] > 0.3


def test_a_standard_deviation_that_rests_on_one_draw_is_told() -> None:
    z = np.append(np.random.default_rng(0).normal(size=999), -40.0)
    figures = {"k_hat": 0.1, "ess": 1000.0, "bound": 0.0, "bound_error": 0.0, "log_evidence": 0.0}
    figures |= {"log_evidence_error": 0.0, "integration_error": 0.0, "n_nodes": 8, "n_steps": 30}
    draws = np.stack([z, np.random.default_rng(1).normal(size=1000)], axis=1)
    found = Refinement(draws=draws, weights=np.full(1000, 1e-3), weighted=True, **figures)
    assert "log s (3" in found.vague_words(["log s", "mu"])
    assert "mu" not in found.vague_words(["log s", "mu"])
    assert (
        Refinement(draws=draws[:999], weights=np.full(999, 1 / 999), weighted=True, **figures).vague_words(["a", "b"])
        == ""
    )


# ---- eight schools: one integral over tau -------------------------------------------------------------------------
Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools(centred: bool) -> tv.models.LogDensity:
    """`theta ~ N(mu, tau)`, `y ~ N(theta, sigma)`, `mu ~ N(0, 5)`, `tau ~ HalfCauchy(5)` (Rubin 1981)."""

    def terms(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mu, log_tau, local = points[:, :1], points[:, 1:2], points[:, 2:]
        tau = np.exp(log_tau)
        e, theta = ((local - mu) / tau, local) if centred else (local, mu + tau * local)
        r = (Y - theta) / SIGMA
        square = (tau / 5) ** 2
        prior = -0.5 * (mu / 5) ** 2 - np.log1p(square) + log_tau
        slope = 1 - 2 * square / (1 + square)
        each = -0.5 * (e**2 + r**2) - (log_tau if centred else 0)
        if centred:
            parts = weights * e / tau, weights * (e**2 - 1), weights * (r / SIGMA - e / tau)
        else:
            parts = weights * r / SIGMA, weights * r / SIGMA * tau * e, weights * (tau * r / SIGMA - e)
        g_mu, g_tau = (part.sum(axis=1, keepdims=True) for part in parts[:2])
        return prior[:, 0], each, np.hstack([g_mu - mu / 25, g_tau + slope, parts[2]])

    def density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        prior, each, slopes = terms(points, np.ones((len(points), len(Y))))
        return prior + each.sum(axis=1), slopes

    return tv.models.LogDensity(density, tv.Layout(2, 8, 1), names=["mu", "log tau"], terms=terms)


@pytest.mark.parametrize("sd", [0.5, 2.0])
def test_the_neck_of_a_funnel_is_no_tail_for_being_high(sd: float) -> None:
    """`v ~ N(0, sd^2)`, twelve `x_k ~ N(0, e^{2 v})`: the density rises to the left, its integral over x does not."""
    n = 12

    def with_gradient(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v, x = z[:, :1], z[:, 1:]
        pull = x * np.exp(-2 * v)
        slopes = np.hstack([-v / sd**2 + (pull * x).sum(axis=1, keepdims=True) - n, -pull])
        return (-0.5 * v**2 / sd**2 - n * v)[:, 0] - 0.5 * (pull * x).sum(axis=1), slopes

    frame = Gaussian(np.zeros(1 + n), np.diag([sd, *np.ones(n)]))
    left = frame.place(-4.5 * np.eye(1 + n)[:1])
    assert with_gradient(left)[0] > with_gradient(np.zeros((1, 1 + n)))[0]  # higher than the middle
    assert 0 not in [ridge.k for ridge in find_ridges(frame, with_gradient)]


def exact() -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of mu and log tau: mu given tau is normal, log tau by a fine grid."""
    log_tau = np.linspace(-16, 7, 20_001)
    variance = SIGMA**2 + np.exp(2 * log_tau)[:, None]
    precision = (1 / variance).sum(axis=1) + 1 / 25
    mu = (Y / variance).sum(axis=1) / precision
    logs = -0.5 * (np.log(variance) + Y**2 / variance).sum(axis=1) - 0.5 * np.log(precision) + 0.5 * precision * mu**2
    logs += log_tau - np.log1p(np.exp(2 * log_tau) / 25)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = np.array([weights @ mu, weights @ log_tau])
    square = np.array([weights @ (1 / precision + mu**2), weights @ log_tau**2])
    return mean, np.sqrt(square - mean**2)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")  # of the fit before it is refined
def test_the_scale_of_the_eight_schools_is_that_of_quadrature(centred: bool) -> None:
    mean, sd = exact()
    refined = tv.fit(schools(centred), engine="numpy", progress=False).refine(progress=False)
    assert refined.refined is not None
    assert refined.refined.tails == ["log tau"]
    assert refined.refined.endless == []
    np.testing.assert_allclose((refined.location[:2] - mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(refined.global_sds / sd, 1, atol=0.1)
    assert refined.diagnose().verdict == "good"


def test_integrals_that_change_with_the_nodes_far_out_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a density that 8 nodes have and 4 have not, far out to the left of log tau alone."""
    with pytest.warns(tv.ConvergenceWarning):  # of the fit before it is refined
        fit = tv.fit(schools(centred=True), "structured", progress=False)
    look = Resolution.coarse

    def raised(
        nodes: Resolution, integrals: IntegratedDensity, finer: IntegratedDensity, q: Gaussian, top: float
    ) -> list[str]:
        plain, edge = finer.log_density, q.mean[1] - 4 * np.linalg.norm(q.root[1])
        finer.log_density = lambda z: plain(z) + 2.0 * (z[:, 1] < edge)  # type: ignore[method-assign]
        return look(nodes, integrals, finer, q, top)

    monkeypatch.setattr(Resolution, "coarse", raised)
    with pytest.warns(tv.ConvergenceWarning, match="Far out along .* change with their number of nodes, which is 4"):
        refined = fit.refine(n_nodes=4, progress=False)
    assert refined.refined is not None
    assert refined.refined.coarse == [refined.model.global_labels[1]]
    refined.save(tmp_path / "fit.npz")
    for one in (refined, tv.load_fit(tmp_path / "fit.npz", model=fit.model)):
        diagnosis = one.diagnose()
        assert diagnosis.verdict != "good"
        assert any("Far out along" in reason for reason in diagnosis.reasons)
