"""To which local block each term of a log density belongs: found by moving blocks and watching the terms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyturingvi.layout import Layout

GLOBAL = -1  # the block of a term that no local moves
_SPREAD = 0.3
_CHANGE = 1e-9  # of a term's size: beyond what another order of sums does


def blocks_of_terms(evaluate: Callable[[np.ndarray], np.ndarray], layout: Layout) -> np.ndarray | None:
    """The block of each term of a log density that is a sum of terms.

    Blocks are moved by the binary digits of their number: those whose digit is 1, and those whose digit is 0. A term of
    one block changes in one of the two for each digit, which spells the block's number.

    Parameters
    ----------
    evaluate : callable
        Of points (M, d) in the layout's order, the terms (M, R).
    layout : Layout

    Returns
    -------
    (R,) integer array or None
        The block, from 0, or GLOBAL where none matters; None where a term rests on more blocks than one.
    """
    n = np.arange(layout.n_local)
    rng = np.random.default_rng(0)
    digits = max(1, (layout.n_local - 1).bit_length())
    seen: np.ndarray | None = None
    for _ in range(2):  # a term may be flat at one point
        base = rng.normal(0.0, _SPREAD, layout.dim)
        step = rng.uniform(0.5, 1.5, (layout.n_local, layout.local_dim)) * _SPREAD
        at_base = evaluate(base[None])
        found = np.empty((digits, 2, at_base.shape[1]), dtype=bool)
        for digit in range(digits):
            points = np.repeat(base[None], 2, axis=0)
            for value in (0, 1):
                moved = step * ((n >> digit & 1) == value)[:, None]
                points[value, layout.n_global :] += moved.ravel()
            found[digit] = ~(np.abs(evaluate(points) - at_base) <= _CHANGE * (1 + np.abs(at_base)))
        seen = found if seen is None else seen | found
    assert seen is not None
    changes = seen.sum(axis=1)  # per digit: 0 for a global term, 1 for one block, 2 for more
    is_global = ~changes.any(axis=0)
    number = (seen[:, 1] * (1 << np.arange(digits))[:, None]).sum(axis=0)
    if not (is_global | (changes == 1).all(axis=0)).all() or (number >= layout.n_local).any():
        return None
    return np.where(is_global, GLOBAL, number)
