"""A start of Julia for trial, in a process of its own."""

from __future__ import annotations

import time
from typing import NamedTuple

from pyturingvi.bridge.environment import VARIABLES, JuliaEnvironment
from pyturingvi.bridge.packages import optional_packages
from pyturingvi.errors import EngineError
from pyturingvi.setup.child import Say, call_in_child, silent


class Trial(NamedTuple):
    """What a trial start showed."""

    julia: str  # version
    seconds: float  # from an idle Python to the bundled package at hand
    failed: dict[str, str]  # optional package -> why it did not load


def try_start(
    environment: JuliaEnvironment, timeout: float = float("inf"), thorough: bool = False, say: Say = silent
) -> Trial:
    """Start Julia with this environment in a process of its own; EngineError if it does not start within `timeout` s.

    `thorough` makes a small fit and loads the optional packages too, which compiles them; `say` receives progress.
    """
    named = dict(zip(VARIABLES, (environment.executable, environment.project), strict=True))
    variables = {**named, **environment.variables()}
    return Trial(*call_in_child(_start, thorough, variables=variables, say=say, timeout=timeout))


def _start(thorough: bool) -> Trial:
    """Start Julia in this process."""
    from pyturingvi.bridge.runtime import start_julia

    began = time.perf_counter()
    runtime = start_julia()
    trial = Trial(runtime.version, time.perf_counter() - began, {})
    if thorough:
        _make_a_fit()
        assert runtime.environment is not None
        have = runtime.environment.installed()
        for name in (name for name, uuid, _ in optional_packages() if uuid in have):
            try:
                runtime.load(name)
            except EngineError as error:
                trial.failed[name] = str(error)
    return trial


def _make_a_fit() -> None:
    from pyturingvi.fitting import fit
    from pyturingvi.models import IsotropicGaussian
    from pyturingvi.optimize.rules import Adam

    model, rule = IsotropicGaussian(2), Adam(1e-3)
    done = fit(model, optimizer=rule, n_iterations=2, elbo_samples=8, engine="julia", progress=False)
    if done.status != "completed":
        raise EngineError(f"Julia starts, but a first small fit {done.status}: {done.message}")
