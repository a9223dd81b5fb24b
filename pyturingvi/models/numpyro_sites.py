"""What a NumPyro model's trace says of its variables: names, shapes, plates, transforms; and what cannot be fitted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.foreign import element_labels
from pyturingvi.models.interactions import Variable, split
from pyturingvi.models.jax_batches import traced
from pyturingvi.models.numpyro_arguments import name_of, with_arrays
from pyturingvi.models.numpyro_data import (
    is_data,
    mask_of,
    numpyro_module,
    observed_shape,
    run_without_data,
)
from pyturingvi.models.traced import ObservedSite, Site


@dataclass(frozen=True)
class NumPyroSites:
    """A model with its arguments, and what stands in its trace.

    Attributes
    ----------
    model : callable
        As it was given.
    seeded : callable
        The model as NumPyro's functions take it.
    latents : tuple of Variable
        In unconstrained space, in the order of the trace.
    labels : list of str
        For each unconstrained coordinate: `mu`, `log tau`, or `unconstrained rho` for other transforms.
    found : tuple of Site
        Latent and deterministic sites.
    observed : tuple of ObservedSite
        Sample sites with data.
    """

    model: Callable[..., Any]
    seeded: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    latents: tuple[Variable, ...]
    labels: list[str]
    found: tuple[Site, ...]
    observed: tuple[ObservedSite, ...]

    @classmethod
    def of(cls, model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NumPyroSites:
        """Run the model once, and read its trace; an InputError for what cannot be fitted."""
        handlers, util = numpyro_module("numpyro.handlers"), numpyro_module("numpyro.infer.util")
        seeded = handlers.seed(model, rng_seed=0)
        # as NumPyro's own samplers start: a site whose prior is improper cannot be drawn from it
        uniform = numpyro_module("numpyro.infer").init_to_uniform
        started = handlers.substitute(seeded, substitute_fn=lambda s: uniform(s) if s["value"] is None else None)
        trace: dict[str, Any] = {}
        free_names: dict[str, str] = {}

        def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            trace.clear()
            trace.update(handlers.trace(started).get_trace(*args, **kwargs))
            values = {name: site["value"] for name, site in trace.items() if is_latent(site)}
            refuse_what_has_no_gradient(trace)
            for site in trace.values():
                if is_data(site):
                    _refuse_other_shape(site, name_of(model, (args, kwargs), site["value"]))
            # here, where bounds that are another site's value can still be looked at
            free_names.update({name: _free_name(trace[name]) for name in values})
            free = util.unconstrain_fn(seeded, args, kwargs, values)
            if values:  # the data are first looked at here
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Out-of-support")  # it is told when the density is computed
                    util.potential_energy(seeded, args, kwargs, free)
            return free

        def shapes(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:  # nothing is computed
            return traced(lambda: numpyro_module("jax").eval_shape(lambda: read(*arguments)))

        what = "NumPyro: the model cannot be run with these args and kwargs"
        (args, kwargs), free = with_arrays(model, (args, dict(kwargs)), shapes, what)
        latent = {name: site for name, site in trace.items() if is_latent(site)}
        if not latent:
            raise InputError("NumPyro: the model has no latent variable: each of its sample sites is observed.")
        variables, labels = [], []
        for name, site in latent.items():
            shape = tuple(int(size) for size in free[name].shape)
            axes = _axis_names(site, shape, with_events=shape == np.shape(site["value"]))
            variables.append(Variable(name, shape, axes))
            labels += element_labels(free_names[name], shape)
        found, observed = [], []
        for name, site in trace.items():
            if is_data(site):
                shape, n_batch = observed_shape(site)
                axes = _axis_names(site, shape, with_events=True)
                observed.append(ObservedSite(name, shape, axes, n_batch))
            if is_latent(site) or site["type"] == "deterministic":
                shape = tuple(int(size) for size in np.shape(site["value"]))
                found.append(Site(name, shape, _axis_names(site, shape, with_events=True), is_latent(site)))
        return cls(model, seeded, args, dict(kwargs), tuple(variables), labels, tuple(found), tuple(observed))

    # ---- functions of one point, for JAX ----------------------------------------------------------------------
    def split(self, point: Any) -> dict[str, Any]:
        """Unconstrained values by name, of a (d,) array."""
        return split(point, {variable.name: variable.shape for variable in self.latents})

    def log_density(self, point: Any) -> Any:
        """Log density at a (d,) array, log-Jacobians included."""
        util = numpyro_module("numpyro.infer.util")
        return -util.potential_energy(self.seeded, self.args, self.kwargs, self.split(point))

    def terms(self, point: Any) -> Any:
        """The log density at a (d,) array as a flat array of its terms: one for each element of each site's batch."""
        jnp, handlers = numpyro_module("jax.numpy"), numpyro_module("numpyro.handlers")
        biject_to = numpyro_module("numpyro.distributions.transforms").biject_to
        independent = numpyro_module("numpyro.distributions").Independent
        free, found = self.split(point), []

        def value_of(site: Any) -> Any:
            if site["name"] not in free:
                return None
            transform = biject_to(site["fn"].support)
            value = transform(free[site["name"]])
            found.append(transform.log_abs_det_jacobian(free[site["name"]], value))
            return value

        substituted = handlers.substitute(self.seeded, substitute_fn=value_of)
        for site in handlers.trace(substituted).get_trace(*self.args, **self.kwargs).values():
            if site["type"] == "sample":
                distribution = site["fn"]
                while isinstance(distribution, independent):
                    distribution = distribution.base_dist
                scale = 1.0 if site["scale"] is None else site["scale"]
                found.append(scale * distribution.log_prob(site["value"]))
        return jnp.concatenate([jnp.ravel(one) for one in found])

    def constrained(self, point: Any) -> dict[str, Any]:
        """Latent and deterministic sites at a (d,) array, in the model's own space."""
        util = numpyro_module("numpyro.infer.util")
        return dict(
            util.constrain_fn(self.seeded, self.args, self.kwargs, self.split(point), return_deterministic=True)
        )

    def unconstrained(self, natural: Any) -> Any:
        """The point (d,) of latent sites in the model's own space, one after the other in a flat array."""
        jnp, util = numpyro_module("jax.numpy"), numpyro_module("numpyro.infer.util")
        values = split(natural, {site.name: site.shape for site in self.found if site.latent})
        found = util.unconstrain_fn(self.seeded, self.args, self.kwargs, values)
        return jnp.concatenate([found[variable.name].ravel() for variable in self.latents])

    # ---- data -------------------------------------------------------------------------------------------------
    def data(self, point: Any) -> dict[str, tuple[Any, Any]]:
        """Values of each observed site, and where they are not masked."""
        jnp, found = numpyro_module("jax.numpy"), {}
        for name, site in self._observed_at(point):
            shape, n_batch = observed_shape(site)
            counts = jnp.broadcast_to(mask_of(site["fn"]), shape[:n_batch])
            found[name] = (jnp.broadcast_to(site["value"], shape), counts)
        return found

    def log_likelihood(self, point: Any) -> dict[str, Any]:
        """Log likelihood of each element of each observed site's batch, times the scale of `handlers.scale`."""
        jnp, found = numpyro_module("jax.numpy"), {}
        for name, site in self._observed_at(point):
            shape, n_batch = observed_shape(site)
            logs = site["fn"].log_prob(site["value"])
            scale = 1.0 if site["scale"] is None else site["scale"]
            found[name] = jnp.broadcast_to(scale * logs, shape[:n_batch]).astype(float)
        return found

    def replicated(self, point: Any, key: Any) -> dict[str, Any]:
        """Observed sites drawn anew: the model run without its data, from the values of its latent sites."""
        jnp = numpyro_module("jax.numpy")
        trace = run_without_data(self.model, self.args, self.kwargs, self._latents_at(point), key)
        return {site.name: jnp.broadcast_to(trace[site.name]["value"], site.shape) for site in self.observed}

    def prior(self, key: Any) -> dict[str, Any]:
        """Latent and deterministic sites drawn from the prior."""
        handlers, names = numpyro_module("numpyro.handlers"), [site.name for site in self.found]
        trace = handlers.trace(handlers.seed(self.model, key)).get_trace(*self.args, **self.kwargs)
        return {name: trace[name]["value"] for name in names}

    def _latents_at(self, point: Any) -> dict[str, Any]:
        natural = self.constrained(point)
        return {site.name: natural[site.name] for site in self.found if site.latent}

    def _observed_at(self, point: Any) -> list[tuple[str, Any]]:
        handlers = numpyro_module("numpyro.handlers")
        substituted = handlers.substitute(self.seeded, data=self._latents_at(point))
        trace = handlers.trace(substituted).get_trace(*self.args, **self.kwargs)
        return [(site.name, trace[site.name]) for site in self.observed]


def is_latent(site: Mapping[str, Any]) -> bool:
    """Whether a site is a sample site without data."""
    return bool(site["type"] == "sample" and not site["is_observed"])


def refuse_what_has_no_gradient(trace: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise InputError for sites that a variational family over real numbers cannot hold."""
    for name, site in trace.items():
        if site["type"] in ("param", "mutable"):
            raise InputError(
                f"NumPyro: {name!r} is a numpyro.{site['type']}, a value without a distribution. Give it a prior with "
                "numpyro.sample."
            )
        if site["type"] == "plate" and len(site["value"]) != site["args"][0]:
            raise InputError(
                f"NumPyro: the plate {name!r} takes {len(site['value'])} of {site['args'][0]} rows. A fit takes all of "
                "them at each update: leave subsample_size out."
            )
        if is_latent(site):
            kind = type(site["fn"]).__name__
            if kind == "Delta":
                raise InputError(
                    f"NumPyro: {name!r} has a Delta distribution; use numpyro.deterministic for its value."
                )
            if site["fn"].support.is_discrete:
                raise InputError(
                    f"NumPyro: {name!r} is discrete ({kind}) and not observed, so that there is no gradient. Sum it "
                    "out of the model, e.g. by numpyro.distributions.MixtureSameFamily, or observe it."
                )


def _refuse_other_shape(site: Mapping[str, Any], argument: str) -> None:
    """Raise InputError for data that do not go with the shape of their site."""
    own = tuple(site["fn"].batch_shape) + tuple(site["fn"].event_shape)
    given = np.shape(site["value"])
    try:
        np.broadcast_shapes(given, own)
    except ValueError:
        name = f" (the argument {argument!r})" if argument else ""
        raise InputError(
            f"NumPyro: the site {site['name']!r} is observed with data{name} of shape {given}, but with its plates it "
            f"has the shape {own}. Give it as many values as there are rows."
        ) from None


def _axis_names(site: Mapping[str, Any], shape: tuple[int, ...], *, with_events: bool) -> tuple[str, ...]:
    """The plate of each axis, or the name that `infer={"event_dims": [...]}` gives; "" where there is none."""
    names = [""] * len(shape)
    n_event = int(site["fn"].event_dim) if "fn" in site else 0
    n_batch = len(shape) - n_event if with_events else len(getattr(site["fn"], "batch_shape", ()))
    for frame in site.get("cond_indep_stack") or ():
        axis = n_batch + frame.dim
        if 0 <= axis < len(shape) and shape[axis] == frame.size:
            names[axis] = str(frame.name)
    events = list((site.get("infer") or {}).get("event_dims", ()))
    if with_events and events and len(events) == n_event:
        names[n_batch:] = [str(name) for name in events]
    return tuple(names)


def _free_name(site: Mapping[str, Any]) -> str:
    """What an unconstrained coordinate of a site is called."""
    transforms = numpyro_module("numpyro.distributions.transforms")
    transform = transforms.biject_to(site["fn"].support)
    while hasattr(transform, "base_transform"):
        transform = transform.base_transform
    name = str(site["name"])
    if isinstance(transform, transforms.IdentityTransform):
        return name
    return f"log {name}" if isinstance(transform, transforms.ExpTransform) else f"unconstrained {name}"
