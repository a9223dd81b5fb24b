"""A log density written in JAX, as a function of a pytree of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from pyturingvi.errors import InputError, in_short, unknown_name
from pyturingvi.models.foreign import ForeignModel, Natural
from pyturingvi.models.interactions import Variable
from pyturingvi.models.jax_batches import at_one_point, traced
from pyturingvi.models.jax_sites import JaxSites
from pyturingvi.models.traced import ObservedSite
from pyturingvi.models.traced_data import TracedModel
from pyturingvi.models.user_data import ONE_FOR_ALL, data_array, fits_values, refuse_nan
from pyturingvi.support.extras import require


class Jax(TracedModel):
    """A log density that JAX differentiates (NumPy engine only; the extra `jax`).

    Parameters
    ----------
    log_density : callable
        Takes one pytree of arrays like `example`, and returns the log density there, a number: log-Jacobians included,
        since every element of every leaf may be any real number. It is jitted, batched with vmap and differentiated, in
        64 bits; JAX's own settings stay as they are.
    example : pytree
        Arrays or numbers with the shapes of the variables, e.g. `{"mu": 0.0, "theta": np.zeros(8)}`; values do not
        count. A leaf is called by its path: `mu`, `county.slope`, `layers.0`.
    local : list of str, optional
        Names of the leaves that are local, each with an axis along which the blocks are counted; [] for none. By
        default the structure is found from the gradient. Names that contradict it are refused.
    terms : callable, optional
        Takes the pytree and returns arrays (a pytree) of terms that add up to the log density, each of which rests on
        one local block at most: for `Fit.refine` and `Fit.diagnose`, which integrate the locals out. By default they
        are read from the sums in log_density: `jnp.sum(norm.logpdf(y, theta[group], 1.0))` is a term a row.
    observed : array or dict of str to array, optional
        The data, by name; one array alone is called "y". NaN stands for no value.
    log_likelihood : callable, optional
        Takes the pytree and returns the log likelihood of each observed value, as `observed` has them: for `az.loo`.
    predictive : callable, optional
        Takes the pytree and a `jax.random` key and returns the data drawn anew, as `observed` has them.
    dims : dict, optional
        Names of the axes of leaves and observed variables: `{"theta": ["school"], "y": ["school"]}`.
    coords : dict, optional
        Labels along those axes. By default 0, 1, ...

    Attributes
    ----------
    structure : str
        What is global and what is local, in one line; it is printed when the model is built.

    Raises
    ------
    InputError
        If log_density is not a function of such a pytree that JAX can trace, does not return a number, or has no finite
        gradient near 0; local contradicts it; terms do not add up to it or rest on more than one block; or the other
        arguments do not fit each other.
    EngineError
        If JAX is not installed.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def schools(p):
    ...     return -0.5 * (p["mu"] ** 2 + jnp.sum((p["theta"] - p["mu"]) ** 2))
    >>> Jax(schools, {"mu": 0.0, "theta": np.zeros(8)}).layout
    Layout(n_global=1, n_local=8, local_dim=1)
    """

    name: ClassVar[str] = "jax"
    door: ClassVar[str] = "Jax"
    extra: ClassVar[str] = "jax"
    exports: ClassVar[dict[str, str]] = {}
    unsplit: ClassVar[str] = (
        "its sums do not split into terms of one local block each; pass terms=, a function that returns such terms"
    )

    def __init__(
        self,
        log_density: Callable[[Any], Any],
        example: Any,
        local: Any = None,
        *,
        terms: Callable[[Any], Any] | None = None,
        observed: Any = None,
        log_likelihood: Callable[[Any], Any] | None = None,
        predictive: Callable[[Any, Any], Any] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Any] | None = None,
    ) -> None:
        jax = require("jax", "jax", "tv.models.Jax")
        if not callable(log_density):
            raise InputError(f"Jax: log_density must be a function of a pytree, got {log_density!r}.")
        for name, given in (("terms", terms), ("log_likelihood", log_likelihood), ("predictive", predictive)):
            if given is not None and not callable(given):
                raise InputError(f"Jax: {name} must be a function of a pytree, got {given!r}.")
        leaves, tree = jax.tree_util.tree_flatten_with_path(example)
        variables = [_variable(path, leaf) for path, leaf in leaves]
        if not sum(variable.size for variable in variables):
            raise InputError(f"Jax: example must hold at least one number, got {example!r}.")
        names = [variable.name for variable in variables]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise InputError(f"Jax: two leaves of example would both be called {repeated!r}; rename one.")
        values = _observed_values(observed, names)
        if not values and (log_likelihood is not None or predictive is not None):
            raise InputError(
                "Jax: log_likelihood and predictive speak of data: pass observed=, an array or a dictionary."
            )
        axes = _axes_by_name({one.name: one.shape for one in variables} | {k: v.shape for k, v in values.items()}, dims)
        variables = [replace(one, axes=axes.get(one.name, ())) for one in variables]
        sites = JaxSites(log_density, tree, tuple(variables), terms, log_likelihood, predictive, values)
        self._start(sites)
        self._check_function(sites)
        self._sites = sites = replace(sites, observed=_observed_sites(sites, axes))
        title = getattr(log_density, "__name__", type(log_density).__name__)
        self._settle("jax" if title == "<lambda>" else title, variables, local, None, coords)
        if terms is not None:
            self._check_terms()
        self._refuse_nan(sites)

    def _refuse_nan(self, sites: JaxSites) -> None:
        """Where the log density is finite, so is what is said of the data."""
        found: dict[str, dict[str, np.ndarray]] = {}
        if sites.likelihood is not None:
            found["log_likelihood"] = at_one_point(sites.log_likelihood, self.dim)
        if sites.predictive is not None:
            found["predictive"] = at_one_point(self._replicated, self.dim + 1)  # the seed behind
        for what, arrays in found.items():
            for name, value in arrays.items():
                refuse_nan(f"Jax: {what}", name, value[None], sites.values[name])

    def _check_terms(self) -> None:
        """Refuse terms of the user's that do not add up, or do not split."""
        probe = np.random.default_rng(1).normal(0.0, 0.3, (2, self.dim))
        try:
            found = self._function("terms")(probe).sum(axis=1)
        except Exception as error:
            raise InputError(
                f"Jax: terms cannot be traced ({in_short(error)}). It takes one pytree like example, and "
                "returns arrays."
            ) from error
        value = self._evaluate(probe)[0]
        if not np.allclose(found, value, rtol=1e-9, atol=1e-9):
            raise InputError(f"Jax: terms add up to {found[0]:.9g} where log_density is {value[0]:.9g}.")
        if self.layout.n_local and self.default_family != "markov" and not self.has_log_terms:
            raise InputError(
                f"Jax: terms: one of them rests on several local blocks ({self.structure}). Each must rest on the "
                "globals and one block at most: return arrays of terms that are not summed over blocks."
            )

    def _check_function(self, sites: JaxSites) -> None:
        """Trace it once, for a message that says what is wrong with it."""
        jax = require("jax", "jax", "tv.models.Jax")
        dim = sum(variable.size for variable in sites.latents)
        try:
            shape = jax.ShapeDtypeStruct((dim,), np.float64)
            found = traced(lambda: jax.eval_shape(lambda point: sites.log_density(point), shape))
        except Exception as error:
            raise InputError(
                f"Jax: log_density cannot be traced ({in_short(error)}). It takes one pytree like "
                "example and must be written with jax.numpy, without branches on values, and with arrays for data (of "
                "a column, .to_numpy())."
            ) from error
        if getattr(found, "shape", None) != () or found.dtype.kind != "f":
            raise InputError(
                f"Jax: log_density must return one real number for one pytree like example (it is batched here), it "
                f"returned {found}."
            )

    @property
    def description(self) -> str:
        return "tv.models.Jax, a JAX function"

    no_predict: str = "a JAX function does not tell what it says of other data: use the draws of `fit.sample`"

    # ---- natural space: the leaves as they stand in the point -------------------------------------------------
    def _natural_values(self, points: np.ndarray, *, global_only: bool) -> dict[str, np.ndarray]:
        return ForeignModel._natural_values(self, points, global_only=global_only)

    def _flat_values(self, values: dict[str, np.ndarray]) -> np.ndarray:
        return ForeignModel._flat_values(self, values)

    def _natural_axes(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        return ForeignModel._natural_axes(self)

    def _describe_naturals(self) -> dict[str, Natural]:
        return ForeignModel._describe_naturals(self)

    # ---- data -----------------------------------------------------------------------------------------------
    @property
    def tells_likelihood(self) -> bool:
        self.no_likelihood = "log_likelihood= was not given"
        return self.tells_data and isinstance(self._sites, JaxSites) and self._sites.likelihood is not None

    @property
    def tells_replicates(self) -> bool:
        self.no_replicates = "predictive= was not given"
        return self.tells_data and isinstance(self._sites, JaxSites) and self._sites.predictive is not None

    @property
    def tells_prior(self) -> bool:
        self.no_prior = "a JAX function does not tell its prior"
        return False

    def _replicated(self, point_and_seed: Any) -> dict[str, Any]:
        assert isinstance(self._sites, JaxSites)
        key = require("jax.random", "jax", "tv.models.Jax").PRNGKey(point_and_seed[-1].astype(int))
        return self._sites.replicated(point_and_seed[:-1], key)

    def get_state(self) -> dict[str, Any]:
        return super().get_state()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A model that knows its variables but has no function: `constrain` works, `log_density` does not."""
        return super().from_state(state)


def _variable(path: tuple[Any, ...], leaf: Any) -> Variable:
    """A leaf's name and shape, or an InputError where it is no array of real numbers."""
    parts = [str(next(getattr(key, word) for word in ("key", "idx", "name") if hasattr(key, word))) for key in path]
    name = ".".join(parts) or "x"
    kind = getattr(getattr(leaf, "dtype", None), "kind", None) or np.asarray(leaf).dtype.kind
    if kind not in "iuf":
        raise InputError(f"Jax: example: {name!r} must be an array of real numbers, got {leaf!r}.")
    return Variable(name, tuple(np.shape(leaf)))


def _observed_values(observed: Any, leaves: Sequence[str]) -> dict[str, np.ndarray]:
    """The observed variables by name."""
    if observed is None:
        return {}
    given = observed if isinstance(observed, Mapping) else {"y": observed}
    found = {}
    for name, value in given.items():
        array = data_array(f"Jax: observed: {name!r}", value)
        if name in leaves:
            raise InputError(f"Jax: observed: {name!r} is a leaf of example too; rename one.")
        found[str(name)] = array
    return found


def _axes_by_name(shapes: Mapping[str, tuple[int, ...]], dims: Any) -> dict[str, tuple[str, ...]]:
    """The axes' names that the user gave."""
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        raise InputError(f"Jax: dims must be a dictionary of names and lists of axes, got {dims!r}.")
    found = {}
    for name, axes in dims.items():
        if name not in shapes:
            raise unknown_name("variable in Jax's dims", name, shapes)
        named = (axes,) if isinstance(axes, str) else tuple(axes)
        if len(named) != len(shapes[name]):
            raise InputError(
                f"Jax: dims of {name!r} must name {len(shapes[name])} axes, of shape {shapes[name]}; got {axes!r}."
            )
        found[name] = named
    return found


def _observed_sites(sites: JaxSites, axes: Mapping[str, tuple[str, ...]]) -> tuple[ObservedSite, ...]:
    """The observed variables, held against what the functions return for them."""
    found = {
        name: ObservedSite(name, value.shape, axes.get(name, ("",) * value.ndim), value.ndim)
        for name, value in sites.values.items()
    }
    known = replace(sites, observed=tuple(found.values()))
    if sites.likelihood is not None:
        for name, logs in known.shapes(known.log_likelihood).items():
            wanted = found[name].shape
            if not fits_values(logs.shape, wanted):
                joint = "" if logs.shape else f" {ONE_FOR_ALL.format((1, *wanted))}"
                raise InputError(
                    f"Jax: log_likelihood must return a number for each value of {name!r}, whose shape is {wanted}; it "
                    f"returned {logs.shape}.{joint}"
                )
            found[name] = replace(found[name], n_batch=len(logs.shape))
    if sites.predictive is not None:
        key = require("jax.random", "jax", "tv.models.Jax").PRNGKey(0)
        for name, drawn in known.shapes(known.replicated, key).items():
            if drawn.shape != found[name].shape:
                raise InputError(
                    f"Jax: predictive must return {name!r} of shape {found[name].shape}, it returned {drawn.shape}."
                )
    return tuple(found.values())
