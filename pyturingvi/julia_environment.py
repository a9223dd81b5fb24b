"""Which Julia and which packages the Julia engine runs with: found, checked and remembered, without starting Julia.

An environment comes from juliacall's own variables, from `pyturingvi setup --julia EXE --project DIR`, or from
juliapkg after `pyturingvi setup`; in this order. It supplies the dependencies only: the Julia code that runs is always
the one bundled with the imported Python package.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from pyturingvi.errors import EngineError, InputError, OutputError

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
    here = Path(__file__).parent
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
    """Why an environment cannot be used, and what mends it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}."


# ---- found ------------------------------------------------------------------------------------------------
def find_environment() -> JuliaEnvironment | None:
    """The environment that the Julia engine would start with, unchecked; None if nobody named one.

    Raises
    ------
    EngineError
        If only one of juliacall's two variables is set.
    """
    executable, project = (os.environ.get(name) for name in VARIABLES)
    if executable or project:
        if not (executable and project):
            have, lack = VARIABLES if executable else reversed(VARIABLES)
            raise EngineError(f"{have} is set but {lack} is not; set both or neither.")
        return JuliaEnvironment(executable, project, "variables")
    settings = _read_settings()
    if settings.get("environment") == "juliapkg":
        import juliapkg

        if not juliapkg.resolve(dry_run=True):
            return JuliaEnvironment("", "", "juliapkg")
        return JuliaEnvironment(str(juliapkg.executable()), str(juliapkg.project()), "juliapkg", _remembered(settings))
    if settings.get("environment") == "registered":
        return JuliaEnvironment(
            str(settings.get("executable")), str(settings.get("project")), "registered", _remembered(settings)
        )
    return None


def settings_path() -> Path:
    """The file in which `pyturingvi setup` remembers the environment; PYTURINGVI_CONFIG names another folder."""
    folder = os.environ.get("PYTURINGVI_CONFIG")
    return (Path(folder) if folder else user_config_path("pyturingvi")) / "julia.json"


def remember(environment: JuliaEnvironment) -> Path:
    """Write the environment into the user's settings; returns their file."""
    kind = "juliapkg" if environment.origin == "juliapkg" else "registered"
    settings: dict[str, Any] = {"environment": kind, "probe": asdict(environment.probe())}
    if kind == "registered":
        settings |= {"executable": environment.executable, "project": environment.project}
    path = settings_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=1) + "\n")
    except OSError as error:
        raise OutputError(f"setup: cannot write {str(path)!r}: {error.strerror or error}.") from None
    return path


def _read_settings() -> dict[str, Any]:
    path = settings_path()
    try:
        settings = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise EngineError(f"{str(path)!r} cannot be read ({error}). Run `pyturingvi setup` again.") from None
    return settings if isinstance(settings, dict) else {}


def _remembered(settings: dict[str, Any]) -> Probe | None:
    try:
        return Probe(**settings["probe"])
    except (KeyError, TypeError):
        return None


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
    again = "`pyturingvi setup` installs one; `pyturingvi setup --julia EXE --project DIR` registers one of yours"
    if not environment.executable:
        return [Problem("the Julia packages do not match this version of pyturingvi", "Run `pyturingvi setup` again")]
    try:
        probe = environment.probe()
    except EngineError as error:
        return [Problem(str(error), again)]
    if probe.numbers < OLDEST or BROKEN[0] <= probe.numbers < BROKEN[1]:
        needed = ".".join(map(str, OLDEST))
        return [
            Problem(
                f"Julia {probe.version} at {environment.executable!r} cannot be used",
                f"{needed} or a later 1.10, or 1.11.6 or later is needed: {again}",
            )
        ]
    try:
        have = manifest_versions(environment.project, probe.numbers)
    except EngineError as error:
        return [Problem(str(error), again)]
    lacking = [
        f"{name} {compat}".strip() if uuid not in have else f"{name} {compat} in place of {have[uuid]}"
        for name, uuid, compat in requirements(probe)
        if not (uuid in have and satisfies(have[uuid], compat))
    ]
    problems = []
    if lacking:
        names = ", ".join(f'"{item.split()[0]}"' for item in lacking)
        install = f"using Pkg; Pkg.add([{names}])"
        problems.append(
            Problem(
                f"the Julia project {environment.project!r} lacks {', '.join(lacking)}",
                "Run `pyturingvi setup`"
                if environment.origin == "juliapkg"
                else f"Run {environment.executable} --project={environment.project} -e '{install}'",
            )
        )
    if _bundled()["uuid"] in have:
        problems.append(
            Problem(
                f"the Julia project {environment.project!r} holds a PyTuringVI of its own",
                'Remove it there (`Pkg.rm("PyTuringVI")`): pyturingvi runs the code bundled with it',
            )
        )
    return problems


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


def satisfies(version: str, compat: str) -> bool:
    """Whether a version lies in Julia's caret ranges `compat`, such as "0.7" or "1.10, 2"."""
    if not compat or not version:
        return True
    have = [int(part) for part in re.findall(r"\d+", version)[:3]]
    for one in compat.split(","):
        least = [int(part) for part in re.findall(r"\d+", one)[:3]]
        fixed = next((k for k, number in enumerate(least) if number), len(least) - 1) + 1
        if have[:fixed] == least[:fixed] and have >= least:
            return True
    return False


def _bundled() -> dict[str, Any]:
    return tomllib.loads((source_directory() / "Project.toml").read_text())


def as_environment(julia: Any, project: Any) -> JuliaEnvironment:
    """Read the arguments of `pyturingvi setup --julia EXE --project DIR`.

    Raises
    ------
    InputError
        If only one is given, or one does not exist.
    """
    import shutil

    if not julia or not project:
        raise InputError("setup: --julia and --project go together: an executable and the project with its packages.")
    found = shutil.which(str(julia))
    if found is None:
        raise InputError(f"setup: --julia {str(julia)!r} is no executable file.")
    folder = Path(project).expanduser()
    folder = folder.parent if folder.name in ("Project.toml", "JuliaProject.toml") else folder
    if not folder.is_dir():
        raise InputError(f"setup: --project {str(project)!r} is no folder.")
    return JuliaEnvironment(str(Path(found).absolute()), str(folder.resolve()), "registered")
