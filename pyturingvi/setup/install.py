"""`pyturingvi setup`: install a Julia environment through juliapkg, or take the user's own, and try it out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from pyturingvi.bridge.environment import VARIABLES, JuliaEnvironment, remember, variables_are_set
from pyturingvi.bridge.packages import bundled, installed_by_setup
from pyturingvi.bridge.problems import (
    Problem,
    examine_files,
    examine_julia,
    examine_packages,
    pkg_command,
    setup_command,
)
from pyturingvi.bridge.remembered import check_settings_writable, remember_failure
from pyturingvi.errors import EngineError, InputError
from pyturingvi.setup.child import Say, call_in_child
from pyturingvi.setup.trial import Trial, try_start

_PLAN = """This will, through juliapkg:
  1. find or download Julia (about 200 MB), into this Python environment;
  2. download Turing, Zygote and what they need, into Julia's depot (JULIA_DEPOT_PATH, else ~/.julia);
  3. compile them (5 to 20 minutes), then start Julia once for trial.
It needs a network and 2 to 3 GB of disk. It may be interrupted and called again."""
_WITHOUT_NETWORK = (
    "Without a network, have Julia and the packages put there by other means and call `pyturingvi setup --julia EXE "
    "--project DIR`; PYTHON_JULIAPKG_EXE and PYTHON_JULIAPKG_PROJECT make juliapkg use a Julia that is there, and "
    "another folder."
)
_NEWEST_JULIA = "1.12"  # that is installed; a newer one of the user's own will do as long as the packages do


def set_up(julia: Any = None, project: Any = None, say: Say = print) -> str:
    """Install an environment, or take that of `julia` and `project`; try it out and remember it.

    Parameters
    ----------
    julia, project : path, optional
        The user's own executable, and the project with the packages.
    say : callable
        Receives each line of progress.

    Returns
    -------
    str
        What was set up, in words.

    Raises
    ------
    InputError, Problem, OutputError
        What was remembered before stays. A Problem is remembered beside it, for `pyturingvi doctor`.
    """
    check_settings_writable()
    try:
        if julia is not None or project is not None:
            environment = registered_environment(julia, project)
            trial = _try_out(environment, say)
        else:
            environment, trial = _install_and_try_out(say)
    except Problem as problem:
        remember_failure(problem.what, problem.command)
        raise Problem(f"setup: {problem.what}", problem.command) from None
    path = remember(environment)
    words = [f"{name} is installed but does not load: {why}" for name, why in trial.failed.items()]
    words.append(f"Julia {trial.julia} started in {trial.seconds:.1f} s and made a fit. Remembered in {path}.")
    if variables_are_set():
        words.append(f"{' and '.join(VARIABLES)} come before it as long as they are set.")
    return "\n".join(words)


def _try_out(environment: JuliaEnvironment, say: Say) -> Trial:
    again = setup_command(environment)
    for problem in examine_julia(environment):  # to register the same again would fail in the same way
        raise problem
    for problem in examine_packages(environment) or examine_files(environment):
        raise Problem(problem.what, problem.command if problem.command == again else f"{problem.command} && {again}")
    say(f"Starting Julia {environment.probe().version} for trial; it may compile first, which takes 1 to 3 minutes.")
    try:
        return try_start(environment, thorough=True, say=say)
    except EngineError as error:
        compile_anew = pkg_command(environment, "Pkg.instantiate(); Pkg.precompile()")
        raise Problem(f"Julia does not start: {error}", f"{compile_anew} && {again}") from None


def registered_environment(julia: Any, project: Any) -> JuliaEnvironment:
    """The environment that `--julia` and `--project` name; InputError if one is not given, or does not exist."""
    if not julia or not project:
        raise InputError("setup: --julia and --project go together: an executable and the project with its packages.")
    named = os.path.expanduser(julia)
    # a Path would lose the "./" that keeps a name from being looked for elsewhere
    found = shutil.which(os.path.abspath(named) if os.path.dirname(named) else named)
    if found is None:
        raise InputError(f"setup: --julia {str(julia)!r} is no executable file.")
    folder = Path(project).expanduser()
    folder = folder.parent if folder.name in ("Project.toml", "JuliaProject.toml") else folder
    if not folder.is_dir():
        raise InputError(f"setup: --project {str(project)!r} is no folder.")
    return JuliaEnvironment(str(Path(found).absolute()), str(folder.resolve()), "registered")


def _install_and_try_out(say: Say) -> tuple[JuliaEnvironment, Trial]:
    """Let juliapkg install what it has not; once more, and in full, where that does not do.

    It goes by its own notes, and does not see that a project was changed, or files removed, behind its back.
    """
    if variables_are_set():
        raise InputError(
            f"setup: {' and '.join(VARIABLES)} are set, and what they name is used whatever is installed. "
            "Unset them first, or register it: `pyturingvi setup --julia EXE --project DIR`."
        )
    say(_PLAN)
    force = False
    while True:
        try:
            executable, project = call_in_child(_resolve, force, say=say)
        except EngineError as error:
            raise Problem(f"the installation failed: {error}. {_WITHOUT_NETWORK}", "pyturingvi setup") from None
        environment = JuliaEnvironment(executable, project, "juliapkg")
        try:
            return environment, _try_out(environment, say)
        except Problem as problem:
            if force or examine_julia(environment):
                raise Problem(f"{problem.what}. {_WITHOUT_NETWORK}", problem.command) from None
            force = True


def _resolve(force: bool) -> tuple[str, str]:
    """Have juliapkg find or install Julia and the packages; the executable and the project."""
    import juliapkg

    juliapkg.require_julia(f"{bundled()['compat']['julia']} - {_NEWEST_JULIA}")
    for package in installed_by_setup():
        juliapkg.add(package.name, package.uuid, version=package.compat)
    juliapkg.resolve(force=force)
    return str(juliapkg.executable()), str(juliapkg.project())
