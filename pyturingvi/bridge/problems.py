"""What keeps the Julia engine from running with an environment, and the shell command that mends it."""

from __future__ import annotations

import json
import os
import shlex

from pyturingvi.bridge.environment import DEPOTS, EXE, PROJECT, JuliaEnvironment, ask_julia
from pyturingvi.bridge.packages import (
    Package,
    bundled,
    installed_by_setup,
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
    setup = f"{f'unset {EXE} {PROJECT}; ' if environment.origin == 'variables' else ''}pyturingvi setup"
    try:
        probe = environment.probe()
    except EngineError as error:
        return [Problem(str(error), setup)]
    compat = bundled()["compat"]["julia"]
    if not satisfies(probe.version, compat):
        needed = (
            f"{one[1:]} or a later {one[1:].rpartition('.')[0]}" if one[0] == "~" else f"{one} or later"
            for one in compat.split(", ")
        )
        what = f"Julia {probe.version} at {environment.executable!r} cannot be used: {', or '.join(needed)} is needed"
        return [Problem(what, setup)]
    return []


def examine_packages(environment: JuliaEnvironment) -> list[Problem]:
    """What is wrong with the packages that the project names, given a Julia that can be used."""
    try:
        have = {uuid: entry["version"] for uuid, entry in environment.installed().items()}
    except EngineError as error:
        return [Problem(str(error), add_command(environment, required_packages()))]
    lacking = [package for package in required_packages() if not satisfies(have.get(package.uuid), package.compat)]
    problems = []
    if lacking:
        words = (
            f"{name} {compat.lstrip('=')}".rstrip() + (f" in place of {have[uuid]}" if uuid in have else "")
            for name, uuid, compat in lacking
        )
        what = f"the Julia project {environment.project!r} lacks {', '.join(words)}"
        problems.append(Problem(what, add_command(environment, lacking)))
    if bundled()["uuid"] in have:
        what = f"the Julia project {environment.project!r} holds a PyTuringVI of its own, in place of the bundled one"
        problems.append(Problem(what, pkg_command(environment, 'Pkg.rm("PyTuringVI")')))
    return problems


def examine_files(environment: JuliaEnvironment) -> list[Problem]:
    """Which packages of a project that passes the checks above have no files in the depots; Julia is asked."""
    project, entries = environment.project, environment.installed()
    asked = (f"{entry['name']}={uuid}" for uuid, entry in entries.items())
    command = (environment.executable, f"--project={project}", "-e", _FIND_FILES, *asked)
    ours = environment.origin == "juliapkg"
    mend = setup_command(environment) if ours else pkg_command(environment, "Pkg.instantiate()")
    try:
        *gone, _ = ask_julia(*command, variables=environment.variables())
    except EngineError as error:
        return [Problem(str(error), mend)]
    if not gone:
        return []
    names = ", ".join(gone[:5]) + (f" and {len(gone) - 5} more" if len(gone) > 5 else "")
    place = environment.other_depots() or f"{DEPOTS} is {os.environ.get(DEPOTS, environment.depots) or 'not set'!r}"
    what = f"the Julia project {project!r} names packages whose files are not there: {names} ({place})"
    # packages that the project looks for in a folder of their own, which is gone, are taken from the registry
    moved = [entry["name"] for entry in entries.values() if "path" in entry and entry["name"] in gone]
    if moved and not ours:
        mend = pkg_command(environment, f"Pkg.free({json.dumps(moved)}); Pkg.instantiate()")
    return [Problem(what, f"unset {DEPOTS}" if environment.other_depots() else mend)]


def add_command(environment: JuliaEnvironment, packages: list[Package]) -> str:
    """The shell command that installs packages."""
    if environment.origin == "juliapkg" and set(packages) <= set(installed_by_setup()):
        return setup_command(environment)
    specs = (f'(name="{name}", version="{version_to_add(compat)}")' for name, _, compat in packages)
    return pkg_command(environment, f"Pkg.add([{', '.join(specs)}])")


def setup_command(environment: JuliaEnvironment) -> str:
    """The shell command that sets this environment up again."""
    named = ("--julia", environment.executable, "--project", environment.project)
    return _shell(environment, "pyturingvi", "setup", *(() if environment.origin == "juliapkg" else named))


def pkg_command(environment: JuliaEnvironment, call: str) -> str:
    """The shell command that calls Julia's package manager on a project."""
    return _shell(environment, environment.executable, f"--project={environment.project}", "-e", f"using Pkg; {call}")


def _shell(environment: JuliaEnvironment, *words: str) -> str:
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.variables().items()]
    return " ".join((*variables, *map(shlex.quote, words)))
