"""What keeps the Julia engine from running with an environment, and the shell command that mends it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence

from pyturingvi.bridge.environment import DEPOTS, VARIABLES, JuliaEnvironment, ask_julia
from pyturingvi.bridge.packages import (
    bundled,
    installed_by_setup,
    julia_compat,
    manifest_entries,
    manifest_versions,
    optional_packages,
    required_packages,
    satisfies,
    version_to_add,
)
from pyturingvi.errors import EngineError

_FIND_FILES = """
for package in ARGS
    name, uuid = split(package, '=')
    isnothing(Base.locate_package(Base.PkgId(Base.UUID(uuid), String(name)))) && print(name, '\\0')
end
"""


class Problem(EngineError):
    """Why an environment cannot be used, and the shell command that mends it."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(what, command)
        self.what, self.command = what, command

    def __str__(self) -> str:
        return f"{self.what}. Mend it with: {self.command}"


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
        answer = ask_julia(julia, f"--project={project}", "-e", _FIND_FILES, *asked, variables=environment.variables())
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
