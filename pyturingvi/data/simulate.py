"""Data drawn from the three models with a fixed seed: stand-ins and test data, never the real thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.data.critlangacq import N_ITEMS
from pyturingvi.data.fx import CURRENCIES
from pyturingvi.errors import InputError
from pyturingvi.support.arguments import LARGEST_SEED, whole_number

if TYPE_CHECKING:
    import pandas as pd


def simulate_irt(
    n_students: int,
    n_items: int = N_ITEMS,
    *,
    seed: int = 0,
    mu_beta: float = 1.0,
    s_beta: float = 1.0,
    s_gamma: float = 0.5,
    missing: float = 0.0,
) -> pd.DataFrame:
    """Simulated responses of the shape of CritLangAcq, drawn from the item response model.

    The first students and all items are the same for every `n_students`. With the defaults about 70 % of the
    answers are right; the paper's data have other, unknown values.

    Parameters
    ----------
    n_students, n_items : int
        Shape of the table; at least 2 each.
    seed : int
    mu_beta, s_beta, s_gamma : float
        Mean easiness, standard deviation of the items' easiness, and of the log discriminations.
    missing : float
        Share of the answers removed at random, at least 0 and below 1.

    Returns
    -------
    (n_students, n_items) DataFrame
        int8, or float32 with NaN when answers are missing; columns item1, item2, ...
    """
    import pandas as pd

    n_students, n_items = whole_number("n_students", n_students, 2), whole_number("n_items", n_items, 2)
    if not 0 <= missing < 1:
        raise InputError(f"simulate_irt: missing must be at least 0 and below 1, got {missing!r}.")
    seed = whole_number("seed", seed, 0, LARGEST_SEED)
    items, students = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    gamma = np.exp(s_gamma * items.standard_normal(n_items))
    beta = s_beta * items.standard_normal(n_items) + mu_beta
    answers = np.empty((n_students, n_items), dtype=np.int8 if missing == 0 else np.float32)
    for j in range(n_students):
        logit = gamma * students.standard_normal() + beta
        # logit > logistic noise has probability 1/(1 + exp(-logit)).
        answers[j] = logit > students.logistic(size=n_items)
    if missing > 0:
        answers[np.random.default_rng([seed, 2]).random(answers.shape) < missing] = np.nan
    return pd.DataFrame(answers, columns=[f"item{k + 1}" for k in range(n_items)])


def simulate_rpoisson(
    n: int,
    n_covariates: int = 12,
    *,
    seed: int = 0,
    alpha: float = 0.5,
    s_beta: float = 0.2,
    s_eta: float = 1.0,
) -> tuple[pd.DataFrame, pd.Series]:
    """Simulated covariates (standard normal) and counts of the robust Poisson regression.

    Parameters
    ----------
    n, n_covariates : int
        Number of rows and of covariates.
    seed : int
    alpha, s_beta, s_eta : float
        Intercept, standard deviation of the coefficients and of the local noise.

    Returns
    -------
    X : (n, n_covariates) DataFrame of float64, columns x1, x2, ...
    y : (n,) Series of int64
    """
    import pandas as pd

    n, n_covariates = whole_number("n", n, 2), whole_number("n_covariates", n_covariates, 1)
    rng = np.random.default_rng(whole_number("seed", seed, 0, LARGEST_SEED))
    beta = s_beta * rng.standard_normal(n_covariates)
    covariates = rng.standard_normal((n, n_covariates))
    eta = covariates @ beta + alpha + s_eta * rng.standard_normal(n)
    names = [f"x{k + 1}" for k in range(n_covariates)]
    return pd.DataFrame(covariates, columns=names), pd.Series(rng.poisson(np.exp(eta)), name="count")


def simulate_volatility(
    n: int,
    n_series: int = len(CURRENCIES),
    *,
    seed: int = 0,
    mu: float = -10.0,
    phi: float = 0.95,
    tau: float = 0.2,
    correlation: float = 0.3,
) -> pd.DataFrame:
    """Simulated returns of the multivariate stochastic volatility model, as it starts: y_1 ~ N(mu, Q).

    Parameters
    ----------
    n, n_series : int
        Number of returns and of series.
    seed : int
    mu, phi, tau : float
        Mean, persistence and innovation standard deviation of every series' log variance; exp(-10/2) is a
        daily standard deviation of 0.7 %.
    correlation : float
        Between the innovations of any two series, from 0 up to but not including 1.

    Returns
    -------
    (n, n_series) DataFrame of float64, not centred; columns series1, series2, ...
    """
    import pandas as pd

    n, n_series = whole_number("n", n, 2), whole_number("n_series", n_series, 1)
    if not 0 <= correlation < 1:
        raise InputError(f"simulate_volatility: correlation must be at least 0 and below 1, got {correlation!r}.")
    rng = np.random.default_rng(whole_number("seed", seed, 0, LARGEST_SEED))
    common, own = rng.standard_normal((n, 1)), rng.standard_normal((n, n_series))
    steps = tau * (np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own)
    centred = np.zeros((n, n_series))
    for t in range(n):
        centred[t] = steps[t] if t == 0 else phi * centred[t - 1] + steps[t]
    returns = np.exp((mu + centred) / 2) * rng.standard_normal((n, n_series))
    return pd.DataFrame(returns, columns=[f"series{k + 1}" for k in range(n_series)])
