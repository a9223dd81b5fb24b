"""Where the steps on q(z) begin: a Newton step from a fit that has each global by itself."""

from __future__ import annotations

import numpy as np

from pyturingvi.refine.proposals import Gaussian
from pyturingvi.refine.tails import WithGradient

_STEP = 0.1  # of differences of slopes, in the standard deviations of the frame


def newton_step(frame: Gaussian, with_gradient: WithGradient) -> Gaussian | None:
    """The Gaussian of the slope and curvature in the middle of a frame; None where that is no step up.

    A mean-field fit is far too narrow along what its globals share, from where natural gradients take tens of updates;
    this costs half an update.

    Parameters
    ----------
    with_gradient : callable
        Log density (n,) at z (n, d), and its gradient (n, d).
    """
    d = len(frame.mean)
    moved = _STEP * np.concatenate([np.zeros((1, d)), np.eye(d), -np.eye(d)])
    values, slopes = with_gradient(frame.place(moved))
    slopes = slopes @ frame.root
    curvature = (slopes[1 + d :] - slopes[1 : 1 + d]) / (2 * _STEP)
    if not np.isfinite(curvature).all():
        return None
    bends, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    if bends[0] <= 0:
        return None
    covariance = (vectors / bends) @ vectors.T
    mean = frame.place((covariance @ slopes[0])[None])
    if not with_gradient(mean)[0][0] >= values[0]:
        return None
    return Gaussian(mean[0], np.linalg.cholesky(frame.root @ covariance @ frame.root.T))
