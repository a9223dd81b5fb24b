"""Figure 4 and the first panels of the appendix: the ELBO after T updates against the stepsize."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.reproduce import realistic, realistic_tables
from pyturingvi.reproduce.bands import band, below_axis, draw_band, panels
from pyturingvi.reproduce.claims import STEPSIZE_CLAIMS, WITHIN, Curves, judge, medians, sensitivity, values_at
from pyturingvi.reproduce.figure import FAMILIES, Figure, Job
from pyturingvi.reproduce.realistic_tables import elbo_table, expected
from pyturingvi.support.files import write_picture, write_table
from pyturingvi.sweeps.cell_file import FINISHED

if TYPE_CHECKING:
    import pandas as pd

WIDE = 300.0  # nats between the medians of a panel, from which on its axis is logarithmic


def compute(job: Job, fit: bool = True) -> None:
    """Run the sweep, or without `fit` take what its folder has by now, and write one row a fit."""
    realistic_tables.compute(job, elbo_table, fit)


def report(job: Job) -> str:
    """Draw the curves, judge the claims, and say both in words."""
    values = [f"{name}{suffix}" for name in ("elbo", "std_error") for suffix in ("", f"_{realistic.EARLY}")]
    numbers = ["stepsize", "seed", "n_iterations", "n_updates", *values]
    elbo = job.read("elbo", ["problem", "family", "engine", "status"], numbers)
    compared = medians(elbo)
    claims = judge(elbo)
    write_table(job.file("claims"), claims)
    _draw(elbo, compared, job)
    lines = [_settings_line(elbo, sum(expected(job).values()))]
    for (problem, iteration), curves in compared.items():
        lines += ["", f"{problem}, ELBO after {iteration:,} updates (nats):", *_table(curves)]
    lines += ["", "Claims; each quantity is above zero where the claim holds, with its 95 % interval (nats):"]
    for claim, words in STEPSIZE_CLAIMS.items():
        lines += ["", f"{claim}: {words}"]
        here = claims[claims.claim == claim]
        for row in here.to_dict("records"):
            lines.append(
                f"  {row['problem']}, {row['iteration']:,} updates: {row['quantity']}: {row['value']:.1f} "
                f"[{row['low']:.1f}, {row['high']:.1f}] -> {row['verdict']}"
                + (f" ({row['remark']})" if isinstance(row["remark"], str) and row["remark"] else "")
            )
        if here.empty:
            lines.append("  nothing measured -> cannot be shown at this size")
    return "\n".join(lines)


def _settings_line(elbo: pd.DataFrame, n_fits: int) -> str:
    done = elbo[elbo.status.isin(FINISHED)]
    counts = {status: int((elbo.status == status).sum()) for status in ("diverged", "failed")}
    counts["missing"] = n_fits - len(done) - counts["failed"]  # also those that the table does not name
    words = [f"{len(done)} of {n_fits} fits are there", *(f"{n} {status}" for status, n in counts.items() if n)]
    engines = " and ".join(sorted(done.engine.unique())) or "no"
    return f"{', '.join(words)}; {engines} engine"


def _table(curves: Curves) -> list[str]:
    """Medians by family and stepsize, and the measures of sensitivity."""
    import pandas as pd

    steps = sorted({step for curve in curves.values() for step in curve})
    rows: dict[str, dict[str, Any]] = {}
    for family, curve in curves.items():
        found = sensitivity(curve)
        rows[family] = {f"{step:.3g}": curve[step].value if step in curve else math.nan for step in steps}
        rows[family] |= {"range": found.spread.value, "loss at the largest": found.loss.value}
        rows[family][f"within {WITHIN:g} nats of its best"] = f"{round(found.good * len(curve))} of {len(curve)}"
    shown = pd.DataFrame.from_dict(rows, orient="index")
    return shown.to_string(na_rep="", float_format=lambda x: f"{x:.1f}" if abs(x) < 1e7 else f"{x:.3g}").splitlines()


# ---- picture ------------------------------------------------------------------------------------------------
def _draw(elbo: pd.DataFrame, compared: dict[tuple[str, int], Curves], job: Job) -> None:
    """One panel a problem and iteration."""
    n_columns = min(3, max(len(compared), 1))
    figure, axes = panels(-(-max(len(compared), 1) // n_columns), n_columns)
    for ax, ((problem, iteration), curves) in zip(axes.flat, compared.items(), strict=False):
        ax.set_axis_on()
        medians = np.array([median.value for curve in curves.values() for median in curve.values()])
        medians = medians[np.isfinite(medians)]
        wide = bool(medians.size) and bool(np.ptp(medians) > WIDE)
        best = float(medians.max()) if wide else None
        frame = values_at(elbo[elbo.problem == problem], iteration)
        for family in FAMILIES:
            part = frame[frame.family == family]
            if len(part):
                steps = np.sort(part.stepsize.unique())
                bands = [band(part.value[part.stepsize == step].to_numpy()) for step in steps]
                draw_band(ax, steps, bands, family, marker="o", below=best)
        ax.set(xscale="log", xlabel="stepsize", ylabel="ELBO (nats)")
        if best is None:
            ax.ticklabel_format(axis="y", useOffset=False)
        else:
            below_axis(ax, best)
        ax.set_title(f"{problem}, T = {iteration:,}", fontsize=10)
    figure.suptitle("ELBO after T updates: median and 80 % band over replications", fontsize=11)
    write_picture(figure, job.file("elbo", ".png"))


FIGURE = Figure(
    source="Figure 4 and the appendix: ELBO after T updates against the stepsize, nine problems",
    presets={name: words for name, (words, _) in realistic.PRESETS.items()},
    compute=compute,
    report=report,
    computed=["elbo.csv"],
    reported=["claims.csv", "elbo.png"],
)
