"""Updates that proximal SGD needs on an isotropic Gaussian (paper, section 4.1): one run, and the published values.

The published curves are those of M = 10 Monte Carlo samples, although the text says 8, and their T is the number of
updates made minus one; both were found by simulation, and the tests show the first at a few points.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import ConvergenceWarning
from pyturingvi.fitting import fit
from pyturingvi.models.gaussian import IsotropicGaussian
from pyturingvi.optimize.rules import ProximalSGD
from pyturingvi.reproduce.tables import published
from pyturingvi.support.interrupts import interrupts_raised

if TYPE_CHECKING:
    import pandas as pd

    from pyturingvi.result import Fit

PUBLISHED_SAMPLES = 10
MAX_UPDATES = 60_000
NOT_REACHED = 59_999  # what the published curves print
CURVE_SIZES = (100, 200, 300)  # n of figure 1
SCALING_SIZES = tuple(range(100, 501, 50))  # n of figure 2


# ---- published ----------------------------------------------------------------------------------------------
def stepsizes() -> np.ndarray:
    """The 50 stepsizes of figure 1, `10^linspace(-6, -1, 50)`."""
    return 10.0 ** np.linspace(-6, -1, 50)


@functools.cache
def published_curves() -> pd.DataFrame:
    """Figure 1 as published: columns family, n, stepsize and its number `step`, iterations (59,999 = not reached)."""
    curves = published("synthetic_iterations_vs_stepsize.csv")
    curves["step"] = np.rint((np.log10(curves["stepsize"]) + 6) * 49 / 5).astype(int)
    return curves


@functools.cache
def published_scaling() -> pd.DataFrame:
    """Figure 2 as published: columns family, n, iterations."""
    return published("synthetic_scaling.csv")


def finite_points(family: str, n: int) -> pd.DataFrame:
    """The points of one published curve at which the accuracy was reached, by rising stepsize.

    The last row is the last point before divergence, whose published value is a noisy border.
    """
    curves = published_curves()
    chosen = curves[(curves["family"] == family) & (curves["n"] == n) & (curves["iterations"] < NOT_REACHED)]
    return chosen.sort_values("stepsize").reset_index(drop=True)


@functools.cache
def curve_ends(family: str, n: int) -> tuple[int, int]:
    """Numbers of the first and the last stepsize at which a curve of figure 1 reaches the accuracy."""
    steps = finite_points(family, n).step
    return int(steps.min()), int(steps.max())


@functools.cache
def published_t(family: str, n: int, step: int) -> float:
    """T of figure 1; 59,999 where the accuracy is not reached."""
    curves = published_curves()
    return float(curves.iterations[(curves.family == family) & (curves.n == n) & (curves.step == step)].item())


@functools.cache
def best_t(family: str, n: int) -> float:
    """T of figure 2."""
    scaling = published_scaling()
    return float(scaling.iterations[(scaling.family == family) & (scaling.n == n)].item())


# ---- one run ------------------------------------------------------------------------------------------------
def settings_of(
    family: str,
    n: int,
    stepsize: float,
    n_samples: int = PUBLISHED_SAMPLES,
    seed: int = 0,
    max_updates: int = MAX_UPDATES,
    stop_within: float | None = 1.0,
    engine: str = "numpy",
) -> dict[str, Any]:
    """Settings of `tv.fit` or of a cell of `tv.sweep`: proximal SGD from m = 0, C = I on n local variables.

    It stops within a squared distance of the optimum m* = 5, C* = sqrt(0.1) I; with None all updates are made. The
    engines draw different noise from the same seed.
    """
    return {
        "model": IsotropicGaussian(n),
        "family": family,
        "optimizer": ProximalSGD(stepsize),
        "n_iterations": max_updates,
        "n_samples": n_samples,
        "elbo_every": max_updates,
        "elbo_samples": 1,
        "init_scale": 1.0,
        "seed": seed,
        "engine": engine,
        "stop_within": stop_within,
    }


def proximal_sgd(*arguments: Any, **more: Any) -> Fit:
    """The fit of `settings_of` these arguments; one that diverges is a result too."""
    with interrupts_raised(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit(**settings_of(*arguments, **more), progress=False, n_threads=1)
