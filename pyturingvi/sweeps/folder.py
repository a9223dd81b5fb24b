"""A sweep's folder: one file a cell, written whole, and everything temporary apart from it.

`cells/NAME.json` holds a cell's settings, status and numbers, and nothing that differs from run to run: the same cell
gives the same bytes. `fits/NAME.npz` (keep="fit") is equally reproducible. `timings/NAME.json` says when, where and
how long. `models/` holds each model once, for the workers. `work/NAME/` has the lock, the checkpoint and half-written
files of a cell that is not done, `calls/TOKEN/` exists while a call of `tv.sweep` runs; both are gone at the end.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pyturingvi.engines.base import model_digest
from pyturingvi.errors import InputError, OutputError
from pyturingvi.models import Model, model_class
from pyturingvi.support.archive import join_state, read_archive, split_state, write_archive
from pyturingvi.support.files import check_writable, make_folder, write_text_atomically
from pyturingvi.sweeps.cell_file import FINISHED, LaterVersion, check_fit_file, read_cell

_MODEL_KIND = "model"
_STALE_SECONDS = 3600.0
_TOKEN = re.compile("[0-9a-f]{12}")  # the name of a call's folder
_STAGED = r"lock|\.pyturingvi-.*\.part"  # what is in it, and in a cell's scratch folder
_CALL = re.compile(rf"{_STAGED}|.+-[0-9a-f]{{16}}\.npz")
_SCRATCH = re.compile(rf"{_STAGED}|checkpoint\.npz|.+_[0-9a-f]{{12}}\.(json|npz)")


class SweepFolder:
    """The places in a sweep's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cells, self.fits, self.models = root / "cells", root / "fits", root / "models"
        self.timings, self.work, self.calls = root / "timings", root / "work", root / "calls"

    @classmethod
    def create(cls, out: str | os.PathLike[str]) -> SweepFolder:
        """Make the folder and those in it, or refuse it.

        Raises
        ------
        InputError, OutputError
            If `out` is no path, a file, or cannot be written.
        """
        folder = cls(make_folder(out, "out").resolve())
        for place in (folder.cells, folder.fits, folder.models, folder.timings, folder.work, folder.calls):
            make_folder(place, "out")
        for place in (folder.cells, folder.fits, folder.models, folder.timings, folder.work):
            check_writable(place / "probe", "out")
        return folder

    def cell_file(self, name: str) -> Path:
        """A cell's own file."""
        return self.cells / f"{name}.json"

    def fit_file(self, name: str) -> Path:
        """The whole fit, with keep="fit"."""
        return self.fits / f"{name}.npz"

    def timing_file(self, name: str) -> Path:
        """When, where and how long a cell ran."""
        return self.timings / f"{name}.json"

    def scratch(self, name: str) -> Path:
        """Everything temporary of one cell."""
        return self.work / name

    def is_done(self, name: str, settings: Mapping[str, Any], keep: str) -> bool:
        """Whether the cell has a whole, fitting file with a result in it, and its fit where that is to be kept.

        Raises
        ------
        OutputError
            If a later version wrote it.
        """
        try:
            found = read_cell(self.cell_file(name))
            whole = found["status"] in FINISHED and found["settings"] == settings
            if whole and keep == "fit":
                check_fit_file(self.fit_file(name), found)
            return whole
        except LaterVersion:
            raise
        except OutputError:
            return False

    def _has_result(self, name: str) -> bool:
        try:
            return read_cell(self.cell_file(name))["status"] in FINISHED
        except OutputError:
            return False

    def publish(self, name: str, target: Path, text: str) -> None:
        """Put a text file in its place, whole; what a kill leaves half-written lies in the cell's scratch folder."""
        for attempt in range(3):
            try:
                for place in (self.scratch(name), target.parent):
                    place.mkdir(parents=True, exist_ok=True)
                staged = self.scratch(name) / target.name
                write_text_atomically(staged, text)
                os.replace(staged, target)
                return
            except FileNotFoundError:  # another sweep finished this cell and cleared up
                if attempt == 2:
                    raise

    def refuse_what_is_in_the_way(self, name: str) -> None:
        """Raise an OutputError where one of a cell's files cannot be put because a folder has its name."""
        scratch = self.scratch(name)
        if scratch.exists() and not scratch.is_dir():
            raise OutputError(f"out: {str(scratch)!r} is a file, where the sweep makes a folder; move it away.")
        for path in (self.cell_file(name), self.fit_file(name), self.timing_file(name)):
            _refuse_folder(path)

    def clear_scratch(self, name: str) -> None:
        """Remove what is temporary of a cell."""
        _remove(self.scratch(name), _SCRATCH)

    def tidy(self) -> None:
        """Remove empty folders and what calls that were killed have left, but nothing that is not the sweep's own."""
        dead = [(place, _CALL) for place in _listed(self.calls) if _TOKEN.fullmatch(place.name)]
        dead += [(place, _SCRATCH) for place in _listed(self.work) if self._has_result(place.name)]
        for place, own in dead:
            if not _holds_only(place, own):  # before the lock, whose file would be made there
                continue
            lock = FileLock(place / "lock")
            with suppress(Timeout, OSError, NotImplementedError):
                lock.acquire(blocking=False)
                lock.release()
                _remove(place, own)
        for place in (self.fits, self.models, self.timings, self.work, self.calls):
            with suppress(OSError):
                place.rmdir()


def _listed(place: Path) -> list[Path]:
    try:
        return sorted(place.iterdir())
    except OSError:
        return []


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise OutputError(f"out: {str(path)!r} is a folder, where the sweep writes a file; move it away.")


def _holds_only(place: Path, own: re.Pattern[str]) -> bool:
    """Whether it is a folder, of regular files of such names alone."""
    try:
        with os.scandir(place) as entries:
            whole = all(own.fullmatch(entry.name) and entry.is_file(follow_symlinks=False) for entry in entries)
        return whole and not place.is_symlink()
    except OSError:
        return False


def _remove(place: Path, own: re.Pattern[str]) -> None:
    """Remove a folder; one that holds anything else than files of such names is left as it is."""
    if _holds_only(place, own):
        with suppress(OSError):
            for path in _listed(place):
                path.unlink(missing_ok=True)
            place.rmdir()


# ---- locks --------------------------------------------------------------------------------------------------
class CellLock:
    """Keeps two sweeps from the same work; the system frees it when its holder dies.

    It saves work and protects nothing: files are replaced whole and the same cell gives the same bytes. So where
    a file system has no locks, and where a holder has given no sign of life for an hour, the cell is run without.
    """

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / "lock"
        self._lock: Any = None
        self._touched = -math.inf

    def acquire(self) -> bool:
        """Take the lock, or say that another holds it."""
        for _ in range(3):
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                lock = FileLock(self._path, thread_local=False)
                lock.acquire(blocking=False)
                self._lock = lock
                self.sign_of_life()
                return True
            except Timeout:
                return self._is_stale()
            except FileNotFoundError:  # its holder finished the cell just now and cleared up
                continue
            except (OSError, NotImplementedError):
                return True
        return True

    def sign_of_life(self) -> None:
        """Tell others now and then that the holder is at work."""
        now = time.monotonic()
        if now - self._touched > 5.0:
            self._touched = now
            with suppress(OSError):
                os.utime(self._path)

    def _is_stale(self) -> bool:
        try:
            return time.time() - self._path.stat().st_mtime > _STALE_SECONDS
        except OSError:
            return True

    def release(self) -> None:
        """Give it back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class Call:
    """One call of `tv.sweep`: its workers go on as long as its folder is there."""

    def __init__(self, folder: SweepFolder) -> None:
        while True:
            self.token = uuid.uuid4().hex[:12]
            self.path = folder.calls / self.token
            self._lock: Any = FileLock(self.path / "lock", thread_local=False)
            try:
                self.path.mkdir(parents=True)
                self._lock.acquire(blocking=False)
            except (Timeout, FileNotFoundError):  # another call is clearing up, and took this one for a dead one
                continue
            except (OSError, NotImplementedError):  # no locks on this file system
                self._lock = None
            if self.path.is_dir():
                return

    def close(self) -> None:
        """Tell the workers to stop."""
        if self._lock is not None:
            with suppress(OSError):
                self._lock.release()
        shutil.rmtree(self.path, ignore_errors=True)


# ---- a cell's timing ----------------------------------------------------------------------------------------
def read_timing(path: Path) -> dict[str, Any]:
    """A cell's timing, or an empty dictionary where it is missing or damaged: nothing depends on it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if _is_duration(found.get("seconds", 0.0), *found.get("trace_seconds", [])) else {}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def _is_duration(*values: Any) -> bool:
    return all(type(value) in (int, float) and 0 <= float(value) < math.inf for value in values)


# ---- models -------------------------------------------------------------------------------------------------
def store_model(folder: SweepFolder, call: Call, model: Model, digest: str) -> Path | None:
    """Write a model for the workers to read, once, anew over a damaged file; None for one that no file holds whole."""
    target = folder.models / f"{model.name}-{digest}.npz"
    with suppress(Exception):  # whatever a model raises that is made from damaged data
        stored = read_model(target)
        if type(stored) is type(model) and model_digest(stored) == digest:
            return target
    try:
        plain, arrays = split_state(model.get_state(), "model.")
        again = model_class(model.name).from_state(join_state(json.loads(json.dumps(plain)), arrays, "model."))
        if type(again) is not type(model) or model_digest(again) != digest:
            return None
    except (InputError, TypeError, ValueError):
        return None
    _refuse_folder(target)
    staged = call.path / target.name
    target.parent.mkdir(exist_ok=True)
    write_archive(staged, {"kind": _MODEL_KIND, "model": model.name, "model_state": plain}, arrays)
    os.replace(staged, target)
    return target


def read_model(path: Path) -> Model:
    """The model that `store_model` wrote."""
    header, arrays = read_archive(path, _MODEL_KIND, "sweep", ["model", "model_state"])
    return model_class(header["model"]).from_state(join_state(header["model_state"], arrays, "model."))
