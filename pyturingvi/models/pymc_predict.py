"""Other data set in a copy of a PyMC model, and draws of its variables there, from draws of the latent ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.models.foreign import tell_predicted
from pyturingvi.models.pymc_data import Drawer, first_line, pymc_module, unfrozen
from pyturingvi.models.pymc_graph import PyMCGraph


def predict(
    title: str,
    graph: PyMCGraph,
    naturals: Mapping[str, np.ndarray],
    new: Any,
    coords: Mapping[str, Any] | None,
    anew: Sequence[str],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Each variable that is not taken from the fit, (M, ...), for draws (M, ...) of the latent ones.

    new, coords: as of `pm.set_data`. anew: latent variables that are drawn from their prior even so.
    """
    model = _with_data(graph, new, coords)
    relabelled = {axis for axis, labels in (coords or {}).items() if list(labels) != graph.coords.get(axis)}
    try:
        latents = [site for site in graph.found if site.latent]
        lengths = [model[site.name].shape for site in latents]
        shapes = pymc_module("pytensor").function([], lengths, mode="FAST_COMPILE")()
        kept = [
            site.name
            for site, shape in zip(latents, shapes, strict=True)
            if tuple(shape) == site.shape and not relabelled.intersection(site.axes) and site.name not in anew
        ]
        names = [one.name for one in (*model.free_RVs, *model.deterministics, *model.observed_RVs)]
        wanted = [name for name in names if name not in kept]
        found = Drawer(model, kept, wanted).draw(naturals, len(next(iter(naturals.values()))), rng)
    except Exception as error:
        raise InputError(
            f"predict: {first_line(error)} Shapes have to follow from the data that are set: data that belong together "
            "are set together, and an observed variable is as long as its data unless it is built with a shape, as in "
            "pm.Normal('y', mu, sigma, shape=mu.shape, observed=y)."
        ) from error
    tell_predicted(title, kept, found)
    return found


def _with_data(graph: PyMCGraph, new: Any, coords: Mapping[str, Any] | None) -> Any:
    """A copy of the model with other data."""
    if not isinstance(new, Mapping):
        raise InputError(
            "predict: for a PyMC model, new is a dictionary of its pm.Data by name, such as {'x': x_new}; got "
            f"{type(new).__name__}."
        )
    if graph.open is None:
        raise InputError("predict: this PyMC model has no pm.Data, so that there is nothing that new could set.")
    model, shared = unfrozen(graph.open), pymc_module("pytensor.compile").SharedVariable
    known = [name for name, one in model.named_vars.items() if isinstance(one, shared)]
    for name in new:
        if name not in known:
            raise unknown_name("pm.Data in new", name, known)
    try:
        pymc_module("pymc").set_data(dict(new), model=model, coords=coords)
        theirs = {axis for name in new for axis in model.named_vars_to_dims.get(name) or ()}
        for axis, labels in (coords or {}).items():
            if axis not in theirs:
                model.set_dim(axis, len(labels), coord_values=tuple(labels))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"predict: new does not fit the model: {first_line(error)}") from error
    return model
