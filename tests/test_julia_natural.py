"""Natural gradients with `engine="julia"`: the NumPy engine's steps, and the same promises about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_checks import FAMILIES
from test_markov_natural import NUTS, simulated_returns

import pyturingvi as tv
from pyturingvi.engines.julia_natural import JuliaNaturalStepper
from pyturingvi.engines.numpy_natural import NumpyNaturalStepper
from pyturingvi.errors import EngineError
from pyturingvi.optimize.natural_leg import Leg
from pyturingvi.optimize.natural_stepper import NaturalStepper
from pyturingvi.settings import Settings
from pyturingvi.support.parallel import Workers

pytestmark = pytest.mark.julia
BASES: list[Any] = ["gaussian", "laplace", ("student_t", 8)]


def fit(model: tv.models.Model, family: Any = "structured", **changes: Any) -> tv.Fit:
    settings: dict[str, Any] = {"optimizer": tv.NaturalGradient(), "engine": "julia", "progress": False}
    return tv.fit(model, family, **{**settings, **changes})


def both(model: tv.models.Model, family: Any, **settings: Any) -> tuple[tv.Fit, tv.Fit]:
    found, expected = (fit(model, family, engine=name, **settings) for name in ("julia", "numpy"))
    assert (found.engine, expected.engine) == ("julia", "numpy")
    assert (found.status, found.n_updates) == (expected.status, expected.n_updates)
    return found, expected


def larger_models() -> dict[str, tv.models.Model]:
    """Where Julia's loops go in pieces: several tiles of rows, panels of abilities, blocks of times."""
    table = np.random.default_rng(11)
    x = table.normal(size=(700, 3))
    answers = (table.uniform(size=(300, 6)) < 0.6).astype(float)
    return {
        "poisson": tv.models.RobustPoisson(x, table.poisson(np.exp(x @ [0.3, -0.2, 0.1]))),
        "irt": tv.models.ItemResponse(answers),
        "volatility": tv.models.StochasticVolatility(0.1 * table.normal(size=(90, 3))),
    }


# ---- the same numbers as the NumPy engine -----------------------------------------------------------------
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.label} {family!r}"[:60])
def test_the_same_noise_leads_to_the_same_parameters(
    bundled_model: tv.models.Model, family: tv.families.Family
) -> None:
    noise = np.random.default_rng(2).standard_normal((20, 24, bundled_model.dim))
    settings: dict[str, Any] = {"optimizer": tv.NaturalGradient(rate=0.1), "noise": noise, "n_iterations": 20}
    found, expected = both(bundled_model, family, n_samples=24, **settings)
    assert found.n_updates == 20
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-10 * abs(expected.params).max())


@pytest.mark.in_turn
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.label} {family!r}"[:60])
def test_the_globals_own_rate_makes_the_same_steps(bundled_model: tv.models.Model, family: tv.families.Family) -> None:
    """A plan never gives them one where the noise is given, so that the legs are given, too."""
    layout = bundled_model.layout
    noise = np.random.default_rng(5).standard_normal((30, 24, bundled_model.dim))
    settings = Settings(family=family, optimizer=tv.NaturalGradient(), n_samples=24, n_iterations=30)
    start = family.bind(layout).initial_flat(np.zeros(layout.dim), 0.1)

    def path(stepper: NaturalStepper, global_rate: float) -> tuple[np.ndarray, np.ndarray]:
        stepper.begin(family, {"params": start}, 0)
        rows = []
        for last, anneal_from, trust in ((10, -1, 0.5), (20, -1, 2.0), (30, 20, 2.0)):
            leg = Leg(last, 0.1, 0.9, trust, 24, False, anneal_from, global_rate)
            while stepper.done < last:
                more, finite = stepper.advance(leg)
                assert finite
                rows.append(more)
        return stepper.standardized(), np.concatenate(rows)

    runtime = tv.start_julia()
    julias = [path(JuliaNaturalStepper(runtime, bundled_model, settings, noise), rate) for rate in (0.3, 0.0)]
    with Workers(1) as workers:
        numpys = [path(NumpyNaturalStepper(bundled_model, settings, noise, workers), rate) for rate in (0.3, 0.0)]
    for (found, rows), (expected, expected_rows) in zip(julias, numpys, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * abs(expected).max())
        scale = np.maximum(np.nanmax(abs(expected_rows), axis=0), 1e-300)
        np.testing.assert_allclose(rows / scale, expected_rows / scale, rtol=0, atol=1e-9)
    own_block = isinstance(family, tv.Structured | tv.Markov)
    assert np.array_equal(julias[0][0], julias[1][0]) != own_block
    assert bool(julias[0][1][:, 5].all()) == own_block


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: repr(family)[:40])
def test_scales_that_are_far_too_wide_fall_by_the_same_steps(
    isotropic: tv.models.Model, family: tv.families.Family
) -> None:
    """Steps that would contract by more than a half, cut by each engine; the largest trust there is lets them pass."""
    layout = isotropic.layout
    noise = np.random.default_rng(6).standard_normal((6, 24, layout.dim))
    settings = Settings(family=family, optimizer=tv.NaturalGradient(), n_samples=24, n_iterations=6)
    start = family.bind(layout).initial_flat(np.zeros(layout.dim), 30.0)

    def end(stepper: NaturalStepper) -> np.ndarray:
        stepper.begin(family, {"params": start}, 0)
        while stepper.done < 6:
            assert stepper.advance(Leg(6, 0.5, 0.0, 1e9, 24, False, -1, 0.0))[1]
        return stepper.standardized()

    with Workers(1) as workers:
        expected = end(NumpyNaturalStepper(isotropic, settings, noise, workers))
    found = end(JuliaNaturalStepper(tv.start_julia(), isotropic, settings, noise))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * abs(expected).max())
    sds = np.abs(family.bind(layout).scale(expected).diagonal()) if isinstance(family, tv.MeanField) else None
    assert sds is None or sds.min() >= 30 / 2**6 * (1 - 1e-9)


@pytest.mark.parametrize("family", ["structured", "markov"])
@pytest.mark.parametrize("name", ["poisson", "irt", "volatility"])
def test_so_it_does_in_pieces(name: str, family: str) -> None:
    model = larger_models()[name]
    noise = np.random.default_rng(3).standard_normal((20, 60, model.dim))
    settings: dict[str, Any] = {"optimizer": tv.NaturalGradient(rate=0.1), "noise": noise, "n_iterations": 20}
    found, expected = both(model, family, n_samples=60, **settings)
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-10 * abs(expected.params).max())


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", [tv.Structured, tv.Markov])
@pytest.mark.parametrize("base", BASES, ids=str)
def test_every_base_and_float32(irt: tv.models.Model, base: Any, kind: Any) -> None:
    noise = np.random.default_rng(4).laplace(scale=np.sqrt(0.5), size=(20, 24, irt.dim))
    settings: dict[str, Any] = {"optimizer": tv.NaturalGradient(rate=0.1), "noise": noise, "n_iterations": 20}
    family = kind(base=base)
    found, expected = both(irt, family, n_samples=24, **settings)
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-10 * abs(expected.params).max())
    single = fit(irt, family, n_samples=24, dtype="float32", **settings)
    np.testing.assert_allclose(single.params, expected.params, rtol=0, atol=1e-3 * abs(expected.params).max())
    assert not np.array_equal(single.params, found.params)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.label} {family!r}"[:60])
def test_own_noise_ends_at_the_same_elbo(poisson: tv.models.Model, family: tv.families.Family) -> None:
    found, expected = (fit(poisson, family, engine=name, elbo_samples=8192) for name in ("julia", "numpy"))
    assert found.status == expected.status == "converged"
    last, wanted = found.elbo.iloc[-1], expected.elbo.iloc[-1]
    # the noise that the steps leave may cost a tenth of a nat
    assert abs(last.elbo - wanted.elbo) < 4 * np.hypot(last.std_error, wanted.std_error) + 0.2
    # the reported value is that of the reported parameters, estimated again from draws and densities in Python
    draws = found.sample_unconstrained(8192, seed=3)
    values = poisson.log_density(draws) - found.log_q(draws)
    error = values.std() / np.sqrt(values.size)
    assert abs(values.mean() - last.elbo) < 4 * np.hypot(error, last.std_error)


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
@pytest.mark.parametrize("seed", NUTS)
def test_volatility_is_fitted_as_the_numpy_engine_does_it_where_nothing_is_said(seed: int) -> None:
    """The markov family from two starts, and phi and tau within half a standard deviation of NUTS.

    The ELBO is flat along tau: whether the two starts end near each other, or are warned of, is up to their noise.
    """
    model = tv.models.StochasticVolatility(simulated_returns(seed)[:, None])
    found, expected = (tv.fit(model, engine=name, progress=False) for name in ("julia", "numpy"))
    assert (found.engine, expected.engine) == ("julia", "numpy")
    assert found.family == expected.family == tv.Markov()
    assert found.status == "converged"
    assert found.starts is not None
    assert set(found.starts.names) == {"usual", "persistent"}
    last, wanted = found.elbo.iloc[-1], expected.elbo.iloc[-1]
    assert abs(last.elbo - wanted.elbo) < 4 * np.hypot(last.std_error, wanted.std_error) + 0.2
    for name, (mean, sd) in zip(("phi[series1]", "tau[series1]"), NUTS[seed], strict=True):
        assert abs(found.summary().loc[name, "mean"] - mean) < sd / 2


# ---- runs -------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:.*The fit converged, but do not trust it")  # of a short series
def test_the_seed_gives_the_same_fit_again_and_another_gives_another(bundled_model: tv.models.Model) -> None:
    one, two, other = (fit(bundled_model, seed=seed, n_iterations=100) for seed in (5, 5, 10**30))
    np.testing.assert_array_equal(one.params, two.params)
    assert not np.array_equal(one.params, other.params)


@pytest.mark.parametrize("family", [*FAMILIES[1:4], FAMILIES[-1]], ids=lambda family: f"{family.label} {family!r}"[:60])
def test_a_stopped_run_resumes_to_the_numbers_of_an_uninterrupted_one(
    poisson: tv.models.Model, tmp_path: Path, family: tv.families.Family
) -> None:
    whole = fit(poisson, family)
    stopped = fit(poisson, family, checkpoint=tmp_path / "run.npz", callback=lambda i, e: i >= whole.n_updates // 2)
    assert stopped.status == "interrupted"
    assert stopped.n_updates < whole.n_updates
    resumed = fit(poisson, family, checkpoint=tmp_path / "run.npz")
    assert (resumed.status, resumed.n_updates) == (whole.status, whole.n_updates)
    np.testing.assert_array_equal(resumed.params, whole.params)


def test_julia_refuses_a_gpu(poisson: tv.models.Model) -> None:
    with pytest.raises(EngineError, match=r"engine='julia' cannot run natural gradients on a GPU; use engine='numpy'"):
        fit(poisson, device="cuda")
