"""The Bernoulli-logit sums of the item response model, over blocks of answers that stay in the cache.

With half logits `h = (gamma*alpha + beta + mu)/2` and signs `s` = +1 (right), -1 (wrong), 0 (missing), an
observed answer has log probability `s*h - log(2 cosh h)` and derivative `s - tanh(h)` with respect to `h`.
The terms in `s` are plain matrix products, so only the even function log(2 cosh h) and its derivative need
a pass over the answers, or less: see `irt_panels` for complete tables. One by one, sums go item by item
down the first axis: NumPy then works on long contiguous rows.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from pyturingvi.models.irt_panels import panel_sums, panel_terms
from pyturingvi.support.array_namespace import Array

# Factors (1, 2] multiplied before one logarithm: 2**96 is far below the float32 overflow.
_PRODUCT_LENGTH = 96
_CPU_BLOCK_BYTES = 1 << 18
_GPU_BLOCK_BYTES = 1 << 28


def _block_shape(xp: ModuleType, itemsize: int, n_points: int, n_items: int, n_students: int) -> tuple[int, int]:
    """Points and students in one block of answers."""
    answers = (_CPU_BLOCK_BYTES if xp is np else _GPU_BLOCK_BYTES) // itemsize
    students = min(n_students, max(16, answers // n_items))
    return min(n_points, max(1, answers // (n_items * students))), students


def signed_sums(xp: ModuleType, signs: Array, alpha: Array) -> Array:
    """`sum_j s_kj alpha_mj` as (M, K) float64; float32 products are added up in float64 block by block."""
    n_items, n_students = signs.shape
    block = n_students if alpha.dtype == np.float64 else 4096
    total = xp.zeros((alpha.shape[0], n_items))
    for start in range(0, n_students, block):
        stop = start + block
        total += alpha[:, start:stop] @ signs[:, start:stop].T
    return total


def complete_terms(
    half_gamma: np.ndarray, half_centre: np.ndarray, alpha: np.ndarray, signs: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None] | None:
    """`ResponseTable.terms` of points with the same items (K,) and no answer missing; None where panels do not pay."""
    found = panel_terms(half_gamma, half_centre, alpha, weights)
    if found is None:
        return None
    steepness = half_gamma @ signs
    logs = steepness * alpha + half_centre @ signs - found[0]
    if weights is None or found[1] is None or found[2] is None:
        return logs, None, None
    sums = np.stack([(weights * alpha) @ signs.T, weights @ signs.T], axis=2)
    return logs, steepness - found[1], sums - found[2]


def terms_by_cells(
    xp: ModuleType, half_gamma: Array, half_centre: Array, alpha: Array, signs: Array, weights: Array | None
) -> tuple[Array, Array | None, Array | None]:
    """`ResponseTable.terms` answer by answer."""
    logs = xp.empty_like(alpha)
    slopes = None if weights is None else xp.empty_like(alpha)
    pulls = None if weights is None else xp.zeros((*half_gamma.shape, 2))
    n_items, n_students = signs.shape
    n_rows, step = _block_shape(xp, alpha.dtype.itemsize, alpha.shape[0], n_items, n_students)
    for j in range(0, n_students, step):
        block = signs[:, j : j + step]
        there = abs(block)
        for m in range(0, alpha.shape[0], n_rows):
            rows, columns = slice(m, m + n_rows), slice(j, j + step)
            part = alpha[rows, columns]
            h = half_gamma[rows, :, None] * part[:, None, :] + half_centre[rows, :, None]
            h *= block
            logs[rows, columns] = -(there * xp.logaddexp(0.0, -2.0 * h)).sum(axis=1)
            if weights is not None and slopes is not None and pulls is not None:
                pull = block * (there - xp.tanh(h))
                slopes[rows, columns] = (half_gamma[rows, None, :] @ pull)[:, 0]
                w = weights[rows, columns]
                pulls[rows] += pull @ xp.stack([w * part, w], axis=2)
    return logs, slopes, pulls


def even_part(
    xp: ModuleType,
    half_gamma: Array,
    half_centre: Array,
    alpha: Array,
    mask: Array | None,
    alpha_gradient: Array | None,
    *,
    value: bool,
) -> tuple[Array | None, Array | None]:
    """Sums of log(2 cosh h) and of tanh(h) over the observed answers.

    Parameters
    ----------
    half_gamma, half_centre : (M, K) arrays
        `gamma/2` and `(beta + mu)/2` in float64.
    alpha : (M, J) array
    mask : (K, J) array of 0 and 1, or None when every answer is observed
    alpha_gradient : (M, J) array or None
        `sum_k half_gamma_k tanh(h)` is subtracted from it; None leaves the gradient out.
    value : bool
        Whether the log sums are wanted.

    Returns
    -------
    logs : (M,) float64 array or None
        `sum log(2 cosh h)`.
    moments : (M, K, 2) float64 array or None
        `sum_j tanh(h) alpha_j` and `sum_j tanh(h)`, with the gradient only.
    """
    gradient = alpha_gradient is not None
    logs = xp.zeros(alpha.shape[0]) if value else None
    moments = xp.zeros((*half_gamma.shape, 2)) if gradient else None
    left = list(range(alpha.shape[0]))
    if xp is np and mask is None:
        left = []
        for m in range(alpha.shape[0]):
            ability = alpha[m].astype(np.float64)
            sums = panel_sums(half_gamma[m], half_centre[m], ability, value=value, gradient=gradient)
            if sums is None:
                left.append(m)
                continue
            if logs is not None:
                logs[m] = sums[0]
            if moments is not None and alpha_gradient is not None:
                moments[m] = sums[1]
                alpha_gradient[m] -= sums[2]
    # Runs of neighbouring points are cut out as views, so that nothing of size (M, J) is copied.
    for first, stop in _runs(left):
        part = slice(first, stop)
        run_logs, run_moments = _even_part_by_cells(
            xp,
            half_gamma[part].astype(alpha.dtype),
            half_centre[part].astype(alpha.dtype),
            alpha[part],
            mask,
            None if alpha_gradient is None else alpha_gradient[part],
            value=value,
        )
        if logs is not None:
            logs[part] = run_logs
        if moments is not None:
            moments[part] = run_moments
    return logs, moments


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Ascending numbers as half-open runs of neighbours."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def _even_part_by_cells(
    xp: ModuleType,
    half_gamma: Array,
    half_centre: Array,
    alpha: Array,
    mask: Array | None,
    alpha_gradient: Array | None,
    *,
    value: bool,
) -> tuple[Array | None, Array | None]:
    """`even_part` answer by answer: with missing ones, on a GPU, for small tables."""
    n_points, n_students = alpha.shape
    n_items = half_gamma.shape[1]
    points_step, students_step = _block_shape(xp, alpha.dtype.itemsize, n_points, n_items, n_students)
    size = points_step * n_items * students_step
    gradient = alpha_gradient is not None
    buffers = [xp.empty(size, dtype=alpha.dtype) for _ in range(1 + (gradient and value))]
    slopes = xp.stack([half_gamma, half_centre], axis=2)
    logs = xp.zeros(n_points) if value else None
    moments = xp.zeros((n_points, n_items, 2)) if gradient else None
    for p in range(0, n_points, points_step):
        points = slice(p, min(p + points_step, n_points))
        for j in range(0, n_students, students_step):
            students = slice(j, min(j + students_step, n_students))
            part = alpha[points, students]
            shape = (part.shape[0], n_items, part.shape[1])
            count = shape[0] * shape[1] * shape[2]
            h, *rest = (buffer[:count].reshape(shape) for buffer in buffers)
            basis = xp.ones((*part.shape, 2), dtype=alpha.dtype)
            basis[:, :, 0] = part
            xp.matmul(slopes[points], basis.transpose(0, 2, 1), out=h)
            observed = None if mask is None else mask[:, students]
            if alpha_gradient is not None and moments is not None:
                tanh = xp.tanh(h, out=rest[0] if value else h)
                if observed is not None:
                    tanh *= observed
                alpha_gradient[points, students] -= xp.matmul(half_gamma[points, None, :], tanh)[:, 0, :]
                moments[points] += xp.matmul(tanh, basis)
            if logs is not None:
                _add_logs(xp, logs[points], h, rest[0] if gradient else None, observed)
    return logs, moments


def _add_logs(xp: ModuleType, logs: Array, h: Array, tanh: Array | None, observed: Array | None) -> None:
    """Add `sum log(2 cosh h)` over the observed answers of each point; overwrites `h` and `tanh`.

    The logarithm is `|h| + log(1 + exp(-2|h|))`, or `|h| + log 2 - log(1 + |tanh h|)` where tanh is known.
    """
    xp.abs(h, out=h)
    if observed is not None:
        h *= observed
    logs += h.sum(axis=2).astype(np.float64).sum(axis=1)
    if tanh is None:
        h *= -2
        factors = xp.exp(h, out=h)
        if observed is not None:
            factors *= observed
    else:
        factors = xp.abs(tanh, out=tanh)
    factors += 1
    products = xp.zeros_like(logs)
    for k in range(0, factors.shape[1], _PRODUCT_LENGTH):
        block = xp.prod(factors[:, k : k + _PRODUCT_LENGTH], axis=1)
        products += xp.log(block, out=block).sum(axis=1, dtype=np.float64)
    if tanh is None:
        logs += products
    else:
        n_observed = factors.shape[1] * factors.shape[2] if observed is None else float(observed.sum(dtype=np.float64))
        logs += n_observed * np.log(2.0) - products
