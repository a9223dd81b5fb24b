"""A model given by a user's own function for the log density and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.models.axes import Axes, read_axes
from pyturingvi.models.base import Model
from pyturingvi.models.labels import Labels, relabel
from pyturingvi.models.natural_space import NaturalSpace
from pyturingvi.models.observed import REBUILD, Observation
from pyturingvi.models.user_data import Likelihood, Predictive, UserData
from pyturingvi.models.user_function import Function, UserFunction, probed_points
from pyturingvi.models.user_terms import Terms, UserTerms
from pyturingvi.support.array_namespace import Array
from pyturingvi.transforms import Transform


class LogDensity(Model):
    """Any target whose log density and gradient you can compute (NumPy engine only).

    The target is `p(z) prod_n p(y_n, x_n | z)` in the paper's notation (Ko et al. 2024, section "Hierarchical
    Branched Structured Families"). Without `constrain` it is over unconstrained real numbers, log-Jacobians included;
    with it, over the named values, and what belongs to the transforms is added here.

    Parameters
    ----------
    fn : callable
        Takes a (M, d) float64 array of points, each row in the order `[z, y_1, ..., y_N]`, and returns the
        log densities (M,) and their gradients (M, d). With `constrain`, it takes a dictionary of named values (M, ...),
        and returns the log densities (M,) and a dictionary of gradients of the same shapes. It is called with varying
        M. It may return -inf or NaN where it is not defined; a fit refuses to start there, and stops and says so if it
        runs into such values. A function of one point, which returns a number and its gradient, is called in a loop.
    layout : Layout
        Who is global and who is local.
    names : list of str, optional
        Without `constrain`, a label for each of the d coordinates, or for each of the d_z global ones. Default `z[0]`,
        `z[1]`, ...
    constrain : dict of str to Transform, optional
        Each variable's name and its transform of `tv.transforms`, in the order of the flat vector: first those that
        fill the globals, then those of a local block. A local one is given for one block, and its values have an axis
        of the N blocks in front, (M, N, ...). Draws, summaries and ArviZ trees are in these variables.
    dims : dict of str to list of str, optional
        Names of the axes behind M of a variable, such as `{"effect": ["school"]}`, or of an observed one. Without
        `constrain` the variables are z (d_z,) and y (N, d_y).
    coords : dict of str to list, optional
        Labels along an axis: strings, numbers or dates. Default 0, 1, ...

    terms : callable, optional
        How the log density splits, where the locals do not depend on each other given the globals: `Fit.diagnose` and
        `Fit.refine` then integrate them out one by one. Takes what fn takes and weights (M, N); returns the global term
        (M,), the local terms (M, N), and the gradient, as fn returns it, of the global term plus the sum of the local
        ones times their weights. Local term n has all that depends on local n: its prior given the globals, its data.
    observed : array or dict of str to array, optional
        The data, by name; one array alone is called "y".
    log_likelihood : callable, optional
        Takes what fn takes, and returns the log likelihood of each observed value, (M, ...): for `az.loo`. A dictionary
        where there are several observed arrays.
    predictive : callable, optional
        Takes what fn takes and a `numpy.random.Generator`, and returns the data drawn anew, likewise: for
        `Fit.predict` and predictive checks.

    Raises
    ------
    InputError
        If fn is not callable, does not return numbers of the right shapes, or its gradient is wrong: it is called on
        construction, with some ten points near 0, and compared with differences along random directions. If names,
        constrain, dims or coords do not fit the layout, terms does not add up to fn or mixes blocks, or log_likelihood
        or predictive do not return real numbers that fit observed.

    Examples
    --------
    >>> def normal(points):
    ...     return -0.5 * (points**2).sum(axis=1), -points
    >>> LogDensity(normal, Layout(n_global=2, n_local=3, local_dim=1)).dim
    5
    >>> def exponential(values):
    ...     return -values["rate"], {"rate": -np.ones_like(values["rate"])}
    >>> LogDensity(exponential, Layout(1, 0, 0), constrain={"rate": tv.transforms.Positive()}).global_labels
    ['log rate']
    """

    name: ClassVar[str] = "log_density"
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    no_predict: str = "fn does not tell what it says of other data: use the draws of `fit.sample`"

    def __init__(
        self,
        fn: Function,
        layout: Layout,
        names: Sequence[str] | None = None,
        *,
        constrain: Mapping[str, Transform] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        terms: Terms | None = None,
        observed: Any = None,
        log_likelihood: Likelihood | None = None,
        predictive: Predictive | None = None,
    ) -> None:
        if not isinstance(layout, Layout):
            raise InputError(f"LogDensity: layout must be a Layout(n_global, n_local, local_dim), got {layout!r}.")
        if not callable(fn):
            raise InputError(f"LogDensity: fn must be a function of a (M, d) array, got {fn!r}.")
        if terms is not None and not callable(terms):
            raise InputError(f"LogDensity: terms must be a function of points and a (M, N) array, got {terms!r}.")
        self.layout = layout
        self._space: NaturalSpace | None = None
        if constrain is not None:
            if names is not None:
                raise InputError("LogDensity: give names or constrain, which names the variables itself, not both.")
            self._space = NaturalSpace(layout, constrain, "LogDensity")
        self._set_names(names)
        self._data = self._read_data(observed, log_likelihood, predictive)
        self._axes = self._read_axes(dims, coords)
        self._has_own_axes = bool(constrain or dims or coords)
        self._fn: UserFunction | None = UserFunction(fn, self._space)
        self._probed = self._fn.probe(self.dim, layout.n_global, self._coordinate)
        self._terms: UserTerms | None = None
        if terms is not None:
            self._terms = UserTerms(terms, layout, self._space)
            self._terms.check(self._probed, *probed_points(self.dim), self._coordinate)
        if self._data is not None:
            finite = np.isfinite(self._probed[-2]).all()  # of the last centre that was tried
            self._data.check(self.dim, probed_points(self.dim)[1][len(self._probed) // 2 - 1] if finite else None)

    def _read_data(
        self, observed: Any, log_likelihood: Likelihood | None, predictive: Predictive | None
    ) -> UserData | None:
        if observed is not None:
            return UserData(observed, log_likelihood, predictive, list(self._natural_shapes), self._space)
        if log_likelihood is not None or predictive is not None:
            raise InputError(
                "LogDensity: log_likelihood and predictive speak of data: pass observed=, an array or a dictionary."
            )
        return None

    def _set_names(self, names: Sequence[str] | None) -> None:
        layout = self.layout
        self.names: list[str] | None = None
        if names is not None:
            length = layout.n_global if len(names) == layout.n_global else layout.dim
            labels = [str(label) for label in relabel(names, length, "LogDensity: names")]
            if len(set(labels)) < len(labels):
                raise InputError("LogDensity: names must all be different.")
            self.names = labels

    @property
    def has_log_terms(self) -> bool:
        without = "fn alone does not define how it splits; pass `terms=` to LogDensity"
        self.no_log_terms = without if self._fn else f"its file does not hold the function: {REBUILD}"
        return self._terms is not None

    @property
    def has_term_gradients(self) -> bool:
        return self._terms is not None

    # ---- data ---------------------------------------------------------------------------------------------
    @property
    def tells_data(self) -> bool:
        self.no_data = "observed= was not given" if self._fn else f"its file does not hold them: {REBUILD}"
        return self._data is not None

    @property
    def tells_likelihood(self) -> bool:
        self.no_likelihood = "log_likelihood= was not given"
        return self._data is not None and self._data.tells_likelihood

    @property
    def tells_replicates(self) -> bool:
        self.no_replicates = "predictive= was not given"
        return self._data is not None and self._data.tells_replicates

    def _observations(self) -> dict[str, Observation]:
        assert self._data is not None
        found = {}
        for name, values in self._data.values.items():
            axes = self._axes.dims[name]
            found[name] = Observation(values, axes, {axis: (axis, self._axes.labels[axis].typed) for axis in axes})
        return found

    def _log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        assert self._data is not None
        return self._data.log_likelihood(points)

    def _replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        assert self._data is not None
        return self._data.replicate(points, rng)

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def description(self) -> str:
        return "tv.models.LogDensity, a Python function"

    def _read_axes(self, dims: Any, coords: Any) -> Axes:
        """The axes and their labels, as given or by default; `names` are labels too."""
        defaults: dict[str, list[str]] = {"z": ["global"], "y": ["block", "local"]}
        if self._space is not None:
            defaults = self._space.default_dims(dims)
        data = {} if self._data is None else {name: value.shape for name, value in self._data.values.items()}
        defaults |= {name: [f"{name}_dim_{k}" for k in range(len(shape))] for name, shape in data.items()}
        axes = read_axes(self._natural_shapes | data, defaults, dims, coords, "LogDensity")
        if self.names is None:
            return axes
        labels = dict(axes.labels)
        for name, found in (("z", self.names[: self.layout.n_global]), ("y", self.names[self.layout.n_global :])):
            if found and set(axes.dims[name]).intersection(coords or {}):
                raise InputError(f"LogDensity: names label {name} already; leave coords of {axes.dims[name]} out.")
            if found and (name == "z" or self.layout.local_dim == 1):
                labels[axes.dims[name][0]] = Labels(list(found))
        return Axes(axes.dims, labels)

    @property
    def global_labels(self) -> list[str]:
        if self._space is not None:
            return self._space.free_labels(self.scalar_labels)
        return super().global_labels if self.names is None else self.names[: self.layout.n_global]

    def _coordinate(self, k: int) -> str:
        """What messages call a coordinate."""
        if self._space is not None:
            label = self._space.free_labels(self.scalar_labels, local=True)[k]
            return f"{label!r}, by the gradients of the values and the chain rule,"
        layout = self.layout
        blocks = [f"y[{n},{i}]" for n in range(layout.n_local) for i in range(layout.local_dim)]
        labels = self.global_labels + ((self.names or [])[layout.n_global :] or blocks)
        return f"coordinate {k} ({labels[k]})"

    @property
    def dims(self) -> dict[str, list[str]]:
        return {name: list(self._axes.dims[name]) for name in self._natural_shapes}

    @property
    def coords(self) -> dict[str, list[Any]]:
        return self._axes.coords

    def scalar_labels(self, name: str) -> list[str]:
        local_names = (self.names or [])[self.layout.n_global :]
        return [f"y[{label}]" for label in local_names] if name == "y" and local_names else super().scalar_labels(name)

    # ---- state --------------------------------------------------------------------------------------------
    def fingerprint(self) -> list[Any]:
        """What fn returned when it was tried: another function with the same layout is another model."""
        return list(self._probed)

    @property
    def has_state(self) -> bool:
        """Not where a transform is of a class that is not registered."""
        return super().has_state and (self._space is None or self._space.has_state)

    def get_state(self) -> dict[str, Any]:
        """The layout, the names and the transforms; the function cannot be written to a file."""
        layout = self.layout
        state: dict[str, Any] = {"layout": [layout.n_global, layout.n_local, layout.local_dim]}
        if self.names is not None:
            state["names"] = list(self.names)
        if self._space is not None:
            state["constrain"] = self._space.to_state()
        if self._has_own_axes:
            state["dims"] = self.dims
            known = {axis for axes in self.dims.values() for axis in axes}  # not those of data alone
            labels = {axis: found for axis, found in self._axes.labels.items() if axis in known}
            state["labels"] = {axis: [found.plain, found.dtype] for axis, found in labels.items()}
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> LogDensity:
        """A model that knows its variables but has no function: `constrain` works, `log_density` does not."""
        model = cls.__new__(cls)
        model.layout = Layout(*(int(count) for count in state["layout"]))
        model._fn = model._terms = model._data = None
        model._probed = []
        model._space = None
        if "constrain" in state:
            model._space = NaturalSpace.from_state(model.layout, state["constrain"], "LogDensity")
        model._set_names(state.get("names"))
        model._has_own_axes = "dims" in state
        if model._has_own_axes:
            labels = {axis: Labels(list(plain), dtype) for axis, (plain, dtype) in state["labels"].items()}
            model._axes = Axes(dict(state["dims"]), labels)
        else:
            model._axes = model._read_axes(None, None)
        return model

    # ---- density ------------------------------------------------------------------------------------------
    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        if self._fn is None:
            raise InputError(
                "LogDensity: this model was read from a file, which does not hold its function. "
                "To evaluate it build LogDensity(fn, layout) again, and pass it as tv.load_fit(path, model=...)."
            )
        value, gradient = self._fn(points)
        # copies: fn may return the same buffers at each call
        with np.errstate(over="ignore"):
            return np.array(value, dtype=np.float64), np.array(gradient, dtype=points.dtype)

    def _log_terms_and_gradient(self, points: Array, weights: Array) -> tuple[Array, Array, Array]:
        assert self._terms is not None
        with np.errstate(over="ignore"):
            return self._terms(points, weights)

    # ---- natural space ------------------------------------------------------------------------------------
    @property
    def _natural_shapes(self) -> dict[str, tuple[int, ...]]:
        return super()._natural_shapes if self._space is None else self._space.shapes

    def _constrain_global(self, z: Array) -> dict[str, Array]:
        return super()._constrain_global(z) if self._space is None else self._space.values(z, local=False)

    def _constrain_local(self, points: Array) -> dict[str, Array]:
        return super()._constrain_local(points) if self._space is None else self._space.values(points, local=True)

    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        return super()._unconstrain(values) if self._space is None else self._space.flat(values, self.name)
