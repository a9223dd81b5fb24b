"""Which sites of a NumPyro model hold data, and runs of the model without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.extras import require


def numpyro_module(name: str) -> Any:
    """A module of NumPyro, or an EngineError that names the extra."""
    return require(name, "numpyro", "tv.models.NumPyro")


def is_data(site: Mapping[str, Any]) -> bool:
    """Whether a site is a sample site with data, and no `numpyro.factor`."""
    return bool(site["type"] == "sample" and site["is_observed"] and not is_factor(site))


def had_data(site: Mapping[str, Any]) -> bool:
    """Whether `uncondition` took a site's data away."""
    return bool(site["type"] == "sample" and site["infer"].get("was_observed") and not is_factor(site))


def is_factor(site: Mapping[str, Any]) -> bool:
    """Whether a site is a `numpyro.factor`, whose value is empty."""
    return any(type(one).__name__ == "Unit" for one in _layers(site["fn"]))


def _layers(distribution: Any) -> list[Any]:
    """A distribution and those that it stands on, below plates and masks."""
    found = [distribution]
    while hasattr(found[-1], "base_dist"):
        found.append(found[-1].base_dist)
    return found


def observed_shape(site: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """The shape of an observed site, and how many of its axes are a batch."""
    own = tuple(site["fn"].batch_shape) + tuple(site["fn"].event_shape)
    shape = tuple(int(size) for size in np.broadcast_shapes(np.shape(site["value"]), own))
    return shape, len(shape) - int(site["fn"].event_dim)


def mask_of(distribution: Any) -> Any:
    """The mask of a distribution; True where there is none."""
    masks = [one._mask for one in _layers(distribution) if getattr(one, "_mask", None) is not None]
    return masks[0] if masks else True


def run_without_data(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], latents: Mapping[str, Any], key: Any
) -> dict[str, Any]:
    """A trace of the model in which latent sites have the values given, and all others are drawn.

    Raises
    ------
    InputError
        If data stand inside of a scan, whose steps would still see them.
    """
    handlers, primitives = numpyro_module("numpyro.handlers"), numpyro_module("numpyro.primitives")

    def value_of(site: Any) -> Any:
        if site["name"] in latents:
            return latents[site["name"]]
        if not had_data(site):
            return None
        event = tuple(site["fn"].event_shape)
        shape = np.broadcast_shapes(np.shape(site["infer"]["obs"]), tuple(site["fn"].batch_shape) + event)
        # data that are longer than the site's own batch are as many draws
        distribution = site["fn"].expand(shape[: len(shape) - len(event)])
        return distribution.sample(primitives.prng_key())

    free = handlers.substitute(handlers.uncondition(model), substitute_fn=value_of)
    found: dict[str, Any] = handlers.trace(handlers.seed(free, key)).get_trace(*args, **kwargs)
    for name, site in found.items():
        if site.get("_control_flow_done") and (is_data(site) or had_data(site)):
            raise InputError(f"{name!r} is observed inside of a scan, where data cannot be left out")
    return found


def key_of(seed: Any) -> Any:
    """A JAX key of a whole number that a float64 holds."""
    return numpyro_module("jax.random").PRNGKey(seed.astype(int))
