"""A user's own function as a model: what it must return, and what happens when it does not."""

from __future__ import annotations

import numpy as np
import pytest
from model_checks import assert_gradient_is_the_slope, assert_round_trip

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models import LogDensity
from pyturingvi.settings import model_digest

LAYOUT = Layout(n_global=2, n_local=3, local_dim=2)


def quartic(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return -(points**4).sum(axis=1) / 4, -(points**3)


def test_values_and_gradients_are_the_functions_own() -> None:
    model = LogDensity(quartic, LAYOUT)
    points = np.random.default_rng(0).normal(size=(5, 8))
    np.testing.assert_allclose(model.log_density(points), -(points**4).sum(axis=1) / 4, rtol=1e-15)
    np.testing.assert_allclose(model.gradient(points), -(points**3), rtol=1e-15)
    assert_gradient_is_the_slope(model, points, np.eye(8))
    assert_round_trip(model, points)


def test_float32_points_reach_the_function_as_float64_and_the_gradient_comes_back_as_float32() -> None:
    seen = []

    def spy(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append(points.dtype)
        return quartic(points)

    model = LogDensity(spy, LAYOUT)
    density, gradient = model.log_density_and_gradient(np.ones((2, 8), dtype=np.float32))
    assert set(seen) == {np.dtype(np.float64)}
    assert (density.dtype, gradient.dtype) == (np.float64, np.float32)


def test_a_function_may_write_into_its_argument_and_reuse_its_buffers() -> None:
    buffer = {}

    def careless(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = quartic(points)
        points[...] = np.nan
        kept = buffer.setdefault(points.shape, (value, gradient))
        kept[0][...], kept[1][...] = value, gradient
        return kept

    model = LogDensity(careless, LAYOUT)
    points = np.ones((2, 8))
    first = model.log_density_and_gradient(points)
    model.log_density_and_gradient(2 * points)
    np.testing.assert_array_equal(points, 1.0)
    np.testing.assert_array_equal(first[0], -2.0)
    np.testing.assert_array_equal(first[1], -1.0)


def test_values_that_are_not_finite_far_out_pass_through() -> None:
    def bounded(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(np.abs(points).max(axis=1) < 1, 0.0, -np.inf), 0 * points

    model = LogDensity(bounded, LAYOUT)
    np.testing.assert_array_equal(model.log_density(np.array([[0.5] * 8, [2.0] * 8])), [0.0, -np.inf])


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: -x, "two arrays"),
        (lambda x: (quartic(x)[0].sum(), quartic(x)[1]), r"log density of shape \(3,\)"),
        (lambda x: (quartic(x)[0][:, None], quartic(x)[1]), r"log density of shape \(3,\)"),
        (lambda x: (quartic(x)[0], quartic(x)[1].T), r"gradient of shape \(3, 8\) .* returned \(8, 3\)"),
        (lambda x: (quartic(x)[0], quartic(x)[1][0]), r"gradient of shape \(3, 8\)"),
        (lambda x: (quartic(x)[0] * 1j, quartic(x)[1]), "complex"),
        (lambda x: (quartic(x)[0], None), "dtype object"),
        ("not a function", "fn must be a function"),
    ],
)
def test_a_function_that_breaks_the_contract_is_refused_at_construction(fn: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        LogDensity(fn, LAYOUT)


def test_a_transposed_gradient_is_found_whatever_the_dimension() -> None:
    for dim in (2, 3, 4):
        with pytest.raises(InputError, match="gradient of shape"):
            LogDensity(lambda x: (quartic(x)[0], quartic(x)[1].T), Layout(dim, 0, 0))


def log_normal(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard log-normal variables as they are, not their logarithms: nothing is defined at 0 and below."""
    logs = np.log(points)
    return -(0.5 * logs**2 + logs).sum(axis=1), -(logs + 1) / points


def test_a_function_need_not_be_defined_near_0_where_the_fit_starts_elsewhere() -> None:
    model = LogDensity(log_normal, LAYOUT)
    fit = tv.fit(model, tv.MeanField(), tv.Adam(1e-3), n_iterations=20, init_location=1.0, progress=False)
    assert fit.status == "completed"
    assert np.isfinite(fit.elbo["elbo"]).all()
    with pytest.raises(InputError, match=r"log density is .* at the starting location .* choose another init_location"):
        tv.fit(model, init_location=0.0, progress=False)


def test_functions_that_are_not_defined_near_0_are_told_apart_by_what_they_are_elsewhere() -> None:
    def another(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = log_normal(points)
        return 2 * value, 2 * gradient

    digests = [model_digest(LogDensity(fn, LAYOUT)) for fn in (log_normal, log_normal, another)]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_of_a_function_is_that_of_earlier_versions() -> None:
    def first_coordinate(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -points[:, 0], -np.eye(8)[np.zeros(len(points), dtype=int)]

    assert model_digest(LogDensity(first_coordinate, LAYOUT)) == "48af6cb96f1bc0ba"  # of the commit before


def test_a_wrong_shape_at_a_later_call_is_refused_too() -> None:
    calls = []

    def turncoat(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        calls.append(1)
        return quartic(points) if len(calls) == 1 else (np.zeros(1), np.zeros(1))

    model = LogDensity(turncoat, LAYOUT)
    with pytest.raises(InputError, match="shape"):
        model.gradient(np.zeros((2, 8)))


def test_an_error_inside_the_function_says_when_it_was_called() -> None:
    def broken(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        LogDensity(broken, LAYOUT)
    assert any("near 0 to check it. Where it is not defined it must return NaN" in n for n in caught.value.__notes__)


def test_names_label_the_globals_whether_given_for_all_or_for_the_globals() -> None:
    assert LogDensity(quartic, LAYOUT).global_labels == ["z[0]", "z[1]"]
    assert LogDensity(quartic, LAYOUT, names=["a", "b"]).global_labels == ["a", "b"]
    every = LogDensity(quartic, LAYOUT, names=list("abcdefgh"))
    assert every.global_labels == ["a", "b"]
    assert every.coords["global"] == ["a", "b"]


@pytest.mark.parametrize("names", [["a"], list("abc"), ["a", "a"], "ab"])
def test_names_of_a_wrong_length_or_twice_the_same_are_refused(names: list[str]) -> None:
    with pytest.raises(InputError, match="names"):
        LogDensity(quartic, LAYOUT, names=names)


def test_a_layout_is_required() -> None:
    with pytest.raises(InputError, match="layout"):
        LogDensity(quartic, (2, 3, 2))


def test_a_saved_model_keeps_its_variables_and_says_that_the_function_is_gone() -> None:
    model = LogDensity(quartic, LAYOUT, names=["a", "b"])
    restored = LogDensity.from_state(model.get_state())
    points = np.random.default_rng(1).normal(size=(3, 8))
    assert restored.global_labels == ["a", "b"]
    for name, value in model.constrain(points).items():
        np.testing.assert_array_equal(restored.constrain(points)[name], value)
    with pytest.raises(InputError, match="does not hold its function"):
        restored.log_density(points)
    with pytest.raises(InputError, match="does not hold its function"):
        restored.gradient(points)
