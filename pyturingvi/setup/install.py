"""`pyturingvi setup`: install a Julia environment through juliapkg, or take the user's own, and try it out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyturingvi.bridge.environment import (
    VARIABLES,
    JuliaEnvironment,
    examine_environment,
    examine_julia,
    remember,
    variables_are_set,
)
from pyturingvi.bridge.remembered import check_settings_writable
from pyturingvi.errors import EngineError, InputError
from pyturingvi.setup.trial import try_start

Say = Callable[[str], object]

_PLAN = """This will, through juliapkg:
  1. find or download Julia (about 200 MB), into this Python environment;
  2. download Turing, Zygote and what they need, into Julia's depot (JULIA_DEPOT_PATH, else ~/.julia);
  3. compile them (5 to 20 minutes), then start Julia once for trial.
It needs a network and 2 to 3 GB of disk. It may be interrupted and called again."""
_WITHOUT_NETWORK = (
    "Nothing was remembered. Without a network, have Julia and the packages put there by other means and call "
    "`pyturingvi setup --julia EXE --project DIR`; PYTHON_JULIAPKG_EXE and PYTHON_JULIAPKG_PROJECT make juliapkg use "
    "a Julia that is there, and another folder."
)


def set_up(julia: Any = None, project: Any = None, say: Say = print) -> Path:
    """Install an environment, or take that of `julia` and `project`; try it out and remember it.

    Parameters
    ----------
    julia, project : path, optional
        The user's own executable, and the project with the packages.
    say : callable
        Receives each line of progress.

    Returns
    -------
    Path
        The settings file.

    Raises
    ------
    InputError, EngineError, OutputError
        With nothing remembered.
    """
    own = julia is not None or project is not None
    check_settings_writable()
    environment = registered_environment(julia, project) if own else install_environment(say)
    for problem in examine_environment(environment):
        raise EngineError(f"setup: {problem}" if own else f"setup: {problem.what}. {_WITHOUT_NETWORK}")
    say(
        f"Starting Julia {environment.probe().version} for trial; the first time compiles the bundled package, "
        "which takes 1 to 3 minutes."
    )
    trial = try_start(environment, thorough=True, tick=lambda seconds: say(f"  at it for {seconds:.0f} s"))
    for name, why in trial.failed.items():
        say(f"  {name} is installed but does not load: {why}")
    path = remember(environment)
    say(f"Julia {trial.julia} started in {trial.seconds:.1f} s and made a fit. Remembered in {path}.")
    if variables_are_set():
        say(f"{' and '.join(VARIABLES)} come before it as long as they are set.")
    return path


def registered_environment(julia: Any, project: Any) -> JuliaEnvironment:
    """The environment that `--julia` and `--project` name.

    Raises
    ------
    InputError
        If only one is given, or one does not exist.
    """
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


def install_environment(say: Say = print) -> JuliaEnvironment:
    """Have juliapkg find or install Julia and the packages of `juliapkg.json`; it writes its own progress.

    Raises
    ------
    InputError
        If the variables name another environment, which would be used all the same.
    EngineError
        If juliapkg fails, for lack of a network or of a permission, say.
    """
    if variables_are_set():
        raise InputError(
            f"setup: {' and '.join(VARIABLES)} are set, and what they name is used whatever is installed. "
            "Unset them first, or register it: `pyturingvi setup --julia EXE --project DIR`."
        )
    say(_PLAN)
    try:
        import juliapkg

        juliapkg.resolve()
        environment = _as_juliapkg_left_it(juliapkg)
        if not examine_julia(environment) and examine_environment(environment):
            juliapkg.resolve(force=True)  # its notes say resolved, yet the project was changed behind its back
            environment = _as_juliapkg_left_it(juliapkg)
    except Exception as error:
        raise EngineError(f"setup: the installation failed: {_in_one_line(error)}. {_WITHOUT_NETWORK}") from None
    return environment


def _as_juliapkg_left_it(juliapkg: Any) -> JuliaEnvironment:
    return JuliaEnvironment(str(juliapkg.executable()), str(juliapkg.project()), "juliapkg")


def _in_one_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"Julia ended with code {error.returncode}; its own words stand above"
    words = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(word.strip() for word in words)[:500].rstrip(".")
