"""The isotropic Gaussian against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from model_checks import assert_float32_agrees
from scipy import stats

from pyturingvi.errors import InputError
from pyturingvi.models import IsotropicGaussian


def draws(model: IsotropicGaussian, n: int = 20) -> np.ndarray:
    return np.random.default_rng(0).normal(2.0, 3.0, size=(n, model.dim))


def test_log_density_is_the_sum_of_scipys_normal_densities() -> None:
    model = IsotropicGaussian(300)
    assert (model.dim, model.layout.n_global, model.layout.local_dim) == (905, 5, 3)
    points = draws(model)
    expected = stats.norm.logpdf(points, 5.0, np.sqrt(0.1)).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)
    assert_float32_agrees(model, points, 1e-5, 1e-5)


def test_mean_and_variance_are_used() -> None:
    model = IsotropicGaussian(2, n_global=1, local_dim=4, mean=-1.5, variance=2.0)
    points = draws(model)
    expected = stats.norm.logpdf(points, -1.5, np.sqrt(2.0)).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)


def test_natural_variables_hold_the_flat_vector_in_order() -> None:
    model = IsotropicGaussian(2, n_global=1, local_dim=2)
    natural = model.constrain(np.arange(5.0))
    np.testing.assert_array_equal(natural["z"], [[0.0]])
    np.testing.assert_array_equal(natural["y"], [[[1.0, 2.0], [3.0, 4.0]]])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"variance": 0.0}, "variance"),
        ({"variance": float("nan")}, "variance"),
        ({"mean": float("inf")}, "mean"),
        ({"mean": "five"}, "mean"),
        ({"n_local": -1}, "n_local"),
        ({"n_local": 2.5}, "n_local"),
        ({"n_local": 0, "n_global": 0}, "at least one variable"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        IsotropicGaussian(**{"n_local": 3, **arguments})
