"""A rule from what stands for it: the `optimizer=` of a call, or the description in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.optimize.natural_rule import NaturalGradient
from pyturingvi.optimize.operators import operator_from_config
from pyturingvi.optimize.rules import RULES, Rule
from pyturingvi.support.registry import CLASS_KEY


def get_rule(optimizer: Any, stepsize: Any = None) -> Rule:
    """Read the `optimizer=` argument: a rule, or with a stepsize beside it the name of one.

    Raises
    ------
    InputError
        If it is not one of the rules, or one of the user's own that would not run as it says.
    """
    if isinstance(optimizer, Rule):
        _check_by_itself(optimizer)
        if stepsize is not None and optimizer.ends_by_itself:
            raise InputError(f"stepsize={stepsize!r}: {type(optimizer).__name__} takes none; give tv.Adam() beside it.")
        return optimizer if stepsize is None else replace(optimizer, stepsize=stepsize)
    if isinstance(optimizer, str):
        if optimizer not in RULES:
            raise unknown_name("optimizer", optimizer, RULES)
        if RULES[optimizer].ends_by_itself:
            if stepsize is not None:
                raise InputError(f"optimizer={optimizer!r} takes no stepsize.")
            return RULES[optimizer]()  # type: ignore[call-arg]
        if stepsize is None:
            name = RULES[optimizer].__name__
            raise InputError(f"optimizer={optimizer!r} needs a stepsize: tv.{name}(1e-3), or in a grid stepsize=.")
        return RULES[optimizer](stepsize)
    if isinstance(optimizer, type) and issubclass(optimizer, Rule):
        raise InputError(f"optimizer={optimizer.__name__} is a class: write optimizer=tv.{optimizer.__name__}(1e-3).")
    raise InputError(
        "optimizer must be tv.NaturalGradient(...), tv.Adam(...), tv.SGD(...), tv.ProximalSGD(...) or "
        f"tv.ProjectedSGD(...), got {optimizer!r}."
    )


def _check_by_itself(rule: Rule) -> None:
    """Refuse a rule of the user's own that would not run as it says: the loop that ends by itself makes the steps."""
    name = type(rule).__qualname__
    if rule.ends_by_itself and not isinstance(rule, NaturalGradient):
        raise InputError(
            f"optimizer: {name}.ends_by_itself is True, but only tv.NaturalGradient can end by itself; leave it False, "
            "and fit makes n_iterations updates."
        )
    if isinstance(rule, NaturalGradient) and type(rule).start is not NaturalGradient.start:
        raise InputError(
            f"optimizer: the start of {name} would never be called, since natural gradients are stepped by a loop of "
            "their own; make it a subclass of tv.optimize.Rule."
        )


def rule_from_config(config: Mapping[str, Any]) -> Rule:
    """Rebuild a rule from what `Rule.config` gave."""
    options = {key: value for key, value in config.items() if key not in ("rule", CLASS_KEY)}
    if options.get("operator") is not None:
        options["operator"] = operator_from_config(options["operator"])
    return RULES.find(config["rule"], config)(**options)
