"""The appendix's convergence plots: the ELBO against the iteration, at the published stepsizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.reproduce import realistic, realistic_tables
from pyturingvi.reproduce.bands import BAND, draw_band, panels
from pyturingvi.reproduce.figure import FAMILIES, Figure, Job
from pyturingvi.reproduce.realistic_tables import in_order, told, trace_table
from pyturingvi.support.files import write_picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SHOWN = 0.01  # of the climb, the last of it, is drawn
NEAR = 0.01  # of the climb: a curve that is so close to its last value has arrived
NUMBERS = ["stepsize", "n_iterations", "iteration", "median", "q10", "q90", "n", "diverged"]


def compute(job: Job, fit: bool = True) -> None:
    """Run the sweep's part at the published stepsizes, and write median and band at some iterations of each curve.

    Without `fit` they are of what the sweep's folder has by now.
    """
    realistic_tables.compute(job, trace_table, fit)


def report(job: Job) -> str:
    """Draw the curves, and say where each ends and when it had all but arrived."""
    trace = job.read("elbo", ["problem", "family", "engine", "dtype"], NUMBERS)
    _draw(trace, job)
    lines = [
        told(job, trace),
        "Median ELBO over the replications (nats); 'arrived' is the first iteration drawn from which on the median "
        f"stays within {NEAR:.0%} of its climb from its last value, or within a nat",
    ]
    for problem in in_order(trace.problem):
        lines += ["", f"{problem}:", "  stepsize  family       after the first  after the last    80 % band    arrived"]
        here = trace[trace.problem == problem]
        for step in sorted(here.stepsize.unique()):
            for family in FAMILIES:
                curve = here[(here.stepsize == step) & (here.family == family)].sort_values("iteration")
                if len(curve):
                    lines.append(f"  {step:<8.3g}  {family:<11}{_words(curve)}")
    return "\n".join(lines)


def _words(curve: pd.DataFrame) -> str:
    first, last = curve.iloc[0], curve.iloc[-1]
    if not np.isfinite(last["median"]):
        return f"  diverged in {int(last.diverged)} of {int(last.n)} replications"
    near = max(NEAR * abs(last["median"] - first["median"]), 1.0)
    away = curve.iteration[~((curve["median"] - last["median"]).abs() <= near)]
    arrived = int(curve.iteration[curve.iteration > (away.max() if len(away) else 0)].min())
    diverged = f", {int(last.diverged)} of {int(last.n)} diverged" if last.diverged else ""
    return (
        f"{first['median']:>14.1f} @{int(first.iteration):<5}{last['median']:>10.1f} @{int(last.iteration):<6}"
        f"{last['q10']:>10.1f} to {last['q90']:.1f}  {arrived:>7,}{diverged}"
    )


def _draw(trace: pd.DataFrame, job: Job) -> None:
    """A row a problem, a column a stepsize; another row to where the shortest family's run ends."""
    rows: list[tuple[str, pd.DataFrame]] = []
    for problem in in_order(trace.problem):
        here = trace[trace.problem == problem]
        ends = sorted(here.n_iterations.unique())
        rows.append((problem, here[here.n_iterations == ends[-1]]))
        if len(ends) > 1:
            rows.append((f"{problem} to {ends[0]:,}", here[here.iteration <= ends[0]]))
    n_columns = max((here.stepsize.nunique() for _, here in rows), default=1)
    figure, axes = panels(max(len(rows), 1), n_columns)
    for line, (title, here) in zip(axes, rows, strict=False):
        for ax, step in zip(line, np.sort(here.stepsize.unique()), strict=False):
            ax.set_axis_on()
            _panel(ax, here[here.stepsize == step])
            ax.set_title(f"{title}, stepsize {step:.3g}", fontsize=10)
            ax.set_xlabel("iteration")
        line[0].set_ylabel("ELBO (nats)")
    figure.suptitle("ELBO: median and 80 % band over replications; the end of the climb", fontsize=11)
    write_picture(figure, job.file("elbo", ".png"))


def _panel(ax: Axes, here: pd.DataFrame) -> None:
    finals = []
    for family in FAMILIES:
        curve = here[here.family == family].sort_values("iteration")
        if len(curve):
            bands = [{name: float(row[name]) for name in BAND} for row in curve.to_dict("records")]
            draw_band(ax, curve.iteration.to_numpy(), bands, family)
            finals.append(bands[-1]["median"])
    ax.ticklabel_format(axis="y", useOffset=False)
    shown = [value for value in finals if np.isfinite(value)]
    values = here["median"][np.isfinite(here["median"])]
    if shown and max(shown) > values.min():
        # the climb is thousands of nats where the families differ by a few
        best = max(shown)
        below = max(3 * (best - min(shown)), SHOWN * (best - values.min()))
        late = values[here.iteration >= 0.9 * here.iteration.max()]
        if late.min() > min(shown) - below:  # else it goes on to the end, and is all there is to see
            ax.set_ylim(min(shown) - below, max(values.max(), best) + 0.1 * below)


FIGURE = Figure(
    source="Appendix: ELBO against the iteration at three stepsizes, nine problems",
    presets={name: words for name, (words, _) in realistic.PRESETS.items()},
    compute=compute,
    report=report,
    computed=["elbo.csv"],
    reported=["elbo.png"],
)
