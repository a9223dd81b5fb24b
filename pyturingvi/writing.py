"""How tables, texts and pictures are written: whole, so that an interruption leaves the old file or the new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pyturingvi.errors import OutputError
from pyturingvi.paths import write_atomically

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def write_text(path: Path, text: str) -> None:
    """Write a text file (UTF-8); OutputError, which names it, if it cannot be written."""
    _write(path, lambda stream: stream.write(text.encode()))


def write_table(path: Path, frame: pd.DataFrame, *, index: bool = False, **options: Any) -> None:
    """Write a CSV file; OutputError, which names it, if it cannot be written."""
    write_text(path, frame.to_csv(index=index, **options))


def write_picture(figure: Figure, path: Path, dpi: float = 100) -> None:
    """Write a picture, of the kind that its name ends in, and let go of the figure; OutputError, which names the file,
    if it cannot be written."""
    from matplotlib import pyplot

    kind = path.suffix.lstrip(".").lower() or "png"
    try:
        _write(path, lambda stream: figure.savefig(stream, format=kind, dpi=dpi))
    finally:
        pyplot.close(figure)


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    try:
        write_atomically(path, write)
    except OSError as error:  # a full disk, say
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}.") from None
