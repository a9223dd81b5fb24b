"""Figures 1 and 2 (paper, section 4.1): updates that proximal SGD needs on an isotropic Gaussian.

The published curves are those of M = 10 Monte Carlo samples, although the text says 8, and their T is the number of
updates made minus one.
"""

from pyturingvi.reproduce.synthetic.problem import (
    FAMILIES,
    MAX_UPDATES,
    NOT_REACHED,
    Reached,
    finite_points,
    published_curves,
    published_scaling,
    stepsizes,
    updates_to_accuracy,
)

__all__ = [
    "FAMILIES",
    "MAX_UPDATES",
    "NOT_REACHED",
    "Reached",
    "finite_points",
    "published_curves",
    "published_scaling",
    "stepsizes",
    "updates_to_accuracy",
]
