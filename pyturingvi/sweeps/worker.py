"""One cell in a worker process: run, or gone on with, and left as files."""

from __future__ import annotations

import copy
import functools
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyturingvi.engines.base import Outcome, model_digest
from pyturingvi.errors import DataError, InputError, OutputError
from pyturingvi.families import family_from_config
from pyturingvi.fitting import fit
from pyturingvi.models.base import Model
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.rules import rule_from_config
from pyturingvi.result import Fit
from pyturingvi.sweeps.cell_file import cell_text, json_text
from pyturingvi.sweeps.folder import CellLock, SweepFolder, read_model

_LOOK_SECONDS = 0.25  # between two looks at whether the sweep goes on


@dataclass(frozen=True)
class Task:
    """What a worker is sent: small, and picklable where a model of the user's own is."""

    out: str
    token: str
    name: str
    settings: dict[str, Any]
    init_location: Any
    model: Model | str  # or the name of its file
    keep: str
    n_threads: int


@dataclass(frozen=True)
class Report:
    """What a worker sends back.

    `outcome` is "done" (its file is there), "failed", "busy" (another sweep has it), "stopped" (the sweep does not
    go on) or "unseen" (the worker does not see the folder).
    """

    name: str
    outcome: str
    status: str = ""
    seconds: float = 0.0


def run_cell(task: Task) -> Report:
    """Run one cell and write its files. Errors of the fit are recorded, not raised."""
    folder = SweepFolder(Path(task.out))
    if not _appears(folder.cells):
        return Report(task.name, "unseen")
    going_on = _GoingOn(folder.calls / task.token)
    if not going_on():
        return Report(task.name, "stopped")
    _orphanage.working = True
    try:
        return _run_locked(task, folder, going_on)
    finally:
        _orphanage.working = False


def _run_locked(task: Task, folder: SweepFolder, going_on: Callable[[], bool]) -> Report:
    lock = CellLock(folder.scratch(task.name))
    if not lock.acquire():
        return Report(task.name, "busy")
    try:
        if folder.is_done(task.name, task.settings, task.keep):  # by another sweep, just now
            report = Report(task.name, "done", "elsewhere")
        else:
            report = _run(task, folder, lock, going_on)
    finally:
        lock.release()
    if report.outcome == "done" or (report.outcome == "failed" and not _checkpoint(folder, task.name).exists()):
        folder.clear_scratch(task.name)
    return report


def _run(task: Task, folder: SweepFolder, lock: CellLock, going_on: Callable[[], bool]) -> Report:
    started, clock = datetime.now(UTC), time.perf_counter()
    timing: dict[str, Any] = {"started": started.isoformat(timespec="seconds"), "host": platform.node()}
    timing["pid"] = os.getpid()

    def stop(iteration: int, elbo: float) -> bool:
        lock.sign_of_life()
        return not going_on()

    try:
        found = _fit(task, folder, stop)
        if found.status == "interrupted":
            return Report(task.name, "stopped")
        rows = found.elbo
        trace = {key: rows[key].tolist() for key in ("iteration", "elbo", "std_error")}
        text = cell_text(task.settings, found.status, found.message, found.n_updates, trace)
        timing |= {"seconds": found.seconds, "trace_seconds": rows["seconds"].tolist(), "versions": found.versions}
        folder.publish(task.name, folder.timing_file(task.name), json_text(timing))
        if task.keep == "fit":
            _publish_fit(found, folder, task.name)
        folder.publish(task.name, folder.cell_file(task.name), text)  # the last one: now the cell is done
        return Report(task.name, "done", found.status, found.seconds)
    except (Exception, SystemExit) as error:
        timing |= {"seconds": time.perf_counter() - clock, "traceback": traceback.format_exc()}
        with suppress(OSError):
            folder.publish(task.name, folder.timing_file(task.name), json_text(timing))
        message = str(error) or type(error).__name__
        write_failure(folder, task.name, task.settings, type(error).__name__, message)
        return Report(task.name, "failed", "failed")


def write_failure(folder: SweepFolder, name: str, settings: dict[str, Any], error: str, message: str) -> None:
    """Record that a cell failed; the next call tries it again."""
    if not folder.is_done(name, settings, "trace"):
        folder.publish(name, folder.cell_file(name), cell_text(settings, "failed", message, error=error))


def _fit(task: Task, folder: SweepFolder, stop: Callable[[int, float], bool]) -> Fit:
    settings = task.settings
    wanted = settings["model_digest"]
    model = _read_model(str(folder.models / task.model), wanted) if isinstance(task.model, str) else task.model
    if model_digest(model) != wanted:
        raise DataError(f"{settings['model']}: the worker has another model than the one the sweep was started with.")
    model = copy.copy(model)  # the label is this cell's; the model may be shared
    model.label = settings["model"]
    averaging = settings["averaging"]
    checkpoint = _checkpoint(folder, task.name)
    while True:
        resumed = checkpoint.exists()
        try:
            return fit(
                model,
                family_from_config(settings["family"]),
                rule_from_config(settings["optimizer"]),
                **{key: settings[key] for key in ("n_iterations", "n_samples", "elbo_every", "elbo_samples")},
                **{key: settings[key] for key in ("init_scale", "seed", "engine", "device", "dtype")},
                init_location=task.init_location,
                averaging=None if averaging is None else PolynomialAveraging(averaging["eta"]),
                progress=False,
                checkpoint=checkpoint,
                callback=stop,
                n_threads=task.n_threads,
            )
        except (InputError, OutputError):  # raised before the first update
            if not resumed:
                raise
            checkpoint.unlink(missing_ok=True)  # damaged, or of another version: the cell starts anew


def _publish_fit(found: Fit, folder: SweepFolder, name: str) -> None:
    """The fit as a file that is the same from run to run: its times are in the timing file."""
    outcome = Outcome(found.params, found.n_updates, found.status, found.message)
    rows = [(int(i), float(e), float(s), float("nan")) for i, e, s in zip(*_columns(found), strict=True)]
    timeless = Fit(found.model, found.spec, outcome, rows, float("nan"), found.versions)
    staged = timeless.save(folder.scratch(name) / folder.fit_file(name).name)
    folder.fits.mkdir(exist_ok=True)
    os.replace(staged, folder.fit_file(name))


def _columns(found: Fit) -> list[Any]:
    rows = found.elbo
    return [rows[key] for key in ("iteration", "elbo", "std_error")]


def _checkpoint(folder: SweepFolder, name: str) -> Path:
    return folder.scratch(name) / "checkpoint.npz"


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


# ---- whether to go on ---------------------------------------------------------------------------------------
class _GoingOn:
    """True as long as the call that sent the task is there."""

    def __init__(self, call: Path) -> None:
        self._call = call
        self._looked = -float("inf")
        self._answer = True

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._answer and now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._answer = self._call.is_dir() and not _orphanage.orphaned
        return self._answer


class _Orphanage:
    """What a local worker does when the process that started it is gone: it saves its cell and ends."""

    orphaned = False
    working = False

    def watch(self, parent: int) -> None:
        import psutil

        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(parent)
            while os.getppid() == parent and process.is_running():
                time.sleep(0.5)
        self.orphaned = True
        while self.working:
            time.sleep(0.1)
        os._exit(1)


_orphanage = _Orphanage()


def start_local_worker(parent: int) -> None:
    """Called once in each process that a sweep starts itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the sweep, which tells its workers
    threading.Thread(target=_orphanage.watch, args=(parent,), daemon=True).start()
