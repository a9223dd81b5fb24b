"""The globals of robust Poisson regression: standard deviations, and the normal variables under them."""

from __future__ import annotations

from pyturingvi.priors.of_model import ScalePriors
from pyturingvi.support.array_namespace import Array, namespace_of


def normals_and_scales(priors: ScalePriors, z: Array, squares: Array, sizes: Array) -> Array:
    """Log density (M,) of the scales, and of the normal variables under them up to a constant.

    Of alpha, beta and the noise of the log rates each: `sizes` (3,) says how many there are; `squares` (M,) are those
    of the noise.
    """
    xp, log_scales, beta = namespace_of(z), z[:, :3], z[:, 4:]
    total = xp.stack([z[:, 3] ** 2, (beta * beta).sum(axis=1), squares], axis=1)
    total *= -0.5 * xp.exp(-2.0 * log_scales)
    total += priors.log_density(log_scales) - sizes * log_scales
    return total.sum(axis=1)


def scales_and_coefficients_gradient(
    priors: ScalePriors, z: Array, precision: Array, squares: Array | float, sizes: Array, pull: Array, out: Array
) -> None:
    """Gradient of the same, into the columns `out` (M, d_z) of the globals.

    precision: (M, 3), those of the scales. squares: (M,), of the noise. pull: (M, 1 + p), what the likelihood has for
    alpha and beta, added.
    """
    scale_part, coefficient_part = out[:, :3], out[:, 3:]
    square = z[:, 3:] * z[:, 3:]
    scale_part[:, 0] = square[:, 0]
    scale_part[:, 1] = square[:, 1:].sum(axis=1)
    scale_part[:, 2] = squares
    scale_part *= precision
    scale_part += 1.0 + priors.slope(precision)
    scale_part -= sizes
    coefficient_part[...] = pull
    coefficient_part[:, 0] -= precision[:, 0] * z[:, 3]
    coefficient_part[:, 1:] -= precision[:, 1:2] * z[:, 4:]
