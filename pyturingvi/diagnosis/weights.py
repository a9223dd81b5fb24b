"""Pareto-smoothed importance weights: how far draws of one density can stand for another (Vehtari et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pyturingvi.support.quiet import quietly

LARGEST_K = 0.7  # above it no sample of a useful size gives a mean that can be relied on
_PRIOR_DRAWS, _PRIOR_K = 10, 0.5  # a weak prior keeps k-hat of a short tail from wandering


@dataclass(frozen=True)
class ImportanceWeights:
    """Normalized weights of draws, with the largest ones replaced by quantiles of a Pareto tail fitted to them.

    Attributes
    ----------
    weights : (n,) array
        They sum to 1.
    k_hat : float
        Shape of the tail: below 0.5 the weights have a variance, above 1 not even a mean; -inf where all are equal.
    ess : float
        Effective sample size `1 / sum w^2`, at most n.
    spread : float
        Standard deviation of the log weights as they came, in nats.
    """

    weights: np.ndarray
    k_hat: float
    ess: float
    spread: float

    @property
    def k_limit(self) -> float:
        """Largest k-hat with which this number of draws gives means that can be relied on."""
        return min(1.0 - 1.0 / math.log10(len(self.weights)), LARGEST_K)

    @property
    def reliable(self) -> bool:
        """Whether weighted means can be relied on."""
        return self.k_hat <= self.k_limit and self.ess >= 50

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Weighted mean over the first axis."""
        return np.asarray(self.weights @ values)

    def sd_errors(self, values: np.ndarray) -> np.ndarray:
        """Standard errors (d,) of the weighted standard deviations of values (n, d), as shares of these.

        They are large where a few draws far out carry a standard deviation, however even the other weights are.
        """
        square = (values - self.mean(values)) ** 2
        variance = self.weights @ square
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(0.5 * np.sqrt(self.weights**2 @ (square - variance) ** 2) / variance)


def resampled(weights: np.ndarray, n: int, source: np.random.Generator) -> np.ndarray:
    """Numbers of n draws in random order, each as often as its weight says (systematic resampling)."""
    ends = np.cumsum(weights)
    places = (np.arange(n) + source.uniform()) / n * ends[-1]
    return source.permutation(np.searchsorted(ends, places).clip(max=len(weights) - 1))


def log_mean_weight(log_ratios: np.ndarray) -> tuple[float, float]:
    """Log of the mean of weights given by their logarithms (n,), and its standard error."""
    largest = float(log_ratios.max())
    raw = np.exp(log_ratios - largest)
    error = float(raw.std(ddof=1) / raw.mean() / math.sqrt(len(raw)))
    return largest + math.log(raw.mean()), error


@quietly
def importance_weights(log_ratios: np.ndarray) -> ImportanceWeights:
    """Smooth and normalize weights given by their logarithms (n,); a NaN counts as weight 0."""
    logs = np.where(np.isnan(log_ratios), -np.inf, log_ratios)
    n = len(logs)
    finite = logs[np.isfinite(logs)]
    if len(finite) == 0 or np.isposinf(logs).any():
        return ImportanceWeights(np.full(n, 1.0 / n), math.inf, 0.0, math.inf)
    spread = float(logs.std(ddof=1)) if len(finite) == n > 1 else math.inf
    smooth, k_hat = _smooth_tail(logs - logs.max())
    weights = _normalized(smooth)
    return ImportanceWeights(weights, k_hat, float(1.0 / (weights @ weights)), spread)


def _normalized(logs: np.ndarray) -> np.ndarray:
    """What these are the logarithms of, divided by their sum."""
    from scipy.special import logsumexp  # a quarter of a second to import

    return np.asarray(np.exp(logs - logsumexp(logs)))


def _smooth_tail(logs: np.ndarray) -> tuple[np.ndarray, float]:
    """Log weights (largest 0) with a smoothed tail, and the tail's shape."""
    n = len(logs)
    n_tail = math.ceil(min(0.2 * n, 3 * math.sqrt(n)))
    order = np.argsort(logs)
    tail = order[-n_tail:]
    if n_tail < 5 or n_tail >= n:
        return logs, math.inf
    threshold = max(logs[order[-n_tail - 1]], math.log(np.finfo(float).tiny))
    excess = np.exp(logs[tail]) - math.exp(threshold)
    if excess[0] < 0 or excess[-1] < 1e-12:  # fewer than n_tail weights above 0, or none that stands out
        return logs, (math.inf if excess[0] < 0 else -math.inf)
    k_hat, scale = fit_generalized_pareto(excess)
    if math.isfinite(k_hat):
        quantiles = pareto_quantiles((np.arange(n_tail) + 0.5) / n_tail, k_hat, scale)
        logs = logs.copy()
        logs[tail] = np.minimum(np.log(quantiles + math.exp(threshold)), 0.0)  # none above the largest seen
    return logs, k_hat


def fit_generalized_pareto(excess: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalized Pareto distribution from sorted draws (n,), all above 0 but for ties.

    The estimate of Zhang and Stephens (2009), a posterior mean over a grid, pulled towards shape 0.5 by as much as ten
    further draws would.
    """
    n = len(excess)
    n_grid = 30 + int(math.sqrt(n))
    quartile = max(excess[int(n / 4 + 0.5) - 1], np.finfo(float).tiny)
    grid = 1.0 / excess[-1] + (1.0 - np.sqrt(n_grid / (np.arange(n_grid) + 0.5))) / (3.0 * quartile)
    with np.errstate(invalid="ignore", divide="ignore"):
        shapes = np.log1p(-grid[:, None] * excess).mean(axis=1)
        profile = n * (np.log(-grid / shapes) - shapes - 1.0)
    profile[~np.isfinite(profile)] = -np.inf
    theta = float(_normalized(profile) @ grid)
    with np.errstate(invalid="ignore", divide="ignore"):
        raw = float(np.log1p(-theta * excess).mean())
        scale = -raw / theta if theta != 0 else float(excess.mean())
    return (n * raw + _PRIOR_DRAWS * _PRIOR_K) / (n + _PRIOR_DRAWS), scale


def pareto_quantiles(probabilities: np.ndarray, shape: float, scale: float) -> np.ndarray:
    """Quantiles of the generalized Pareto distribution that begins at 0."""
    logs = np.log1p(-probabilities)
    return np.asarray(-scale * logs if shape == 0 else scale * np.expm1(-shape * logs) / shape)
