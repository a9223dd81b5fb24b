"""Which engine runs a fit: what was asked for, what each object says of itself, and what is found on this machine."""

from __future__ import annotations

import threading
import warnings

from pyturingvi.engines.base import Engine
from pyturingvi.errors import EngineError
from pyturingvi.models.base import Model
from pyturingvi.settings import Settings
from pyturingvi.support.registry import class_path, defines, is_bundled


def obstacle(engine: str, model: Model, settings: Settings) -> str | None:
    """What of a fit the engine "numpy" or "julia" cannot run, in words; None where it runs all of it."""
    if engine not in model.engines:
        return f"{model.description} with {model.numpy_only}" if model.numpy_only else model.description
    if engine == "julia":
        if settings.device != "cpu" and settings.device in model.devices:
            if settings.optimizer.ends_by_itself:
                return "natural gradients on a GPU"
            if settings.device not in settings.family.julia_devices:
                return f"the {settings.family.label} family on a GPU"
        # a parent's `to_julia` would run the parent in place of what was passed
        for part in settings.parts:
            if not defines(part, "to_julia"):
                own = not is_bundled(part)
                return f"your own class {class_path(type(part))}" if own else f"tv.{type(part).__name__}"
        schedule = None if settings.optimizer.ends_by_itself else settings.optimizer.schedule
        for part in (settings.averaging, schedule):
            if part is not None and not is_bundled(part):
                return f"your own class {class_path(type(part))}"
    return None


def select_engine(model: Model, settings: Settings, n_threads: int | None = None) -> Engine:
    """The engine for `settings.engine`: "auto", "numpy" or "julia".

    "auto" is Julia where a usable environment is registered and Julia can do what is asked, else the NumPy engine; on
    a GPU it is the NumPy engine. Settings of Julia that are damaged are told once, by a RuntimeWarning.

    Raises
    ------
    EngineError
        If the named engine is not there or cannot do what is asked; the message names the engine that can.
    """
    wanted, device = settings.engine, settings.device
    obstacles = {name: obstacle(name, model, settings) for name in ("numpy", "julia")}
    able = [name for name, what in obstacles.items() if what is None]
    if not able:
        raise EngineError(f"No engine runs {' with '.join(dict.fromkeys(filter(None, obstacles.values())))}.")
    if device not in model.devices:
        raise EngineError(f"No engine runs {model.description} with device={device!r}; use device='cpu'.")
    if wanted != "auto" and wanted not in able:
        raise EngineError(f"engine={wanted!r} cannot run {obstacles[wanted]}; use engine={able[0]!r}.")
    if wanted == "auto" and device == "cuda" and "numpy" in able:
        wanted = "numpy"
    if wanted == "julia" or (wanted == "auto" and "julia" in able and ("numpy" not in able or _julia_is_ready())):
        from pyturingvi.engines.julia_engine import JuliaEngine

        try:
            return JuliaEngine()
        except EngineError as error:
            if wanted == "julia" or "numpy" not in able:
                raise EngineError(f"engine={wanted!r}: {error}") from None
            warnings.warn(
                f"Julia is set up but does not start, so the numpy engine is used: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
    from pyturingvi.engines.numpy_engine import NumpyEngine

    return NumpyEngine(n_threads)


_warned_of: set[str] = set()  # what a process has been warned of: once is enough


def _julia_is_ready() -> bool:
    """Whether an environment is registered that nothing seems to speak against, and this thread may use it."""
    if threading.current_thread() is not threading.main_thread():
        return False
    from pyturingvi.bridge.environment import find_environment, variables_are_set
    from pyturingvi.bridge.problems import examine_environment
    from pyturingvi.bridge.runtime import running_environment

    try:
        environment = find_environment()
    except EngineError as error:
        if not variables_are_set() and str(error) not in _warned_of:  # half set variables are the user's own doing
            _warned_of.add(str(error))
            warnings.warn(f"{error}; until then the numpy engine is used.", RuntimeWarning, stacklevel=4)
        return False
    # one that runs was examined when it started: a fit must not read the manifest again
    return environment is not None and (environment == running_environment() or not examine_environment(environment))
