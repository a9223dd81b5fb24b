"""Draws of the density itself: those of a fit, taken again by weights that can be relied on."""

from __future__ import annotations

import numpy as np

from pyturingvi.diagnosis.integrated import log_marginal
from pyturingvi.diagnosis.weights import ImportanceWeights, importance_weights, resampled
from pyturingvi.errors import UnreliableError
from pyturingvi.families.base import BoundFamily
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model
from pyturingvi.optimize.memory import check_draws_memory
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator

_TRIED, _LEAST_TRIED = 4, 1000  # draws weighted for each that is returned, and at least


def resample(
    model: Model, bound: BoundFamily, flat: np.ndarray, n: int, seed: int, local: bool
) -> dict[str, np.ndarray]:
    """See `Fit.resample`."""
    layout = model.layout
    tried = max(_LEAST_TRIED, _TRIED * n)
    integrated = not local and model.has_log_terms and layout.n_global > 0 and layout.n_local > 0
    source = generator(np, seed, SAMPLE_STREAM, 5)
    check_draws_memory(tried, max(bound.noise_dim, model.dim), "resample")
    with np.errstate(all="ignore"):
        if integrated:
            parts = GlobalsAndLocals.of(bound, flat)
            noise = np.empty((tried, layout.n_global))
            bound.base.fill(source, noise)
            points = parts.mean + noise @ parts.scale.T
            ratios = log_marginal(model, parts, noise, seed) - bound.base.log_density(noise).sum(axis=1)
        else:
            noise, points = np.empty((tried, bound.noise_dim)), np.empty((tried, model.dim))
            bound.base.fill(source, noise)
            work = bound.from_flat(flat)
            bound.transform(work, noise, points)
            ratios = np.asarray(model.log_density(points)) - np.asarray(bound.log_q(work, points))
    weights = importance_weights(ratios)
    if not weights.reliable:
        raise UnreliableError(_refusal(weights, layout.n_global if integrated else model.dim, integrated))
    chosen = points[resampled(weights.weights, n, source)]
    if local:
        return model.constrain(chosen)
    return model.constrain_global(chosen[:, : layout.n_global])


def _refusal(weights: ImportanceWeights, n_variables: int, integrated: bool) -> str:
    what = "globals with the locals integrated out" if integrated else "variables at once"
    advice = (
        "the fit has another shape than the density: a larger family or fit.diagnose() may tell more"
        if integrated
        else "resample(local=False) weighs the globals alone where the model splits into terms of its locals"
    )
    return (
        f"resample: the weights of {n_variables:,} {what} have k-hat {weights.k_hat:.2f} (at most "
        f"{weights.k_limit:.2f} can be relied on) and are worth {weights.ess:,.0f} draws; {advice}."
    )
