"""The transforms: round trips, Jacobians against numerical ones, LKJ against quadrature and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from pyturingvi.errors import InputError
from pyturingvi.transforms import maps as tr

sizes = st.integers(2, 6)
reals = st.floats(-30.0, 30.0)


def partial_vectors(limit: float) -> st.SearchStrategy[tuple[int, np.ndarray]]:
    def vector(size: int) -> st.SearchStrategy[tuple[int, np.ndarray]]:
        n = tr.n_partial_correlations(size)
        entries = st.lists(st.floats(-limit, limit), min_size=n, max_size=n)
        return entries.map(lambda v: (size, np.array([v])))

    return sizes.flatmap(vector)


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
    assert np.isfinite(tr.lkj_cholesky_pullback(v, np.ones_like(factor), factor, remainder)).all()
    np.testing.assert_allclose(np.sum(factor**2, axis=2), 1.0, rtol=1e-13)
    assert (np.diagonal(factor, axis1=1, axis2=2) > 0).all()
    np.testing.assert_array_equal(np.triu(factor, 1), 0.0)
    np.testing.assert_allclose(tr.lkj_cholesky_inverse(factor), v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("eta", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_lkj_density_in_v_is_that_of_the_factor_times_the_jacobian(size: int, eta: float) -> None:
    """By the definition in factors, `prod L_ii^(D-i+2(eta-1))` over i >= 2, and a Jacobian by complex steps."""
    n = tr.n_partial_correlations(size)
    rows, columns = np.tril_indices(size, -1)
    for v in np.random.default_rng(size).normal(size=(5, n)):
        steps = [factor_by_loops(v + 1e-30j * unit, size)[rows, columns].imag / 1e-30 for unit in np.eye(n)]
        log_determinant = np.linalg.slogdet(np.array(steps))[1]
        powers = size - np.arange(2, size + 1) + 2 * (eta - 1)
        by_factor = np.log(np.diagonal(factor_by_loops(v, size))[1:]) @ powers
        in_v = -tr.log_cosh(v) @ tr.lkj_partial_weights(size, eta)
        np.testing.assert_allclose(in_v, by_factor + log_determinant, rtol=1e-10)


@pytest.mark.parametrize("eta", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_lkj_density_integrates_to_one(size: int, eta: float) -> None:
    # in v the entries are independent, each with density cosh(v)^-w
    total = sum(
        math.log(2 * integrate.quad(lambda v, w=w: math.cosh(v) ** -w, 0, 80, epsabs=0, epsrel=1e-11)[0])
        for w in tr.lkj_partial_weights(size, eta)
    )
    assert tr.lkj_log_normalizer(size, eta) == pytest.approx(total, rel=1e-9)


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


@pytest.mark.parametrize(("size", "volume"), [(2, 2.0), (3, math.pi**2 / 2), (4, 32 * math.pi**2 / 27)])
def test_lkj_normalizer_at_eta_1_is_the_volume_of_the_correlation_matrices(size: int, volume: float) -> None:
    # Published volumes of the set of correlation matrices (Rousseeuw and Molenberghs 1994).
    assert math.exp(tr.lkj_log_normalizer(size)) == pytest.approx(volume, rel=1e-12)


def test_lkj_of_size_1_is_the_number_one() -> None:
    factor, remainder = tr.lkj_cholesky(np.zeros((4, 0)), 1)
    np.testing.assert_array_equal(factor, np.ones((4, 1, 1)))
    assert tr.lkj_cholesky_inverse(factor).shape == (4, 0)
    assert tr.lkj_cholesky_pullback(np.zeros((4, 0)), factor, factor, remainder).shape == (4, 0)
    assert tr.lkj_log_normalizer(1) == 0.0


@settings(max_examples=20)
@given(partial_vectors(5.0))
def test_float32_stays_float32_and_agrees_with_float64(case: tuple[int, np.ndarray]) -> None:
    size, v = case
    narrow = v.astype(np.float32)
    factor, remainder = tr.lkj_cholesky(narrow, size)
    assert factor.dtype == remainder.dtype == np.float32
    np.testing.assert_allclose(factor, tr.lkj_cholesky(v, size)[0], atol=1e-5)
    for function in (tr.log_cosh, tr.sech_squared, tr.interval, tr.interval_log_jacobian):
        assert function(narrow).dtype == np.float32
        np.testing.assert_allclose(function(narrow), function(v), rtol=1e-5, atol=1e-5)
    assert tr.lkj_cholesky_pullback(narrow, factor, factor, remainder).dtype == np.float32


def test_a_wrong_number_of_partial_correlations_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(M, 3\).*size 3.*\(2, 4\)"):
        tr.lkj_cholesky(np.zeros((2, 4)), 3)


@pytest.mark.parametrize(("size", "eta"), [(0, 1.0), (3, 0.0), (3, float("nan"))])
def test_the_lkj_normalizer_refuses_parameters_without_a_density(size: int, eta: float) -> None:
    with pytest.raises(InputError, match="eta"):
        tr.lkj_log_normalizer(size, eta)
