"""Conditional widths: `Structured(conditional_scale=True)` against its definition, and its natural gradients."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import dense_location_scale, random_flat

from pyturingvi.errors import InputError
from pyturingvi.families import (
    FullRank,
    Markov,
    MeanField,
    Structured,
    family_from_config,
    get_location_scale,
)
from pyturingvi.families.base_distributions import Gaussian
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.layout import Layout
from pyturingvi.optimize.natural_gradient import NaturalGradientState
from pyturingvi.optimize.natural_stages import choose_draws, stages_of
from pyturingvi.optimize.noise import AntitheticStream
from pyturingvi.support.parallel import Workers

WIDTHS = Structured(conditional_scale=True)
LAYOUTS = [
    Layout(2, 5, 1),
    Layout(2, 3, 2),
    Layout(3, 2, 3),
    Layout(1, 1, 1),
    Layout(0, 4, 2),
    Layout(0, 3, 1),
    Layout(4, 0, 0),
]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def random_widths(layout: Layout, seed: int = 0) -> np.ndarray:
    """A random structured fit's parameters, and b behind them."""
    b = 0.4 * np.random.default_rng(seed + 99).normal(size=layout.n_global * layout.n_local_total)
    return np.concatenate([random_flat(Structured(), layout, seed), b])


def matrices(layout: Layout, flat: np.ndarray) -> list[np.ndarray]:
    """b_1 to b_N, each (d_y, d_z), from the end of the flat vector: global by global, each with all locals' entries."""
    place, found = Structured().n_params(layout), [np.empty((layout.local_dim, layout.n_global))] * 0
    for n in range(layout.n_local):
        b = np.empty((layout.local_dim, layout.n_global))
        for j in range(layout.n_global):
            for i in range(layout.local_dim):
                b[i, j] = flat[place + j * layout.n_local_total + n * layout.local_dim + i]
        found.append(b)
    return found


def by_definition(layout: Layout, flat: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """`z = m_z + C_zz u_z`, `y_n = m_n + C_nz u_z + C_nn (exp(b_n u_z) * u_n)`, a row and a local at a time."""
    m, c = dense_location_scale(Structured(), layout, flat[: Structured().n_params(layout)])
    d_z, points = layout.n_global, np.empty(noise.shape)
    for u, x in zip(noise.astype(float), points, strict=True):
        x[:d_z] = m[:d_z] + c[:d_z, :d_z] @ u[:d_z]
        for n, b in enumerate(matrices(layout, flat)):
            y = layout.block_slice(n)
            x[y] = m[y] + c[y, :d_z] @ u[:d_z] + c[y, y] @ (np.exp(b @ u[:d_z]) * u[y])
    return points


def log_q_by_scipy(layout: Layout, flat: np.ndarray, points: np.ndarray) -> np.ndarray:
    """z is normal, and each local given z."""
    m, c = dense_location_scale(Structured(), layout, flat[: Structured().n_params(layout)])
    d_z, found = layout.n_global, np.zeros(len(points))
    for k, x in enumerate(points):
        u = np.linalg.solve(c[:d_z, :d_z], x[:d_z] - m[:d_z])
        if d_z:
            root = c[:d_z, :d_z]
            found[k] = stats.multivariate_normal(m[:d_z], root @ root.T).logpdf(x[:d_z])
        for n, b in enumerate(matrices(layout, flat)):
            y = layout.block_slice(n)
            root = c[y, y] @ np.diag(np.exp(b @ u))
            found[k] += stats.multivariate_normal(m[y] + c[y, :d_z] @ u, root @ root.T).logpdf(x[y])
    return found


def transformed(bound: Any, flat: np.ndarray, noise: np.ndarray) -> np.ndarray:
    out = np.full_like(noise, np.nan)
    bound.transform(bound.from_flat(flat), noise, out)
    return out


# ---- the distribution --------------------------------------------------------------------------------------
@each_layout
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_there_is_a_width_for_each_global_and_local_coordinate(layout: Layout, dtype: str) -> None:
    assert WIDTHS.n_params(layout) == Structured().n_params(layout) + layout.n_global * layout.n_local_total
    bound = WIDTHS.bind(layout, dtype)
    flat = random_widths(layout).astype(dtype)
    np.testing.assert_array_equal(bound.to_flat(bound.from_flat(flat)), flat)
    np.testing.assert_array_equal(bound.from_flat(bound.to_flat(flat)), flat)
    assert bound.from_flat(flat).dtype == dtype


@each_layout
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_points_are_those_of_the_definition_and_standardize_is_the_inverse(
    layout: Layout, dtype: str, tolerance: float
) -> None:
    bound, flat = WIDTHS.bind(layout, dtype), random_widths(layout)
    noise = np.random.default_rng(1).normal(size=(5, layout.dim)).astype(dtype)
    kept = noise.copy()
    points = transformed(bound, flat, noise)
    assert points.dtype == dtype
    np.testing.assert_array_equal(noise, kept)
    np.testing.assert_allclose(points, by_definition(layout, flat, noise), rtol=tolerance, atol=20 * tolerance)
    found = bound.standardize(bound.from_flat(flat), points)
    np.testing.assert_allclose(found, noise, atol=3000 * tolerance)


@each_layout
def test_log_q_is_scipys(layout: Layout) -> None:
    bound, flat = WIDTHS.bind(layout), random_widths(layout)
    points = by_definition(layout, flat, np.random.default_rng(2).normal(size=(6, layout.dim)))
    np.testing.assert_allclose(
        bound.log_q(bound.from_flat(flat), points), log_q_by_scipy(layout, flat, points), rtol=1e-9, atol=1e-9
    )


def test_the_density_integrates_to_one() -> None:
    layout = Layout(1, 1, 1)
    bound, flat = WIDTHS.bind(layout), random_widths(layout)
    m, c = dense_location_scale(Structured(), layout, flat[: Structured().n_params(layout)])
    t = np.linspace(-8, 8, 401)
    z = m[0] + c[0, 0] * t
    reach = abs(c[1, 1]) * 8 * np.exp(8 * abs(flat[-1])) + 8 * abs(c[1, 0])
    y = m[1] + reach * np.sinh(np.linspace(-12, 12, 4001)) / np.sinh(12)
    grid = np.stack([part.ravel() for part in np.meshgrid(z, y, indexing="ij")], axis=1)
    density = np.exp(bound.log_q(bound.from_flat(flat), grid)).reshape(len(z), len(y))
    total = np.trapezoid(np.trapezoid(density, y, axis=1), z)
    assert abs(total) == pytest.approx(1, abs=1e-4)  # z runs backwards where c is negative


@each_layout
def test_the_entropy_is_exactly_structureds_and_that_of_the_draws(layout: Layout) -> None:
    bound, flat, plain = WIDTHS.bind(layout), random_widths(layout), Structured().bind(layout)
    work = bound.from_flat(flat)
    entropy = plain.entropy(plain.from_flat(flat[: plain.n_params]))
    assert bound.entropy(work) == entropy
    points = transformed(bound, flat, np.random.default_rng(4).normal(size=(20_000, layout.dim)))
    values = -bound.log_q(work, points)
    assert abs(values.mean() - entropy) < 4 * values.std() / np.sqrt(len(values))
    out = np.zeros_like(work)
    assert bound.subtract_entropy_gradient(work, out)
    expected = np.zeros(plain.n_params)
    plain.subtract_entropy_gradient(plain.from_flat(flat[: plain.n_params]), expected)
    np.testing.assert_array_equal(out, np.concatenate([expected, np.zeros(len(out) - len(expected))]))


@each_layout
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-7), ("float32", 2e-3)])
def test_the_pullback_is_the_derivative_of_the_points(layout: Layout, dtype: str, tolerance: float) -> None:
    """Every parameter, by central differences of the definition."""
    flat = random_widths(layout, seed=4)
    noise, slopes = np.random.default_rng(3).normal(size=(2, 3, layout.dim))
    expected = np.empty_like(flat)
    for k in range(len(flat)):
        step = np.zeros_like(flat)
        step[k] = 1e-5
        ends = [by_definition(layout, flat + sign * step, noise) for sign in (1, -1)]
        expected[k] = (slopes * (ends[0] - ends[1])).sum() / 2e-5
    bound = WIDTHS.bind(layout, dtype)
    work, u = bound.from_flat(flat), noise.astype(dtype)
    out = np.full_like(work, np.nan)
    bound.pullback(work, u, transformed(bound, flat, u), slopes.astype(dtype), out)
    np.testing.assert_allclose(bound.to_flat(out), expected, rtol=tolerance, atol=30 * tolerance)


@each_layout
def test_a_locals_covariance_given_the_globals_is_its_mean_over_them(layout: Layout) -> None:
    """By Gauss-Hermite quadrature over u_z."""
    flat, d_z = random_widths(layout), layout.n_global
    m, c = dense_location_scale(Structured(), layout, flat[: Structured().n_params(layout)])
    bound = WIDTHS.bind(layout)
    np.testing.assert_array_equal(bound.location(flat), m)
    parts = GlobalsAndLocals.of(bound, flat)
    np.testing.assert_array_equal(parts.scale, c[:d_z, :d_z])
    np.testing.assert_array_equal(parts.border.T, c[d_z:, :d_z])
    t, weights = np.polynomial.hermite_e.hermegauss(20)
    nodes = np.stack([axis.ravel() for axis in np.meshgrid(*[t] * d_z)], axis=1) if d_z else np.zeros((1, 0))
    shares = np.ones(len(nodes))
    for axis in np.meshgrid(*[weights / weights.sum()] * d_z):
        shares *= axis.ravel()
    for n, b in enumerate(matrices(layout, flat)):
        y = layout.block_slice(n)
        mean = (shares[:, None] * np.exp(2 * nodes @ b.T)).sum(axis=0)
        expected = c[y, y] @ np.diag(mean) @ c[y, y].T
        np.testing.assert_allclose(parts.local_scale[n] @ parts.local_scale[n].T, expected, rtol=1e-8)


# ---- between families --------------------------------------------------------------------------------------
@each_layout
@pytest.mark.parametrize("smaller", [MeanField(), Structured(), Structured(base="laplace")], ids=repr)
def test_smaller_families_are_members_with_b_0_bit_for_bit(layout: Layout, smaller: Any) -> None:
    bound, flat = WIDTHS.bind(layout), random_flat(smaller, layout)
    found = bound.embed(smaller.bind(layout), flat)
    plain = Structured().bind(layout)
    same = plain.embed(smaller.bind(layout), flat)
    np.testing.assert_array_equal(found[: len(same)], same)
    assert not found[len(same) :].any()
    noise, slopes = np.random.default_rng(5).normal(size=(2, 6, layout.dim))
    points = transformed(plain, same, noise)
    np.testing.assert_array_equal(transformed(bound, found, noise), points)
    np.testing.assert_array_equal(
        bound.log_q(bound.from_flat(found), points), plain.log_q(plain.from_flat(same), points)
    )
    pulled = []
    for one, start in ((bound, found), (plain, same)):
        work = one.from_flat(start)
        out = np.full_like(work, np.nan)
        one.pullback(work, noise, points, slopes.copy(), out)
        pulled.append(one.to_flat(out))
    np.testing.assert_array_equal(pulled[0][: len(same)], pulled[1])


def test_what_needs_a_scale_matrix_refuses_it_by_name() -> None:
    layout = Layout(2, 3, 2)
    bound, flat = WIDTHS.bind(layout), random_widths(layout)
    with pytest.raises(InputError, match="conditional-scale structured family has no scale matrix"):
        bound.scale(flat)
    for other in (MeanField(), Structured(), Structured(standardized=False), FullRank(), Markov()):
        with pytest.raises(InputError, match="conditional-scale structured family has no scale matrix"):
            other.bind(layout).embed(bound, flat)
    with pytest.raises(InputError, match="entries that the structured family does not have"):
        bound.embed(FullRank().bind(layout), random_flat(FullRank(), layout))
    with pytest.raises(InputError, match="conditional-scale structured is not a location-scale family in the entries"):
        get_location_scale(WIDTHS)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_conditional_scale_must_be_true_or_false(value: Any) -> None:
    with pytest.raises(InputError, match="conditional_scale must be True or False"):
        Structured(conditional_scale=value)


def test_other_forms_and_bases_are_refused() -> None:
    with pytest.raises(InputError, match="goes with standardized=True"):
        Structured(conditional_scale=True, standardized=False)
    for base in ("laplace", ("student_t", 8)):
        with pytest.raises(InputError, match=r"needs base='gaussian', got .*finite mean square"):
            Structured(conditional_scale=True, base=base)


def test_descriptions_name_it_and_those_of_structured_are_what_they_were() -> None:
    assert Structured().config() == {"family": "structured", "base": "gaussian", "standardized": True}
    assert WIDTHS.config() == {**Structured().config(), "conditional_scale": True}
    assert family_from_config(json.loads(json.dumps(WIDTHS.config()))) == WIDTHS
    assert (Structured().label, WIDTHS.label) == ("structured", "conditional-scale structured")


def test_proximal_operator_and_projection_act_on_the_widths_at_the_globals_mean() -> None:
    """The entropy knows the diagonal alone, so that its operators are those of the structured family."""
    layout = Layout(2, 3, 2)
    flat, plain, bound = random_widths(layout), Structured().bind(layout), WIDTHS.bind(layout)
    for change in (lambda one, work: one.prox_entropy(work, 0.3), lambda one, work: one.project_scale(work, 0.7)):
        work, same = bound.from_flat(flat), plain.from_flat(flat[: plain.n_params])
        change(bound, work)
        change(plain, same)
        np.testing.assert_array_equal(work, np.concatenate([same, flat[plain.n_params :]]))


# ---- natural gradients -------------------------------------------------------------------------------------
class Placed:
    """Random parameters at work, and steps from there."""

    def __init__(self, layout: Layout, seed: int = 0) -> None:
        self.layout, self.bound = layout, WIDTHS.bind(layout)
        self.coordinates = self.bound.natural_coordinates()
        self.flat = random_widths(layout, seed)
        self.work = self.bound.from_flat(self.flat)
        self.random = np.random.default_rng(seed + 1)

    def step(self) -> np.ndarray:
        return self.bound.from_flat(self.random.normal(size=self.bound.n_params))

    def moved(self, step: np.ndarray) -> np.ndarray:
        """Flat parameters after a step."""
        work = self.work.copy()
        self.coordinates.retract(work, step.copy())
        return np.asarray(self.bound.to_flat(work))

    def change(self, step: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Derivative of the points along a step, by central differences of the definition."""
        ends = [by_definition(self.layout, self.moved(sign * 1e-5 * step), noise) for sign in (1, -1)]
        return (ends[0] - ends[1]) / 2e-5

    def jacobian(self, u: np.ndarray) -> np.ndarray:
        """Derivative of the point of u in u, by central differences of the definition."""
        steps = 1e-5 * np.eye(len(u))
        ends = [by_definition(self.layout, self.flat, u + sign * steps) for sign in (1, -1)]
        return (ends[0] - ends[1]).T / 2e-5


@pytest.mark.parametrize("layout", [Layout(1, 1, 1), Layout(2, 1, 1), Layout(1, 1, 2), Layout(2, 1, 2)], ids=str)
def test_the_inner_product_is_the_fisher_metric_of_the_distribution(layout: Layout) -> None:
    """`E s s'` of the scores of scipy's density along two steps, by quadrature over the noise."""
    placed = Placed(layout, seed=2)
    placed.flat[Structured().n_params(layout) :] *= 0.5  # so that 16 nodes hold the widths' squares
    placed.work = placed.bound.from_flat(placed.flat)
    t, weights = np.polynomial.hermite_e.hermegauss(16)
    noise = np.stack([axis.ravel() for axis in np.meshgrid(*[t] * layout.dim)], axis=1)
    shares = np.prod([axis.ravel() for axis in np.meshgrid(*[weights / weights.sum()] * layout.dim)], axis=0)
    kept = shares > 1e-13
    noise, shares = noise[kept], shares[kept]
    points = transformed(placed.bound, placed.flat, noise)
    steps, scores = [placed.step(), placed.step()], []
    for step in steps:
        ends = [log_q(layout, placed.moved(sign * 1e-5 * step), points) for sign in (1, -1)]
        scores.append((ends[0] - ends[1]) / 2e-5)
        assert abs(shares @ scores[-1]) < 1e-6  # the mean of a score is 0
    for i, j in ((0, 0), (0, 1), (1, 1)):
        expected = shares @ (scores[i] * scores[j])
        np.testing.assert_allclose(placed.coordinates.inner(steps[i], steps[j]), expected, rtol=1e-5, atol=1e-5)


def log_q(layout: Layout, flat: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The family's own density, which `test_log_q_is_scipys` has checked: scipy's takes a point at a time."""
    bound = WIDTHS.bind(layout)
    return np.asarray(bound.log_q(bound.from_flat(flat), points))


@each_layout
def test_slopes_in_the_noise_are_those_of_log_p_minus_log_q(layout: Layout) -> None:
    """For a linear log p, by central differences: log q at the point of u is that of u less log |det| of the map."""
    placed = Placed(layout)
    slopes, noise = placed.random.normal(size=(2, 3, layout.dim))
    found = placed.coordinates.noise_slopes(placed.work, noise, slopes.copy())
    expected = np.empty_like(noise)
    for k in range(layout.dim):
        ends = []
        for sign in (1, -1):
            moved = noise.copy()
            moved[:, k] += sign * 1e-5
            points = by_definition(layout, placed.flat, moved)
            ends.append((slopes * points).sum(axis=1) - log_q_by_scipy(layout, placed.flat, points))
        expected[:, k] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@each_layout
def test_the_direction_is_the_gradient_in_that_metric(layout: Layout) -> None:
    """For any step s: `<direction, s>` is the sum of `h . e(u)`, where the step moves the noise by e(u)."""
    placed = Placed(layout)
    h, noise = placed.random.normal(size=(2, 4, layout.dim))
    direction = np.full_like(placed.work, np.nan)
    placed.coordinates.direction(placed.work, noise, h.copy(), direction)
    placed.coordinates.normalize(placed.work, direction)
    jacobians = [placed.jacobian(u) for u in noise]
    for _ in range(3):
        step = placed.step()
        changes = placed.change(step, noise)
        moves = [np.linalg.solve(jacobian, change) for jacobian, change in zip(jacobians, changes, strict=True)]
        expected = (h * np.array(moves)).sum()
        np.testing.assert_allclose(placed.coordinates.inner(direction, step), expected, rtol=1e-5, atol=1e-5)


@each_layout
@pytest.mark.parametrize("size", [0.3, 20.0])
def test_a_large_step_keeps_the_signs(layout: Layout, size: float) -> None:
    placed = Placed(layout)
    step = size * placed.step()
    kept, moved = step.copy(), placed.work.copy()
    placed.coordinates.retract(moved, step)
    np.testing.assert_array_equal(step, kept)
    places = placed.bound.diagonal
    np.testing.assert_array_equal(np.sign(moved[places]), np.sign(placed.work[places]))
    assert placed.coordinates.usable(moved)


@each_layout
def test_a_step_of_the_globals_alone_is_the_same_map_after_it(layout: Layout) -> None:
    """`T(u) -> T(u_z -> a + E u_z)`, whatever the length of the step."""
    placed, d_z = Placed(layout), layout.n_global
    step = np.zeros_like(placed.work)
    bound = placed.bound
    step[:d_z] = placed.random.normal(size=d_z)
    step[bound._zz] = placed.random.normal(size=step[bound._zz].size)
    k = bound._dense_zz(step)
    noise = placed.random.normal(size=(5, layout.dim))
    turned = noise.copy()
    turned[:, :d_z] = step[:d_z] + noise[:, :d_z] @ (np.eye(d_z) + k + k @ k / 2).T
    expected = by_definition(layout, placed.flat, turned)
    np.testing.assert_allclose(by_definition(layout, placed.moved(step), noise), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("trust", [1e-3, 2.0, 1e3])
@each_layout
def test_each_block_of_a_step_is_shortened_to_the_trust_region_with_its_widths(layout: Layout, trust: float) -> None:
    placed = Placed(layout)
    bound, step, d_z = placed.bound, placed.step(), layout.n_global
    before, n = step.copy(), layout.n_local
    share = placed.coordinates.limit(step, trust)

    def pieces(vector: np.ndarray) -> list[np.ndarray]:
        found = [np.concatenate([vector[:d_z], vector[bound._zz]])] if d_z else []
        border, widths = bound._border_of(vector), bound.widths_of(vector)
        blocks = vector[bound._blocks].reshape(n, layout.local_dim * (layout.local_dim + 1) // 2)
        for i in range(n):
            y = layout.block_slice(i)
            own = slice(y.start - d_z, y.stop - d_z)
            found.append(np.concatenate([vector[y], border[:, own].ravel(), widths[:, own].ravel(), blocks[i]]))
        return found

    norms = [np.linalg.norm(piece) for piece in pieces(before)]
    of_globals, of_locals = np.split(before[bound.diagonal], [d_z])  # no diagonal entry is to stay below -1
    least = [*([of_globals.min()] if d_z else []), *of_locals.reshape(n, -1).min(axis=1)] if n else [of_globals.min()]
    for found, piece, norm, low in zip(pieces(step), pieces(before), norms, least, strict=True):
        factor = min(1.0, trust / norm, 1 / max(-low, 1.0))
        np.testing.assert_allclose(found, factor * piece, rtol=1e-12)
    assert share == pytest.approx(np.mean([norm > trust for norm in norms]))


def test_an_update_from_b_0_moves_all_else_as_structured_does() -> None:
    """Bit for bit, before the trust region, in which b has its share, cuts anything."""
    import pyturingvi as tv

    layout = Layout(2, 4, 2)
    model = tv.models.IsotropicGaussian(4, n_global=2, local_dim=2)
    noise = np.random.default_rng(6).normal(size=(20, layout.dim))
    flat, ends = random_flat(Structured(), layout), []
    for family in (Structured(), WIDTHS):
        bound = family.bind(layout)
        with Workers(1) as workers:
            state = NaturalGradientState(model, bound.natural_coordinates(), workers)
            state.work = bound.from_flat(bound.embed(Structured().bind(layout), flat))
            assert state.update(noise, True, 0.01, 0.9, 1e9) is not None
        ends.append(bound.to_flat(state.work))
    np.testing.assert_array_equal(ends[1][: len(flat)], ends[0])
    assert ends[1][len(flat) :].any()


def test_the_stages_go_through_structured() -> None:
    assert stages_of(WIDTHS, Layout(2, 5, 1), warm=True) == [MeanField(), Structured(), WIDTHS]
    assert stages_of(WIDTHS, Layout(2, 0, 0), warm=True) == [MeanField(), WIDTHS]
    assert stages_of(WIDTHS, Layout(2, 5, 1), warm=False) == [WIDTHS]


# ---- draws -------------------------------------------------------------------------------------------------
def stream(mirrored: bool, n_heads: int = 3, dim: int = 7) -> AntitheticStream:
    return AntitheticStream(Gaussian(), 5, dim, n_heads, np.dtype(np.float64), np, mirrored=mirrored)


@pytest.mark.parametrize("frames", [False, True])
def test_a_mirrored_draw_has_the_globals_of_its_twin_and_the_locals_with_the_sign_turned(frames: bool) -> None:
    rows = stream(True).draw(2, 12, frames)
    np.testing.assert_array_equal(rows[6:, :3], rows[:6, :3])
    np.testing.assert_array_equal(rows[6:, 3:], -rows[:6, 3:])
    np.testing.assert_allclose(rows[:, :3].T @ rows[:, 3:], 0, atol=1e-12)


def test_mirrored_frames_are_standard_normal() -> None:
    draws = np.array([stream(True).draw(k, 8, True) for k in range(10_000)])
    for row in (0, 5):
        u, n = draws[:, row], len(draws)
        assert np.abs(u.mean(axis=0)).max() < 5 / np.sqrt(n)
        np.testing.assert_array_less(np.abs(u.T @ u / n - np.eye(7)), 5 * np.sqrt(2 / n))
        np.testing.assert_array_less(np.abs((u**4).mean(axis=0) - 3), 5 * np.sqrt(96 / n))


def test_mirrored_frames_have_orthogonal_heads_before_their_lengths() -> None:
    class Lengths:
        def standard_gamma(self, shape: float, size: Any, dtype: Any) -> np.ndarray:
            assert shape == 2.5  # of rows in 5 dimensions
            return np.full(size, 0.5, dtype)

    rows = np.random.default_rng(3).normal(size=(5, 7))
    y = rows[:, 3:].copy()
    stream(True)._orthogonalize(rows, Lengths(), mirrored=True)
    np.testing.assert_allclose(rows[:, :3].T @ rows[:, :3], np.eye(3), atol=1e-12)
    np.testing.assert_array_equal(rows[:, 3:], y)


def test_an_odd_number_of_rows_is_drawn_without_mirrors_and_others_are_what_they_were() -> None:
    np.testing.assert_array_equal(stream(True).draw(3, 7, True), stream(False).draw(3, 7, True))


def test_draws_come_in_fours_and_frames_have_rows_for_the_globals() -> None:
    for layout in [*LAYOUTS, Layout(16, 1961, 1), Layout(33, 262, 6), Layout(300, 5, 1), Layout(16, 200_000, 1)]:
        draws = choose_draws(WIDTHS, layout, None, None)
        assert draws == choose_draws(Structured(), layout, None, None)
        if not (layout.n_global and layout.n_local):
            continue
        assert draws.n_samples % 4 == 0
        assert not draws.frames or draws.n_samples // 4 > layout.n_global
    assert choose_draws(WIDTHS, Layout(16, 1961, 1), None, None).n_samples == 124  # few variables: 31 strata
    assert choose_draws(WIDTHS, Layout(16, 200_000, 1), None, None).n_samples == 92  # as few as bear an outlier
