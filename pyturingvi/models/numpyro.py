"""A NumPyro model as it is: its own names, transforms, plates and deterministic sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.foreign import ForeignModel, Natural, axis_names
from pyturingvi.models.jax_batches import Batched, exported
from pyturingvi.models.numpyro_sites import Site, Sites, numpyro_module
from pyturingvi.models.parts import refuse_outside, take_natural
from pyturingvi.models.term_blocks import blocks_of_terms
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.extras import require

_EXPORTED = {"all": "exported_all", "globals": "exported_globals"}


class NumPyro(ForeignModel):
    """A NumPyro model, with the arguments that hold its data (NumPy engine only; the extra `numpyro`).

    Parameters
    ----------
    model : callable
        A function with `numpyro.sample` sites; handlers around it (`reparam`, `condition`, `scale`) count.
    args : tuple
        Its positional arguments.
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
        If the model cannot be run with these arguments; has no latent site, a discrete one, a `numpyro.param`, or a
        plate that subsamples; has no finite log density and gradient near 0 in unconstrained space; or local
        contradicts it.
    EngineError
        If NumPyro is not installed.

    Notes
    -----
    The log density is NumPyro's own (`potential_energy`), jitted, batched and differentiated in 64 bits; JAX's settings
    stay as they are. Draws come back under the sites' names in the model's own space, deterministic sites included;
    what rests on globals alone counts as global. A saved fit holds the transforms, compiled, but not the model.

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
        self._sites: Sites | None = Sites.of(model, tuple(args), dict(kwargs))
        self._compiled: dict[str, Any] = {}
        self._exports: dict[str, np.ndarray | None] = {}
        self._settle(_title(model), self._sites.latents, local, self._sites.labels, coords)

    # ---- what NumPyro computes ------------------------------------------------------------------------------
    def _function(self, kind: str) -> Any:
        """A compiled function of points in the model's order, built on first use."""
        if kind not in self._compiled:
            sites = self._sites
            if sites is None:
                return self._from_file(kind)
            functions: dict[str, Callable[[Any], Any]] = {
                "density": numpyro_module("jax").value_and_grad(sites.log_density),
                "all": sites.constrained,
                "globals": lambda point: {name: sites.constrained(point)[name] for name in self.global_names},
                "free": sites.unconstrained,
                "terms": sites.terms,
                "sums": self._sums_of_terms,
                "weighted": self._weighted_terms,
            }
            self._compiled[kind] = Batched(functions[kind])
        return self._compiled[kind]

    def _from_file(self, kind: str) -> Any:
        """The function that the file held."""
        content = self._exports.get(kind)
        if content is None:
            what = {"density": "the log density", "free": "unconstrain"}.get(kind, "a draw in the model's own space")
            raise self._unavailable(what)
        require("jax.export", "numpyro", "reading draws of a NumPyro model")
        self._compiled[kind] = exported(content.tobytes())
        return self._compiled[kind]

    def _evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = self._function("density")(points)
        return value, slope

    def _natural_values(self, points: np.ndarray, *, global_only: bool) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = self._function("globals" if global_only else "all")(points)
        return found

    def _describe_naturals(self) -> dict[str, Natural]:
        """Latent and deterministic sites; a site is global where it stays as it is while the locals move."""
        assert self._sites is not None
        rng = np.random.default_rng(0)
        points = np.repeat(rng.normal(0.0, 0.3, (2, self.dim)), 4, axis=0)
        local = self._order[self.layout.n_global :]
        points[:, local] += rng.normal(0.0, 0.3, (8, local.size))
        values = self._function("all")(points)

        def is_global(site: Site) -> bool:
            if site.latent:
                return site.name not in self.local
            pairs = values[site.name].reshape(2, 4, -1)
            return bool(np.array_equal(pairs, np.repeat(pairs[:, :1], 4, axis=1), equal_nan=True))

        axes = self._natural_axes()
        found = {site.name: Natural(site.shape, axes[site.name][0], is_global(site)) for site in self._sites.found}
        names = sorted(found, key=lambda name: not found[name].is_global)  # globals first, in the order of the model
        return {name: found[name] for name in names}

    def _natural_axes(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        assert self._sites is not None
        return {
            site.name: (axis_names(site.name, site.axes, len(site.shape)), site.shape) for site in self._sites.found
        }

    def _flat_values(self, values: dict[str, np.ndarray]) -> np.ndarray:
        latents = [variable.name for variable in self._variables]
        shapes = {name: self._naturals[name].shape for name in latents}
        arrays = take_natural(values, shapes, self.door)
        flat = np.concatenate([array.reshape(len(array), -1) for array in arrays.values()], axis=1)
        found: np.ndarray = self._function("free")(flat)
        offset = 0
        for variable in self._variables:
            part = found[:, offset : offset + variable.size]
            refuse_outside(np.isfinite(part), self.door, variable.name, "inside of its support")
            offset += variable.size
        return found

    # ---- log terms ------------------------------------------------------------------------------------------
    @property
    def has_log_terms(self) -> bool:
        return self._term_blocks is not None

    @property
    def has_term_gradients(self) -> bool:
        return self.has_log_terms

    @cached_property
    def _term_blocks(self) -> np.ndarray | None:
        """The block of each term of the sites' log densities; None where they do not split, or are not all."""
        if self._sites is None:
            self.no_log_terms = "it was read from a file, which does not hold the model itself"
            return None
        if not self.layout.n_local or self.default_family == "markov":
            self.no_log_terms = "it has no locals that are independent given the globals"
            return None
        self.no_log_terms = "the log densities of its sites do not split into terms of one local block each"
        try:
            found = blocks_of_terms(lambda points: self._function("terms")(self._in_their_order(points)), self.layout)
            probe = np.random.default_rng(1).normal(0.0, 0.3, (2, self.dim))
            whole = self._function("terms")(probe).sum(axis=1)
            return found if np.allclose(whole, self._evaluate(probe)[0], rtol=1e-9, atol=1e-9) else None
        except Exception:  # a site may be of a kind whose terms cannot be had; the fit does not need them
            return None

    def _sums_of_terms(self, point: Any) -> tuple[Any, Any]:
        assert self._sites is not None
        assert self._term_blocks is not None
        sums = numpyro_module("jax").ops.segment_sum(
            self._sites.terms(point), self._term_blocks + 1, self.layout.n_local + 1
        )
        return sums[0], sums[1:]

    def _weighted_terms(self, point_and_weights: Any) -> tuple[Any, Any, Any]:
        """Global term, local terms, and the gradient of the former plus the weighted sum of the latter."""
        point, weights = point_and_weights[: self.dim], point_and_weights[self.dim :]

        def total(point: Any) -> tuple[Any, tuple[Any, Any]]:
            at_top, each = self._sums_of_terms(point)
            return at_top + weights @ each, (at_top, each)

        slope, (at_top, each) = numpyro_module("jax").grad(total, has_aux=True)(point)
        return at_top, each, slope

    def _log_terms_and_gradient(self, points: Array, weights: Array) -> tuple[Array, Array, Array]:
        both = np.concatenate([self._in_their_order(points), weights], axis=1)
        at_top, each, slope = self._function("weighted")(both)
        return at_top, each, slope[:, self._order].astype(points.dtype, copy=False)

    def _log_terms(self, points: Array) -> tuple[Array, Array]:
        at_top, each = self._function("sums")(self._in_their_order(points))
        return at_top, each

    # ---- names and files ------------------------------------------------------------------------------------
    @property
    def description(self) -> str:
        return "tv.models.NumPyro, a NumPyro model"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_compiled": {}}

    def get_state(self) -> dict[str, Any]:
        """Names, shapes and labels, and the compiled transforms to the model's own space; not the model itself."""
        state = super().get_state()
        for kind, key in _EXPORTED.items():
            content = self._export(kind)
            if content is not None:
                state[key] = content
        return state

    def _export(self, kind: str) -> np.ndarray | None:
        """The transforms as bytes; None where they call out of JAX, so that they cannot be written."""
        if kind not in self._exports:
            try:
                self._exports[kind] = np.frombuffer(self._function(kind).export(self.dim), dtype=np.uint8)
            except (NotImplementedError, ValueError, TypeError):
                self._exports[kind] = None
        return self._exports[kind]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NumPyro:
        """A model that knows its variables and transforms: `constrain` works, `log_density` does not."""
        model = cls.__new__(cls)
        model._sites = None
        model._restore(state)
        model._exports = {kind: np.asarray(state[key]) for kind, key in _EXPORTED.items() if key in state}
        model._compiled = {}
        return model


def _title(model: Any) -> str:
    """The name of the innermost function."""
    while hasattr(model, "fn") and not hasattr(model, "__name__"):
        model = model.fn
    title = getattr(model, "__name__", type(model).__name__)
    return "numpyro" if title == "<lambda>" else str(title)
