"""Abilities integrated out on a common grid, beside adaptive quadrature, differences and nodes of each student."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from response_tables import make_table
from scipy import integrate, special, stats

import pyturingvi as tv
from pyturingvi.diagnosis.integrals import GridIntegrals
from pyturingvi.diagnosis.integrated import LocalIntegrals, integrals_of
from pyturingvi.diagnosis.nodes import Rule
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.irt_nodes import AbilityIntegrals, grid_for
from pyturingvi.models.irt_sparse import SparseTable
from pyturingvi.models.irt_tables import DenseTable

GRID = np.linspace(-9, 9, 181)


def complete() -> tv.models.ItemResponse:
    return tv.models.ItemResponse(make_table(30, 6, seed=1, missing=0.0))


def gaps() -> tv.models.ItemResponse:
    return tv.models.ItemResponse(make_table(30, 6, seed=2, missing=0.3), beta="difficulty")


def sparse() -> tv.models.ItemResponse:
    """The same as a list of answers, which tables of this size never are by themselves."""
    model = gaps()
    model._set_up(SparseTable(model._table.answers()))
    return model


MODELS = {"complete": complete, "with gaps": gaps, "a list": sparse}


def globals_at(model: tv.models.ItemResponse, seed: int, n: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, model.layout.n_global)) * 0.7


def by_quadrature(model: tv.models.ItemResponse, z: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Log density of the globals z (d_z,), and mean and variance of each ability, from the model in plain words.

    The normal density is written out: `quad` calls it ten thousand times, and SciPy's checks take longest there.
    """
    n = model.n_items
    mu, s_beta, s_gamma = z[0], np.exp(z[1]), np.exp(z[2])
    gamma, beta = np.exp(z[3 : 3 + n]), z[3 + n :]
    half_t = stats.t(4)
    total = half_t.logpdf(mu) + sum(np.log(2) + half_t.logpdf(s) + np.log(s) for s in (s_beta, s_gamma))
    total += stats.norm.logpdf(beta, scale=s_beta).sum() + stats.norm.logpdf(z[3 : 3 + n], scale=s_gamma).sum()
    centre = (beta + mu) * (1 if model.beta == "easiness" else -1)
    moments = []
    for row in model.responses:
        signs, g, c = 2.0 * row[row >= 0] - 1, gamma[row >= 0], centre[row >= 0]

        def density(a: float, k: int, signs: Any = signs, g: Any = g, c: Any = c) -> float:
            return float(a**k * np.exp(special.log_expit(signs * (g * a + c)).sum() - a * a / 2) / np.sqrt(2 * np.pi))

        each = [integrate.quad(density, -9, 9, (k,), points=[-2, 0, 2], epsabs=0, epsrel=1e-11)[0] for k in range(3)]
        total += np.log(each[0])
        moments.append((each[1] / each[0], each[2] / each[0] - (each[1] / each[0]) ** 2))
    mean, variance = np.transpose(moments)
    return float(total), mean, variance


@pytest.mark.parametrize("kind", MODELS)
def test_integrals_and_moments_are_those_of_adaptive_quadrature(kind: str) -> None:
    model = MODELS[kind]()
    integrals, z = AbilityIntegrals(model, GRID), globals_at(model, 3, 1)
    total, mean, variance = by_quadrature(model, z[0])
    assert integrals.evaluate(z, gradient=False)[0][0] == pytest.approx(total, abs=1e-9)
    found = integrals.moments(z)
    np.testing.assert_allclose(found[0][0], mean, atol=1e-9)
    np.testing.assert_allclose(found[1][0], variance, atol=1e-9)


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_those_of_differences(kind: str) -> None:
    model = MODELS[kind]()
    integrals, z = AbilityIntegrals(model, GRID), globals_at(model, 4)
    value, slopes = integrals.evaluate(z, gradient=True)
    np.testing.assert_allclose(integrals.evaluate(z, gradient=False)[0], value, rtol=1e-14)
    h = 1e-5
    for k in range(z.shape[1]):
        step = h * np.eye(z.shape[1])[k]
        up, down = (integrals.evaluate(z + sign * step, gradient=False)[0] for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, k], (up - down) / (2 * h), atol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_a_common_grid_gives_what_many_nodes_of_each_student_do(kind: str) -> None:
    """By way of the model's log terms, which know nothing of the grid; students in several blocks."""
    model = MODELS[kind]()
    bound = tv.Structured().bind(model.layout)
    parts = GlobalsAndLocals.of(bound, bound.initial_flat(np.zeros(model.dim), 0.8))
    z = globals_at(model, 5, 4)
    plain = LocalIntegrals(model, parts, Rule.of(30, 1, 160))
    own = AbilityIntegrals(model, GRID)
    own._blocks = model._table.blocks(13)
    for found, expected in zip(own.evaluate(z, gradient=True), plain.log_density_and_gradient(z), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    mean, covariance = plain.moments(z)
    np.testing.assert_allclose(own.moments(z)[0], mean[..., 0], atol=1e-9)
    np.testing.assert_allclose(own.moments(z)[1], covariance[..., 0, 0], atol=1e-9)


def test_both_tables_give_the_same_blocks() -> None:
    model = gaps()
    assert isinstance(model._table, DenseTable)
    for dense, listed in zip(model._table.blocks(13), SparseTable(model._table.answers()).blocks(13), strict=True):
        assert dense.students == listed.students
        np.testing.assert_array_equal(dense.right, listed.right.toarray())
        np.testing.assert_array_equal(dense.answered, listed.answered.toarray())
    assert complete()._table.blocks(13)[0].answered is None


def test_a_grid_is_fine_for_the_narrowest_and_wide_for_all() -> None:
    """Of normal densities its sums are 1; with half the nodes they are off, with twice as many right to ten digits."""
    mean, sd = np.array([-3.0, 0.0, 2.5]), np.array([0.6, 0.2, 0.5])

    def error(grid: np.ndarray) -> float:
        sums = stats.norm.pdf(grid[:, None], mean, sd).sum(axis=0) * (grid[1] - grid[0])
        return float(np.abs(sums - 1).max())

    grid = grid_for(mean, sd)
    n = len(grid)
    assert error(grid) < 1e-5
    assert error(grid_for(mean, sd, n // 2)) > 1e-3
    assert len(grid_for(mean, sd, 2 * n)) == 2 * n
    assert error(grid_for(mean, sd, 2 * n)) < 1e-10


def test_draws_of_abilities_are_those_of_their_posterior() -> None:
    """Their distribution functions, from a sum over a fine grid, send them to uniform numbers; none occurs twice."""
    model = gaps()
    z = globals_at(model, 6, 1)
    mean, variance = (one[0] for one in AbilityIntegrals(model, GRID).moments(z))
    integrals = AbilityIntegrals(model, grid_for(mean, np.sqrt(variance)))
    draws = integrals.draw(np.repeat(z, 2000, axis=0), np.random.default_rng(0))
    assert draws.shape == (2000, 30)
    assert len(np.unique(draws)) == draws.size
    fine = np.linspace(-9, 9, 20_001)
    points = np.concatenate([np.repeat(z, len(fine), axis=0), np.repeat(fine[:, None], 30, axis=1)], axis=1)
    mass = np.cumsum(np.exp(model.log_terms(points)[1]), axis=0)
    p = [stats.kstest(np.interp(draws[:, j], fine, mass[:, j] / mass[-1, j]), "uniform").pvalue for j in range(30)]
    assert min(p) > 1e-3 / 30
    np.testing.assert_allclose(draws.var(axis=0) / variance, 1, atol=5 * np.sqrt(2 / 2000))


def test_item_response_is_refined_on_the_grid_and_a_subclass_on_nodes_of_its_own() -> None:
    class Other(tv.models.ItemResponse):
        pass

    for kind, expected in ((tv.models.ItemResponse, GridIntegrals), (Other, LocalIntegrals)):
        model = kind(make_table(30, 6, seed=1, missing=0.0))
        bound = tv.Structured().bind(model.layout)
        parts = GlobalsAndLocals.of(bound, bound.initial_flat(np.zeros(model.dim), 0.5))
        assert type(integrals_of(model, parts)) is expected


def test_a_fit_refined_on_the_grid_is_right_by_nodes_of_each_student() -> None:
    """The density at its draws, and the abilities that it draws, by 24 nodes around each student's own mass."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(150, 1)) * np.exp(0.4 * rng.normal(size=6)) + rng.normal(size=6)
    table = (rng.random(logits.shape) < special.expit(logits)).astype(float)
    table[rng.random(table.shape) < 0.1] = np.nan
    model = tv.models.ItemResponse(table)
    fit = tv.fit(model, "structured", engine="numpy", progress=False)
    refined = fit.refine(progress=False)
    found = refined.refined
    assert found is not None
    assert found.weighted
    parts = GlobalsAndLocals.of(fit.family.bind(model.layout), fit.params)
    nodes, z = LocalIntegrals(model, parts, Rule.of(150, 1, 24)), found.resample(100, rng)
    grid = integrals_of(model, parts, found.n_nodes)
    np.testing.assert_allclose(grid.log_density(z), nodes.log_density(z), atol=0.05)  # what refine lets pass
    mean, covariance = (one[..., 0].reshape(100, 150) for one in nodes.moments(z))
    sd = np.sqrt(covariance.mean(axis=0) + mean.var(axis=0))
    draws = refined.sample(1000, seed=1)["alpha"]
    np.testing.assert_allclose((draws.mean(axis=0) - mean.mean(axis=0)) / sd, 0, atol=4.5 / np.sqrt(1000) + 0.05)
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1, atol=4.5 / np.sqrt(2000) + 0.03)
