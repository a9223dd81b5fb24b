"""The realistic experiments (section 4.2 and the appendix): the fits that the figures `stepsize` and `trace` share.

The paper fits every problem with every family by Adam at six fixed stepsizes, T = 50,000, from N(0, 1e-2 I). Each fit
is a cell of one sweep; the figures differ in what they read from its ELBO trace. On a cluster the sweep comes first,
`tv.sweep(grid_of(Job("stepsize", "paper", Path())), executor, out=DIR)`, then
`pyturingvi reproduce stepsize --preset paper --cells DIR`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import OutputError
from pyturingvi.families import get_family
from pyturingvi.layout import Layout
from pyturingvi.optimize.memory import available_memory, fit_bytes
from pyturingvi.problems import list_problems
from pyturingvi.reproduce.bands import band
from pyturingvi.reproduce.figure import FAMILIES, Job
from pyturingvi.reproduce.table1 import printed_table
from pyturingvi.support.files import write_table
from pyturingvi.sweeps.cell_file import FINISHED
from pyturingvi.sweeps.folder import SweepFolder, read_timing
from pyturingvi.sweeps.grid import Cell, read_grid
from pyturingvi.sweeps.pools import default_workers
from pyturingvi.sweeps.progress import duration
from pyturingvi.sweeps.result import SweepResult, load_sweep
from pyturingvi.sweeps.sweep import sweep

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

STEPSIZES = tuple(10.0 ** (-4 + 0.25 * i) for i in range(6))
PAPER_ITERATIONS = 50_000
EARLY = 5_000  # where a run too costly for T = 50,000 is compared with the others
SETTINGS: dict[str, Any] = {
    "optimizer": "adam",
    "n_samples": 8,
    "n_iterations": PAPER_ITERATIONS,
    "elbo_every": 100,
    "elbo_samples": 1024,
    "init_location": 0.0,
    "init_scale": 0.1,
}
# the stepsizes of the appendix's ELBO traces, by kind of problem
PUBLISHED_TRACES = {
    "rpoisson": (STEPSIZES[0], STEPSIZES[2], STEPSIZES[4]),
    "volatility": (STEPSIZES[2], STEPSIZES[4], STEPSIZES[5]),
    "irt": (STEPSIZES[0], STEPSIZES[2], STEPSIZES[4]),
}
TRACE_SEEDS = 4  # replications of a trace; figure 4 has 8
CURVE = ["problem", "family", "stepsize", "engine", "dtype", "n_iterations"]  # what the replications of one share
_MOST_ITERATIONS = 100  # of a trace in the CSV

Grid = list[dict[str, Any]]


# ---- presets ------------------------------------------------------------------------------------------------
def quick_grid(job: Job, memory: float | None = None) -> Grid:
    """The two smallest problems at the large stepsizes, which need the fewest updates; full-rank on the first."""
    few = {"n_iterations": EARLY, "elbo_every": 500}
    return [
        _part("rpoisson-small", FAMILIES, STEPSIZES[3:], 2, **few),
        _part("volatility-small", FAMILIES[:2], STEPSIZES[3:], 2, **few),
    ]


def laptop_grid(job: Job, memory: float | None = None) -> Grid:
    """What two cores do in hours with the Julia engine; full-rank to `EARLY` alone, irt simulated and in float32."""
    grid = [
        _part(f"{kind}-{size}", FAMILIES[:2], STEPSIZES, 4)
        for size in ("small", "middle")
        for kind in ("rpoisson", "volatility")
    ]
    irt = {"simulated": True, "dtype": "float32", "elbo_every": 1_000}
    grid.append(_part("irt-small", FAMILIES[:2], PUBLISHED_TRACES["irt"], 2, **irt))
    early = {"n_iterations": EARLY, "elbo_every": 500}
    return grid + [_part(name, FAMILIES[2:], STEPSIZES, 2, **early) for name in ("rpoisson-small", "volatility-small")]


def paper_grid(job: Job, memory: float | None = None) -> Grid:
    """The nine problems with 8 replications; full-rank where the paper has it and the memory is there."""
    grid = []
    printed, free = printed_table(), available_memory() if memory is None else memory
    too_large = set(printed.problem[printed.full_rank_p.isna()])
    for row in list_problems().to_dict("records"):
        problem, families = str(row["problem"]), list(FAMILIES)
        layout = Layout(int(row["d_z"]), int(row["N"]), int(row["d_y"]))
        needed = fit_bytes(get_family("full-rank"), layout, 8, 2, SETTINGS["n_samples"], checkpoint=True)
        if problem in too_large:
            families.remove("full-rank")
        elif needed > free:
            families.remove("full-rank")
            _tell(job, f"full-rank on {problem} is left out: it needs {needed / 2**30:.1f} GiB")
        data: dict[str, Any] = {}
        if problem.startswith("irt"):
            data = {"simulated": True} if job.data_dir is None else {"data_dir": job.data_dir}
        grid.append(_part(problem, families, STEPSIZES, 8, **data))
    return grid


PRESETS: dict[str, tuple[str, Callable[[Job, float | None], Grid]]] = {
    "quick": (
        "rpoisson-small and, without full-rank, volatility-small; three stepsizes, T = 5,000, two seeds; ten minutes",
        quick_grid,
    ),
    "laptop": (
        "small and middle of rpoisson and volatility at T = 50,000, four seeds; simulated irt-small; full-rank on the "
        "smallest to T = 5,000; hours with the Julia engine",
        laptop_grid,
    ),
    "paper": (
        "the nine problems, all stepsizes, T = 50,000, eight seeds (four for trace); weeks, which it says first",
        paper_grid,
    ),
}


def _part(problem: str, families: Any, stepsizes: Any, n_seeds: int, **changes: Any) -> dict[str, Any]:
    axes = {"family": list(families), "stepsize": list(stepsizes), "seed": list(range(n_seeds))}
    return {**SETTINGS, "model": problem, **axes, **changes}


def grid_of(job: Job, memory: float | None = None) -> Grid:
    """The job's grid for so many bytes of memory, by default what is free.

    That of `trace` has the published stepsizes and replications alone.
    """
    grid = [{**part, "engine": job.engine} for part in PRESETS[job.preset][1](job, memory)]
    if job.figure != "trace":
        return grid
    chosen = []
    for part in grid:
        published = PUBLISHED_TRACES[part["model"].split("-")[0]]
        kept = [stepsize for stepsize in part["stepsize"] if stepsize in published]
        if kept:
            chosen.append({**part, "stepsize": kept, "seed": part["seed"][:TRACE_SEEDS]})
    return chosen


# ---- the sweep ----------------------------------------------------------------------------------------------
def run(job: Job) -> SweepResult:
    """Fit what the figure needs and its sweep's folder does not have; says what it expects of it before it starts."""
    grid, folder = grid_of(job), job.cells or job.folder / "cells"
    _tell(job, expectation(read_grid(grid), SweepFolder(folder), job.n_workers or default_workers()))
    return sweep(grid, out=folder, n_workers=job.n_workers, progress=job.progress)


def read(job: Job) -> SweepResult:
    """What the sweep's folder has of the figure's cells, computing nothing."""
    return load_sweep(job.cells or job.folder / "cells", grid_of(job))


def expectation(cells: list[Cell], folder: SweepFolder, n_workers: int) -> str:
    """How long the cells without a result should take, by the sweep's cost model and the cells that are done."""
    cost = seconds = 0.0
    waiting = []
    for cell in cells:
        if not folder.is_done(cell.name, cell.settings, "trace"):
            waiting.append(cell)
        elif took := read_timing(folder.timing_file(cell.name)).get("seconds"):
            cost, seconds = cost + cell.cost, seconds + took
    if not waiting:
        return f"all {len(cells)} fits are done already"
    rate = seconds / cost if cost else 1e-9
    basis = "as the finished ones took" if cost else "within a factor of three; the Julia engine takes about half"
    total = rate * sum(cell.cost for cell in waiting)
    longest = rate * max(cell.cost for cell in waiting)
    expected = max(total / min(n_workers, len(waiting)), longest)
    words = f"{expected / 86_400:.1f} days" if expected > 2 * 86_400 else duration(expected)
    return f"{len(waiting)} of {len(cells)} fits to do, about {words} on {n_workers} processes ({basis})"


def _tell(job: Job, words: str) -> None:
    if job.progress:
        print(f"pyturingvi: {words}", file=sys.stderr, flush=True)


# ---- tables -------------------------------------------------------------------------------------------------
def elbo_table(result: SweepResult) -> pd.DataFrame:
    """One row a fit: its settings, how it ended, the ELBO at T and that at iteration `EARLY`, where it has one.

    Returns
    -------
    DataFrame
        `problem` (named "(simulated)" where its data are), `simulated`, `family`, `stepsize`, `seed`, `engine`,
        `dtype`, `n_iterations`, `status` (also "missing" and "failed"), `n_updates`, `elbo` and `std_error` (NaN for
        a diverged fit), `elbo_5000` and `std_error_5000`.
    """
    frame = result.frame().rename(columns={"model": "problem"}).set_index("cell")
    traces = result.traces()
    early = traces[traces.iteration == EARLY].set_index("cell")
    for name in ("elbo", "std_error"):
        frame[f"{name}_{EARLY}"] = early[name].astype(float).reindex(frame.index)
    ended = frame.status == "completed"
    frame.loc[~ended, ["elbo", "std_error"]] = math.nan
    values = ["elbo", "std_error", f"elbo_{EARLY}", f"std_error_{EARLY}"]
    frame[values] = frame[values].where(np.isfinite(frame[values])).round(3)
    names = ["problem", "simulated", "family", "stepsize", "seed", "engine", "dtype", "n_iterations", "status"]
    return frame[[*names, "n_updates", *values]].reset_index(drop=True)


def trace_table(result: SweepResult) -> pd.DataFrame:
    """Median and 80 % band of the ELBO over replications, at no more than 100 iterations of each curve.

    Returns
    -------
    DataFrame
        `problem`, `family`, `stepsize`, `engine`, `dtype`, `n_iterations`, `iteration`, `median`, `q10`, `q90`, `n`
        (replications) and `diverged` (those that had diverged by then, and count as minus infinity).
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
    columns = [*keys[:-1], "iteration", "median", "q10", "q90", "n", "diverged"]
    return pd.DataFrame(rows, columns=columns).round({"median": 2, "q10": 2, "q90": 2})


def shown_iterations(n_iterations: int, every: int) -> np.ndarray:
    """Those of a curve's iterations that the table has; `EARLY` is one of them."""
    iterations = np.arange(every, n_iterations + 1, every)
    return np.union1d(thinned(iterations, _MOST_ITERATIONS - 1), iterations[iterations == EARLY])


def thinned(iterations: np.ndarray, most: int = _MOST_ITERATIONS) -> np.ndarray:
    """At most so many of the iterations: half of them evenly on a logarithmic axis, the others on a linear one."""
    if len(iterations) <= most:
        return iterations
    even = np.linspace(0, len(iterations) - 1, most // 2)
    wanted = np.geomspace(iterations[0], iterations[-1], most - most // 2)
    places = np.concatenate([even.round(), np.searchsorted(iterations, wanted).clip(max=len(iterations) - 1)])
    return iterations[np.unique(places.astype(int))]


def _value_at(trace: pd.Series | None, iteration: int) -> float:
    """The ELBO of a fit there; minus infinity where it has diverged before."""
    value = math.nan if trace is None else float(trace.get(iteration, math.nan))
    return value if math.isfinite(value) else -math.inf


def write(job: Job, result: SweepResult, table: pd.DataFrame) -> None:
    """Write the figure's table; then pass on a Ctrl-C, or tell how many fits failed.

    Raises
    ------
    OutputError
        If no fit is finished, or the file that is there has more finished fits than the table: it is left as it is.
    """
    path, counts, interrupted = job.file("elbo"), result.counts, result.status == "interrupted"
    found, before = n_finished(table), n_finished_in(path)
    if found and found >= before:
        write_table(path, table, float_format="%.8g")
    elif counts["failed"] == len(result):
        raise OutputError(f"All {counts['failed']} fits failed; {result.out} says why, in cells/*.json.")
    elif not interrupted and not found:
        raise OutputError(
            f"{path}: not written, for {result.out} has none of the {len(result)} fits of this figure and preset. "
            "Give the sweep's right folder (--cells or --from-cells)."
        )
    elif not interrupted:
        raise OutputError(
            f"{path}: not replaced, for it has {before} finished fits, and {result.out} has {found}. Give the sweep's "
            "right folder (--cells or --from-cells), or move the file away."
        )
    else:
        _tell(job, f"{path} is left as it was, with {before} finished fits; {found} are in {result.out}")
    if interrupted:
        _tell(job, f"{counts['missing']} fits are left; the same call goes on from here")
        raise KeyboardInterrupt
    if counts["failed"]:
        print(
            f"pyturingvi: {counts['failed']} of {len(result)} fits failed; {result.out} says why, in cells/*.json. "
            "The same call tries them again.",
            file=sys.stderr,
            flush=True,
        )


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


def in_order(problems: Iterable[str]) -> list[str]:
    """Problems, each once, in the paper's order."""
    order = {name: place for place, name in enumerate(list_problems().problem)}
    return sorted(set(problems), key=lambda name: order.get(name.removesuffix(" (simulated)"), len(order)))
