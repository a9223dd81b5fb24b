"""Effective dimension d*: how many components of the noise one term of the likelihood sees (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.families import Family, get_location_scale
from pyturingvi.layout import Layout
from pyturingvi.models import Model
from pyturingvi.support.arguments import listed


# ---- which coordinates each l_n uses -----------------------------------------------------------------------
def global_and_own(layout: Layout) -> list[np.ndarray]:
    """Coordinates of `l_n(z, y_n) = -log p(x_n, y_n | z) - log p(z) / N`: z and y_n (paper, section 3.3).

    Returns
    -------
    list of N int arrays (d_z + d_y,)
        With no local block there is one term, of z alone.
    """
    z = np.arange(layout.n_global)
    own = [np.arange(s.start, s.stop) for s in map(layout.block_slice, range(layout.n_local))]
    return [np.concatenate([z, y]) for y in own] or [z]


def global_own_and_previous(layout: Layout) -> list[np.ndarray]:
    """Coordinates of the terms of a first-order time series: z, y_{t-1} and y_t; at the first time z and y_1.

    Returns
    -------
    list of N int arrays, (d_z + 2 d_y,) but for the first
    """
    terms = global_and_own(layout)
    return [terms[0]] + [np.concatenate([terms[t - 1], terms[t][layout.n_global :]]) for t in range(1, len(terms))]


def coordinates_used(model: Model | Layout, uses: Sequence[Any] | None = None) -> list[np.ndarray]:
    """Coordinates of the flat vector that each term l_n of a model uses.

    The bundled models are known, and what has log terms; each term carries its share `-log p(z) / N` of the prior, so
    it uses all of z even where its data do not.

    Parameters
    ----------
    model : Model or Layout
    uses : sequence of N int sequences, optional
        The coordinates themselves, counted from 0. Needed for a model of your own, for instance
        `tv.theory.global_and_own(model.layout)`.

    Returns
    -------
    list of N int arrays, each sorted

    Raises
    ------
    InputError
        If the model does not say so and `uses` is not given, or `uses` is empty, holds a coordinate twice
        within a term or one that does not exist.
    """
    layout = checked_layout(model)
    if uses is None:
        before = model.locals_before if isinstance(model, Model) else None
        if before in (0, 1):
            return global_own_and_previous(layout) if before else global_and_own(layout)
        raise InputError(
            "uses: only the bundled models, and yours with log terms, say which coordinates each term of their "
            "likelihood uses. Give uses=tv.theory.global_and_own(layout), where l_n is a function of z and y_n, or a "
            "list of the coordinates of each term."
        )
    return read_terms("uses", uses, layout)


def read_terms(name: str, uses: Any, layout: Layout) -> list[np.ndarray]:
    """The coordinates of each term as sorted int arrays; errors call them `name`."""
    terms = [
        _sorted_coordinates(f"{name}: term {n}", term, layout.dim)
        for n, term in enumerate(listed(name, uses, "lists of coordinates, one a term"))
    ]
    if not terms:
        raise InputError(f"{name}: there must be at least one term l_n.")
    return terms


def checked_layout(model: Any) -> Layout:
    """The layout of a model, or the layout itself."""
    if not isinstance(model, Model | Layout):
        raise InputError(f"model must be one of tv.models or a tv.Layout, got {type(model).__name__}.")
    return model if isinstance(model, Layout) else model.layout


def _sorted_coordinates(what: str, term: Any, dim: int) -> np.ndarray:
    try:
        array = np.asarray(term)
    except ValueError:
        raise InputError(f"{what} must be a flat list of whole numbers, got {term!r}.") from None
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise InputError(f"{what} must be a list of at least one whole number, got {term!r}.")
    array = np.sort(array.astype(np.int64))
    if array[0] < 0 or array[-1] >= dim or np.any(np.diff(array) == 0):
        raise InputError(f"{what} must hold different coordinates from 0 to {dim - 1}, got {term!r}.")
    return array


# ---- how many columns of C they meet -----------------------------------------------------------------------
def effective_dimensions(model: Model | Layout, family: str | Family, uses: Sequence[Any] | None = None) -> np.ndarray:
    """`sum_j delta_{n,j}` for each n: columns of C that are not zero in the rows that l_n uses.

    Counted from the family's pattern, not from values. The non-standardized structured family counts as the
    structured one, whose noise it mixes in the same way.

    Parameters
    ----------
    model : Model or Layout
    family : str or Family
    uses : sequence of N int sequences, optional
        As in `coordinates_used`.

    Returns
    -------
    (N,) int array

    Notes
    -----
    In a lower triangular C the count of the full-rank family depends on the order: rows of `y_n` end at its own
    block, so `sum_j delta_{n,j} = d_z + n d_y` (n from 1) and only the last term reaches d.
    """
    layout = checked_layout(model)
    return get_location_scale(family).count_columns(layout, coordinates_used(model, uses))


def effective_dimension(model: Model | Layout, family: str | Family, uses: Sequence[Any] | None = None) -> int:
    """`d* = max_n sum_j delta_{n,j}`, the effective dimension (paper, section 3.2).

    Full-rank: d. Structured: d_z + d_y, or d_z + 2 d_y where l_t also uses y_{t-1} (volatility; the paper's
    lemma in section 3.3 gives d_z + d_y, which holds for terms of z and one local). Mean-field: as many as the
    largest term uses.

    Parameters
    ----------
    model : Model or Layout
    family : str or Family
    uses : sequence of N int sequences, optional
        As in `coordinates_used`.

    Returns
    -------
    int

    Examples
    --------
    >>> from pyturingvi.models import IsotropicGaussian
    >>> [effective_dimension(IsotropicGaussian(100), name) for name in ("mean-field", "structured", "full-rank")]
    [8, 8, 305]
    """
    return int(effective_dimensions(model, family, uses).max())
