"""Draws of the locals given the globals: one of a few candidates around each local's mass, by its weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.diagnosis.nodes import Rule, is_grid

if TYPE_CHECKING:
    from pyturingvi.diagnosis.integrated import LocalIntegrals

_CANDIDATES = {1: 24, 2: 96}  # more variables: draws, as many as the integrals have
_WIDE = 1.3  # candidates somewhat wider than the local have bounded weights
_CHUNK = 32


def draw_locals(integrals: LocalIntegrals, z: np.ndarray, source: np.random.Generator) -> np.ndarray:
    """Draws (n, N d_y) from `p(y | z, x)`, one for each row of z (n, d_z).

    The candidates of a local are a lattice, shifted at random, sent through the normal quantiles around the moments of
    its nodes: their sum is nearly an integral, so that taking one by its weight is nearly a draw.
    """
    found = [_chunk(integrals, z[first : first + _CHUNK], source) for first in range(0, len(z), _CHUNK)]
    return np.concatenate(found)


def _chunk(integrals: LocalIntegrals, z: np.ndarray, source: np.random.Generator) -> np.ndarray:
    from scipy.special import ndtri  # a quarter of a second to import

    layout = integrals.model.layout
    n, d_y = layout.n_local, layout.local_dim
    at = integrals.at(z)
    centre, covariance = integrals.moments_of(at)
    # a floor: a local whose mass lies on one node has no spread that the nodes could tell
    scale = np.linalg.cholesky(covariance + 1e-4 * at.scale @ np.swapaxes(at.scale, 2, 3))
    size = _CANDIDATES.get(d_y, integrals.rule.count) if is_grid(d_y) else integrals.rule.count
    out = np.empty((len(z), n, d_y))
    for row in range(len(z)):
        t = ndtri((_lattice(size, d_y)[:, None] + source.uniform(size=(n, d_y))) % 1.0)
        t = np.clip(np.nan_to_num(t, posinf=9.0, neginf=-9.0), -9.0, 9.0)
        own = integrals.with_rule(Rule(_WIDE * t, 0.5 * (t * t).sum(axis=2), size))
        shares = own.sums(z[row : row + 1], centre[row : row + 1], scale[row : row + 1])[1][0]
        chosen = (np.cumsum(shares, axis=0) < source.uniform(size=n)).sum(axis=0)
        t = _WIDE * t[np.minimum(chosen, size - 1), np.arange(n)]
        out[row] = centre[row] + (scale[row] @ t[..., None])[..., 0]
    return out.reshape(len(z), -1)


def _lattice(size: int, d_y: int) -> np.ndarray:
    """Points (size, d_y) spread over the unit cube (a Korobov lattice by the generalized golden ratio)."""
    ratio = 1.5
    for _ in range(30):
        ratio = (1 + ratio) ** (1 / d_y)
    steps = np.array([1.0 / size, *(ratio ** -np.arange(1, d_y))])
    return np.asarray((np.arange(size)[:, None] * steps) % 1.0)
