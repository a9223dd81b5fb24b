"""What Julia writes when it fails: told in one line, and kept whole in a file."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_log_path

from pyturingvi.errors import EngineError
from pyturingvi.support.files import write_text_atomically

_LONGEST = 500


def one_line(words: str) -> str:
    """The first error in what Julia wrote, without its stack; the last line if there is no error in it."""
    parts = re.split(r"^\s*(?:ERROR: |Stacktrace:|Closest candidates are:)", words, flags=re.MULTILINE)
    lines = parts[1] if len(parts) > 1 else "".join(words.rstrip().splitlines()[-1:])
    return " ".join(lines.split())[:_LONGEST]


def failure(what: str, words: str) -> EngineError:
    """The error for a Julia that failed: what it said in one line, and the file that has the rest."""
    reason = one_line(words)
    return EngineError(f"{what}{': ' if reason else ''}{reason.rstrip('.')}. Julia's own words are in {keep(words)}")


def keep(words: str) -> Path:
    """Write the words to the log file, in place of those of an earlier failure."""
    path = user_log_path("pyturingvi") / "julia.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, words)
    except OSError:
        with tempfile.NamedTemporaryFile("w", prefix="pyturingvi-julia-", suffix=".log", delete=False) as file:
            file.write(words)
        path = Path(file.name)
    return path


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """What this process writes to its standard error meanwhile, Julia inside it too, is in the list at the end.

    Nothing is captured, and the list stays empty, on Windows and where there is no standard error or no temporary file.
    """
    words: list[str] = []
    try:
        own, file = (os.dup(2), tempfile.TemporaryFile()) if os.name == "posix" else (-1, None)
    except OSError:
        file = None
    if file is None:
        yield words
        return
    with file:
        try:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(file.fileno(), 2)
            yield words
        finally:
            os.dup2(own, 2)
            os.close(own)
            file.seek(0)
            words.append(file.read().decode(errors="replace"))
