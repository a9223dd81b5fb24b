"""The item response model against scipy's densities, finite differences and its own missing-data rule."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from response_tables import make_points, make_table
from scipy import special, stats

from pyturingvi.models import irt_likelihood, irt_panels
from pyturingvi.models.irt import ItemResponse


def reference_log_density(table, point):
    """Sum of scipy densities in the natural space and of the log-Jacobians of the three exponentials."""
    n_items = table.shape[1]
    mu, log_s_beta, log_s_gamma = point[:3]
    log_gamma, beta = point[3 : 3 + n_items], point[3 + n_items : 3 + 2 * n_items]
    alpha = point[3 + 2 * n_items :]
    s_beta, s_gamma, gamma = np.exp(log_s_beta), np.exp(log_s_gamma), np.exp(log_gamma)
    total = stats.t(4).logpdf(mu)
    total += np.log(2) + stats.t(4).logpdf(s_beta) + log_s_beta
    total += np.log(2) + stats.t(4).logpdf(s_gamma) + log_s_gamma
    total += (stats.lognorm(s=s_gamma, scale=1.0).logpdf(gamma) + log_gamma).sum()
    total += stats.norm(0, s_beta).logpdf(beta).sum() + stats.norm(0, 1).logpdf(alpha).sum()
    logits = np.outer(alpha, gamma) + beta + mu
    seen = ~np.isnan(table)
    return total + stats.bernoulli(special.expit(logits[seen])).logpmf(table[seen]).sum()


# ---- density and gradient ---------------------------------------------------------------------------------
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_log_density_is_the_sum_of_scipy_densities(missing):
    table = make_table(3348, 95, missing=missing)
    model = ItemResponse(table)
    points = make_points(model, 8)
    expected = [reference_log_density(table, point) for point in points]
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-10)
    np.testing.assert_allclose(model.log_density_and_gradient(points)[0], expected, rtol=1e-10)


def test_a_missing_cell_changes_the_density_by_its_own_log_probability():
    table = make_table(30, 6, seed=2)
    model = ItemResponse(table)
    point = make_points(model, 1)[0]
    holes = table.copy()
    holes[4, 2] = holes[7, 0] = np.nan
    logit = np.outer(point[15:], np.exp(point[3:9])) + point[9:15] + point[0]
    removed = sum(special.log_expit((2 * table[j, k] - 1) * logit[j, k]) for j, k in ((4, 2), (7, 0)))
    difference = model.log_density(point) - ItemResponse(holes).log_density(point)
    np.testing.assert_allclose(difference, removed, rtol=1e-9)


@pytest.mark.parametrize("size", [0.0, 3.0, 30.0])
def test_large_logits_neither_overflow_nor_lose_accuracy(size):
    table = make_table(50, 8, seed=4)
    model = ItemResponse(table)
    point = make_points(model, 1)[0]
    point[19:] *= size
    logit = np.outer(point[19:], np.exp(point[3:11])) + point[11:19] + point[0]
    likelihood = special.log_expit((2 * table - 1) * logit).sum()
    prior = reference_log_density(np.full(table.shape, np.nan), point)
    np.testing.assert_allclose(model.log_density(point), likelihood + prior, rtol=1e-11)
    residual = table - special.expit(logit)
    np.testing.assert_allclose(
        model.gradient(point)[0, 19:], residual @ np.exp(point[3:11]) - point[19:], rtol=1e-9, atol=1e-11
    )


def test_overflow_gives_infinity_or_nan_without_a_warning():
    model = ItemResponse(make_table(10, 4))
    point = np.zeros(model.dim)
    point[3] = 1e4
    assert not np.isfinite(model.log_density(point)).any()
    assert not np.isfinite(model.gradient(point)).all()
    assert np.isnan(model.log_density(np.full(model.dim, np.nan))).all()
    far = np.zeros(model.dim)
    far[1] = -1e4
    far[7] = 1.0  # a beta of 1 where s_beta underflows to 0
    assert model.log_density(far)[0] == -np.inf


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("block", [1, 4096, 1 << 24])
def test_block_size_does_not_change_the_result(monkeypatch, missing, block):
    table = make_table(203, 101, missing=missing)
    model = ItemResponse(table)
    points = make_points(model, 7)
    expected = [reference_log_density(table, point) for point in points]
    gradient = model.gradient(points)
    monkeypatch.setattr(irt_likelihood, "_CPU_BLOCK_BYTES", block)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-11)
    value, blocked = model.log_density_and_gradient(points)
    np.testing.assert_allclose(value, expected, rtol=1e-11)
    np.testing.assert_allclose(blocked, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.7, 1.0])
def test_panels_are_exact_to_rounding(spread):
    rng = np.random.default_rng(8)
    half_gamma, half_centre = np.exp(spread * rng.standard_normal(95)) / 2, rng.standard_normal(95)
    alpha = rng.standard_normal(8000)
    logs, moments, slopes = irt_panels.panel_sums(half_gamma, half_centre, alpha, value=True, gradient=True)
    h = half_gamma[:, None] * alpha + half_centre[:, None]
    tanh = np.tanh(h)
    assert logs == pytest.approx(np.logaddexp(h, -h).sum(), rel=1e-13)
    expected = np.stack([tanh @ alpha, tanh.sum(axis=1)], axis=1)
    np.testing.assert_allclose(moments, expected, rtol=0, atol=1e-13 * np.abs(tanh).sum(axis=1).max())
    np.testing.assert_allclose(slopes, half_gamma @ tanh, rtol=0, atol=1e-13 * half_gamma.sum())


def test_panels_are_left_where_they_would_not_pay():
    half_gamma, half_centre = np.full(5, 0.5), np.zeros(5)
    alpha = np.linspace(-4, 4, 1000)
    for bad in (alpha * 1e3, np.append(alpha, np.inf), np.append(alpha, np.nan), alpha[::20]):
        assert irt_panels.panel_sums(half_gamma, half_centre, bad, value=True, gradient=True) is None
    assert irt_panels.panel_sums(half_gamma, half_centre, alpha, value=True, gradient=True) is not None


def test_panels_and_cells_give_one_result_also_within_a_batch(monkeypatch):
    model = ItemResponse(make_table(3348, 95))
    points = make_points(model, 5)
    points[[1, 2, 4], 3] = 7.0  # discriminations of 1,100: cell by cell
    value, gradient = model.log_density_and_gradient(points)
    monkeypatch.setattr(irt_panels, "_MAX_NODES_PER_STUDENT", 0.0)
    by_cells, gradient_by_cells = model.log_density_and_gradient(points)
    np.testing.assert_allclose(value, by_cells, rtol=1e-13)
    np.testing.assert_allclose(gradient, gradient_by_cells, rtol=0, atol=1e-12 * np.abs(gradient).max())
    np.testing.assert_allclose(model.log_density(points), by_cells, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])  # half as large
def test_memory_beyond_the_points_stays_small_at_the_largest_size(dtype):
    model = ItemResponse(make_table(33475, 95))
    points = np.random.default_rng(0).standard_normal((16, model.dim)).astype(dtype)
    points[:, : model.layout.n_global] *= 0.3
    points[0, 3] = 6.0  # one item with a discrimination of 400: this point is summed cell by cell
    model.log_density(points[:1])  # the responses in this dtype, kept for all calls
    out = np.empty_like(points)
    tracemalloc.start()
    try:
        model.log_density(points)
        model._gradient(points, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40e6  # one float64 table of cells for all points would take 400 MB
    assert sum(a.nbytes for a in model._device_cache.values()) <= 33475 * 95 * points.itemsize
