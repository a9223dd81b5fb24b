"""A No-U-Turn sampler on the package's own log density and gradient, by mici: no Julia, and no compiling."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyturingvi.errors import EngineError
from pyturingvi.models.base import Model
from pyturingvi.referee import run
from pyturingvi.support.interrupts import DeferredInterrupt

LIBRARY = "mici"
_ROUND = 20  # draws of a chain before the next one's turn; what a Ctrl-C may cost
_START = 1.0  # chains start uniformly in (-1, 1),
_TRIES = 100  # at the first of so many points where the density is finite


class _Stop(Exception):
    """Ends the warm-up from inside; mici would answer a KeyboardInterrupt by a log message."""


class _Density:
    """The negative log density as mici asks for it; points that are not finite are infinitely unlikely."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.failure: Exception | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Density:
        return self  # mici copies its transitions for every chain and call: not the data with them

    def value(self, point: np.ndarray) -> float:
        return self.with_gradient(point)[1]

    def with_gradient(self, point: np.ndarray) -> tuple[np.ndarray, float]:
        nowhere = np.zeros_like(point), np.inf
        if not np.isfinite(point).all():
            return nowhere
        try:
            value, slope = self.model._log_density_and_gradient(point[None])
        except Exception as error:
            self.failure = error
            raise
        gradient = -np.asarray(slope[0], dtype=np.float64)
        return (gradient, -float(value[0])) if np.isfinite(gradient).all() and value[0] < np.inf else nowhere


def sample(
    model: Model, n_draws: int, n_tune: int, n_chains: int, seed: int, target_acceptance: float, progress: bool
) -> run.NutsRun:
    """Draws of every chain up to the number asked for, a Ctrl-C, or an error in the model.

    The chains adapt one step size and one diagonal metric together, in Stan's windows, and go on in turns.
    """
    mici = _library()
    rng = np.random.default_rng(seed)
    density = _Density(model)
    system = mici.systems.EuclideanMetricSystem(neg_log_dens=density.value, grad_neg_log_dens=density.with_gradient)
    sampler = mici.samplers.DynamicMultinomialHMC(system, mici.integrators.LeapfrogIntegrator(system), rng)
    drawn: list[tuple[np.ndarray, ...]] = []
    n_tuned, n_drawn, n_divergent, failure = 0, 0, 0, ""
    settings: dict[str, Any] = {"display_progress": False}
    with (
        np.errstate(all="ignore"),
        DeferredInterrupt() as interrupt,
        run.bar_of(model.label, n_tune + n_draws, progress) as bar,
    ):
        steps = 0

        def count(state: Any) -> dict[str, Any]:
            nonlocal steps
            if interrupt.requested:
                raise _Stop
            steps += 1
            run.show(bar, steps // n_chains, "warm-up")
            return {"step": steps}

        def position(state: Any) -> dict[str, Any]:
            if interrupt.requested:
                raise _Stop
            return {"x": state.pos}

        try:
            states: Any = [_start(density, rng, model.dim) for _ in range(n_chains)]
            if n_tune:
                adapters = [
                    mici.adapters.DualAveragingStepSizeAdapter(target_acceptance),
                    mici.adapters.OnlineVarianceMetricAdapter(),
                ]
                found = sampler.sample_chains(
                    n_tune,
                    0,
                    states,
                    adapters=adapters,
                    stager=mici.stagers.WindowedWarmUpStager(),
                    trace_funcs=[count],
                    trace_warm_up=True,
                    **settings,
                )
                states, n_tuned = found.final_states, n_tune
            while n_drawn < n_draws:
                size = min(_ROUND, n_draws - n_drawn)
                # mici derives the chains' generators from the state of this one, which it does not advance
                rng.bit_generator.state = np.random.PCG64([seed, n_drawn + 1]).state
                found = sampler.sample_chains(0, size, states, trace_funcs=[position], **settings)
                states, stats = found.final_states, found.statistics
                drawn.append((np.array(found.traces["x"]), np.array(stats["diverging"]), np.array(stats["tree_depth"])))
                n_drawn += size
                n_divergent += int(drawn[-1][1].sum())
                run.show(bar, n_tune + n_drawn, f"{n_divergent} divergent")
        except _Stop:
            n_tuned = min(n_tune, steps // n_chains)
        except Exception as error:
            if density.failure is None and not isinstance(error, mici.errors.Error):
                raise
            where = f"draw {n_drawn + 1}" if n_tuned == n_tune else f"warm-up step {steps // n_chains + 1}"
            words = density.failure or error
            failure = f"{where}: {type(words).__name__}: {words}"
    if not n_drawn:
        return run.NutsRun.without_draws(n_chains, model.dim, n_tuned, failure)
    points, divergent, depth = (np.concatenate(part, axis=1) for part in zip(*drawn, strict=True))
    step_size = np.full(n_chains, float(sampler.transitions["integration_transition"].integrator.step_size))
    return run.NutsRun(points, divergent.astype(bool), depth.astype(int), step_size, n_tuned, failure)


def _start(density: _Density, rng: np.random.Generator, dim: int) -> np.ndarray:
    """A point from which a chain can start."""
    for _ in range(_TRIES):
        point = rng.uniform(-_START, _START, dim)
        if np.isfinite(density.value(point)):
            return point
    words = f"{density.model.label}: the log density is not finite at {_TRIES} points in (-{_START:g}, {_START:g})"
    raise EngineError(f"{words}: no chain can start there. Shift or scale its variables.")


def diagnose(batch: np.ndarray) -> np.ndarray:
    """R-hat, bulk and tail ESS (3, k) of draws (n_chains, n_draws, k), by arviz-stats."""
    try:
        from arviz_stats import base
    except ImportError as error:
        raise _missing("arviz-stats") from error
    array_stats: Any = base.array_stats  # type: ignore[attr-defined]  # its module leaves it out of __all__
    axes = {"chain_axis": 0, "draw_axis": 1}
    with np.errstate(all="ignore"):
        return np.array(
            [
                array_stats.rhat(batch, **axes, method="rank"),
                array_stats.ess(batch, **axes, method="bulk"),
                array_stats.ess(batch, **axes, method="tail", prob=(0.05, 0.95)),
            ]
        )


def _library() -> Any:
    try:
        import mici
    except ImportError as error:
        raise _missing("mici") from error
    return mici


def _missing(name: str) -> EngineError:
    return EngineError(f"sample_nuts needs {name}: pip install 'pyturingvi[nuts]'.")
