"""Variational families: mean-field, structured, Markov and full-rank, and what one of your own is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.families.base import BoundFamily, Family
from pyturingvi.families.base_distributions import BaseDistribution
from pyturingvi.families.full_rank import FullRank
from pyturingvi.families.location_scale import BoundLocationScale, LocationScale
from pyturingvi.families.markov import Markov
from pyturingvi.families.mean_field import MeanField
from pyturingvi.families.structured import Structured
from pyturingvi.support.registry import CLASS_KEY

__all__ = [
    "FAMILIES",
    "BaseDistribution",
    "BoundFamily",
    "BoundLocationScale",
    "Family",
    "FamilyName",
    "FullRank",
    "LocationScale",
    "Markov",
    "MeanField",
    "Structured",
    "family_from_config",
    "get_family",
    "get_location_scale",
]

FamilyName = Literal["mean-field", "structured", "markov", "full-rank"]
FAMILIES = Family.registry
for _class in (MeanField, Structured, Markov, FullRank):
    FAMILIES.add(_class)


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


def get_location_scale(family: str | Family) -> LocationScale:
    """Read a `family=` argument of what knows location-scale families alone, such as the paper's theory."""
    found = get_family(family)
    if not isinstance(found, LocationScale) or not found.scale_is_parameter:
        raise InputError(
            f"family: {found.label} is not a location-scale family in the entries of its scale matrix, which this "
            "needs."
        )
    return found


def family_from_config(config: Mapping[str, Any]) -> Family:
    """Rebuild a family from what `Family.config` gave."""
    found = FAMILIES.find(config["family"], config)
    options = {key: value for key, value in config.items() if key not in ("family", CLASS_KEY)}
    try:
        return found.from_config(options)
    except TypeError as error:  # what another version calls its settings
        settings = ", ".join(map(repr, options))
        raise InputError(
            f"The {found.name} family of this version cannot be made from the settings {settings}: {error}."
        ) from None
