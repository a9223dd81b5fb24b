"""Compiling the bundled Julia code: once, ahead of loading it, in a process that Ctrl-C can end.

Left alone, Julia compiles while it loads, in a child of its own. A Ctrl-C at the terminal reaches that child too, which
may then hang, and Python with it.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
from platformdirs import user_cache_path

from pyturingvi.errors import EngineError

# Julia compiles into the first of its depots; where that cannot be written, a spare one comes first meanwhile.
COMPILED = 'joinpath(first(DEPOT_PATH), "compiled", "v$(VERSION.major).$(VERSION.minor)", "PyTuringVI")'
WITH_DEPOT = """
function (f, spare)
    isnothing(spare) && return f()
    pushfirst!(DEPOT_PATH, spare)
    try
        return f()
    finally
        filter!(!=(spare), DEPOT_PATH)
    end
end
"""
# The command that compiles what loading the packages would compile; nothing if that is done. An extension is given by
# its name alone: its UUID follows from its package's.
COMMAND = """
function (executable, uuid, package, package_uuid, extensions)
    parent = Base.UUID(uuid)
    id = Base.PkgId(Base.UUID(package_uuid), package)
    ids = [id; [Base.PkgId(Base.uuid5(parent, name), name) for name in String.(split(extensions))]]
    done(id) = haskey(Base.loaded_modules, id) || (try; Base.isprecompiled(id); catch; true; end)
    all(done, ids) && return nothing
    paths = "append!(empty!(DEPOT_PATH), $(repr(DEPOT_PATH))); append!(empty!(LOAD_PATH), $(repr(LOAD_PATH)))"
    require(name, uuid) = "Base.require(Base.PkgId(Base.UUID($(repr(string(uuid)))), $(repr(name))))"
    code = join((paths, require("PyTuringVI", parent), require(package, package_uuid)), "; ")
    julia = isnothing(executable) ? joinpath(Sys.BINDIR, Base.julia_exename()) : executable
    options = ("--project=" * dirname(Base.active_project()), "--startup-file=no", "-e", code)
    return join((Base.julia_cmd(julia).exec..., options...), '\\0')
end
"""


def compile_ahead(command: list[str], package: str, interrupted: Callable[[], bool]) -> None:
    """Run the compiling command.

    Raises
    ------
    EngineError
        If it fails; with Julia's reason.
    KeyboardInterrupt
        As soon as `interrupted` turns true.
    """
    print(f"pyturingvi: compiling its Julia code for {package}, once; this may take some minutes", file=sys.stderr)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, encoding="utf-8", errors="replace", start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            while True:
                try:
                    words = process.communicate(timeout=0.2)[1]
                    break
                except subprocess.TimeoutExpired:
                    if interrupted():
                        raise KeyboardInterrupt from None
        finally:
            end_process(process)
    if process.returncode:
        reason = _reason(words) or f"Julia ended with code {process.returncode} and no words"
        raise EngineError(f"the Julia package {package} could not be compiled: {reason}")


def _reason(words: str) -> str:
    """The first error in what Julia wrote, without its stack."""
    start = max(words.find("ERROR: "), 0)
    lines = words[start:].split("\nStacktrace:")[0].splitlines()
    return "\n".join(line for line in lines if line.strip())[:1000]


def end_process(process: subprocess.Popen[str]) -> None:
    """End a process that still runs, and all that it started."""
    if process.poll() is None:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                pass


def spare_depot(compiled: str) -> str | None:
    """Another depot, where nothing can be written to the folder that would receive the compiled package; else None."""
    nearest = next(folder for folder in (Path(compiled), *Path(compiled).parents) if folder.exists())
    if os.access(nearest, os.W_OK):
        return None
    spare = user_cache_path("pyturingvi") / "julia"
    try:
        spare.mkdir(parents=True, exist_ok=True)
        if os.access(spare, os.W_OK):
            return str(spare)
    except OSError:
        pass
    holder = tempfile.TemporaryDirectory(prefix="pyturingvi-julia-", ignore_cleanup_errors=True)
    atexit.register(holder.cleanup)
    return holder.name
