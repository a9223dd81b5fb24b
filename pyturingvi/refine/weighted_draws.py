"""Draws of the globals from several proposals, each chosen by the weights of those before it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pyturingvi.diagnosis.weights import importance_weights, log_mean_weight
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator
from pyturingvi.refine.proposals import (
    Gaussian,
    Proposal,
    around,
    draw_surrogate,
    draws_for,
    log_mixture,
    mixture_through,
    surrogate_through,
)
from pyturingvi.refine.tails import LEAST_MISSING, MOST_SLOPES, Ridge, Tails, find_ridges

_ENOUGH = 0.5  # effective share of the draws from which no more are made
_GOOD_K = 0.5
_GOOD_SD = 0.07  # standard error of each standard deviation, as a share of it
_ROUNDS = 3
_MOST_RIDGES = 6  # that have draws of their own; more share as many, since a walk up one neck has many names
_HOPELESS = 0.03  # below it a mixture through the draws is one through a few of them


class WeightedDraws:
    """Draws with their integrated log density, under the mixture of all that they were drawn from.

    Parameters
    ----------
    log_p : callable
        Integrated log density (n,) at z (n, d), which is dear.
    prior : callable or None
        The global term (n,) at z (n, d), where that is not.
    seed : int
    with_gradient : callable, optional
        Integrated log density (n,) and its gradient (n, d), by which tails are found; by default none are looked for.
    most_slopes : int
        Gradients that the volumes around tails may take.
    """

    def __init__(
        self,
        log_p: Callable[[np.ndarray], np.ndarray],
        prior: Callable[[np.ndarray], np.ndarray] | None,
        seed: int,
        with_gradient: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
        most_slopes: int = MOST_SLOPES,
    ) -> None:
        self.log_p, self.prior, self.seed, self.with_gradient = log_p, prior, seed, with_gradient
        self.most_slopes = most_slopes
        self.ridges: list[Ridge] = []
        self.z = np.empty((0, 0))
        self.logs = np.empty(0)
        self.drawn: list[tuple[int, Proposal]] = []
        self.total_error = 0.0

    @property
    def log_ratios(self) -> np.ndarray:
        """Log weights (n,) of all draws."""
        return np.asarray(self.logs - log_mixture(self.z, self.drawn))

    @property
    def own_weights(self) -> np.ndarray:
        """Weights (n,) that are equal for the draws of q(z), and 0 for the others."""
        first = self.drawn[0][0]
        return np.where(np.arange(len(self.z)) < first, 1 / first, 0.0)

    def draw_from(self, q: Gaussian, n: int) -> None:
        """Half of n draws from q(z), half from the surrogate through them or from q(z) again.

        Then half of n more along each tail that these do not reach, and from a mixture through all these, up to three
        times, while the weights are not good. Where they are too few for their number of variables, a mixture would be
        one of these draws rather than of the density: others then come from a t distribution around q(z).
        """
        source = generator(np, self.seed, SAMPLE_STREAM, 8)
        half = n // 2
        self._add(q.draw(half, source), q)
        surrogate = None if self.prior is None else surrogate_through(self.prior, q, self.z, self.logs)
        found = None if surrogate is None else draw_surrogate(surrogate, n - half, source)
        if found is None:
            self._add(q.draw(n - half, source), q)
        else:
            self._add(found[0], found[1])
            self.total_error = 0.5 * found[2]
        tails = self._tails(q)
        if tails is not None:
            self._add(tails.draw(half * min(len(tails.ridges), _MOST_RIDGES), source), tails)
        for _ in range(_ROUNDS):
            weights = importance_weights(self.log_ratios)
            even = weights.ess >= _ENOUGH * len(self.z) and weights.k_hat <= _GOOD_K
            if weights.ess < _HOPELESS * n or (even and weights.sd_errors(self.z).max() <= _GOOD_SD):
                break
            needed = draws_for(self.z.shape[1])
            if weights.ess < needed:
                mixture, count = around(q), n  # no nearer than q(z), so that more are needed
            else:
                mixture, count = mixture_through(self.z, weights.weights, weights.ess, source, needed), half
            self._add(mixture.draw(count, source), mixture)

    def _tails(self, q: Gaussian) -> Tails | None:
        """Where the density along a global has mass that the proposals so far do not have."""
        if self.with_gradient is None:
            return None
        total = log_mean_weight(self.log_ratios)[0]
        for ridge in find_ridges(q, self.with_gradient, self.most_slopes):
            drawn = log_mixture(q.place(ridge.points), self.drawn)
            if ridge.missing(ridge.logs - drawn - total) > LEAST_MISSING:
                self.ridges.append(ridge)
        return Tails(q, self.ridges) if self.ridges else None

    def _add(self, z: np.ndarray, proposal: Proposal) -> None:
        if self.drawn and self.drawn[0][1] is proposal:
            self.drawn[0] = (self.drawn[0][0] + len(z), proposal)
        else:
            self.drawn.append((len(z), proposal))
        self.z = z if not len(self.logs) else np.concatenate([self.z, z])
        self.logs = np.concatenate([self.logs, self.log_p(z)])

    def log_total(self) -> tuple[float, float]:
        """Log of the mean weight, which estimates the log marginal likelihood, and its standard error."""
        total, error = log_mean_weight(self.log_ratios)
        return total, math.hypot(error, self.total_error)

    def bound(self) -> tuple[float, float]:
        """Mean of `log p - log q` over the draws of q(z), with its standard error."""
        first, q = self.drawn[0]
        ratios = self.logs[:first] - q.log_density(self.z[:first])
        return float(ratios.mean()), float(ratios.std(ddof=1) / math.sqrt(first))
