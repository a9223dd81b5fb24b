"""What `compare()` is to do: its arguments, checked, and what is too large for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyturingvi.comparisons.measures import family_words
from pyturingvi.errors import InputError, MemoryLimitError, unknown_name
from pyturingvi.families import Family, get_family
from pyturingvi.models.base import Model
from pyturingvi.optimize.memory import check_memory, fit_bytes
from pyturingvi.optimize.rules import RULES, Rule, get_rule

MOST_PARAMS = 20_000_000  # of a family that is compared: beyond it, hundreds of updates take many minutes
ELBO_SAMPLES = 2_048  # draws of a final ELBO


@dataclass(frozen=True)
class Plan:
    """The checked arguments of `compare()`."""

    n_points: int
    n_iterations: int
    fit_iterations: int | None
    n_runs: int
    n_samples: int
    dtype: str
    seed: int
    n_threads: int
    families: tuple[Family, ...]
    rules: tuple[Rule, ...]

    @property
    def n_steps(self) -> int:
        """Measurements, for a progress bar."""
        return 1 + len(self.families) * (len(self.rules) + 2)

    def updates_of(self, family: Family, model: Model) -> int:
        """Updates of a run with own noise, fewer for a large family."""
        if self.fit_iterations is not None:
            return self.fit_iterations
        return min(2_000, max(50, 200_000_000 // family.n_params(model.layout)))

    def noise_bytes(self, model: Model) -> int:
        """Of the noise that both engines share."""
        return 8 * self.n_iterations * self.n_samples * model.dim

    def reason_to_skip(self, family: Family, model: Model) -> str:
        """Why a family is not compared on a model, or an empty string."""
        p = family.n_params(model.layout)
        if p > MOST_PARAMS:
            return f"p = {p:,} parameters: hundreds of updates in both engines would take too long"
        needed = fit_bytes(family, model.layout, 8, 2, self.n_samples, elbo_samples=ELBO_SAMPLES)
        needed += self.noise_bytes(model)
        try:
            check_memory(needed, None, "cpu", family, model.layout)
        except MemoryLimitError:
            return f"p = {p:,} parameters need {needed / 2**30:.1f} GiB, more than is free"
        return ""


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
    for optimizer in optimizers:
        if not isinstance(optimizer, str):
            rule = get_rule(optimizer)
            rules.append(rule if stepsize is None else replace(rule, stepsize=stepsize))
            continue
        if optimizer not in RULES:
            raise unknown_name("optimizer", optimizer, RULES)
        usual = 1e-3 if optimizer == "adam" else 1e-2 / n_local
        rules.append(RULES[optimizer](usual if stepsize is None else stepsize))
    _check_names("optimizers", [rule.name for rule in rules])
    return tuple(rules)
