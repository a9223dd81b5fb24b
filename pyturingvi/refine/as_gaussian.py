"""A refined fit as a Gaussian of its family: the globals' moments, and those of the locals given them."""

from __future__ import annotations

import numpy as np

from pyturingvi.diagnosis.chained_locals import ChainedLocals
from pyturingvi.diagnosis.integrals import IntegratedDensity
from pyturingvi.families.conditional import GlobalsAndLocals

_ROWS_A_SLOPE = 4  # globals for each slope of a local in them; with fewer the fit's own slopes stay


def as_gaussian(
    integrals: IntegratedDensity,
    parts: GlobalsAndLocals,
    mean: np.ndarray,
    scale: np.ndarray,
    z: np.ndarray,
    *,
    chained: bool,
) -> np.ndarray:
    """Flat parameters (p,) of the structured Gaussian with these moments, or of the Markov one.

    Parameters
    ----------
    parts : GlobalsAndLocals
        The fit that was refined: its conditionals are what the locals' means are told from.
    mean, scale : (d_z,), (d_z, d_z) array
        Of the globals.
    z : (n, d_z) array
        Draws of them, over which the locals' moments are taken.
    chained : bool
        Whether neighbours are correlated given the globals.
    """
    n, d_y, _ = parts.local_scale.shape
    slopes = np.linalg.solve(parts.scale.T, parts.border)  # of the locals in z, transposed: (d_z, N d_y)
    centred = z - z.mean(axis=0)
    total, along = np.zeros(n * d_y), np.zeros_like(slopes)
    square, inner, lagged = np.zeros((n, d_y, d_y)), np.zeros((n, d_y, d_y)), np.zeros((max(n - 1, 0), d_y, d_y))
    first = 0
    for part in integrals.chunks(z):
        if chained and isinstance(integrals, ChainedLocals):
            means, covariances, between = integrals.moments_and_neighbours(part)
            lagged += between.sum(axis=0)
        else:
            means, covariances = integrals.moments(part)
        rest = means - (parts.local_mean + (part - parts.mean) @ slopes).reshape(means.shape)
        total += rest.sum(axis=0).ravel()
        along += centred[first : first + len(part)].T @ rest.reshape(len(part), -1)
        first += len(part)
        square += np.einsum("mni,mnj->nij", rest, rest)
        inner += covariances.sum(axis=0)
        if chained:
            lagged += np.einsum("mni,mnj->nij", rest[:, 1:], rest[:, :-1])
    total /= len(z)
    offset = parts.local_mean + (mean - parts.mean) @ slopes + total
    means = total.reshape(n, d_y)
    square -= len(z) * means[:, :, None] * means[:, None, :]
    lagged -= len(z) * means[1:, :, None] * means[:-1, None, :]
    if len(z) >= _ROWS_A_SLOPE * z.shape[1]:  # what the globals tell of the locals beyond that
        more = np.linalg.lstsq(centred.T @ centred, along, rcond=None)[0]
        offset += (mean - z.mean(axis=0)) @ more
        slopes = slopes + more
        by_local, explained = more.reshape(-1, n, d_y), along.reshape(-1, n, d_y)
        square -= np.einsum("kni,knj->nij", by_local, explained)
        lagged -= np.einsum("kni,knj->nij", by_local[:, 1:], explained[:, :-1])
    found = GlobalsAndLocals(mean, scale, offset, scale.T @ slopes, np.linalg.cholesky((square + inner) / len(z)))
    return found.markov_flat(lagged / len(z)) if chained else found.structured_flat()
