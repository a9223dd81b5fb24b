"""What an engine is, what a fit is specified by, and which engine runs it."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import EngineError, InputError, unknown_name
from pyturingvi.families import Family, family_from_config
from pyturingvi.models.base import Model
from pyturingvi.optimize.rules import Rule, rule_from_config

if TYPE_CHECKING:
    from pyturingvi.monitor import RunMonitor


@dataclass(frozen=True)
class FitSpec:
    """All that determines a fit's numbers, JSON-serializable; large arrays appear as digests."""

    model: str
    model_digest: str
    family: dict[str, Any]
    optimizer: dict[str, Any]
    n_iterations: int
    n_samples: int
    elbo_every: int
    elbo_samples: int
    init: dict[str, Any]
    seed: int
    engine: str
    device: str
    dtype: str
    noise: str | None
    averaging: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Plain dictionary."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @property
    def family_object(self) -> Family:
        """The family that `family` describes."""
        return family_from_config(self.family)

    @property
    def rule(self) -> Rule:
        """The update rule that `optimizer` describes."""
        return rule_from_config(self.optimizer)


@dataclass
class Outcome:
    """What an engine hands back: flat parameters, updates made, how it ended and why."""

    params: np.ndarray
    n_updates: int
    status: str
    message: str


class Engine(ABC):
    """Runs the inner loop of a fit.

    Attributes
    ----------
    supports : frozenset of str
        What this engine can do, in the words of `FEATURES`.
    """

    name: ClassVar[str]
    supports: ClassVar[frozenset[str]]

    @abstractmethod
    def run(
        self, model: Model, spec: FitSpec, initial: np.ndarray, noise: np.ndarray | None, monitor: RunMonitor
    ) -> Outcome:
        """Run the fit from the flat parameters `initial`, reporting to `monitor`."""


# What one engine can do and another cannot, in one place, and the words for it in an error.
SUPPORTS: dict[str, frozenset[str]] = {
    "numpy": frozenset({"bundled", "log-density"}),
    "julia": frozenset({"bundled"}),
}
FEATURES = {"bundled": "the bundled models", "log-density": "tv.models.LogDensity, a Python function"}


def required_feature(model: Model) -> str:
    """The feature of `FEATURES` that a model needs."""
    return "log-density" if model.name == "log_density" else "bundled"


def select_engine(engine: str, model: Model, n_threads: int | None = None) -> Engine:
    """The engine for `engine=`: "auto", "numpy" or "julia".

    Raises
    ------
    EngineError
        If the named engine is not there or cannot run this model; the message names the engine that can.
    """
    if not isinstance(engine, str) or engine not in ("auto", "numpy", "julia"):
        raise unknown_name("engine", engine, ["auto", "numpy", "julia"])
    feature = required_feature(model)
    if engine != "auto" and feature not in SUPPORTS[engine]:
        able = next(name for name, features in SUPPORTS.items() if feature in features)
        raise EngineError(f"engine={engine!r} cannot run {FEATURES[feature]}; use engine={able!r}.")
    if engine == "julia":
        raise EngineError(
            "engine='julia': no Julia environment is set up, and this version has no Julia engine yet; "
            "use engine='numpy'."
        )
    from pyturingvi.engines.numpy_engine import NumpyEngine

    return NumpyEngine(n_threads)


def digest(*arrays: Any) -> str:
    """Short SHA-256 of arrays' shapes and bytes, and of plain values."""
    sha = hashlib.sha256()
    for array in arrays:
        if isinstance(array, np.ndarray):
            sha.update(f"{array.dtype.str}{array.shape}".encode())
            sha.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        else:
            sha.update(json.dumps(array, sort_keys=True, default=str).encode())
    return sha.hexdigest()[:16]


def model_digest(model: Model) -> str:
    """Digest of a model's kind, data and whatever else tells it from its likes."""
    try:
        state = model.get_state()
    except InputError:
        state = {}
    layout = model.layout
    items = [model.name, layout.n_global, layout.n_local, layout.local_dim, *model.fingerprint()]
    for key in sorted(state):
        items += [key, state[key]]
    return digest(*items)
