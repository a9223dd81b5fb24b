"""Distributions to draw the globals from: q(z), then mixtures laid through draws that have weights already.

No Gaussian has the long tails and bends that scale parameters have: weights of its draws are then right on average, but
a tail in which it has no draws is missing. A mixture of a few t distributions, fitted to the weighted draws, reaches
there. Draws of all rounds count, each under the mixture of all that were drawn from ("balance heuristic", Veach and
Guibas 1995; adaptive importance sampling: Cappe and others, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.special import gammaln, logsumexp

from pyturingvi.diagnosis.moves import has_curvature, quadratic_fit
from pyturingvi.diagnosis.weights import LARGEST_K, importance_weights, log_mean_weight, resampled

_NU = 8.0  # degrees of freedom of a component
_MOST_COMPONENTS, _DRAWS_A_VARIABLE = 8, 8  # effective draws that a component needs for each of its variables
_DRAWS_A_NUMBER = 4  # and for each number of its mean and covariance, where it is to weight the draws it goes through
_ROUNDS = 15
_POOLS, _POOL, _FITTED = 8, 20, 3000  # rounds, draws for each one wanted, and those that a mixture goes through
_GOOD_K, _GOOD_SHARE = 0.6, 0.25  # of the pool's weights
_SWEEPS, _MORE_SWEEPS = 20, 60  # from a good pool, and from another
_WIDER = 1.1  # variances of a component, so that its edge is not the draws' edge


@dataclass(frozen=True)
class Gaussian:
    """`mean + root @ u` with u standard normal."""

    mean: np.ndarray
    root: np.ndarray

    def place(self, u: np.ndarray) -> np.ndarray:
        """The points (n, d) of noise u (n, d)."""
        return np.asarray(self.mean + u @ self.root.T)

    def noise(self, z: np.ndarray) -> np.ndarray:
        """The noise (n, d) of points z (n, d)."""
        return _standardized(z, self.mean, self.root)

    @property
    def along(self) -> np.ndarray:
        """Unit vectors of noise (d, d), on the k-th of which variable k moves most, the others as they go with it."""
        return np.asarray(self.root / np.linalg.norm(self.root, axis=1, keepdims=True))

    @property
    def log_det(self) -> float:
        """Log of the volume that the unit cube of noise takes."""
        return float(np.log(np.abs(np.diag(self.root))).sum())

    def draw(self, n: int, source: np.random.Generator) -> np.ndarray:
        """Draws (n, d)."""
        return self.place(source.standard_normal((n, len(self.mean))))

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Log density (n,) at z (n, d)."""
        square, log_det = _distances(z, self.mean, self.root)
        return np.asarray(-0.5 * square - 0.5 * z.shape[1] * math.log(2 * math.pi) - log_det)


@dataclass(frozen=True)
class Mixture:
    """Multivariate t distributions with shares (C,), means (C, d) and roots (C, d, d) of their covariances."""

    shares: np.ndarray
    means: np.ndarray
    roots: np.ndarray

    def draw(self, n: int, source: np.random.Generator) -> np.ndarray:
        """Draws (n, d), of each component as many as its share says."""
        counts = source.multinomial(n, self.shares)
        found = []
        for count, mean, root in zip(counts, self.means, self.roots, strict=True):
            stretch = np.sqrt((_NU - 2) / source.chisquare(_NU, size=count))
            found.append(mean + stretch[:, None] * (source.standard_normal((count, len(mean))) @ root.T))
        return np.concatenate(found)

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Log density (n,) at z (n, d)."""
        d = z.shape[1]
        constant = gammaln((_NU + d) / 2) - gammaln(_NU / 2) - 0.5 * d * math.log((_NU - 2) * math.pi)
        logs = np.empty((len(self.shares), len(z)))
        for k, (share, mean, root) in enumerate(zip(self.shares, self.means, self.roots, strict=True)):
            square, log_det = _distances(z, mean, root)
            logs[k] = math.log(share) + constant - log_det - 0.5 * (_NU + d) * np.log1p(square / (_NU - 2))
        return np.asarray(logsumexp(logs, axis=0))


@dataclass(frozen=True)
class Surrogate:
    """The prior of the globals times a Gaussian in place of what the data say of them, normalized.

    Hierarchies bend the prior: the narrower the scale of an effect, the nearer to 0 the effect itself. What the data
    say is nearly Gaussian, so that this has the shape of the posterior, and costs nothing to evaluate.

    Attributes
    ----------
    prior : callable
        Log density (n,) at z (n, d), up to a constant.
    frame : Gaussian
        `u = root^-1 (z - mean)` are the coordinates of slope (d,) and curvature (d, d), the latter nowhere above 0.
    log_total : float
        Log of what prior times Gaussian sum up to.
    """

    prior: Callable[[np.ndarray], np.ndarray]
    frame: Gaussian
    slope: np.ndarray
    curvature: np.ndarray
    log_total: float = 0.0

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Log density (n,) at z (n, d)."""
        u = self.frame.noise(z)
        likelihood = u @ self.slope + 0.5 * np.einsum("ij,ij->i", u @ self.curvature, u)
        return np.asarray(self.prior(z) + likelihood - self.log_total)


class Proposal(Protocol):
    """What draws may come from."""

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Normalized log density (n,) at z (n, d)."""
        ...


def surrogate_through(
    prior: Callable[[np.ndarray], np.ndarray], frame: Gaussian, z: np.ndarray, log_p: np.ndarray
) -> Surrogate | None:
    """The surrogate from log densities (n,) at draws z (n, d) of `frame`; None where there are too few of them.

    Its Gaussian goes through `log_p` without the prior by least squares.
    """
    likelihood = log_p - prior(z)
    finite = np.isfinite(likelihood)
    if not has_curvature(int(finite.sum()), z.shape[1]):
        return None
    u = frame.noise(z[finite])
    slope, curvature, _ = quadratic_fit(likelihood[finite], u)
    values, vectors = np.linalg.eigh(curvature)
    return Surrogate(prior, frame, slope, (vectors * np.minimum(values, 0.0)) @ vectors.T)


def draw_surrogate(
    surrogate: Surrogate, n: int, source: np.random.Generator
) -> tuple[np.ndarray, Surrogate, float] | None:
    """Draws (n, d) of a surrogate, the same normalized, and the standard error of its log total.

    By sampling importance resampling from a mixture that is fitted to it in a few rounds; None where that does not get
    near enough.
    """
    pool, n_pool = around(surrogate.frame), _POOL * n
    for _ in range(_POOLS):
        z = pool.draw(n_pool, source)
        logs = surrogate.log_density(z) - pool.log_density(z)
        found = importance_weights(logs)
        good = found.ess > _GOOD_SHARE * n_pool and found.k_hat <= _GOOD_K
        if good:
            break
        few = min(n_pool, max(_FITTED, _DRAWS_A_VARIABLE * _MOST_COMPONENTS * z.shape[1]))
        some = z[source.choice(n_pool, size=few, p=found.weights)]
        pool = mixture_through(some, np.full(few, 1 / few), min(found.ess, few), source)
    if found.ess < 2 * n or found.k_hat > LARGEST_K:
        return None
    total, error = log_mean_weight(logs)
    z = z[resampled(found.weights, n, source)]
    z = _settle(surrogate, z, _SWEEPS if good else _MORE_SWEEPS, source)
    return z, replace(surrogate, log_total=total), error


def _settle(surrogate: Surrogate, z: np.ndarray, sweeps: int, source: np.random.Generator) -> np.ndarray:
    """Metropolis steps from draws (n, d), one coordinate at a time, into necks where the mixture has few draws.

    The length of a step is of any order of magnitude, since the width of a neck is.
    """
    z, sds = z.copy(), z.std(axis=0)
    logs = surrogate.log_density(z)
    for _ in range(sweeps):
        for k in range(z.shape[1]):
            trial = z.copy()
            trial[:, k] += sds[k] * 10 ** source.uniform(-2, 0.5, len(z)) * source.standard_normal(len(z))
            after = surrogate.log_density(trial)
            better = np.log(source.uniform(size=len(z))) < after - logs
            z[better], logs[better] = trial[better], after[better]
    return z


def around(frame: Gaussian) -> Mixture:
    """A t distribution with the mean and covariance of a Gaussian."""
    return Mixture(np.ones(1), frame.mean[None], frame.root[None])


def draws_for(d: int) -> int:
    """Effective draws of d variables that a component needs, so that it may be used to weight these same draws.

    It is higher at the draws that it goes through than elsewhere: by 1/n nats where it has n of them for each number
    that was fitted, which makes their weights too small.
    """
    return max(_DRAWS_A_VARIABLE * d, _DRAWS_A_NUMBER * d * (d + 3) // 2)


def mixture_through(
    z: np.ndarray, weights: np.ndarray, ess: float, source: np.random.Generator, needed: int | None = None
) -> Mixture:
    """A mixture through weighted draws (n, d), by expectation maximization; one component where there are few.

    `needed` effective draws are given to each component, by default a few for each variable.
    """
    d = z.shape[1]
    count = int(np.clip(ess / (needed or _DRAWS_A_VARIABLE * d), 1, _MOST_COMPONENTS))
    mean = weights @ z
    root = np.linalg.cholesky(weighted_covariance(z, weights, mean))
    u = np.linalg.solve(root, (z - mean).T).T
    centres = u[source.choice(len(u), size=count, p=weights, replace=False)] if count > 1 else np.zeros((1, d))
    shares, covariances = np.full(count, 1 / count), np.repeat(np.eye(d)[None], count, axis=0)
    prior = 2.0 * d / ess  # weight of the common covariance in that of a component
    for _ in range(_ROUNDS if count > 1 else 1):
        logs = np.empty((count, len(u)))
        for k in range(count):
            square, log_det = _distances(u, centres[k], np.linalg.cholesky(covariances[k]))
            logs[k] = math.log(shares[k]) - log_det - 0.5 * square
        parts = weights * np.exp(logs - logsumexp(logs, axis=0))
        shares = np.maximum(parts.sum(axis=1), 1e-3)
        shares /= shares.sum()
        for k in range(count):
            own = parts[k] / max(parts[k].sum(), 1e-300)
            centres[k] = own @ u
            own_covariance = weighted_covariance(u, own, centres[k])
            covariances[k] = (shares[k] * own_covariance + prior * np.eye(d)) / (shares[k] + prior)
    roots = np.stack([root @ np.linalg.cholesky(_WIDER * c) for c in covariances])
    return Mixture(shares, mean + centres @ root.T, roots)


def log_mixture(z: np.ndarray, drawn: list[tuple[int, Proposal]]) -> np.ndarray:
    """Log density (n,) at z of the mixture of proposals, each by its number of draws."""
    total = sum(count for count, _ in drawn)
    logs = [math.log(count / total) + proposal.log_density(z) for count, proposal in drawn]
    return np.asarray(logsumexp(logs, axis=0))


def weighted_covariance(z: np.ndarray, weights: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Covariance (d, d) of draws (n, d) about a point, by weights that sum to 1."""
    centred = z - mean
    return np.asarray((weights[:, None] * centred).T @ centred)


def _distances(z: np.ndarray, mean: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, float]:
    """Squared norms (n,) of the standardized points, and the log determinant of the root."""
    u = _standardized(z, mean, root)
    return np.einsum("ij,ij->i", u, u), float(np.log(np.abs(np.diag(root))).sum())


def _standardized(z: np.ndarray, mean: np.ndarray, root: np.ndarray) -> np.ndarray:
    # the root is triangular, of a few variables: its inverse is as exact, and takes half the time for many points
    return np.asarray((z - mean) @ np.linalg.inv(root).T)
