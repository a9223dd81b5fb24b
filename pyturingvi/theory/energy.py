"""Gradients of the energy `E l(T(u))`, as a fit computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families import BoundFamily, Family
from pyturingvi.layout import Layout
from pyturingvi.models import Model
from pyturingvi.optimize.objective import Objective
from pyturingvi.support.arguments import real_array
from pyturingvi.support.parallel import Workers

Gradient = Callable[[np.ndarray, np.ndarray], np.ndarray]


@contextmanager
def energy_gradient(model: Model, bound: BoundFamily, n_samples: int) -> Iterator[Gradient]:
    """A function of parameters (p,) and noise (n_samples, D): the gradient (p,), all in working order."""
    with np.errstate(over="ignore", invalid="ignore"), Workers(1) as workers:
        objective = Objective(model, bound, n_samples, workers)

        def gradient(work: np.ndarray, noise: np.ndarray) -> np.ndarray:
            found = objective.gradient(work, noise, energy_only=True)
            if found is None:
                raise InputError("params: the gradient is not finite at these parameters.")
            return np.array(found)

        yield gradient


def checked_model(model: Any) -> Model:
    """The model itself, or an InputError."""
    if not isinstance(model, Model):
        raise InputError(f"model must be one of tv.models, got {type(model).__name__}.")
    return model


def checked_params(params: Any, family: Family, layout: Layout) -> np.ndarray:
    """Flat parameters (p,) in float64, or an InputError."""
    array, n_params = real_array("params", params), family.n_params(layout)
    if array.shape != (n_params,) or not np.isfinite(array).all():
        raise InputError(
            f"params must be {n_params} finite numbers (the {family.name} family), got shape {array.shape}."
        )
    return array
