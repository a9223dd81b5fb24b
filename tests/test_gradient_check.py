"""The check of a gradient: mistakes are refused with their coordinate, and nothing right is refused for its noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyturingvi.errors import InputError
from pyturingvi.models.gradient_check import check_gradient

Density = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def check(density: Density, dim: int, n_global: int = 0, centre: float = 0.0) -> int:
    """Number of points at which it was called."""
    calls = []

    def counted(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        calls.append(len(points))
        with np.errstate(all="ignore"):
            return density(points)

    check_gradient(counted, np.full(dim, centre), n_global, lambda k: f"<{k}>", "fn")
    return sum(calls)


def smooth(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return -(x**4).sum(axis=1) / 4 - 0.5 * (x**2).sum(axis=1), -(x**3) - x


def with_mistake(dim: int, coordinate: int, factor: float) -> Density:
    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = smooth(x)
        slope[:, coordinate] *= factor
        return value, slope

    return density


# ---- what is refused ---------------------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d - 1), st.integers(0, d))),
    st.sampled_from([-1.0, 0.0, 0.5, 0.9, 1.1, 2.0]),
)
def test_a_mistake_in_one_coordinate_is_found_and_named(case: tuple[int, int, int], factor: float) -> None:
    dim, coordinate, n_global = case
    with pytest.raises(InputError, match=rf"fn returned a wrong gradient: with respect to <{coordinate}> it is"):
        check(with_mistake(dim, coordinate, factor), dim, n_global)


def test_a_mistake_is_found_among_very_many_coordinates() -> None:
    for coordinate in (3, 2_345):
        with pytest.raises(InputError, match=f"<{coordinate}>"):
            check(with_mistake(5_000, coordinate, -1.0), 5_000, 10)


def test_a_mistake_is_not_hidden_by_steep_coordinates() -> None:
    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = with_mistake(30, 0, 2.0)(x)
        return value - 5e5 * (x[:, 5:] ** 2).sum(axis=1), slope - 1e6 * x * (np.arange(30) >= 5)

    with pytest.raises(InputError, match="<0>"):
        check(density, 30)


def test_the_gradient_of_the_negative_log_density_is_told_by_its_sign() -> None:
    with pytest.raises(InputError, match="opposite sign: is it that of the negative log density"):
        check(lambda x: (smooth(x)[0], -smooth(x)[1]), 10, 2)


@pytest.mark.parametrize("wrong", [lambda g: 0 * g, lambda g: g + 1e-2, lambda g: g[:, ::-1], lambda g: 1.02 * g])
def test_mistakes_in_all_coordinates_are_refused(wrong: Callable) -> None:
    with pytest.raises(InputError, match="wrong gradient"):
        check(lambda x: (smooth(x)[0], wrong(smooth(x)[1])), 10, 2)


# ---- what is not -------------------------------------------------------------------------------------------------
def poisson32(dim: int, size: float, shift: float) -> Density:
    """A Poisson regression in single precision, on covariates of a size; the log density is moved by a constant."""
    rng = np.random.default_rng(dim)
    covariates = (size * rng.normal(size=(200, dim))).astype(np.float32)
    counts = rng.poisson(3, 200)

    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        eta = x.astype(np.float32) @ covariates.T
        value = (counts * eta - np.exp(eta)).sum(axis=1, dtype=np.float32) + np.float32(shift)
        return value.astype(float), ((counts - np.exp(eta)) @ covariates).astype(float)

    return density


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e5, 1e7, 1e9])
@pytest.mark.parametrize("size", [0.01, 0.1, 1.0])
def test_single_precision_is_no_mistake(size: float, shift: float) -> None:
    for dim in (1, 2, 5, 40):
        check(poisson32(dim, size, shift), dim, dim // 2)


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-6, 1e-9])
def test_noise_is_no_mistake(noise: float) -> None:
    rng = np.random.default_rng(0)

    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = smooth(x)
        return value + noise * rng.normal(size=len(x)), slope

    for dim in [1, 2, 20] * 10:
        check(density, dim, dim // 3)


def piecewise_linear(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    planes = np.random.default_rng(9).normal(size=(300, x.shape[1]))
    heights = x @ planes.T
    return -np.maximum(heights, 0).sum(axis=1), -((heights > 0) @ planes)


def log_normal(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return -(0.5 * np.log(x) ** 2 + np.log(x)).sum(axis=1), -(np.log(x) + 1) / x


@pytest.mark.parametrize(
    ("density", "centre"),
    [
        (smooth, 0.0),
        (smooth, -10.0),
        (lambda x: (-np.abs(x).sum(axis=1), -np.sign(x)), 0.0),  # Laplace
        (piecewise_linear, 0.0),
        (lambda x: (np.floor(3 * x).sum(axis=1), 0 * x), 0.0),  # steps
        (lambda x: (smooth(x)[0] + np.floor(3 * x).sum(axis=1), smooth(x)[1]), 0.0),
        (lambda x: (-5e11 * (x**2).sum(axis=1) - np.exp(100 * x).sum(axis=1), -1e12 * x - 100 * np.exp(100 * x)), 0.0),
        (lambda x: (np.where(np.abs(x).max(axis=1) < 1, 0.0, -np.inf), 0 * x), 0.0),  # uniform on a box
        (log_normal, 1.0),
        (log_normal, 0.0),  # not defined below 0: nothing can be tried
        (lambda x: (np.full(len(x), np.nan), np.full(x.shape, np.nan)), 0.0),
        (lambda x: (-np.exp(500 * x).sum(axis=1), -500 * np.exp(500 * x)), 0.0),  # overflows close by
    ],
)
def test_what_is_right_passes_however_rough_it_is(density: Density, centre: float) -> None:
    for dim, n_global in ((1, 0), (8, 2), (8, 8), (300, 5)):
        check(density, dim, n_global, centre)


def test_a_right_gradient_takes_ten_evaluations() -> None:
    assert {check(smooth, dim, n_global) for dim, n_global in ((1, 1), (8, 2), (5000, 20))} == {10}


def test_a_kink_right_beside_the_point_is_no_mistake() -> None:
    """The very points that are tried lie on kinks: differences agree there with each other, and with no slope."""
    first = []

    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not first:
            first.append(x.copy())
        away = x[:, None, :] - (first[0] - 1e-12)
        return -np.abs(away).sum(axis=(1, 2)), -np.sign(away).sum(axis=1)

    for dim in (1, 6):
        first.clear()
        check(density, dim, dim // 2)
