"""Updates that proximal SGD with a fixed stepsize needs at most (paper, section 3.2, and its appendix)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families import Family, get_family
from pyturingvi.support.arguments import real_array, real_number, whole_number
from pyturingvi.theory.dimension import effective_dimensions
from pyturingvi.theory.targets import Components
from pyturingvi.theory.variance import gradient_variance_bound


@dataclass(frozen=True)
class Complexity:
    """Constants of the complexity theorem, and the stepsize and number of updates that they promise.

    Parameters
    ----------
    variance : float
        sigma^2, the bound on the gradient's variance at lambda*.
    expected_smoothness : float
        calL: `E||g(lambda) - g(lambda')||^2 <= 2 calL D_f(lambda, lambda')`.
    strong_convexity : float
        mu.
    squared_distance : float
        `Delta_0^2 = ||lambda_0 - lambda*||^2`.
    epsilon : float
        The accuracy wanted, in squared distance.

    Notes
    -----
    Two misprints of the paper are set right here, both by its own lemma, which needs a stepsize of at most
    `min{1/(2 calL), 1/mu}`: the corollary prints the stepsize as `min{eps mu/(4 sigma^2), 2 calL/mu, mu}`, and
    C_bias, which is `2 calL/mu`, with `+ kappa` in place of `+ 2 kappa`.
    """

    variance: float
    expected_smoothness: float
    strong_convexity: float
    squared_distance: float
    epsilon: float

    def __post_init__(self) -> None:
        for name in ("variance", "expected_smoothness", "strong_convexity", "squared_distance", "epsilon"):
            value = real_number(name, getattr(self, name))
            least_is_zero = name in ("variance", "squared_distance")
            if not (math.isfinite(value) and (value > 0 or (least_is_zero and value == 0))):
                raise InputError(f"{name} must be a finite number {'of at least' if least_is_zero else 'above'} 0.")
            object.__setattr__(self, name, value)

    @property
    def c_var(self) -> float:
        """`C_var = 4 sigma^2 / mu^2 = 4 N/M (d* + k) sum_n kappa_n^2 (||m*_n - zbar_n||^2 + ||C*_n||_F^2)`."""
        return 4 * self.variance / self.strong_convexity**2

    @property
    def c_bias(self) -> float:
        """`C_bias = 2 calL / mu = 2 N/M (d* + k) sum_n kappa_n^2 + 2 kappa`."""
        return 2 * self.expected_smoothness / self.strong_convexity

    @property
    def stepsize(self) -> float:
        """`gamma = min{eps mu / (4 sigma^2), 1 / (2 calL), 1 / mu}`."""
        largest = min(1 / (2 * self.expected_smoothness), 1 / self.strong_convexity)
        if self.variance == 0:
            return largest
        return min(self.epsilon * self.strong_convexity / (4 * self.variance), largest)

    @property
    def n_updates(self) -> int:
        """`T = max{C_var / eps, C_bias, 1} log(2 Delta_0^2 / eps)`, rounded up; 0 where the start is that close."""
        if 2 * self.squared_distance <= self.epsilon:
            return 0
        rate = max(self.c_var / self.epsilon, self.c_bias, 1.0)
        return math.ceil(rate * math.log(2 * self.squared_distance / self.epsilon))

    def distance_bound(self, n_updates: int, stepsize: float | None = None) -> float:
        """`(1 - gamma mu)^T Delta_0^2 + 2 gamma sigma^2 / mu`, the lemma's bound on `E||lambda_T - lambda*||^2`.

        Parameters
        ----------
        n_updates : int
            T.
        stepsize : float, optional
            gamma; by default the promised one.

        Raises
        ------
        InputError
            For a stepsize that is not above 0 and at most `min{1/(2 calL), 1/mu}`, where the lemma says nothing.
        """
        n_updates = whole_number("n_updates", n_updates, 0)
        gamma = self.stepsize if stepsize is None else real_number("stepsize", stepsize)
        largest = min(1 / (2 * self.expected_smoothness), 1 / self.strong_convexity)
        if not 0 < gamma <= largest * (1 + 1e-12):
            raise InputError(f"stepsize must lie in (0, {largest:g}] for this bound, got {gamma!r}.")
        shrink = gamma * self.strong_convexity
        # T may be 1e10 and more, where a power of the rounded 1 - gamma mu would lose digits
        contraction = math.exp(n_updates * math.log1p(-shrink)) if shrink < 1 else float(n_updates == 0)
        return contraction * self.squared_distance + 2 * gamma * self.variance / self.strong_convexity


def fixed_stepsize_complexity(
    components: Components,
    family: str | Family,
    start: Any,
    optimum: Any,
    strong_convexity: float,
    smoothness: float,
    n_samples: int = 8,
    epsilon: float = 1.0,
) -> Complexity:
    """Constants of the complexity theorem for proximal SGD with a fixed stepsize (paper, section 3.2).

    `T >= max(C_var / eps, C_bias) log(2 Delta_0^2 / eps)` updates give `E||lambda_T - lambda*||^2 <= eps`. On the
    synthetic target (`pyturingvi reproduce theory`) the promise is kept, and safe rather than sharp. At
    the theorem's own stepsize 2.2 times fewer updates are enough, for every family and n: the lemma contracts by
    `1 - gamma mu` an update where the squared distance contracts by its square, and reserves half of eps for noise.
    That stepsize is so small that the distance left after T is 120 to 3,300 times below eps; at the best stepsize 65
    (structured, n = 5) to 93,000 (mean-field, n = 500) times fewer updates do. The promised T grows like n^2
    (mean-field, structured) and n^3 (full-rank), the one needed at the best stepsize like n and n^2.

    Parameters
    ----------
    components : Components
        Terms l_n with their L_n and zbar_n.
    family : str or Family
    start, optimum : (p,) array
        Flat parameters lambda_0 and lambda*.
    strong_convexity, smoothness : float
        mu and L of the whole `l`.
    n_samples : int
        M.
    epsilon : float

    Returns
    -------
    Complexity

    Raises
    ------
    InputError
        For L below mu, and as in `gradient_variance_bound`.
    """
    chosen = get_family(family)
    # tells what is wrong with a vector or the family before the two are compared
    variance = gradient_variance_bound(components, chosen, optimum, n_samples)
    gradient_variance_bound(components, chosen, start, n_samples)
    smoothness, strong_convexity = (
        real_number("smoothness", smoothness),
        real_number("strong_convexity", strong_convexity),
    )
    if not smoothness >= strong_convexity > 0:
        raise InputError(f"smoothness must be at least strong_convexity > 0, got {smoothness!r}, {strong_convexity!r}.")
    difference = real_array("start", start) - real_array("optimum", optimum)
    d_star = int(effective_dimensions(components.layout, chosen, components.coordinates).max())
    terms = components.n_terms / n_samples * (d_star + chosen.base_distribution.kurtosis)
    expected_smoothness = terms * float(np.sum(components.smoothness**2)) / strong_convexity + smoothness
    return Complexity(variance, expected_smoothness, strong_convexity, float(difference @ difference), epsilon)
