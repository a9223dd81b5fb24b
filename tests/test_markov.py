"""The Markov family against dense linear algebra and finite differences."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import dense_location_scale, peak_memory, random_flat

from pyturingvi.errors import InputError
from pyturingvi.families import (
    FullRank,
    Markov,
    MeanField,
    Structured,
    family_from_config,
    get_location_scale,
    recursions,
)
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.layout import Layout

LAYOUTS = [
    Layout(2, 5, 1),
    Layout(2, 4, 2),
    Layout(3, 9, 3),
    Layout(0, 4, 2),
    Layout(0, 6, 1),
    Layout(1, 1, 2),
    Layout(2, 2, 1),
    Layout(4, 0, 0),
]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def random_markov(layout: Layout, seed: int = 0) -> np.ndarray:
    """A random structured fit's parameters, and matrices A_n after them."""
    structured = random_flat(Structured(), layout, seed)
    n = max(layout.n_local - 1, 0) * layout.local_dim**2
    return np.concatenate([structured, 0.7 * np.random.default_rng(seed + 99).normal(size=n)])


def matrices(layout: Layout, flat: np.ndarray) -> np.ndarray:
    """A_2 to A_N from the end of the flat vector, where each stands column by column."""
    d_y, n = layout.local_dim, max(layout.n_local - 1, 0)
    found = np.empty((n, d_y, d_y))
    place = Structured().n_params(layout)
    for k in range(n):
        for column in range(d_y):
            found[k, :, column] = flat[place : place + d_y]
            place += d_y
    assert place == len(flat)
    return found


def dense_markov(layout: Layout, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """m and C: each local's row of blocks is its predecessor's times A_n, and its own block."""
    m, c = dense_location_scale(Structured(), layout, flat[: Structured().n_params(layout)])
    chain = matrices(layout, flat)
    for n in range(1, layout.n_local):
        here, before = layout.block_slice(n), layout.block_slice(n - 1)
        c[here, layout.n_global : here.start] = chain[n - 1] @ c[before, layout.n_global : here.start]
    return m, c


def transformed(bound: Any, flat: np.ndarray, noise: np.ndarray) -> np.ndarray:
    out = np.full_like(noise, np.nan)
    bound.transform(bound.from_flat(flat), noise, out)
    return out


@each_layout
def test_the_number_of_parameters_is_structureds_and_a_matrix_for_each_step_in_time(layout: Layout) -> None:
    steps = max(layout.n_local - 1, 0)
    assert Markov().n_params(layout) == Structured().n_params(layout) + steps * layout.local_dim**2
    bound = Markov().bind(layout)
    flat = random_markov(layout)
    np.testing.assert_array_equal(bound.to_flat(bound.from_flat(flat)), flat)
    np.testing.assert_array_equal(bound.from_flat(bound.to_flat(flat)), flat)


@each_layout
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
def test_points_and_density_are_those_of_the_dense_matrix(layout: Layout, dtype: str, tolerance: float) -> None:
    bound, flat = Markov().bind(layout, dtype), random_markov(layout)
    m, c = dense_markov(layout, flat)
    noise = np.random.default_rng(1).normal(size=(5, layout.dim)).astype(dtype)
    points = transformed(bound, flat, noise)
    assert points.dtype == dtype
    np.testing.assert_allclose(points, m + noise.astype(float) @ c.T, rtol=tolerance, atol=100 * tolerance)
    found = bound.standardize(bound.from_flat(flat), points)
    np.testing.assert_allclose(found, noise, atol=3000 * tolerance)
    np.testing.assert_allclose(bound.location(flat), m, rtol=tolerance)


@each_layout
@pytest.mark.parametrize("base", ["gaussian", "laplace", ("student_t", 6.0)], ids=str)
def test_log_q_and_entropy_are_scipys(layout: Layout, base: Any) -> None:
    bound, flat = Markov(base=base).bind(layout), random_markov(layout)
    m, c = dense_markov(layout, flat)
    frozen = {"gaussian": stats.norm(), "laplace": stats.laplace(scale=np.sqrt(0.5))}.get(
        base if isinstance(base, str) else "", stats.t(6, scale=np.sqrt(4 / 6))
    )
    u = np.random.default_rng(2).normal(size=(4, layout.dim))
    log_det = np.linalg.slogdet(c)[1]
    work = bound.from_flat(flat)
    np.testing.assert_allclose(bound.log_q(work, m + u @ c.T), frozen.logpdf(u).sum(axis=1) - log_det, rtol=1e-9)
    np.testing.assert_allclose(bound.entropy(work), layout.dim * frozen.entropy() + log_det, rtol=1e-9)


@each_layout
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-7), ("float32", 2e-3)])
def test_the_pullback_is_the_derivative_of_the_points(layout: Layout, dtype: str, tolerance: float) -> None:
    """Every parameter by central differences of the dense matrix."""
    flat = random_markov(layout, seed=4)
    noise, slopes = np.random.default_rng(3).normal(size=(2, 3, layout.dim))
    expected = np.empty_like(flat)
    for k in range(len(flat)):
        step = np.zeros_like(flat)
        step[k] = 1e-5
        ends = [m + noise @ c.T for m, c in (dense_markov(layout, flat + step), dense_markov(layout, flat - step))]
        expected[k] = (slopes * (ends[0] - ends[1])).sum() / 2e-5
    bound = Markov().bind(layout, dtype)
    work = bound.from_flat(flat)
    out = np.full_like(work, np.nan)
    bound.pullback(work, noise.astype(dtype), None, slopes.astype(dtype), out)
    np.testing.assert_allclose(bound.to_flat(out), expected, rtol=tolerance, atol=30 * tolerance)


@each_layout
def test_the_gradient_of_the_entropy_is_its_slope(layout: Layout) -> None:
    bound = Markov().bind(layout)
    work = bound.from_flat(random_markov(layout))
    out = np.zeros_like(work)
    assert bound.subtract_entropy_gradient(work, out)
    for k in range(len(work)):
        ends = []
        for sign in (1, -1):
            moved = work.copy()
            moved[k] += sign * 1e-6
            ends.append(bound.entropy(moved))
        assert -out[k] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


@each_layout
def test_the_scale_is_an_operator_with_the_dense_matrix_behind_it(layout: Layout) -> None:
    bound, flat = Markov().bind(layout), random_markov(layout)
    c = dense_markov(layout, flat)[1]
    scale = bound.scale(flat)
    np.testing.assert_allclose(scale.toarray(), c, atol=1e-12)
    x = np.random.default_rng(0).normal(size=(layout.dim, 3))
    np.testing.assert_allclose(scale @ x, c @ x, atol=1e-11)
    np.testing.assert_allclose(scale.T @ x, c.T @ x, atol=1e-11)
    np.testing.assert_allclose(scale.T @ x[:, 0], c.T @ x[:, 0], atol=1e-11)
    np.testing.assert_allclose(scale @ (scale.T @ x), c @ c.T @ x, atol=1e-10)


@each_layout
def test_the_locals_covariances_given_the_globals_are_blocks_of_the_dense_one(layout: Layout) -> None:
    flat, d_z = random_markov(layout), layout.n_global
    m, c = dense_markov(layout, flat)
    parts = GlobalsAndLocals.of(Markov().bind(layout), flat)
    np.testing.assert_allclose(parts.scale, c[:d_z, :d_z], atol=1e-14)
    np.testing.assert_allclose(parts.border.T, c[d_z:, :d_z], atol=1e-14)
    np.testing.assert_allclose(np.concatenate([parts.mean, parts.local_mean]), m, atol=1e-14)
    covariance = c[d_z:, d_z:] @ c[d_z:, d_z:].T
    for n, root in enumerate(parts.local_scale):
        block = layout.block_slice(n)
        here = slice(block.start - d_z, block.stop - d_z)
        np.testing.assert_allclose(root @ root.T, covariance[here, here], rtol=1e-11, atol=1e-13)
    draws = Markov().bind(layout).draw_globals(flat, np.random.default_rng(5), 40_000)
    np.testing.assert_allclose(draws.mean(axis=0), m[:d_z], atol=0.05)
    np.testing.assert_allclose(draws.T @ draws / 40_000, (c @ c.T + np.outer(m, m))[:d_z, :d_z], atol=0.2)


# ---- between families --------------------------------------------------------------------------------------
@each_layout
@pytest.mark.parametrize(
    "smaller", [MeanField(), Structured(), Structured(standardized=False), Structured(base="laplace")], ids=repr
)
def test_smaller_families_are_members_with_independent_locals(layout: Layout, smaller: Any) -> None:
    flat = random_flat(smaller, layout)
    found = Markov().bind(layout).embed(smaller.bind(layout), flat)
    m, c = dense_markov(layout, found)
    expected_m, expected_c = dense_location_scale(smaller, layout, flat)
    np.testing.assert_allclose(m, expected_m, atol=1e-12)
    np.testing.assert_allclose(c, expected_c, atol=1e-12)
    assert not matrices(layout, found).any()


def test_it_goes_on_in_full_rank_and_with_another_base_and_in_no_smaller_family() -> None:
    layout = Layout(2, 4, 2)
    flat, bound = random_markov(layout), Markov().bind(layout)
    m, c = dense_markov(layout, flat)
    full = FullRank().bind(layout)
    larger = full.embed(bound, flat)
    np.testing.assert_allclose(larger[: layout.dim], m)
    np.testing.assert_allclose(full.scale(larger).toarray(), c, atol=1e-13)
    np.testing.assert_array_equal(Markov(base="laplace").bind(layout).embed(bound, flat), flat)
    for smaller in (MeanField(), Structured()):
        with pytest.raises(InputError, match=f"entries that the {smaller.name} family does not have"):
            smaller.bind(layout).embed(bound, flat)
    with pytest.raises(InputError, match="entries that the markov family does not have"):
        Markov().bind(layout).embed(full, larger)


def test_what_needs_the_entries_of_the_scale_as_parameters_refuses_it() -> None:
    with pytest.raises(InputError, match=r"markov is not a location-scale family in the entries"):
        get_location_scale("markov")


@pytest.mark.parametrize("base", ["gaussian", "laplace", ("student_t", 8.0)], ids=str)
def test_config_rebuilds_the_family(base: Any) -> None:
    family = Markov(base=base)
    assert family_from_config(json.loads(json.dumps(family.config()))) == family


# ---- recursions --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("d", [1, 2, 6])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 37])
def test_spans_that_double_give_what_the_triangular_solves_give(d: int, n: int) -> None:
    """What a GPU runs, on the CPU, and both against the recursion as it is written."""
    rng = np.random.default_rng(n)
    chain, rows, scales = rng.normal(size=(n - 1, d, d)), rng.normal(size=(4, n * d)), rng.normal(size=(n, d, d))
    chain *= 0.6 / np.sqrt(d)

    class Other:  # an array module that is not NumPy
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

    x = rows.reshape(4, n, d).copy()
    back = x.copy()
    covariance = scales @ scales.transpose(0, 2, 1)
    for k in range(1, n):
        x[:, k] += x[:, k - 1] @ chain[k - 1]
        covariance[k] += chain[k - 1].T @ covariance[k - 1] @ chain[k - 1]
    for k in range(n - 2, -1, -1):
        back[:, k] += back[:, k + 1] @ chain[k].T
    for xp in (np, Other()):
        found = recursions.run_forward(xp, chain, rows.copy())  # type: ignore[arg-type]
        np.testing.assert_allclose(found, x.reshape(4, -1), rtol=1e-12, atol=1e-12)
        found = recursions.run_backward(xp, chain, rows.copy())  # type: ignore[arg-type]
        np.testing.assert_allclose(found, back.reshape(4, -1), rtol=1e-12, atol=1e-12)
        found = recursions.covariances(xp, chain, scales)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, covariance, rtol=1e-12, atol=1e-12)


def test_memory_grows_linearly_with_the_locals() -> None:
    def use(layout: Layout) -> None:
        bound = Markov().bind(layout)
        flat = bound.initial_flat(np.zeros(layout.dim), 1.0)
        noise = np.ones((2, layout.dim))
        points, work = transformed(bound, flat, noise), bound.from_flat(flat)
        bound.pullback(work, noise, points, points.copy(), np.empty_like(work))
        bound.log_q(work, points)
        bound.scale(flat) @ flat[: layout.dim]
        coordinates = bound.natural_coordinates()
        coordinates.normalize(work, work.copy())
        coordinates.retract(work.copy(), np.zeros_like(work))

    use(Layout(4, 10, 3))  # imports
    small, large = Layout(4, 5_000, 3), Layout(4, 10_000, 3)
    half, full = (peak_memory(lambda layout=layout: use(layout)) for layout in (small, large))  # type: ignore[misc]
    assert full < 2.2 * half
    assert full < 30 * 8 * Markov().n_params(large)
