"""Figures 1 and 2 beside the published curves: points, growth with n, and the pictures, from the file of runs alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyturingvi.reproduce.figure import FAMILIES, Job
from pyturingvi.reproduce.synthetic.pictures import draw_curves, draw_scaling
from pyturingvi.reproduce.synthetic.plan import REPEATS, STATED_SAMPLES, contenders
from pyturingvi.reproduce.synthetic.problem import (
    CURVE_SIZES,
    MAX_UPDATES,
    NOT_REACHED,
    PUBLISHED_SAMPLES,
    SCALING_SIZES,
    curve_ends,
    finite_points,
    published_scaling,
    published_t,
)
from pyturingvi.reproduce.synthetic.runs import read_runs, unmade
from pyturingvi.support.files import write_table, write_text

if TYPE_CHECKING:
    import pandas as pd

CLOSE, NEAR = 0.05, 0.10
ASKED_SHARE = 0.95  # of the published points, within `CLOSE`
EXPONENTS = {"mean-field": 1, "structured": 1, "full-rank": 2}  # of T in n, as the paper claims
CONFIDENCE = 0.95
_POINT_COLUMNS = ["family", "n", "stepsize", "step", "n_samples", "runs", "max_updates", "published", "ours", "sd"]
_POINT_COLUMNS += ["ratio", "last_before_divergence", "reached", "diverged"]
_SCALING_COLUMNS = ["family", "n", "best_stepsize", "best_step", "runs", "published", "ours", "sd", "ratio"]


# ---- tables -------------------------------------------------------------------------------------------------
def points(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a family, n, stepsize and M.

    `ours` is the mean T over the runs, in which one that never arrives counts 59,999 as in the published means; NaN
    where such a run was given fewer updates. `published` is the value of figure 1, and at another n NaN.
    """
    found = runs.groupby(["family", "n", "n_samples", "step"], as_index=False).agg(
        stepsize=("stepsize", "first"),
        runs=("T", "size"),
        max_updates=("max_updates", "max"),
        ours=("T", lambda t: t.mean(skipna=False)),
        sd=("T", lambda t: t.std()),
        reached=("ended", lambda ended: (ended == "reached").sum()),
        diverged=("ended", lambda ended: (ended == "diverged").sum()),
    )
    places = list(zip(found.family, found.n, found.step, strict=True))
    found["published"] = [published_t(*place) if place[1] in CURVE_SIZES else math.nan for place in places]
    found["ratio"] = (found.ours / found.published).where(found.published < NOT_REACHED)
    found["last_before_divergence"] = [n in CURVE_SIZES and s == curve_ends(f, n)[1] for f, n, s in places]
    return found[_POINT_COLUMNS]


def scaling(found: pd.DataFrame) -> pd.DataFrame:
    """Figure 2: the smallest mean T over the stepsizes that were run with M = 10, for each family and n.

    Only stepsizes with the most runs count: where the first run told which is the best, the others were made there. An
    n of which a contender has not been run yet is left out.
    """
    import pandas as pd

    rows = []
    for family, n, published in published_scaling().itertuples(index=False, name=None):
        here = found[(found.family == family) & (found.n == n) & (found.n_samples == PUBLISHED_SAMPLES)]
        if not set(contenders(family, n)) <= set(here.step):
            continue
        here = here[(here.runs == here.runs.max()) & (here.reached == here.runs)]
        if len(here):
            best = here.loc[here.ours.idxmin()]
            rows.append([family, n, best.stepsize, best.step, best.runs, published, best.ours, best.sd])
            rows[-1].append(best.ours / published)
    return pd.DataFrame(rows, columns=_SCALING_COLUMNS)


class Growth(NamedTuple):
    """Least squares of log T on log n: T = `factor` n^`exponent`, with a confidence interval of the exponent."""

    exponent: float
    low: float
    high: float
    factor: float


def growth(n: np.ndarray, t: np.ndarray) -> Growth:
    """Fit the growth of T + 1 updates with n; the interval is Student's with len(n) - 2 degrees of freedom."""
    from scipy import stats

    fitted = stats.linregress(np.log(n), np.log(np.asarray(t) + 1))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(n) - 2) * fitted.stderr if len(n) > 2 else math.inf
    ends = float(fitted.slope - half), float(fitted.slope + half)
    return Growth(float(fitted.slope), *ends, math.exp(fitted.intercept))


def exponents(figure2: pd.DataFrame) -> pd.DataFrame:
    """The growth of ours and of the published T, one row a family, over the n that were run."""
    import pandas as pd

    rows = []
    for family in FAMILIES:
        here = figure2[figure2.family == family]
        if len(here) < 2:
            continue
        row: dict[str, Any] = {"family": family, "claimed": EXPONENTS[family], "sizes": len(here)}
        for name in ("ours", "published"):
            names = (name, f"{name}_low", f"{name}_high", f"{name}_factor")
            row |= zip(names, growth(here["n"].to_numpy(float), here[name].to_numpy(float)), strict=True)
        rows.append(row)
    return pd.DataFrame(rows)


# ---- in words -----------------------------------------------------------------------------------------------
def report(job: Job) -> str:
    """Write the tables and pictures beside the file of runs; what they say as text."""
    runs = read_runs(job)
    found = points(runs)
    figure2 = scaling(found)
    fitted = exponents(figure2)
    for part, table in (("points", found), ("scaling", figure2), ("exponents", fitted)):
        write_table(job.file(part), table)
    draw_curves(found, job)
    draw_scaling(figure2, fitted, job)
    missing = unmade(runs, job.preset)
    lines = [f"Runs: {len(runs)}" + (f"; {len(missing)} of the preset are not made yet" if missing else "")]
    lines += [*_agreement(found, figure2), "", *_neighbors(found), *_stated(found), "", *_growth_lines(fitted)]
    text = "\n".join(lines)
    write_text(job.file("report", ".txt"), f"{text}\n")
    return text


def _agreement(found: pd.DataFrame, figure2: pd.DataFrame) -> list[str]:
    """How many published points are close, those of figure 1 that border divergence apart."""
    import pandas as pd

    curve = found[(found.n_samples == PUBLISHED_SAMPLES) & found.ratio.notna()]
    parts = {
        "figure 1 but for the last points before divergence": curve[~curve.last_before_divergence],
        "figure 1, last points before divergence (noisy borders)": curve[curve.last_before_divergence],
        "figure 2, best stepsizes": figure2,
    }
    together = pd.concat([curve, figure2]) if len(figure2) else curve
    fewer = int((together.runs < REPEATS).sum())
    over = f"{REPEATS} runs" + (f" ({fewer} points over fewer)" if fewer else "")
    lines = [f"Published points with M = {PUBLISHED_SAMPLES}, mean over {over}:"]
    lines += [f"  {title}: {_shares(part)}" for title, part in parts.items()]
    total = sum(len(finite_points(family, n)) for family in FAMILIES for n in CURVE_SIZES)
    total += len(FAMILIES) * len(SCALING_SIZES)
    lines.append(f"  together: {_shares(together)}; {total - len(together)} of {total} points not run")
    if len(together):
        close = ((together.ratio - 1).abs() <= CLOSE).mean()
        words = "holds" if close >= ASKED_SHARE else "FAILS"
        lines.append(f"  at least {ASKED_SHARE:.0%} of the points run are within {CLOSE:.0%}: {words} ({close:.1%})")
    far = together[(together.ratio - 1).abs() > CLOSE]
    for row in far.to_dict("records"):
        where = "figure 1" if "stepsize" in row and row["stepsize"] == row["stepsize"] else "figure 2"
        step = row["stepsize"] if where == "figure 1" else row["best_stepsize"]
        border = ", last before divergence" if row.get("last_before_divergence") is True else ""
        lines.append(
            f"    off: {row['family']}, n = {row['n']}, stepsize {step:.4g} ({where}{border}): ours {row['ours']:.1f} "
            f"(sd {row['sd']:.1f}), published {row['published']:.1f}"
        )
    return lines


def _shares(part: pd.DataFrame) -> str:
    if not len(part):
        return "none run"
    off = (part.ratio - 1).abs()
    worst = part.iloc[int(np.argmax(off.to_numpy()))]
    return (
        f"{int((off <= CLOSE).sum())} of {len(part)} within {CLOSE:.0%}, {int((off <= NEAR).sum())} within {NEAR:.0%}; "
        f"largest deviation {off.max():.1%} ({worst.family}, n = {worst.n}, ours {worst.ours:.1f}, "
        f"published {worst.published:.1f})"
    )


def _neighbors(found: pd.DataFrame) -> list[str]:
    """The stepsizes beside the curves, at which the paper does not reach the accuracy."""
    beside = found[(found.n_samples == PUBLISHED_SAMPLES) & (found.published >= NOT_REACHED)]
    if not len(beside):
        return []
    reached = beside[beside.reached > 0]
    lines = [
        f"Stepsizes beside the curves, where the paper does not reach the accuracy in {MAX_UPDATES:,} updates: neither "
        f"do we at {len(beside) - len(reached)} of {len(beside)}"
    ]
    for row in reached.to_dict("records"):
        lines.append(
            f"    reached: {row['family']}, n = {row['n']}, stepsize {row['stepsize']:.4g}: {row['reached']} of "
            f"{row['runs']} runs"
        )
    return lines


def _stated(found: pd.DataFrame) -> list[str]:
    """What M = 8 gives, which the paper's text states."""
    stated = found[(found.n_samples == STATED_SAMPLES) & (found.ratio.notna() | (found.reached == 0))]
    if not len(stated):
        return []
    close = int(((stated.ratio - 1).abs() <= CLOSE).sum())
    never = stated[stated.reached == 0]
    lines = [
        f"M = {STATED_SAMPLES}, as the text states: {close} of {len(stated)} published points within {CLOSE:.0%}; "
        f"no run arrives at {len(never)}:"
    ]
    for (family, n), group in never.groupby(["family", "n"]):
        steps = ", ".join(f"{value:.4g}" for value in sorted(group.stepsize))
        lines.append(f"    {family}, n = {n}, in {group.max_updates.max():,} updates: stepsizes {steps}")
    return lines


def _growth_lines(fitted: pd.DataFrame) -> list[str]:
    lines = [f"Growth of T at the best stepsize with n, T + 1 ~ n^a, {CONFIDENCE:.0%} interval:"]
    for row in fitted.to_dict("records"):
        lines.append(
            f"  {row['family']}: a = {row['ours']:.2f} [{row['ours_low']:.2f}, {row['ours_high']:.2f}], published "
            f"{row['published']:.2f} [{row['published_low']:.2f}, {row['published_high']:.2f}] over the same "
            f"{row['sizes']} n; the paper claims {row['claimed']}"
        )
    return lines
