"""The numpy models against values recorded from real Julia runs (`julia_reference/record.py`)."""

import json
from pathlib import Path

import numpy as np
import pytest

import pyturingvi as tv

RECORDED = np.load(Path(__file__).parent / "julia_reference" / "models.npz", allow_pickle=False)


def model_of(name: str) -> tv.models.Model:
    data = {key.split(".")[-1]: RECORDED[key] for key in RECORDED.files if key.startswith(f"{name}.data.")}
    if name == "gaussian":
        return tv.models.IsotropicGaussian(4)
    kinds = {
        "rpoisson": tv.models.RobustPoisson,
        "irt": tv.models.ItemResponse,
        "volatility": tv.models.StochasticVolatility,
    }
    return kinds[name](**data)


@pytest.mark.parametrize("name", ["gaussian", "rpoisson", "irt", "volatility"])
def test_log_density_and_gradient_equal_julias(name: str) -> None:
    value, gradient = model_of(name).log_density_and_gradient(RECORDED[f"{name}.points"])
    expected = RECORDED[f"{name}.gradient"]
    np.testing.assert_allclose(value, RECORDED[f"{name}.log_density"], rtol=1e-10)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-10 * abs(expected).max())


def test_the_record_says_what_it_was_made_with() -> None:
    about = json.loads(str(RECORDED["about"]))
    assert tuple(int(part) for part in about["julia"].split(".")[:2]) >= (1, 10)
    assert about["zygote"]
    assert about["date"]


PATHS = np.load(Path(__file__).parent / "julia_reference" / "paths.npz", allow_pickle=False)
FAMILIES = {
    "mean-field": tv.MeanField(),
    "structured": tv.Structured(),
    "structured-ns": tv.Structured(standardized=False),
    "full-rank": tv.FullRank(),
}
RULES = {"adam": tv.Adam(1e-2), "proximal_sgd": tv.ProximalSGD(1e-4)}


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("name", ["gaussian", "rpoisson", "irt", "volatility"])
def test_the_same_noise_leads_to_julias_parameters_after_200_updates(name: str, family: str, rule: str) -> None:
    noise = PATHS[f"{name}.noise"].astype(float)
    fit = tv.fit(
        model_of(name),
        FAMILIES[family],
        RULES[rule],
        n_iterations=noise.shape[0],
        n_samples=noise.shape[1],
        noise=noise,
        elbo_every=50,
        elbo_samples=512,
        engine="numpy",
        progress=False,
    )
    assert fit.status == "completed"
    np.testing.assert_allclose(fit.params, PATHS[f"{name}.{family}.{rule}"], rtol=0, atol=1e-8)
    if rule == "adam":  # the draws behind an ELBO are each engine's own
        iterations, elbo, error = PATHS[f"{name}.{family}.elbo"].T
        np.testing.assert_array_equal(fit.elbo["iteration"], iterations)
        assert (abs(fit.elbo["elbo"] - elbo) < 4 * np.hypot(fit.elbo["std_error"], error)).all()
