"""Which Julia and which project the Julia engine runs with: found, checked and remembered, without starting Julia.

An environment comes from juliacall's own variables, else from what `pyturingvi setup` remembered: the one that juliapkg
installed, or the user's own. It supplies the dependencies only: the Julia code that runs is always the one bundled with
the imported Python package.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pyturingvi.bridge.log import one_line
from pyturingvi.bridge.packages import (
    bundled,
    installed_by_setup,
    julia_compat,
    manifest_entries,
    manifest_versions,
    numbers,
    optional_packages,
    required_packages,
    satisfies,
    version_to_add,
)
from pyturingvi.bridge.remembered import damaged_settings, read_settings, write_settings
from pyturingvi.errors import EngineError

VARIABLES = ("PYTHON_JULIACALL_EXE", "PYTHON_JULIACALL_PROJECT")
DEPOTS = "JULIA_DEPOT_PATH"
_PROBE = 'import Libdl; print(join((VERSION, abspath(Libdl.dlpath("libjulia")), Sys.BINDIR), "\\0"))'
_FIND_FILES = """
for package in ARGS
    name, uuid = split(package, '=')
    isnothing(Base.locate_package(Base.PkgId(Base.UUID(uuid), String(name)))) && print(name, '\\0')
end
"""


@dataclass(frozen=True)
class Probe:
    """What a Julia executable says about itself."""

    version: str
    library: str
    bindir: str
    modified: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers."""
        return numbers(self.version)


@dataclass(frozen=True)
class JuliaEnvironment:
    """A Julia executable with a project that holds the dependencies.

    Attributes
    ----------
    origin : {"variables", "registered", "juliapkg"}
        Who named it.
    depots : str, optional
        JULIA_DEPOT_PATH at the time of `pyturingvi setup`, "" if it was not set. The packages are there, so Julia is
        started with it again, unless the user sets the variable. (JULIA_LOAD_PATH need not be kept: what Julia loads
        without it has the project first, and the project must have every package.)
    """

    executable: str
    project: str
    origin: str
    remembered: Probe | None = None
    depots: str | None = None

    def probe(self) -> Probe:
        """Ask the executable, unless what it said before still holds; EngineError if it is no Julia that runs."""
        try:
            modified = Path(self.executable).stat().st_mtime_ns
        except OSError:
            modified = -1
        if self.remembered is not None and self.remembered.modified == modified:
            return self.remembered
        parts = _ask(self.executable, "-e", _PROBE)
        if len(parts) != 3:
            raise EngineError(f"{self.executable!r} does not answer like Julia: {parts[0].strip()[:200]}")
        return Probe(parts[0], parts[1], parts[2], modified)

    def variables(self) -> dict[str, str]:
        """What Julia must have among its variables, beside those of this process."""
        return {DEPOTS: self.depots} if self.depots and DEPOTS not in os.environ else {}

    def other_depots(self) -> str:
        """In words, how the user's JULIA_DEPOT_PATH differs from that at the time of setup; else empty."""
        if self.depots is None or DEPOTS not in os.environ or depots_in_force() == self.depots:
            return ""
        return f"{DEPOTS} is {os.environ[DEPOTS]!r} here and was {self.depots or 'not set'!r} at `pyturingvi setup`"


class Problem(EngineError):
    """Why an environment cannot be used, and the shell command that mends it."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(what, command)
        self.what, self.command = what, command

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
    if settings.keys() <= {"failure"}:
        return None
    try:
        probe = Probe(*(settings["probe"][field.name] for field in fields(Probe)))
        origin, executable, project = (settings[name] for name in ("environment", "executable", "project"))
        depots = settings.get("depots")  # not in files of earlier versions
    except (KeyError, TypeError):
        raise damaged_settings("it lacks entries") from None
    texts = (origin, executable, project, depots or "", probe.version, probe.library, probe.bindir)
    if type(probe.modified) is not int or not all(isinstance(text, str) for text in texts):
        raise damaged_settings("it has entries of a wrong type")
    return JuliaEnvironment(executable, project, origin, probe, depots)


def variables_are_set() -> bool:
    """Whether juliacall's variables name an environment, or half of one."""
    return any(_given(name) for name in VARIABLES)


def _given(variable: str) -> str | None:
    """What the user gave juliacall: its -X option comes before the environment variable, as in juliacall itself."""
    option = sys._xoptions.get(variable.removeprefix("PYTHON_").replace("_", "-").lower())
    return option if isinstance(option, str) else os.environ.get(variable)


def depots_in_force() -> str:
    """JULIA_DEPOT_PATH with whole paths, so that it means the same in another folder; "" if it is not set."""
    parts = os.environ.get(DEPOTS, "").split(os.pathsep)
    return os.pathsep.join(os.path.abspath(os.path.expanduser(part)) if part else "" for part in parts)


def remember(environment: JuliaEnvironment) -> Path:
    """Make this the environment that `find_environment` finds without the variables; returns the settings file."""
    return write_settings(
        {
            "environment": environment.origin,
            "executable": environment.executable,
            "project": environment.project,
            "depots": depots_in_force(),
            "probe": asdict(environment.probe()),
        }
    )


# ---- asked ------------------------------------------------------------------------------------------------
def _ask(executable: str, *arguments: str, variables: Mapping[str, str] | None = None) -> list[str]:
    """What Julia prints when run with these arguments, split at its NULs; EngineError if it does not run, or fails."""
    command = [executable, "--startup-file=no", "-O0", "--compile=min", *arguments]
    options = {"encoding": "utf-8", "errors": "replace", "timeout": 120, "env": {**os.environ, **(variables or {})}}
    try:
        done = subprocess.run(command, capture_output=True, **options)  # type: ignore[call-overload]
    except FileNotFoundError:
        raise EngineError(f"there is no Julia executable at {executable!r}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{executable!r} does not run: {error}") from None
    if done.returncode:
        said = one_line(done.stderr) or one_line(done.stdout) or "no output"
        raise EngineError(f"{executable!r} does not answer like Julia: {said[:200]}")
    return str(done.stdout).split("\0")


# ---- checked ----------------------------------------------------------------------------------------------
def examine_environment(environment: JuliaEnvironment) -> list[Problem]:
    """What keeps the Julia engine from running with this environment, as far as files of Julia and the project tell."""
    return examine_julia(environment) or examine_packages(environment)


def examine_julia(environment: JuliaEnvironment) -> list[Problem]:
    """What is wrong with the executable: not there, no Julia, or a version that cannot be used."""
    setup = (
        f"unset {' '.join(VARIABLES)}; pyturingvi setup" if environment.origin == "variables" else "pyturingvi setup"
    )
    try:
        probe = environment.probe()
    except EngineError as error:
        return [Problem(str(error), setup)]
    if not satisfies(probe.version, julia_compat()):
        ranges = [one.strip() for one in julia_compat().split(",")]
        needed = (
            f"{one[1:]} or a later {one[1:].rpartition('.')[0]}" if one[0] == "~" else f"{one} or later"
            for one in ranges
        )
        what = f"Julia {probe.version} at {environment.executable!r} cannot be used: {', or '.join(needed)} is needed"
        return [Problem(what, setup)]
    return []


def examine_packages(environment: JuliaEnvironment) -> list[Problem]:
    """What is wrong with the packages that the project names, given a Julia that can be used."""
    probe = environment.probe()
    needed = required_packages()
    try:
        have = manifest_versions(environment.project, probe.numbers)
    except EngineError as error:
        return [Problem(str(error), add_command(environment, [package.name for package in needed]))]
    lacking = [package for package in needed if not satisfies(have.get(package.uuid), package.compat)]
    problems = []
    if lacking:
        words = (
            f"{name} {compat.lstrip('=')}".rstrip() + (f" in place of {have[uuid]}" if uuid in have else "")
            for name, uuid, compat in lacking
        )
        what = f"the Julia project {environment.project!r} lacks {', '.join(words)}"
        problems.append(Problem(what, add_command(environment, [package.name for package in lacking])))
    if bundled()["uuid"] in have:
        what = f"the Julia project {environment.project!r} holds a PyTuringVI of its own, in place of the bundled one"
        problems.append(Problem(what, pkg_command(environment, 'Pkg.rm("PyTuringVI")')))
    return problems


def examine_files(environment: JuliaEnvironment) -> list[Problem]:
    """Which packages of a project that passes the checks above have no files in the depots; Julia is asked."""
    julia, project = environment.executable, environment.project
    try:
        entries = manifest_entries(project, environment.probe().numbers)
        asked = (f"{name}={entry.get('uuid')}" for name, entry in entries)
        answer = _ask(julia, f"--project={project}", "-e", _FIND_FILES, *asked, variables=environment.variables())
    except EngineError as error:
        return [Problem(str(error), install_command(environment))]
    *gone, _ = answer
    if not gone:
        return []
    names = ", ".join(gone[:5]) + (f" and {len(gone) - 5} more" if len(gone) > 5 else "")
    place = environment.other_depots() or f"{DEPOTS} is {os.environ.get(DEPOTS, environment.depots) or 'not set'!r}"
    what = f"the Julia project {project!r} names packages whose files are not there: {names} ({place})"
    return [
        Problem(
            what, install_command(environment, [name for name, entry in entries if "path" in entry and name in gone])
        )
    ]


# ---- mended -----------------------------------------------------------------------------------------------
def add_command(environment: JuliaEnvironment, names: Iterable[str]) -> str:
    """The shell command that installs packages."""
    names = list(names)
    if environment.origin == "juliapkg" and {package.name for package in installed_by_setup()}.issuperset(names):
        return setup_command(environment)
    specs = []
    for package in (*required_packages(), *optional_packages()):
        if package.name in names:
            within = version_to_add(package.compat)
            specs.append(f'(name="{package.name}", version="{within}")' if within else f'(name="{package.name}",)')
    return pkg_command(environment, f"Pkg.add([{', '.join(specs)}])")


def install_command(environment: JuliaEnvironment, in_folders: Sequence[str] = ()) -> str:
    """The shell command that puts the files of a project's packages there, as the registry has them.

    `in_folders` are packages that the project looks for in a folder of their own, which is gone.
    """
    if environment.other_depots():
        return f"unset {DEPOTS}"
    if environment.origin == "juliapkg":
        return setup_command(environment)
    free = f"Pkg.free({json.dumps(in_folders)}); " if in_folders else ""
    return pkg_command(environment, f"{free}Pkg.instantiate()")


def setup_command(environment: JuliaEnvironment) -> str:
    """The shell command that sets this environment up again."""
    words = ["pyturingvi", "setup"]
    if environment.origin != "juliapkg":
        words += ["--julia", environment.executable, "--project", environment.project]
    return _shell(environment, words)


def pkg_command(environment: JuliaEnvironment, call: str) -> str:
    """The shell command that calls Julia's package manager on a project."""
    return _shell(environment, [environment.executable, f"--project={environment.project}", "-e", f"using Pkg; {call}"])


def _shell(environment: JuliaEnvironment, words: list[str]) -> str:
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.variables().items()]
    return " ".join((*variables, *map(shlex.quote, words)))
