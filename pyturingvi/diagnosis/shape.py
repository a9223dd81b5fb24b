"""What a run that has converged cannot see: a density of another shape, and numbers too coarse for their spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.diagnosis.diagnose import LARGEST_JOINT, diagnose
from pyturingvi.diagnosis.verdict import LEVELS
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator

if TYPE_CHECKING:
    from pyturingvi.result import Fit

_COARSE = 0.1  # of a standard deviation between two neighbouring numbers


def shape_problems(fit: Fit, dtype: str, seed: int) -> list[str]:
    """Reasons not to trust a fit that has converged, in words; by `diagnose` where the variables are few."""
    found = []
    if dtype == "float32" and (coarse := _coarse_variables(fit, seed)):
        found.append(
            f"float32 cannot resolve {coarse} of the {fit.model.dim} variables: two numbers of their size lie more "
            f"than {_COARSE:g} of a standard deviation apart. Use dtype='float64', or centre the variables."
        )
    if fit.model.dim <= LARGEST_JOINT:
        try:
            verdict = diagnose(fit, seed=seed)
        except Exception:  # a log density of the user's own, at points that the run itself did not visit
            return found
        if verdict.verdict == LEVELS[-1]:
            found.append(f"The fit converged, but do not trust it. {verdict.reasons[0]} fit.diagnose() says more.")
    return found


def _coarse_variables(fit: Fit, seed: int, n: int = 32) -> int:
    """How many variables have standard deviations near the distance of two float32 numbers of their size."""
    bound = fit.family.bind(fit.model.layout)
    noise, points = np.empty((n, bound.noise_dim)), np.empty((n, fit.model.dim))
    bound.base.fill(generator(np, seed, SAMPLE_STREAM, 5), noise)
    bound.transform(bound.from_flat(fit.params), noise, points)
    spacing = np.spacing(np.abs(points.mean(axis=0)).astype(np.float32)).astype(np.float64)
    return int((spacing > _COARSE * points.std(axis=0)).sum())
