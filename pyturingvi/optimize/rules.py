"""Update rules: Adam, SGD, proximal SGD and projected SGD.

A rule is a frozen description. `start` gives its state for one parameter vector; `step` updates that vector in
place, over slices that stay in cache.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.families.base import BoundFamily
from pyturingvi.optimize.schedules import Schedule, as_schedule
from pyturingvi.support.array_namespace import Array
from pyturingvi.support.parallel import Workers

_SLICE = 32_768  # entries: parameters, gradient, moments and scratch of one slice fit in a core's L2 cache
_PARALLEL_FROM = 500_000  # below this, handing slices to threads costs more than it gains


@dataclass(frozen=True)
class Rule(ABC):
    """An update rule with its stepsize.

    Parameters
    ----------
    stepsize : float or schedule
        A number above 0, or `tv.step_decay(...)`.
    """

    stepsize: Any
    name: ClassVar[str]
    n_slots: ClassVar[int] = 0
    energy_only: ClassVar[bool] = False  # True: the entropy enters through a proximal operator, not the gradient

    def __post_init__(self) -> None:
        object.__setattr__(self, "stepsize", as_schedule(self.stepsize, type(self).__name__))

    @property
    def schedule(self) -> Schedule:
        """The stepsize as a function of the update's number."""
        return as_schedule(self.stepsize, self.name)

    def config(self) -> dict[str, Any]:
        """JSON-able description; `rule_from_config` reads it."""
        return {"rule": self.name, "stepsize": self.schedule.config()}

    @abstractmethod
    def start(self, bound: BoundFamily, workers: Workers) -> RuleState:
        """State for the parameters of `bound`, at zero."""


class RuleState:
    """A rule at work: `slots` are what must be kept (with the parameters) to go on exactly."""

    def __init__(self, rule: Rule, bound: BoundFamily, workers: Workers) -> None:
        xp, p = bound.xp, bound.n_params
        self.schedule = rule.schedule
        self.bound = bound
        self.workers = workers
        self.slots: list[Array] = [xp.zeros(p, dtype=bound.dtype) for _ in range(rule.n_slots)]
        step = _SLICE if xp.__name__ == "numpy" else p
        slices = [slice(i, min(i + step, p)) for i in range(0, p, step)]
        n_groups = workers.n if p >= _PARALLEL_FROM else 1
        size = -(-len(slices) // n_groups)
        self._groups = [slices[i : i + size] for i in range(0, len(slices), size)]
        self._scratch = [xp.empty(min(step, p), dtype=bound.dtype) for _ in self._groups]

    def step(self, work: Array, gradient: Array, iteration: int) -> None:
        """Update `work` in place; `iteration` counts from 1."""
        constants = self._constants(iteration)

        def group(k: int) -> None:
            for s in self._groups[k]:
                scratch = self._scratch[k][: s.stop - s.start]
                self._update(work[s], gradient[s], [slot[s] for slot in self.slots], scratch, constants)

        if len(self._groups) == 1:
            group(0)
        else:
            self.workers.map(group, range(len(self._groups)))
        self._finish(work, iteration)

    def _constants(self, iteration: int) -> tuple[float, ...]:
        return (self.schedule(iteration),)

    def _update(self, x: Array, g: Array, slots: list[Array], scratch: Array, constants: tuple[float, ...]) -> None:
        self.bound.xp.multiply(g, constants[0], out=scratch)
        x -= scratch

    def _finish(self, work: Array, iteration: int) -> None:
        """What follows the gradient step: a proximal operator or a projection."""


# ---- Adam -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Adam(Rule):
    """Adam on the negative ELBO (Kingma and Ba, 2015).

    Parameters
    ----------
    stepsize : float or schedule
    beta1, beta2 : float
        Decay of the two moments, in [0, 1).
    epsilon : float
        Added to the root of the second moment, above 0.
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
        if not (isinstance(self.epsilon, numbers.Real) and 0 < float(self.epsilon) < math.inf):
            raise InputError(f"Adam: epsilon must be a finite number above 0, got {self.epsilon!r}.")

    def config(self) -> dict[str, Any]:
        return {**super().config(), **{key: float(getattr(self, key)) for key in ("beta1", "beta2", "epsilon")}}

    def start(self, bound: BoundFamily, workers: Workers) -> RuleState:
        return _AdamState(self, bound, workers)


class _AdamState(RuleState):
    """Slots hold m/(1 - beta1) and v/(1 - beta2): the missing factors join the bias corrections, saving passes."""

    def __init__(self, rule: Adam, bound: BoundFamily, workers: Workers) -> None:
        super().__init__(rule, bound, workers)
        self.rule = rule

    def _constants(self, iteration: int) -> tuple[float, ...]:
        rule = self.rule
        first = (1 - rule.beta1) / (1 - rule.beta1**iteration)
        second = math.sqrt((1 - rule.beta2) / (1 - rule.beta2**iteration))
        return rule.beta1, rule.beta2, rule.epsilon / second, self.schedule(iteration) * first / second

    def _update(self, x: Array, g: Array, slots: list[Array], scratch: Array, constants: tuple[float, ...]) -> None:
        xp = self.bound.xp
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


# ---- SGD and its two relatives ----------------------------------------------------------------------------
@dataclass(frozen=True)
class SGD(Rule):
    """Plain stochastic gradient descent on the negative ELBO.

    Parameters
    ----------
    stepsize : float or schedule
    """

    name: ClassVar[str] = "sgd"

    def start(self, bound: BoundFamily, workers: Workers) -> RuleState:
        return RuleState(self, bound, workers)


@dataclass(frozen=True)
class ProximalSGD(Rule):
    """SGD on the energy, then the proximal operator of the entropy (paper, section 2.4).

    `C_ii <- C_ii + (sqrt(C_ii^2 + 4 gamma) - C_ii)/2` keeps the diagonal positive.

    Parameters
    ----------
    stepsize : float or schedule
    """

    name: ClassVar[str] = "proximal-sgd"
    energy_only: ClassVar[bool] = True

    def start(self, bound: BoundFamily, workers: Workers) -> RuleState:
        return _ProximalState(self, bound, workers)


class _ProximalState(RuleState):
    def _finish(self, work: Array, iteration: int) -> None:
        # the two roots of v^2 - c v - gamma have product -gamma: neither sign of c cancels, and none overflows
        xp, gamma = self.bound.xp, self.schedule(iteration)
        c = work[self.bound.diagonal]
        larger = 0.5 * (abs(c) + xp.hypot(c, 2 * math.sqrt(gamma)))
        work[self.bound.diagonal] = xp.where(c > 0, larger, gamma / larger)


@dataclass(frozen=True)
class ProjectedSGD(Rule):
    """SGD on the negative ELBO, then a projection that keeps `C_ii >= min_scale`.

    Parameters
    ----------
    stepsize : float or schedule
    min_scale : float
        Smallest diagonal entry of C allowed, above 0.
    """

    min_scale: float = 1e-5
    name: ClassVar[str] = "projected-sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.min_scale, numbers.Real) and 0 < self.min_scale < math.inf):
            raise InputError(f"ProjectedSGD: min_scale must be a finite number above 0, got {self.min_scale!r}.")

    def config(self) -> dict[str, Any]:
        return {**super().config(), "min_scale": float(self.min_scale)}

    def start(self, bound: BoundFamily, workers: Workers) -> RuleState:
        return _ProjectedState(self, bound, workers)


class _ProjectedState(RuleState):
    def __init__(self, rule: ProjectedSGD, bound: BoundFamily, workers: Workers) -> None:
        super().__init__(rule, bound, workers)
        self.min_scale = rule.min_scale

    def _finish(self, work: Array, iteration: int) -> None:
        diagonal = self.bound.diagonal
        work[diagonal] = self.bound.xp.maximum(work[diagonal], self.min_scale)


RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Adam, SGD, ProximalSGD, ProjectedSGD)}


def get_rule(optimizer: Any) -> Rule:
    """Read the `optimizer=` argument.

    Raises
    ------
    InputError
        If it is not one of the rules.
    """
    if isinstance(optimizer, Rule):
        return optimizer
    if isinstance(optimizer, type) and issubclass(optimizer, Rule):
        raise InputError(f"optimizer={optimizer.__name__} is a class: write optimizer=tv.{optimizer.__name__}(1e-3).")
    raise InputError(
        f"optimizer must be tv.Adam(...), tv.SGD(...), tv.ProximalSGD(...) or tv.ProjectedSGD(...), got {optimizer!r}."
    )


def rule_from_config(config: Mapping[str, Any]) -> Rule:
    """Rebuild a rule from what `Rule.config` gave."""
    if config["rule"] not in RULES:
        raise unknown_name("rule", config["rule"], RULES)
    return RULES[config["rule"]](**{key: value for key, value in config.items() if key != "rule"})
