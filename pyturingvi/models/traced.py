"""A model whose log density and transforms another library gives as JAX functions of one point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from pyturingvi.models.foreign import ForeignModel, Natural, axis_names
from pyturingvi.models.interactions import Variable, split
from pyturingvi.models.jax_batches import Batched, batch_size, coarse_size, exported
from pyturingvi.models.parts import refuse_outside, take_natural
from pyturingvi.support.extras import require


@dataclass(frozen=True)
class Site:
    """A latent or deterministic variable, in the model's own space."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]  # their names; "" where there is none
    latent: bool


@dataclass(frozen=True)
class ObservedSite:
    """An observed variable."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]  # as of a Site
    n_batch: int  # of the axes, those that its log likelihood has too: a value may be a vector


class Sites(Protocol):
    """What a library's model tells of itself: its variables, and JAX functions of one unconstrained point (d,)."""

    @property
    def latents(self) -> tuple[Variable, ...]:
        """The latent variables in unconstrained space, in their order."""

    @property
    def labels(self) -> list[str]:
        """For each unconstrained coordinate: `mu`, `log tau`, or `unconstrained rho` for other transforms."""

    @property
    def found(self) -> tuple[Site, ...]:
        """Latent and deterministic variables, in the order of the model."""

    @property
    def observed(self) -> tuple[ObservedSite, ...]:
        """Observed variables, in the order of the model."""

    def log_density(self, point: Any) -> Any:
        """Log density, log-Jacobians included."""

    def terms(self, point: Any) -> Any:
        """The log density as a flat array of its terms."""

    def constrained(self, point: Any) -> dict[str, Any]:
        """Latent and deterministic variables, in the model's own space."""

    def unconstrained(self, natural: Any) -> Any:
        """The point of latent variables in the model's own space, one after the other in a flat array."""

    def data(self, point: Any) -> dict[str, tuple[Any, Any]]:
        """Of each observed variable its values, and which of them count: those that are not masked."""

    def log_likelihood(self, point: Any) -> dict[str, Any]:
        """The log likelihood of each observed value."""


class Traced(ForeignModel):
    """A density over named variables that JAX compiles, batches and differentiates.

    A subclass calls `_start` with its sites, and then `_settle`.
    """

    extra: ClassVar[str]  # that brings the library
    exports: ClassVar[dict[str, str]] = {"all": "exported_all", "globals": "exported_globals"}  # into files
    _sites: Sites | None

    def _start(self, sites: Sites) -> None:
        self._sites = sites
        self._compiled: dict[str, Any] = {}
        self._exports: dict[str, np.ndarray | None] = {}

    # ---- what JAX computes ----------------------------------------------------------------------------------
    def _function(self, kind: str) -> Any:
        """A compiled function of points in the model's order, built on first use."""
        if kind not in self._compiled:
            sites = self._sites
            if sites is None:
                return self._from_file(kind)
            size_of = batch_size if kind == "density" else coarse_size
            self._compiled[kind] = Batched(self._functions(sites)[kind], size_of)
        return self._compiled[kind]

    def _functions(self, sites: Sites) -> dict[str, Callable[[Any], Any]]:
        """JAX functions of one point by their kind."""
        return {
            "density": require("jax", self.extra, f"tv.models.{self.door}").value_and_grad(sites.log_density),
            "all": sites.constrained,
            "globals": lambda point: {name: sites.constrained(point)[name] for name in self.global_names},
            "free": sites.unconstrained,
        }

    def _from_file(self, kind: str) -> Any:
        """The function that the file held."""
        content = self._exports.get(kind)
        if content is None:
            what = {"density": "the log density", "free": "unconstrain"}.get(kind, "a draw in the model's own space")
            raise self._unavailable(what)
        require("jax.export", self.extra, f"reading draws of a {self.door} model")
        self._compiled[kind] = exported(content.tobytes())
        return self._compiled[kind]

    def _evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = self._function("density")(points)
        return value, slope

    def _natural_values(self, points: np.ndarray, *, global_only: bool) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = self._function("globals" if global_only else "all")(points)
        return found

    def _describe_naturals(self) -> dict[str, Natural]:
        """Latent and deterministic sites."""
        assert self._sites is not None
        values = self._function("all")(self._points_apart_in_locals())
        derived = {site.name: values[site.name] for site in self._sites.found if not site.latent}
        return self._told_apart([site.name for site in self._sites.found if site.latent], derived)

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
        for name, part in split(found, {one.name: (one.size,) for one in self._variables}).items():
            refuse_outside(np.isfinite(part), self.door, name, "inside of its support")
        return found

    # ---- files ----------------------------------------------------------------------------------------------
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_compiled": {}}

    def get_state(self) -> dict[str, Any]:
        """Names, shapes and labels, and the compiled transforms to the model's own space; not the model itself."""
        state = super().get_state()
        for kind, key in self.exports.items():
            content = self._export(kind)
            if content is not None:
                state[key] = content
        return state

    def _export(self, kind: str) -> np.ndarray | None:
        """The transforms as bytes; None where they call out of JAX, so that they cannot be written."""
        if kind not in self._exports:
            try:
                self._exports[kind] = np.frombuffer(self._function(kind).export(self.dim), dtype=np.uint8)
            except (NotImplementedError, ValueError, TypeError, ImportError):  # the last where flatbuffers is missing
                self._exports[kind] = None
        return self._exports[kind]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A model that knows its variables and transforms: `constrain` works, `log_density` does not."""
        model = cls.__new__(cls)
        model._sites = None
        model._restore(state)
        model._exports = {kind: np.asarray(state[key]) for kind, key in cls.exports.items() if key in state}
        model._compiled = {}
        return model
