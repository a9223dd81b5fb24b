"""The base distributions are standardized: by quadrature of their density and by draws."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from pyturingvi.errors import InputError
from pyturingvi.families import MeanField
from pyturingvi.families.base_distributions import StudentT, base_distribution

# spec, kurtosis from the textbook (excess: 0, 3 and 6/(nu-4)), and SciPy's name for it
CASES: list[tuple[Any, float, Any]] = [
    ("gaussian", 3.0, stats.norm()),
    ("laplace", 6.0, stats.laplace(scale=np.sqrt(0.5))),
    (("student_t", 5), 9.0, stats.t(5, scale=np.sqrt(3 / 5))),
    (("student_t", 4.5), 15.0, stats.t(4.5, scale=np.sqrt(2.5 / 4.5))),
    (("student_t", 10.0), 4.0, stats.t(10, scale=np.sqrt(0.8))),
    (("student_t", 1000.0), 3 + 6 / 996, stats.t(1000, scale=np.sqrt(998 / 1000))),
]
DENSITIES = {str(spec): scipys.pdf for spec, _, scipys in CASES}
each_case = pytest.mark.parametrize(("spec", "kurtosis", "scipys"), CASES, ids=[str(c[0]) for c in CASES])


def mean(base: Any, function: Any) -> float:
    """Quadrature of an even function of u; u = sinh(s)**3 brings algebraic tails to a double-exponential end."""

    def integrand(s: float) -> float:
        u = np.array([np.sinh(s) ** 3])
        weight = 3 * np.sinh(s) ** 2 * np.cosh(s) * np.exp(base.log_density(u))
        return float((function(u) * weight)[0])

    return 2 * float(integrate.quad(integrand, 0, 15, limit=500, epsabs=1e-13, epsrel=1e-11)[0])


@each_case
def test_density_is_normalized_with_variance_1_and_the_stated_kurtosis(spec: Any, kurtosis: float, scipys: Any) -> None:
    base = base_distribution(spec)
    u = np.linspace(-30, 30, 601)
    density = base.log_density(u)
    np.testing.assert_allclose(density, scipys.logpdf(u), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(density, base.log_density(-u))  # symmetric: mean and third moment are 0
    assert mean(base, np.ones_like) == pytest.approx(1, rel=1e-8)
    assert mean(base, np.square) == pytest.approx(1, rel=1e-8)
    assert base.kurtosis == pytest.approx(kurtosis, rel=1e-14)
    # at nu = 4.5 the fourth moment's tail beyond sinh(15)**3 is below 1e-8
    assert mean(base, lambda u: u**4) == pytest.approx(kurtosis, rel=1e-6)
    assert base.entropy == pytest.approx(-mean(base, base.log_density), rel=1e-8)


@functools.cache
def exact_mean(function: Any, density: Any) -> float:
    """Found once for both dtypes: the adaptive rule takes thousands of steps."""
    return float(integrate.quad(lambda x: function(x) * density(x), -np.inf, np.inf, limit=200, points=None)[0])


def clipped(x: Any) -> Any:
    return np.minimum(np.abs(x), 3.0)


@each_case
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_draws_follow_the_density(spec: Any, kurtosis: float, scipys: Any, dtype: str) -> None:
    base = base_distribution(spec)
    draws = np.empty((40, 5000), dtype=dtype)
    base.fill(np.random.Generator(np.random.SFC64(3)), draws)
    assert draws.dtype == dtype
    u = draws.astype(float).ravel()
    assert stats.kstest(u, scipys.cdf).pvalue > 1e-4
    # bounded functions, whose Monte Carlo error is known even where moments beyond the fourth are not finite
    for function in (np.sign, np.tanh, clipped, np.cos):
        values = function(u)
        assert abs(values.mean() - exact_mean(function, DENSITIES[str(spec)])) < 4.5 * values.std() / np.sqrt(u.size)
    assert abs(u.mean()) < 4.5 / np.sqrt(u.size)
    # Var(u**2) = kurtosis - 1
    assert abs((u**2).mean() - 1) < 4.5 * np.sqrt((kurtosis - 1) / u.size)
    # neighbours are uncorrelated: Var(u v) = 1
    assert abs((draws[:, 1:] * draws[:, :-1]).mean(dtype=float)) < 4.5 / np.sqrt(40 * 4999)


@pytest.mark.parametrize("spec", ["gaussian", "laplace", ("student_t", 20.0)], ids=str)
def test_third_and_fourth_moments_of_draws(spec: Any) -> None:
    """Only where the eighth moment is finite, so that the Monte Carlo error is known."""
    base = base_distribution(spec)
    u = np.empty(400_000)
    base.fill(np.random.default_rng(8), u)
    assert abs((u**3).mean()) < 4.5 * (u**3).std() / np.sqrt(u.size)
    assert abs((u**4).mean() - base.kurtosis) < 4.5 * (u**4).std() / np.sqrt(u.size)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        *((("student_t", nu), "nu must be a finite number above 4") for nu in (4, 4.0, 1, -3.0, np.nan, np.inf)),
        (("student_t", "many"), "nu must be a number, got 'many'"),
        ("student_t", "needs its degrees of freedom"),
        ("gausian", "Unknown base distribution .* Did you mean 'gaussian'"),
        ("Laplace", "Unknown base distribution .* Did you mean 'laplace'"),
        (("studentt", 5), "Unknown base distribution .* Did you mean .*student_t"),
        (3, "Unknown base distribution 3"),
    ],
    ids=str,
)
def test_what_is_no_base_distribution_is_refused(base: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        MeanField(base=base)


def test_a_base_object_is_taken_as_it_is() -> None:
    base = StudentT(7.0)
    assert MeanField(base=base).base_distribution is base
    assert MeanField(base=base) == MeanField(base=("student_t", 7))
