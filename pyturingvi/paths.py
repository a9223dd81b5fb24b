"""Output paths: found writable before a run, and replaced whole, never half-written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pyturingvi.errors import InputError, OutputError


def as_path(path: str | os.PathLike[str], what: str) -> Path:
    """A path with `~` expanded, or an InputError that names the argument."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise InputError(f"{what} must be a path, got {path!r}.")
    return Path(path).expanduser()


def check_writable(path: str | os.PathLike[str], what: str) -> Path:
    """Make sure that a file can be written at `path`, by writing beside it.

    Raises
    ------
    InputError
        If `path` is not a path at all.
    OutputError
        If the path is a directory, its folder is missing or a regular file, or nothing can be written there.
    """
    target = as_path(path, what)
    try:
        target.exists()
    except OSError as error:
        raise OutputError(f"{what}: cannot write {str(target)!r}: {error.strerror or error}.") from None
    if target.is_dir():
        raise OutputError(f"{what}: {str(target)!r} is a directory; give the path of a file in it.")
    folder = target.parent
    if not folder.is_dir():
        blocker = next((p for p in [folder, *folder.parents] if p.exists()), None)
        why = (
            f"{str(blocker)!r} is a file, not a directory"
            if blocker and not blocker.is_dir()
            else (f"the directory {str(folder)!r} does not exist; create it first")
        )
        raise OutputError(f"{what}: cannot write {str(target)!r}: {why}.")
    try:
        if target.exists():
            with open(target, "ab"):
                pass
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"{what}: cannot write {str(target)!r}: {error.strerror or error}.") from None
    return target


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write through a temporary file beside `path`, so that a kill leaves the old file or the new one."""
    # the name has a fixed length: `path.name` may already be as long as the file system allows
    handle, temporary = tempfile.mkstemp(prefix=".pyturingvi-", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
