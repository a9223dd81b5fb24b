"""The problems of `time_to_answer.py`, what each answer has to reach, and estimates common to all methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from one_case import load

BATCH_BYTES = 2**26  # of points drawn at once
DRAWS = {"small": 20_000, "middle": 8_000, "large": 2_000}  # some seconds each
DRAWS["schools"] = DRAWS["small"]
FITS = {"small": 3, "schools": 5}  # timed fits, whose median counts; one of the others

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


@dataclass(frozen=True)
class Goal:
    """What the default fit of a problem should reach.

    Parameters
    ----------
    elbo : float or str
        Least ELBO, or whose best is to be reached: "structured" or "mean-field", fitted with Adam.
    updates : int, optional
        Time, as so many structured Adam updates of the same run.
    seconds : float, optional
        Time; with `updates`, both have to be kept.
    """

    elbo: float | str
    updates: int | None = None
    seconds: float | None = None

    def limit(self, adam_ms: float) -> float:
        """Seconds that the fit may take where a structured Adam update takes `adam_ms`."""
        limits = [] if self.seconds is None else [self.seconds]
        return min(limits if self.updates is None else [*limits, self.updates * adam_ms / 1e3])

    def least(self, measured: dict[str, float]) -> float:
        """The ELBO to reach, given the best ones measured by family; nan where that one is not among them."""
        return measured.get(self.elbo, np.nan) if isinstance(self.elbo, str) else self.elbo


GOALS = {
    "eight-schools": Goal(7.70, seconds=0.2),
    "rpoisson-small": Goal(-4392.0, 2_500, 1.0),
    "rpoisson-middle": Goal(-8655.5, 2_500),
    "rpoisson-large": Goal("structured", 2_500),
    "volatility-small": Goal(6302.0, 5_000),
    "volatility-middle": Goal(12172.0, 5_000),
    "volatility-large": Goal(57150.0, 10_000),
    "irt-small": Goal(-157910.0, 5_000),
    "irt-middle": Goal("mean-field", 5_000),
    "irt-large": Goal("mean-field", 5_000),
}
SPREAD = {"rpoisson-small": 1.0, "volatility-small": 2.0}  # largest range of the ELBO over seeds, nats


def eight_schools(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The README's model: log density, without its constants, and gradient at [mu, log tau, effect_1..8]."""
    mu, log_tau, e = x[:, :1], x[:, 1:2], x[:, 2:]
    tau = np.exp(log_tau)
    r = (Y - mu - tau * e) / SIGMA
    square = (tau / 5) ** 2
    prior = -0.5 * (mu / 5) ** 2 + log_tau - np.log1p(square)
    slope = r / SIGMA
    g_mu = slope.sum(1, keepdims=True) - mu / 25
    g_log_tau = tau * (slope * e).sum(1, keepdims=True) + 1 - 2 * square / (1 + square)
    return prior[:, 0] - 0.5 * (r**2 + e**2).sum(1), np.hstack([g_mu, g_log_tau, tau * slope - e])


def build(problem: str) -> Any:
    """A fresh model object of one of the `GOALS`; item response data are simulated."""
    import pyturingvi as tv

    if problem == "eight-schools":
        return tv.models.LogDensity(eight_schools, tv.Layout(2, 8, 1), names=["mu", "log tau"])
    return load(problem)


def size_of(problem: str) -> str:
    return problem.split("-")[-1]


def elbo_of(fit: Any, draws: int) -> tuple[float, float]:
    """ELBO and its standard error: mean of log p - log q over so many draws that the fit has not seen."""
    batch = int(np.clip(BATCH_BYTES // (8 * fit.model.dim), 1, draws))
    parts = []
    for k in range(-(-draws // batch)):
        points = fit.sample_unconstrained(min(batch, draws - k * batch), seed=90_001 + k)
        parts.append(fit.model.log_density(points) - fit.log_q(points))
    values = np.concatenate(parts)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))


class CommonElbo:
    """ELBO of independent Gaussians, at the same draws for each: differences along a path have next to no noise."""

    def __init__(self, model: Any, draws: int = 400) -> None:
        half = np.random.default_rng(90_000).standard_normal((draws // 2, model.dim))
        self.model, self.noise = model, np.concatenate([half, -half])
        self.log_base = -0.5 * (self.noise**2).sum(axis=1) - 0.5 * model.dim * np.log(2 * np.pi)

    def __call__(self, mean: np.ndarray, sd: np.ndarray) -> float:
        """ELBO of the model in its unconstrained coordinates."""
        log_q = self.log_base - np.log(sd).sum()
        return float((self.model.log_density(mean + sd * self.noise) - log_q).mean())


def first_within(seconds: Sequence[float], elbos: Sequence[float], best: float, nats: float = 1.0) -> float:
    """Seconds until a trace first comes within so many nats of the best ELBO; nan where it never does."""
    return next((s for s, e in zip(seconds, elbos, strict=True) if e >= best - nats), np.nan)
