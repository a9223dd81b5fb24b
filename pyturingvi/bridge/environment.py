"""Which Julia and which project the Julia engine runs with: found, checked and remembered, without starting Julia.

An environment comes from juliacall's own variables, else from what `pyturingvi setup` remembered: the one that juliapkg
installed, or the user's own. It supplies the dependencies only: the Julia code that runs is always the one bundled with
the imported Python package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyturingvi.bridge.log import one_line
from pyturingvi.bridge.packages import read_manifest
from pyturingvi.bridge.remembered import damaged_settings, read_settings, write_settings
from pyturingvi.errors import EngineError

VARIABLES = EXE, PROJECT = ("PYTHON_JULIACALL_EXE", "PYTHON_JULIACALL_PROJECT")
DEPOTS = "JULIA_DEPOT_PATH"
_PROBE = 'import Libdl; print(join((VERSION, abspath(Libdl.dlpath("libjulia")), Sys.BINDIR), "\\0"))'


class Probe(NamedTuple):
    """What a Julia executable says about itself, and when it was last changed."""

    version: str
    library: str
    bindir: str
    modified: int


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
        parts = ask_julia(self.executable, "-e", _PROBE)
        if len(parts) != 3:
            raise EngineError(f"{self.executable!r} does not answer like Julia: {parts[0].strip()[:200]}")
        return Probe(parts[0], parts[1], parts[2], modified)

    def installed(self) -> dict[str, dict[str, Any]]:
        """The packages of the project, as its manifest has them, by UUID; EngineError if there is none."""
        return read_manifest(self.project, self.probe().version)

    def variables(self) -> dict[str, str]:
        """What Julia must have among its variables, beside those of this process."""
        return {DEPOTS: self.depots} if self.depots and DEPOTS not in os.environ else {}

    def other_depots(self) -> str:
        """In words, how the user's JULIA_DEPOT_PATH differs from that at the time of setup; else empty."""
        if self.depots is None or DEPOTS not in os.environ or depots_in_force() == self.depots:
            return ""
        return f"{DEPOTS} is {os.environ[DEPOTS]!r} here and was {self.depots or 'not set'!r} at `pyturingvi setup`"


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
        probe = Probe(*(settings["probe"][name] for name in Probe._fields))
        executable, project, origin = (settings[name] for name in ("executable", "project", "environment"))
    except (KeyError, TypeError):
        raise damaged_settings("it lacks entries") from None
    depots = settings.get("depots")  # not in files of earlier versions
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
    named = {name: getattr(environment, name) for name in ("executable", "project")}
    told = {"depots": depots_in_force(), "probe": environment.probe()._asdict()}
    return write_settings({"environment": environment.origin, **named, **told})


def ask_julia(executable: str, *arguments: str, variables: Mapping[str, str] | None = None) -> list[str]:
    """What Julia prints when run with these arguments, split at its NULs; EngineError if it does not run, or fails."""
    command = [executable, "--startup-file=no", "-O0", "--compile=min", *arguments]
    env = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=120, env=env)
    except FileNotFoundError:
        raise EngineError(f"there is no Julia executable at {executable!r}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{executable!r} does not run: {error}") from None
    if done.returncode:
        said = one_line(done.stderr) or one_line(done.stdout) or "no output"
        raise EngineError(f"{executable!r} does not answer like Julia: {said[:200]}")
    return done.stdout.split("\0")
