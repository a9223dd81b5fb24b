"""The small file in which `pyturingvi setup` remembers which Julia environment to use."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from pyturingvi.errors import EngineError, OutputError
from pyturingvi.support.files import check_writable, write_text_atomically

# what the entries are; which there must be, their reader knows
_KINDS = {"environment": str, "executable": str, "project": str}
_PROBE_KINDS = {"version": str, "library": str, "bindir": str, "stdlib": str, "modified": int}


def settings_path() -> Path:
    """The file; PYTURINGVI_CONFIG names another folder for it than the user's own."""
    folder = os.environ.get("PYTURINGVI_CONFIG")
    return (Path(folder).expanduser() if folder else user_config_path("pyturingvi")) / "julia.json"


def read_settings() -> dict[str, Any] | None:
    """What is remembered; None if nothing is.

    Raises
    ------
    EngineError
        If the file is damaged.
    """
    try:
        settings = json.loads(settings_path().read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise damaged_settings(str(error)) from None
    if not isinstance(settings, dict):
        raise damaged_settings("it is no JSON object")
    probe = settings.get("probe", {})
    if not isinstance(probe, dict):
        raise damaged_settings("its 'probe' is no JSON object")
    for table, kinds in ((settings, _KINDS), (probe, _PROBE_KINDS)):
        for name, kind in kinds.items():
            if name in table and type(table[name]) is not kind:
                raise damaged_settings(f"its {name!r} is {json.dumps(table[name])[:40]}")
    return settings


def write_settings(settings: dict[str, Any]) -> Path:
    """Remember `settings` in place of what was; returns the file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    path = settings_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, json.dumps(settings, indent=1) + "\n")
    except OSError as error:
        raise OutputError(f"setup: cannot write {str(path)!r}: {error.strerror or error}.") from None
    return path


def check_settings_writable() -> None:
    """Find out before a long trial whether the file could be written; its folder is made.

    Raises
    ------
    OutputError
        If it could not.
    """
    path = settings_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"setup: cannot write {str(path)!r}: {error.strerror or error}.") from None
    check_writable(path, "setup")


def forget_settings() -> bool:
    """Remove the file; False if there was none.

    Raises
    ------
    OutputError
        If it cannot be removed.
    """
    try:
        settings_path().unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise OutputError(f"setup: cannot remove {str(settings_path())!r}: {error.strerror or error}.") from None
    return True


def damaged_settings(why: str) -> EngineError:
    """The error for settings that cannot be used."""
    return EngineError(f"the settings {str(settings_path())!r} are unreadable ({why}). Mend it with: pyturingvi setup")
