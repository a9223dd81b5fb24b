"""A cell's file: its settings, how it ended and its ELBO trace."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyturingvi.errors import OutputError
from pyturingvi.optimize.natural_rule import NaturalGradient
from pyturingvi.support.archive import damaged
from pyturingvi.sweeps.grid import cell_name

FINISHED = ("converged", "completed", "diverged")  # what need not be run again
TRACE = ("iteration", "elbo", "std_error")
_KIND, _FORMAT = "sweep cell", 1
# what reading and checking raise on content that is not what it was
_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


class LaterVersion(OutputError):
    """A file that this version cannot read and must not replace."""


def cell_text(
    settings: Mapping[str, Any],
    status: str,
    message: str,
    n_updates: int | None = None,
    trace: Mapping[str, list[Any]] | None = None,
    error: str | None = None,
) -> str:
    """The bytes of a cell's file: a line a key, numbers as Python prints them, non-finite ones as words."""
    rows = trace or {key: [] for key in TRACE}
    ending = {"status": status, "message": message, "error": error, "n_updates": n_updates}
    columns = {key: [_word(value) for value in rows[key]] for key in TRACE}
    return json_text({"kind": _KIND, "format": _FORMAT, "settings": dict(settings), **ending, **columns})


def json_text(content: Mapping[str, Any]) -> str:
    """JSON with a line for each key."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    return f"{{\n{lines}\n}}\n"


def _word(value: Any) -> Any:
    return value if isinstance(value, int) or math.isfinite(value) else str(value)


def read_cell(path: Path) -> dict[str, Any]:
    """What `cell_text` wrote, the trace as floats; OutputError if it is missing, damaged or of a `LaterVersion`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["kind"] != _KIND or type(found["format"]) is not int:
            raise ValueError(f"it holds a {found['kind']!r}")
        later = found["format"] > _FORMAT
        if not later:
            for key in ("elbo", "std_error"):
                found[key] = [float(value) for value in found[key]]
            _check(found, path.stem)
    except _DAMAGE as error:
        raise damaged(path, "sweep", error) from None
    if later:
        raise LaterVersion(
            f"sweep: {str(path)!r} was written by a later version of pyturingvi: upgrade it, or give another out."
        )
    return dict(found)


def _check(found: Mapping[str, Any], name: str) -> None:
    """Raise one of `_DAMAGE` unless the parts of a cell's file belong together."""
    settings, n = found["settings"], found["n_updates"]
    if cell_name(settings) != name:
        raise ValueError("its settings are not those of its name")
    if not isinstance(found["message"], str) or not isinstance(found["error"], str | None):
        raise ValueError("its message is no text")
    rows = found["iteration"]
    if not len(rows) == len(found["elbo"]) == len(found["std_error"]):
        raise ValueError("the columns of its trace differ in length")
    if found["status"] not in (*FINISHED, "failed"):
        raise ValueError(f"its status is {found['status']!r}")
    if found["status"] == "failed":
        whole = not rows
    elif settings["optimizer"]["rule"] == NaturalGradient.name:  # at the ends of its legs
        whole = rows[-1] == n and all(before < after for before, after in pairwise(rows))
    else:
        # an estimate every so many updates and one after the last, at the start where there was none
        every = settings["elbo_every"]
        whole = rows == [*range(every, n, every), n]
    if not whole:
        raise ValueError("its trace is not whole")
