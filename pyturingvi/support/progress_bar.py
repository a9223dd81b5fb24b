"""One kind of progress bar for all that takes long."""

from __future__ import annotations

import sys
from typing import Any


def progress_bar(words: str, unit: str, shown: bool, **options: Any) -> Any:
    """A bar of tqdm on standard error, which a program without a console does not have."""
    from tqdm.auto import tqdm

    shown = shown and sys.stderr is not None
    interval = 0.2 if shown and sys.stderr.isatty() else 10.0  # a log file wants few lines
    return tqdm(desc=words, unit=unit, dynamic_ncols=True, mininterval=interval, disable=not shown, **options)
