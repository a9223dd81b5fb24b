"""The sums of a complete response table, through polynomials in the ability instead of cell by cell.

Without missing cells every student shares the same functions of the ability: `F(a) = sum_k log(2 cosh
h_k(a))` and `tanh h_k(a)`, with `h_k(a) = (gamma_k a + beta_k + mu)/2`. They are analytic up to a distance
pi/gamma_k from the real line. Cut the abilities' range into panels of width 1/(2 max gamma): on each,
interpolation in 11 Chebyshev points converges like 25**-11, so it is exact to rounding. J*K cells become a
few hundred points times K items, and a dozen passes over the J students. Chebyshev coefficients are turned
into powers of the panel coordinate `t` only as the last step: they decay, so that powers lose no digits.
"""

from __future__ import annotations

import numpy as np

_N_NODES = 11
_PANELS_PER_LOGIT = 2.0
_BLOCK_PANELS = 32
# Interpolating pays while there are clearly fewer nodes than students.
_MAX_NODES_PER_STUDENT = 0.5

_ANGLES = np.pi * (np.arange(_N_NODES) + 0.5) / _N_NODES
_NODES = np.cos(_ANGLES)
_TO_CHEBYSHEV = 2.0 / _N_NODES * np.cos(np.outer(np.arange(_N_NODES), _ANGLES))
_TO_CHEBYSHEV[0] /= 2.0
# Column k holds the powers of the Chebyshev polynomial T_k.
_TO_POWERS = np.zeros((_N_NODES, _N_NODES))
for _k in range(_N_NODES):
    _TO_POWERS[: _k + 1, _k] = np.polynomial.chebyshev.cheb2poly([0.0] * _k + [1.0])


def panel_sums(
    half_gamma: np.ndarray, half_centre: np.ndarray, alpha: np.ndarray, *, value: bool, gradient: bool
) -> tuple[float, np.ndarray, np.ndarray | None] | None:
    """Sums of log(2 cosh h) and tanh(h) over all cells of one point.

    Parameters
    ----------
    half_gamma, half_centre : (K,) float64 arrays
        `gamma/2` and `(beta + mu)/2`.
    alpha : (J,) float64 array
    value, gradient : bool
        Which of the results are wanted.

    Returns
    -------
    logs : float
        `sum_jk log(2 cosh h)`; 0 without `value`.
    moments : (K, 2) array
        `sum_j alpha_j tanh(h)` and `sum_j tanh(h)`; zeros without `gradient`.
    slopes : (J,) array or None
        `sum_k half_gamma_k tanh(h)`, with `gradient`.

    None instead of all, when the abilities spread too far for panels to pay or are not finite.
    """
    low = alpha.min()
    per_unit = max(2.0 * _PANELS_PER_LOGIT * float(half_gamma.max()), 1e-300)
    span = (alpha.max() - low) * per_unit
    if not span * _N_NODES < _MAX_NODES_PER_STUDENT * alpha.size - _N_NODES:
        return None
    n_panels = int(span) + 1
    t = alpha - low
    t *= per_unit
    panel = t.astype(np.intp)
    t -= panel
    t *= 2.0
    t -= 1.0
    left = np.arange(n_panels)[:, None]
    nodes = low + (left + (1.0 + _NODES) / 2.0) / per_unit
    powers = _power_sums(panel, t, n_panels)
    weights = _node_weights(powers[:, :-1])
    # alpha = centre + t/(2 per_unit): its weights come from the same power sums, shifted by one.
    shifted = (low + (left + 0.5) / per_unit) * powers[:, :-1] + powers[:, 1:] / (2.0 * per_unit)
    columns = np.stack([_node_weights(shifted).ravel(), weights.ravel()], axis=1)
    logs = 0.0
    moments = np.zeros((half_gamma.size, 2))
    slopes_at_nodes = np.empty(nodes.shape)
    for start in range(0, n_panels, _BLOCK_PANELS):
        block = slice(start, min(start + _BLOCK_PANELS, n_panels))
        h = np.multiply.outer(half_gamma, nodes[block].ravel())
        h += half_centre[:, None]
        tanh = np.tanh(h) if gradient else None
        if tanh is not None:
            moments += tanh @ columns[start * _N_NODES : block.stop * _N_NODES]
            slopes_at_nodes[block] = (half_gamma @ tanh).reshape(-1, _N_NODES)
        if value:
            logs += float(weights[block].ravel() @ _item_sums(h))
    if not gradient:
        return logs, moments, None
    return logs, moments, _evaluate(slopes_at_nodes, panel, t)


def _power_sums(panel: np.ndarray, t: np.ndarray, n_panels: int) -> np.ndarray:
    """`sum t**i` over the students of each panel, i = 0..n, as (panels, n + 1)."""
    sums = np.empty((n_panels, _N_NODES + 1))
    sums[:, 0] = np.bincount(panel, minlength=n_panels)
    power = t.copy()
    for i in range(1, _N_NODES + 1):
        sums[:, i] = np.bincount(panel, power, n_panels)
        power *= t
    return sums


def _node_weights(power_sums: np.ndarray) -> np.ndarray:
    """Weights (panels, n): with them, values at the nodes add up to the sum over the students."""
    weights: np.ndarray = (power_sums @ _TO_POWERS) @ _TO_CHEBYSHEV
    return weights


def _evaluate(values: np.ndarray, panel: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The interpolant of `values` (panels, n) at every student, by Horner's rule."""
    table = np.ascontiguousarray(_TO_POWERS @ (_TO_CHEBYSHEV @ values.T))
    result: np.ndarray = table[-1].take(panel)
    term = np.empty_like(result)
    for coefficients in table[-2::-1]:
        result *= t
        coefficients.take(panel, out=term, mode="clip")
        result += term
    return result


def _item_sums(h: np.ndarray) -> np.ndarray:
    """`sum_k log(2 cosh h)` down the first axis; overwrites `h`."""
    np.abs(h, out=h)
    total: np.ndarray = h.sum(axis=0)
    h *= -2.0
    np.exp(h, out=h)
    h += 1.0
    for k in range(0, h.shape[0], 512):  # a product of 512 factors up to 2 does not overflow
        total += np.log(np.prod(h[k : k + 512], axis=0))
    return total
