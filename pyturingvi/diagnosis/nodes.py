"""Nodes of the integrals over each local: grids or draws, and where they are put.

A rule's nodes t are standard; those of local n are `centre + L t`. They are put where the fit has the local given the
globals, and anew where its mass turns out to be elsewhere: at its mode and as wide as its curvature there says
(Newton's method on the local's own term), then by the mass that the nodes themselves have seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pyturingvi.models.base import Model

N_NODES = 11  # along each variable of a local: the sum of 2,000 integrals is right to some hundredths
LARGEST_GRID = 121
N_DRAWS = 256  # nodes of a local where a grid would have more than LARGEST_GRID
_WIDE = 1.5  # draws are as many times wider than the fit
_SHIFT, _NARROW, _TOO_WIDE = 0.7, 0.6, 1.5  # how far a local may be from where its nodes are, in their own spread
_BETWEEN = 1.15  # a local that falls between the two nodes nearest to 0 has all its mass on these: as wide as they are
_DIFFERENCE = 0.1  # step of the slopes' differences, in the nodes' own spread
_NEWTON_STEPS, _MOST_CUTS, _CLOSE = 10, 12, 0.2
_MOST_CHANGE = 16.0  # of a variance in one step


@dataclass(frozen=True)
class Rule:
    """Nodes and weights of an integral over a local.

    Attributes
    ----------
    nodes : (K, 1 or N, d_y) array
    log_weights : (K, 1 or N) array
        Log of the weight over the density in t, which is 1 for a volume.
    size : int
        Nodes along each variable of a grid, or number of draws.
    """

    nodes: np.ndarray
    log_weights: np.ndarray
    size: int

    @property
    def count(self) -> int:
        """Nodes K of an integral."""
        return len(self.nodes)

    @classmethod
    def of(cls, n_local: int, local_dim: int, size: int | None = None, seed: int = 0) -> Rule:
        """A Gauss-Hermite grid of one or two variables, draws of more.

        Parameters
        ----------
        size : int, optional
            Nodes along each variable, or draws.
        seed : int
            Of the draws.
        """
        if is_grid(local_dim):
            return cls._grid(local_dim, size or N_NODES)
        return cls._draws(n_local, local_dim, size or N_DRAWS, seed)

    @classmethod
    def _grid(cls, local_dim: int, size: int) -> Rule:
        t, weights = np.polynomial.hermite_e.hermegauss(size)
        axes = np.meshgrid(*[t] * local_dim, indexing="ij")
        logs = np.meshgrid(*[np.log(weights) + 0.5 * t * t] * local_dim, indexing="ij")
        nodes = np.stack([axis.ravel() for axis in axes], axis=1)
        return cls(nodes[:, None, :], np.sum(logs, axis=0).reshape(-1, 1), size)

    @classmethod
    def _draws(cls, n_local: int, local_dim: int, size: int, seed: int) -> Rule:
        """Pairs of opposite draws from a normal distribution half as wide again, the same for every z.

        With one set of draws for all z their error is a smooth function of z, whose constant cancels between weights.
        """
        half = np.random.default_rng(seed).standard_normal((-(-size // 2), n_local, local_dim))
        unit = np.concatenate([half, -half])
        constant = local_dim * (math.log(_WIDE) + 0.5 * math.log(2 * math.pi)) - math.log(len(unit))
        return cls(_WIDE * unit, 0.5 * (unit * unit).sum(axis=2) + constant, len(unit))


def count_of(local_dim: int, size: int) -> int:
    """Nodes K that a rule of this size has, without making it."""
    return size**local_dim if is_grid(local_dim) else 2 * -(-size // 2)


def is_grid(local_dim: int) -> bool:
    """Whether locals of this size are integrated over a grid."""
    return bool(N_NODES**local_dim <= LARGEST_GRID)


@dataclass(frozen=True)
class Moments:
    """Means (m, N, d_y) and covariances (m, N, d_y, d_y) of locals under the shares of their nodes.

    `narrow` is the standard deviation below which these nodes do not tell how narrow a local is.
    """

    mean: np.ndarray
    covariance: np.ndarray
    narrow: float = _NARROW

    @classmethod
    def of(cls, shares: np.ndarray, nodes: np.ndarray) -> Moments:
        """From the shares (m, K, N) of nodes (K, 1 or N, d_y)."""
        m, _, n = shares.shape
        d_y = nodes.shape[2]
        mean, covariance = np.empty((m, n, d_y)), np.empty((m, n, d_y, d_y))
        t = nodes.transpose(2, 0, 1)
        for i in range(d_y):
            mean[..., i] = _over_nodes(shares, t[i])
        for i in range(d_y):
            for j in range(i + 1):
                product = _over_nodes(shares, t[i] * t[j]) - mean[..., i] * mean[..., j]
                covariance[..., i, j] = covariance[..., j, i] = product
        return cls(mean, covariance, max(_NARROW, _BETWEEN * float(np.abs(nodes).min())))

    @property
    def misplaced(self) -> np.ndarray:
        """Which locals (m, N) have their mass where their nodes are not."""
        variances = np.diagonal(self.covariance, axis1=2, axis2=3)
        good = (np.abs(self.mean) <= _SHIFT) & (variances >= self.narrow**2) & (variances <= _TOO_WIDE**2)
        return np.asarray(~good.all(axis=2))


def _over_nodes(shares: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`sum_k shares[:, k] values[k]` for values (K, 1 or N): (m, N)."""
    if values.shape[1] == 1:
        return np.asarray(values[:, 0] @ shares)
    return np.asarray(np.einsum("mkn,kn->mn", shares, values))


def move_by_moments(moments: Moments, off: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> None:
    """Put the nodes of the locals `off` (m, N) where their moments are; changes centre and scale in place."""
    mean, covariance = moments.mean[off], moments.covariance[off]
    mean[~np.isfinite(mean)] = 0.0
    covariance[~np.isfinite(covariance).all(axis=(1, 2))] = np.eye(mean.shape[1])
    # a spread that the nodes cannot resolve, or that reaches beyond them, is looked at again at a quarter or four times
    values, vectors = np.linalg.eigh(covariance)
    values = np.clip(values, 1 / _MOST_CHANGE, _MOST_CHANGE)
    root = np.linalg.cholesky((vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2))
    centre[off] += (scale[off] @ mean[..., None])[..., 0]
    scale[off] = scale[off] @ root


def move_by_newton(model: Model, z: np.ndarray, off: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> None:
    """Put the nodes of the locals `off` (m, N) at the modes of their terms, as wide as the curvature there says.

    Second derivatives are differences of the slopes: locals do not depend on each other given z, so that all of them
    move at once. Steps that lead down are shortened. Changes centre (m, N, d_y) and scale (m, N, d_y, d_y) in place.
    """
    m, d_y, d_z = len(centre), centre.shape[2], z.shape[1]
    points, out = np.empty((m, model.dim)), np.empty((m, model.dim))
    points[:, :d_z] = z

    def slopes(locals_: np.ndarray) -> np.ndarray:
        points[:, d_z:] = locals_.reshape(m, -1)
        model._gradient(points, out)
        return np.asarray(np.einsum("sji,sj->si", scale[off], out[:, d_z:].reshape(centre.shape)[off]))

    def terms(locals_: np.ndarray) -> np.ndarray:
        points[:, d_z:] = locals_.reshape(m, -1)
        return np.asarray(np.nan_to_num(model.log_terms(points)[1][off], nan=-np.inf))

    value = terms(centre)
    for _ in range(_NEWTON_STEPS):
        slope = slopes(centre)
        curvature = np.empty((len(slope), d_y, d_y))
        for j in range(d_y):
            curvature[:, :, j] = (slope - slopes(centre + _DIFFERENCE * scale[..., j])) / _DIFFERENCE
        curvature = 0.5 * (curvature + np.swapaxes(curvature, 1, 2))
        known = np.isfinite(curvature).all(axis=(1, 2)) & np.isfinite(slope).all(axis=1)
        curvature[~known], slope[~known] = np.eye(d_y), 0.0
        values, vectors = np.linalg.eigh(curvature)
        variances = 1 / np.maximum(values, 1 / _MOST_CHANGE)
        covariance = (vectors * variances[:, None, :]) @ np.swapaxes(vectors, 1, 2)
        step = (scale[off] @ (covariance @ slope[..., None]))[..., 0]
        trial = centre.copy()
        for _ in range(_MOST_CUTS):
            trial[off] = centre[off] + step
            after = terms(trial)
            worse = ~(after >= value - 1e-9 * np.abs(value))
            if not worse.any():
                break
            step[worse] *= 0.3
        trial[off] = np.where(worse[:, None], centre[off], trial[off])
        value = np.where(worse, value, after)
        centre[...] = trial
        scale[off] = scale[off] @ np.linalg.cholesky(covariance)
        decrement = np.einsum("si,sij,sj->s", slope, covariance, slope)  # squared, in the new spread
        if not len(decrement) or (decrement.max() < _CLOSE**2 and np.abs(np.log(variances)).max() < _CLOSE):
            break
