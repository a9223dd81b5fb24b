"""A NumPyro model as it is: its own names, transforms, plates and deterministic sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.numpyro_data import key_of, numpyro_module
from pyturingvi.models.numpyro_predict import predict
from pyturingvi.models.numpyro_sites import NumPyroSites
from pyturingvi.models.traced_data import TracedModel


class NumPyro(TracedModel):
    """A NumPyro model, with the arguments that hold its data (NumPy engine only; the extra `numpyro`).

    Parameters
    ----------
    model : callable
        A function with `numpyro.sample` sites; handlers around it (`reparam`, `condition`, `scale`) count.
    args : tuple
        Its positional arguments. Columns (pandas, polars) and lists of numbers are passed as they are where the model
        can use them so, else as arrays.
    kwargs : dict
        Its keyword arguments.
    local : list of str, optional
        Names of the latent sites that are local, each with an axis (a plate or another) along which the blocks are
        counted; [] for none. By default the structure is found from the gradient. Names that contradict it are refused.
    coords : dict, optional
        Labels along plates, by the plate's name: `{"county": names}`. By default 0, 1, ...

    Attributes
    ----------
    structure : str
        What is global and what is local, in one line; it is printed when the model is built.

    Raises
    ------
    InputError
        If the model cannot be run with these arguments, or observes NaN that is not masked; has no latent site, a
        discrete one, a `numpyro.param`, or a plate that subsamples; has no finite log density and gradient near 0 in
        unconstrained space; or local contradicts it.
    EngineError
        If NumPyro is not installed.

    Notes
    -----
    The log density is NumPyro's own (`potential_energy`), jitted, batched and differentiated in 64 bits; JAX's settings
    stay as they are. Draws come back under the sites' names in the model's own space, deterministic sites included;
    what rests on globals alone counts as global. A saved fit holds the transforms, compiled, but not the model.

    Observed sites are its data: `log_likelihood` has a number for each element of a site's batch (times the factor of
    `handlers.scale`; masked cells are left out), `Fit.predict` runs the model without them, with other arguments too.

    Examples
    --------
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> def schools(sigma, y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 5))
    ...     tau = numpyro.sample("tau", dist.HalfCauchy(5))
    ...     with numpyro.plate("school", len(y)):
    ...         theta = numpyro.sample("theta", dist.Normal(mu, tau))
    ...         numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
    >>> y, sigma = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    >>> NumPyro(schools, (sigma, y)).structure
    'globals: mu, tau; 8 local blocks of 1: theta by school'
    """

    name: ClassVar[str] = "numpyro"
    door: ClassVar[str] = "NumPyro"
    extra: ClassVar[str] = "numpyro"
    rename: ClassVar[str] = "Rename the plate in the model"
    remedy_of_missing: ClassVar[str] = (
        "Leave these out of the data, or mask them: fill in any number, and sample under "
        "numpyro.handlers.mask(mask=there)."
    )

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        local: Any = None,
        coords: Mapping[str, Any] | None = None,
    ) -> None:
        numpyro_module("numpyro")
        if not callable(model):
            raise InputError(f"NumPyro: model must be a function with numpyro.sample sites, got {model!r}.")
        if not isinstance(args, tuple | list):
            raise InputError(f"NumPyro: args must be a tuple, as in args=(y,), got {type(args).__name__}.")
        if not isinstance(kwargs, Mapping):
            raise InputError(f"NumPyro: kwargs must be a dictionary, got {type(kwargs).__name__}.")
        sites = NumPyroSites.of(model, tuple(args), dict(kwargs))
        self._start(sites)
        self._refuse_missing(sites)
        self._settle(_title(model), sites.latents, local, sites.labels, coords)

    @property
    def description(self) -> str:
        return "tv.models.NumPyro, a NumPyro model"

    def _replicated(self, point_and_seed: Any) -> dict[str, Any]:
        assert isinstance(self._sites, NumPyroSites)
        return self._sites.replicated(point_and_seed[:-1], key_of(point_and_seed[-1]))

    def _prior(self, seed: Any) -> dict[str, Any]:
        assert isinstance(self._sites, NumPyroSites)
        return self._sites.prior(key_of(seed[0]))

    def _predict(
        self,
        points: np.ndarray,
        new: Any,
        rng: np.random.Generator,
        kwargs: Mapping[str, Any] | None = None,
        anew: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        if not isinstance(self._sites, NumPyroSites):
            raise self._unavailable("predict")
        return predict(self._title, self._sites, self.constrain(points), new, kwargs, self._latent_names(anew), rng)

    def get_state(self) -> dict[str, Any]:
        return super().get_state()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return super().from_state(state)


def _title(model: Any) -> str:
    """The name of the innermost function."""
    while hasattr(model, "fn") and not hasattr(model, "__name__"):
        model = model.fn
    title = getattr(model, "__name__", type(model).__name__)
    return "numpyro" if title == "<lambda>" else str(title)
