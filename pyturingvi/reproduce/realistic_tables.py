"""The CSV files of `stepsize` and `trace`: made from a sweep, and how much of the preset is in one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import OutputError
from pyturingvi.problems import base_name, list_problems
from pyturingvi.reproduce import realistic
from pyturingvi.reproduce.bands import BAND, band
from pyturingvi.reproduce.figure import Job
from pyturingvi.support.files import write_table
from pyturingvi.sweeps.cell_file import FINISHED
from pyturingvi.sweeps.result import SweepResult

if TYPE_CHECKING:
    import pandas as pd

CURVE = ["problem", "family", "stepsize", "engine", "dtype", "n_iterations"]  # what the replications of one share
_MOST_ITERATIONS = 100  # of a trace in the CSV


def elbo_table(result: SweepResult) -> pd.DataFrame:
    """One row a fit: its settings, its end, the ELBO at T (NaN if it diverged) and, where it has one, at `EARLY`."""
    frame = result.frame().rename(columns={"model": "problem"}).set_index("cell")
    traces = result.traces()
    early = traces[traces.iteration == realistic.EARLY].set_index("cell")
    for name in ("elbo", "std_error"):
        frame[f"{name}_{realistic.EARLY}"] = early[name].astype(float).reindex(frame.index)
    ended = frame.status == "completed"
    frame.loc[~ended, ["elbo", "std_error"]] = math.nan
    values = ["elbo", "std_error", f"elbo_{realistic.EARLY}", f"std_error_{realistic.EARLY}"]
    frame[values] = frame[values].where(np.isfinite(frame[values])).round(3)
    names = ["problem", "simulated", "family", "stepsize", "seed", "engine", "dtype", "n_iterations", "status"]
    return frame[[*names, "n_updates", *values]].reset_index(drop=True)


def trace_table(result: SweepResult) -> pd.DataFrame:
    """Median and 80 % band of the ELBO over `n` replications, at no more than 100 iterations of each curve.

    Those that had `diverged` by then count as minus infinity.
    """
    import pandas as pd

    frame = result.frame().rename(columns={"model": "problem"})
    frame = frame[frame.status.isin(FINISHED)]
    traces = {cell: part.set_index("iteration").elbo for cell, part in result.traces().groupby("cell")}
    keys = [*CURVE, "elbo_every"]
    rows = []
    for key, group in frame.groupby(keys, sort=False):
        words: dict[str, Any] = dict(zip(keys, key, strict=True))
        every = words.pop("elbo_every")
        for iteration in shown_iterations(words["n_iterations"], every):
            values = np.array([_value_at(traces.get(cell), iteration) for cell in group.cell])
            rows.append({**words, "iteration": iteration, **band(values), "n": len(values)})
            rows[-1]["diverged"] = int(np.isneginf(values).sum())
    columns = [*CURVE, "iteration", *BAND, "n", "diverged"]
    return pd.DataFrame(rows, columns=columns).round(dict.fromkeys(BAND, 2))


def shown_iterations(n_iterations: int, every: int) -> np.ndarray:
    """Those of a curve's iterations that the table has; `EARLY` is one of them."""
    iterations = np.arange(every, n_iterations + 1, every)
    return np.union1d(thinned(iterations, _MOST_ITERATIONS - 1), iterations[iterations == realistic.EARLY])


def thinned(iterations: np.ndarray, most: int = _MOST_ITERATIONS) -> np.ndarray:
    """At most so many of the iterations: half of them evenly on a logarithmic axis, the others on a linear one."""
    if len(iterations) <= most:
        return iterations
    even = np.linspace(0, len(iterations) - 1, most // 2)
    wanted = np.geomspace(iterations[0], iterations[-1], most - most // 2)
    places = np.concatenate([even.round(), np.searchsorted(iterations, wanted).clip(max=len(iterations) - 1)])
    kept: np.ndarray = iterations[np.unique(places.astype(int))]
    return kept


def _value_at(trace: pd.Series | None, iteration: int) -> float:
    """The ELBO of a fit there; minus infinity where it has diverged before."""
    value = math.nan if trace is None else float(trace.get(iteration, math.nan))
    return value if math.isfinite(value) else -math.inf


# ---- the files ----------------------------------------------------------------------------------------------
def compute(job: Job, table_of: Callable[[SweepResult], pd.DataFrame], fit: bool) -> None:
    """Run the sweep, or without `fit` take what its folder has by now, and write the figure's table of it."""
    result = realistic.run(job, fit)
    write(job, result, table_of(result))


def write(job: Job, result: SweepResult, table: pd.DataFrame) -> None:
    """Write the figure's table; then pass on a Ctrl-C, or tell how many fits failed.

    An OutputError if no fit is finished, or the file that is there has more finished fits: it is left as it is.
    """
    path, n_failed, interrupted = job.file("elbo"), result.counts["failed"], result.status == "interrupted"
    found, before = n_finished(table), n_finished_in(path)
    failed = f"{n_failed} of {len(result)} fits failed; {result.out} says why, in cells/*.json" if n_failed else ""
    if found >= max(before, 1):
        write_table(path, table, float_format="%.8g")
    elif not interrupted:
        advice = failed or "Give the right folder of the sweep (--cells or --from-cells), or move the file away"
        raise OutputError(
            f"{path}: left as it is, with {before} finished fits: {result.out} has {found} of this figure and preset. "
            f"{advice}."
        )
    if interrupted:
        job.tell(f"{result.counts['missing']} fits are left; the same call goes on from here")
        raise KeyboardInterrupt
    if failed:
        print(f"pyturingvi: {failed}. The same call tries them again.", file=sys.stderr, flush=True)


def n_finished(table: pd.DataFrame) -> int:
    """Finished fits in a table of fits, or in one of traces."""
    if "status" in table:
        return int(table.status.isin(FINISHED).sum())
    return int(table.groupby(CURVE).n.max().sum())


def n_finished_in(path: Path) -> int:
    """The same of a file; 0 where there is none, or another one."""
    import pandas as pd

    try:
        return n_finished(pd.read_csv(path))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return 0


# ---- how much is there --------------------------------------------------------------------------------------
def expected(job: Job) -> dict[tuple[str, ...], int]:
    """Replications of each curve (problem, family, stepsize, T) that the preset has where there is memory for it."""
    return {
        _curve_name(part["model"], family, stepsize, part["n_iterations"]): len(part["seed"])
        for part in realistic.grid_of(job, math.inf)
        for family in part["family"]
        for stepsize in part["stepsize"]
    }


def _curve_name(problem: str, family: str, stepsize: float, n_iterations: int) -> tuple[str, ...]:
    return base_name(problem), family, f"{stepsize:.8g}", str(n_iterations)


def told(job: Job, frame: pd.DataFrame) -> str:
    """How many of the preset's fits are in a table of traces, and where curves are missing."""
    curves = expected(job)
    key = frame[["problem", "family", "stepsize", "n_iterations"]].drop_duplicates()
    here = {_curve_name(*row) for row in key.itertuples(index=False, name=None)}
    words = [f"{n_finished(frame)} of {sum(curves.values())} fits are there"]
    missing = [name[0] for name in curves if name not in here]
    for problem in in_order(missing):
        of_problem = sum(name[0] == problem for name in curves)
        words.append(f"{problem}: {missing.count(problem)} of {of_problem} curves are missing")
    return "; ".join(words)


def in_order(problems: Iterable[str]) -> list[str]:
    """Problems, each once, in the paper's order."""
    order = {name: place for place, name in enumerate(list_problems().problem)}
    return sorted(set(problems), key=lambda name: order.get(base_name(name), len(order)))
