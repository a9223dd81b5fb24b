"""What a sweep found, as tidy tables."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyturingvi.errors import InputError, OutputError, unknown_name
from pyturingvi.result import Fit, load_fit
from pyturingvi.support.files import as_path
from pyturingvi.sweeps.cell_file import FINISHED, TRACE, LaterVersion, read_cell
from pyturingvi.sweeps.folder import SweepFolder, read_timing
from pyturingvi.sweeps.grid import LATER, read_grid

if TYPE_CHECKING:
    import pandas as pd

_SETTINGS = ["model", "n_local", "d", "n_params", "simulated", "data_seed", "family", "optimizer", "stepsize"]
_SETTINGS += ["n_iterations", "n_samples", "elbo_every", "elbo_samples", "init_location", "init_scale", "seed"]
_SETTINGS += ["engine", "device", "dtype", "averaging"]
_LEFT_TO_RULE = ["n_iterations", "n_samples", "elbo_every"]
_FOUND = ["status", "elbo", "std_error", "n_updates", "seconds", "error", "message"]
_OF_TRACES = ["cell", "model", "family", "optimizer", "stepsize", "n_samples", "seed", "engine", "dtype"]
_MISSING: dict[str, Any] = {"status": "missing", "message": "", "error": None, "n_updates": None}
_MISSING |= {key: [] for key in TRACE}


class SweepResult:
    """The cells of a sweep, as they were when it was read.

    Attributes
    ----------
    out : Path
        The sweep's folder.
    status : {"completed", "incomplete", "interrupted"}
        "completed": every cell has a result, diverged ones included. "incomplete": some failed, are missing or were
        left out because their files cannot be read. "interrupted": Ctrl-C ended the call. Call `tv.sweep` again to
        go on.
    """

    def __init__(
        self,
        folder: SweepFolder,
        cells: Mapping[str, Mapping[str, Any]],
        interrupted: bool = False,
        n_left_out: int = 0,
    ) -> None:
        self.out: Path = folder.root
        self._folder = folder
        self._cells = dict(cells)
        whole = not n_left_out and all(cell["status"] not in ("failed", "missing") for cell in self._cells.values())
        self.status = "interrupted" if interrupted and not whole else "completed" if whole else "incomplete"

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        words = [f"{n} {status}" for status, n in self.counts.items() if n]
        return f"<SweepResult in {str(self.out)!r}: {self.status}; {len(self)} cells, {', '.join(words) or 'none'}>"

    @property
    def counts(self) -> dict[str, int]:
        """Cells by status: converged, completed, diverged, failed, missing."""
        found = [cell["status"] for cell in self._cells.values()]
        return {status: found.count(status) for status in (*FINISHED, "failed", "missing")}

    @property
    def cells(self) -> list[str]:
        """Names of the cells, in the order of the grid (of the names, from `tv.load_sweep` without a grid)."""
        return list(self._cells)

    def frame(self) -> pd.DataFrame:
        """One row a cell.

        Returns
        -------
        DataFrame
            `cell`, its name; the settings (`stop_within` where a cell has it), with `n_local`, `d` and `n_params` of
            its model and family; and what was found: `status` ("converged", "completed", "diverged", "failed" or
            "missing"), the last `elbo` with its Monte Carlo `std_error`, `n_updates`, `seconds`, and for a failed cell
            the `error` and its `message`. `n_iterations`, `n_samples` and `elbo_every` are missing where they were
            left to `NaturalGradient`.
        """
        import pandas as pd

        rows = []
        for name, cell in self._cells.items():
            seconds = read_timing(self._folder.timing_file(name)).get("seconds", math.nan)
            last = {key: cell[key][-1] if cell[key] else math.nan for key in ("elbo", "std_error")}
            found = {key: cell[key] for key in ("status", "n_updates", "error", "message")}
            rows.append({"cell": name, **_flat(cell["settings"]), **found, **last, "seconds": seconds})
        later = [key for key in LATER if any(key in row for row in rows)]
        frame = pd.DataFrame(rows, columns=["cell", *_SETTINGS, *later, *_FOUND])
        kinds = {"elbo": "float64", "std_error": "float64", "seconds": "float64", "n_updates": "Int64"}
        kinds |= {key: "Int64" for key in _LEFT_TO_RULE if frame[key].isna().any()}
        return frame.astype({**kinds, "data_seed": "Int64"})

    def traces(self) -> pd.DataFrame:
        """One row an ELBO estimate, of all cells that have a result.

        Returns
        -------
        DataFrame
            `cell`, the settings that are varied most (the rest by a merge with `frame()` on `cell`), and `iteration`,
            `elbo`, `std_error`, and `seconds` since the cell began.
        """
        import pandas as pd

        parts = []
        for name, cell in self._cells.items():
            n = len(cell["iteration"])
            if not n:
                continue
            seconds = read_timing(self._folder.timing_file(name)).get("trace_seconds", [])
            words = {"cell": name, **_flat(cell["settings"])}
            rows = {**{key: [words[key]] * n for key in _OF_TRACES}, **{key: cell[key] for key in TRACE}}
            parts.append(pd.DataFrame({**rows, "seconds": seconds if len(seconds) == n else [math.nan] * n}))
        if not parts:
            return pd.DataFrame(columns=[*_OF_TRACES, *TRACE, "seconds"])
        return pd.concat(parts, ignore_index=True)

    def fit(self, cell: str) -> Fit:
        """The whole fit of a cell, of a sweep with keep="fit". Its times are NaN: see `frame()`.

        Where its file is damaged, remove that: `tv.sweep` with keep="fit" then runs the cell again.

        Raises
        ------
        InputError
            If there is no such cell, or its fit was not kept.
        OutputError
            If the fit's file is damaged, or written by a later version.
        """
        if cell not in self._cells:
            raise unknown_name("cell", cell, self._cells)
        path = self._folder.fit_file(cell)
        if not path.is_file():
            raise InputError(f"The fit of {cell} was not kept; call tv.sweep with keep='fit'.")
        return load_fit(path)


def collect(
    folder: SweepFolder, wanted: Mapping[str, Mapping[str, Any]] | None, interrupted: bool = False
) -> SweepResult:
    """Read the cells of a folder: those `wanted` (name -> settings), or all there are."""
    cells: dict[str, Mapping[str, Any]] = {}
    n_left_out = 0
    names: Iterable[str] = sorted(path.stem for path in folder.cells.glob("*.json")) if wanted is None else wanted
    for name in names:
        path = folder.cell_file(name)
        try:
            cells[name] = read_cell(path)
        except OutputError as error:
            if path.exists():
                n_left_out += 1
                then = "." if isinstance(error, LaterVersion) else "; tv.sweep runs it again."
                warnings.warn(f"{error} It is left out{then}", RuntimeWarning, stacklevel=3)
        if name not in cells and wanted is not None:
            cells[name] = {"settings": wanted[name], **_MISSING}
    return SweepResult(folder, cells, interrupted, n_left_out)


def load_sweep(out: str | os.PathLike[str], grid: Any = None) -> SweepResult:
    """Read what a sweep has found so far; it may be running meanwhile.

    Parameters
    ----------
    out : path
        The sweep's folder.
    grid : optional
        Only the cells of this grid, in its order; those without a file have the status "missing".

    Returns
    -------
    SweepResult

    Raises
    ------
    OutputError
        If there is no such folder, or it holds no sweep.
    """
    folder = SweepFolder(as_path(out, "load_sweep").resolve())
    if not folder.cells.is_dir():
        raise OutputError(f"load_sweep: {str(out)!r} is no folder of a sweep: it has no folder 'cells'.")
    if grid is None:
        return collect(folder, None)
    return collect(folder, {cell.name: cell.description for cell in read_grid(grid)})


# ---- words for a table --------------------------------------------------------------------------------------
def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's settings with a number or a word in each place."""
    rule = dict(settings["optimizer"])
    stepsize = rule.pop("stepsize", None)
    if isinstance(stepsize, dict):
        stepsize = f"step_decay({stepsize['initial']:g}, {stepsize['factor']:g}, {stepsize['every']})"
    return {
        **settings,
        "family": _words(settings["family"], "family", {"base": "gaussian", "standardized": True}),
        "optimizer": _words(rule, "rule", _RULE_DEFAULTS),
        "stepsize": stepsize,
        "averaging": None if settings["averaging"] is None else _words(settings["averaging"], "averaging", {}),
    }


_RULE_DEFAULTS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "min_scale": 1e-5, "rate": None, "momentum": 0.9}


def _words(config: Mapping[str, Any], kind: str, usual: Mapping[str, Any]) -> str:
    """A description as `structured` or `structured(standardized=False)`: what is usual is not said."""
    rest = [f"{key}={value}" for key, value in config.items() if key != kind and usual.get(key) != value]
    return f"{config[kind]}({', '.join(rest)})" if rest else str(config[kind])
