"""The globals of stochastic volatility: level, memory, and the covariance of the innovations."""

from __future__ import annotations

import math

import numpy as np

from pyturingvi.models.parts import LOG_2PI, refuse_outside
from pyturingvi.priors import ScalePrior
from pyturingvi.support.array_namespace import Array, namespace_of
from pyturingvi.transforms.maps import (
    interval,
    interval_inverse,
    interval_log_jacobian,
    lkj_cholesky,
    lkj_cholesky_inverse,
    lkj_log_normalizer,
    lkj_partial_weights,
    log_cosh,
    n_partial_correlations,
)

MU_SCALE = 10.0
_ETA = 1.0
_ROW_LENGTH_TOLERANCE = 1e-4  # float32 draws have rows of L that are a little off 1


class VolatilityGlobals:
    """`[mu, v_phi, log tau, v_L]` of D series: what they mean, and all terms of the density without a time index.

    Parameters
    ----------
    size, n_times, n_observed : int
        D, T, and how many of the returns are there.
    tau_prior : ScalePrior
    tau_of, partials : str
        As of `StochasticVolatility`.
    """

    def __init__(
        self, size: int, n_times: int, n_observed: int, tau_prior: ScalePrior, tau_of: str, partials: str
    ) -> None:
        self.size, self.n_times, self.tau_prior, self.tau_of = size, n_times, tau_prior, tau_of
        self.n_global = 3 * size + n_partial_correlations(size)
        # log det Q gives each log cosh(v) a weight of T, with the sign against the prior's
        self.partial_weights = lkj_partial_weights(size, _ETA) - n_times
        rows, columns = np.tril_indices(size, -1)
        # where in the flat vector each partial correlation stands, row by row
        self._places = None if partials == "rows" else np.argsort(np.lexsort((rows, columns)))
        self._constant = (
            -0.5 * (n_times * size + n_observed) * LOG_2PI
            - size * (math.log(math.pi * MU_SCALE) + math.log(2.0))
            - lkj_log_normalizer(size, _ETA)
        )

    def labels(self, series: list[str]) -> list[str]:
        """A name for each coordinate."""
        labels = [f"{what}[{name}]" for what in ("mu", "logit phi", "log tau") for name in series]
        rows, columns = np.tril_indices(self.size, -1)
        pairs = list(zip(rows.tolist(), columns.tolist(), strict=True))
        if self._places is not None:
            pairs.sort(key=lambda pair: pair[::-1])
        return labels + [f"atanh partial correlation[{series[i]},{series[j]}]" for i, j in pairs]

    def split(self, z: Array) -> tuple[Array, Array, Array, Array]:
        """mu, v_phi, log tau, and the partial correlations row by row."""
        size = self.size
        v_partial = z[:, 3 * size :]
        if self._places is not None:
            v_partial = v_partial[:, namespace_of(z).asarray(self._places)]
        return z[:, :size], z[:, size : 2 * size], z[:, 2 * size : 3 * size], v_partial

    def stored(self, v_partial: Array) -> Array:
        """What belongs to the partial correlations, row by row, in the order of the flat vector."""
        if self._places is None:
            return v_partial
        return v_partial[:, namespace_of(v_partial).asarray(np.argsort(self._places))]

    def root(self, tau: Array, factor: Array) -> Array:
        """The root of Q (M, D, D)."""
        return (tau[:, :, None] if self.tau_of == "series" else tau[:, None, :]) * factor

    def density(self, z: Array, partial_weights: Array) -> Array:
        """All terms (M,) without a time index, from z in float64: priors, log-Jacobians, log det Q, constants."""
        xp = namespace_of(z)
        mu, v_phi, log_tau, v_partial = self.split(z)
        total = interval_log_jacobian(v_phi) - xp.log1p((mu / MU_SCALE) ** 2)
        total += self.tau_prior.log_density(log_tau) - self.n_times * log_tau
        return total.sum(axis=1) - log_cosh(v_partial) @ partial_weights + self._constant

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Points z (n, d_z) of the prior."""
        size = self.size
        shape = lkj_partial_weights(size, _ETA) / 2  # of the beta distribution of (1 + partial correlation)/2
        v_partial = np.arctanh(np.clip(2 * rng.beta(shape, shape, (n, len(shape))) - 1, -1 + 1e-15, 1 - 1e-15))
        mu, tau = MU_SCALE * rng.standard_cauchy((n, size)), self.tau_prior.draw(rng, (n, size))
        v_phi = interval_inverse(rng.uniform(-1, 1, (n, size)))
        return np.hstack([mu, v_phi, np.log(tau), self.stored(v_partial)])

    def constrain(self, z: Array) -> dict[str, Array]:
        """mu, phi, tau (M, D) and L, Q (M, D, D)."""
        mu, v_phi, log_tau, v_partial = self.split(z)
        with np.errstate(over="ignore", invalid="ignore"):
            tau = namespace_of(z).exp(log_tau)
            factor = lkj_cholesky(v_partial, self.size)[0]
            scaled = self.root(tau, factor)
            covariance = scaled @ scaled.transpose(0, 2, 1)
        return {"mu": mu.copy(), "phi": interval(v_phi), "tau": tau, "L": factor, "Q": covariance}

    def unconstrain(self, values: dict[str, np.ndarray], model: str) -> np.ndarray:
        """The inverse (M, d_z), from mu, phi, tau and L; InputError, which names the model, outside their supports."""
        factor = values["L"]
        lengths = np.sqrt((factor**2).sum(axis=2))
        refuse_outside(np.abs(values["phi"]) < 1, model, "phi", "inside (-1, 1)")
        refuse_outside(values["tau"] > 0, model, "tau", "positive")
        refuse_outside(np.triu(factor, 1) == 0, model, "L", "lower triangular")
        refuse_outside(np.diagonal(factor, axis1=1, axis2=2) > 0, model, "L", "positive on its diagonal")
        unit = np.abs(lengths - 1) < _ROW_LENGTH_TOLERANCE
        refuse_outside(unit, model, "L", "a correlation matrix's factor, its rows of length 1")
        v_partial = self.stored(lkj_cholesky_inverse(factor))
        return np.hstack([values["mu"], interval_inverse(values["phi"]), np.log(values["tau"]), v_partial])
