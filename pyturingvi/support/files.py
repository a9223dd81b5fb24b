"""Output paths and files: found writable before a run, and written whole: a kill leaves the old file or the new one."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pyturingvi.errors import InputError, OutputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def as_path(path: str | os.PathLike[str], what: str) -> Path:
    """A path with `~` expanded, or an InputError that names the argument."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise InputError(f"{what} must be a path, got {path!r}.")
    if not os.fspath(path):  # which would be the current folder
        raise InputError(f"{what} must not be empty; '.' is the current folder.")
    try:
        os.fsencode(path)
        return Path(path).expanduser()
    except (RuntimeError, UnicodeEncodeError) as error:  # no such user, or no name of a file
        raise InputError(f"{what}: {str(path)!r} is not a usable path ({error}).") from None


def make_folder(path: str | os.PathLike[str], what: str) -> Path:
    """Make a folder, and those above it, unless it is there; returns its path.

    Raises
    ------
    InputError
        If `path` is not a path at all.
    OutputError
        If it cannot be made.
    """
    folder = as_path(path, what)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        in_its_way = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a file is in its way" if in_its_way else getattr(error, "strerror", None) or error
        raise OutputError(f"{what}: cannot make the folder {str(folder)!r}: {why}.") from None
    return folder


def check_writable(path: str | os.PathLike[str], what: str) -> Path:
    """Make sure that a file can be written at `path`, by writing beside it; returns the absolute path.

    Raises
    ------
    InputError
        If `path` is not a path at all.
    OutputError
        If the path is a directory, its folder is missing or a regular file, or nothing can be written there.
    """
    given = as_path(path, what)
    try:
        # absolute, and a link followed to its file: neither a change of directory nor the final rename may mislead
        target = given.resolve()
        exists = target.exists()
    except (OSError, RuntimeError) as error:
        raise OutputError(f"{what}: cannot write {str(given)!r}: {getattr(error, 'strerror', '') or error}.") from None
    if exists and not target.is_file() and not target.is_dir():
        raise OutputError(f"{what}: {str(given)!r} is a device or a pipe; give the path of a regular file.")
    if target.is_dir():
        raise OutputError(f"{what}: {str(given)!r} is a directory; give the path of a file in it.")
    folder = target.parent
    if not folder.is_dir():
        blocker = next((p for p in [folder, *folder.parents] if p.exists()), None)
        why = (
            f"{str(blocker)!r} is a file, not a directory"
            if blocker and not blocker.is_dir()
            else (f"the directory {str(folder)!r} does not exist; create it first")
        )
        raise OutputError(f"{what}: cannot write {str(given)!r}: {why}.")
    try:
        if exists:
            with open(target, "ab"):
                pass
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"{what}: cannot write {str(given)!r}: {error.strerror or error}.") from None
    return target


def file_stem(label: str) -> str:
    """A model's label as the beginning of a file's name."""
    found = re.fullmatch(r"(.*) \((simulated|released|simulated, released)\)", label)
    return "-".join([found[1], *found[2].split(", ")]) if found else label


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file (UTF-8) as `write_atomically` does."""
    write_atomically(path, lambda stream: stream.write(text.encode()))


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
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


# ---- tables, texts and pictures ---------------------------------------------------------------------------
def write_text(path: Path, text: str) -> None:
    """Write a text file (UTF-8); OutputError, which names it, if it cannot be written."""
    with failures_named(path):
        write_text_atomically(path, text)


def write_table(path: Path, frame: pd.DataFrame, *, index: bool = False, **options: Any) -> None:
    """Write a CSV file; OutputError, which names it, if it cannot be written."""
    write_text(path, frame.to_csv(index=index, **options))


def write_picture(figure: Figure, path: Path, dpi: float = 100) -> None:
    """Write a picture, of the kind that its name ends in, and let go of the figure; OutputError, which names the file,
    if it cannot be written."""
    from matplotlib import pyplot

    kind = path.suffix.lstrip(".").lower() or "png"
    try:
        with failures_named(path):
            write_atomically(path, lambda stream: figure.savefig(stream, format=kind, dpi=dpi))
    finally:
        pyplot.close(figure)


@contextmanager
def failures_named(path: Path) -> Iterator[None]:
    """An OSError inside becomes an OutputError that names the file."""
    try:
        yield
    except OSError as error:  # a full disk, say
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}.") from None
