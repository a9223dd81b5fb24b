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
from pyturingvi.support.arguments import real_array, real_number
from pyturingvi.theory.energy import checked_model, checked_params, energy_gradient


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

    The expectation is exact for such a target: it is taken over two points of noise a coordinate, with mean 0 and
    second moment I. The differences are central, so they too are exact, up to rounding, where every second derivative
    is at most linear in each parameter: for the standardized families and for the counterexample.

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
    checked_model(model)
    if not 0 < real_number("step", step) < np.inf:
        raise InputError(f"step must be a finite number above 0, got {step!r}.")
    chosen = get_family(family)
    bound, flat = chosen.bind(model.layout), checked_params(params, chosen, model.layout)
    root = np.sqrt(bound.noise_dim) * np.eye(bound.noise_dim)
    noise = np.vstack([root, -root])
    columns = np.empty((flat.size, flat.size))
    with energy_gradient(model, bound, len(noise)) as gradient:
        for column, move in zip(columns, step * np.eye(flat.size), strict=True):
            ahead, behind = (gradient(bound.from_flat(flat + sign * move), noise) for sign in (1, -1))
            column[:] = bound.to_flat(ahead - behind) / (2 * step)
    return 0.5 * (columns + columns.T)


def _broadcast(*values: Any) -> tuple[np.ndarray, ...]:
    arrays = [real_array(f"counterexample: {name}", value) for name, value in zip("xyz", values, strict=False)]
    try:
        return tuple(np.broadcast_arrays(*arrays))
    except ValueError as error:
        raise InputError(f"counterexample: the shapes do not broadcast ({error}).") from None
