"""What a run that has converged cannot see: a density of another shape, and numbers too coarse for their spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.diagnosis.check import GlobalsCheck, check_globals, refinable
from pyturingvi.diagnosis.diagnose import LARGEST_JOINT, diagnose
from pyturingvi.diagnosis.verdict import BAD, DISTRUST, MORE
from pyturingvi.optimize.natural_stages import choose_draws
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator
from pyturingvi.support.registry import defines

if TYPE_CHECKING:
    from pyturingvi.result import Fit

_COARSE = 0.1  # of a standard deviation between two neighbouring numbers
_SHARE = 0.08  # of a fit's gradients that the check of its globals may take
REFINE = "fit.refine(), or tv.fit(..., refine=True), corrects the globals."


def coarse_problems(fit: Fit, seed: int) -> list[str]:
    """Whether float32 is too coarse for a fit that has converged, in words; an empty list where it is not."""
    coarse = _coarse_variables(fit, seed)
    if not coarse:
        return []
    return [
        f"float32 cannot resolve {coarse} of the {fit.model.dim} variables: two numbers of their size lie more "
        f"than {_COARSE:g} of a standard deviation apart. Use dtype='float64', or centre the variables."
    ]


def shape_problems(fit: Fit, seed: int) -> tuple[list[str], list[str]]:
    """Reasons not to trust a fit that has converged, and what to do where `Fit.refine` corrects it; in words.

    By `diagnose` where the variables are few; by a check of the globals, at a small share of the fit's own cost, where
    they are many or where refining would help.
    """
    model, few = fit.model, fit.model.dim <= LARGEST_JOINT
    can_refine = refinable(model, fit.family)
    try:  # a log density of the user's own, at points that the run itself did not visit
        if few and (found := diagnose(fit, seed=seed)).verdict == BAD:
            return [f"{DISTRUST} {found.reasons[0]} {MORE}"], []
        check = _check(fit, seed) if can_refine or not few else None
    except Exception:
        return [], []
    if check is None or not check.told:
        return [], []
    words = (
        f"With the locals integrated out, {check.words}." if model.layout.n_local else f"By the slopes, {check.words}."
    )
    if can_refine:
        return [], [f"{words} {REFINE}"]
    return [f"{DISTRUST} {words} tv.sample_nuts is the reference. {MORE}"], []


def _check(fit: Fit, seed: int) -> GlobalsCheck | None:
    bound = fit.family.bind(fit.model.layout)
    if not defines(bound, "natural_coordinates"):
        return None
    n_samples = choose_draws(fit.family, fit.model.layout, fit.spec.n_samples, None).n_samples
    return check_globals(fit.model, bound, fit.params, seed, int(_SHARE * n_samples * fit.n_updates))


def _coarse_variables(fit: Fit, seed: int, n: int = 32) -> int:
    """How many variables have standard deviations near the distance of two float32 numbers of their size."""
    bound = fit.family.bind(fit.model.layout)
    noise, points = np.empty((n, bound.noise_dim)), np.empty((n, fit.model.dim))
    bound.base.fill(generator(np, seed, SAMPLE_STREAM, 5), noise)
    bound.transform(bound.from_flat(fit.params), noise, points)
    spacing = np.spacing(np.abs(points.mean(axis=0)).astype(np.float32)).astype(np.float64)
    return int((spacing > _COARSE * points.std(axis=0)).sum())
