"""Which Julia and which packages the Julia engine runs with: found, checked and remembered, without starting Julia.

An environment comes from juliacall's own variables, else from what `pyturingvi setup` remembered: the one that juliapkg
installed, or the user's own. It supplies the dependencies only: the Julia code that runs is always the one bundled with
the imported Python package.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pyturingvi.bridge.remembered import damaged_settings, read_settings, write_settings
from pyturingvi.errors import EngineError

OLDEST = (1, 10, 8)
BROKEN = ((1, 11, 0), (1, 11, 6))  # from the first to before the second: Turing's Libtask does not work there
VARIABLES = ("PYTHON_JULIACALL_EXE", "PYTHON_JULIACALL_PROJECT")
PYTHONCALL = ("PythonCall", "6099a3de-0909-46bc-b1f4-468b9a2dfc0d")
_PROBE = (
    'import Libdl; print(join((VERSION, abspath(Libdl.dlpath("libjulia")), Sys.BINDIR, '
    'join(readdir(Sys.STDLIB), "|")), "\\0"))'
)


def source_directory() -> Path:
    """The bundled Julia package: inside the Python package of a wheel, beside it in a clone."""
    here = Path(__file__).parents[1]
    return next(path for path in (here / "julia", here.parent / "julia") if (path / "Project.toml").exists())


@dataclass(frozen=True)
class Probe:
    """What a Julia executable says about itself."""

    version: str
    library: str
    bindir: str
    stdlib: str
    modified: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])


@dataclass(frozen=True)
class JuliaEnvironment:
    """A Julia executable with a project that holds the dependencies.

    Attributes
    ----------
    origin : {"variables", "registered", "juliapkg"}
        Who named it.
    """

    executable: str
    project: str
    origin: str
    remembered: Probe | None = None

    def probe(self) -> Probe:
        """Ask the executable, unless what it said before still holds.

        Raises
        ------
        EngineError
            If it is not there, does not run or is no Julia.
        """
        modified = _modified(self.executable)
        if self.remembered is not None and self.remembered.modified == modified:
            return self.remembered
        return probe_executable(self.executable)


@dataclass(frozen=True)
class Problem:
    """Why an environment cannot be used, and the shell command that mends it."""

    what: str
    command: str

    def __str__(self) -> str:
        return f"{self.what}. Mend it with: {self.command}"


# ---- found ------------------------------------------------------------------------------------------------
def find_environment() -> JuliaEnvironment | None:
    """The environment that the Julia engine would start with, unchecked; None if nobody named one.

    Raises
    ------
    EngineError
        If only one of juliacall's two variables is set, or the settings are damaged.
    """
    executable, project = (_given(name) for name in VARIABLES)
    if executable or project:
        if not (executable and project):
            have, lack = VARIABLES if executable else reversed(VARIABLES)
            raise EngineError(f"{have} is set but {lack} is not; set both or neither.")
        return JuliaEnvironment(executable, project, "variables")
    settings = read_settings()
    if settings is None:
        return None
    try:
        origin, executable, project = (settings[key] for key in ("environment", "executable", "project"))
        probe = Probe(**settings["probe"])
    except (KeyError, TypeError):
        raise damaged_settings("it lacks entries") from None
    return JuliaEnvironment(str(executable), str(project), str(origin), probe)


def variables_are_set() -> bool:
    """Whether juliacall's variables name an environment, or half of one."""
    return any(_given(name) for name in VARIABLES)


def _given(variable: str) -> str | None:
    """What the user gave juliacall: its -X option comes before the environment variable, as in juliacall itself."""
    option = sys._xoptions.get(variable.removeprefix("PYTHON_").replace("_", "-").lower())
    return option if isinstance(option, str) else os.environ.get(variable)


def remember(environment: JuliaEnvironment) -> Path:
    """Make this the environment that `find_environment` finds without the variables; returns the settings file.

    Raises
    ------
    OutputError
        If the settings cannot be written.
    """
    return write_settings(
        {
            "environment": environment.origin,
            "executable": environment.executable,
            "project": environment.project,
            "probe": asdict(environment.probe()),
        }
    )


def _modified(executable: str) -> int:
    try:
        return Path(executable).stat().st_mtime_ns
    except OSError:
        return -1


# ---- checked ----------------------------------------------------------------------------------------------
def probe_executable(executable: str) -> Probe:
    """Run a Julia executable to learn its version and where its library is."""
    command = [executable, "--startup-file=no", "-O0", "--compile=min", "-e", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=60)
    except FileNotFoundError:
        raise EngineError(f"there is no Julia executable at {executable!r}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{executable!r} does not run: {error}") from None
    parts = done.stdout.split("\0")
    if done.returncode or len(parts) != 4:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise EngineError(f"{executable!r} does not answer like Julia: {said[0][:200] if said else 'no output'}")
    return Probe(parts[0], parts[1], parts[2], parts[3], _modified(executable))


def examine_environment(environment: JuliaEnvironment) -> list[Problem]:
    """What keeps the Julia engine from running with this environment, as far as can be told without starting it."""
    return examine_julia(environment) or examine_packages(environment)


def examine_julia(environment: JuliaEnvironment) -> list[Problem]:
    """What is wrong with the executable: not there, no Julia, or a version that cannot be used."""
    try:
        probe = environment.probe()
    except EngineError as error:
        return [Problem(str(error), _setup_command(environment))]
    if probe.numbers < OLDEST or BROKEN[0] <= probe.numbers < BROKEN[1]:
        needed = f"{'.'.join(map(str, OLDEST))} or a later 1.10, or {'.'.join(map(str, BROKEN[1]))} or later"
        what = f"Julia {probe.version} at {environment.executable!r} cannot be used: {needed} is needed"
        return [Problem(what, _setup_command(environment))]
    return []


def examine_packages(environment: JuliaEnvironment) -> list[Problem]:
    """What is wrong with the packages in the project, given a Julia that can be used."""
    probe = environment.probe()
    needed = requirements(probe)
    try:
        have = manifest_versions(environment.project, probe.numbers)
    except EngineError as error:
        return [Problem(str(error), add_command(environment, [(name, compat) for name, _, compat in needed]))]
    lacking = [(name, uuid, compat) for name, uuid, compat in needed if not satisfies(have.get(uuid), compat)]
    problems = []
    if lacking:
        words = (
            f"{name} {compat}".rstrip() + (f" in place of {have[uuid]}" if uuid in have else "")
            for name, uuid, compat in lacking
        )
        problems.append(
            Problem(
                f"the Julia project {environment.project!r} lacks {', '.join(words)}",
                add_command(environment, [(name, compat) for name, _, compat in lacking]),
            )
        )
    if _bundled()["uuid"] in have:
        problems.append(
            Problem(
                f"the Julia project {environment.project!r} holds a PyTuringVI of its own, in place of the bundled one",
                _pkg_command(environment, 'Pkg.rm("PyTuringVI")'),
            )
        )
    return problems


def _setup_command(environment: JuliaEnvironment) -> str:
    setup = "pyturingvi setup"
    return f"unset {' '.join(VARIABLES)}; {setup}" if environment.origin == "variables" else setup


def add_command(environment: JuliaEnvironment, packages: list[tuple[str, str]]) -> str:
    """The shell command that installs packages, given as (name, [compat])."""
    brought = {PYTHONCALL[0], *juliapkg_table()["packages"]}
    if environment.origin == "juliapkg" and brought.issuperset(name for name, _ in packages):
        return "pyturingvi setup"
    specs = []
    for name, compat in packages:
        numbers = re.findall(r"\d+", compat.split(",")[-1])  # Pkg reads "0.7" as any 0.7.x and "2" as any 2.x
        fixed = next((k for k, number in enumerate(numbers) if number != "0"), len(numbers) - 1) + 1
        within = ".".join(numbers[:fixed])
        if name == PYTHONCALL[0]:
            within = juliacall_version()
        specs.append(f'(name="{name}", version="{within}")' if within else f'(name="{name}",)')
    return _pkg_command(environment, f"Pkg.add([{', '.join(specs)}])")


def _pkg_command(environment: JuliaEnvironment, call: str) -> str:
    command = [environment.executable, f"--project={environment.project}", "-e", f"using Pkg; {call}"]
    return " ".join(map(shlex.quote, command))


def juliacall_version() -> str:
    """The version of juliacall, which PythonCall must have too; empty if it is not installed."""
    try:
        return version("juliacall")
    except PackageNotFoundError:
        return ""


def manifest_versions(project: str, julia: tuple[int, ...]) -> dict[str, str]:
    """UUID -> version of every package in a project's manifest.

    Raises
    ------
    EngineError
        If there is no project, or it was never resolved.
    """
    folder = Path(project)
    if not folder.is_dir():
        raise EngineError(f"there is no Julia project folder {project!r}")
    suffix = "-v" + ".".join(map(str, julia[:2]))
    names = [f"{stem}{end}.toml" for end in (suffix, "") for stem in ("JuliaManifest", "Manifest")]
    path = next((folder / name for name in names if (folder / name).exists()), None)
    if path is None:
        raise EngineError(f"the Julia project {project!r} has no Manifest.toml: its packages are not installed")
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EngineError(f"{str(path)!r} cannot be read: {error}") from None
    found = {}
    for entries in table.get("deps", {}).values():
        for entry in entries if isinstance(entries, list) else []:
            found[str(entry.get("uuid"))] = str(entry.get("version", ""))
    return found


def requirements(probe: Probe) -> list[tuple[str, str, str]]:
    """(name, UUID, [compat]) of every package that must be installed, Julia's standard library left out."""
    table, standard = _bundled(), set(probe.stdlib.split("|"))
    compat = table["compat"]
    needed = [(name, uuid, compat.get(name, "")) for name, uuid in table["deps"].items() if name not in standard]
    return [*needed, (*PYTHONCALL, "")]


def optional_packages() -> list[tuple[str, str, str]]:
    """(name, UUID, [compat]) of the packages that only some features need."""
    table = _bundled()
    return [(name, uuid, table["compat"].get(name, "")) for name, uuid in table.get("weakdeps", {}).items()]


def extensions_for(package: str) -> list[str]:
    """Names of the bundled package's extensions that load with an optional package."""
    extensions = _bundled().get("extensions", {})
    return [name for name, triggers in extensions.items() if package in (triggers, *triggers)]


def satisfies(found: str | None, compat: str) -> bool:
    """Whether a version lies in Julia's caret ranges `compat`, such as "0.7" or "1.10, 2"; None, a missing one, never.

    An empty version, as of a package under development, and an empty `compat` satisfy.
    """
    if found is None:
        return False
    if not compat or not found:
        return True
    have = [int(part) for part in re.findall(r"\d+", found)[:3]]
    for one in compat.split(","):
        least = [int(part) for part in re.findall(r"\d+", one)[:3]]
        fixed = next((k for k, number in enumerate(least) if number), len(least) - 1) + 1
        if have[:fixed] == least[:fixed] and have >= least:
            return True
    return False


def _bundled() -> dict[str, Any]:
    return tomllib.loads((source_directory() / "Project.toml").read_text())


def juliapkg_table() -> dict[str, Any]:
    """What juliapkg installs for us: `juliapkg.json` beside this file, which it finds and reads by itself.

    Its packages and versions are those of the bundled Project.toml and the optional packages that `pyturingvi setup`
    brings; a test keeps the two files equal. juliapkg resolves again whenever the content of the file changes, so a
    release that needs other packages needs nothing else.
    """
    table: dict[str, Any] = json.loads((Path(__file__).parents[1] / "juliapkg.json").read_text())
    return table
