"""One sweep at a time works in a folder: its lock, and the note by which its workers know that it goes on."""

from __future__ import annotations

import json
import os
import platform
import uuid
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from pyturingvi.errors import OutputError
from pyturingvi.support.files import make_folder
from pyturingvi.sweeps.folder import SweepFolder, publish

_LOCK = ".pyturingvi-lock"


class SweepLock:
    """A sweep at work in its folder; the system frees the lock when the process dies.

    Where a file system has no locks of any kind, the sweep goes on without: files are replaced whole and the same cell
    gives the same bytes, so a second one spoils nothing. While another sweep is at work in the folder, an OutputError
    says which.
    """

    def __init__(self, folder: SweepFolder) -> None:
        self.token = uuid.uuid4().hex  # what the workers of this sweep know it by
        self._folder = folder
        # a folder `work` that is empty before any sweep has begun is the user's, and is left at the end
        self._is_users = folder.work.is_dir() and not any(folder.work.iterdir())
        make_folder(folder.work, "out")
        self._file = folder.work / _LOCK
        self._lock = FileLock(self._file, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise OutputError(_who_is_at_work(folder)) from None
        except (OSError, NotImplementedError):
            pass

    def __enter__(self) -> SweepLock:
        holder = {"token": self.token, "pid": os.getpid(), "host": platform.node()}
        try:
            publish(_note(self._folder), json.dumps({**holder, "since": datetime.now().isoformat(" ", "seconds")}))
        except OutputError:
            self.__exit__()
            raise
        return self

    def stop_workers(self) -> None:
        """Tell the workers that the sweep does not go on."""
        if is_at_work(self._folder, self.token):
            _note(self._folder).unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        self.stop_workers()
        with suppress(OSError):  # while it is held: whoever opens it now finds it locked, and later no file
            self._file.unlink()
        self._lock.release()
        if not self._is_users:
            with suppress(OSError):
                self._folder.work.rmdir()


def is_at_work(folder: SweepFolder, token: str) -> bool:
    """Whether the sweep of that token goes on."""
    try:
        return bool(json.loads(_note(folder).read_text(encoding="utf-8"))["token"] == token)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # a network file system has its moments
        return True


def _note(folder: SweepFolder) -> Path:
    return folder.work / ".pyturingvi-sweep.json"


def _who_is_at_work(folder: SweepFolder) -> str:
    who, hint = "another sweep", ""
    with suppress(OSError, ValueError, LookupError, TypeError):
        found = json.loads(_note(folder).read_text(encoding="utf-8"))
        who += f" (process {found['pid']} on {found['host']}, since {found['since']})"
        if found["host"] != platform.node():  # whose death is not seen from here where a file stands for a lock
            hint = f" If it is gone, delete {str(folder.work / _LOCK)!r}."
    return f"out: {who} is at work in {str(folder.root)!r}; wait for it, or give another out=.{hint}"
