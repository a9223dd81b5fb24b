"""Update rules: Adam, SGD, proximal SGD and projected SGD, and what one of your own is made of.

A rule is a frozen description. `start` gives its state for one run; the state's `update` changes the parameters in
place, from a batch of draws with the slopes of the log density there.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import Any, ClassVar

from pyturingvi.errors import InputError
from pyturingvi.families.base import BoundFamily
from pyturingvi.optimize.objective import Batch
from pyturingvi.optimize.operators import Operator, ProximalEntropy, ScaleProjection
from pyturingvi.optimize.schedules import Schedule, as_schedule
from pyturingvi.support.arguments import positive_number
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.parallel import Workers
from pyturingvi.support.registry import Named, Registry, describe

_SLICE = 32_768  # entries: parameters, gradient, moments and scratch of one slice fit in a core's L2 cache
_PARALLEL_FROM = 500_000  # below this, handing slices to threads costs more than it gains


@dataclass(frozen=True)
class Rule(Named, ABC):
    """An update rule with its stepsize.

    Parameters
    ----------
    stepsize : float or schedule
        A number above 0, or `tv.step_decay(...)`.
    operator : Operator, optional
        What follows each step: `tv.optimize.ProximalEntropy()` or `tv.optimize.ScaleProjection(...)`.
    """

    stepsize: Any
    operator: Operator | None = field(default=None, kw_only=True)
    registry: ClassVar[Registry[Rule]] = Registry("rule")
    ends_by_itself: ClassVar[bool] = False  # True: it runs until converged where no number of updates is given
    n_slots: ClassVar[int] = 0  # vectors of p numbers that the state keeps: counted in the memory of a fit

    def __post_init__(self) -> None:
        object.__setattr__(self, "stepsize", as_schedule(self.stepsize, type(self).__name__))
        if self.operator is not None and not isinstance(self.operator, Operator):
            raise InputError(
                f"{type(self).__name__}: operator must be tv.optimize.ProximalEntropy(), "
                f"tv.optimize.ScaleProjection(...) or None, got {self.operator!r}."
            )

    @property
    def schedule(self) -> Schedule:
        """The stepsize as a function of the update's number."""
        return as_schedule(self.stepsize, self.name)

    def config(self) -> dict[str, Any]:
        """JSON-able description; `rule_from_config` reads it."""
        derived = {one.name for one in fields(self) if not one.init}
        left_out = {*derived, "operator", "stepsize"}
        given = describe({name: value for name, value in vars(self).items() if name not in left_out})
        operator = None if "operator" in derived else self.operator
        followed = {} if operator is None else {"operator": operator.config()}
        return {"rule": self.name, **self.registry.tag(self), **given, "stepsize": self.schedule.config(), **followed}

    @abstractmethod
    def start(self, bound: BoundFamily, workers: Workers) -> RuleState:
        """The state of a run on the parameters of `bound`, before the first update."""

    def operator_to_julia(self, runtime: Any) -> Any:
        """The Julia counterpart of the operator, None for none."""
        return None if self.operator is None else self.operator.to_julia(runtime)


class RuleState(ABC):
    """A rule at work.

    Attributes
    ----------
    slots : list of (p,) arrays
        Vectors in working order that must be kept to go on exactly.
    scalars : dict of float
        Numbers that must be kept likewise.
    """

    def __init__(self, rule: Rule, bound: BoundFamily) -> None:
        self.bound = bound
        self.schedule = rule.schedule
        self.operator = rule.operator
        self.energy_only = rule.operator is not None and rule.operator.energy_only
        self.slots: list[Array] = [bound.xp.zeros(bound.n_params, dtype=bound.dtype) for _ in range(rule.n_slots)]
        self.scalars: dict[str, float] = {}

    def update(self, work: Array, batch: Batch, iteration: int) -> bool:
        """Make update number `iteration`, counted from 1; False, with `work` as it was, if it would not be finite."""
        if not self.step(work, batch, iteration):
            return False
        if self.operator is not None:
            self.operator.apply(self.bound, work, self.schedule(iteration))
        return True

    @abstractmethod
    def step(self, work: Array, batch: Batch, iteration: int) -> bool:
        """The update without its operator."""


# ---- elementwise rules --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ElementwiseRule(Rule):
    """A rule that treats each parameter by itself, given its gradient; one of your own overrides `move`."""

    def constants(self, iteration: int) -> tuple[float, ...]:
        """Numbers that all parameters share in update `iteration`; by default the stepsize alone."""
        return (self.schedule(iteration),)

    @abstractmethod
    def move(
        self, xp: ModuleType, x: Array, g: Array, slots: list[Array], scratch: Array, constants: tuple[float, ...]
    ) -> None:
        """Update a slice x of the parameters in place, given its gradient g, slots, and a buffer of its length."""

    def start(self, bound: BoundFamily, workers: Workers) -> RuleState:
        return ElementwiseState(self, bound, workers)


class ElementwiseState(RuleState):
    """An elementwise rule at work, over slices that stay in cache."""

    def __init__(self, rule: ElementwiseRule, bound: BoundFamily, workers: Workers) -> None:
        super().__init__(rule, bound)
        self.rule, self.workers = rule, workers
        xp, p = bound.xp, bound.n_params
        length = _SLICE if xp.__name__ == "numpy" else p
        slices = [slice(i, min(i + length, p)) for i in range(0, p, length)]
        n_groups = workers.n if p >= _PARALLEL_FROM else 1
        size = -(-len(slices) // n_groups)
        self._groups = [slices[i : i + size] for i in range(0, len(slices), size)]
        self._scratch = [xp.empty(min(length, p), dtype=bound.dtype) for _ in self._groups]

    def step(self, work: Array, batch: Batch, iteration: int) -> bool:
        gradient = batch.gradient(work, self.energy_only)
        if gradient is None:
            return False
        constants = self.rule.constants(iteration)
        xp, move = self.bound.xp, self.rule.move

        def group(k: int) -> None:
            for s in self._groups[k]:
                scratch = self._scratch[k][: s.stop - s.start]
                move(xp, work[s], gradient[s], [slot[s] for slot in self.slots], scratch, constants)

        if len(self._groups) == 1:
            group(0)
        else:
            self.workers.map(group, range(len(self._groups)))
        return True


@dataclass(frozen=True)
class Adam(ElementwiseRule):
    """Adam on the negative ELBO (Kingma and Ba, 2015).

    Parameters
    ----------
    stepsize : float or schedule
    beta1, beta2 : float
        Decay of the two moments, in [0, 1).
    epsilon : float
        Added to the root of the second moment, above 0.
    operator : Operator, optional
    """

    stepsize: Any = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    name: ClassVar[str] = "adam"
    n_slots: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("beta1", "beta2"):
            value = getattr(self, key)
            if not (isinstance(value, numbers.Real) and 0 <= float(value) < 1):
                raise InputError(f"Adam: {key} must lie in [0, 1), got {value!r}.")
        positive_number("Adam: epsilon", self.epsilon)
        for key in ("beta1", "beta2", "epsilon"):
            object.__setattr__(self, key, float(getattr(self, key)))

    # The slots hold m/(1 - beta1) and v/(1 - beta2): the missing factors join the bias corrections, saving passes.
    def constants(self, iteration: int) -> tuple[float, ...]:
        first = (1 - self.beta1) / (1 - self.beta1**iteration)
        second = math.sqrt((1 - self.beta2) / (1 - self.beta2**iteration))
        return self.beta1, self.beta2, self.epsilon / second, self.schedule(iteration) * first / second

    def move(
        self, xp: ModuleType, x: Array, g: Array, slots: list[Array], scratch: Array, constants: tuple[float, ...]
    ) -> None:
        m, v = slots
        beta1, beta2, epsilon, rate = constants
        m *= beta1
        m += g
        v *= beta2
        xp.multiply(g, g, out=scratch)
        v += scratch
        xp.sqrt(v, out=scratch)
        scratch += epsilon
        xp.divide(m, scratch, out=scratch)
        scratch *= rate
        x -= scratch

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart, the stepsize left out."""
        settings = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        return runtime.call(runtime.module.adam, self.operator_to_julia(runtime), **settings)


@dataclass(frozen=True)
class SGD(ElementwiseRule):
    """Plain stochastic gradient descent on the negative ELBO.

    Parameters
    ----------
    stepsize : float or schedule
    operator : Operator, optional
    """

    name: ClassVar[str] = "sgd"

    def move(
        self, xp: ModuleType, x: Array, g: Array, slots: list[Array], scratch: Array, constants: tuple[float, ...]
    ) -> None:
        xp.multiply(g, constants[0], out=scratch)
        x -= scratch

    def to_julia(self, runtime: Any) -> Any:
        """Its Julia counterpart, the stepsize left out."""
        return runtime.call(runtime.module.sgd, self.operator_to_julia(runtime))


@dataclass(frozen=True)
class ProximalSGD(SGD):
    """SGD on the energy, then the proximal operator of the entropy (paper, section 2.4).

    Parameters
    ----------
    stepsize : float or schedule
    """

    operator: Operator = field(default=ProximalEntropy(), init=False)
    name: ClassVar[str] = "proximal-sgd"

    to_julia = SGD.to_julia  # with the operator


@dataclass(frozen=True)
class ProjectedSGD(SGD):
    """SGD on the negative ELBO, then a projection that keeps `C_ii >= min_scale`.

    Parameters
    ----------
    stepsize : float or schedule
    min_scale : float
        Smallest diagonal entry of C allowed, above 0.
    """

    min_scale: float = 1e-5
    operator: Operator = field(default=ScaleProjection(), init=False)
    name: ClassVar[str] = "projected-sgd"

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_scale", positive_number("ProjectedSGD: min_scale", self.min_scale))
        object.__setattr__(self, "operator", ScaleProjection(self.min_scale))
        super().__post_init__()

    to_julia = SGD.to_julia  # with the operator


RULES = Rule.registry
for _class in (Adam, SGD, ProximalSGD, ProjectedSGD):
    RULES.add(_class)
