"""The priors of a model's standard deviations: what a user gave, and the model's usual ones for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.priors.base import ScalePrior, prior_from_config
from pyturingvi.support.array_namespace import Array, namespace_of
from pyturingvi.support.registry import class_path, defines


def _hint(given: Any) -> str:
    """What a user meant who gave the class of a prior."""
    if isinstance(given, type) and issubclass(given, ScalePrior):
        return f" That is the class: give one of it, {given.__name__}(...)."
    return ""


@dataclass(frozen=True)
class ScalePriors:
    """The priors of a model's standard deviations, by name, in the order of its log scales.

    `read` takes what a user gave; `log_density` and `slope` take a column a name.
    """

    given: dict[str, ScalePrior]
    usual: dict[str, ScalePrior]

    @classmethod
    def read(cls, given: Any, usual: Mapping[str, ScalePrior], owner: str) -> ScalePriors:
        """Read a `priors=` argument: one prior for all, or some by name; the others are the model's usual ones."""
        if given is None or isinstance(given, ScalePrior):
            given = {} if given is None else dict.fromkeys(usual, given)
        if not isinstance(given, Mapping):
            raise InputError(
                f"{owner}: priors must be one of tv.priors, or a dictionary of them, got {given!r}.{_hint(given)}"
            )
        for name, prior in given.items():
            if name not in usual:
                raise unknown_name("standard deviation with a prior", name, usual)
            if not isinstance(prior, ScalePrior):
                raise InputError(f"{owner}: the prior of {name} must be one of tv.priors, got {prior!r}.{_hint(prior)}")
        return cls({**usual, **given}, dict(usual))

    @classmethod
    def from_state(cls, state: Mapping[str, Any], usual: Mapping[str, ScalePrior], owner: str) -> ScalePriors:
        """From what `to_state` wrote."""
        written = state.get("priors") or {}
        return cls.read({name: prior_from_config(config) for name, config in written.items()}, usual, owner)

    def to_state(self) -> dict[str, Any]:
        """What a model's state says of them: nothing of the usual ones, which files have never named."""
        other = {name: prior.config() for name, prior in self.given.items() if prior != self.usual[name]}
        return {"priors": other} if other else {}

    def __getitem__(self, name: str) -> ScalePrior:
        return self.given[name]

    @property
    def are_usual(self) -> bool:
        """Whether all are the model's usual ones."""
        return self.given == self.usual

    @property
    def numpy_only(self) -> list[str]:
        """Those that have no Julia counterpart, in words."""
        own = (class_path(type(prior)) for prior in self.given.values() if not defines(prior, "to_julia"))
        return [f"the prior {name}" for name in dict.fromkeys(own)]

    def to_julia(self, runtime: Any, model: Any, places: Mapping[str, tuple[int, int]]) -> Any:
        """A model in Julia with these priors, from one with the usual ones.

        places: first and last place, counted from 1, of the log scales of each name in the flat vector.
        """
        for name, prior in self.given.items():
            usual = self.usual[name]
            if prior != usual:
                both = prior.to_julia(runtime), usual.to_julia(runtime)
                model = runtime.call(runtime.module.other_prior, model, *places[name], *both)
        return model

    @cached_property
    def _common(self) -> ScalePrior | None:
        first, *others = self.given.values()
        return first if all(prior == first for prior in others) else None

    def log_density(self, log_scales: Array) -> Array:
        """Log density of each log scale, (M, K): Jacobians included."""
        if self._common is not None:
            return self._common.log_density(log_scales)
        columns = [prior.log_density(log_scales[:, k]) for k, prior in enumerate(self.given.values())]
        return namespace_of(log_scales).stack(columns, axis=1)

    def slope(self, precision: Array) -> Array:
        """d log p(s) / d log s of each scale, (M, K), from 1/s^2."""
        if self._common is not None:
            return self._common.slope(precision)
        columns = [prior.slope(precision[:, k]) for k, prior in enumerate(self.given.values())]
        return namespace_of(precision).stack(columns, axis=1)

    def draw(self, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        """n draws of each scale."""
        return {name: prior.draw(rng, n) for name, prior in self.given.items()}
