"""What a PyMC model says of its variables: names, shapes, dims, transforms; and its graphs as JAX functions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.foreign import element_labels
from pyturingvi.models.interactions import Variable, split
from pyturingvi.models.jax_batches import in_64_bits
from pyturingvi.models.pymc_data import Drawer, frozen, pymc_module, unfrozen
from pyturingvi.models.traced import ObservedSite, Site

_COMPILED = ("_logp", "_parts", "_naturals", "_free", "_likelihoods", "replicates", "prior")


class PyMCGraph:
    """A PyMC model with its data, as it is now: what is changed in it later does not count.

    Parameters
    ----------
    model : pymc.Model

    Raises
    ------
    InputError
        If it has no latent variable, a discrete one, or is in 32 bits; or JAX cannot compute it.
    """

    def __init__(self, model: Any) -> None:
        _refuse_what_has_no_gradient(model)
        self._check_bounds = bool(model.check_bounds)
        self.open = unfrozen(model)
        self._model = fixed = frozen(model)
        self._latent_names = [one.name for one in model.free_RVs]  # in the user's order, which freezing does not keep
        self._names = [one.name for one in (*model.free_RVs, *model.deterministics)]
        start = fixed.initial_point()
        values = [fixed.rvs_to_values[fixed[name]] for name in self._latent_names]
        self._values, self._start = values, {value.name: start[value.name] for value in values}
        self.labels: list[str] = []
        for name, value in zip(self._latent_names, values, strict=True):
            self.labels += element_labels(self._free_name(name), np.shape(start[value.name]))
        self._set_shapes()

    def _set_shapes(self) -> None:
        jax = pymc_module("jax")
        sizes = [np.shape(self._start[value.name]) for value in self._values]
        dim = sum(math.prod(size) for size in sizes)
        try:
            with in_64_bits():
                shapes = jax.eval_shape(self.constrained, jax.ShapeDtypeStruct((dim,), np.float64))
                jax.eval_shape(self.log_density, jax.ShapeDtypeStruct((dim,), np.float64))
        except NotImplementedError as error:
            first = str(error).strip().splitlines()[0]
            raise InputError(
                f"PyMC: JAX cannot compute this model: PyTensor has no JAX form of part of it ({first})."
            ) from error
        shape_of = {name: tuple(int(size) for size in shapes[name].shape) for name in self._names}
        self.found = tuple(
            Site(name, shape_of[name], self._axes(name, shape_of[name]), name in self._latent_names)
            for name in self._names
        )
        self.observed = self._observed_sites()
        every = [site.axes for site in self.found] + [site.axes for site in self.observed]
        used = {axis for axes in every for axis in axes}
        coords = self._model.coords
        self.coords = {axis: list(coords[axis]) for axis in coords if axis in used and coords[axis] is not None}
        self.latents = tuple(
            Variable(name, size, self._axes(name, shape_of[name], size))
            for name, size in zip(self._latent_names, sizes, strict=True)
        )

    def _observed_sites(self) -> tuple[ObservedSite, ...]:
        found = []
        for one, logs in zip(self._model.observed_RVs, self._logs_of_data, strict=True):
            shape = self._values_of_data[one.name].shape
            found.append(ObservedSite(one.name, shape, self._axes(one.name, shape), logs.ndim))
        return tuple(found)

    def _axes(self, name: str, shape: tuple[int, ...], free: tuple[int, ...] | None = None) -> tuple[str, ...]:
        """The dims of a variable; of its unconstrained shape those that have kept their length."""
        dims = self._model.named_vars_to_dims.get(name) or (None,) * len(shape)
        free = shape if free is None else free
        if len(free) != len(shape):
            return ("",) * len(free)
        return tuple(
            str(dim or "") if size == other else "" for dim, size, other in zip(dims, shape, free, strict=True)
        )

    def _free_name(self, name: str) -> str:
        """What an unconstrained coordinate of a variable is called."""
        transform = self._model.rvs_to_transforms[self._model[name]]
        if transform is None:
            return name
        return f"log {name}" if getattr(transform, "name", "") == "log" else f"unconstrained {name}"

    # ---- functions of one point, for JAX ----------------------------------------------------------------------
    def log_density(self, point: Any) -> Any:
        """Log density at a (d,) array, log-Jacobians included."""
        return self._logp(point)[0]

    def terms(self, point: Any) -> Any:
        """The log density at a (d,) array as a flat array of its terms: one for each element of each variable."""
        jnp = pymc_module("jax.numpy")
        return jnp.concatenate([jnp.ravel(one) for one in self._parts(point)])

    def constrained(self, point: Any) -> dict[str, Any]:
        """Latent and deterministic variables at a (d,) array, in the model's own space."""
        return dict(zip(self._names, self._naturals(point), strict=True))

    def unconstrained(self, natural: Any) -> Any:
        """The point (d,) of latent variables in the model's own space, one after the other in a flat array."""
        jnp = pymc_module("jax.numpy")
        values = split(natural, {site.name: site.shape for site in self.found if site.latent})
        return jnp.concatenate([jnp.ravel(one) for one in self._free(*values.values())])

    # ---- data -------------------------------------------------------------------------------------------------
    @cached_property
    def _values_of_data(self) -> dict[str, np.ndarray]:
        values = {one.name: self._model.rvs_to_values[one] for one in self._model.observed_RVs}
        return {name: np.asarray(one.data if hasattr(one, "data") else one.eval()) for name, one in values.items()}

    @property
    def _logs_of_data(self) -> list[Any]:
        found: list[Any] = self._model.logp(vars=self._model.observed_RVs, sum=False)
        return found

    def data(self, point: Any) -> dict[str, tuple[Any, Any]]:
        """Values of each observed variable, all of which count: PyMC makes latent variables of those that are NaN."""
        return {
            site.name: (self._values_of_data[site.name], np.ones(site.shape[: site.n_batch], dtype=bool))
            for site in self.observed
        }

    def log_likelihood(self, point: Any) -> dict[str, Any]:
        """Log likelihood of each observed value."""
        return {site.name: logs for site, logs in zip(self.observed, self._likelihoods(point), strict=True)}

    @cached_property
    def replicates(self) -> Drawer:
        """Draws the observed variables, given the latent ones."""
        return Drawer(self._model, self._latent_names, [site.name for site in self.observed])

    @cached_property
    def prior(self) -> Drawer:
        """Draws latent and deterministic variables."""
        return Drawer(self._model, [], self._names)

    @cached_property
    def _likelihoods(self) -> Callable[..., Any]:
        return self._of_point(self._logs_of_data)

    @cached_property
    def _logp(self) -> Callable[..., Any]:
        return self._of_point([self._model.logp()])

    @cached_property
    def _parts(self) -> Callable[..., Any]:
        return self._of_point(self._model.logp(sum=False))

    @cached_property
    def _naturals(self) -> Callable[..., Any]:
        return self._of_point(self._model.replace_rvs_by_values([self._model[name] for name in self._names]))

    @cached_property
    def _free(self) -> Callable[..., Any]:
        """Of the latent variables in the model's own space, those of the unconstrained one."""
        graph = pymc_module("pytensor.graph.replace")
        latents = [self._model[name] for name in self._latent_names]
        naturals = {one: one.type(name=one.name) for one in latents}
        outputs = []
        for one in latents:
            transform = self._model.rvs_to_transforms[one]
            inputs = graph.graph_replace(list(one.owner.inputs), naturals, strict=False)
            outputs.append(naturals[one] if transform is None else transform.forward(naturals[one], *inputs))
        return self._jaxified(list(naturals.values()), outputs)

    def _of_point(self, outputs: Sequence[Any]) -> Callable[..., Any]:
        """The graphs as a JAX function of one flat point."""
        join = pymc_module("pymc.pytensorf").join_nonshared_inputs
        joined, point = join(self._start, list(outputs), self._values, {})
        return self._jaxified([point], joined)

    def _jaxified(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
        jaxify = _dispatch()
        bounds = "local_check_parameter_to_ninf_switch" if self._check_bounds else "local_remove_check_parameter"
        mode = pymc_module("pytensor.compile.mode").get_mode("JAX").including(bounds)
        graph = pymc_module("pytensor.graph.fg").FunctionGraph(inputs=list(inputs), outputs=list(outputs), clone=True)
        # its constants are made here and now, also where a trace that is under way asks for it first
        with warnings.catch_warnings(), in_64_bits(), pymc_module("jax").ensure_compile_time_eval():
            warnings.filterwarnings("ignore", "Skipping .* as JAX tracing would remove it")  # an assertion in the model
            mode.optimizer.rewrite(graph)
            found: Callable[..., Any] = jaxify(graph)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in _COMPILED}


def _dispatch() -> Any:
    """PyTensor's translation into JAX, with what PyMC needs besides."""
    jaxify = pymc_module("pytensor.link.jax.dispatch").jax_funcify
    op = pymc_module("pymc.distributions.multivariate").PosDefMatrix
    if op not in jaxify.registry:
        jnp = pymc_module("jax.numpy")

        def positive_definite(op: Any, **kwargs: Any) -> Callable[..., Any]:
            return lambda value, *rest: jnp.isfinite(jnp.linalg.cholesky(value)).all()

        jaxify.register(op, positive_definite)
    return jaxify


def _refuse_what_has_no_gradient(model: Any) -> None:
    """Raise InputError for variables that a variational family over real numbers cannot hold."""
    if not model.free_RVs:
        raise InputError("PyMC: the model has no latent variable: each of its variables is observed.")
    for one in model.free_RVs:
        if np.dtype(one.dtype).kind != "f":
            raise InputError(
                f"PyMC: {one.name!r} is discrete ({one.dtype}) and not observed, so that there is no gradient. Sum it "
                "out of the model, e.g. by pm.Mixture, or observe it."
            )
        if np.dtype(one.dtype) != np.float64:
            raise InputError(
                f"PyMC: {one.name!r} has {one.dtype}; fits are in 64 bits. Set pytensor.config.floatX = 'float64' "
                "before the model is built."
            )
