"""A start of Julia for trial, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyturingvi.bridge.compiling import end_process
from pyturingvi.bridge.environment import VARIABLES, JuliaEnvironment, manifest_versions, optional_packages
from pyturingvi.errors import EngineError, PyTuringVIError

_TICK = 10.0


@dataclass(frozen=True)
class Trial:
    """What a trial start showed.

    Attributes
    ----------
    julia : str
        Version.
    seconds : float
        From an idle Python to the bundled package at hand.
    failed : dict
        Optional package -> why it did not load.
    """

    julia: str
    seconds: float
    failed: dict[str, str] = field(default_factory=dict)


def try_start(
    environment: JuliaEnvironment,
    timeout: float = float("inf"),
    thorough: bool = False,
    tick: Callable[[float], object] = lambda seconds: None,
) -> Trial:
    """Start Julia with this environment in a process of its own.

    Parameters
    ----------
    timeout : float
        Seconds.
    thorough : bool
        Make a small fit and load the optional packages too, which compiles them; Julia's own words are shown.
    tick : callable
        Called every ten seconds with the seconds gone.

    Raises
    ------
    EngineError
        If Julia does not start, or not in time.
    """
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = dict(zip(VARIABLES, (environment.executable, environment.project), strict=True))
    code = f"from pyturingvi.setup.trial import _report; _report({thorough})"
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=None if thorough else subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            while True:
                try:
                    out, words = process.communicate(timeout=min(_TICK, timeout))
                    break
                except subprocess.TimeoutExpired:
                    gone = time.perf_counter() - began
                    if gone >= timeout:
                        raise EngineError(f"Julia did not start within {timeout:.0f} s") from None
                    tick(gone)
        finally:
            end_process(process)
    try:
        answer = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        last = [": " + line[:300] for line in (words or "").splitlines() if line.strip()][-1:]
        raise EngineError(f"Python ended with code {process.returncode} while starting Julia{''.join(last)}") from None
    if "error" in answer:
        raise EngineError(answer["error"])
    return Trial(**answer)


def _report(thorough: bool) -> None:
    """Start Julia in this process; the last line on standard output says how it went, as JSON."""
    from pyturingvi.bridge.runtime import start_julia

    began = time.perf_counter()
    try:
        runtime = start_julia()
        answer: dict[str, Any] = {"julia": runtime.version, "seconds": time.perf_counter() - began}
        if thorough:
            _make_a_fit()
            answer["failed"] = _load_optional(runtime)
    except PyTuringVIError as error:
        answer = {"error": str(error)}
    print("\n" + json.dumps(answer), flush=True)


def _make_a_fit() -> None:
    from pyturingvi.fitting import fit
    from pyturingvi.models import IsotropicGaussian

    done = fit(IsotropicGaussian(2), n_iterations=2, elbo_samples=8, engine="julia", progress=False)
    if done.status != "completed":
        raise EngineError(f"Julia starts, but a first small fit {done.status}: {done.message}")


def _load_optional(runtime: Any) -> dict[str, str]:
    environment = runtime.environment
    have = manifest_versions(environment.project, environment.probe().numbers)
    failed = {}
    for name, uuid, _ in optional_packages():
        if uuid in have:
            try:
                runtime.load(name)
            except PyTuringVIError as error:
                failed[name] = str(error)
    return failed
