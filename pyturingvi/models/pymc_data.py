"""Draws of a PyMC model's variables given some of its others, by PyTensor: data anew, the prior, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.extras import require


def pymc_module(name: str) -> Any:
    """A module that PyMC brings, or an EngineError that names the extra."""
    return require(name, "pymc", "tv.models.PyMC")


class Drawer:
    """Draws some variables of a model, each time given the values of others.

    Parameters
    ----------
    model : pymc.Model
    given : sequence of str
        Random variables whose values are known.
    wanted : sequence of str
        Random and deterministic variables; what is neither given nor wanted is drawn as it is needed.
    """

    def __init__(self, model: Any, given: Sequence[str], wanted: Sequence[str]) -> None:
        self.given, self.wanted = tuple(given), tuple(wanted)
        # to compile it to machine code takes longer than all draws: PyTensor calls NumPy one operation at a time
        self._function = pymc_module("pymc.pytensorf").compile(
            [model[name] for name in given],
            [model[name] for name in wanted],
            mode="FAST_COMPILE",
            on_unused_input="ignore",
        )

    def draw(self, values: Mapping[str, np.ndarray], n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Arrays (n, ...) of what is wanted; values: (n, ...) of what is given.

        Raises
        ------
        InputError
            If one of the variables cannot be drawn, or shapes do not go together.
        """
        kind = pymc_module("pytensor.tensor.random.type").RandomGeneratorType
        own = [one for one in self._function.get_shared() if isinstance(one.type, kind)]
        pymc_module("pymc.pytensorf").reseed_rngs(own, int(rng.integers(1 << 32)))
        try:
            rows = [self._function(*(values[name][k] for name in self.given)) for k in range(n)]
        except Exception as error:  # what PyTensor raises is of many kinds
            raise InputError(
                f"PyMC cannot draw {', '.join(map(repr, self.wanted))}: {type(error).__name__}: {first_line(error)}"
            ) from error
        return {name: np.stack([row[k] for row in rows]) for k, name in enumerate(self.wanted)}


def unfrozen(model: Any) -> Any:
    """A copy that shares no data with the model; None where no data of it can be set."""
    shared = pymc_module("pytensor.compile").SharedVariable
    if not any(isinstance(one, shared) for one in model.named_vars.values()):
        return None
    return _without_initial_values(model, pymc_module("pymc.model.fgraph").clone_model)


def frozen(model: Any) -> Any:
    """A copy whose shapes and data are constants."""
    return _without_initial_values(model, pymc_module("pymc.model.transform.optimization").freeze_dims_and_data)


def _without_initial_values(model: Any, copy: Any) -> Any:
    """A copy without initial values, with which PyMC makes none."""
    starts = model.rvs_to_initial_values
    kept = dict(starts)
    try:
        starts.update(dict.fromkeys(starts))
        return copy(model)
    finally:
        starts.update(kept)


def first_line(error: Exception) -> str:
    """What an error says first: PyTensor's go on for a page."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
