"""The paper's bounds: column counts by brute force, variances by enumeration, convexity by eigenvalues."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from targets import dense_location_scale, dense_mask, exact_noise, random_flat

import pyturingvi as tv
from pyturingvi.families import FAMILIES, Family, get_family
from pyturingvi.theory import Components, QuadraticTarget

th = tv.theory
NAMES = ("mean-field", "structured", "full-rank")
BASES = ("gaussian", "laplace", ("student_t", 10))


def coupled(n_local: int = 2, n_global: int = 2, local_dim: int = 1, seed: int = 3) -> QuadraticTarget:
    """Terms l_n(z, y_n) with dense random Hessians and different stationary points."""
    rng = np.random.default_rng(seed)
    layout = tv.Layout(n_global, n_local, local_dim)
    terms = th.global_and_own(layout)
    size = len(terms[0])
    roots = [rng.normal(size=(size, size)) for _ in terms]
    hessians = [root @ root.T + 0.2 * np.eye(size) for root in roots]
    return QuadraticTarget(layout, terms, hessians, [rng.normal(size=size) for _ in terms])


# ---- effective dimension -----------------------------------------------------------------------------------
@given(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 3)), st.sampled_from(NAMES), st.data())
@settings(max_examples=150, deadline=None)
def test_columns_are_counted_as_in_the_dense_pattern(shape, name, data):
    layout = tv.Layout(*shape)
    coordinate = st.integers(0, layout.dim - 1)
    term = st.lists(coordinate, min_size=1, max_size=layout.dim, unique=True)
    uses = data.draw(st.lists(term, min_size=1, max_size=4))
    expected = [dense_mask(name, layout)[rows].any(axis=0).sum() for rows in uses]
    assert th.effective_dimensions(layout, name, uses).tolist() == expected
    assert th.effective_dimension(layout, name, uses) == max(expected)


def test_effective_dimensions_of_the_bundled_models():
    rng = np.random.default_rng(0)
    models = {
        "rpoisson": tv.models.RobustPoisson(rng.normal(size=(7, 12)), rng.poisson(2.0, 7)),
        "irt": tv.models.ItemResponse((rng.uniform(size=(6, 95)) < 0.5).astype(float)),
        "volatility": tv.models.StochasticVolatility(rng.normal(size=(6, 6))),
        "gaussian": tv.models.IsotropicGaussian(9),
    }
    structured = {"rpoisson": 16 + 1, "irt": 193 + 1, "volatility": 33 + 2 * 6, "gaussian": 5 + 3}
    for name, model in models.items():
        assert th.effective_dimension(model, "structured") == structured[name]
        assert th.effective_dimension(model, "mean-field") == structured[name]
        assert th.effective_dimension(model, "full-rank") == model.dim
        assert th.effective_dimension(model, tv.Structured(standardized=False)) == structured[name]


def test_the_full_rank_count_rises_with_the_term():
    layout = tv.Layout(3, 4, 2)
    counts = th.effective_dimensions(layout, "full-rank", th.global_and_own(layout))
    assert counts.tolist() == [5, 7, 9, 11]


def test_without_locals_there_is_one_term():
    model = tv.models.IsotropicGaussian(0, n_global=4)
    assert [rows.tolist() for rows in th.coordinates_used(model)] == [[0, 1, 2, 3]]
    assert th.effective_dimension(model, "full-rank") == 4


def test_models_couple_only_coordinates_that_share_a_term(bundled_model):
    """The Hessian of the log density, by differences of the gradient, is zero wherever no l_n uses both."""
    model, d = bundled_model, bundled_model.dim
    together = np.zeros((d, d), dtype=bool)
    for rows in th.coordinates_used(model):
        together[np.ix_(rows, rows)] = True
    assert not together.all()
    point = 0.3 * np.random.default_rng(1).normal(size=d)
    moved = np.concatenate([point + 1e-4 * np.eye(d), point - 1e-4 * np.eye(d)])
    slopes = model.gradient(moved)
    hessian = (slopes[:d] - slopes[d:]) / 2e-4
    assert abs(hessian[~together]).max() < 1e-7
    if isinstance(model, tv.models.StochasticVolatility):
        layout = model.layout
        for t in range(1, layout.n_local):
            assert abs(hessian[layout.block_slice(t), layout.block_slice(t - 1)]).max() > 1e-3


def test_a_model_of_your_own_needs_its_coordinates():
    target = coupled()
    with pytest.raises(tv.errors.InputError, match="only the bundled models, and yours with log terms"):
        th.effective_dimension(target.model, "structured")
    assert th.effective_dimension(target.model, "structured", th.global_and_own(target.layout)) == 3


# ---- targets -----------------------------------------------------------------------------------------------
def test_a_quadratic_target_is_the_sum_of_its_terms():
    target = coupled(3, 2, 2)
    points = np.random.default_rng(2).normal(size=(50, target.layout.dim))
    total = np.zeros(50)
    for rows, h, point in zip(target.coordinates, target.hessians, target.stationary, strict=True):
        centred = points[:, rows] - point
        total += 0.5 * np.einsum("mi,ij,mj->m", centred, h, centred)
    constant = total + target.model.log_density(points)
    np.testing.assert_allclose(constant, constant[0], rtol=1e-10)
    for n, (rows, h) in enumerate(zip(target.coordinates, target.hessians, strict=True)):
        moved = np.random.default_rng(n).normal(size=(200, len(rows)))
        stretch = np.linalg.norm(moved @ h, axis=1) / np.linalg.norm(moved, axis=1)
        smoothness = target.components.smoothness[n]
        assert stretch.max() <= smoothness * (1 + 1e-12)
        assert np.linalg.norm(h, 2) == pytest.approx(smoothness)
    assert target.strong_convexity < target.smoothness


@pytest.mark.parametrize("name", NAMES)
def test_the_optimum_is_where_the_gradient_of_the_negative_elbo_vanishes(name):
    target = coupled(4, 3, 2)
    family = get_family(name)
    location, scale = dense_location_scale(family, target.layout, target.optimum(name))
    np.testing.assert_allclose(target.precision @ (location - target.mean), 0, atol=1e-10)
    slope = target.precision @ scale - np.diag(1 / np.diagonal(scale))
    np.testing.assert_allclose(slope[dense_mask(name, target.layout)], 0, atol=1e-10)


def test_the_optimum_of_the_non_standardized_family_is_the_same_distribution():
    target = coupled(4, 3, 2)
    for standardized in (True, False):
        family = tv.Structured(standardized=standardized)
        location, scale = dense_location_scale(family, target.layout, target.optimum(family))
        np.testing.assert_allclose(location, target.mean, rtol=1e-10)
        # the posterior's blocks are independent given z, so this family holds it
        np.testing.assert_allclose(scale @ scale.T, np.linalg.inv(target.precision), rtol=1e-8, atol=1e-12)


def test_the_isotropic_target_is_the_synthetic_problem():
    model = tv.models.IsotropicGaussian(6)
    target = th.isotropic_target(model)
    points = np.random.default_rng(0).normal(5, 1, size=(4, model.dim))
    np.testing.assert_allclose(target.model.log_density(points), model.log_density(points), rtol=1e-12)
    assert target.components.smoothness == pytest.approx(np.full(6, 10.0))
    for name in NAMES:
        location, scale = dense_location_scale(get_family(name), model.layout, target.optimum(name))
        np.testing.assert_allclose(location, 5.0)
        np.testing.assert_allclose(scale, np.sqrt(0.1) * np.eye(model.dim), atol=1e-15)


def test_targets_that_cannot_be_are_refused():
    layout = tv.Layout(1, 1, 1)
    good = np.eye(2)
    for hessians, message in (
        ([np.eye(3)], "one square matrix"),
        ([[[1.0, 0.5], [0.0, 1.0]]], "symmetric"),
        ([[[1.0, 2.0], [2.0, 1.0]]], "eigenvalue -1"),
        ([np.diag([1.0, 0.0])], "singular"),
    ):
        with pytest.raises(tv.errors.InputError, match=message):
            QuadraticTarget(layout, [[0, 1]], hessians, [[0.0, 0.0]])
    with pytest.raises(tv.errors.InputError, match="rising order"):
        QuadraticTarget(layout, [[1, 0]], [good], [[0.0, 0.0]])
    with pytest.raises(tv.errors.InputError, match="one point a term"):
        QuadraticTarget(layout, [[0, 1]], [good], [[0.0]])
    with pytest.raises(tv.errors.InputError, match="smoothness"):
        Components(layout, [[0, 1]], [-1.0], [[0.0, 0.0]])
    with pytest.raises(tv.errors.InputError, match="IsotropicGaussian"):
        th.isotropic_target(coupled().model)


# ---- variance of the gradient ------------------------------------------------------------------------------
def enumerated_variance(target: QuadraticTarget, family: Family, flat: np.ndarray) -> float:
    """Trace of the variance of the one-draw gradient, over a three-point base with the family's kurtosis.

    u_i is +-sqrt(k) with probability 1/(2k) each and else 0: mean 0, variance 1, third moment 0, kurtosis k. The
    trace depends on no other moment, and the 3^d outcomes can all be visited.
    """
    k, d = family.base_distribution.kurtosis, target.layout.dim
    location, scale = dense_location_scale(family, target.layout, flat)
    mask = dense_mask(family.name, target.layout)
    mean, square = 0.0, 0.0
    for u in itertools.product((-math.sqrt(k), 0.0, math.sqrt(k)), repeat=d):
        probability = math.prod(1 - 1 / k if value == 0 else 0.5 / k for value in u)
        slope = target.precision @ (scale @ u + location - target.mean)
        gradient = np.concatenate([slope, np.outer(slope, u)[mask]])
        mean = mean + probability * gradient
        square += probability * gradient @ gradient
    return square - mean @ mean


@pytest.mark.parametrize("base", BASES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_exact_variance_is_that_of_an_enumeration(name, base):
    target = coupled(3, 2, 1)
    family = FAMILIES[name](base=base)
    flat = random_flat(family, target.layout, seed=4)
    expected = enumerated_variance(target, family, flat)
    assert th.exact_gradient_variance(target, family, flat, n_samples=1) == pytest.approx(expected, rel=1e-10)
    assert th.exact_gradient_variance(target, family, flat, n_samples=5) == pytest.approx(expected / 5, rel=1e-10)


@pytest.mark.parametrize(
    ("name", "base"),
    [  # each family and each base once; all pairs among the slow ones
        pytest.param(name, base, marks=[] if BASES.index(base) == NAMES.index(name) else pytest.mark.slow)
        for name in NAMES
        for base in BASES
    ],
    ids=str,
)
def test_the_measured_variance_agrees_with_the_exact_one_and_lies_below_the_bound(name, base):
    target = coupled(5, 2, 2)
    family = FAMILIES[name](base=base)
    for flat in (random_flat(family, target.layout, seed=5), target.optimum(family)):
        measured = th.measured_gradient_variance(target.model, family, flat, n_samples=4, n_pairs=1_000, seed=1)
        exact = th.exact_gradient_variance(target, family, flat, n_samples=4)
        assert measured.std_error < 0.15 * exact
        assert abs(measured.value - exact) < 4 * measured.std_error
        assert measured.value + 4 * measured.std_error < th.gradient_variance_bound(
            target.components, family, flat, n_samples=4
        )


def test_the_measured_variance_needs_no_location_scale_parameters():
    # C_zz = 0.5, A = 0 and m = 0: y does not depend on z, so only A's gradient, g_y z, tells the two forms apart
    model = tv.models.IsotropicGaussian(1, n_global=1, local_dim=1, mean=0.0, variance=1.0)
    flat = [0.0, 0.0, 0.5, 0.0, 1.0]
    kept = th.measured_gradient_variance(model, tv.Structured(), flat, 1, 10_000)
    other = th.measured_gradient_variance(model, tv.Structured(standardized=False), flat, 1, 10_000)
    # m: 1/4 + 1; C_zz: Var(u^2)/4 = 1/2; C_yy: Var(u^2) = 2; border: Var(u u') = 1, or Var(u u'/2) = 1/4
    assert abs(kept.value - 4.75) < 4 * kept.std_error
    assert abs(other.value - 4.0) < 4 * other.std_error
    assert kept.std_error < 0.1


@given(st.integers(0, 10_000), st.sampled_from(NAMES), st.sampled_from(BASES))
@settings(max_examples=60, deadline=None)
def test_the_bound_holds_on_random_quadratic_targets(seed, name, base):
    target = coupled(3, 2, 2, seed=seed)
    family = FAMILIES[name](base=base)
    flat = random_flat(family, target.layout, seed=seed)
    bound = th.gradient_variance_bound(target.components, family, flat)
    per_term = th.gradient_variance_bound(target.components, family, flat, per_term=True)
    assert th.exact_gradient_variance(target, family, flat) <= per_term <= bound


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_the_formula_of_the_theorem(name):
    target = coupled(3, 2, 2)
    family = FAMILIES[name](base="laplace")
    flat = random_flat(family, target.layout)
    location, scale = dense_location_scale(family, target.layout, flat)
    d_star = {"mean-field": 4, "structured": 4, "full-rank": 8}[name]
    total = 0.0
    for rows, h, point in zip(target.coordinates, target.hessians, target.stationary, strict=True):
        size = np.linalg.norm(location[rows] - point) ** 2 + np.linalg.norm(scale[rows]) ** 2
        total += np.linalg.norm(h, 2) ** 2 * size
    expected = 3 / 7 * (d_star + 6) * total
    assert th.gradient_variance_bound(target.components, family, flat, n_samples=7) == pytest.approx(expected)


def test_the_bound_is_nearly_reached_in_one_dimension():
    # l = L x^2 / 2, C = 0: the gradient is (L m, L m u), of variance L^2 m^2, and the bound L^2 m^2 (1 + k)
    target = QuadraticTarget(tv.Layout(1, 0, 0), [[0]], [[[2.0]]], [[0.0]])
    assert th.exact_gradient_variance(target, "full-rank", [3.0, 0.0], 1) == pytest.approx(36.0)
    assert th.gradient_variance_bound(target.components, "full-rank", [3.0, 0.0], 1) == pytest.approx(4 * 36.0)


def test_what_the_variance_functions_refuse():
    target = coupled()
    other = tv.Structured(standardized=False)
    flat = np.zeros(other.n_params(target.layout))
    for function, first in ((th.gradient_variance_bound, target.components), (th.exact_gradient_variance, target)):
        with pytest.raises(tv.errors.InputError, match="non-standardized"):
            function(first, other, flat)
        with pytest.raises(tv.errors.InputError, match="params must be"):
            function(first, "structured", flat[1:])
        with pytest.raises(tv.errors.InputError, match="n_samples"):
            function(first, "structured", flat, n_samples=0)
    with pytest.raises(tv.errors.InputError, match="n_pairs"):
        th.measured_gradient_variance(target.model, "structured", flat, n_pairs=1)
    with pytest.raises(tv.errors.InputError, match="not finite"):
        th.measured_gradient_variance(target.model, "structured", np.full_like(flat, 1e300))


# ---- complexity --------------------------------------------------------------------------------------------
def promised(name: str, n: int) -> tv.theory.Complexity:
    """The theorem on the synthetic problem, from m = 0, C = I, with 10 samples and an accuracy of 1."""
    model = tv.models.IsotropicGaussian(n)
    target = th.isotropic_target(model)
    start = get_family(name).bind(model.layout).initial_flat(np.zeros(model.dim), 1.0)
    convexity, smoothness = target.strong_convexity, target.smoothness
    optimum = target.optimum(name)
    return th.fixed_stepsize_complexity(target.components, name, start, optimum, convexity, smoothness, 10, 1.0)


@pytest.mark.parametrize(("name", "d_star"), [("mean-field", 8), ("structured", 8), ("full-rank", 35)])
def test_the_constants_of_the_synthetic_problem_by_hand(name, d_star):
    # n = 10, M = 10: L = L_n = mu = 10, kappa = kappa_n = 1, m* = zbar_n, ||C*_n||^2 = 0.1 (5 + 3), d = 35
    constants = promised(name, 10)
    weight = 10 / 10 * (d_star + 3)
    assert constants.c_var == pytest.approx(4 * weight * 10 * 0.8)
    assert constants.c_bias == pytest.approx(2 * weight * 10 + 2)
    assert constants.squared_distance == pytest.approx(35 * (25 + (1 - math.sqrt(0.1)) ** 2))
    assert constants.stepsize == pytest.approx(1 / (10 * 4 * weight * 8))
    assert constants.n_updates == math.ceil(32 * weight * math.log(2 * constants.squared_distance))


positive = st.floats(1e-3, 1e3)


@given(st.floats(0, 1e3), positive, st.floats(1, 1e3), positive, positive)
@settings(max_examples=200, deadline=None)
def test_the_promised_stepsize_and_updates_satisfy_the_lemma(variance, mu, condition, distance, epsilon):
    constants = th.Complexity(variance, mu * condition, mu, distance, epsilon)
    gamma, t = constants.stepsize, constants.n_updates
    assert 0 < gamma <= min(1 / (2 * mu * condition), 1 / mu)
    # the lemma, written out: (1 - gamma mu)^T Delta^2 + 2 gamma sigma^2 / mu
    left = math.exp(t * math.log1p(-gamma * mu)) * distance + 2 * gamma * variance / mu
    assert left <= epsilon * (1 + 1e-9)
    assert constants.distance_bound(t) == pytest.approx(left, rel=1e-12)


def test_the_printed_stepsize_is_larger_than_the_lemma_allows():
    constants = th.Complexity(1.0, 50.0, strong_convexity=2.0, squared_distance=100.0, epsilon=10.0)
    printed = min(10.0 * 2.0 / 4.0, 2 * 50.0 / 2.0, 2.0)
    assert printed > 1 / (2 * 50.0) == constants.stepsize
    with pytest.raises(tv.errors.InputError, match=r"stepsize must lie in \(0, 0.01\]"):
        constants.distance_bound(100, printed)


def test_the_printed_bias_constant_promises_too_few_updates():
    # many samples: calL is L to first order, so C_bias is 2 kappa, and with one kappa it is half of that
    constants = th.Complexity(1e-9, 10.0, strong_convexity=1.0, squared_distance=1e4, epsilon=1.0)
    printed = math.ceil((constants.c_bias - 10.0) * math.log(2 * 1e4))
    assert constants.distance_bound(constants.n_updates) <= 1.0
    assert constants.distance_bound(printed) > 50.0


@pytest.mark.parametrize("name", NAMES)
def test_proximal_sgd_keeps_the_promise_on_the_synthetic_problem(name):
    constants = promised(name, 5)
    model = tv.models.IsotropicGaussian(5)
    settings = {"n_samples": 10, "elbo_every": 10_000, "elbo_samples": 2, "init_scale": 1.0, "engine": "numpy"}
    left = []
    for n in (constants.n_updates, constants.n_updates // 4):
        fit = tv.fit(model, name, tv.ProximalSGD(constants.stepsize), n_iterations=n, progress=False, **settings)
        left.append(((fit.params - th.isotropic_target(model).optimum(name)) ** 2).sum())
    assert left[0] < 0.1 * constants.epsilon  # 0.01 in the experiment
    assert constants.epsilon < left[1] <= constants.distance_bound(constants.n_updates // 4)


def test_a_start_within_half_epsilon_needs_no_update():
    assert th.Complexity(1.0, 1.0, 1.0, squared_distance=0.5, epsilon=1.0).n_updates == 0
    assert th.Complexity(1.0, 1.0, 1.0, squared_distance=0.51, epsilon=1.0).n_updates > 0


def test_what_the_complexity_refuses():
    target = coupled()
    optimum = target.optimum("structured")
    with pytest.raises(tv.errors.InputError, match="smoothness must be at least"):
        th.fixed_stepsize_complexity(target.components, "structured", optimum, optimum, 2.0, 1.0)
    with pytest.raises(tv.errors.InputError, match="params must be"):
        th.fixed_stepsize_complexity(target.components, "structured", optimum[1:], optimum, 1.0, 2.0)


# ---- the non-standardized counterexample -------------------------------------------------------------------
def differences(function, point: np.ndarray, h: float = 1e-3) -> np.ndarray:
    """Hessian by second differences of a function of three numbers."""
    steps = h * np.eye(3)
    hessian = np.empty((3, 3))
    for i, j in itertools.product(range(3), repeat=2):
        a, b = steps[i], steps[j]
        corners = function(*(point + a + b)), function(*(point + a - b)), function(*(point - a + b))
        hessian[i, j] = (corners[0] - corners[1] - corners[2] + function(*(point - a - b))) / (4 * h * h)
    return hessian


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-2, 2))
@settings(max_examples=60, deadline=None)
def test_hessian_and_determinant_of_the_counterexample(x, y, z):
    hessian = differences(th.counterexample, np.array([x, y, z]))
    np.testing.assert_allclose(th.counterexample_hessian(x, y), hessian, atol=1e-5)
    assert th.counterexample_determinant(x, y) == pytest.approx(
        np.linalg.det(th.counterexample_hessian(x, y)), abs=1e-9
    )


def test_it_is_convex_where_the_paper_says_it_is_not_and_the_other_way_round():
    x = np.linspace(0.1, 3, 30)
    inside = np.linspace(-0.999, 0.999, 41) / np.sqrt(3)
    outside = np.array([-5, -1.001, 1.001, 1.1, 4]) / np.sqrt(3)
    grid = th.counterexample_hessian(x[:, None], inside)
    assert (np.linalg.eigvalsh(grid)[..., 0] > 0).all()
    assert (th.counterexample_determinant(x[:, None], inside) > 0).all()
    grid = th.counterexample_hessian(x[:, None], outside)
    assert (np.linalg.eigvalsh(grid)[..., 0] < 0).all()
    assert (th.counterexample_determinant(x[:, None], outside) < 0).all()
    assert (th.counterexample_determinant(0.0, outside) == 0).all()


def test_the_negative_elbo_is_not_convex_either_but_on_a_smaller_region():
    def negative_elbo(x, y, z):
        return th.counterexample(x, y, z) - np.log(x) - np.log(z)

    for x, y, z in ((0.4, 1.0, 0.7), (1.0, -0.8, 1.5), (2.0, 0.3, 0.5)):
        expected = differences(negative_elbo, np.array([x, y, z]))
        np.testing.assert_allclose(th.counterexample_elbo_hessian(x, y, z), expected, rtol=1e-4, atol=1e-5)
    x = np.linspace(0.2, 3, 30)
    border = np.sqrt(1 / 3 + 1 / (6 * x**2))
    assert (border > 1 / np.sqrt(3)).all()
    for z in (0.1, 1.0, 10.0):
        assert (np.linalg.eigvalsh(th.counterexample_elbo_hessian(x, 0.999 * border, z))[:, 0] > 0).all()
        assert (np.linalg.eigvalsh(th.counterexample_elbo_hessian(x, 1.001 * border, z))[:, 0] < 0).all()


def standard_model() -> tv.models.IsotropicGaussian:
    """Minus its log density is z^2 + y^2 and a constant."""
    return tv.models.IsotropicGaussian(1, n_global=1, local_dim=1, mean=0.0, variance=0.5)


@given(st.floats(0.1, 2), st.floats(-2, 2), st.floats(0.1, 2))
@settings(max_examples=40, deadline=None)
def test_the_packages_energy_has_the_hessian_of_the_counterexample(x, y, z):
    flat = [0.0, 0.0, x, y, z]
    hessian = th.energy_hessian(standard_model(), tv.Structured(standardized=False), flat)[2:, 2:]
    np.testing.assert_allclose(hessian, th.counterexample_hessian(x, y), atol=1e-8)
    standardized = th.energy_hessian(standard_model(), tv.Structured(), flat)
    np.testing.assert_allclose(standardized, 2 * np.eye(5), atol=1e-8)


def test_the_packages_energy_rises_above_a_chord():
    """No derivative: at the middle of a segment the non-standardized energy is above the mean of its ends."""

    def energy(family: tv.Structured, flat: np.ndarray) -> float:
        bound = family.bind(standard_model().layout)
        noise = np.ascontiguousarray(exact_noise(1, 2)[0])
        points = np.empty_like(noise)
        bound.transform(bound.from_flat(flat), noise, points)
        return -float(standard_model().log_density(points).mean())

    ends = np.array([[0.0, 0.0, 0.8, 1.7, 1.0], [0.0, 0.0, 1.2, 1.3, 1.0]])
    for standardized, above in ((False, True), (True, False)):
        family = tv.Structured(standardized=standardized)
        middle = energy(family, ends.mean(axis=0))
        chord = 0.5 * (energy(family, ends[0]) + energy(family, ends[1]))
        assert (middle > chord + 0.01) is above
    values = [energy(tv.Structured(standardized=False), end) for end in ends]
    differ = np.diff(th.counterexample(*ends[:, 2:].T))
    np.testing.assert_allclose(np.diff(values), differ, rtol=1e-12)


# ---- arguments that cannot be used ----------------------------------------------------------------------------
_LAYOUT, _TWO = tv.Layout(1, 2, 1), standard_model()
_GOOD = {"coordinates": [[0, 1], [0, 2]], "hessians": [np.eye(2)] * 2, "stationary": [np.zeros(2)] * 2}


@pytest.mark.parametrize("name", list(_GOOD))
@pytest.mark.parametrize("value", [None, 3, "ab", [None, None], [["a", "b"], ["c", "d"]], [[0, [1]], [0, 2]]], ids=repr)
def test_a_quadratic_target_names_the_argument_that_is_wrong(name: str, value: object) -> None:
    assert QuadraticTarget(_LAYOUT, **_GOOD).smoothness > 0  # type: ignore[arg-type]
    with pytest.raises(tv.errors.InputError, match=f"^{name}"):
        QuadraticTarget(_LAYOUT, **{**_GOOD, name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("effective_dimension", (None, "structured"), "model must be one of tv.models or a tv.Layout, got NoneType"),
        ("effective_dimension", (_LAYOUT, "structured", 3), "uses must be a list"),
        ("effective_dimension", (_LAYOUT, "structured", [[0, [1]]]), "uses: term 0 must be a flat list"),
        ("effective_dimension", (_LAYOUT, "structured", []), "at least one term"),
        ("effective_dimension", (_LAYOUT, "structured", [[0, 0]]), "different coordinates"),
        ("effective_dimension", (_LAYOUT, "structured", [[0], [3]]), "term 1"),
        ("effective_dimension", (_LAYOUT, "structured", [[-1]]), "from 0 to 2"),
        ("effective_dimension", (_LAYOUT, "structured", [[]]), "at least one whole number"),
        ("effective_dimension", (_LAYOUT, "structured", [[0.5]]), "at least one whole number"),
        ("counterexample", ([1, 2], [1, 2, 3], 1), r"do not broadcast \(.*shape \(2,\) and .*shape \(3,\)"),
        ("counterexample", (1, "a", 1), "counterexample: y must be real numbers"),
        ("counterexample_hessian", ([1, 2], [1, 2, 3]), "do not broadcast"),
        ("counterexample_determinant", ([1, 2], [1, 2, 3]), "do not broadcast"),
        ("counterexample_elbo_hessian", (0, 1, 1), "x and z are scales and must be positive"),
        ("counterexample_elbo_hessian", ([1, 2], [1, 2, 3], 1), "do not broadcast"),
        ("energy_hessian", (_TWO, "structured", [1.0]), "params must be 5"),
        ("energy_hessian", (None, "structured", [0.0]), "model must be one of tv.models"),
        ("energy_hessian", (_TWO, "structured", [0.0], "a"), "step must be a number"),
        ("gradient_variance_bound", (None, "structured", [0.0]), "components must be a tv.theory.Components"),
        ("exact_gradient_variance", (None, "structured", [0.0]), "target must be a tv.theory.QuadraticTarget"),
        ("measured_gradient_variance", (None, "structured", [0.0]), "model must be one of tv.models"),
        ("Complexity", ("a", 1, 1, 1, 1), "variance must be a number"),
        ("Complexity", (-1, 1, 1, 1, 1), "variance must be a finite number of at least 0"),
        ("Complexity", (1, 1, 1, 1, 0), "epsilon must be a finite number above 0"),
    ],
)
def test_theory_names_the_argument_that_is_wrong(function: str, arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(tv.errors.InputError, match=words):
        getattr(tv.theory, function)(*arguments)
