"""The transforms: round trips, Jacobians against numerical ones, LKJ against quadrature and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from pyturingvi import transforms as tr
from pyturingvi.errors import InputError

sizes = st.integers(2, 6)
reals = st.floats(-30.0, 30.0)


def partial_vectors(limit: float) -> st.SearchStrategy[tuple[int, np.ndarray]]:
    def vector(size: int) -> st.SearchStrategy[tuple[int, np.ndarray]]:
        n = tr.n_partial_correlations(size)
        entries = st.lists(st.floats(-limit, limit), min_size=n, max_size=n)
        return entries.map(lambda v: (size, np.array([v])))

    return sizes.flatmap(vector)


def lower_entries(factor: np.ndarray) -> np.ndarray:
    rows, columns = np.tril_indices(factor.shape[1], -1)
    return factor[:, rows, columns]


def factor_by_loops(v: np.ndarray, size: int) -> np.ndarray:
    """The definition, entry by entry."""
    factor = np.zeros((size, size), dtype=v.dtype)
    place = 0
    for i in range(size):
        left = 1.0 + 0.0 * v[0]
        for j in range(i):
            partial = np.tanh(v[place])
            factor[i, j] = partial * np.sqrt(left)
            left = left - factor[i, j] ** 2
            place += 1
        factor[i, i] = np.sqrt(left)
    return factor


@given(reals)
def test_log_cosh_and_sech_squared_are_exact_for_small_and_large_arguments(v: float) -> None:
    array = np.array([v])
    np.testing.assert_allclose(tr.log_cosh(array), np.log(np.cosh(v)), rtol=1e-13, atol=3e-16)
    np.testing.assert_allclose(tr.sech_squared(array), 1 / np.cosh(v) ** 2, rtol=1e-13)


@pytest.mark.parametrize("v", [-1e4, 800.0, 1e4])
def test_log_cosh_does_not_overflow(v: float) -> None:
    assert tr.log_cosh(np.array([v]))[0] == pytest.approx(abs(v) - math.log(2), rel=1e-15)
    assert tr.sech_squared(np.array([v]))[0] == 0.0


@given(reals)
def test_positive_round_trip_and_derivative(v: float) -> None:
    array = np.array([v])
    x = tr.positive(array)
    assert x[0] > 0
    np.testing.assert_allclose(tr.positive_inverse(x), array, rtol=1e-14, atol=1e-15)
    slope = np.imag(np.exp(v + 1e-30j)) / 1e-30
    np.testing.assert_allclose(np.exp(tr.positive_log_jacobian(array)), slope, rtol=1e-13)
    np.testing.assert_allclose(tr.positive_pullback(array, np.array([3.0])), 3 * slope, rtol=1e-13)


@given(reals)
def test_interval_round_trip_and_derivative(v: float) -> None:
    array = np.array([v])
    x = tr.interval(array)
    assert -1 < x[0] < 1
    # near the ends x keeps eps/(1 - |x|) of v
    lost = np.finfo(float).eps * np.cosh(v / 2) ** 2
    np.testing.assert_allclose(tr.interval_inverse(x), array, rtol=1e-14, atol=8 * lost)
    slope = 0.5 / np.cosh(v / 2) ** 2
    np.testing.assert_allclose(np.exp(tr.interval_log_jacobian(array)), slope, rtol=1e-12)
    np.testing.assert_allclose(tr.interval_pullback(array, np.array([3.0])), 3 * slope, rtol=1e-12)


@given(partial_vectors(3.0))
def test_lkj_cholesky_follows_its_definition_row_by_row(case: tuple[int, np.ndarray]) -> None:
    size, v = case
    factor, _ = tr.lkj_cholesky(v, size)
    np.testing.assert_allclose(factor[0], factor_by_loops(v[0], size), atol=1e-11)


@given(partial_vectors(30.0))
def test_lkj_cholesky_gives_unit_rows_and_the_inverse_gives_v_back_also_far_out(
    case: tuple[int, np.ndarray],
) -> None:
    size, v = case
    factor, remainder = tr.lkj_cholesky(v, size)
    assert np.isfinite(remainder).all()
    np.testing.assert_allclose(np.sum(factor**2, axis=2), 1.0, rtol=1e-13)
    assert (np.diagonal(factor, axis1=1, axis2=2) > 0).all()
    np.testing.assert_array_equal(np.triu(factor, 1), 0.0)
    np.testing.assert_allclose(tr.lkj_cholesky_inverse(factor), v, rtol=1e-12, atol=1e-12)


@given(partial_vectors(30.0))
def test_lkj_quantities_are_finite_far_out(case: tuple[int, np.ndarray]) -> None:
    size, v = case
    factor, remainder = tr.lkj_cholesky(v, size)
    assert np.isfinite(tr.lkj_cholesky_log_jacobian(v, size)).all()
    assert np.isfinite(tr.lkj_cholesky_log_jacobian_gradient(v, size)).all()
    assert np.isfinite(tr.lkj_cholesky_pullback(v, np.ones_like(factor), factor, remainder)).all()
    assert np.isfinite(tr.lkj_cholesky_log_density(factor)).all()


@given(st.lists(reals, min_size=6, max_size=6))
def test_lkj_density_in_v_is_the_density_of_the_factor_times_the_jacobian(entries: list[float]) -> None:
    v, size, eta = np.array([entries]), 4, 1.7
    factor, _ = tr.lkj_cholesky(v, size)
    by_factor = tr.lkj_cholesky_log_density(factor, eta) + tr.lkj_cholesky_log_jacobian(v, size)
    in_v = -tr.log_cosh(v) @ tr.lkj_partial_weights(size, eta) - tr.lkj_log_normalizer(size, eta)
    np.testing.assert_allclose(in_v, by_factor, rtol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_lkj_log_jacobian_is_the_determinant_of_the_complex_step_jacobian(size: int) -> None:
    rng = np.random.default_rng(size)
    n = tr.n_partial_correlations(size)
    for _ in range(5):
        v = rng.normal(size=n)
        jacobian = np.empty((n, n))
        for k in range(n):
            shifted = v.astype(complex)
            shifted[k] += 1e-30j
            factor = factor_by_loops(shifted, size)
            jacobian[:, k] = lower_entries(factor[None])[0].imag / 1e-30
        sign, log_determinant = np.linalg.slogdet(jacobian)
        assert sign == 1
        np.testing.assert_allclose(tr.lkj_cholesky_log_jacobian(v[None], size), log_determinant, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_lkj_pullback_equals_the_complex_step_derivative(size: int) -> None:
    rng = np.random.default_rng(10 + size)
    n = tr.n_partial_correlations(size)
    v = rng.normal(size=(3, n))
    outer = rng.normal(size=(3, size, size))  # entries above the diagonal must not matter
    factor, remainder = tr.lkj_cholesky(v, size)
    found = tr.lkj_cholesky_pullback(v, outer, factor, remainder)
    for m in range(3):
        for k in range(n):
            shifted = v[m].astype(complex)
            shifted[k] += 1e-30j
            slope = np.sum(np.tril(outer[m]) * factor_by_loops(shifted, size).imag) / 1e-30
            assert found[m, k] == pytest.approx(slope, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("size", [2, 4, 6])
def test_lkj_log_jacobian_gradient_equals_central_differences(size: int) -> None:
    v = np.random.default_rng(size).normal(size=(2, tr.n_partial_correlations(size)))
    found = tr.lkj_cholesky_log_jacobian_gradient(v, size)
    for k in range(v.shape[1]):
        step = np.zeros_like(v)
        step[:, k] = 1e-6
        above = tr.lkj_cholesky_log_jacobian(v + step, size)
        below = tr.lkj_cholesky_log_jacobian(v - step, size)
        np.testing.assert_allclose(found[:, k], (above - below) / 2e-6, atol=1e-7)


@pytest.mark.parametrize("eta", [0.5, 1.0, 2.5])
def test_lkj_density_of_a_2x2_factor_integrates_to_one(eta: float) -> None:
    def density(angle: float) -> float:  # L_21 = sin(angle) takes the end points' singularity away
        factor = np.array([[[1.0, 0.0], [math.sin(angle), math.cos(angle)]]])
        return float(np.exp(tr.lkj_cholesky_log_density(factor, eta)[0])) * math.cos(angle)

    total, _ = integrate.quad(density, -math.pi / 2 + 1e-12, math.pi / 2 - 1e-12)
    assert total == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("eta", [1.0, 2.0])
def test_lkj_density_of_a_3x3_factor_integrates_to_one(eta: float) -> None:
    # Row 2 is a point of an interval, row 3 a point of the unit disc: polar coordinates, Gauss-Legendre.
    nodes, weights = np.polynomial.legendre.leggauss(60)
    angle, radius = 0.5 * math.pi * nodes, 0.5 * (nodes + 1)
    first, second = np.meshgrid(angle, radius, indexing="ij")
    factor = np.zeros((first.size, 3, 3))
    factor[:, 0, 0] = 1
    factor[:, 1, 0], factor[:, 1, 1] = np.sin(first.ravel()), np.cos(first.ravel())
    factor[:, 2, 0] = second.ravel()  # the density depends on the radius only
    factor[:, 2, 2] = np.sqrt(1 - second.ravel() ** 2)
    values = np.exp(tr.lkj_cholesky_log_density(factor, eta)).reshape(first.shape)
    values = values * np.cos(first) * 2 * math.pi * second
    total = (0.5 * math.pi * weights) @ values @ (0.5 * weights)
    assert total == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(("size", "volume"), [(2, 2.0), (3, math.pi**2 / 2), (4, 32 * math.pi**2 / 27)])
def test_lkj_normalizer_at_eta_1_is_the_volume_of_the_correlation_matrices(size: int, volume: float) -> None:
    # Published volumes of the set of correlation matrices (Rousseeuw and Molenberghs 1994).
    assert math.exp(tr.lkj_log_normalizer(size)) == pytest.approx(volume, rel=1e-12)


def test_lkj_at_eta_1_makes_the_correlation_matrix_uniform() -> None:
    # With the three entries drawn uniformly from a cube of volume 8, the share of positive definite matrices
    # times 8 must be the normalizing constant.
    rng = np.random.default_rng(1)
    a, b, c = rng.uniform(-1, 1, size=(3, 400_000))
    share = np.mean(1 + 2 * a * b * c - a * a - b * b - c * c > 0)
    error = 8 * math.sqrt(share * (1 - share) / 400_000)
    assert abs(8 * share - math.exp(tr.lkj_log_normalizer(3))) < 4 * error


def test_lkj_of_size_1_is_the_number_one() -> None:
    factor, remainder = tr.lkj_cholesky(np.zeros((4, 0)), 1)
    np.testing.assert_array_equal(factor, np.ones((4, 1, 1)))
    assert tr.lkj_cholesky_inverse(factor).shape == (4, 0)
    assert tr.lkj_cholesky_pullback(np.zeros((4, 0)), factor, factor, remainder).shape == (4, 0)
    assert tr.lkj_log_normalizer(1) == 0.0
    np.testing.assert_array_equal(tr.lkj_cholesky_log_jacobian(np.zeros((4, 0)), 1), np.zeros(4))


@settings(max_examples=20)
@given(partial_vectors(5.0))
def test_float32_stays_float32_and_agrees_with_float64(case: tuple[int, np.ndarray]) -> None:
    size, v = case
    narrow = v.astype(np.float32)
    factor, remainder = tr.lkj_cholesky(narrow, size)
    assert factor.dtype == remainder.dtype == np.float32
    np.testing.assert_allclose(factor, tr.lkj_cholesky(v, size)[0], atol=1e-5)
    for function in (tr.log_cosh, tr.sech_squared, tr.interval, tr.interval_log_jacobian, tr.positive):
        assert function(narrow).dtype == np.float32
        np.testing.assert_allclose(function(narrow), function(v), rtol=1e-5, atol=1e-5)
    assert tr.lkj_cholesky_log_jacobian(narrow, size).dtype == np.float32
    assert tr.lkj_cholesky_pullback(narrow, factor, factor, remainder).dtype == np.float32


def test_a_wrong_number_of_partial_correlations_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(M, 3\).*size 3.*\(2, 4\)"):
        tr.lkj_cholesky(np.zeros((2, 4)), 3)


@pytest.mark.parametrize(("size", "eta"), [(0, 1.0), (3, 0.0), (3, float("nan"))])
def test_the_lkj_normalizer_refuses_parameters_without_a_density(size: int, eta: float) -> None:
    with pytest.raises(InputError, match="eta"):
        tr.lkj_log_normalizer(size, eta)
