"""Libraries of optional extras, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from pyturingvi.errors import EngineError


def require(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional extra.

    Raises
    ------
    EngineError
        If it cannot be imported: what needs it, and the command that installs the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EngineError(
            f"{what} needs {module.partition('.')[0]}, which could not be imported ({error}). Install it with "
            f"`pip install 'pyturingvi[{extra}]'`."
        ) from None
