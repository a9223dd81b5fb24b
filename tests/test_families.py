"""The families against dense linear algebra."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.sparse import csc_array
from targets import dense_location_scale, dense_mask, dense_parameters, peak_memory, random_flat

from pyturingvi.errors import InputError
from pyturingvi.families import (
    BoundFamily,
    Family,
    FullRank,
    MeanField,
    Structured,
    family_from_config,
    get_family,
)
from pyturingvi.layout import Layout

FAMILIES: list[Family] = [MeanField(), Structured(), Structured(standardized=False), FullRank()]
LAYOUTS = [
    Layout(3, 4, 1),
    Layout(2, 3, 2),
    Layout(4, 2, 3),
    Layout(0, 5, 1),
    Layout(0, 3, 2),
    Layout(4, 0, 0),
    Layout(1, 1, 1),
]
BASES: list[Any] = ["gaussian", "laplace", ("student_t", 5.5)]
layouts = st.builds(Layout, st.integers(0, 5), st.integers(1, 5), st.integers(1, 4)) | st.builds(
    Layout, st.integers(1, 6), st.just(0), st.just(0)
)

each_family = pytest.mark.parametrize(
    "family", FAMILIES, ids=["mean-field", "structured", "non-standardized", "full-rank"]
)
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def transformed(bound: BoundFamily, flat: np.ndarray, noise: np.ndarray) -> np.ndarray:
    out = np.full_like(noise, np.nan)
    bound.transform(bound.from_flat(flat), noise, out)
    return out


def pulled_back(bound: BoundFamily, flat: np.ndarray, noise: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    work = bound.from_flat(flat)
    out = np.full_like(work, np.nan)
    bound.pullback(work, noise, transformed(bound, flat, noise), slopes.copy(), out)
    return bound.to_flat(out)


def standard(base: Any) -> Any:
    if isinstance(base, tuple):
        return stats.t(base[1], scale=np.sqrt((base[1] - 2) / base[1]))
    return {"gaussian": stats.norm(), "laplace": stats.laplace(scale=np.sqrt(0.5))}[base]


# ---- counts and order --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("layout", "counts"),
    [  # the paper's table 1, as corrected
        (Layout(16, 1961, 1), (3954, 35450, 1957230)),
        (Layout(16, 3922, 1), (7876, 70748, 7759829)),
        (Layout(16, 19609, 1), (39250, 353114, 192599750)),
        (Layout(33, 262, 6), (3210, 59544, 1290420)),
        (Layout(33, 522, 6), (6330, 118044, 5013360)),
        (Layout(33, 2579, 6), (31014, 580869, 120256785)),
        (Layout(193, 3348, 1), (7082, 671774, 6274652)),
        (Layout(193, 6695, 1), (13776, 1324439, 23732604)),
        (Layout(193, 33475, 1), (67336, 6546539, 566817614)),
    ],
    ids=str,
)
def test_parameter_counts_are_those_of_table_1(layout: Layout, counts: tuple[int, int, int]) -> None:
    mean_field, structured, full_rank = counts
    expected = [mean_field, structured, structured, full_rank]
    assert [family.n_params(layout) for family in FAMILIES] == expected


@each_family
@each_layout
def test_flat_order_is_location_then_the_csc_nonzeros(family: Family, layout: Layout) -> None:
    expected = csc_array(dense_mask(family.name, layout).astype(float))
    indptr, rows = family.pattern(layout)
    np.testing.assert_array_equal(indptr, expected.indptr)
    np.testing.assert_array_equal(rows, expected.indices)
    assert family.n_params(layout) == layout.dim + expected.nnz
    flat = random_flat(family, layout)
    location, matrix = dense_parameters(family, layout, flat)
    np.testing.assert_array_equal(flat[: layout.dim], location)
    np.testing.assert_array_equal(flat[layout.dim :], csc_array(matrix).data)
    if family != Structured(standardized=False):
        scale = family.bind(layout).scale(flat)
        assert isinstance(scale, csc_array)
        np.testing.assert_array_equal(scale.toarray(), matrix)
        np.testing.assert_array_equal(scale.data, flat[layout.dim :])


@each_family
@each_layout
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_flat_and_working_order_are_inverse_permutations(family: Family, layout: Layout, dtype: str) -> None:
    bound = family.bind(layout, dtype)
    numbers = np.arange(1.0, bound.n_params + 1)
    work = bound.from_flat(numbers)
    assert work.dtype == dtype
    np.testing.assert_array_equal(np.sort(work), numbers)
    np.testing.assert_array_equal(bound.to_flat(work), numbers)
    np.testing.assert_array_equal(bound.from_flat(bound.to_flat(numbers.astype(dtype))), numbers)
    on_host = bound.flat_on_host(work)
    assert on_host.dtype == np.float64
    assert not np.shares_memory(on_host, work)
    flat = random_flat(family, layout).astype(dtype)
    expected = np.diag(dense_parameters(family, layout, flat)[1])
    np.testing.assert_array_equal(bound.from_flat(flat)[bound.diagonal], expected)


# ---- transform and pullback --------------------------------------------------------------------------------
@each_family
@each_layout
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_transform_is_m_plus_c_u(family: Family, layout: Layout, dtype: str, tolerance: float) -> None:
    bound = family.bind(layout, dtype)
    flat = random_flat(family, layout)
    noise = np.random.default_rng(1).normal(size=(5, layout.dim)).astype(dtype)
    points = transformed(bound, flat, noise)
    assert points.dtype == dtype
    location, scale = dense_location_scale(family, layout, flat)
    np.testing.assert_allclose(points, location + noise.astype(float) @ scale.T, atol=20 * tolerance, rtol=tolerance)
    np.testing.assert_allclose(bound.scale(flat).toarray(), scale, atol=1e-13)
    np.testing.assert_allclose(bound.location(flat), location, atol=1e-13)
    np.testing.assert_allclose(bound.standardize(bound.from_flat(flat), points), noise, atol=3000 * tolerance)


@pytest.mark.parametrize("family", [MeanField(), Structured(), FullRank()], ids=lambda f: f.name)
@each_layout
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_pullback_is_the_pattern_of_g_times_u(family: Family, layout: Layout, dtype: str, tolerance: float) -> None:
    bound = family.bind(layout, dtype)
    rng = np.random.default_rng(2)
    noise, slopes = rng.normal(size=(2, 6, layout.dim)).astype(dtype)
    found = pulled_back(bound, random_flat(family, layout), noise, slopes)
    u, g = noise.astype(float), slopes.astype(float)
    outer = sum(np.outer(g[k], u[k]) for k in range(6))
    expected = np.concatenate([g.sum(axis=0), outer.T[dense_mask(family.name, layout).T]])
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=20 * tolerance)


def test_full_rank_panels_agree_when_there_are_several() -> None:
    """With 700 coordinates the triangle is unpacked in several panels."""
    layout = Layout(3, 697, 1)
    bound = FullRank().bind(layout)
    assert bound._width < layout.dim  # type: ignore[attr-defined]
    rng = np.random.default_rng(5)
    flat = rng.normal(size=bound.n_params)
    location, scale = dense_parameters(FullRank(), layout, flat)
    noise, slopes = rng.normal(size=(2, 3, layout.dim))
    np.testing.assert_allclose(transformed(bound, flat, noise), location + noise @ scale.T, rtol=1e-10, atol=1e-10)
    expected = (slopes.T @ noise).T[dense_mask("full-rank", layout).T]
    np.testing.assert_allclose(pulled_back(bound, flat, noise, slopes)[layout.dim :], expected, rtol=1e-12, atol=1e-12)


# ---- density and entropy -----------------------------------------------------------------------------------
@each_layout
@pytest.mark.parametrize("base", BASES, ids=str)
@each_family
def test_log_q_and_entropy_are_scipys(family: Family, layout: Layout, base: Any) -> None:
    family = replace(family, base=base)  # type: ignore[call-arg]
    bound = family.bind(layout)
    flat = random_flat(family, layout)
    work = bound.from_flat(flat)
    location, scale = dense_location_scale(family, layout, flat)
    points = location + np.random.default_rng(6).normal(size=(5, layout.dim)) @ scale.T
    log_det = np.linalg.slogdet(scale)[1]
    u = np.linalg.solve(scale, (points - location).T).T
    expected = standard(base).logpdf(u).sum(axis=1) - log_det
    kept = points.copy()
    np.testing.assert_allclose(bound.log_q(work, points), expected, rtol=1e-10)
    entropy = layout.dim * float(standard(base).entropy()) + log_det
    np.testing.assert_allclose(bound.entropy(work), entropy, rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(points, kept)


def test_entropy_of_a_singular_scale_is_minus_infinity_without_a_warning() -> None:
    layout = Layout(1, 2, 1)
    for family in FAMILIES:
        bound = family.bind(layout)
        work = bound.from_flat(random_flat(family, layout))
        work[np.arange(work.size)[bound.diagonal][1]] = 0.0
        assert bound.entropy(work) == -np.inf


# ---- location and scale ------------------------------------------------------------------------------------
@each_family
@each_layout
def test_flat_from_location_and_scale_is_the_inverse_of_both(family: Family, layout: Layout) -> None:
    bound = family.bind(layout)
    flat = random_flat(family, layout, seed=10)
    before = flat.copy()
    back = bound.flat_from_location_scale(bound.location(flat), bound.scale(flat))
    np.testing.assert_allclose(back, flat, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(flat, before)


@pytest.mark.parametrize("entry", [(0, 1), (4, 2), (2, 3)])
def test_scale_entries_outside_the_pattern_are_refused(entry: tuple[int, int]) -> None:
    layout = Layout(1, 2, 2)  # z; y_1 = 1, 2; y_2 = 3, 4
    scale = np.eye(5)
    scale[entry] = 0.1
    with pytest.raises(InputError, match="structured family does not have"):
        Structured().bind(layout).flat_from_location_scale(np.zeros(5), csc_array(scale))


@each_family
@each_layout
def test_start_is_the_given_location_and_a_multiple_of_the_identity(family: Family, layout: Layout) -> None:
    location = np.arange(1.0, layout.dim + 1)
    flat = family.bind(layout).initial_flat(location, 0.25)
    found, scale = dense_location_scale(family, layout, flat)
    np.testing.assert_allclose(found, location, atol=1e-14)
    np.testing.assert_array_equal(scale, 0.25 * np.eye(layout.dim))


# ---- memory ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("local_dim", [1, 3])
@pytest.mark.parametrize("standardized", [True, False])
def test_structured_memory_grows_linearly_with_the_locals(local_dim: int, standardized: bool) -> None:
    family = Structured(standardized=standardized)

    def use(layout: Layout) -> None:
        bound = family.bind(layout)
        flat = bound.initial_flat(np.zeros(layout.dim), 1.0)
        noise = np.ones((2, layout.dim))
        points = transformed(bound, flat, noise)
        pulled_back(bound, flat, noise, points)
        work = bound.from_flat(flat)
        bound.log_q(work, points)
        bound.entropy(work)
        bound.scale(flat)
        bound.location(flat)

    use(Layout(4, 10, local_dim))  # imports
    small, large = (Layout(4, n_local, local_dim) for n_local in (5_000, 10_000))
    half, full = (peak_memory(lambda layout=layout: use(layout)) for layout in (small, large))  # type: ignore[misc]
    assert full < 2.2 * half
    assert full < 30 * 8 * family.n_params(large)  # a d x d array would be hundreds of times as much


# ---- properties over layouts -------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(layouts, st.integers(0, 2**20), st.sampled_from(FAMILIES))
def test_any_layout_agrees_with_dense_algebra(layout: Layout, seed: int, family: Family) -> None:
    bound = family.bind(layout)
    flat = random_flat(family, layout, seed)
    assert flat.size == bound.n_params == layout.dim + dense_mask(family.name, layout).sum()
    location, scale = dense_location_scale(family, layout, flat)
    noise, slopes = np.random.default_rng(seed).normal(size=(2, 3, layout.dim))
    points = transformed(bound, flat, noise)
    np.testing.assert_allclose(points, location + noise @ scale.T, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(bound.to_flat(bound.from_flat(flat)), flat)
    log_det = bound.entropy(bound.from_flat(flat)) - layout.dim * bound.base.entropy
    np.testing.assert_allclose(log_det, np.linalg.slogdet(scale)[1], rtol=1e-10, atol=1e-10)
    # the pullback is the adjoint of the transform's differential; points are at most bilinear in the
    # parameters, so that a central difference along a random direction is exact
    direction = np.random.default_rng(seed + 1).normal(size=flat.size)
    change = transformed(bound, flat + direction / 2, noise) - transformed(bound, flat - direction / 2, noise)
    np.testing.assert_allclose(
        pulled_back(bound, flat, noise, slopes) @ direction, (slopes * change).sum(), rtol=1e-8, atol=1e-8
    )


@each_family
@pytest.mark.parametrize("base", BASES, ids=str)
def test_globals_drawn_alone_are_their_noise_through_the_first_rows_of_the_scale(family: Family, base: Any) -> None:
    layout = Layout(4, 3, 2)
    bound = replace(family, base=base).bind(layout)  # type: ignore[call-arg]
    flat = random_flat(family, layout, seed=3)
    noise = np.empty((50, 4))
    bound.base.fill(np.random.default_rng(8), noise)
    expected = flat[:4] + noise @ bound.scale(flat).toarray()[:4, :4].T
    np.testing.assert_allclose(bound.draw_globals(flat, np.random.default_rng(8), 50), expected, rtol=1e-13, atol=1e-13)


def test_globals_of_a_mean_field_are_drawn_without_their_matrix() -> None:
    layout = Layout(4_000, 1, 1)
    bound = MeanField().bind(layout)
    flat = np.random.default_rng(4).uniform(0.5, 1.5, 2 * layout.dim)
    assert peak_memory(lambda: bound.draw_globals(flat, np.random.default_rng(8), 10)) < 1e6  # the matrix: 128 MB


# ---- names -------------------------------------------------------------------------------------------------
@each_family
@pytest.mark.parametrize("base", BASES, ids=str)
def test_config_rebuilds_the_family(family: Family, base: Any) -> None:
    family = replace(family, base=base)  # type: ignore[call-arg]
    assert family_from_config(json.loads(json.dumps(family.config()))) == family


def test_names_give_the_default_families() -> None:
    assert [get_family(name) for name in ("mean-field", "structured", "full-rank")] == [*FAMILIES[:2], FAMILIES[3]]
    chosen = Structured(base="laplace")
    assert get_family(chosen) is chosen


@pytest.mark.parametrize("value", ["no", 2, None])
def test_standardized_must_be_true_or_false(value: Any) -> None:
    with pytest.raises(InputError, match="standardized"):
        Structured(standardized=value)
