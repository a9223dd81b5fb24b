"""A PyMC model as it is: its own names, transforms, dims, coords and deterministic variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.pymc_data import Drawer, pymc_module
from pyturingvi.models.pymc_graph import PyMCGraph
from pyturingvi.models.pymc_predict import predict
from pyturingvi.models.traced_data import TracedModel


class PyMC(TracedModel):
    """A PyMC model, with the data that it holds (NumPy engine only; the extra `pymc`).

    Parameters
    ----------
    model : pymc.Model
        As it is now: data that are set later do not count.
    local : list of str, optional
        Names of the latent variables that are local, each with an axis along which the blocks are counted; [] for none.
        By default the structure is found from the gradient. Names that contradict it are refused.

    Attributes
    ----------
    structure : str
        What is global and what is local, in one line; it is printed when the model is built.

    Raises
    ------
    InputError
        If it is no PyMC model; has no latent variable, a discrete one, or 32 bits; has no finite log density and
        gradient near 0 in unconstrained space; JAX cannot compute it; or local contradicts the gradient.
    EngineError
        If PyMC or JAX is not installed.

    Notes
    -----
    The log density is PyMC's own (`model.logp()`: transforms and potentials included), translated by PyTensor into JAX,
    jitted, batched and differentiated in 64 bits. PyTensor's JAX backend switches JAX to 64 bits in the whole process,
    as it does for PyMC's own samplers. Draws come back under the variables' names in the model's own space, with its
    dims and coords, deterministic variables included; what rests on globals alone counts as global. A saved fit holds
    the transforms, compiled, but not the model.

    Observed variables are its data: `log_likelihood` has a number for each observed value, `Fit.predict` draws them
    anew by PyTensor, with other `pm.Data` too.

    Examples
    --------
    >>> import pymc as pm  # doctest: +SKIP
    >>> y, sigma = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    >>> with pm.Model(coords={"school": list("ABCDEFGH")}) as schools:  # doctest: +SKIP
    ...     mu = pm.Normal("mu", 0, 5)
    ...     tau = pm.HalfCauchy("tau", 5)
    ...     theta = pm.Normal("theta", mu, tau, dims="school")
    ...     pm.Normal("y", theta, sigma, observed=y, dims="school")
    >>> PyMC(schools).structure  # doctest: +SKIP
    'globals: mu, tau; 8 local blocks of 1: theta by school'
    """

    name: ClassVar[str] = "pymc"
    door: ClassVar[str] = "PyMC"
    extra: ClassVar[str] = "pymc"
    rename: ClassVar[str] = "Rename the dim in the model"
    remedy_of_missing: ClassVar[str] = (
        "Leave these out of the data, or give them as an array in place of pm.Data: PyMC then makes variables of them."
    )

    def __init__(self, model: Any, local: Any = None) -> None:
        pm = pymc_module("pymc")
        pymc_module("jax")
        if not isinstance(model, pm.Model):
            raise InputError(f"PyMC: model must be a pymc.Model, as in `with pm.Model() as model:`, got {model!r}.")
        graph = PyMCGraph(model)
        self._start(graph)
        self._refuse_missing(graph)
        self._settle(str(model.name) or "pymc", graph.latents, local, graph.labels, graph.coords)

    @property
    def description(self) -> str:
        return "tv.models.PyMC, a PyMC model"

    # ---- data, drawn by PyTensor ------------------------------------------------------------------------------
    @property
    def _graph(self) -> PyMCGraph:
        assert isinstance(self._sites, PyMCGraph)
        return self._sites

    @cached_property
    def _can_replicate(self) -> bool:
        return self._try_to_draw("no_replicates", lambda: self._graph.replicates, np.zeros((1, self.dim)))

    @cached_property
    def _can_draw_prior(self) -> bool:
        return self._try_to_draw("no_prior", lambda: self._graph.prior, None)

    def _try_to_draw(self, why: str, drawer: Callable[[], Drawer], point: np.ndarray | None) -> bool:
        values = {} if point is None else self._natural_values(point, global_only=False)
        try:
            drawer().draw(values, 1, np.random.default_rng(0))
        except InputError as error:
            setattr(self, why, str(error))
            return False
        return True

    def _replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self._graph.replicates.draw(self.constrain(points), len(points), rng)

    def _draw_prior(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        found = self._graph.prior.draw({}, n, rng)
        return {name: found[name] for name in self.global_names}

    def _predict(
        self,
        points: np.ndarray,
        new: Any,
        rng: np.random.Generator,
        coords: Mapping[str, Any] | None = None,
        anew: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        if self._sites is None:
            raise self._unavailable("predict")
        return predict(self._title, self._graph, self.constrain(points), new, coords, self._latent_names(anew), rng)

    def get_state(self) -> dict[str, Any]:
        return super().get_state()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return super().from_state(state)
