"""Variational families: mean-field, full-rank and structured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.families.base import BoundFamily, Family
from pyturingvi.families.full_rank import FullRank
from pyturingvi.families.mean_field import MeanField
from pyturingvi.families.structured import Structured

__all__ = [
    "FAMILIES",
    "BoundFamily",
    "Family",
    "FullRank",
    "MeanField",
    "Structured",
    "family_from_config",
    "get_family",
]

FAMILIES: dict[str, type[Family]] = {family.name: family for family in (MeanField, Structured, FullRank)}


def get_family(family: str | Family) -> Family:
    """Read the `family=` argument: a name or an object.

    Raises
    ------
    InputError
        For an unknown name (the nearest known one is offered) or another kind of object.
    """
    if isinstance(family, Family):
        return family
    if isinstance(family, type) and issubclass(family, Family):
        raise InputError(f"family={family.__name__} is a class: write family=tv.{family.__name__}().")
    if not isinstance(family, str) or family not in FAMILIES:
        raise unknown_name("family", family, FAMILIES)
    return FAMILIES[family]()


def family_from_config(config: Mapping[str, Any]) -> Family:
    """Rebuild a family from what `Family.config` gave."""
    options = {key: value for key, value in config.items() if key != "family"}
    if isinstance(options.get("base"), list):
        options["base"] = tuple(options["base"])
    if config["family"] not in FAMILIES:
        raise unknown_name("family", config["family"], FAMILIES)
    return FAMILIES[config["family"]](**options)
