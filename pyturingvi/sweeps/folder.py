"""A sweep's folder: one file a cell, written whole, and what is temporary in `work/`.

`cells/NAME.json` holds a cell's settings, status and numbers, and nothing that differs from run to run: the same cell
gives the same bytes. `fits/NAME.npz` (keep="fit") is equally reproducible. `timings/NAME.json` says when, where and
how long. `models/` holds each model once, for the workers. `work/NAME/checkpoint.npz` is of a cell that is not done;
`work/` is gone when all are.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyturingvi.errors import InputError, OutputError
from pyturingvi.models import Model, model_class
from pyturingvi.settings import model_digest
from pyturingvi.support.archive import join_state, read_archive, split_state, write_archive
from pyturingvi.support.files import check_writable, failures_named, make_folder, write_text
from pyturingvi.support.registry import is_bundled
from pyturingvi.sweeps.cell_file import FINISHED, LaterVersion, read_cell

_MODEL_KIND = "model"
_HALF_WRITTEN = ".pyturingvi-*.part"
_OF_SCRATCH = re.compile(r"checkpoint\.npz|lock|\.pyturingvi-.*\.part|.+_[0-9a-f]{12}\.(json|npz)")


class SweepFolder:
    """The places in a sweep's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cells, self.fits, self.models = root / "cells", root / "fits", root / "models"
        self.timings, self.work = root / "timings", root / "work"

    @classmethod
    def create(cls, out: str | os.PathLike[str]) -> SweepFolder:
        """Make the folder, or refuse `out`; a folder in it is made when the first file comes, `cells` at once."""
        folder = cls(make_folder(out, "out").resolve())
        make_folder(folder.cells, "out")
        for place in (folder.root, folder.cells, folder.fits, folder.models, folder.timings, folder.work):
            if place.exists():
                check_writable(place / ".pyturingvi-probe", "out")
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

    def checkpoint(self, name: str) -> Path:
        """The state of a cell that is not done."""
        return self.work / name / "checkpoint.npz"

    def is_done(self, name: str, description: Mapping[str, Any], keep: str) -> bool:
        """Whether the cell has a result, and a file of its fit where that is to be kept; may raise LaterVersion."""
        try:
            found = read_cell(self.cell_file(name))
        except LaterVersion:
            raise
        except OutputError:
            return False
        ended = found["status"] in FINISHED and found["settings"] == description
        return ended and (keep == "trace" or self.fit_file(name).is_file())

    def clear_scratch(self, name: str) -> None:
        """Remove what is temporary of a cell, and nothing that somebody else has put there."""
        with suppress(OSError):
            for path in (self.work / name).iterdir():
                if _OF_SCRATCH.fullmatch(path.name):
                    path.unlink()
            (self.work / name).rmdir()

    def tidy(self) -> None:
        """Remove what killed sweeps have left: half-written files, and scratch folders of cells that are done."""
        for place in (self.cells, self.fits, self.models, self.timings, self.work):
            for path in place.glob(_HALF_WRITTEN):
                with suppress(OSError):
                    path.unlink()
        for place in self.work.glob("*/"):
            with suppress(OutputError):
                if read_cell(self.cell_file(place.name))["status"] in FINISHED:
                    self.clear_scratch(place.name)


def publish(target: Path, text: str) -> None:
    """Put a text file in its place, whole; an OutputError, which names it, where that fails."""
    make_folder(target.parent, "out")
    write_text(target, text)


# ---- a cell's timing ----------------------------------------------------------------------------------------
def read_timing(path: Path) -> dict[str, Any]:
    """A cell's timing, or an empty dictionary where it is missing or damaged: nothing depends on it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        values = [found.get("seconds", 0.0), *found.get("trace_seconds", [])]
        return found if all(type(value) in (int, float) and 0 <= float(value) < math.inf for value in values) else {}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


# ---- models -------------------------------------------------------------------------------------------------
def store_model(folder: SweepFolder, model: Model, digest: str) -> str | None:
    """Write a model for the workers to read, once, anew over a damaged file; its name, None if no file can hold it."""
    if not model.has_state or not is_bundled(model):  # a worker has not imported a class of the user's own
        return None
    target = folder.models / f"{model.name}-{digest}.npz"
    with suppress(Exception):  # whatever a model raises that is made from damaged data
        stored = read_model(target)
        if type(stored) is type(model) and model_digest(stored) == digest:
            return target.name
    try:
        plain, arrays = split_state(model.get_state(), "model.")
        again = model_class(model.name).from_state(join_state(json.loads(json.dumps(plain)), arrays, "model."))
        if type(again) is not type(model) or model_digest(again) != digest:
            return None
    except (InputError, TypeError, ValueError):
        return None
    make_folder(folder.models, "out")
    with failures_named(target):
        write_archive(target, {"kind": _MODEL_KIND, "model": model.name, "model_state": plain}, arrays)
    return target.name


def read_model(path: Path) -> Model:
    """The model that `store_model` wrote."""
    header, arrays = read_archive(path, _MODEL_KIND, "sweep", ["model", "model_state"])
    return model_class(header["model"]).from_state(join_state(header["model_state"], arrays, "model."))
