"""`Comparison`: the cross-language report as a table, as Markdown and as a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.comparisons.measures import COLUMNS, PATH_TOLERANCE
from pyturingvi.errors import InputError
from pyturingvi.support.files import check_writable, file_stem, make_folder, write_picture, write_table, write_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = {
    "points": "The same points: log density and gradient",
    "path": "The same noise: parameters after so many updates",
    "elbo": "Own noise: final ELBO",
    "time": "Time",
    "skipped": "Skipped",
}
_FIGURES = ["iteration", "numpy", "julia", "numpy_error", "julia_error", "difference", "tolerance"]
_ENGINE_COLOURS = {"numpy": "#0072B2", "julia": "#D55E00"}
_STYLES = ["-", "--", ":", "-."]


class Comparison:
    """The numpy engine beside Julia on one problem.

    Attributes
    ----------
    label : str
        The problem.
    source : str
        What stands for Julia: "live Julia VERSION", or "recorded reference of DATE, Julia VERSION".
    remarks : list of str
        What the reader must know about it, e.g. why the record was used and on which shape.
    agrees : bool
        Whether no verdict is against it.
    """

    def __init__(self, rows: Iterable[dict[str, Any]] | pd.DataFrame, source: str, label: str, remarks: Sequence[str]):
        import pandas as pd

        table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
        self._frame = table.reindex(columns=COLUMNS).astype(
            {**dict.fromkeys(_FIGURES, "float64"), "iteration": "Int64", "agrees": "boolean"}
        )
        words = [column for column in COLUMNS if column not in (*_FIGURES, "agrees")]
        self._frame[words] = self._frame[words].astype(object).where(self._frame[words].notna(), "")
        self.source, self.label, self.remarks = source, label, list(remarks)

    def __repr__(self) -> str:
        return f"<Comparison of {self.label} with {self.source}: {self._count()}>"

    @property
    def agrees(self) -> bool:
        """Whether no verdict is against it; rows without a verdict do not count."""
        return not (self._frame["agrees"] == False).any()  # noqa: E712  # missing values

    def frame(self) -> pd.DataFrame:
        """One row a compared quantity.

        Returns
        -------
        DataFrame
            `part` ("points", "path", "elbo", "time" or "skipped"), `model` (the recorded shape where the record was
            used), `family`, `optimizer`, `iteration` (updates made), `quantity`; the figures of `numpy` and `julia`
            (of points and paths the entry where they are farthest apart), with the standard errors `numpy_error` and
            `julia_error` of mean ELBOs; their `difference` in `unit`, for "time" the ratio; `tolerance`; `agrees`
            (missing where there is no verdict); and `note`.
        """
        return self._frame.copy()

    def to_markdown(self) -> str:
        """The report; its first line says what stands for Julia."""
        lines = [f"{self.label}: pyturingvi's numpy engine beside {self.source}.", "", f"**{self._count()}.**", ""]
        lines += [f"- {remark}" for remark in self.remarks] + ([""] if self.remarks else [])
        for part, title in PARTS.items():
            chosen = self._frame[self._frame["part"] == part]
            if not chosen.empty:
                lines += [f"### {title}", "", _markdown(chosen, part, self.label), ""]
        return "\n".join(lines)

    def plot(self, target: Any = None) -> Figure:
        """Draw the differences of the parameter paths, the ELBOs and the times.

        Parameters
        ----------
        target : path or three Axes, optional
            A picture file to write, without a window; or where to draw. By default a new figure.

        Returns
        -------
        Figure
        """
        from pyturingvi.plots import pyplot

        plt = pyplot()
        size: dict[str, Any] = {"figsize": (13.0, 4.2), "layout": "constrained"}
        path = None
        if target is None:
            axes = plt.subplots(1, 3, **size)[1]
        elif isinstance(target, str | os.PathLike):
            from matplotlib.figure import Figure

            path = check_writable(target, "plot")
            axes = Figure(**size).subplots(1, 3)
        else:
            axes = np.ravel(target)
            if len(axes) != 3:
                raise InputError(f"plot: target must be a path or three Axes, got {len(axes)}.")
        self._plot_paths(axes[0])
        _plot_engines(axes[1], self._of("elbo"), "final ELBO (nats)", errors=True)
        _plot_engines(axes[2], self._of("time"), "milliseconds an update", errors=False)
        figure: Figure = axes[0].figure
        if path is not None:
            figure.suptitle(f"{self.label}: numpy engine beside {self.source}", fontsize=10)
            write_picture(figure, path, dpi=150)
        return figure

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write `compare_PROBLEM.csv` (the frame and its source), `.md` and `.png` into a folder, made if missing.

        Returns
        -------
        list of Path

        Raises
        ------
        OutputError
            If they cannot be written; DataError without matplotlib.
        """
        stem = comparison_targets(folder, self.label)
        write_table(stem[0], self._frame.assign(source=self.source))
        write_text(stem[1], self.to_markdown())
        self.plot(stem[2])
        return stem

    # ---- helpers --------------------------------------------------------------------------------------------
    def _of(self, part: str) -> pd.DataFrame:
        return self._frame[self._frame["part"] == part]

    def _count(self) -> str:
        judged = self._frame["agrees"].dropna()
        against = int((~judged.astype(bool)).sum())
        if not len(judged):
            return "no verdict"
        return f"all {len(judged)} verdicts agree" if not against else f"{against} of {len(judged)} do NOT agree"

    def _plot_paths(self, ax: Axes) -> None:
        from pyturingvi.plots import COLOURS

        paths = self._of("path")
        paths = paths[paths["quantity"] == "parameters"]
        optimizers = list(dict.fromkeys(paths["optimizer"]))
        for (family, optimizer), part in paths.groupby(["family", "optimizer"], sort=False):
            style = _STYLES[optimizers.index(optimizer) % len(_STYLES)]
            shown = np.maximum(part["difference"].to_numpy(), 1e-17)  # a difference of 0 must be seen too
            look: dict[str, Any] = {"color": COLOURS.get(str(family).split("(")[0]), "marker": "o"}
            ax.plot(part["iteration"].astype(int), shown, style, label=f"{family}, {optimizer}", **look)
        ax.axhline(PATH_TOLERANCE, color="0.4", lw=0.8)
        ax.annotate("tolerance", (0.02, PATH_TOLERANCE), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
        ax.set(xscale="log", yscale="log", xlabel="updates with the same noise")
        ax.set_ylabel("largest difference of parameters\nrelative to the largest")
        if len(paths):
            ax.legend(fontsize=7)


def comparison_targets(folder: str | os.PathLike[str], label: str, what: str = "save") -> list[Path]:
    """Paths of the CSV, the Markdown and the picture, found writable; the folder is made if it is missing."""
    from pyturingvi.plots import pyplot

    pyplot()
    place = make_folder(folder, what)
    return [check_writable(place / f"compare_{file_stem(label)}.{ending}", what) for ending in ("csv", "md", "png")]


def _plot_engines(ax: Axes, rows: pd.DataFrame, label: str, errors: bool) -> None:
    """Both engines side by side, family after family; ELBOs relative to the mean of the two."""
    if rows[["numpy", "julia"]].notna().all(axis=1).any():  # beside a record, ELBOs of numpy alone are of another model
        rows = rows.dropna(subset=["numpy", "julia"])
    families = list(dict.fromkeys(rows["family"]))
    for shift, (engine, colour) in zip((-0.12, 0.12), _ENGINE_COLOURS.items(), strict=True):
        x = np.array([families.index(family) for family in rows["family"]]) + shift
        y = rows[engine].to_numpy()
        if errors:
            both = rows[["numpy", "julia"]].mean(axis=1).to_numpy()  # of the one there is, without Julia
            bars = rows[f"{engine}_error"].to_numpy()
            ax.errorbar(x, y - both, yerr=bars, fmt="o", capsize=4, color=colour, label=engine)
        else:
            ax.bar(x, np.nan_to_num(y), width=0.22, color=colour, label=engine)
    if not errors and len(rows):
        ax.set_yscale("log")
    ax.set_xticks(range(len(families)), families, fontsize=8)
    ax.set_ylabel(f"{label} minus the mean of both" if errors else label)
    if errors:
        ax.set_title("bars: one standard error", fontsize=8)
    elif rows["note"].str.contains("no measure").any():
        ax.set_title("other processes ran meanwhile: no measure", fontsize=8)
    if len(rows):
        ax.legend(fontsize=8)


_SHOWN = {
    "points": ["quantity", "numpy", "julia", "difference", "tolerance", "agrees", "note"],
    "path": ["family", "optimizer", "tolerance", "agrees", "note"],
    "elbo": ["family", "optimizer", "iteration", "numpy", "julia", "difference", "tolerance", "agrees", "note"],
    "time": ["family", "optimizer", "numpy", "julia", "difference", "note"],
    "skipped": ["family", "note"],
}


def _markdown(rows: pd.DataFrame, part: str, label: str) -> str:
    """A part's table; the updates of a path stand side by side."""
    columns = list(_SHOWN[part])
    if (rows["model"] != label).any():  # the record's small case
        columns.insert(0, "model")
    records = rows.to_dict("records")
    if part == "path":
        stops = sorted(set(rows["iteration"].dropna()))
        place = columns.index("tolerance")
        columns[place:place] = [f"after {stop}" for stop in stops]
        records = [_one_path(path) for _, path in rows.groupby(["family", "optimizer"], sort=False)]
    titles = {"iteration": "updates", "difference": "numpy / julia" if part == "time" else "difference"}
    return markdown_table(
        [titles.get(c, c) for c in columns], [[_shown_as(row, c) for c in columns] for row in records]
    )


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of texts under their titles."""
    head, *lines = ("| " + " | ".join(row) + " |" for row in [titles, *rows])
    return "\n".join([head, "|" + "---|" * len(titles), *lines])


def _one_path(rows: pd.DataFrame) -> dict[Any, Any]:
    """A path's rows as one: the verdict's, or the last one, with the differences after each number of updates."""
    import pandas as pd

    judged = rows[rows["agrees"].notna()]
    one: dict[Any, Any] = dict((rows if judged.empty else judged).iloc[-1])
    for row in rows.to_dict("records"):
        if not pd.isna(row["iteration"]) and not pd.isna(row["difference"]):
            one[f"after {row['iteration']}"] = f"{row['difference']:.1e}"
    return one


def _shown_as(row: dict[Any, Any], column: str) -> str:
    import pandas as pd

    value = row.get(column, "")
    if column == "agrees":
        return "no verdict" if pd.isna(value) else "yes" if value else "**NO**"
    if isinstance(value, str):
        return value.replace("|", "\\|").replace("\n", " ")
    if pd.isna(value):
        return "not available" if column in ("numpy", "julia") and row["part"] in ("elbo", "time") else ""
    if column in ("numpy", "julia") and row["part"] == "elbo":
        return f"{value:.2f} ± {row[f'{column}_error']:.2f}"
    if column in ("difference", "tolerance") and row["part"] in ("elbo", "time"):
        return f"{value:.2g}" + (" s.e." if row["part"] == "elbo" else "")
    if column in ("difference", "tolerance"):
        return f"{value:.1e}"
    if row["part"] == "time":
        return f"{value:.3g}"
    return f"{int(value)}" if column == "iteration" else f"{value:.6g}" if math.isfinite(value) else str(value)
