"""What every figure or table of the paper is here: computed into CSV files, then drawn and judged from them alone."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pyturingvi import plots
from pyturingvi.errors import InputError, unknown_name
from pyturingvi.problems import VARIANTS
from pyturingvi.reproduce.tables import read_table
from pyturingvi.settings import ENGINES
from pyturingvi.support.files import as_path, check_writable, make_folder
from pyturingvi.sweeps.pools import check_workers

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = ("mean-field", "structured", "full-rank")  # the paper's, in its order, whatever others there are
COLOURS = {family: plots.COLOURS[family] for family in FAMILIES}
FIGURES = ("table1", "synthetic", "stepsize", "trace", "theory", "beyond")  # a module of this package each
WITH_CELLS = ("synthetic", "stepsize", "trace")  # made from a sweep's cells
WITH_DATA = ("stepsize", "trace", "beyond")  # with irt
WITH_VARIANT = ("stepsize", "trace")  # on problems as the released code poses them


@dataclass(frozen=True)
class Job:
    """One call of a figure: what to compute, how, and the folder of its files `FIGURE_PRESET_PART.csv`.

    Those of the variant "released" are `FIGURE_PRESET-released_PART.csv`.
    """

    figure: str
    preset: str
    folder: Path
    engine: str = "auto"
    n_workers: int | None = None
    progress: bool = True
    cells: Path | None = None
    data_dir: Path | None = None  # for the published CritLangAcq data of irt
    variant: str = "paper"  # of the problems

    def file(self, part: str, ending: str = ".csv") -> Path:
        """Path of one of the figure's files."""
        preset = self.preset if self.variant == "paper" else f"{self.preset}-{self.variant}"
        return self.folder / f"{self.figure}_{preset}_{part}{ending}"

    @property
    def sweep_folder(self) -> Path:
        """Folder of the sweep whose cells the figure is made from."""
        return self.cells or self.folder / "cells"

    def read(self, part: str, columns: Sequence[str] = (), numbers: Sequence[str] = ()) -> pd.DataFrame:
        """One of the figure's CSV files; DataError if it is not there, or cannot be used."""
        return read_table(self.file(part), self.command(), columns, numbers)

    def command(self) -> str:
        """The command that computes the figure."""
        words = ["pyturingvi", "reproduce", self.figure, "--preset", self.preset, "--out", str(self.folder)]
        words += [] if self.variant == "paper" else ["--variant", self.variant]
        for option, path in (("--cells", self.cells), ("--data-dir", self.data_dir)):
            words += [] if path is None else [option, str(path)]
        return shlex.join(words)

    def tell(self, words: str) -> None:
        """A line on standard error, unless the call is a silent one."""
        if self.progress:
            print(f"pyturingvi: {words}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Figure:
    """A figure or table of the paper.

    `compute` writes the CSV files; called again after an interruption, it does only what is missing. `report` reads
    these alone, draws the PNG files beside them, and returns the text to print: each value beside the published one
    where there is one, each claim of the paper with what was found.
    """

    source: str  # where in the paper, and what it shows
    presets: Mapping[str, str]  # preset -> what it computes, and about how long on two cores
    compute: Callable[[Job], None]
    report: Callable[[Job], str]
    computed: Sequence[str]  # the files that each of them writes, without FIGURE_PRESET_ before the name
    reported: Sequence[str]

    def check_files(self, job: Job, from_csv: bool) -> None:
        """OutputError, or DataError without matplotlib, unless every file of the figure can be written."""
        for name in [*(() if from_csv else self.computed), *self.reported]:
            part, ending = os.path.splitext(name)
            if ending == ".png":
                plots.pyplot()
            check_writable(job.file(part, ending), "out")


def figure_named(name: str) -> Figure:
    """Load the figure's module and return its `FIGURE`; InputError for an unknown name."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    found: Figure = import_module(f"pyturingvi.reproduce.{name}").FIGURE
    return found


def reproduce(
    name: str,
    preset: str = "quick",
    out: str | Path = "reproduced",
    *,
    from_csv: bool = False,
    engine: str = "auto",
    n_workers: int | None = None,
    progress: bool = True,
    cells: str | Path | None = None,
    data_dir: str | Path | None = None,
    variant: str = "paper",
) -> str:
    """Compute a figure or table of the paper, draw it, and say how far it is from what was published.

    Parameters
    ----------
    name : {"table1", "synthetic", "stepsize", "trace", "theory", "beyond"}
    preset : str
        "quick" (minutes) or "paper" (the paper's own size); some figures have more.
    out : path
        Folder for `NAME_PRESET_*.csv` and `.png`; made if it is not there.
    from_csv : bool
        Compute nothing: draw and judge again from the CSV files in `out`.
    engine : {"auto", "numpy", "julia"}
    n_workers : int, optional
        Processes; by default one a physical core.
    progress : bool
    cells : path, optional
        "synthetic", "stepsize" and "trace" are made from a sweep's cells in this folder; `out/cells` by default. What
        is done there, by `tv.sweep` on a cluster say, is not done again.
    data_dir : path, optional
        "stepsize", "trace" and "beyond" with preset "paper": folder with the published `data.csv` of irt, which is
        simulated without it.
    variant : {"paper", "released"}
        "stepsize" and "trace" on problems as in the paper's text, or as in its released code (`tv.load_problem`).

    Returns
    -------
    str
        What was found, as text.

    Raises
    ------
    InputError, DataError, OutputError
        Before any work, for an unknown name, preset, engine or variant, a number of processes below 1 or beyond what
        the machine bears, an argument that the figure has no use for, CSV files that are not there or are damaged, or
        files that cannot be written.
    """
    figure = figure_named(name)
    if preset not in figure.presets:
        raise unknown_name("preset", preset, figure.presets)
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if n_workers is not None:
        n_workers = check_workers(n_workers, "n_workers (--workers)")
    if variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS)
    if variant != "paper" and name not in WITH_VARIANT:
        raise InputError(f"variant (--variant) goes with {' and '.join(WITH_VARIANT)}, not with {name}.")
    _refuse_what_has_no_effect(name, preset, n_workers, cells, data_dir)
    folder = as_path(out, "out")
    if from_csv and not folder.is_dir():
        raise InputError(f"out: {str(folder)!r} is not a folder with CSV files to draw from.")
    make_folder(folder, "out")
    places = {"cells": cells, "data_dir": data_dir}
    given = {what: None if path is None else as_path(path, what) for what, path in places.items()}
    job = Job(name, preset, folder, engine, n_workers, progress, **given, variant=variant)
    figure.check_files(job, from_csv)
    if not from_csv:
        figure.compute(job)
    return figure.report(job)


def _refuse_what_has_no_effect(name: str, preset: str, n_workers: int | None, cells: object, data_dir: object) -> None:
    """InputError for an argument that would be passed over in silence."""
    for words, value, figures in (
        ("cells (--cells)", cells, WITH_CELLS),
        ("data_dir (--data-dir)", data_dir, WITH_DATA),
    ):
        if value is not None and name not in figures:
            raise InputError(f"{words} goes with {' and '.join(figures)}, not with {name}.")
    if data_dir is not None and preset != "paper":
        raise InputError(
            f"data_dir (--data-dir) goes with the preset 'paper'; {preset!r} has no irt, or a simulated one."
        )
    if n_workers is not None and name == "table1":
        raise InputError("n_workers (--workers) goes with the other figures: table1 is counted at once.")
