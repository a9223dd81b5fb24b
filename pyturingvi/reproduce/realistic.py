"""The realistic experiments (section 4.2 and the appendix): the fits that the figures `stepsize` and `trace` share.

The paper fits every problem with every family by Adam at six fixed stepsizes, T = 50,000, from N(0, 1e-2 I); its
released code poses the problems otherwise and starts elsewhere, which is the job's variant. Each fit
is a cell of one sweep; the figures differ in what they read from its ELBO trace. On a cluster the sweep comes first,
`tv.sweep(grid_of(Job("stepsize", "paper", Path())), executor, out=DIR)`, then
`pyturingvi reproduce stepsize --preset paper --cells DIR`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyturingvi.families import get_family
from pyturingvi.layout import Layout
from pyturingvi.optimize.memory import available_memory, fit_bytes
from pyturingvi.problems import list_problems, start_scale
from pyturingvi.reproduce.figure import FAMILIES, Job
from pyturingvi.reproduce.tables import published
from pyturingvi.sweeps.folder import SweepFolder, read_timing
from pyturingvi.sweeps.grid import Cell, read_grid
from pyturingvi.sweeps.pools import default_workers
from pyturingvi.sweeps.progress import duration
from pyturingvi.sweeps.result import SweepResult, load_sweep
from pyturingvi.sweeps.sweep import sweep

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

Grid = list[dict[str, Any]]


# ---- presets ------------------------------------------------------------------------------------------------
def quick_grid(job: Job, memory: float | None = None) -> Grid:
    """The two smallest problems at the large stepsizes, which need the fewest updates; full-rank on the first."""
    few = {"n_iterations": EARLY, "elbo_every": 500}
    return [
        _part(job, "rpoisson-small", FAMILIES, STEPSIZES[3:], 2, **few),
        _part(job, "volatility-small", FAMILIES[:2], STEPSIZES[3:], 2, **few),
    ]


def laptop_grid(job: Job, memory: float | None = None) -> Grid:
    """What two cores do in hours with the Julia engine; full-rank to `EARLY` alone, irt simulated and in float32.

    Of the variant "released" the small sizes of rpoisson and volatility, with two seeds.
    """
    if job.variant != "paper":
        return [_part(job, name, FAMILIES[:2], STEPSIZES, 2) for name in ("rpoisson-small", "volatility-small")]
    grid = [
        _part(job, f"{kind}-{size}", FAMILIES[:2], STEPSIZES, 4)
        for size in ("small", "middle")
        for kind in ("rpoisson", "volatility")
    ]
    irt = {"simulated": True, "dtype": "float32", "elbo_every": 1_000}
    grid.append(_part(job, "irt-small", FAMILIES[:2], PUBLISHED_TRACES["irt"], 2, **irt))
    early = {"n_iterations": EARLY, "elbo_every": 500}
    smallest = ("rpoisson-small", "volatility-small")
    return grid + [_part(job, name, FAMILIES[2:], STEPSIZES, 2, **early) for name in smallest]


def paper_grid(job: Job, memory: float | None = None) -> Grid:
    """The nine problems with 8 replications; full-rank where the paper has it and the memory is there."""
    grid = []
    printed, free = published("table1.csv"), available_memory() if memory is None else memory
    too_large = set(printed.problem[printed.full_rank_p.isna()])
    for row in list_problems().to_dict("records"):
        problem, families = str(row["problem"]), list(FAMILIES)
        layout = Layout(int(row["d_z"]), int(row["N"]), int(row["d_y"]))
        needed = fit_bytes(get_family("full-rank"), layout, 8, 2, SETTINGS["n_samples"], checkpoint=True)
        if problem in too_large:
            families.remove("full-rank")
        elif needed > free:
            families.remove("full-rank")
            job.tell(f"full-rank on {problem} is left out: it needs {needed / 2**30:.1f} GiB")
        data: dict[str, Any] = {}
        if problem.startswith("irt"):
            data = {"simulated": True} if job.data_dir is None else {"data_dir": job.data_dir}
        grid.append(_part(job, problem, families, STEPSIZES, 8, **data))
    return grid


PRESETS: dict[str, tuple[str, Callable[[Job, float | None], Grid]]] = {
    "quick": (
        "rpoisson-small and, without full-rank, volatility-small; three stepsizes, T = 5,000, two seeds; ten minutes",
        quick_grid,
    ),
    "laptop": (
        "small and middle of rpoisson and volatility at T = 50,000, four seeds; simulated irt-small; full-rank on the "
        "smallest to T = 5,000; hours with the Julia engine. Of --variant released the two small ones, two seeds",
        laptop_grid,
    ),
    "paper": (
        "the nine problems, all stepsizes, T = 50,000, eight seeds (four for trace); weeks, which it says first",
        paper_grid,
    ),
}


def _part(job: Job, problem: str, families: Any, stepsizes: Any, n_seeds: int, **changes: Any) -> dict[str, Any]:
    axes = {"family": list(families), "stepsize": list(stepsizes), "seed": list(range(n_seeds))}
    variant: dict[str, Any] = {}
    if job.variant != "paper":
        variant = {"variant": job.variant, "init_scale": [start_scale(problem, job.variant)]}  # of length 1: a vector
    return {**SETTINGS, "model": problem, **axes, **variant, **changes}


def grid_of(job: Job, memory: float | None = None) -> Grid:
    """The job's grid for so many bytes of memory, by default what is free.

    That of `trace` has the published stepsizes and replications alone.
    """
    grid = [{**part, "engine": job.engine} for part in PRESETS[job.preset][1](job, memory)]
    if job.figure != "trace":
        return grid
    chosen = []
    for part in grid:
        shown = PUBLISHED_TRACES[part["model"].split("-")[0]]
        kept = [stepsize for stepsize in part["stepsize"] if stepsize in shown]
        if kept:
            chosen.append({**part, "stepsize": kept, "seed": part["seed"][:TRACE_SEEDS]})
    return chosen


# ---- the sweep ----------------------------------------------------------------------------------------------
def run(job: Job, fit: bool = True) -> SweepResult:
    """Fit what the figure needs and its sweep's folder does not have; says what it expects of it before it starts.

    Without `fit` the result is what the folder has.
    """
    grid, folder = grid_of(job), job.sweep_folder
    if not fit:
        return load_sweep(folder, grid)
    job.tell(expectation(read_grid(grid), SweepFolder(folder), job.n_workers or default_workers()))
    return sweep(grid, out=folder, n_workers=job.n_workers, progress=job.progress)


def expectation(cells: list[Cell], folder: SweepFolder, n_workers: int) -> str:
    """How long the cells without a result should take, by the sweep's cost model and the cells that are done."""
    cost = seconds = 0.0
    waiting = []
    for cell in cells:
        if not folder.is_done(cell.name, cell.description, "trace"):
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
