"""Stratified noise of natural gradients: a Latin hypercube whose rows are standard normal."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pyturingvi.families import Markov, MeanField, Structured
from pyturingvi.families.base_distributions import Gaussian, Laplace
from pyturingvi.layout import Layout
from pyturingvi.optimize.noise import AntitheticStream, stratified_normal


def draws(m: int, n: int, times: int, dtype: Any = np.float64) -> np.ndarray:
    source = np.random.default_rng(7)
    return np.array([stratified_normal(source, m, n, np.dtype(dtype), np) for _ in range(times)])


@pytest.mark.parametrize("m", [1, 2, 12, 17])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_each_column_has_one_size_in_each_part_of_the_half_normal_distribution(m: int, dtype: Any) -> None:
    found = draws(m, 200, 3, dtype)
    assert found.dtype == dtype
    parts = np.floor(m * stats.halfnorm.cdf(abs(found.astype(np.float64))) * (1 - 1e-6))
    np.testing.assert_array_equal(np.sort(parts, axis=1), np.broadcast_to(np.arange(m)[:, None], found.shape))


def test_a_row_is_standard_normal_with_independent_entries() -> None:
    found = draws(5, 4, 20_000)
    for row in range(5):
        u = found[:, row]
        for column in u.T:
            assert stats.kstest(column, "norm").pvalue > 1e-4
        n = len(u)
        np.testing.assert_allclose(u.T @ u / n, np.eye(4), atol=5 * np.sqrt(2 / n))
        squares = u**2 - 1
        np.testing.assert_allclose(squares.T @ squares / n, 2 * np.eye(4), atol=5 * np.sqrt(56 / n))
        assert stats.kstest((u**2).sum(axis=1), stats.chi2(4).cdf).pvalue > 1e-4


def test_a_mean_of_squares_has_the_noise_of_strata_and_no_more() -> None:
    """The variance of a stratified mean is the mean of the variances within the strata, over m (here by quadrature)."""
    m, n = 32, 50_000
    ends = stats.halfnorm.ppf(np.arange(m + 1) / m)
    within = [
        stats.halfnorm.expect(lambda u: u**4, lb=low, ub=high) * m
        - (stats.halfnorm.expect(lambda u: u**2, lb=low, ub=high) * m) ** 2
        for low, high in pairwise(ends)
    ]
    expected = np.mean(within) / m
    assert expected < 0.25 * 2 / m  # of independent draws
    found = (draws(m, n, 1)[0] ** 2).mean(axis=0)
    np.testing.assert_allclose(found.var(), expected, rtol=0.1)
    np.testing.assert_allclose(found.mean(), 1, atol=5 * np.sqrt(expected / n))


def test_a_mean_of_what_two_columns_do_together_has_no_more_noise_than_of_independent_rows() -> None:
    found = draws(17, 4000, 1)[0]
    for f in (np.abs, np.square):
        g = f(found) - f(stats.norm.rvs(size=200_000, random_state=1)).mean()
        products = g[:, :2000] * g[:, 2000:]
        assert products.mean(axis=0).var() < 1.15 * products.var() / 17


class Halves:
    """A generator whose uniform numbers are all where the quantile would be infinite."""

    def random(self, shape: tuple[int, int], dtype: Any) -> np.ndarray:
        return np.full(shape, 0.5, dtype)

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        return np.zeros(size, dtype=int)  # row 0 has the outermost part


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_number_is_infinite(dtype: Any) -> None:
    found = stratified_normal(Halves(), 4, 3, np.dtype(dtype), np)
    assert np.isfinite(found).all()
    assert found[0].min() > 5


def test_only_what_need_not_be_orthogonal_to_heads_is_stratified_and_only_for_a_gaussian_base() -> None:
    layout = Layout(2, 12, 1)

    def noise_of_squares(family: Any, frames: bool, base: Any = None) -> float:
        base = base or Gaussian()
        stream = AntitheticStream(
            base,
            3,
            layout.dim,
            family.dense_columns(layout),
            np.dtype(float),
            np,
            mirrored=family.mirrors_locals(layout),
        )
        rows = np.array([stream.draw(k, 32, frames)[:, 2:] for k in range(30)])
        return float((rows**2).mean(axis=1).std())

    rough = np.sqrt(2 / 32)
    for family, frames in ((Structured(), True), (Structured(), False), (MeanField(), False), (Markov(), False)):
        assert noise_of_squares(family, frames) < 0.5 * rough
    assert noise_of_squares(Markov(), True) > 0.5 * rough
    assert noise_of_squares(MeanField(), False, Laplace()) > 0.8 * np.sqrt(5 / 32)


def test_mirrored_draws_leave_a_skew_local_no_noise_in_the_border() -> None:
    """Sums of `f(u_n) u_z'` vanish for any f, which independent draws give a standard deviation of `1/sqrt(M)`."""
    layout = Layout(3, 4, 2)
    stream = AntitheticStream(Gaussian(), 3, layout.dim, 3, np.dtype(float), np, mirrored=True)
    rows = stream.draw(0, 16, True)
    both = np.concatenate([rows, -rows])
    z, y = both[:, :3], both[:, 3:]
    for f in (np.exp, np.sin, np.square):
        np.testing.assert_allclose(f(y).T @ z, 0, atol=1e-12)
