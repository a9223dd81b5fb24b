"""`device="cuda"`: the same code on CuPy arrays agrees with the CPU. Skipped where there is no GPU."""

import numpy as np
import pytest

import pyturingvi as tv
from pyturingvi.data.simulate import simulate_irt, simulate_rpoisson, simulate_volatility
from pyturingvi.errors import EngineError
from pyturingvi.support.array_namespace import namespace_for, to_numpy

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    try:
        return namespace_for("cuda")
    except EngineError as error:
        pytest.skip(str(error))


def models():
    return {
        "gaussian": tv.models.IsotropicGaussian(20),
        "rpoisson": tv.models.RobustPoisson(*simulate_rpoisson(50, seed=1)[:2]),
        "irt": tv.models.ItemResponse(simulate_irt(40, 6, seed=1)),
        "volatility": tv.models.StochasticVolatility(simulate_volatility(30, 3, seed=1)),
    }


@pytest.mark.parametrize("name", list(models()))
def test_log_density_and_gradient_agree_with_the_cpu(cupy, name):
    model = models()[name]
    points = 0.3 * np.random.default_rng(0).standard_normal((5, model.dim))
    value, slope = model.log_density_and_gradient(points)
    there_value, there_slope = model.log_density_and_gradient(cupy.asarray(points))
    np.testing.assert_allclose(to_numpy(there_value), value, rtol=1e-10)
    np.testing.assert_allclose(to_numpy(there_slope), slope, atol=1e-10 * abs(slope).max())


@pytest.mark.parametrize(
    "family", ["mean-field", "structured", "markov", "full-rank", tv.Structured(standardized=False)]
)
@pytest.mark.parametrize("name", list(models()))
def test_the_same_noise_gives_the_same_path(cupy, name, family):
    model = models()[name]
    noise = np.random.default_rng(0).standard_normal((30, 4, model.dim))
    settings = dict(n_iterations=30, n_samples=4, noise=noise, progress=False, elbo_samples=16)
    here = tv.fit(model, family, tv.Adam(1e-2), **settings)
    there = tv.fit(model, family, tv.Adam(1e-2), device="cuda", **settings)
    np.testing.assert_allclose(there.params, here.params, atol=1e-8)
