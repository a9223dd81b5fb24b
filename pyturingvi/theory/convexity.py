"""Why the non-standardized parameterization is worse: its energy is not convex (paper, section 3.3).

The target is a standard Gaussian up to its scale, `l(z, y) = z^2 + y^2` with one local variable, fitted with m = 0.
With `x = C_zz`, `y = A` and `z = C_yy` the non-standardized energy is `x^2 + z^2 + x^2 y^2`, and its Hessian has the
determinant `8 x^2 (1 - 3 y^2)`: negative, hence not convex, for |y| > 1/sqrt(3) and x != 0. (The paper's proof says
for 0 < y < 1/sqrt(3), where the Hessian is in fact positive definite; its conclusion stands.) The proof treats the
energy alone. The negative ELBO, `... - log x - log z`, is not convex either, for y^2 > 1/3 + 1/(6 x^2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families import Family, get_family
from pyturingvi.models import Model
from pyturingvi.optimize.objective import Objective
from pyturingvi.support.arguments import real_array, real_number
from pyturingvi.support.parallel import Workers


def counterexample(x: Any, y: Any, z: Any) -> np.ndarray:
    """Energy `x^2 + z^2 + x^2 y^2` of the counterexample, elementwise.

    Parameters
    ----------
    x, y, z : array_like
        C_zz, A and C_yy, of shapes that broadcast.

    Returns
    -------
    array
    """
    x, y, z = _broadcast(x, y, z)
    energy: np.ndarray = x**2 + z**2 + (x * y) ** 2
    return energy


def counterexample_hessian(x: Any, y: Any) -> np.ndarray:
    """Hessian of `counterexample` in the order (x, y, z), which does not depend on z.

    Returns
    -------
    (..., 3, 3) array
    """
    x, y = _broadcast(x, y)
    hessian = np.zeros((*x.shape, 3, 3))
    hessian[..., 0, 0] = 2 + 2 * y**2
    hessian[..., 1, 1] = 2 * x**2
    hessian[..., 2, 2] = 2.0
    hessian[..., 0, 1] = hessian[..., 1, 0] = 4 * x * y
    return hessian


def counterexample_determinant(x: Any, y: Any) -> np.ndarray:
    """Its determinant, `8 x^2 (1 - 3 y^2)`, elementwise."""
    x, y = _broadcast(x, y)
    determinant: np.ndarray = 8 * x**2 * (1 - 3 * y**2)
    return determinant


def counterexample_elbo_hessian(x: Any, y: Any, z: Any) -> np.ndarray:
    """Hessian of the negative ELBO `x^2 + z^2 + x^2 y^2 - log x - log z`, in the order (x, y, z).

    Returns
    -------
    (..., 3, 3) array

    Raises
    ------
    InputError
        If x or z is not positive everywhere, or the shapes do not broadcast.
    """
    x, y, z = _broadcast(x, y, z)
    if not ((x > 0) & (z > 0)).all():
        raise InputError("counterexample_elbo_hessian: x and z are scales and must be positive.")
    hessian = counterexample_hessian(x, y)
    hessian[..., 0, 0] += x**-2
    hessian[..., 2, 2] += z**-2
    return hessian


def energy_hessian(model: Model, family: str | Family, params: Any, step: float = 1e-3) -> np.ndarray:
    """Hessian of the energy `E l(T(u))` of a Gaussian target, by differences of the package's own gradient.

    The expectation is exact for such a target: it is taken over 2d points with mean 0 and second moment I. The
    differences are central, so they too are exact, up to rounding, where every second derivative is at most
    linear in each parameter: for the standardized families and for the counterexample.

    Parameters
    ----------
    model : Model
        A Gaussian one; for others the result means nothing.
    family : str or Family
    params : (p,) array
    step : float

    Returns
    -------
    (p, p) array
        In the order of the flat vector.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be one of tv.models, got {type(model).__name__}.")
    if not 0 < real_number("step", step) < np.inf:
        raise InputError(f"step must be a finite number above 0, got {step!r}.")
    bound = get_family(family).bind(model.layout)
    flat = real_array("params", params)
    if flat.shape != (bound.n_params,):
        raise InputError(f"params must be {bound.n_params} numbers, got shape {flat.shape}.")
    d = model.dim
    noise = np.sqrt(d) * np.vstack([np.eye(d), -np.eye(d)])
    columns = np.empty((bound.n_params, bound.n_params))
    gradients = np.empty((2, bound.n_params))
    with np.errstate(over="ignore", invalid="ignore"), Workers(1) as workers:
        objective = Objective(model, bound, 2 * d, workers)
        for k in range(bound.n_params):
            for out, sign in zip(gradients, (1, -1), strict=True):
                moved = flat.copy()
                moved[k] += sign * step
                gradient = objective.gradient(bound.from_flat(moved), noise, energy_only=True)
                if gradient is None:
                    raise InputError("params: the gradient is not finite at these parameters.")
                out[:] = gradient
            columns[k] = bound.to_flat(gradients[0] - gradients[1]) / (2 * step)
    return 0.5 * (columns + columns.T)


def _broadcast(*values: Any) -> tuple[np.ndarray, ...]:
    arrays = [real_array(f"counterexample: {name}", value) for name, value in zip("xyz", values, strict=False)]
    try:
        return tuple(np.broadcast_arrays(*arrays))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in zip("xyz", arrays, strict=False))
        raise InputError(
            f"counterexample: the shapes do not broadcast: {shapes}. Make them equal, or numbers."
        ) from None
