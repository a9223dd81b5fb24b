"""A fit as an ArviZ tree: draws, the data and their log likelihood, and how the fit came about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import PyTuringVIError
from pyturingvi.models.base import Model
from pyturingvi.optimize.memory import check_draws_memory
from pyturingvi.optimize.noise import PREDICT_STREAM, generator
from pyturingvi.support.arviz import Group, tree_of_groups

if TYPE_CHECKING:
    import xarray as xr

    from pyturingvi.result import Fit


def tree_of_fit(fit: Fit, n: int, seed: int, *, log_likelihood: bool, posterior_predictive: bool) -> xr.DataTree:
    """See `Fit.to_arviz`."""
    model = fit.model
    check_data_memory(model, n, "to_arviz", log_likelihood=log_likelihood, posterior_predictive=posterior_predictive)
    points = fit.sample_unconstrained(n, seed)
    with np.errstate(over="ignore"):
        draws = {name: value[None] for name, value in model.constrain(points).items()}
    groups = {
        "posterior": Group(draws, model.dims, model.coords, attrs=_attrs(fit)),
        "sample_stats": Group(_sample_stats(fit, points)),
        **data_groups(
            model,
            points[None],
            generator(np, seed, PREDICT_STREAM),
            log_likelihood=log_likelihood,
            posterior_predictive=posterior_predictive,
        ),
        "optimization": _trace(fit),
    }
    return tree_of_groups(groups)


def data_groups(
    model: Model, points: np.ndarray, rng: np.random.Generator, *, log_likelihood: bool, posterior_predictive: bool
) -> dict[str, Group]:
    """Groups of the prior and of the observed data at draws (chain, draw, d), where the model tells them."""
    observed = model.observations
    n_chains, n_draws, dim = points.shape
    flat = points.reshape(-1, dim)
    dims = {name: one.axes for name, one in observed.items()}
    labels = {name: label for one in observed.values() for name, label in one.coords.items()}
    coords = {name: values for name, (axis, values) in labels.items() if name == axis}
    beside = {name: label for name, label in labels.items() if name != label[0]}

    def group(make: Callable[[], dict[str, np.ndarray]]) -> Group:
        arrays = {name: value.reshape(n_chains, n_draws, *value.shape[1:]) for name, value in make().items()}
        # a log likelihood has one number where a value may be a vector
        own = {name: dims[name][: value.ndim - 2] for name, value in arrays.items()}
        used = {axis for axes in own.values() for axis in axes}
        return Group(arrays, own, coords, {name: one for name, one in beside.items() if one[0] in used})

    found = {}
    if log_likelihood and observed and model.tells_likelihood:
        found["log_likelihood"] = group(lambda: model.log_likelihood(flat))
    if posterior_predictive and observed and model.tells_replicates:
        found["posterior_predictive"] = group(lambda: model.replicate(flat, rng))
    found["observed_data"] = Group({name: one.values for name, one in observed.items()}, dims, coords, beside, ())
    if model.tells_prior:
        draws = {name: value[None] for name, value in model.draw_prior(n_chains * n_draws, rng).items()}
        found["prior"] = Group(draws, model.dims, model.coords)
    return found


def check_data_memory(
    model: Model, n: int, what: str, *, log_likelihood: bool = False, posterior_predictive: bool = False
) -> None:
    """Refuse n draws with as many copies of the data that will not fit in the memory that is free."""
    n_values = sum(one.values.size for one in model.observations.values())
    check_draws_memory(n, model.dim + n_values * (log_likelihood + posterior_predictive), what)


def _sample_stats(fit: Fit, points: np.ndarray) -> dict[str, np.ndarray]:
    """Log densities (1, n) of the model, where it can be evaluated, and of the fit."""
    with np.errstate(all="ignore"):
        found = {"log_q": fit.log_q(points)[None]}
        try:
            return {"lp": np.asarray(fit.model.log_density(points), dtype=np.float64)[None], **found}
        except PyTuringVIError:  # read from a file that does not hold its function, or without the Julia it needs
            return found


def _trace(fit: Fit) -> Group:
    trace = fit.elbo
    arrays = {name: trace[name].to_numpy()[None] for name in ("elbo", "std_error", "seconds")}
    axes = ["chain", "iteration"]  # ArviZ before 1.0 makes tables, and one of several, of groups with chains alone
    return Group(arrays, coords={"iteration": trace["iteration"].tolist()}, sample_axes=axes)


def _attrs(fit: Fit) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "inference_library": "pyturingvi",
        "inference_library_version": fit.versions["pyturingvi"],
        "model": fit.model.label,
        "family": fit.family.label,
        "engine": fit.engine,
        "status": fit.status,
        "message": fit.message,
        "n_updates": fit.n_updates,
        "seconds": fit.seconds,
        **({} if fit.verdict is None else {"verdict": fit.verdict}),
    }
    if fit.refined is not None:
        attrs |= {"refined": fit.refined.words, "log_evidence": fit.refined.log_evidence}
    trace = fit.elbo
    if len(trace):
        last = trace.iloc[-1]
        attrs |= {"elbo": float(last["elbo"]), "elbo_std_error": float(last["std_error"])}
    return attrs
