"""The sums of a complete response table, through polynomials in the ability instead of answer by answer.

Without missing answers every student shares the same functions of the ability: `F(a) = sum_k log(2 cosh
h_k(a))` and `tanh h_k(a)`, with `h_k(a) = (gamma_k a + beta_k + mu)/2`. They are analytic up to a distance
pi/gamma_k from the real line. Cut the abilities' range into panels of width 1/(2 max gamma): on each,
interpolation in 11 Chebyshev points converges like 25**-11, so it is exact to rounding. J*K answers become a
few hundred points times K items, and a dozen passes over the J students. Chebyshev coefficients are turned
into powers of the panel coordinate `t` only as the last step: they decay, so that powers lose no digits.
"""

from __future__ import annotations

from typing import NamedTuple

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
    """Sums of log(2 cosh h) and tanh(h) over all answers of one point.

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
    cut = _cut(half_gamma, alpha)
    if cut is None:
        return None
    panel, t, nodes = cut.panel, cut.t, cut.nodes
    n_panels = len(nodes)
    columns = cut.columns(_power_sums(panel, t, n_panels))
    weights = columns[:, 1].reshape(n_panels, _N_NODES)
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


def panel_terms(
    half_gamma: np.ndarray, half_centre: np.ndarray, alpha: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None] | None:
    """`sum_k log(2 cosh h_k)` of each ability by itself; with weights, the derivatives of its weighted sums too.

    Parameters
    ----------
    half_gamma, half_centre : (K,) float64 arrays
    alpha : (R, J) float64 array
        R abilities of each student.
    weights : (R, J) array or None

    Returns
    -------
    logs : (R, J) array
    slopes : (R, J) array or None
        `sum_k half_gamma_k tanh(h)`, without the weights.
    moments : (R, K, 2) array or None
        `sum_j weights_j alpha_j tanh(h)` and `sum_j weights_j tanh(h)` of each row.

    None instead of all, where panels do not pay.
    """
    shape, cut = alpha.shape, _cut_at_multiples(half_gamma, alpha.ravel())
    if cut is None:
        return None
    n_panels = len(cut.nodes)
    values, slopes_at_nodes = np.empty(cut.nodes.shape), np.empty(cut.nodes.shape)
    columns = moments = None
    if weights is not None:
        row_and_panel = cut.panel + np.repeat(n_panels * np.arange(shape[0]), shape[1])
        powers = _power_sums(row_and_panel, cut.t, shape[0] * n_panels, weights.ravel())
        columns = np.stack([cut.columns(part) for part in powers.reshape(shape[0], n_panels, -1)])
        moments = np.zeros((shape[0], half_gamma.size, 2))
    for start in range(0, n_panels, _BLOCK_PANELS):
        block = slice(start, min(start + _BLOCK_PANELS, n_panels))
        h = np.multiply.outer(half_gamma, cut.nodes[block].ravel())
        h += half_centre[:, None]
        if columns is not None and moments is not None:
            tanh = np.tanh(h)
            moments += tanh @ columns[:, start * _N_NODES : block.stop * _N_NODES]
            slopes_at_nodes[block] = (half_gamma @ tanh).reshape(-1, _N_NODES)
        values[block] = _item_sums(h).reshape(-1, _N_NODES)
    slopes = None if weights is None else _evaluate(slopes_at_nodes, cut.panel, cut.t).reshape(shape)
    return _evaluate_each(values, cut.panel, cut.t).reshape(shape), slopes, moments


class _Cut(NamedTuple):
    """Panels over a range of abilities: each ability's panel and place in it, and the panels' nodes."""

    low: float
    per_unit: float
    panel: np.ndarray
    t: np.ndarray
    nodes: np.ndarray

    def columns(self, powers: np.ndarray) -> np.ndarray:
        """Weights (nodes, 2) that give sums of a function times the ability, and of the function alone."""
        left = np.arange(len(self.nodes))[:, None]
        # alpha = centre + t/(2 per_unit): its weights come from the same power sums, shifted by one.
        shifted = (self.low + (left + 0.5) / self.per_unit) * powers[:, :-1] + powers[:, 1:] / (2.0 * self.per_unit)
        return np.stack([_node_weights(shifted).ravel(), _node_weights(powers[:, :-1]).ravel()], axis=1)


def _cut(half_gamma: np.ndarray, alpha: np.ndarray) -> _Cut | None:
    """Panels from the least ability on, or None where there would be too many or an ability is not finite."""
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
    return _Cut(low, per_unit, panel, t, low + (left + (1.0 + _NODES) / 2.0) / per_unit)


def _cut_at_multiples(half_gamma: np.ndarray, alpha: np.ndarray) -> _Cut | None:
    """The same with panels counted from 0: what an ability gives is then the same bit for bit among any others."""
    if not _N_NODES < _MAX_NODES_PER_STUDENT * alpha.size:  # one panel is too many
        return None
    per_unit = max(2.0 * _PANELS_PER_LOGIT * float(half_gamma.max()), 1e-300)
    t = alpha * per_unit
    whole = np.floor(t)
    first = whole.min()
    span = whole.max() - first + 1
    if not span * _N_NODES < _MAX_NODES_PER_STUDENT * alpha.size:
        return None
    t -= whole
    t *= 2.0
    t -= 1.0
    left = np.arange(int(span))[:, None]
    nodes = (first + left + (1.0 + _NODES) / 2.0) / per_unit
    return _Cut(float(first) / per_unit, per_unit, (whole - first).astype(np.intp), t, nodes)


def _power_sums(panel: np.ndarray, t: np.ndarray, n_panels: int, weights: np.ndarray | None = None) -> np.ndarray:
    """`sum t**i` over the students of each panel, times their weights, i = 0..n, as (panels, n + 1)."""
    sums = np.empty((n_panels, _N_NODES + 1))
    sums[:, 0] = np.bincount(panel, weights, minlength=n_panels)
    power = t.copy() if weights is None else t * weights
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
    return _horner(np.ascontiguousarray(_TO_POWERS @ (_TO_CHEBYSHEV @ values.T)), panel, t)


def _evaluate_each(values: np.ndarray, panel: np.ndarray, t: np.ndarray) -> np.ndarray:
    """`_evaluate` in sums whose rounding does not depend on the number of panels, as a matrix product's does."""
    coefficients = (_TO_CHEBYSHEV[:, :, None] * values.T).sum(axis=1)
    return _horner((_TO_POWERS[:, :, None] * coefficients).sum(axis=1), panel, t)


def _horner(table: np.ndarray, panel: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Polynomials in t, with coefficients (powers, panels)."""
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
