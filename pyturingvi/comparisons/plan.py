"""What `compare()` is to do: its arguments, checked, and what is too large for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pyturingvi.comparisons.measures import family_words
from pyturingvi.engines.selection import obstacle
from pyturingvi.errors import InputError, MemoryLimitError
from pyturingvi.families import Family, get_family
from pyturingvi.models.base import Model
from pyturingvi.optimize.memory import available_memory, check_memory, fit_bytes
from pyturingvi.optimize.read_rule import get_rule
from pyturingvi.optimize.rules import RULES, Rule
from pyturingvi.settings import Settings

MOST_PARAMS = 20_000_000  # of a family that is compared: beyond it, hundreds of updates take many minutes
ELBO_SAMPLES = 2_048  # draws of a final ELBO


@dataclass(frozen=True)
class Plan:
    """The checked arguments of `compare()`; `settings` has those that every fit is told, `n_iterations` of a path."""

    settings: Settings
    families: tuple[Family, ...]
    rules: tuple[Rule, ...]
    n_points: int
    fit_iterations: int | None
    n_runs: int
    n_threads: int

    def __post_init__(self) -> None:
        replace(self.settings, seed=self.settings.seed + self.n_runs - 1)  # each run has a seed of its own

    @property
    def n_steps(self) -> int:
        """Measurements, for a progress bar."""
        return 1 + len(self.families) * (len(self.rules) + 2)

    def updates_of(self, family: Family, model: Model) -> int:
        """Updates of a run with own noise, fewer for a large family."""
        if self.fit_iterations is not None:
            return self.fit_iterations
        return min(2_000, max(50, 200_000_000 // family.n_params(model.layout)))

    def check_engines(self, model: Model) -> None:
        """InputError unless both engines run everything."""
        for family, rule, engine in product(self.families, self.rules, ("numpy", "julia")):
            if what := obstacle(engine, model, replace(self.settings, family=family, optimizer=rule)):
                raise InputError(
                    f"compare: engine {engine!r} cannot run {what}, so there is nothing to compare it with. Give what "
                    "both engines have, or a class of your own with `to_julia`."
                )

    def check_memory(self, model: Model) -> None:
        """MemoryLimitError if the points or the noise that both engines share cannot be held."""
        shares = {
            # points, a gradient of each engine and what their comparison takes
            "n_points": (6 * 8 * self.n_points * (model.dim + 1), f"{self.n_points:,} points with gradients take"),
            "n_iterations": (self._noise_bytes(model), f"noise of {self.settings.n_iterations:,} updates takes"),
        }
        for argument, (needed, words) in shares.items():
            if needed > available_memory():
                raise MemoryLimitError(
                    f"compare: {words} {needed / 2**30:.1f} GiB, more than is free; choose a smaller {argument}."
                )

    def reason_to_skip(self, family: Family, model: Model) -> str:
        """Why a family is not compared on a model, or an empty string."""
        p = family.n_params(model.layout)
        if p > MOST_PARAMS:
            return f"p = {p:,} parameters: hundreds of updates in both engines would take too long"
        needed = fit_bytes(family, model.layout, 8, 2, self.settings.draws_of(model.layout), elbo_samples=ELBO_SAMPLES)
        needed += self._noise_bytes(model)
        try:
            check_memory(needed, None, "cpu", family, model.layout)
        except MemoryLimitError:
            return f"p = {p:,} parameters need {needed / 2**30:.1f} GiB, more than is free"
        return ""

    def _noise_bytes(self, model: Model) -> int:
        return 8 * self.settings.most_updates * self.settings.draws_of(model.layout) * model.dim


def chosen_families(families: Any) -> tuple[Family, ...]:
    """Read the `families=` argument."""
    if isinstance(families, str | Family) or not isinstance(families, Iterable):
        families = [families]
    chosen = tuple(get_family(family) for family in families)
    _check_names("families", [family_words(family) for family in chosen])
    return chosen


def _check_names(argument: str, names: Sequence[str]) -> None:
    if not names:
        raise InputError(f"{argument} is empty; name at least one.")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{argument} names {name!r} twice; the report has one place for it.")


def read_rules(optimizers: Any, stepsize: Any, n_local: int) -> tuple[Rule, ...]:
    """Read the `optimizers=` argument; a name gets `stepsize`, or what suits `n_local` local variables."""
    if isinstance(optimizers, str | Rule) or not isinstance(optimizers, Iterable):
        optimizers = [optimizers]
    rules = []
    for one in optimizers:
        usual = None
        if isinstance(one, str):  # steps that do not grow with the data have a usual length, which their class names
            usual = getattr(RULES.get(one), "stepsize", None) or 1e-2 / n_local
        rules.append(get_rule(one, usual if stepsize is None else stepsize))
    _check_names("optimizers", [rule.name for rule in rules])
    return tuple(rules)
