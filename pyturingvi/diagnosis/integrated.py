"""The log density of the globals with every local integrated out, by quadrature around the fitted conditionals.

Where the locals are independent given the globals z, the density of z is `p(z) prod_n int p(y_n, x_n | z) dy_n`: N
integrals over d_y variables in place of one over all. The fit says where each of them has its mass: Gauss-Hermite
nodes around the mean of y_n given z, as wide as its spread, and moved to where the mass turns out to be. Beyond
two variables a local the nodes are draws.
"""

from __future__ import annotations

import math

import numpy as np

from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model

N_NODES = 11  # along each variable of a local: the sum of 2,000 integrals is right to some hundredths
LARGEST_GRID = 121
N_DRAWS = 256  # nodes of a local where a grid would have more than LARGEST_GRID
_CHUNK_BYTES = 2 << 20  # what the model computes on should stay in cache
_ROUNDS = 4
_SHIFT, _NARROW, _WIDE = 0.7, 0.6, 1.5  # how far a local may be from where its nodes are, in their own spread


def log_marginal(model: Model, parts: GlobalsAndLocals, noise: np.ndarray, seed: int = 0) -> np.ndarray:
    """Log density of the globals at `z = mean + scale @ noise`, the locals integrated out: (n,) for noise (n, d_z).

    Parameters
    ----------
    model : Model
        One that has `log_terms`.
    parts : GlobalsAndLocals
        Where the nodes are put.
    seed : int
        For the nodes that are draws.

    Returns
    -------
    (n,) array
        Normalized as the model is: `log p(z, x)`.
    """
    layout = model.layout
    if not layout.n_local:
        return np.asarray(model.log_density(parts.mean + noise @ parts.scale.T), dtype=np.float64)
    grid = N_NODES**layout.local_dim <= LARGEST_GRID
    nodes, log_weights = _grid(layout.local_dim) if grid else _draws(layout.n_local, layout.local_dim, seed)
    # the points of one node at a time, and of all nodes one number a local
    row_bytes = 8 * (4 * layout.dim + len(nodes) * layout.n_local)
    rows = max(1, _CHUNK_BYTES // row_bytes)
    found = [
        _log_marginal_chunk(
            model, parts, noise[first : first + rows], nodes, log_weights, rounds=_ROUNDS if grid else 0
        )
        for first in range(0, len(noise), rows)
    ]
    return np.concatenate(found)


def _grid(local_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (K, 1, d_y) of a tensor grid, and the log of weight over normal density (K, 1)."""
    t, weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    axes = np.meshgrid(*[t] * local_dim, indexing="ij")
    logs = np.meshgrid(*[np.log(weights) + 0.5 * t * t] * local_dim, indexing="ij")
    nodes = np.stack([axis.ravel() for axis in axes], axis=1)
    return nodes[:, None, :], np.sum(logs, axis=0).reshape(-1, 1)


def _draws(n_local: int, local_dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of opposite draws (K, N, d_y) from a normal distribution half as wide again, the same for every z.

    With one set of draws for all z their error is a smooth function of z, whose constant cancels between weights.
    """
    wide = 1.5
    half = np.random.default_rng(seed).standard_normal((N_DRAWS // 2, n_local, local_dim))
    unit = np.concatenate([half, -half])
    constant = local_dim * (math.log(wide) + 0.5 * math.log(2 * math.pi)) - math.log(N_DRAWS)
    return wide * unit, 0.5 * (unit * unit).sum(axis=2) + constant


def _log_marginal_chunk(
    model: Model,
    parts: GlobalsAndLocals,
    noise: np.ndarray,
    nodes: np.ndarray,
    log_weights: np.ndarray,
    rounds: int,
) -> np.ndarray:
    layout = model.layout
    z = parts.mean + noise @ parts.scale.T
    centre = (parts.local_mean + noise @ parts.border).reshape(len(z), layout.n_local, layout.local_dim)
    scale = parts.local_scale[None]
    total, shares = _sum_of_integrals(model, z, centre, scale, nodes, log_weights)
    todo = np.arange(len(z))
    for _ in range(rounds):
        rows, locals_, mean, factor = _misplaced(shares, nodes[:, 0, :])
        if not len(rows):
            break
        centre, scale = centre.copy(), np.array(np.broadcast_to(scale, (len(centre), *scale.shape[1:])))
        centre[rows, locals_] += (scale[rows, locals_] @ mean[..., None])[..., 0]
        scale[rows, locals_] = scale[rows, locals_] @ factor
        again = np.unique(rows)
        todo, centre, scale = todo[again], centre[again], scale[again]
        total[todo], shares = _sum_of_integrals(model, z[todo], centre, scale, nodes, log_weights)
    return total


def _sum_of_integrals(
    model: Model,
    z: np.ndarray,
    centre: np.ndarray,
    scale: np.ndarray,
    nodes: np.ndarray,
    log_weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Log density (m,) at z, and each node's share of each integral (K, m, N)."""
    (m, n_local, d_y), n_global = centre.shape, z.shape[1]
    points = np.empty((m, n_global + n_local * d_y))
    points[:, :n_global] = z
    locals_ = points[:, n_global:].reshape(m, n_local, d_y)
    logs = np.empty((len(nodes), m, n_local))
    for k, node in enumerate(nodes):
        locals_[...] = centre
        for i in range(d_y):
            for j in range(i + 1):
                locals_[..., i] += scale[..., i, j] * node[:, j]
        prior, logs[k] = model.log_terms(points)
        logs[k] += log_weights[k]
    with np.errstate(invalid="ignore", divide="ignore"):
        largest = np.nan_to_num(logs.max(axis=0), nan=-np.inf, posinf=np.inf, neginf=-1e300)
        logs -= largest
        shares = np.exp(logs, out=logs)
        sums = shares.sum(axis=0)
        shares /= sums
        determinants = sum(np.log(np.abs(scale[..., i, i])) for i in range(d_y))
        return prior + (np.log(sums) + largest + determinants).sum(axis=1), shares


def _misplaced(shares: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows and locals whose mass is not where their nodes are, and where it is: its means, and scales that fit it."""
    d_y = t.shape[1]
    means = [np.tensordot(t[:, i], shares, axes=1) for i in range(d_y)]
    variances = [np.tensordot(t[:, i] ** 2, shares, axes=1) - means[i] ** 2 for i in range(d_y)]
    off = np.zeros(shares.shape[1:], dtype=bool)
    for mean, variance in zip(means, variances, strict=True):
        off |= (np.abs(mean) > _SHIFT) | (variance < _NARROW**2) | (variance > _WIDE**2)
    rows, locals_ = np.nonzero(off)
    mean = np.stack([one[off] for one in means], axis=1)
    covariance = np.einsum("ks,ki,kj->sij", shares[:, off], t, t, optimize=True) - mean[:, :, None] * mean[:, None, :]
    # a spread that the nodes cannot resolve, or that reaches beyond them, is looked at again at a quarter or four times
    values, vectors = np.linalg.eigh(covariance)
    values = np.clip(values, 1 / 16, 16.0)
    return rows, locals_, mean, np.linalg.cholesky((vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2))
