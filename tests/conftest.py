"""Small models that several test files fit."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from targets import GaussianTarget, hierarchical_normal

import pyturingvi as tv

matplotlib.use("Agg")


@pytest.fixture
def gaussian_target() -> GaussianTarget:
    return hierarchical_normal()


@pytest.fixture
def isotropic() -> tv.models.IsotropicGaussian:
    return tv.models.IsotropicGaussian(4, n_global=2, local_dim=3)


@pytest.fixture
def poisson() -> tv.models.RobustPoisson:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(30, 2))
    return tv.models.RobustPoisson(x, rng.poisson(np.exp(0.3 + x @ [0.5, -0.4])))


@pytest.fixture
def irt() -> tv.models.ItemResponse:
    rng = np.random.default_rng(6)
    answers = (rng.uniform(size=(20, 5)) < 0.6).astype(float)
    answers[3, 2] = np.nan
    return tv.models.ItemResponse(answers)


@pytest.fixture
def volatility() -> tv.models.StochasticVolatility:
    return tv.models.StochasticVolatility(np.random.default_rng(7).normal(size=(12, 2)))


@pytest.fixture(params=["isotropic", "poisson", "irt", "volatility"])
def bundled_model(request: pytest.FixtureRequest) -> tv.models.Model:
    return request.getfixturevalue(request.param)
