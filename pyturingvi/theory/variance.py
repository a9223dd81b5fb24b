"""Variance of the reparameterization gradient: the paper's bound, the exact value, a measurement (section 3.2).

With G the gradient of `l = -log p` at `C u + m`, the estimator averages `(G, pattern(G u'))` over M draws of u.

`pyturingvi reproduce theory` sets the three side by side on two Gaussian targets, for n = 10 to 160, three families and
three bases. The bound holds in all 180 cases; it is loose by a factor of 28 at least and 23,000 at most. At the
optimum, which sets the complexity, that factor grows like n (isotropic target, Gaussian base: about 3 n for
structured, 5 n for full-rank, 9 n for mean-field). It hardly grows, from 32 to 97, only at the start of the target
whose terms all pull at z, and there for structured and mean-field only. The slack comes from three steps of the proof:

- the variance of a sum of N terms is bounded by N times the sum of their variances, which is reached only where all
  terms pull alike;
- d* is the largest count of columns, while the full-rank terms average about half of it (`per_term=True` keeps each
  term's own count);
- every row of C_n is charged with all columns that C_n has, and every direction with L_n, although a lower triangle
  lacks half of them and a diagonal all but one. (The paper's lemma on the Jacobian has an equality there; it is one
  only where the rows of C_n share their nonzero columns, and "at most" otherwise, which is what the bound needs.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families import Family, LocationScale, Structured, get_family, get_location_scale
from pyturingvi.models import Model
from pyturingvi.optimize.noise import GRADIENT_STREAM, generator
from pyturingvi.support.arguments import LARGEST_SEED, whole_number
from pyturingvi.theory.dimension import effective_dimensions
from pyturingvi.theory.energy import checked_model, checked_params, energy_gradient
from pyturingvi.theory.targets import Components, QuadraticTarget


class Measured(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: float
    std_error: float


def gradient_variance_bound(
    components: Components, family: str | Family, params: Any, n_samples: int = 8, per_term: bool = False
) -> float:
    """The paper's bound on the trace of the gradient's variance (section 3.2, gradient variance theorem).

    `tr V g_M <= N/M (d* + k) sum_n L_n^2 (||m_n - zbar_n||^2 + ||C_n||_F^2)`, with m_n and C_n the rows that l_n
    uses and k the kurtosis of the base distribution. It holds for every location-scale family with a base of
    mean 0, variance 1, third moment 0 and finite kurtosis; how loose it is, is told at the top of this module.

    Parameters
    ----------
    components : Components
        `QuadraticTarget.components`, or your own.
    family : str or Family
    params : (p,) array
        Flat parameters lambda, for instance `fit.params`.
    n_samples : int
        M.
    per_term : bool
        Keep `sum_j delta_{n,j}` of each term where the theorem has their maximum d* (the last step but one of
        its proof): at most as large, and still a bound.

    Returns
    -------
    float

    Raises
    ------
    InputError
        For the non-standardized structured family, whose parameters are not (m, C); for params of another length.
    """
    chosen = _location_scale(family)
    if not isinstance(components, Components):
        raise InputError(f"components must be a tv.theory.Components, got {type(components).__name__}.")
    layout = components.layout
    params = checked_params(params, chosen, layout)
    n_samples = whole_number("n_samples", n_samples, 1)
    bound = chosen.bind(layout)
    location, scale = bound.location(params), bound.scale(params)
    rows_squared = np.bincount(scale.indices, weights=scale.data**2, minlength=layout.dim)
    counts = effective_dimensions(layout, chosen, components.coordinates)
    if not per_term:
        counts = np.full_like(counts, counts.max())
    sizes = [
        ((location[rows] - point) ** 2).sum() + rows_squared[rows].sum()
        for rows, point in zip(components.coordinates, components.stationary, strict=True)
    ]
    weights = (counts + chosen.base_distribution.kurtosis) * components.smoothness**2
    return float(components.n_terms / n_samples * (weights @ sizes))


def exact_gradient_variance(target: QuadraticTarget, family: str | Family, params: Any, n_samples: int = 8) -> float:
    """Trace of the gradient's variance on a Gaussian target, in closed form.

    With `G = A u + b`, `A = P C` and `b = P (m - mean)`: the location gives `||A||_F^2`, and each entry (i, j) of
    the pattern `||A_i||^2 + b_i^2 + (k - 2) A_ij^2`, the variance of `G_i u_j`, for any base with kurtosis k.

    Parameters
    ----------
    target : QuadraticTarget
    family : str or Family
    params : (p,) array
    n_samples : int

    Returns
    -------
    float

    Raises
    ------
    InputError
        As in `gradient_variance_bound`.
    """
    chosen = _location_scale(family)
    if not isinstance(target, QuadraticTarget):
        raise InputError(f"target must be a tv.theory.QuadraticTarget, got {type(target).__name__}.")
    layout = target.layout
    params = checked_params(params, chosen, layout)
    n_samples = whole_number("n_samples", n_samples, 1)
    bound = chosen.bind(layout)
    scale = bound.scale(params)
    slope = target.precision @ scale.toarray()
    offset = target.precision @ (bound.location(params) - target.mean)
    rows, columns = scale.indices, np.repeat(np.arange(layout.dim), np.diff(scale.indptr))
    squares = (slope**2).sum(axis=1)
    in_pattern = (squares + offset**2) @ np.bincount(rows, minlength=layout.dim)
    in_pattern += (chosen.base_distribution.kurtosis - 2) * (slope[rows, columns] ** 2).sum()
    return float((squares.sum() + in_pattern) / n_samples)


def measured_gradient_variance(
    model: Model, family: str | Family, params: Any, n_samples: int = 8, n_pairs: int = 256, seed: int = 0
) -> Measured:
    """Trace of the variance of the gradient estimator that a fit uses, by simulation.

    Half the squared distance of two independent estimates has the trace as its mean; the average over `n_pairs`
    of them is unbiased, and their spread gives its standard error. (The base needs a finite eighth moment for
    that: Student-t with nu above 8.) The gradient is the energy's; that of the entropy is not random.

    Parameters
    ----------
    model : Model
    family : str or Family
        Any, the non-standardized structured family included.
    params : (p,) array
    n_samples : int
        M.
    n_pairs : int
        At least 2.
    seed : int

    Returns
    -------
    Measured

    Raises
    ------
    InputError
        For params of another length, or where the gradient is not finite.
    """
    chosen = get_family(family)
    bound = chosen.bind(checked_model(model).layout)
    work = bound.from_flat(checked_params(params, chosen, model.layout))
    n_samples = whole_number("n_samples", n_samples, 1)
    n_pairs = whole_number("n_pairs", n_pairs, 2)
    source = generator(np, whole_number("seed", seed, 0, LARGEST_SEED), GRADIENT_STREAM)
    noise = np.empty((n_samples, bound.noise_dim))
    values = np.empty(n_pairs)
    with energy_gradient(model, bound, n_samples) as gradient:

        def estimate() -> np.ndarray:
            bound.base.fill(source, noise)
            return gradient(work, noise)

        for k in range(n_pairs):
            difference = estimate() - estimate()
            values[k] = 0.5 * (difference @ difference)
    return Measured(float(values.mean()), float(values.std(ddof=1) / np.sqrt(n_pairs)))


def _location_scale(family: str | Family) -> LocationScale:
    chosen = get_location_scale(family)
    if isinstance(chosen, Structured) and not chosen.standardized:
        raise InputError(
            "family: the bound is for parameters (m, C); the non-standardized structured family has (m, A, C). "
            "Use tv.Structured(), or measured_gradient_variance."
        )
    return chosen
