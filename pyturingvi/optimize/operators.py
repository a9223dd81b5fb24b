"""Operators that follow an update: what keeps the scale away from 0, for any rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyturingvi.families.base import BoundFamily
from pyturingvi.support.arguments import positive_number
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.registry import CLASS_KEY, Named, Registry, describe


class Operator(Named, ABC):
    """What is done to the parameters after each step of a rule."""

    registry: ClassVar[Registry[Operator]] = Registry("operator")
    energy_only: ClassVar[bool] = False  # True: the entropy enters here, so that the gradient leaves it out

    @abstractmethod
    def apply(self, bound: BoundFamily, work: Array, stepsize: float) -> None:
        """Change the working vector in place, after a step of the given size."""

    def config(self) -> dict[str, Any]:
        """JSON-able description; `operator_from_config` reads it."""
        return {"operator": self.name, **self.registry.tag(self), **describe(vars(self))}


@dataclass(frozen=True)
class ProximalEntropy(Operator):
    """The proximal operator of the negative entropy; the gradient is then that of the energy (paper, section 2.4)."""

    name: ClassVar[str] = "proximal-entropy"
    energy_only: ClassVar[bool] = True

    def apply(self, bound: BoundFamily, work: Array, stepsize: float) -> None:
        bound.prox_entropy(work, stepsize)

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.ProximalEntropy)


@dataclass(frozen=True)
class ScaleProjection(Operator):
    """A projection that keeps the scale's diagonal at least `min_scale`.

    Parameters
    ----------
    min_scale : float
        Above 0.
    """

    min_scale: float = 1e-5
    name: ClassVar[str] = "scale-projection"

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_scale", positive_number("ScaleProjection: min_scale", self.min_scale))

    def apply(self, bound: BoundFamily, work: Array, stepsize: float) -> None:
        bound.project_scale(work, self.min_scale)

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart."""
        return runtime.call(runtime.module.ScaleProjection, self.min_scale)


for _class in (ProximalEntropy, ScaleProjection):
    Operator.registry.add(_class)


def operator_from_config(config: Mapping[str, Any]) -> Operator:
    """Rebuild an operator from what `Operator.config` gave."""
    found = Operator.registry.find(config["operator"], config)
    return found(**{key: value for key, value in config.items() if key not in ("operator", CLASS_KEY)})
