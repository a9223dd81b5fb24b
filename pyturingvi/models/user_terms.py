"""How a user's own log density splits into a global term and one a local, checked against the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.checks import check_terms
from pyturingvi.models.gradient_check import check_gradient
from pyturingvi.models.natural_space import NaturalSpace
from pyturingvi.models.user_function import failed, read_only
from pyturingvi.support.array_namespace import Array, namespace_of

Terms = Callable[[Any, np.ndarray], tuple[Any, Any, Any]]
_WHAT = "LogDensity: terms"
_CLOSE = 1e-6
_SPREADS = (0.5, 0.05, 0.005)
_SUM = "global_term + (weights * local_terms).sum(axis=1)"


class UserTerms:
    """Log terms over unconstrained points, by the user's function.

    Parameters
    ----------
    terms : callable
        Of points (M, d), or of named values (M, ...) where there is a space; and of weights (M, N).
    layout : Layout
    space : NaturalSpace, optional
        What leads from points to the values.
    """

    def __init__(self, terms: Terms, layout: Layout, space: NaturalSpace | None = None) -> None:
        self._terms, self._layout, self._space = terms, layout, space

    def __call__(self, points: Array, weights: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Global term (M,), local terms (M, N), and the gradient (M, d) of the first plus the weighted second."""
        if namespace_of(points) is not np:
            raise InputError(f"{_WHAT} works on NumPy arrays. Use device='cpu'.")
        layout, wide = self._layout, np.array(points, dtype=np.float64)
        own = np.array(weights, dtype=np.float64)  # copies: the function may write into what it is given
        if self._space is None:
            prior, local, gradient = check_terms(_WHAT, self._call(wide, own), wide, layout.n_local)
            return tuple(np.array(one, dtype=np.float64) for one in (prior, local, gradient))  # type: ignore[return-value]
        at = self._space.evaluate(wide)
        found = self._call(read_only(at.values), own)
        if not isinstance(found, tuple | list) or len(found) != 3 or not isinstance(found[2], Mapping):
            raise InputError(f"{_WHAT} must return the global term, the local terms and a dictionary of gradients.")
        zeros = {name: np.zeros_like(value) for name, value in at.values.items()}
        if set(found[2]) != set(zeros):
            raise InputError(f"{_WHAT} must return a gradient for each of {', '.join(map(repr, zeros))}.")
        slopes = {name: np.array(value, dtype=np.float64) for name, value in found[2].items()}
        prior, local, _ = check_terms(_WHAT, (found[0], found[1], wide), wide, layout.n_local)
        of_jacobian = self._space.pullback(at, zeros, 1.0)
        of_jacobian[:, layout.n_global :] *= np.repeat(weights, layout.local_dim, axis=1)
        gradient = self._space.pullback(at, slopes, 0.0) + of_jacobian
        return prior + at.global_log_jacobian, local + at.local_log_jacobian, gradient

    def _call(self, given: Any, weights: np.ndarray) -> Any:
        try:
            return self._terms(given, weights)
        except InputError:
            raise
        except Exception as error:
            raise failed("terms", error, given) from error

    def check(
        self,
        probed: Sequence[np.ndarray],
        near_0: np.ndarray,
        centres: Sequence[float],
        label: Callable[[int], str],
    ) -> None:
        """Refuse terms that do not add up to the log density or rest on other blocks, or whose gradient is wrong.

        Parameters
        ----------
        probed : sequence of (M,) and (M, d) arrays
            Log density and gradient at the points `near_0` plus each of the centres.
        label : callable
            From a coordinate to what messages call it.
        """
        layout = self._layout
        ones = np.ones((len(near_0), layout.n_local))
        for centre, value, slope in zip(centres, probed[::2], probed[1::2], strict=False):
            with np.errstate(all="ignore"):
                prior, local, gradient = self(near_0 + centre, ones)
                without = self(near_0 + centre, 0 * ones)[2]
            _compare("terms add up to", prior + local.sum(axis=1), value)
            self._check_blocks(near_0[1] + centre)
            _compare("terms have, with weights of 1, the gradient", gradient, slope)
            if np.nan_to_num(without[:, layout.n_global :]).any():
                raise InputError(
                    f"{_WHAT} has a gradient in the locals where all weights are 0. It must return that of {_SUM}."
                )
            if np.isfinite(value).all() and layout.n_local:
                at, who = np.full(layout.dim, centre), f"{_WHAT}, given weights that differ,"
                check_gradient(self._weighted, at, layout.n_global, label, who, _SUM)

    def _check_blocks(self, centre: np.ndarray) -> None:
        """Refuse a term that changes where blocks other than its own are moved, by the digits of their numbers."""
        layout, rng = self._layout, np.random.default_rng(0)
        number = np.arange(layout.n_local)
        digits = range(max(1, (layout.n_local - 1).bit_length()))
        moved = np.array([(number >> digit & 1) == value for digit in digits for value in (0, 1)])
        for spread in _SPREADS:  # the first at which all is finite
            base = centre + spread * rng.standard_normal(layout.dim)
            step = spread * rng.uniform(0.5, 1.5, (layout.n_local, layout.local_dim))
            changed = self._changes(base, step, moved)
            if changed is not None:
                break
        else:
            return
        wrong = changed & ~np.hstack([np.zeros((len(moved), 1), dtype=bool), moved])
        if not wrong.any():
            return
        row, term = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        blocks = number[moved[row]]
        while blocks.size > 1:  # which of those that were moved it is
            first = blocks[: blocks.size // 2]
            found = self._changes(base, step, np.isin(number, first)[None])
            blocks = first if found is not None and found[0, term] else blocks[first.size :]
        name, own = (
            ("the global term", "no local") if not term else (f"local term {term - 1}", f"block {term - 1} alone")
        )
        raise InputError(
            f"{_WHAT}: {name} changes where local block {blocks[0]} is moved (counted from 0). It must rest on the "
            f"globals and {own}: return local terms in the order of the blocks, each with all that depends on its own."
        )

    def _changes(self, base: np.ndarray, step: np.ndarray, moved: np.ndarray) -> np.ndarray | None:
        """Of the global term and the local ones, which change as blocks are moved (K, N); None where not finite."""
        points = np.repeat(base[None], len(moved) + 1, axis=0)
        points[1:, self._layout.n_global :] += (moved[:, :, None] * step).reshape(len(moved), -1)
        with np.errstate(all="ignore"):
            prior, local, _ = self(points, np.ones((len(points), self._layout.n_local)))
            terms = np.hstack([prior[:, None], local])
            changed: np.ndarray = np.abs(terms[1:] - terms[0]) > _CLOSE * (1 + np.abs(terms[0]))
        return changed if np.isfinite(terms).all() else None

    def _weighted(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sum under one set of unequal weights, and its gradient; NaN where there is none."""
        weights = np.random.default_rng(2).uniform(0.5, 1.5, self._layout.n_local)
        try:
            with np.errstate(all="ignore"):
                prior, local, gradient = self(points, np.repeat(weights[None], len(points), axis=0))
                return prior + local @ weights, gradient
        except Exception:  # at points that the user did not choose
            return np.full(len(points), np.nan), np.full(points.shape, np.nan)


def _compare(what: str, found: np.ndarray, wanted: np.ndarray) -> None:
    finite = np.isfinite(wanted)
    apart = np.where(finite, abs(found - wanted), 0.0)
    if not apart.max() <= _CLOSE * (1 + abs(wanted[finite]).max(initial=0.0)):
        k = np.unravel_index(int(np.argmax(np.nan_to_num(apart, nan=np.inf))), wanted.shape)
        raise InputError(f"LogDensity: {what} {found[k]:.9g} where fn has {wanted[k]:.9g}.")
