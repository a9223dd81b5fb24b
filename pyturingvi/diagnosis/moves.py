"""By how much variables would move under the density itself: importance weights, of better draws where the fit's fail.

With a handful of draws carrying all the weight a weighted mean is one of these draws. Their log density is seen at
every draw all the same: a quadratic through it gives a Gaussian nearer to the density, whose draws have weights that
can be relied on, or at least a direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pyturingvi.diagnosis.weights import ImportanceWeights, importance_weights

OWN_DRAWS, CORRECTED_DRAWS, SLOPE = "the fit's own draws", "corrected draws", "slope and curvature"

_ROUNDS = 6
_WIDE_ENOUGH = 1.5  # variance of the density along any direction, in units of the draws
_OWN_K = 0.5  # a stricter limit for draws whose tail may be narrower than it looks
_LARGEST_VARIANCE, _LONGEST_STEP = 4.0, 4.0  # of one round, in units of its draws: farther they do not see
_OUTLIER = 8.0
_WIDER = 1.05  # draws somewhat wider than the density have bounded weights


@dataclass(frozen=True)
class Moves:
    """Where the density has its mass, in coordinates u in which the fit has mean 0 and covariance I.

    Attributes
    ----------
    first : ImportanceWeights
        Of the fit's own draws: how good it is.
    last : ImportanceWeights
        Of the draws that `mean` and `covariance` rest on.
    mean : (d,) array
    covariance : (d, d) array
    error : (d,) array
        Monte Carlo standard error of `mean`.
    by : {"the fit's own draws", "corrected draws", "slope and curvature"}
    rounds : int
        Sets of draws that were tried.
    """

    first: ImportanceWeights
    last: ImportanceWeights
    mean: np.ndarray
    covariance: np.ndarray
    error: np.ndarray
    by: str
    rounds: int


def find_moves(
    log_p: Callable[[np.ndarray], np.ndarray],
    draws: np.ndarray,
    log_q: np.ndarray,
    generator: np.random.Generator,
) -> Moves:
    """Compare a density with draws of a fit.

    Parameters
    ----------
    log_p : callable
        Log density (n,) at points u (n, d), up to a constant.
    draws : (n, d) array
        Draws of the fit.
    log_q : (n,) array
        The fit's log density there.
    generator : Generator
        For draws beyond these.
    """
    n, d = draws.shape
    centre, root = np.zeros(d), np.eye(d)
    noise, log_noise = draws, log_q
    first: ImportanceWeights | None = None
    usable: Moves | None = None
    found, best = None, -np.inf  # the Gaussian laid through the log density at the best draws so far, and their bound
    # without its full curvature a density of many dimensions is not followed
    rounds = _ROUNDS if has_curvature(n, d) else 1
    for round_ in range(rounds):
        points = centre + noise @ root.T
        logs = log_p(points)
        weights = importance_weights(logs - log_noise)
        first = first or weights
        mean, covariance, error = _gaussian_through(logs, noise)
        if weights.ess >= max(n / 5, 50):
            seen = _weighted(weights, noise)
            spread = np.linalg.eigvalsh(seen[1])[-1] / (1 + np.sqrt(d / weights.ess)) ** 2
            # k-hat of draws that are too narrow is too low as often as not; their weighted spread shows it too
            wide_enough = max(spread, np.linalg.eigvalsh(covariance)[-1]) <= _WIDE_ENOUGH
            k_limit = _OWN_K if not round_ else weights.k_limit if weights.ess < 0.8 * n else 1.0
            if weights.k_hat <= k_limit:
                by = CORRECTED_DRAWS if round_ else OWN_DRAWS
                usable = Moves(first, weights, *_weighted(weights, points), by, round_ + 1)
                if wide_enough or round_ >= _ROUNDS // 2:
                    return usable
            if weights.ess >= 8 * d:  # enough for a covariance
                mean, covariance, error = seen
        bound = float((logs - log_noise).mean() + np.log(np.diag(root)).sum())
        if found is None or bound > best:
            place = centre + root @ mean, root @ covariance @ root.T, np.abs(root) @ error
            found, best, origin = Moves(first, weights, *place, SLOPE, rounds), bound, (centre, root @ root.T)
            centre, covariance = place[:2]
        else:  # too far: half the step
            centre, covariance = 0.5 * (origin[0] + centre), 0.5 * (origin[1] + root @ root.T)
        root = _WIDER * np.linalg.cholesky(covariance)
        noise = generator.standard_normal((n, d))
        log_noise = -0.5 * ((noise * noise).sum(axis=1) + d * np.log(2 * np.pi))
    assert found is not None
    return usable or found


def _weighted(weights: ImportanceWeights, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w = weights.weights
    mean = w @ draws
    centred = draws - mean
    error = np.sqrt(w**2 @ centred**2)
    return mean, (w[:, None] * centred).T @ centred, error


def _gaussian_through(logs: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, covariance and the mean's error of the Gaussian whose log density is nearest to `logs` at the draws."""
    d = draws.shape[1]
    # what is left when the standard normal is taken away needs fewer terms where it is small
    rest = without_outliers(logs + 0.5 * (draws * draws).sum(axis=1))
    slope, curvature, residual = quadratic_fit(rest, draws)
    values, vectors = np.linalg.eigh(np.eye(d) - curvature)
    covariance = (vectors / np.clip(values, 1 / _LARGEST_VARIANCE, None)) @ vectors.T
    error = residual / np.sqrt(len(logs)) * np.sqrt(np.einsum("ij,ij->i", covariance, covariance))
    mean = covariance @ slope
    mean *= min(1.0, _LONGEST_STEP / max(float(np.linalg.norm(mean)), _LONGEST_STEP))
    return mean, covariance, error


def without_outliers(logs: np.ndarray, reach: float = _OUTLIER) -> np.ndarray:
    """The log weights with what is farther out than `reach` drawn in, -inf and NaN to where the lowest then are.

    The reach is in robust standard deviations.
    """
    finite = logs[np.isfinite(logs)]
    if not len(finite):
        return np.zeros_like(logs)
    middle = np.median(finite)
    far = reach * 1.4826 * np.median(np.abs(finite - middle)) + np.finfo(float).tiny
    return np.clip(np.where(np.isnan(logs), -np.inf, logs), middle - far, middle + far)


def draws_for_curvature(d: int) -> int:
    """As many draws as can carry all second derivatives."""
    return 3 * (1 + d + d * (d + 1) // 2)


def has_curvature(n: int, d: int) -> bool:
    """Whether n draws can carry all second derivatives."""
    return draws_for_curvature(d) <= n


def quadratic_fit(values: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Slope and curvature at 0 and residual standard deviation, with as many terms as the draws can carry."""
    n, d = draws.shape
    rows, columns = np.tril_indices(d)
    if not has_curvature(n, d):
        rows = columns = np.arange(d if 1 + 2 * d <= n / 4 else 0)
    design = np.hstack([np.ones((n, 1)), draws, draws[:, rows] * draws[:, columns]])
    gram = design.T @ design  # of draws that are nearly standard: well conditioned
    gram[np.diag_indices_from(gram)] += 1e-9 * n
    found = np.linalg.solve(gram, design.T @ values)
    residual = float(np.sqrt(((values - design @ found) ** 2).sum() / max(n - design.shape[1], 1)))
    curvature = np.zeros((d, d))
    curvature[rows, columns] += found[1 + d :]
    curvature[columns, rows] += found[1 + d :]  # the second derivative of c u_i^2 is 2 c
    return found[1 : 1 + d], curvature, residual
