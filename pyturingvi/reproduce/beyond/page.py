"""The page: both optimizers beside each other, drawn, judged and told from the table of fits alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.plots import COLOURS, pyplot
from pyturingvi.reproduce.beyond.adam import COMPARED
from pyturingvi.reproduce.beyond.fits import DEFAULT, NUMBERS, PRESETS, WORDS
from pyturingvi.reproduce.beyond.verdicts import OPTIMIZER_CLAIMS, ends_of, judge
from pyturingvi.reproduce.figure import Job
from pyturingvi.reproduce.realistic import PAPER_ITERATIONS
from pyturingvi.reproduce.realistic_tables import in_order
from pyturingvi.support.files import write_picture, write_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

OPTIMIZERS = ("adam", DEFAULT)


def report(job: Job) -> str:
    """Draw the ends of all fits, judge the claims, and say both in words."""
    fits = job.read("fits", WORDS, NUMBERS)
    claims = judge(fits)
    write_table(job.file("claims"), claims)
    _draw(fits, job)
    own = fits[fits.optimizer == DEFAULT]
    wanted = len(COMPARED) * sum(PRESETS[job.preset].n_seeds.values())
    counts = ", ".join(f"{n} {status}" for status, n in own.status.value_counts().items())
    engines = " and ".join(sorted(own.engine.unique())) or "no"
    lines = [
        f"{len(own)} of {wanted} default fits are there ({counts}); {engines} engine",
        "ELBO: median over seeds with its standard error, in nats. Gradients: of the log density at a point, a fit. "
        f"CPU: processor seconds a fit, rough; of Adam {PAPER_ITERATIONS:,} times what an update takes beside the "
        "default fit.",
        "",
        *summary(fits).to_string(index=False, na_rep="").splitlines(),
    ]
    known = set(fits.problem[fits.optimizer == "adam"])
    if unknown := [problem for problem in in_order(fits.problem) if problem not in known]:
        lines += ["", f"Not known after {PAPER_ITERATIONS:,} updates of Adam: {', '.join(unknown)}"]
    lines += ["", "Claims; each quantity is above zero where the claim holds, with its 95 % interval (nats):"]
    for claim, words in OPTIMIZER_CLAIMS.items():
        lines += ["", f"{claim}: {words}"]
        here = claims[claims.claim == claim]
        for row in here.to_dict("records"):
            lines.append(
                f"  {row['problem']}: {row['quantity']}: {row['value']:.1f} [{row['low']:.1f}, {row['high']:.1f}] "
                f"-> {row['verdict']}"
                + (f" ({row['remark']})" if isinstance(row["remark"], str) and row["remark"] else "")
            )
        if here.empty:
            lines.append("  nothing measured -> cannot be shown at this size")
    return "\n".join(lines)


def summary(fits: pd.DataFrame) -> pd.DataFrame:
    """One row a problem, family and optimizer, in words."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for problem in in_order(fits.problem):
        here = fits[fits.problem == problem]
        ends = ends_of(here)
        for family in COMPARED:
            for optimizer in OPTIMIZERS:
                part = here[(here.family == family) & (here.optimizer == optimizer)]
                if len(part):
                    end = ends[optimizer, family]
                    error = math.sqrt(sum(variance for variance, _ in end.parts))
                    row = {"problem": problem, "family": family, "optimizer": optimizer}
                    row |= {"stepsize": f"{part.stepsize.iloc[0]:.3g}" if optimizer == "adam" else ""}
                    row |= {"ELBO": f"{end.value:.1f}", "s.e.": f"{error:.1f}", "seeds": str(len(part))}
                    row |= {
                        "updates": f"{part.n_updates.median():,.0f}",
                        "gradients": _count(part.n_gradients.median()),
                    }
                    rows.append(row | {"CPU": _count(_seconds(here, family, optimizer))})
    return pd.DataFrame(rows)


def _seconds(here: pd.DataFrame, family: str, optimizer: str) -> float:
    own = here[(here.family == family) & (here.optimizer == DEFAULT)]
    if optimizer == DEFAULT:
        return float(own.cpu_seconds.median())
    return float(own.adam_update_ms.median()) * PAPER_ITERATIONS / 1e3


def _count(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


# ---- picture ------------------------------------------------------------------------------------------------
def _draw(fits: pd.DataFrame, job: Job) -> None:
    """One panel a problem: each fit with two standard errors of its ELBO."""
    problems = in_order(fits.problem)
    n_columns = min(3, len(problems))
    n_rows = -(-len(problems) // n_columns)
    size = (max(3.8 * n_columns, 7.0), 2.6 * n_rows + 1.0)
    figure, axes = pyplot().subplots(n_rows, n_columns, figsize=size, layout="constrained", squeeze=False)
    for ax, problem in zip(axes.flat, problems, strict=False):
        _panel(ax, fits[fits.problem == problem])
        ax.set_title(problem, fontsize=10)
    for ax in axes.flat[len(problems) :]:
        ax.set_axis_off()
    for line in axes:
        line[0].set_ylabel("ELBO (nats)")
    what = f"Hollow: Adam at its best stepsize, T = {PAPER_ITERATIONS:,}. Filled: {DEFAULT} that end by themselves."
    figure.suptitle(what, fontsize=11)
    write_picture(figure, job.file("elbo", ".png"))


def _panel(ax: Axes, here: pd.DataFrame) -> None:
    places = [(family, optimizer) for family in COMPARED for optimizer in OPTIMIZERS]
    for place, (family, optimizer) in enumerate(places):
        part = here[(here.family == family) & (here.optimizer == optimizer)]
        x = place + 0.12 * (np.arange(len(part)) - (len(part) - 1) / 2)
        colour = COLOURS[family]
        face = "white" if optimizer == "adam" else colour
        ax.errorbar(x, part.elbo, 2 * part.std_error, fmt="o", ms=5, lw=1, color=colour, mfc=face)
        if part.empty:
            middle = ax.get_xaxis_transform()
            ax.text(place, 0.5, "not\nknown", ha="center", va="center", fontsize=8, color="0.4", transform=middle)
    names = {"adam": "Adam", DEFAULT: "natural"}
    ax.set_xticks(range(len(places)), [f"{family}\n{names[optimizer]}" for family, optimizer in places], fontsize=7)
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.ticklabel_format(axis="y", useOffset=False)
