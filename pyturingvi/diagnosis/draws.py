"""Draws of a fitted distribution with `log p - log q` at each: the ELBO with little noise near its optimum."""

from __future__ import annotations

import numpy as np

from pyturingvi.families.base import BoundFamily, Family
from pyturingvi.models.base import Model
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator

_CHUNK_BYTES = 32 << 20


def log_ratios(
    model: Model, bound: BoundFamily, flat: np.ndarray, n: int, seed: int, keep: int, pairs: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`log p - log q` (n,) at n draws, the draws' globals (n, d_z), and the first entries of their noise (n, keep).

    With `pairs` each second draw has the noise of the one before with the sign turned; n is even then.
    """
    work, d_z = bound.from_flat(flat), model.layout.n_global
    source = generator(np, seed, SAMPLE_STREAM, 2)
    rows = (
        2 * max(1, _CHUNK_BYTES // (16 * bound.noise_dim)) if pairs else max(1, _CHUNK_BYTES // (8 * bound.noise_dim))
    )
    ratios, globals_, heads = [], [], []
    for first in range(0, n, rows):
        noise = np.empty((min(rows, n - first), bound.noise_dim))
        bound.base.fill(source, noise)
        if pairs:
            np.negative(noise[::2], out=noise[1::2])
        points = np.empty((len(noise), model.dim))
        with np.errstate(all="ignore"):
            bound.transform(work, noise, points)
            density = np.asarray(model.log_density(points), dtype=np.float64)
            ratios.append(density - np.asarray(bound.log_q(work, points), dtype=np.float64))
        globals_.append(points[:, :d_z].copy())
        heads.append(noise[:, :keep].copy())
    return np.concatenate(ratios), np.concatenate(globals_), np.concatenate(heads)


def elbo_at(model: Model, family: Family, flat: np.ndarray, seed: int, n: int = 64) -> tuple[float, float] | None:
    """ELBO and its standard error from a few draws, as a run's trace has them; None where they cannot be had."""
    bound = family.bind(model.layout)
    work, noise, points = bound.from_flat(flat), np.empty((n, bound.noise_dim)), np.empty((n, model.dim))
    bound.base.fill(generator(np, seed, SAMPLE_STREAM, 4), noise)
    try:
        with np.errstate(all="ignore"):
            bound.transform(work, noise, points)
            density = np.asarray(model.log_density(points), dtype=np.float64)
            return float(density.mean() + bound.entropy(work)), float(density.std(ddof=1) / np.sqrt(n))
    except Exception:  # a log density of the user's own, at points that the run itself did not visit
        return None
