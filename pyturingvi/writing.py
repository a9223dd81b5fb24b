"""How tables, texts and pictures are written: whole, so that an interruption leaves the old file or the new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyturingvi.errors import OutputError
from pyturingvi.paths import write_atomically, write_text_atomically

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def write_text(path: Path, text: str) -> None:
    """Write a text file (UTF-8); OutputError, which names it, if it cannot be written."""
    with _failures_named(path):
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
        with _failures_named(path):
            write_atomically(path, lambda stream: figure.savefig(stream, format=kind, dpi=dpi))
    finally:
        pyplot.close(figure)


@contextmanager
def _failures_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # a full disk, say
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}.") from None
