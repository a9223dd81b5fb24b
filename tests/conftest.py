"""Small models that several test files fit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import matplotlib
import numpy as np
import pytest
from targets import GaussianTarget, hierarchical_normal

import pyturingvi as tv

matplotlib.use("Agg")

# a shell starts its background jobs with SIGINT ignored, which the processes that tests interrupt would inherit
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _only_marked_tests_find_julia(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Tests marked `julia` use the environment that is set up; all others see a machine without one."""
    from pyturingvi.bridge.environment import VARIABLES, examine_environment, find_environment
    from pyturingvi.errors import EngineError

    if request.node.get_closest_marker("julia") is None:
        monkeypatch.setenv("PYTURINGVI_CONFIG", str(tmp_path_factory.getbasetemp() / "no-settings"))
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        return
    try:
        environment = find_environment()
    except EngineError as error:
        pytest.skip(f"no Julia: {error}")
    if environment is None:
        pytest.skip("no Julia: none is set up (`pyturingvi setup`)")
    for problem in examine_environment(environment):
        pytest.skip(f"no Julia: {problem}")


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """One thread of this process: no processes to start."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


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
