"""Compiling the bundled Julia code: once, ahead of loading it, in a process that Ctrl-C can end.

Left alone, Julia compiles while it loads, in a child of its own. A Ctrl-C at the terminal reaches that child too, which
may then hang, and Python with it.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from platformdirs import user_cache_path

from pyturingvi.bridge.log import failure

_PATIENCE = 2.0  # seconds that a process is given to end by itself
_SOURCE = "source.txt"  # in a depot of our own: whose it is


def compile_ahead(command: list[str], package: str, folder: Path, interrupted: Callable[[], bool]) -> None:
    """Run the command that compiles a package into `folder` and what it needs into those beside it.

    Raises EngineError if it fails, KeyboardInterrupt as soon as `interrupted` turns true.
    """
    began = time.time()
    print(f"pyturingvi: compiling its Julia code for {package}, once; this may take some minutes", file=sys.stderr)
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words, start_new_session=True
        ) as process,
    ):
        try:
            while process.poll() is None:
                if interrupted():
                    raise KeyboardInterrupt
                time.sleep(0.1)
        finally:
            end_process(process)
            for path in folder.parent.glob("*/jl_*"):  # half made; another Julia that waits for one makes it again
                with suppress(OSError):
                    if path.stat().st_size == 0 and path.stat().st_mtime >= began - 1.0:
                        path.unlink()
        if process.returncode:
            words.seek(0)
            what = f"the Julia package {package} could not be compiled (code {process.returncode})"
            raise failure(what, words.read())


def end_process(process: subprocess.Popen[Any]) -> None:
    """End a process that still runs, and all that it started; Julia is given the time to tidy up."""
    if process.poll() is None:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    end(member)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)


def spare_depot(compiled: str, source: Path) -> str | None:
    """A depot of our own, where Julia's own would not do; else None.

    Parameters
    ----------
    compiled : str
        The folder of Julia's first depot that would receive the compiled package. It does not do where it cannot be
        written, or has the compiled package of another copy of this one (two virtual environments, say, with one
        Julia project): Julia names the file by the project, so that the two would replace each other in turn.
    source : Path
        The folder of the Julia package that is bundled with the imported one.
    """
    nearest = next(folder for folder in (Path(compiled), *Path(compiled).parents) if folder.exists())
    if os.access(nearest, os.W_OK) and not _is_taken(Path(compiled), source):
        return None
    depots = user_cache_path("pyturingvi") / "julia"
    spare = depots / hashlib.sha256(str(source).encode()).hexdigest()[:12]
    try:
        spare.mkdir(parents=True, exist_ok=True)
        if os.access(spare, os.W_OK):
            (spare / _SOURCE).write_bytes(os.fsencode(source))
            for note in depots.glob(f"*/{_SOURCE}"):  # the depots of copies of this package that are gone
                if not Path(os.fsdecode(note.read_bytes())).exists():
                    shutil.rmtree(note.parent, ignore_errors=True)
            return str(spare)
    except OSError:
        pass
    holder = tempfile.TemporaryDirectory(prefix="pyturingvi-julia-", ignore_cleanup_errors=True)
    atexit.register(holder.cleanup)
    return holder.name


def _is_taken(compiled: Path, source: Path) -> bool:
    """Whether there are compiled packages, and none was made from `source`, whose path each has in its header."""
    main = source / "src" / "PyTuringVI.jl"
    ours = {os.fsencode(path) for path in (main, main.resolve())}
    try:
        found = [path.read_bytes() for path in compiled.glob("*.ji")]
    except OSError:
        return False
    return bool(found) and not any(path in content for path in ours for content in found)
