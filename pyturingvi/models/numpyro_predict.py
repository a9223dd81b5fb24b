"""Runs of a NumPyro model with other arguments, from draws of its latent sites: what it predicts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, in_short
from pyturingvi.models.foreign import tell_predicted
from pyturingvi.models.interactions import split
from pyturingvi.models.jax_batches import SEEDS, Batched, traced
from pyturingvi.models.numpyro_arguments import innermost, with_arrays
from pyturingvi.models.numpyro_data import is_factor, key_of, numpyro_module, run_without_data
from pyturingvi.models.numpyro_sites import NumPyroSites


def predict(
    title: str,
    sites: NumPyroSites,
    naturals: Mapping[str, np.ndarray],
    new: Any,
    kwargs: Mapping[str, Any] | None,
    anew: Sequence[str],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Each site that is not taken from the fit, (M, ...), for draws (M, ...) of the latent ones.

    new, kwargs: the arguments, as of `NumPyro.predict`. anew: latent sites that are drawn from their prior even so.
    """
    args, named = _arguments(sites, new, kwargs)
    jax = numpyro_module("jax")

    order: dict[str, None] = {}  # of the sites: JAX sorts what it returns

    def run(latents: Mapping[str, Any], key: Any, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, site in run_without_data(sites.model, args, named, latents, key).items():
            if site["type"] == "deterministic" or (site["type"] == "sample" and not is_factor(site)):
                found[name] = site["value"]
        order.update(dict.fromkeys(found))
        return found

    seed = jax.ShapeDtypeStruct((), np.float64)
    what = "predict: the NumPyro model cannot be run with these arguments"
    advice = "Data that are not known yet are given as None."
    (args, named), shapes = with_arrays(
        sites.model,
        (tuple(args), dict(named)),
        lambda given: traced(lambda: jax.eval_shape(lambda seed: run({}, key_of(seed), *given), seed)),
        what,
        advice,
    )
    try:
        kept = [
            site.name
            for site in sites.found
            if site.latent and site.name in shapes and site.shape == shapes[site.name].shape and site.name not in anew
        ]
        sizes = {name: naturals[name].shape[1:] for name in kept}

        def of_draw(flat: Any) -> dict[str, Any]:
            found = run(split(flat[:-1], sizes), key_of(flat[-1]), args, named)
            return {name: value for name, value in found.items() if name not in sizes}

        count = len(next(iter(naturals.values())))
        columns = [naturals[name].reshape(count, -1) for name in kept]
        found: dict[str, np.ndarray] = Batched(of_draw)(np.hstack([*columns, rng.integers(SEEDS, size=(count, 1))]))
    except Exception as error:
        raise InputError(f"{what}: {in_short(error)}. {advice}") from error
    tell_predicted(title, kept, [name for name in order if name in found])
    return {name: found[name] for name in order if name in found}


def _arguments(
    sites: NumPyroSites, new: Any, kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments of the run."""
    if isinstance(new, tuple | list):
        return new, sites.kwargs if kwargs is None else kwargs
    if not isinstance(new, Mapping):
        raise InputError(
            "predict: for a NumPyro model, new is a dictionary of the arguments that are to change, such as "
            f"{{'x': x_new, 'y': None}}, or a tuple of all positional ones; got {type(new).__name__}."
        )
    if kwargs is not None:
        raise InputError("predict: kwargs goes with a tuple of positional arguments; new names its arguments itself.")
    try:
        signature = inspect.signature(innermost(sites.model))
        bound = signature.bind(*sites.args, **sites.kwargs)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"predict: the model's arguments have no names ({error}); give them all, as a tuple."
        ) from None
    open_ended = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    known = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_POSITIONAL]
    unknown = [str(name) for name in new if name not in known]
    if unknown and not open_ended:
        raise InputError(f"predict: the model has no argument {unknown[0]!r}; it has {', '.join(map(repr, known))}.")
    bound.arguments.update({name: value for name, value in new.items() if name in known})
    return bound.args, {**bound.kwargs, **{name: new[name] for name in unknown}}
