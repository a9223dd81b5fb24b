"""Turing's No-U-Turn sampler, in Julia."""

from __future__ import annotations

import numpy as np

from pyturingvi.models.base import Model
from pyturingvi.referee import run
from pyturingvi.support.interrupts import DeferredInterrupt

LIBRARY = "Turing.jl"
_CHUNK_SECONDS = 0.1  # between two looks at Ctrl-C and the progress bar


def sample(
    model: Model,
    n_draws: int,
    n_tune: int,
    n_chains: int,
    seed: int,
    target_acceptance: float,
    ad: str | None,
    progress: bool,
) -> run.NutsRun:
    """Draws of every chain up to the number asked for, a Ctrl-C, or an error in the model."""
    from pyturingvi.bridge.runtime import start_julia

    runtime = start_julia()
    runtime.load("Turing")
    P = runtime.module
    inner = model.turing_form(runtime, ad)
    state = runtime.call(P.start_nuts, inner, str(seed), n_chains, n_draws, n_tune, float(target_acceptance))
    n_tuned, n_drawn, failure = 0, 0, ""
    with DeferredInterrupt() as interrupt, run.bar_of(model.label, n_tune + n_draws, progress) as bar:
        while n_drawn < n_draws and not (failure or interrupt.requested):
            n_tuned, n_drawn, n_divergent, failure = runtime.call(P.advance_nuts_b, state, _CHUNK_SECONDS)
            run.show(bar, n_tuned + n_drawn, "warm-up" if n_tuned < n_tune else f"{n_divergent} divergent")
    if n_drawn == 0:
        return run.NutsRun.without_draws(n_chains, model.dim, n_tuned, str(failure))
    found = [np.array(runtime.to_numpy(a)) for a in runtime.call(P.nuts_draws, state)]
    del state
    runtime.call(P.free_garbage)
    points, divergent, tree_depth, step_size = found
    return run.NutsRun(points, divergent.astype(bool), tree_depth, step_size, n_tuned, str(failure))


def diagnose(batch: np.ndarray) -> np.ndarray:
    """R-hat, bulk and tail ESS (3, k) of draws (n_chains, n_draws, k), by MCMCDiagnosticTools.jl."""
    from pyturingvi.bridge.runtime import start_julia

    runtime = start_julia()
    runtime.load("Turing")
    # Julia wants draws x chains x variables, whose memory is that of variables, chains, draws here
    found = runtime.call(runtime.module.diagnostics, np.ascontiguousarray(batch.transpose(2, 0, 1)).T)
    return np.array([runtime.to_numpy(figures) for figures in found])
