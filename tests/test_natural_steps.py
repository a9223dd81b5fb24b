"""Natural-gradient steps piece by piece: against dense matrices, quadrature and finite differences; the plan alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import dense_location_scale, dense_mask, dense_parameters, random_flat

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.families import Family, FullRank, MeanField, Structured
from pyturingvi.families.base_distributions import BaseDistribution, Gaussian, Laplace, StudentT
from pyturingvi.layout import Layout
from pyturingvi.optimize.natural_gradient import NaturalGradientState
from pyturingvi.optimize.natural_leg import ANNEAL, CLIMB
from pyturingvi.optimize.natural_plan import NaturalPlan
from pyturingvi.optimize.natural_stages import choose_draws, stages_of
from pyturingvi.optimize.noise import AntitheticStream
from pyturingvi.support.parallel import Workers

FAMILIES = [MeanField(), Structured(), Structured(standardized=False), FullRank()]
LAYOUTS = [Layout(2, 3, 1), Layout(2, 3, 2), Layout(3, 0, 0), Layout(0, 4, 2), Layout(0, 4, 1), Layout(1, 0, 0)]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=["mean-field", "structured", "raw", "full-rank"])
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


class Logistic(BaseDistribution):
    """The logistic distribution with variance 1, as a user writes it: without score and information."""

    scale = math.sqrt(3) / math.pi
    kurtosis = 4.2
    entropy = 2 + math.log(scale)

    def fill(self, generator: Any, out: Any) -> None:
        out[...] = generator.logistic(scale=self.scale, size=out.shape)

    def log_density(self, u: Any) -> Any:
        return -np.abs(u) / self.scale - 2 * np.log1p(np.exp(-np.abs(u) / self.scale)) - math.log(self.scale)


class Changed(Gaussian):
    """A subclass with a density of its own, beside the inherited score and information of the Gaussian."""

    log_density = Logistic.log_density
    scale = Logistic.scale


class Placed:
    """Random parameters of a family at work, and what they are as dense matrices."""

    def __init__(self, family: Family, layout: Layout, seed: int = 0) -> None:
        self.layout = layout
        self.own = family.bind(layout)
        self.flat = random_flat(family, layout, seed)
        self.coordinates = self.own.natural_coordinates()
        self.bound = self.coordinates.bound
        self.work = self.coordinates.enter(self.own.from_flat(self.flat))
        self.m, self.c = dense_location_scale(family, layout, self.flat)
        self.mask = dense_mask(family.name, layout)
        self.random = np.random.default_rng(seed + 1)

    def dense(self, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Location and matrix of a working vector of the standardized family, or of a step."""
        return dense_parameters(self.bound.family, self.layout, self.bound.to_flat(work))

    def step(self, size: float = 1.0) -> np.ndarray:
        return self.bound.from_flat(size * self.random.normal(size=self.bound.n_params))


def informations(frozen: Any) -> tuple[float, float]:
    """`E psi^2` and `E (psi u - 1)^2` of a symmetric density of scipy, by the trapezoidal rule."""
    u = np.geomspace(2e-6, 400, 100_001)
    step = 1e-6 * np.maximum(u, 1)
    psi, density = (frozen.logpdf(u - step) - frozen.logpdf(u + step)) / (2 * step), frozen.pdf(u)
    return 2 * np.trapezoid(density * psi**2, u), 2 * np.trapezoid(density * (psi * u - 1) ** 2, u)


# ---- steps against dense matrices ---------------------------------------------------------------------------
@each_layout
@each_family
def test_the_steps_start_from_the_same_distribution_and_leave_it_as_it_is(family: Family, layout: Layout) -> None:
    placed = Placed(family, layout)
    found_m, found_c = placed.dense(placed.work)
    np.testing.assert_allclose(found_m, placed.m, atol=1e-13)
    np.testing.assert_allclose(found_c, placed.c, atol=1e-13)
    back = placed.own.to_flat(placed.coordinates.leave(placed.work))
    np.testing.assert_allclose(back, placed.flat, rtol=1e-11, atol=1e-12)


@each_layout
@each_family
def test_slopes_are_whitened_and_summed_as_dense_matrices_say(family: Family, layout: Layout) -> None:
    placed = Placed(family, layout)
    slopes, noise = placed.random.normal(size=(2, 7, layout.dim))
    expected = slopes @ placed.c
    h = placed.coordinates.whiten(placed.work, slopes.copy())
    np.testing.assert_allclose(h, expected, rtol=1e-12, atol=1e-12)
    out = np.full_like(placed.work, np.nan)
    placed.coordinates.direction(placed.work, noise, h, out)
    a, k = placed.dense(out)
    np.testing.assert_allclose(a, expected.sum(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(k, np.where(placed.mask, expected.T @ noise, 0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("base", ["gaussian", "laplace", ("student_t", 6)], ids=str)
@each_family
def test_the_metric_is_the_fisher_matrix_by_quadrature(family: Family, base: Any) -> None:
    """`E s s'` of the score `s = [psi, psi u' on the pattern, less 1 on its diagonal]`, entries being independent."""
    kind = type(family)
    placed = Placed(kind(base=base), Layout(2, 3, 2))
    frozen = {"gaussian": stats.norm(), "laplace": stats.laplace(scale=math.sqrt(0.5))}.get(
        base, stats.t(6, scale=math.sqrt(4 / 6))
    )

    of_location, of_diagonal = informations(frozen)
    one, other = placed.step(), placed.step()
    (a, k), (b, l) = placed.dense(one), placed.dense(other)  # noqa: E741
    metric = np.where(np.eye(placed.layout.dim), of_diagonal, of_location)
    np.testing.assert_allclose(
        placed.coordinates.inner(one, other), of_location * (a @ b) + (metric * k * l).sum(), rtol=1e-4, atol=1e-4
    )
    placed.coordinates.normalize(placed.work, one)
    for found, expected in zip(placed.dense(one), (a / of_location, k / metric), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def blocks_of(family: Family, layout: Layout) -> list[list[int]]:
    """Rows of the scale that are bounded together."""
    d, d_z = layout.dim, layout.n_global
    if isinstance(family, MeanField):
        return [[i] for i in range(d)]
    if isinstance(family, FullRank):
        return [list(range(d))]
    locals_ = [list(range(d)[layout.block_slice(n)]) for n in range(layout.n_local)]
    return [list(range(d_z)), *locals_] if d_z else locals_


@pytest.mark.parametrize("trust", [1e-3, 1.5, 1e3])
@each_layout
@each_family
def test_each_block_of_a_step_is_shortened_to_the_trust_region(family: Family, layout: Layout, trust: float) -> None:
    """And until no scale contracts by more than a half, where `1 + k + k^2/2` is smallest."""
    placed = Placed(family, layout)
    step = placed.step()
    a, k = placed.dense(step)
    longer = contracted = 0
    for rows in blocks_of(family, layout):
        norm = math.sqrt((a[rows] ** 2).sum() + (k[rows] ** 2).sum())
        longer += norm > trust
        least = -min(k[rows, rows].min(), -1.0)
        contracted += trust / norm > 1 / least
        factor = min(1.0, trust / norm, 1 / least)
        a[rows] *= factor
        k[rows] *= factor
    assert contracted or trust < 2 or layout.dim < 3
    share = placed.coordinates.limit(step, trust)
    assert share == pytest.approx(longer / len(blocks_of(family, layout)))
    for found, expected in zip(placed.dense(step), (a, k), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def exponential(family: Family, layout: Layout, k: np.ndarray) -> np.ndarray:
    square = k @ k
    if isinstance(family, Structured):
        square[layout.n_global :, : layout.n_global] = 0
    return np.eye(layout.dim) + k + 0.5 * square


@pytest.mark.parametrize("size", [0.0, 0.3, 20.0])
@each_layout
@each_family
def test_a_step_is_the_product_of_dense_matrices(family: Family, layout: Layout, size: float) -> None:
    """`m + C a` and `C (I + K + K^2/2)`, which has C's pattern and the signs of its diagonal.

    Of a structured family's border, the locals' rows and the globals' columns, the square is left out.
    """
    placed = Placed(family, layout)
    step = placed.step(size)
    a, k = placed.dense(step)
    expected_c = placed.c @ exponential(family, layout, k)
    assert np.abs(expected_c[~placed.mask]).sum() == 0
    placed.coordinates.retract(placed.work, step)
    found_m, found_c = placed.dense(placed.work)
    np.testing.assert_allclose(found_m, placed.m + placed.c @ a, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found_c, expected_c, rtol=1e-11, atol=1e-11 * (1 + size**2))
    np.testing.assert_array_equal(np.sign(np.diag(found_c)), np.sign(np.diag(placed.c)))
    assert placed.coordinates.usable(placed.work)
    own_m, own_c = dense_location_scale(family, layout, placed.own.to_flat(placed.coordinates.leave(placed.work)))
    np.testing.assert_allclose(own_m, found_m, rtol=1e-9, atol=1e-9 * (1 + size**2))
    np.testing.assert_allclose(own_c, found_c, rtol=1e-9, atol=1e-9 * (1 + size**2))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@each_family
def test_parameters_that_are_no_distribution_are_not_usable(family: Family, broken: float) -> None:
    placed = Placed(family, Layout(2, 3, 1))
    for place in range(placed.work.size):
        work = placed.work.copy()
        work[place] = broken
        assert not placed.coordinates.usable(work)
    for place in np.arange(placed.work.size)[placed.bound.diagonal]:
        work = placed.work.copy()
        work[place] = 0.0
        assert not placed.coordinates.usable(work)


# ---- one update against its definition ----------------------------------------------------------------------
class Skewed(tv.models.Model):
    """`sum -exp(x_i)/2 + b_i x_i - (sum x)^2/8`: not Gaussian, and with correlations."""

    thread_safe = True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.b = np.linspace(0.5, 1.5, layout.dim)

    def _log_density_and_gradient(self, points: Any) -> Any:
        e, total = np.exp(points) / 2, points.sum(axis=1)
        return points @ self.b - e.sum(axis=1) - total**2 / 8, self.b - e - total[:, None] / 4


@pytest.mark.parametrize("paired", [True, False])
@each_family
def test_two_updates_by_hand(family: Family, paired: bool) -> None:
    """Sticking the landing, the running average with its start corrected, and what an update reports."""
    layout = Layout(2, 3, 2)
    placed, model = Placed(family, layout), Skewed(layout)
    rate, momentum = 0.02, 0.7
    with Workers(1) as workers:
        state = NaturalGradientState(model, placed.coordinates, workers)
        state.work = placed.work
        m, c = placed.m, placed.c
        average_a, average_k = np.zeros(layout.dim), np.zeros((layout.dim, layout.dim))
        metric = np.where(np.eye(layout.dim), 2.0, 1.0)
        for count in range(2):
            u = placed.random.normal(size=(6, layout.dim))
            found = state.update(u, paired, rate, momentum, 1e9)
            u = np.concatenate([u, -u]) if paired else u
            value, slope = model.log_density_and_gradient(u @ c.T + m)
            f = value - stats.norm.logpdf(u).sum(axis=1) + np.log(np.abs(np.diag(c))).sum()
            h = slope @ c + u
            a, k = h.mean(axis=0), np.where(placed.mask, h.T @ u / len(u), 0) / metric
            assert found is not None
            np.testing.assert_allclose([found.mean, found.variance], [f.mean(), f.var(ddof=1)], rtol=1e-10)
            np.testing.assert_allclose(found.square, a @ a + (metric * k * k).sum(), rtol=1e-10)
            if count:
                inner = a @ average_a + (metric * k * average_k).sum()
                np.testing.assert_allclose(found.inner, inner, rtol=1e-9, atol=1e-10)
            else:
                assert math.isnan(found.inner)
            assert found.shortened == 0
            weight = [1.0, (1 - momentum) / (1 - momentum**2)][count]
            average_a = average_a + weight * (a - average_a)
            average_k = average_k + weight * (k - average_k)
            m, c = m + c @ (rate * average_a), c @ exponential(family, layout, rate * average_k)
            found_m, found_c = placed.dense(state.work)
            np.testing.assert_allclose(found_m, m, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(found_c, c, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("family", [MeanField(), Structured(), FullRank()], ids=lambda family: family.name)
def test_the_globals_alone_are_stepped_with_their_own_rate(family: Family, layout: Layout) -> None:
    placed, d_z = Placed(family, layout), layout.n_global
    noise, moved = placed.random.normal(size=(6, layout.dim)), {}
    with Workers(1) as workers:
        for rates in ((0.1, 0.0), (0.4, 0.0), (0.1, 0.4)):
            state = NaturalGradientState(Skewed(layout), placed.coordinates, workers)
            state.work = placed.work.copy()
            found = state.update(noise, True, rates[0], 0.9, 1e9, rates[1])
            assert found is not None
            moved[rates] = (*placed.dense(state.work), state.velocity.copy())
    slow, fast, own = moved.values()
    inside = family.name == "structured" and 0 < d_z < layout.dim
    globals_ = fast if inside else slow
    np.testing.assert_allclose(own[0][:d_z], globals_[0][:d_z], rtol=1e-12)
    np.testing.assert_allclose(own[1][:d_z, :d_z], globals_[1][:d_z, :d_z], rtol=1e-12)
    np.testing.assert_allclose(own[1][d_z:, d_z:], slow[1][d_z:, d_z:], rtol=1e-12)
    a, k = placed.dense(own[2])
    expected = a[:d_z] @ a[:d_z] + (k[:d_z, :d_z] ** 2).sum() if inside else 0.0
    assert found.global_square == pytest.approx(expected)


def test_without_noise_left_where_the_posterior_is_reached() -> None:
    """Where q is the target, `log p - log q` is a constant and no draw moves the parameters."""
    placed = Placed(FullRank(), Layout(2, 3, 1))
    precision = np.linalg.inv(placed.c @ placed.c.T)

    def target(x: Any) -> Any:
        r = x - placed.m
        return -0.5 * ((r @ precision) * r).sum(axis=1), -r @ precision

    with Workers(1) as workers:
        state = NaturalGradientState(tv.models.LogDensity(target, placed.layout), placed.coordinates, workers)
        state.work = placed.work.copy()
        found = state.update(placed.random.normal(size=(2, 5)), True, 0.5, 0.0, 2.0)
    assert found is not None
    assert found.variance < 1e-20
    assert found.square < 1e-20
    np.testing.assert_allclose(found.mean, 2.5 * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(precision)[1])
    np.testing.assert_allclose(state.work, placed.work, atol=1e-12)


@pytest.mark.parametrize("where", ["value", "slope", "one slope"])
def test_an_update_that_is_not_finite_changes_nothing(where: str) -> None:
    placed = Placed(Structured(), Layout(2, 3, 1))

    def broken(x: Any) -> Any:
        value, slope = -0.5 * (x**2).sum(axis=1), -x
        if len(x) == 8:
            (value if where == "value" else slope)[-1:, ...] = np.nan if where != "one slope" else slope[-1:] * 0
            if where == "one slope":
                slope[3, 2] = np.inf
        return value, slope

    with Workers(1) as workers:
        state = NaturalGradientState(tv.models.LogDensity(broken, placed.layout), placed.coordinates, workers)
        state.work = placed.work
        assert state.update(placed.random.normal(size=(3, 5)), True, 0.1, 0.9, 1.0) is not None
        before = state.work.copy(), state.velocity.copy(), state.count
        assert state.update(placed.random.normal(size=(4, 5)), True, 0.1, 0.9, 1.0) is None
        np.testing.assert_array_equal(state.work, before[0])
        np.testing.assert_array_equal(state.velocity, before[1])
        assert state.count == before[2] == 1
        assert state.update(placed.random.normal(size=(3, 5)), True, 0.1, 0.9, 1.0) is not None


@pytest.mark.parametrize("n_rows", [3, 700])
def test_an_update_does_not_depend_on_the_number_of_threads(n_rows: int) -> None:
    """Also where its draws are cut in pieces, whose sums are then those of the whole but for rounding."""
    layout = Layout(2, 60, 1)
    found = []
    for n_threads in (1, 2, 5):
        placed = Placed(Structured(), layout)
        placed.work[layout.dim :] *= 0.1
        with Workers(n_threads) as workers:
            state = NaturalGradientState(Skewed(layout), placed.coordinates, workers)
            state.work = placed.work
            noise = placed.random.normal(size=(n_rows, layout.dim))
            found.append((state.update(noise, True, 0.1, 0.9, 1.0), state.work))
    for stats_, work in found[1:]:
        assert stats_ is not None
        np.testing.assert_equal(vars(stats_), vars(found[0][0]))
        np.testing.assert_array_equal(work, found[0][1])


# ---- base distributions -------------------------------------------------------------------------------------
BASES = [Gaussian(), Laplace(), StudentT(5.0), StudentT(30.0), Logistic(), Changed()]


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_scores_are_slopes_and_informations_their_moments(base: BaseDistribution) -> None:
    """By differences and quadrature on densities of scipy."""
    logistic = stats.logistic(scale=Logistic.scale)
    frozen = {Gaussian: stats.norm(), Laplace: stats.laplace(scale=math.sqrt(0.5))}.get(type(base), logistic)
    if isinstance(base, StudentT):
        frozen = stats.t(base.nu, scale=math.sqrt((base.nu - 2) / base.nu))
    coordinates = MeanField(base=base).bind(Layout(1, 0, 0)).natural_coordinates()
    u = np.concatenate([np.linspace(-6, -0.1, 20), np.linspace(0.1, 6, 20)])
    np.testing.assert_allclose(base.log_density(u), frozen.logpdf(u), rtol=1e-10)
    slope = (frozen.logpdf(u - 1e-5) - frozen.logpdf(u + 1e-5)) / 2e-5
    np.testing.assert_allclose(coordinates.score(u), slope, rtol=1e-6, atol=1e-7)

    found = coordinates.location_information, coordinates.scale_information
    np.testing.assert_allclose(found, informations(frozen), rtol=1e-5)


def test_a_score_of_ones_own_is_used() -> None:
    class Own(Logistic):
        def log_density(self, u: Any) -> Any:
            return super().log_density(u)

        def score(self, u: Any) -> Any:
            return 7 * u

        information = (3.0, 5.0)

    coordinates = MeanField(base=Own()).bind(Layout(1, 0, 0)).natural_coordinates()
    np.testing.assert_array_equal(coordinates.score(np.array([2.0])), [14.0])
    assert (coordinates.location_information, coordinates.scale_information) == (3.0, 5.0)


def test_a_base_without_a_slope_is_refused() -> None:
    class Uniform(Logistic):
        def log_density(self, u: Any) -> Any:
            return np.where(np.abs(u) < math.sqrt(3), -math.log(2 * math.sqrt(3)), -np.inf)

    with pytest.raises(InputError, match=r"base: .* makes no natural-gradient step: .*optimizer=tv\.Adam"):
        MeanField(base=Uniform()).bind(Layout(1, 0, 0)).natural_coordinates()


# ---- draws --------------------------------------------------------------------------------------------------
def draw(layout: Layout, n_rows: int, n_updates: int, frames: bool = True) -> np.ndarray:
    stream = AntitheticStream(Gaussian(), 3, layout.dim, layout.n_global, np.dtype(float), np)
    return np.stack([stream.draw(i, n_rows, frames) for i in range(n_updates)])


@pytest.mark.parametrize(
    "layout", [Layout(3, 4, 1), Layout(2, 3, 3), Layout(0, 3, 3), Layout(0, 3, 1), Layout(4, 0, 0)], ids=str
)
def test_frames_are_orthonormal_and_standard_normal(layout: Layout) -> None:
    """Orthogonal before each row's factor; a row is exactly standard normal in all its coordinates together."""
    n_heads = layout.n_global
    stream = AntitheticStream(Gaussian(), 3, layout.dim, n_heads, np.dtype(float), np)
    rows = np.random.default_rng(0).normal(size=(8, layout.dim))

    class UnitRadius:
        @staticmethod
        def standard_gamma(shape: float, size: tuple[int, int], dtype: np.dtype) -> np.ndarray:
            return np.full(size, 0.5)

    if n_heads:
        stream._orthogonalize(rows, UnitRadius())
        q, others = rows[:, :n_heads], rows[:, n_heads:]
        np.testing.assert_allclose(q.T @ q, np.eye(n_heads), atol=1e-12)
        projected = others * np.sqrt(1 - (q**2).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(q.T @ projected, 0, atol=1e-12)

    draws = draw(layout, 8, 1500)
    for k in range(layout.dim):
        assert stats.kstest(draws[:, k % 8, k], "norm").pvalue > 1e-4
    flat = draws.reshape(-1, layout.dim)
    n = len(flat)
    np.testing.assert_allclose(flat.mean(axis=0), 0, atol=5 / math.sqrt(n))
    np.testing.assert_allclose((flat**2).mean(axis=0), 1, atol=5 * math.sqrt(2 / n))
    np.testing.assert_allclose((flat**4).mean(axis=0), 3, atol=5 * math.sqrt(96 / n))
    both = flat
    np.testing.assert_allclose(both.T @ both / n, np.eye(both.shape[1]), atol=5 * math.sqrt(2 / n))
    squares = (draws[:, 0] ** 2).sum(axis=1)
    assert stats.kstest(squares, stats.chi2(both.shape[1]).cdf).pvalue > 1e-4


def test_draws_depend_on_the_seed_and_the_update_alone() -> None:
    layout = Layout(2, 3, 1)
    stream, again = (
        AntitheticStream(Gaussian(), 5, layout.dim, layout.n_global, np.dtype(float), np) for _ in range(2)
    )
    first = [stream.draw(i, 8, frames=True) for i in range(4)]
    for i in (3, 0, 2):
        np.testing.assert_array_equal(again.draw(i, 8, frames=True), first[i])
    assert not np.any(first[0] == first[1])
    with Workers(2) as workers:  # drawn ahead, also where the next update asks for something else
        ahead = AntitheticStream(Gaussian(), 5, 5000, 2, np.dtype(float), np, workers=workers)
        alone = AntitheticStream(Gaussian(), 5, 5000, 2, np.dtype(float), np)
        asked = [(0, 8, True), (1, 8, True), (2, 8, False), (3, 16, False), (4, 16, False), (1, 8, True)]
        for i, n_rows, frames in asked:
            np.testing.assert_array_equal(ahead.draw(i, n_rows, frames), alone.draw(i, n_rows, frames))
    plain = draw(layout, 6, 1000, frames=False)
    assert stats.kstest(plain[:, 0, 0], "norm").pvalue > 1e-4
    other = AntitheticStream(Gaussian(), 6, layout.dim, layout.n_global, np.dtype(float), np)
    assert not np.any(other.draw(0, 8, frames=True) == first[0])


# ---- the plan, fed with made-up legs ------------------------------------------------------------------------
def make_plan(**changes: Any) -> NaturalPlan:
    family = changes.pop("family", Structured())
    layout = changes.pop("layout", Layout(2, 5, 1))
    settings: dict[str, Any] = {"warm": False, "rate": None, "momentum": 0.9, "n_samples": None}
    return NaturalPlan(family, layout, **{**settings, **changes})


def feed(plan: NaturalPlan, mean: float, variance: float = 1.0, inner: float = 1.0, square: float = 2.0) -> str:
    """One whole leg in which every update sees the same."""
    leg = plan.next_leg()
    n = leg.last - int(plan.state.leg_from)
    return plan.finish_leg(leg.last, np.tile([mean, variance, inner, square, 0.0, 0.0], (n, 1)), broke=False)


def fail(plan: NaturalPlan) -> str:
    return plan.finish_leg(plan.next_leg().last, np.empty((0, 6)), broke=True)


def test_a_broken_leg_goes_back_and_halves_the_rate_until_it_diverges() -> None:
    plan = make_plan()
    rate = plan.state.rate
    for k in range(1, 21):
        assert fail(plan) == "back"
        assert plan.state.rate == pytest.approx(rate / 2**k)
    assert fail(plan) == "diverged"


@pytest.mark.parametrize("mean", [math.nan, math.inf, -math.inf, 1e101, -1e101])
def test_an_elbo_that_is_none_is_a_setback(mean: float) -> None:
    plan = make_plan()
    assert feed(plan, -10) == "best"
    assert feed(plan, mean) == "back"
    assert feed(make_plan(), -10, variance=math.nan) == "back"


def test_a_leg_that_explodes_is_a_setback_though_its_noise_is_as_large() -> None:
    rows = np.tile([-10, 1.0, 1.0, 2.0, 0.0, 1.0], (5, 1))
    exploding = rows.copy()
    exploding[2:, :2] = [[-1e3, 1e7], [-1e20, 1e41], [-1e60, 1e121]]

    def finish(rows: np.ndarray) -> str:
        return plan.finish_leg(plan.next_leg().last, rows, broke=False)

    plan = make_plan()
    assert finish(exploding) == "back"  # the first of all, below its own beginning
    assert finish(exploding) == "back"
    assert finish(rows) == "best"
    assert finish(exploding) == "back"


def test_no_end_is_seen_while_the_average_turns() -> None:
    """Directions all alike, against an average of earlier ones: as far from the optimum as ever."""
    ends = []
    for inner in (-0.2, -1.5):
        plan = make_plan()
        ends.append(any(feed(plan, -50 - 0.01 * k, inner=inner) == "converged" for k in range(12)))
    assert ends == [True, False]


def test_a_fall_beyond_noise_is_a_setback_and_within_it_is_none() -> None:
    plan = make_plan()
    assert feed(plan, -10) == "best"
    assert feed(plan, -10.5) == "go on"
    assert feed(plan, -30) == "back"
    assert feed(plan, -20) == "best"  # what counts is what came after


def test_the_rate_recovers_after_some_good_legs_and_no_further_than_where_it_began() -> None:
    plan = make_plan()
    rate, found = plan.state.rate, []
    fail(plan)
    fail(plan)
    for k in range(60):
        feed(plan, 100.0 * k)
        found.append(plan.state.rate)
    assert found[:5] == [rate / 4] * 5 < found[5:6]
    assert found == sorted(found)
    assert max(found) == found[-1] == rate


@pytest.mark.parametrize("rise", [1.0, 30.0])
def test_a_slow_steady_rise_goes_on_with_momentum(rise: float) -> None:
    """The rate grows, the share that a direction makes at once does not; a rate of the user's own stays."""
    for changes, largest in (({}, 2.5), ({"rate": 0.5}, 0.5), ({"momentum": 0.0}, 0.5), ({"momentum": 0.75}, 1.0)):
        plan = make_plan(**changes)
        for k in range(400):
            assert feed(plan, rise * k) in ("best", "go on")
            leg = plan.next_leg()
            assert leg.rate * (1 - leg.momentum) <= 0.25 or leg.rate <= 0.5
        assert plan.words == "climbing"
        assert plan.state.rate == pytest.approx(largest)


def test_momentum_waits_for_a_rise_above_the_noise_it_would_bring_and_for_a_run_without_setbacks() -> None:
    for rise, noise, setbacks, grows in ((1.0, 4.0, 0, True), (1.0, 40.0, 0, False), (1.0, 4.0, 1, False)):
        plan = make_plan()
        rate = plan.state.rate
        for _ in range(setbacks):
            fail(plan)
        for k in range(12):
            feed(plan, rise * k, square=5.0 + noise, inner=5.0)
        assert (plan.state.rate > rate) == grows
        if grows:
            fail(plan)
            assert plan.state.rate < 2.5
            for k in range(12):
                feed(plan, rise * k)
            assert plan.state.rate <= 2.5


def test_directions_that_agree_keep_the_rate_though_noise_hides_the_rise() -> None:
    random, plan = np.random.default_rng(1), make_plan()
    for _ in range(50):
        feed(plan, -50 + random.normal(), variance=1e4, inner=3.0, square=5.0)
    assert plan.words == "climbing"
    assert plan.state.rate == make_plan().state.rate


def run_on_noise(square: float = 1.0, variance: float = 4.0, **changes: Any) -> tuple[NaturalPlan, list[float]]:
    """Until it ends, a plan to which only noise is shown; the rates of its updates."""
    random, plan, rates, verdict = np.random.default_rng(0), make_plan(**changes), [], "go on"
    while verdict not in ("converged", "diverged"):
        leg = plan.next_leg()
        rates += [leg.rate_at(k) for k in range(int(plan.state.leg_from), leg.last)]
        error = math.sqrt(variance / (leg.n_samples * 5))
        verdict = feed(plan, -50 + error * random.normal(), variance=variance, inner=-0.1, square=square)
        assert len(rates) < 5000
    assert verdict == "converged"
    return plan, rates


def test_noise_alone_lets_the_rate_fall_like_a_mean_and_ends_the_run() -> None:
    plan, rates = run_on_noise(square=40.0)
    assert plan.words == "averaging"
    assert plan.state.converged
    assert rates == sorted(rates, reverse=True)
    first = next(k for k, rate in enumerate(rates) if rate < 0.09 and rate != rates[k + 1])
    for k in range(first, len(rates) - 1):  # weights of a running mean: 1 / r grows by 1
        assert 1 / rates[k + 1] == pytest.approx(1 / rates[k] + 1)
    assert rates[-1] * 40 / 4 < 0.11  # nats that the noise costs, one update before the end


def test_noise_that_costs_is_averaged_longer_but_not_for_ever() -> None:
    lengths = [len(run_on_noise(square)[1]) for square in (1.0, 40.0, 400.0, 1e6, math.inf)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[1] < lengths[2] < lengths[3] == lengths[4] < 2100


def test_what_the_family_loses_says_how_little_noise_is_worth_averaging() -> None:
    assert len(run_on_noise(400.0, variance=800.0)[1]) < len(run_on_noise(400.0, variance=4.0)[1]) / 4


def test_a_geometric_rise_ends_when_little_is_left_of_it() -> None:
    """Without noise in the ELBO: the rate stays until no more than a nat is to be had."""
    for ratio in (0.5, 0.8, 0.9):
        plan, k, gap = make_plan(), 0, 100.0
        while plan.state.phase == CLIMB:
            gap = 100 * ratio**k
            feed(plan, -gap, variance=1e-6, inner=-0.5)
            k += 1
            assert k < 400
        assert gap < 1


def test_a_rate_that_fell_too_far_rises_again_but_not_above_where_it_began() -> None:
    plan = make_plan()
    first = plan.state.rate
    for _ in range(8):
        feed(plan, -50, inner=-0.1)
        if plan.state.converged:
            break
    low = plan.state.rate
    assert low < first / 4
    rates = [low]
    for _ in range(40):
        feed(plan, -50, inner=1.9)
        rates.append(plan.state.rate)
    assert rates == sorted(rates)
    assert rates[-1] == first


def test_the_globals_keep_a_rate_of_their_own_that_their_noise_allows() -> None:
    for square, expected in ((1e-9, 0.3), (1.0, 0.1), (10.0, 0.01)):
        plan = make_plan(layout=Layout(2, 50, 1))
        leg = plan.next_leg()
        plan.finish_leg(leg.last, np.tile([-50, 1.0, -0.1, 2.0, 0.0, square], (5, 1)), broke=False)
        assert plan.next_leg().global_rate == pytest.approx(expected)


def test_a_break_while_averaging_goes_back_to_the_climb() -> None:
    plan = make_plan()
    while plan.state.phase == 0:
        feed(plan, -50, variance=1.0, inner=-0.1)
    assert fail(plan) == "back"
    assert (plan.words, plan.next_leg().anneal_from) == ("climbing", -1)


def test_the_stages_follow_each_other() -> None:
    layout = Layout(2, 5, 1)
    cases = {
        MeanField(): [MeanField()],
        Structured(): [MeanField(), Structured()],
        FullRank(): [MeanField(), Structured(), FullRank()],
        Structured(base="laplace"): [MeanField(), Structured(), Structured(base="laplace")],
    }
    for family, expected in cases.items():
        assert stages_of(family, layout, warm=True) == expected
        assert stages_of(family, layout, warm=False) == [family]
    plan = make_plan(family=FullRank(), warm=True)
    for stage, name in enumerate(["mean-field", "structured"]):
        assert plan.words == f"{name} start"
        verdicts = [feed(plan, -50) for _ in range(3)]
        assert verdicts[-1] == "next stage"
        plan.begin_next_stage(plan.next_leg().last - 5)
        assert plan.state.stage == stage + 1
    assert plan.is_last_stage


def test_noise_that_would_make_the_scales_of_the_globals_collapse_is_answered_before_it_does() -> None:
    """The rate then leaves `rate * noise / 2`, the curvature that a wrong border adds, at 1 for each of 16 globals."""
    for square, expected in ((60.0, 0.5), (320.0, 0.1), (1e9, 0.02)):
        plan = make_plan(layout=Layout(16, 2000, 1), warm=True)
        assert plan.state.rate != 0.5
        plan.begin_next_stage(0)
        rows = np.tile([-50, 1.0, 0.0, square, 0.0, 1.0], (5, 1))
        assert plan.finish_leg(5, rows, broke=False) == ("best" if expected == 0.5 else "back")
        assert plan.next_leg().rate == pytest.approx(expected)
        assert plan.next_leg().global_rate == pytest.approx(0.1 if expected == 0.5 else 0.3)
        assert plan.finish_leg(10, rows, broke=False) == ("go on" if expected == 0.5 else "best")
        assert plan.state.setbacks == 0


def test_a_start_that_fails_is_left_for_the_family_that_was_asked_for() -> None:
    plan = make_plan(warm=True)
    for _ in range(20):
        assert fail(plan) == "back"
    assert fail(plan) == "next stage from best"


def test_with_noise_given_every_leg_goes_on() -> None:
    plan = make_plan(fixed=True, n_samples=4)
    for mean in (0.0, -1e6, 5.0, math.nan) * 5:
        assert feed(plan, mean) == "go on"


def test_momentum_gives_way_to_the_rate() -> None:
    for rate, momentum in ((0.05, 0.9), (0.4, 0.6), (1.0, 0.0)):
        assert make_plan(rate=rate).next_leg().momentum == pytest.approx(momentum)


@pytest.mark.parametrize("family", [MeanField(), Structured(), FullRank(), Structured(base="laplace")], ids=str)
def test_draws_come_in_pairs_and_frames_have_rows_for_their_columns(family: Family) -> None:
    for layout in [*LAYOUTS, Layout(300, 5, 1), Layout(16, 200_000, 1), Layout(2, 40, 30)]:
        for n_samples in (None, 2, 8, 64):
            draws = choose_draws(family, layout, n_samples, None)
            assert draws.n_samples % 2 == 0
            assert 0 < draws.rate <= 1
            assert n_samples in (None, draws.n_samples)
            columns = layout.n_global + layout.local_dim if family.name == "structured" else layout.dim
            assert not draws.frames or draws.n_samples // 2 >= columns
            assert choose_draws(family, layout, n_samples, 0.07).rate == 0.07


def test_a_short_averaging_ends_without_a_warning() -> None:
    """Two legs of ten updates: too few to ask whether the ELBO rose."""
    plan = NaturalPlan(tv.MeanField(), Layout(16, 1961, 1), warm=True, rate=None, momentum=0.9, n_samples=None)
    plan.state.phase, plan.state.anneal_from, plan.state.rate = ANNEAL, 0, 0.05
    rows = np.tile([-5.0, 1.0, 0.0, 1.0, 0.0, 0.0], (10, 1))
    assert plan.finish_leg(10, rows, broke=False) == "converged"
