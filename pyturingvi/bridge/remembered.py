"""The small file in which `pyturingvi setup` remembers which Julia environment to use, or why it found none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from pyturingvi.errors import EngineError, OutputError
from pyturingvi.support.files import check_writable, make_folder, write_text


def settings_path() -> Path:
    """The file; PYTURINGVI_CONFIG names another folder for it than the user's own."""
    folder = os.environ.get("PYTURINGVI_CONFIG")
    return (Path(folder).expanduser() if folder else user_config_path("pyturingvi")) / "julia.json"


def check_settings_writable() -> Path:
    """Make the file's folder, and return its path; OutputError if the file cannot be written."""
    path = settings_path()
    make_folder(path.parent, "setup")
    check_writable(path, "setup")
    return path


def read_settings() -> dict[str, Any]:
    """What is remembered, empty if nothing is; EngineError if the file is damaged."""
    try:
        settings = json.loads(settings_path().read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise damaged_settings(str(error)) from None
    if not isinstance(settings, dict) or not settings:
        raise damaged_settings("it is no JSON object with entries")
    return settings


def write_settings(settings: dict[str, Any]) -> Path:
    """Remember `settings` in place of what was, and return the file; OutputError if it cannot be written."""
    path = check_settings_writable()
    write_text(path, json.dumps(settings, indent=1) + "\n")
    return path


def forget_settings() -> bool:
    """Remove the file; False if there was none, OutputError if it cannot be removed."""
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


def remember_failure(what: str, command: str) -> None:
    """Keep why `pyturingvi setup` failed and what mends it, beside what was remembered, for `pyturingvi doctor`."""
    try:
        settings = read_settings()
    except EngineError:
        settings = {}
    write_settings(settings | {"failure": {"what": what, "command": command}})


def last_failure() -> tuple[str, str] | None:
    """Why the last `pyturingvi setup` failed and the command that mends it, or None; EngineError for a damaged file."""
    failure = read_settings().get("failure")
    return (str(failure.get("what")), str(failure.get("command"))) if isinstance(failure, dict) else None
