"""How a user's own log density splits into a global term and one a local, checked against the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.checks import check_terms
from pyturingvi.models.natural_space import NaturalSpace
from pyturingvi.models.user_function import failed, read_only
from pyturingvi.support.array_namespace import Array, namespace_of

Terms = Callable[[Any, np.ndarray], tuple[Any, Any, Any]]
_WHAT = "LogDensity: terms"
_CLOSE = 1e-6


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

    def check(self, probed: Sequence[np.ndarray], near_0: np.ndarray, centres: Sequence[float]) -> None:
        """Refuse terms that do not add up to the log density, or whose gradient forgets the weights.

        Parameters
        ----------
        probed : sequence of (M,) and (M, d) arrays
            Log density and gradient at the points `near_0` plus each of the centres.
        """
        ones = np.ones((len(near_0), self._layout.n_local))
        for centre, value, slope in zip(centres, probed[::2], probed[1::2], strict=False):
            with np.errstate(all="ignore"):
                prior, local, gradient = self(near_0 + centre, ones)
                without = self(near_0 + centre, 0 * ones)[2]
            _compare("terms add up to", prior + local.sum(axis=1), value)
            _compare("terms have, with weights of 1, the gradient", gradient, slope)
            if np.nan_to_num(without[:, self._layout.n_global :]).any():
                raise InputError(
                    f"{_WHAT} has a gradient in the locals where all weights are 0. It must return the gradient of "
                    "global_term + (weights * local_terms).sum(axis=1)."
                )


def _compare(what: str, found: np.ndarray, wanted: np.ndarray) -> None:
    finite = np.isfinite(wanted)
    apart = np.where(finite, abs(found - wanted), 0.0)
    if not apart.max() <= _CLOSE * (1 + abs(wanted[finite]).max(initial=0.0)):
        k = np.unravel_index(int(np.argmax(np.nan_to_num(apart, nan=np.inf))), wanted.shape)
        raise InputError(f"LogDensity: {what} {found[k]:.9g} where fn has {wanted[k]:.9g}.")
