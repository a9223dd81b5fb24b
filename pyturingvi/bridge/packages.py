"""The Julia packages: those that the bundled Project.toml names, with UUIDs and bounds, and those of a project.

Only PythonCall is not in it: it comes with juliacall, whose version it must have.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from pyturingvi.errors import EngineError

_STANDARD = ("LinearAlgebra", "Random", "SHA")  # come with Julia
_LEFT_TO_THE_USER = ("CUDA", "GPUArrays")  # large, and for a GPU only: `pyturingvi setup` does not install them


class Package(NamedTuple):
    """A package, and the versions of it that will do; none are named where any will."""

    name: str
    uuid: str
    compat: str


def source_directory() -> Path:
    """The bundled Julia package: inside the Python package of a wheel, beside it in a clone."""
    here = Path(__file__).parents[1]
    return next(path for path in (here / "julia", here.parent / "julia") if (path / "Project.toml").exists())


@cache
def bundled() -> dict[str, Any]:
    """The bundled package's Project.toml."""
    return tomllib.loads((source_directory() / "Project.toml").read_text())


def _packages(table: str) -> list[Package]:
    compat = bundled()["compat"]
    return [Package(name, uuid, compat.get(name, "")) for name, uuid in bundled()[table].items()]


def required_packages() -> list[Package]:
    """Every package that must be installed."""
    needed = [package for package in _packages("deps") if package.name not in _STANDARD]
    return [*needed, Package("PythonCall", "6099a3de-0909-46bc-b1f4-468b9a2dfc0d", f"={version('juliacall')}")]


def optional_packages() -> list[Package]:
    """Packages that only some features need."""
    return _packages("weakdeps")


def installed_by_setup() -> list[Package]:
    """What `pyturingvi setup` installs."""
    return required_packages() + [one for one in optional_packages() if one.name not in _LEFT_TO_THE_USER]


def extensions_for(package: str) -> list[str]:
    """Names of the bundled package's extensions that load with an optional package."""
    return [name for name, triggers in bundled()["extensions"].items() if package in (triggers, *triggers)]


# ---- versions -----------------------------------------------------------------------------------------------
def numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version, three at most."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _fixed(one: str) -> int:
    """How many of the first numbers of a range must be equal, as Julia's Pkg reads "1.2", "~1.2" and "=1.2.3"."""
    least = numbers(one)
    first = next((k for k, number in enumerate(least) if number), len(least) - 1)
    return 3 if "=" in one else max(first + 1, min(2, len(least))) if "~" in one else first + 1


def satisfies(found: str | None, compat: str) -> bool:
    """Whether a version lies in one of the ranges of `compat`, such as "0.7" or "~1.10.8, 1.11.6"; None never does.

    An empty version, as of a package under development, and an empty `compat` satisfy.
    """
    if not compat or not found:
        return found is not None
    have = numbers(found)
    return any(have[: _fixed(one)] == numbers(one)[: _fixed(one)] and have >= numbers(one) for one in compat.split(","))


def version_to_add(compat: str) -> str:
    """The newest range of `compat`, as Pkg.add takes it: "0.7" is any 0.7.x, "2" any 2.x; empty if any will do."""
    last = compat.split(",")[-1]
    return ".".join(map(str, numbers(last)[: _fixed(last)])) if compat else ""


# ---- what a project has ---------------------------------------------------------------------------------------
def read_manifest(project: str, julia: str) -> dict[str, dict[str, Any]]:
    """UUID -> name, version ("" if it has none) and so on of every package in the manifest that this Julia would read.

    Raises
    ------
    EngineError
        If there is none.
    """
    folder = Path(project)
    if not folder.is_dir():
        raise EngineError(f"there is no Julia project folder {project!r}")
    ends = ("-v{}.{}".format(*numbers(julia)), "")
    names = [f"{stem}{end}.toml" for end in ends for stem in ("JuliaManifest", "Manifest")]
    path = next((folder / name for name in names if (folder / name).exists()), None)
    if path is None:
        raise EngineError(f"the Julia project {project!r} has no Manifest.toml: its packages are not installed")
    try:
        table = tomllib.loads(path.read_text()).get("deps", {})
    except (OSError, ValueError) as error:
        raise EngineError(f"{str(path)!r} cannot be read: {error}") from None
    return {one["uuid"]: {"name": name, "version": "", **one} for name, entries in table.items() for one in entries}
