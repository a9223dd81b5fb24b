"""The functions of a pytree that a user gave, as functions of one flat point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, in_short
from pyturingvi.models.interactions import Variable, split
from pyturingvi.models.jax_batches import traced
from pyturingvi.models.jax_terms import terms_of
from pyturingvi.models.traced import ObservedSite, Site
from pyturingvi.support.extras import require

Function = Callable[..., Any]


@dataclass(frozen=True)
class JaxSites:
    """A log density over a pytree, with what else is told of it.

    Attributes
    ----------
    density, terms, likelihood, predictive : callable
        Of a pytree; the last takes a key too.
    tree : PyTreeDef
    latents : tuple of Variable
        The leaves.
    values : dict of str to array
        Of the observed variables.
    observed : tuple of ObservedSite
    """

    density: Function
    tree: Any
    latents: tuple[Variable, ...]
    terms_given: Function | None = None
    likelihood: Function | None = None
    predictive: Function | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    observed: tuple[ObservedSite, ...] = ()

    @property
    def labels(self) -> list[str]:
        """Not used: a leaf's coordinates have its name."""
        return []

    @property
    def found(self) -> tuple[Site, ...]:
        """The leaves: their own space is the unconstrained one."""
        return tuple(Site(one.name, one.shape, one.axes or ("",) * len(one.shape), True) for one in self.latents)

    def pytree(self, point: Any) -> Any:
        """The pytree of a (d,) array."""
        return self.tree.unflatten(split(point, {one.name: one.shape for one in self.latents}).values())

    def log_density(self, point: Any) -> Any:
        """The log density at a (d,) array."""
        return self.density(self.pytree(point))

    def terms(self, point: Any) -> Any:
        """Terms that add up to the log density: those given, or those whose sum it computes."""
        if self.terms_given is None:
            return terms_of(self.log_density)(point)
        jnp, leaves = _jax("jax.numpy"), _jax("jax").tree_util.tree_leaves(self.terms_given(self.pytree(point)))
        return jnp.concatenate([jnp.ravel(jnp.asarray(one, dtype=float)) for one in leaves])

    def constrained(self, point: Any) -> dict[str, Any]:
        """The leaves by name."""
        return split(point, {one.name: one.shape for one in self.latents})

    def unconstrained(self, natural: Any) -> Any:
        """The point itself."""
        return natural

    # ---- data -----------------------------------------------------------------------------------------------
    def data(self, point: Any) -> dict[str, tuple[Any, Any]]:
        """The observed variables; NaN where there is no value."""
        found = {}
        for site in self.observed:
            values = self.values[site.name]
            there = ~np.isnan(values) if values.dtype.kind == "f" else np.ones(site.shape, dtype=bool)
            found[site.name] = values, there.all(axis=tuple(range(site.n_batch, values.ndim)))
        return found

    def log_likelihood(self, point: Any) -> dict[str, Any]:
        """Of each observed value, by the user's function."""
        assert self.likelihood is not None
        found = self._named(self.likelihood(self.pytree(point)), "log_likelihood")
        return {name: value.astype(float) for name, value in found.items()}

    def replicated(self, point: Any, key: Any) -> dict[str, Any]:
        """The observed variables anew, by the user's function."""
        assert self.predictive is not None
        return self._named(self.predictive(self.pytree(point), key), "predictive")

    def _named(self, found: Any, what: str) -> dict[str, Any]:
        """An array for each observed variable; one alone may come without its name."""
        names = [site.name for site in self.observed]
        if not isinstance(found, Mapping) and len(names) == 1:
            found = {names[0]: found}
        if not isinstance(found, Mapping) or set(found) != set(names):
            got = f"{', '.join(map(repr, found))}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
            raise InputError(
                f"Jax: {what} must return a dictionary of arrays for {', '.join(map(repr, names))}; it returned {got}."
            )
        return {name: _real(f"Jax: {what}", name, found[name]) for name in names}

    def shapes(self, function: Function, *keys: Any) -> dict[str, Any]:
        """Shapes and types of what `log_likelihood` or `replicated` gives; an InputError where it cannot be traced."""
        jax = _jax("jax")
        point = jax.ShapeDtypeStruct((sum(one.size for one in self.latents),), np.float64)
        name = {"log_likelihood": "log_likelihood", "replicated": "predictive"}[function.__name__]
        try:
            found: dict[str, Any] = traced(lambda: jax.eval_shape(lambda point: function(point, *keys), point))
            return found
        except InputError:
            raise
        except Exception as error:
            takes = "a pytree like example" + " and a jax.random key" * bool(keys)
            raise InputError(
                f"Jax: {name} cannot be traced ({in_short(error)}). It takes {takes} and must be written "
                "with jax.numpy."
            ) from error


def _real(what: str, name: str, value: Any) -> Any:
    """A JAX array of real numbers, or an InputError."""
    jnp = _jax("jax.numpy")
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must return an array of real numbers for {name!r} ({in_short(error)}).") from error
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise InputError(f"{what} must return real numbers for {name!r}; it returned dtype {array.dtype}.")
    return array


def _jax(name: str) -> Any:
    return require(name, "jax", "tv.models.Jax")
