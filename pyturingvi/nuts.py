"""A No-U-Turn sampler on the same model as a fit: the reference posterior."""

from __future__ import annotations

import time
import warnings

import numpy as np

from pyturingvi.errors import ConvergenceWarning, EngineError, InputError, unknown_name
from pyturingvi.models.base import Model
from pyturingvi.models.turing import AD_BACKENDS
from pyturingvi.optimize.memory import check_nuts_memory
from pyturingvi.referee.draws import SAMPLERS, NutsDraws
from pyturingvi.support.arguments import LARGEST_SEED, whole_number

__all__ = ["NutsDraws", "sample_nuts"]


def sample_nuts(
    model: Model,
    n_draws: int = 1000,
    n_tune: int = 1000,
    n_chains: int = 4,
    seed: int = 0,
    target_acceptance: float = 0.8,
    ad: str | None = None,
    progress: bool = True,
    *,
    sampler: str | None = None,
) -> NutsDraws:
    """Draw from the posterior with a No-U-Turn sampler, as a referee of a fit.

    `"mici"` (`pip install 'pyturingvi[nuts]'`) samples any model by its own log density and gradient in Python;
    `"turing"` runs Turing's in Julia, a bundled model in its Turing form, which is the same density with the
    same priors and parametrization. The cost of a draw
    grows faster than that of an update of a fit, so take the small problems.

    Parameters
    ----------
    model : Model
        Of any kind.
    n_draws, n_tune : int
        Draws kept of each chain, and steps before them in which the step size and the metric are adapted.
    n_chains : int
        Chains, one after the other on one core, each from its own start.
    seed : int
        The same seed gives the same draws again with the same versions of the sampler's packages.
    target_acceptance : float
        At least 0.1 and below 1; nearer to 1 means smaller steps and fewer divergences.
    ad : str, optional
        Turing's automatic differentiation, as in `tv.models.Turing`; by default the model's own, or the fastest that
        works.
    progress : bool
        Show a progress bar.
    sampler : {"mici", "turing"}, optional
        By default "turing" for a `tv.models.Turing` or where `ad` is given, else "mici".

    Returns
    -------
    NutsDraws
        After Ctrl-C, or if the model throws, the draws made so far; the latter with a RuntimeWarning. A
        ConvergenceWarning says where the R-hat of a global variable is above 1.01, its effective sample size below 100
        a chain, a chain is alone or did not move, or there are too few draws to tell.

    Raises
    ------
    InputError
        If an argument is out of range.
    MemoryLimitError
        If the draws need more memory than is free; nothing was started.
    EngineError
        If the sampler or what it needs is not there, it cannot run the model, or the model throws before there are
        draws.
    KeyboardInterrupt
        After Ctrl-C during the warm-up: there are no draws yet.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be one of tv.models or come from tv.load_problem, got {type(model).__name__!r}.")
    if sampler is not None and sampler not in SAMPLERS:
        raise unknown_name("sampler", sampler, SAMPLERS)
    sampler = sampler or ("turing" if ad is not None or "numpy" not in model.engines else "mici")
    if sampler == "turing" and "julia" not in model.engines:
        what = f"{model.description} with {model.numpy_only}" if model.numpy_only else model.description
        raise EngineError(f'sampler="turing" runs in Julia and cannot call {what}; use sampler="mici".')
    if sampler == "mici" and "numpy" not in model.engines:
        raise EngineError(f'sampler="mici" runs in Python and cannot call {model.description}; use sampler="turing".')
    if sampler == "mici" and ad is not None:
        raise InputError(f'ad={ad!r} is for sampler="turing": "mici" takes the model\'s own gradient.')
    n_draws = whole_number("n_draws", n_draws, 1)
    n_tune = whole_number("n_tune", n_tune, 0)
    n_chains = whole_number("n_chains", n_chains, 1)
    seed = whole_number("seed", seed, 0, LARGEST_SEED)
    if not isinstance(target_acceptance, float | int | np.floating) or not 0.1 <= target_acceptance < 1:
        raise InputError(f"target_acceptance must be a number of at least 0.1 and below 1, got {target_acceptance!r}.")
    if ad is not None and ad not in AD_BACKENDS:
        raise unknown_name("ad", ad, AD_BACKENDS)
    check_nuts_memory(model.dim, n_chains, n_draws)

    start = time.perf_counter()
    settings = {"progress": progress} if sampler == "mici" else {"ad": ad, "progress": progress}
    run = SAMPLERS[sampler].sample(model, n_draws, n_tune, n_chains, seed, float(target_acceptance), **settings)
    n_drawn = run.points.shape[1]
    if n_drawn == 0 and run.failure:
        raise EngineError(f"sample_nuts: {model.label} fails in {run.failure}. There are no draws yet.")
    if n_drawn == 0:
        raise KeyboardInterrupt(
            f"sample_nuts was interrupted after {run.n_tuned} of {n_tune} warm-up steps: no draws yet."
        )
    status = "completed" if n_drawn == n_draws else "failed" if run.failure else "interrupted"
    if status == "failed":
        kept = f"The {n_drawn:,} draws of each chain before are kept, with the status 'failed'."
        warnings.warn(f"sample_nuts: {model.label} fails in {run.failure}. {kept}", RuntimeWarning, stacklevel=2)
    draws = NutsDraws(model, run, sampler, status, time.perf_counter() - start)
    doubts = draws.doubts() if status == "completed" else ""
    if doubts:
        advice = "Draw more, or raise target_acceptance where draws diverge: this is no referee yet."
        warnings.warn(f"sample_nuts: {model.label}: {doubts}. {advice}", ConvergenceWarning, stacklevel=2)
    return draws
