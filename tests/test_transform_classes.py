"""The public transforms: round trips, Jacobians and pullbacks against differences, densities against quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import pyturingvi as tv
from pyturingvi import transforms as tr
from pyturingvi.errors import InputError
from pyturingvi.transforms import maps

SINGLE = {
    "real": tr.Real(),
    "positive": tr.Positive(),
    "lower": tr.LowerBounded(-2.5),
    "upper": tr.UpperBounded(3.0),
    "probability": tr.Interval(),
    "interval": tr.Interval(-1, 4),
    "simplex-2": tr.Simplex(2),
    "simplex-4": tr.Simplex(4),
    "ordered": tr.Ordered(3),
    "cholesky-2": tr.CholeskyCorrelation(2),
    "cholesky-4": tr.CholeskyCorrelation(4),
}
SEVERAL = {
    "reals": tr.Real((2, 3)),
    "positives": tr.Positive(3),
    "simplexes": tr.Simplex(3, shape=2),
    "ordered-pairs": tr.Ordered(2, shape=(2, 2)),
    "factors": tr.CholeskyCorrelation(3, shape=2),
}
ALL = SINGLE | SEVERAL
names = st.sampled_from(sorted(ALL))


def points_of(transform: tr.Transform, limit: float = 3.0) -> st.SearchStrategy[np.ndarray]:
    n = transform.n_unconstrained
    return st.lists(st.floats(-limit, limit), min_size=n, max_size=n).map(np.array)


def numerical_jacobian(transform: tr.Transform, v: np.ndarray) -> np.ndarray:
    """dx/dv (scalars of x, k) by central differences of fourth order."""

    def slopes(step: float) -> np.ndarray:
        moves = step * np.eye(v.size)
        return (transform.constrain(v + moves) - transform.constrain(v - moves)) / (2 * step)

    return ((4 * slopes(5e-4) - slopes(1e-3)) / 3).reshape(v.size, -1).T


def free_entries(transform: tr.Transform) -> np.ndarray:
    """Which scalars of a single value its density is with respect to."""
    places = np.arange(math.prod(transform.event_shape)).reshape(transform.event_shape)
    if isinstance(transform, tr.Simplex):
        return places[:-1]
    if isinstance(transform, tr.CholeskyCorrelation):
        return places[np.tril_indices(transform.size, -1)]
    return places.reshape(-1)


@given(names.flatmap(lambda name: st.tuples(st.just(ALL[name]), points_of(ALL[name], 8.0))))
def test_unconstrain_gives_back_the_point(case: tuple[tr.Transform, np.ndarray]) -> None:
    transform, v = case
    x = transform.constrain(v)
    assert x.shape == transform.natural_shape
    np.testing.assert_allclose(transform.unconstrain(x), v, rtol=1e-9, atol=1e-9)


@settings(max_examples=60)
@given(st.sampled_from(sorted(SINGLE)).flatmap(lambda name: st.tuples(st.just(SINGLE[name]), points_of(SINGLE[name]))))
def test_the_log_jacobian_is_that_of_the_map(case: tuple[tr.Transform, np.ndarray]) -> None:
    transform, v = case
    jacobian = numerical_jacobian(transform, v)[free_entries(transform)]
    sign, log_determinant = np.linalg.slogdet(jacobian)
    assert sign != 0
    assert float(transform.log_jacobian(v)) == pytest.approx(log_determinant, rel=1e-8, abs=1e-8)


@settings(max_examples=60)
@given(names.flatmap(lambda name: st.tuples(st.just(ALL[name]), points_of(ALL[name]))), st.integers(0, 2**32 - 1))
def test_the_pullback_is_the_transposed_jacobian(case: tuple[tr.Transform, np.ndarray], seed: int) -> None:
    transform, v = case
    gradient = np.random.default_rng(seed).normal(size=transform.natural_shape)
    expected = gradient.reshape(-1) @ numerical_jacobian(transform, v)
    scale = 1 + np.abs(transform.constrain(v)).max()
    np.testing.assert_allclose(transform.pullback(v, gradient), expected, rtol=1e-8, atol=1e-8 * scale)
    # with weight 1, the log-Jacobian's slope is added
    moves = 1e-4 * np.eye(v.size)
    slope = (transform.log_jacobian(v + moves) - transform.log_jacobian(v - moves)) / 2e-4
    np.testing.assert_allclose(transform.pullback(v, gradient, 1.0), expected + slope, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("name", sorted(ALL))
def test_batches_give_what_points_give_one_by_one(name: str) -> None:
    transform, rng = ALL[name], np.random.default_rng(0)
    v = rng.normal(size=(5, 2, transform.n_unconstrained))
    x, log_jacobian, pull = transform.evaluate(v)
    gradient = rng.normal(size=x.shape)
    found = pull(gradient, 1.0)
    assert (log_jacobian.shape, found.shape) == ((5, 2), v.shape)
    for m in np.ndindex(5, 2):
        np.testing.assert_allclose(x[m], transform.constrain(v[m]), rtol=1e-14)
        np.testing.assert_allclose(log_jacobian[m], transform.log_jacobian(v[m]), rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(found[m], transform.pullback(v[m], gradient[m], 1.0), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", sorted(ALL))
def test_values_side_by_side_are_those_of_each(name: str) -> None:
    transform = ALL[name]
    v = np.random.default_rng(1).normal(size=(3, transform.n_unconstrained))
    settings_ = {key: getattr(transform, key) for key in ("lower", "upper", "size") if hasattr(transform, key)}
    one = type(transform)(**settings_)
    each = v.reshape(3, *transform.shape, one.n_unconstrained)
    np.testing.assert_array_equal(transform.constrain(v), one.constrain(each))
    np.testing.assert_allclose(transform.log_jacobian(v), one.log_jacobian(each).reshape(3, -1).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("name", sorted(ALL))
def test_float32_stays_float32(name: str) -> None:
    transform = ALL[name]
    v = np.random.default_rng(2).normal(size=(4, transform.n_unconstrained))
    x, log_jacobian, pull = transform.evaluate(v.astype(np.float32))
    assert x.dtype == log_jacobian.dtype == pull(x, 1.0).dtype == transform.unconstrain(x).dtype == np.float32
    np.testing.assert_allclose(x, transform.constrain(v), rtol=1e-5, atol=1e-5)


# ---- densities -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("transform", "log_density"),
    [
        (tr.Positive(), stats.gamma(2.5).logpdf),
        (tr.LowerBounded(-2.5), stats.expon(-2.5, 2).logpdf),
        (tr.UpperBounded(3.0), lambda x: stats.expon.logpdf(3.0 - x)),
        (tr.Interval(), stats.beta(2, 3.5).logpdf),
        (tr.Interval(-1, 4), stats.uniform(-1, 5).logpdf),
        (tr.Simplex(2), lambda x: stats.dirichlet([2.0, 0.7]).logpdf(x)),
    ],
)
def test_a_density_of_one_number_still_integrates_to_one(transform: tr.Transform, log_density: object) -> None:
    def density(v: float) -> float:
        return math.exp(float(log_density(transform.constrain([v]))) + float(transform.log_jacobian([v])))

    assert integrate.quad(density, -60, 30, limit=200)[0] == pytest.approx(1.0, rel=1e-7)


@pytest.mark.parametrize(
    ("transform", "log_density"),
    [
        (tr.Simplex(3), lambda x: stats.dirichlet([2.0, 1.5, 3.0]).logpdf(x.T)),
        (tr.Ordered(2), lambda x: math.log(2) + stats.norm.logpdf(x).sum(axis=-1)),  # of the sorted pair
        (tr.Ordered(3), lambda x: math.log(6) + stats.norm.logpdf(x).sum(axis=-1)),
        (tr.CholeskyCorrelation(3), lambda x: np.full(len(x), -2 * math.log(math.pi) + math.log(2))),
    ],
)
def test_a_density_of_a_vector_still_integrates_to_one(transform: tr.Transform, log_density: object) -> None:
    """By the trapezoidal rule, which is exact to rounding for smooth functions that vanish at the ends."""
    n = transform.n_unconstrained
    nodes = np.linspace(-14, 8, 401 if n == 2 else 81)
    if isinstance(transform, tr.CholeskyCorrelation):
        nodes = np.linspace(-11, 11, 71)
    v = np.stack(np.meshgrid(*[nodes] * n, indexing="ij"), axis=-1).reshape(-1, n)
    x, log_jacobian, _ = transform.evaluate(v)
    if isinstance(transform, tr.CholeskyCorrelation):  # uniform over correlation matrices: L_ii^(D-i) over the volume
        log_density_at = log_density(x) + np.log(x[:, 1, 1])
    else:
        log_density_at = log_density(x)
    total = np.exp(log_density_at + log_jacobian).sum() * (nodes[1] - nodes[0]) ** n
    assert total == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("eta", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_lkj_of_the_factor_times_the_jacobian_is_lkj_in_partial_correlations(size: int, eta: float) -> None:
    v = np.random.default_rng(size).normal(size=(6, maps.n_partial_correlations(size)))
    factor, log_jacobian, _ = tr.CholeskyCorrelation(size).evaluate(v)
    powers = size - np.arange(1, size + 1) + 2 * (eta - 1)
    powers[0] = 0.0  # L_11 is 1
    by_factor = np.log(np.diagonal(factor, axis1=1, axis2=2)) @ powers - tr.lkj_log_normalizer(size, eta)
    in_v = -maps.log_cosh(v) @ maps.lkj_partial_weights(size, eta) - tr.lkj_log_normalizer(size, eta)
    np.testing.assert_allclose(by_factor + log_jacobian, in_v, rtol=1e-12)


def test_at_zero_a_simplex_has_equal_parts_and_no_part_is_special() -> None:
    np.testing.assert_allclose(tr.Simplex(5).constrain(np.zeros(4)), 0.2, rtol=1e-14)
    x = np.random.default_rng(0).dirichlet(np.ones(5))
    lengths = [np.linalg.norm(tr.Simplex(5).unconstrain(x[np.roll(np.arange(5), k)])) for k in range(5)]
    np.testing.assert_allclose(lengths, lengths[0], rtol=1e-12)  # the basis is orthonormal


@pytest.mark.parametrize("logit", [-700.0, -40.0, 40.0])
def test_an_interval_keeps_its_slope_far_out(logit: float) -> None:
    small = math.exp(-abs(logit))
    assert tr.Interval().pullback([logit], 1.0)[0] == pytest.approx(small, rel=1e-14)
    assert float(tr.Interval().log_jacobian([logit])) == pytest.approx(-abs(logit), rel=1e-14)
    if logit < 0:
        assert float(tr.Interval().constrain([logit])) == pytest.approx(small, rel=1e-14)


# ---- what is refused -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("transform", "x", "words"),
    [
        (tr.Real(), np.nan, "Real: x must be finite"),
        (tr.Positive(2), [[1.0, 2.0], [0.0, 1.0]], "Positive: x must be positive; 1 points are not"),
        (tr.LowerBounded(2), 2.0, "LowerBounded: x must be above 2"),
        (tr.UpperBounded(-1.5), 0.0, "UpperBounded: x must be below -1.5"),
        (tr.Interval(), 1.0, "Interval: x must be between 0 and 1, neither"),
        (tr.Simplex(3), [0.2, 0.3, 0.6], "Simplex: x must be positive, with a sum of 1"),
        (tr.Simplex(3), [0.5, 0.5, 0.0], "Simplex: x must be positive"),
        (tr.Ordered(3), [1.0, 1.0, 2.0], "Ordered: x must be in ascending order"),
        (tr.CholeskyCorrelation(2), [[1.0, 0.0], [0.5, 0.5]], "rows of length 1"),
        (tr.CholeskyCorrelation(2), [[1.0, 0.0], [0.6, -0.8]], "positive diagonal"),
        (tr.CholeskyCorrelation(2), [[0.8, 0.6], [0.6, 0.8]], "lower triangular"),
        (tr.Positive(2), [1.0, 2.0, 3.0], r"x must have shape \(..., 2\), got \(3,\)"),
        (tr.Positive(2), "ab", "x must be real numbers"),
    ],
)
def test_values_outside_the_support_are_refused(transform: tr.Transform, x: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        transform.unconstrain(x)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: tr.Positive(0), "shape must be a whole number of at least 1, got 0"),
        (lambda: tr.Real((2, 1.5)), "shape must be a whole number"),
        (lambda: tr.Simplex(1), "Simplex: size must be a whole number of at least 2"),
        (lambda: tr.Interval(1, 1), "lower must be below upper, got 1 and 1"),
        (lambda: tr.Interval(0, math.inf), "Interval: upper must be finite, got inf. Positive, LowerBounded"),
        (lambda: tr.LowerBounded("0"), "LowerBounded: lower must be a number"),
        (lambda: tr.Positive(2).constrain(np.zeros(3)), r"v must have shape \(..., 2\), got \(3,\)"),
        (lambda: tr.Positive(2).pullback(np.zeros(2), np.zeros(3)), r"values' shape \(2,\), got \(3,\)"),
    ],
)
def test_what_makes_no_sense_is_refused(build: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build()


def test_a_transform_is_its_settings() -> None:
    assert tr.Positive(3) == tr.Positive((3,)) != tr.Positive()
    assert repr(tv.transforms.Interval(-1, 1, shape=2)) == "Interval(lower=-1.0, upper=1.0, shape=(2,))"
