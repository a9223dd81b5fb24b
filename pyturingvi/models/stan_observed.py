"""Which data of a Stan program were observed, and the generated quantities that tell their likelihood and draws."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.models.stan_program import StanProgram, StanVariable


@dataclass(frozen=True)
class Observed:
    """A variable of the data block with the generated quantities that speak of it, each of its shape."""

    name: str
    values: np.ndarray
    likelihood: StanVariable | None
    replicate: StanVariable | None


def read_observed(observed: Any, program: StanProgram) -> list[Observed]:
    """What the user says of observed data, or what the usual names `y`, `log_lik` and `y_rep` say."""
    data = json.loads(program.data or "{}")
    generated = {one.name: one for one in program.generated}
    if observed is None:
        usual = tuple(name if name in generated else None for name in ("log_lik", "y_rep"))
        if "y" not in data or not any(usual):
            return []
        values = np.asarray(data["y"])
        fitting = [generated[name] if name and generated[name].shape == values.shape else None for name in usual]
        return [Observed("y", values, *fitting)] if any(fitting) else []
    if not isinstance(observed, Mapping):
        raise InputError(f"Stan: observed must be a dictionary, as {{'y': ('log_lik', 'y_rep')}}, got {observed!r}.")
    return [_one(name, quantities, data, generated) for name, quantities in observed.items()]


def _one(name: str, quantities: Any, data: Mapping[str, Any], generated: Mapping[str, StanVariable]) -> Observed:
    if name not in data:
        raise unknown_name("name of data in observed", name, data)
    if not isinstance(quantities, tuple | list) or len(quantities) != 2 or not any(quantities):
        raise InputError(
            f"Stan: observed[{name!r}] must name two generated quantities, one of which may be None, as in "
            f"('log_lik', 'y_rep'); got {quantities!r}."
        )
    values, found = np.asarray(data[name]), []
    for quantity in quantities:
        if quantity is not None and quantity not in generated:
            raise unknown_name("generated quantity in observed", quantity, generated)
        one = None if quantity is None else generated[quantity]
        if one is not None and one.shape != values.shape:
            raise InputError(f"Stan: {quantity!r} has the shape {one.shape}, and {name!r} in the data {values.shape}.")
        found.append(one)
    return Observed(name, values, *found)
