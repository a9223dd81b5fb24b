"""A model given by a user's own function for the log density and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.base import Model
from pyturingvi.models.checks import check_values
from pyturingvi.models.labels import relabel
from pyturingvi.support.array_namespace import Array, namespace_of

_PROBED = (0.0, 1.0, -1.0, 10.0, -10.0)  # the latter where fn is not finite at the former

Function = Callable[[np.ndarray], tuple[Any, Any]]


class LogDensity(Model):
    """Any target whose log density and gradient you can compute (NumPy engine only).

    The target is `p(z) prod_n p(y_n, x_n | z)` in the paper's notation (Ko et al. 2024, section "Hierarchical
    Branched Structured Families"); it must be over unconstrained real numbers, log-Jacobians included.

    Parameters
    ----------
    fn : callable
        Takes a (M, d) float64 array of points, each row in the order `[z, y_1, ..., y_N]`, and returns the
        log densities (M,) and their gradients (M, d). It is called with varying M. It may return -inf or NaN
        where it is not defined; a fit refuses to start there, and stops and says so if it runs into such values.
    layout : Layout
        Who is global and who is local.
    names : list of str, optional
        A label for each of the d coordinates, or for each of the d_z global ones. Default `z[0]`, `z[1]`, ...

    Raises
    ------
    InputError
        If fn is not callable, does not return numbers of the right shapes (it is called on construction to check
        that, at a few points near 0), or names has a wrong length.

    Examples
    --------
    >>> def normal(points):
    ...     return -0.5 * (points**2).sum(axis=1), -points
    >>> LogDensity(normal, Layout(n_global=2, n_local=3, local_dim=1)).dim
    5
    """

    name: ClassVar[str] = "log_density"
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})

    def __init__(self, fn: Function, layout: Layout, names: Sequence[str] | None = None) -> None:
        if not isinstance(layout, Layout):
            raise InputError(f"LogDensity: layout must be a Layout(n_global, n_local, local_dim), got {layout!r}.")
        if not callable(fn):
            raise InputError(f"LogDensity: fn must be a function of a (M, d) array, got {fn!r}.")
        self.layout = layout
        self._fn: Function | None = fn
        self._set_names(names)
        self._probe()

    def _set_names(self, names: Sequence[str] | None) -> None:
        layout = self.layout
        self.names: list[str] | None = None
        if names is not None:
            length = layout.n_global if len(names) == layout.n_global else layout.dim
            labels = [str(label) for label in relabel(names, length, "LogDensity: names")]
            if len(set(labels)) < len(labels):
                raise InputError("LogDensity: names must all be different.")
            self.names = labels

    def _probe(self) -> None:
        """Call fn on a few points near 0, their number unlike d so that a transposed gradient shows.

        What it returns there need not be finite: `fit` looks at where it starts. It is kept, since it tells one
        function from another; where it is not finite, so are values elsewhere.
        """
        near_0 = np.zeros((3 if self.dim != 3 else 4, self.dim))
        near_0[1:] = 0.01 * np.random.default_rng(0).standard_normal(near_0[1:].shape)
        self._probed: list[np.ndarray] | None = []
        for centre in _PROBED:
            try:
                with np.errstate(all="ignore"):
                    value, gradient = self._call(near_0 + centre)
            except Exception as error:
                if centre != 0:  # no business of the user's
                    break
                error.add_note(
                    f"LogDensity called fn with {near_0.shape} points near 0 to check it. Where it is not defined it "
                    "must return NaN or -inf."
                )
                raise
            self._probed += [np.array(value), np.array(gradient)]
            if np.isfinite(value).all() and np.isfinite(gradient).all():
                break

    def _call(self, points: Array) -> tuple[np.ndarray, np.ndarray]:
        if self._fn is None:
            raise InputError(
                "LogDensity: this model was read from a file, which does not hold its function. "
                "Build LogDensity(fn, layout) again to evaluate it."
            )
        if namespace_of(points) is not np:
            raise InputError("LogDensity: fn works on NumPy arrays. Use device='cpu'.")
        # a copy: fn may write into what it is given
        return check_values("LogDensity: fn", self._fn(np.array(points, dtype=np.float64)), points)

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def description(self) -> str:
        return "tv.models.LogDensity, a Python function"

    @property
    def global_labels(self) -> list[str]:
        return super().global_labels if self.names is None else self.names[: self.layout.n_global]

    @property
    def coords(self) -> dict[str, list[Any]]:
        coords = super().coords
        if self.layout.n_global and self.names is not None:
            coords["global"] = list(self.global_labels)
        return coords

    def fingerprint(self) -> list[Any]:
        """What fn returned when it was tried: another function with the same layout is another model."""
        return list(self._probed or [])

    def get_state(self) -> dict[str, Any]:
        """The layout and the names; the function cannot be written to a file."""
        layout = self.layout
        state: dict[str, Any] = {"layout": [layout.n_global, layout.n_local, layout.local_dim]}
        if self.names is not None:
            state["names"] = list(self.names)
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> LogDensity:
        """A model that knows its variables but has no function: `constrain` works, `log_density` does not."""
        model = cls.__new__(cls)
        model.layout = Layout(*(int(count) for count in state["layout"]))
        model._fn = None
        model._probed = None
        model._set_names(state.get("names"))
        return model

    # ---- density ------------------------------------------------------------------------------------------
    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        value, gradient = self._call(points)
        # copies: fn may return the same buffers at each call
        with np.errstate(over="ignore"):
            return np.array(value, dtype=np.float64), np.array(gradient, dtype=points.dtype)
