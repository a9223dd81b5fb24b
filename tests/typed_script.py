"""A user's script: `mypy` holds it to --strict (pyproject.toml names it), and test_typed.py runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

import pyturingvi as tv

if TYPE_CHECKING:
    import xarray as xr

Floats = npt.NDArray[np.float64]


def regression(n: int) -> tv.models.RobustPoisson:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(n, 2)), columns=["age", "dose"])
    return tv.models.RobustPoisson(table, rng.poisson(1.0, size=n))


def normal(points: Floats) -> tuple[Floats, Floats]:
    return -0.5 * (points**2).sum(axis=1), -points


def likelihood(points: Floats) -> Floats:
    return -0.5 * (points[:, :1] - np.zeros(4)) ** 2


def by_adam(model: tv.models.Model, family: Literal["mean-field", "structured"], updates: int) -> tv.Fit:
    return tv.fit(
        model,
        family,
        stepsize=0.01,
        n_iterations=updates,
        engine="numpy",
        device="cpu",
        dtype="float64",
        progress=False,
    )


def main() -> dict[str, float]:
    fit = by_adam(regression(10), "structured", 20)
    summary: pd.DataFrame = fit.summary(100)
    draws: dict[str, npt.NDArray[np.floating]] = fit.sample(10)
    own = tv.models.LogDensity(normal, tv.Layout(3, 0, 0), observed=np.zeros(4), log_likelihood=likelihood)
    fitted: tv.Fit = tv.fit(own, tv.FullRank(), tv.Adam(tv.step_decay(0.1)), n_iterations=5, progress=False)
    tree: xr.DataTree = fitted.to_arviz(10)
    return {
        "alpha": float(draws["alpha"].mean()),
        "mean": float(summary["mean"].iloc[0]),
        "values": tree["log_likelihood"]["y"].size,
        "updates": fit.n_updates,
    }


def mistakes(model: tv.models.Model) -> list[Callable[[], object]]:
    """What mypy refuses: under --strict, an `ignore` that nothing needs is an error."""
    return [
        lambda: tv.fit(model, "strctured"),  # type: ignore[arg-type]
        lambda: tv.fit(model, engine="jula"),  # type: ignore[arg-type]
        lambda: tv.fit(model, device="gpu"),  # type: ignore[arg-type]
        lambda: tv.fit(model, dtype="float16"),  # type: ignore[arg-type]
        lambda: tv.fit(model, stepsize="0.1"),  # type: ignore[arg-type]
    ]
