"""One cell in a worker process: run, or gone on with, and left as files."""

from __future__ import annotations

import copy
import functools
import math
import os
import platform
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyturingvi.errors import DataError, InputError, OutputError
from pyturingvi.fitting import run as run_fit
from pyturingvi.models.base import Model
from pyturingvi.optimize.monitor import Outcome
from pyturingvi.result import Fit
from pyturingvi.settings import Settings, model_digest
from pyturingvi.support.files import check_writable, make_folder
from pyturingvi.support.interrupts import DeferredInterrupt
from pyturingvi.sweeps.cell_file import TRACE, cell_text, json_text
from pyturingvi.sweeps.folder import SweepFolder, publish, read_model
from pyturingvi.sweeps.lock import is_at_work
from pyturingvi.sweeps.parent import parent_watcher

_LOOK_SECONDS = 0.25  # between two looks at whether the sweep goes on


@dataclass(frozen=True)
class Task:
    """What a worker is sent: small, and picklable where a model of the user's own is."""

    out: str
    token: str
    name: str
    description: dict[str, Any]
    settings: Settings
    model: Model | str  # or the name of its file
    keep: str
    n_threads: int


@dataclass(frozen=True)
class Report:
    """What a worker sends back.

    `outcome` is "done" (its file is there), "failed", "stopped" (the sweep does not go on), "unseen" (the worker does
    not see the folder) or "unwritable" (it cannot write there).
    """

    outcome: str
    status: str = ""
    message: str = ""


def _goes_on(folder: SweepFolder, token: str) -> Callable[[], bool]:
    """A function that tells whether the sweep that sent a task goes on; it looks now and then."""
    looked, answer = -math.inf, True

    def goes_on() -> bool:
        nonlocal looked, answer
        if answer and time.monotonic() - looked > _LOOK_SECONDS:
            looked, answer = time.monotonic(), is_at_work(folder, token)
        return answer

    return goes_on


def run_cell(task: Task) -> Report:
    """Run one cell and write its files. Errors of the fit are recorded, not raised."""
    folder = SweepFolder(Path(task.out))
    if not _appears(folder.cells):
        return Report("unseen")
    goes_on = _goes_on(folder, task.token)
    if not goes_on():
        return Report("stopped")
    with parent_watcher.cell_at_work(goes_on):
        try:
            return _run(task, folder, goes_on)
        except OutputError as error:
            return Report("unwritable", message=str(error))


def _run(task: Task, folder: SweepFolder, goes_on: Callable[[], bool]) -> Report:
    started, clock = datetime.now(UTC), time.perf_counter()
    timing: dict[str, Any] = {"started": started.isoformat(timespec="seconds")}
    timing |= {"host": platform.node(), "pid": os.getpid()}
    make_folder(folder.checkpoint(task.name).parent, "out")
    check_writable(folder.checkpoint(task.name), "out")
    try:
        with DeferredInterrupt() as interrupt:
            found = _fit(task, folder, lambda iteration, elbo: not goes_on())
    except (Exception, SystemExit) as error:
        timing |= {"seconds": time.perf_counter() - clock, "traceback": traceback.format_exc()}
        publish(folder.timing_file(task.name), json_text(timing))
        write_failure(folder, task.name, task.description, type(error).__name__, str(error) or type(error).__name__)
        if not folder.checkpoint(task.name).exists():
            folder.clear_scratch(task.name)
        return Report("failed", "failed")
    # the last estimate of a cell that was stopped may be one of fewer draws, or one that it would not have made
    if interrupt.requested or found.status == "interrupted" or (found.status == "diverged" and not goes_on()):
        return Report("stopped")
    columns = {key: column.tolist() for key, column in found._elbo_columns().items()}
    trace = {key: columns[key] for key in TRACE}
    timing |= {"seconds": found.seconds, "trace_seconds": columns["seconds"], "versions": found.versions}
    publish(folder.timing_file(task.name), json_text(timing))
    if task.keep == "fit":
        _save_fit(found, trace, folder.fit_file(task.name))
    text = cell_text(task.description, found.status, found.message, found.n_updates, trace)
    publish(folder.cell_file(task.name), text)  # the last one: now the cell is done
    folder.clear_scratch(task.name)
    return Report("done", found.status)


def write_failure(folder: SweepFolder, name: str, description: dict[str, Any], error: str, message: str) -> None:
    """Record that a cell failed; the next call tries it again."""
    if not folder.is_done(name, description, "trace"):
        publish(folder.cell_file(name), cell_text(description, "failed", message, error=error))


def _fit(task: Task, folder: SweepFolder, stop: Callable[[int, float], bool]) -> Fit:
    wanted = task.description["model_digest"]
    model = _read_model(str(folder.models / task.model), wanted) if isinstance(task.model, str) else task.model
    for part in (model, *task.settings.parts):  # a class that came by pickle is not registered here yet
        part.registry.add(type(part))
    if model_digest(model) != wanted:
        raise DataError(f"{model.label}: the worker has another model than the one the sweep was started with.")
    model = copy.copy(model)  # the label is this cell's; the model may be shared
    model.label = task.description["model"]
    checkpoint = folder.checkpoint(task.name)
    while True:
        resumed = checkpoint.exists()
        try:
            return run_fit(model, task.settings, checkpoint=checkpoint, callback=stop, n_threads=task.n_threads)
        except (InputError, OutputError):  # raised before the first update
            if not resumed:
                raise
            checkpoint.unlink(missing_ok=True)  # damaged, or of another version: the cell starts anew


def _save_fit(found: Fit, trace: dict[str, list[Any]], path: Path) -> None:
    """The fit as a file that is the same from run to run: its times are in the timing file."""
    ended = found.n_updates, found.status, found.message, found.arrived, found.gain, found.astray
    outcome = Outcome(found.params, *ended)
    rows = [(*row, math.nan) for row in zip(*trace.values(), strict=True)]
    make_folder(path.parent, "out")
    Fit(found.model, found.family, found.spec, outcome, rows, math.nan, found.versions).save(path)


@functools.lru_cache(maxsize=2)
def _read_model(path: str, digest: str) -> Model:
    model = read_model(Path(path))
    if model_digest(model) != digest:  # raised in here, so that it is not what the cache keeps
        raise DataError(f"{path!r} holds another model than its name says; call tv.sweep again to write it anew.")
    return model


def _appears(place: Path) -> bool:
    """Whether a folder is there; a network file system may take a moment to show it."""
    for _ in range(20):
        if place.is_dir():
            return True
        time.sleep(0.1)
    return False
