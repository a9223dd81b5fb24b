"""The family that a model chooses, and fits from each start that it asks for: the best is kept, the others are told."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import GaussianTarget, fit_at

import pyturingvi as tv
from pyturingvi.diagnosis.best_start import _search_line
from pyturingvi.diagnosis.starts import Starts, compare_starts
from pyturingvi.fitting import default_family
from pyturingvi.sweeps.grid import read_grid

QUIET: dict[str, Any] = {"progress": False, "engine": "numpy"}
disagreement_allowed = pytest.mark.filterwarnings("ignore:.*These ELBOs do not tell which is right")


def returns(n: int = 40, size: int = 1) -> np.ndarray:
    return 0.01 * np.random.default_rng(0).standard_t(4, size=(n, size))


class TwoModes(tv.models.Model):
    """Share 1/5 near -2, where the usual start leads, and 4/5 near 20."""

    layout = tv.Layout(n_global=1, n_local=0, local_dim=0)
    shares, centres = np.array([0.2, 0.8]), np.array([-2.0, 20.0])

    def _log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        terms = np.log(self.shares) + stats.norm.logpdf(points, self.centres)
        density = np.logaddexp(*terms.T)
        weights = np.exp(terms - density[:, None])
        return density, (weights * (self.centres - points)).sum(axis=1, keepdims=True)

    def starts(self, family: str) -> dict[str, tuple[np.ndarray, float]]:
        return {"far": (np.array([18.0]), 0.3)}


class Low(TwoModes):
    """Its further start leads to the lower mode."""

    centres = np.array([20.0, -2.0])


# ---- the family -------------------------------------------------------------------------------------------------
def test_volatility_is_fitted_with_markov_and_others_with_structured(
    poisson: tv.models.RobustPoisson, capsys: pytest.CaptureFixture[str]
) -> None:
    volatility = tv.models.StochasticVolatility(returns())
    few: dict[str, Any] = {"n_iterations": 5, "elbo_samples": 8}
    for model, name in ((volatility, "markov"), (poisson, "structured")):
        fit = tv.fit(model, **few, **QUIET)
        assert fit.family.name == fit.spec.family["family"] == name
        assert f": {name}, p=" in repr(fit)
        assert tv.fit(model, "mean-field", **few, **QUIET).family.name == "mean-field"
    tv.fit(volatility, engine="auto", device="cpu", progress=True, **few)
    shown = capsys.readouterr()
    assert "and the markov family of " in shown.err
    assert "volatility markov" in shown.err


def test_a_model_of_your_own_names_its_family() -> None:
    class Own(TwoModes):
        default_family = "mean-field"

    assert tv.fit(Own(), n_iterations=5, **QUIET).family == tv.MeanField()
    assert default_family(Own(), "julia") == tv.MeanField()


def test_a_named_engine_without_the_models_family_gets_the_structured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tv.models.StochasticVolatility(returns())
    assert default_family(model, "numpy") == tv.Markov()
    if "to_julia" in vars(tv.Markov):
        monkeypatch.delattr(tv.Markov, "to_julia")
    assert default_family(model, "auto") == tv.Markov()
    assert default_family(model, "julia") == tv.Structured()


def test_a_cell_of_a_sweep_is_structured_unless_it_says_otherwise() -> None:
    model = tv.models.StochasticVolatility(returns())
    plain, named = (
        read_grid({"model": model, "engine": "numpy", **family}) for family in ({}, {"family": "structured"})
    )
    assert [cell.name for cell in plain] == [cell.name for cell in named]


# ---- several starts ---------------------------------------------------------------------------------------------
@disagreement_allowed
def test_the_start_with_the_highest_elbo_is_kept(tmp_path: Path) -> None:
    heard: list[int] = []
    fit = tv.fit(TwoModes(), callback=lambda iteration, _: heard.append(iteration), **QUIET)
    assert fit.location == pytest.approx(20.0, abs=0.1)
    assert fit.starts is not None
    assert fit.starts.names == ["far", "usual"]
    np.testing.assert_allclose(fit.starts.elbos, np.log([0.8, 0.2]), atol=0.05)
    assert fit.starts.elbos[0] == fit.elbo["elbo"].iloc[-1]
    assert fit.spec.init["start"] == "far"
    assert heard.count(min(heard)) == 2  # the callback hears both runs
    again = tv.fit(TwoModes(), **QUIET)
    np.testing.assert_array_equal(again.params, fit.params)
    assert tv.load_fit(fit.save(tmp_path / "fit.npz"), TwoModes()).starts == fit.starts
    assert Starts.from_state({**asdict(fit.starts), "std_errors": [0.1, 0.1]}) == fit.starts  # of an earlier version


def test_starts_that_disagree_are_warned_of() -> None:
    class Equal(TwoModes):
        shares = np.array([0.5, 0.5])

    with pytest.warns(tv.ConvergenceWarning, match="do not tell which is right, and they differ by"):
        fit = tv.fit(Equal(), **QUIET)
    assert fit.starts is not None
    assert fit.warnings == [fit.starts.words]


@disagreement_allowed
def test_a_further_start_that_is_lower_ends_with_the_updates_of_the_first() -> None:
    heard: list[tuple[int, float]] = []
    fit = tv.fit(Low(), callback=lambda iteration, elbo: heard.append((iteration, elbo)), **QUIET)
    assert fit.location == pytest.approx(-2.0, abs=0.1)
    assert fit.starts is not None
    assert fit.starts.names == ["usual", "far"]
    assert fit.spec.init == {"location": 0.0, "scale": 0.1}
    alone = tv.fit(Low(), "structured", **QUIET)
    np.testing.assert_array_equal(alone.params, fit.params)
    begun = next(k for k in range(1, len(heard)) if heard[k][0] < heard[k - 1][0])
    assert max(iteration for iteration, _ in heard[begun:]) <= fit.n_updates + 10  # a leg more at most


@pytest.mark.parametrize(
    "given",
    [
        {"family": "structured"},
        {"optimizer": tv.Adam(0.1), "n_iterations": 20},
        {"n_iterations": 20},
        {"init_location": 1.0},
        {"init_scale": 0.2},
        {"init": np.array([1.0, 1.0])},
        {"noise": np.zeros((4, 2, 1)), "n_iterations": 4, "n_samples": 2},
    ],
    ids=lambda given: ", ".join(given),
)
def test_who_gives_a_start_or_a_budget_gets_that_alone(given: dict[str, Any]) -> None:
    fit = tv.fit(TwoModes(), **given, **QUIET)
    assert fit.starts is None
    assert (fit.location < 5).all()


def test_a_stop_during_a_further_start_keeps_the_first() -> None:
    runs = 0

    def stop_in_the_second(iteration: int, _: float) -> bool:
        nonlocal runs
        runs += iteration == 5
        return runs > 1

    fit = tv.fit(TwoModes(), callback=stop_in_the_second, **QUIET)
    assert runs > 1
    assert (fit.status, fit.starts) == ("converged", None)
    assert fit.location == pytest.approx(-2.0, abs=0.1)


@disagreement_allowed
def test_a_resumed_fit_is_that_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = tv.fit(TwoModes(), checkpoint=tmp_path / "whole.npz", **QUIET)
    tv.fit(TwoModes(), checkpoint=tmp_path / "run.npz", callback=lambda iteration, _: iteration >= 10, **QUIET)
    resumed = tv.fit(TwoModes(), checkpoint=tmp_path / "run.npz", **QUIET)
    np.testing.assert_array_equal(resumed.params, whole.params)
    assert resumed.starts == whole.starts


# ---- between two ends -------------------------------------------------------------------------------------------
def test_the_line_between_two_fits_is_searched_beyond_its_ends(gaussian_target: GaussianTarget) -> None:
    model, dim = gaussian_target.model, gaussian_target.layout.dim
    way = np.random.default_rng(1).normal(size=dim)
    way /= np.sqrt(way @ gaussian_target.precision @ way)

    def at(shift: float) -> tv.Fit:
        flat = np.concatenate([gaussian_target.mean + shift * way, np.full(dim, 0.5)])
        return fit_at(model, "mean-field", flat)

    for here, there in ((-0.8, 1.0), (0.5, 0.9), (0.9, 0.5)):
        kept = at(here)
        before = kept.params.copy()
        _search_line(kept, at(there))
        # the ELBO of a Gaussian is a parabola along the line, whose top is at the mean
        np.testing.assert_allclose(kept.location, gaussian_target.mean, atol=1e-8)
        np.testing.assert_array_equal(kept.params[dim:], before[dim:])
        gain = kept.elbo["elbo"].iloc[-1] - fit_elbo(gaussian_target, before)
        assert gain == pytest.approx(0.5 * here**2, abs=5 * kept.elbo["std_error"].iloc[-1])
    best = at(0.0)
    _search_line(best, at(1.0))
    np.testing.assert_array_equal(best.location, gaussian_target.mean)  # nothing is gained: nothing is moved


def fit_elbo(target: GaussianTarget, flat: np.ndarray) -> float:
    """ELBO of a mean-field fit of a Gaussian, in closed form."""
    dim = target.layout.dim
    off, sd = flat[:dim] - target.mean, flat[dim:]
    density = target.log_density_and_gradient(target.mean[None])[0][0]
    energy = 0.5 * (off @ target.precision @ off + np.diag(target.precision) @ sd**2)
    return float(density - energy + 0.5 * dim * np.log(2 * np.pi * np.e) + np.log(sd).sum())


def test_equal_fits_at_different_places_are_told(gaussian_target: GaussianTarget) -> None:
    layout, model = gaussian_target.layout, gaussian_target.model

    def at(shift: float) -> tv.Fit:
        location = gaussian_target.mean.copy()
        location[1] += shift
        return fit_at(model, "mean-field", np.concatenate([location, np.full(layout.dim, 0.05)]))

    found = compare_starts([("usual", at(0.0)), ("other", at(0.2))])
    assert found.distance == pytest.approx(4.0)
    assert (found.where, found.disagree) == ("z[1]", True)
    assert "differ by 4.0 of its standard deviations in z[1]: the posterior is wider" in found.words
    near = compare_starts([("usual", at(0.0)), ("other", at(0.05))])
    assert near.distance == pytest.approx(1.0)
    assert not near.disagree
    assert "posterior" not in near.words
    worse = compare_starts([("usual", at(0.0)), ("other", at(50.0))])  # another place, but the ELBO tells
    assert (worse.distance, worse.disagree) == (0.0, False)


def test_a_diagnosis_tells_of_the_starts(gaussian_target: GaussianTarget) -> None:
    layout = gaussian_target.layout
    fit = fit_at(gaussian_target.model, "mean-field", np.concatenate([gaussian_target.mean, np.full(layout.dim, 0.5)]))
    fit.starts = Starts(["usual", "other"], [-1.0, -1.3], 4.7, "z[0]")
    found = fit.diagnose()
    assert fit.starts.words in found.reasons
    assert found.verdict != "good"


# ---- volatility -------------------------------------------------------------------------------------------------
# 30 days, of which one series lacks 17, leave its log tau wide open: the warning is right
@pytest.mark.filterwarnings("ignore:.*Fits from 2 starts:pyturingvi.errors.ConvergenceWarning")
def test_volatility_starts_from_slow_changes_too() -> None:
    table = returns(30, 2)
    table[3:20, 1] = np.nan
    model = tv.models.StochasticVolatility(table)
    assert model.starts("structured") == {}
    location, scale = model.starts("markov")["persistent"]
    natural = model.constrain(location)
    np.testing.assert_allclose(natural["phi"], 0.95)
    np.testing.assert_allclose(natural["tau"], 0.2)
    level = np.log(np.nanmean(table**2, axis=0))
    np.testing.assert_allclose(natural["y"][0], np.tile(level, (30, 1)))
    assert scale > 0
    with pytest.warns(tv.RefineWarning, match=r"log tau\[series1\] wider"):  # as every fit of a short series is
        fit = tv.fit(model, **QUIET)
    assert fit.starts is not None
    assert sorted(fit.starts.names) == ["persistent", "usual"]
    assert fit.status == "converged"


def test_starts_that_a_refined_posterior_holds_are_not_told_apart():
    """The scale of the steps is far wider than either fit says, and holds both."""
    model = tv.models.StochasticVolatility(tv.data.simulate_volatility(150, 1, phi=0.95, tau=0.3, seed=2))
    with pytest.warns(tv.ConvergenceWarning, match="Fits from 2 starts"):
        fit = tv.fit(model, progress=False)
    refined = tv.fit(model, progress=False, refine=True)  # a warning would be an error
    assert refined.refined.weighted
    assert refined.warnings == []
    assert fit.starts.disagree
    k = model.global_labels.index(fit.starts.where)
    assert refined.starts.distance == pytest.approx(fit.starts.distance * fit.global_sds[k] / refined.global_sds[k])
    assert not refined.starts.disagree
