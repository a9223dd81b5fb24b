"""What an engine is, what a fit is specified by, and which engine runs it."""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import EngineError, InputError, unknown_name
from pyturingvi.families import Family, family_from_config
from pyturingvi.models.base import Model
from pyturingvi.optimize.rules import Rule, rule_from_config

if TYPE_CHECKING:
    from pyturingvi.optimize.loop import StopWithin
    from pyturingvi.optimize.monitor import RunMonitor


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
    """What an engine hands back: flat parameters, updates made, how it ended and why, and whether at `StopWithin`."""

    params: np.ndarray
    n_updates: int
    status: str
    message: str
    arrived: bool = False


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
    def check_device(self, device: str) -> None:
        """Raise an InputError or EngineError unless this engine can run on `device` here and now."""

    def device_memory(self, device: str) -> int | None:
        """Free bytes on `device` if the engine has its own way to ask, else None."""
        return None

    @abstractmethod
    def run(
        self,
        model: Model,
        spec: FitSpec,
        initial: np.ndarray,
        noise: np.ndarray | None,
        monitor: RunMonitor,
        stop_within: StopWithin | None = None,
    ) -> Outcome:
        """Run the fit from the flat parameters `initial`, reporting to `monitor`."""


# What one engine can do and another cannot, in one place, and the words for it in an error.
SUPPORTS: dict[str, frozenset[str]] = {
    "numpy": frozenset({"bundled", "log-density", "cuda"}),
    "julia": frozenset({"bundled", "turing", "cuda"}),
}
FEATURES = {
    "bundled": "the bundled models",
    "log-density": "tv.models.LogDensity, a Python function",
    "turing": "tv.models.Turing, a Turing model in Julia source",
    "cuda": "device='cuda'",
}


def required_features(model: Model, device: str = "cpu") -> list[str]:
    """The features of `FEATURES` that a fit needs."""
    own = {"log_density": "log-density", "turing": "turing"}.get(model.name, "bundled")
    return [own, "cuda"] if device == "cuda" else [own]


def check_engine_name(engine: Any) -> None:
    """Raise an InputError unless it is a value that `engine=` can have."""
    if not isinstance(engine, str) or engine not in ("auto", "numpy", "julia"):
        raise unknown_name("engine", engine, ["auto", "numpy", "julia"])


def select_engine(engine: str, model: Model, n_threads: int | None = None, device: str = "cpu") -> Engine:
    """The engine for `engine=`: "auto", "numpy" or "julia".

    "auto" is Julia where a usable environment is registered and Julia can do what is asked, else the embedded engine;
    on a GPU it is the embedded engine. Settings that are damaged are told once, by a RuntimeWarning.

    Raises
    ------
    EngineError
        If the named engine is not there or cannot do what is asked; the message names the engine that can.
    """
    check_engine_name(engine)
    needed = required_features(model, device)
    able = [name for name, features in SUPPORTS.items() if features.issuperset(needed)]
    if needed == ["turing", "cuda"]:
        able = []  # Turing evaluates a model statement by statement, on the CPU
    if not able:
        raise EngineError(f"No engine runs {' with '.join(FEATURES[feature] for feature in needed)}; use device='cpu'.")
    if engine != "auto" and engine not in able:
        lacking = next(feature for feature in needed if feature not in SUPPORTS[engine])
        raise EngineError(f"engine={engine!r} cannot run {FEATURES[lacking]}; use engine={able[0]!r}.")
    if engine == "auto" and device == "cuda" and "numpy" in able:
        engine = "numpy"
    if engine == "julia" or (engine == "auto" and "julia" in able and ("numpy" not in able or _julia_is_ready())):
        from pyturingvi.engines.julia_engine import JuliaEngine

        try:
            return JuliaEngine()
        except EngineError as error:
            if engine == "julia" or "numpy" not in able:
                raise EngineError(f"engine={engine!r}: {error}") from None
            warnings.warn(
                f"Julia is set up but does not start, so the numpy engine is used: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
    from pyturingvi.engines.numpy_engine import NumpyEngine

    return NumpyEngine(n_threads)


_told: set[str] = set()  # what a process has been warned of: once is enough


def _julia_is_ready() -> bool:
    """Whether an environment is registered that nothing seems to speak against, and this thread may use it."""
    if threading.current_thread() is not threading.main_thread():
        return False
    from pyturingvi.bridge.environment import examine_environment, find_environment, variables_are_set
    from pyturingvi.bridge.runtime import running_environment

    try:
        environment = find_environment()
    except EngineError as error:
        if not variables_are_set() and str(error) not in _told:  # half set variables are the user's own doing
            _told.add(str(error))
            warnings.warn(f"{error}; until then the numpy engine is used.", RuntimeWarning, stacklevel=4)
        return False
    # one that runs was examined when it started: a fit must not read the manifest again
    return environment is not None and (environment == running_environment() or not examine_environment(environment))


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
        if not key.endswith("_dtype"):  # of labels: they came to the state later, and digests stay as they were
            items += [key, state[key]]
    return digest(*items)
