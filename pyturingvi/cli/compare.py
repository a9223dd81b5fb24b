"""`pyturingvi compare`: the two engines side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyturingvi.cli.shared import EXIT_UNUSABLE, DataDir, Simulated, Variant, app, exit_when_interrupted
from pyturingvi.errors import InputError


@app.command()
def compare(
    problem: Annotated[str, typer.Argument(help="A name from `pyturingvi problems`.")],
    families: Annotated[str, typer.Option(help="Names with commas between them.")] = "mean-field,structured,full-rank",
    iterations: Annotated[int, typer.Option(help="Updates with the same noise in both engines.")] = 200,
    runs: Annotated[int, typer.Option(help="Runs of each engine with noise of its own.")] = 5,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers again, times apart.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder to write the report to: CSV, Markdown, PNG.")] = None,
    data_dir: DataDir = None,
    simulated: Simulated = False,
    variant: Variant = "paper",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Compare the numpy engine with Julia, or without Julia with its recorded runs, and print the report.

    Exit code 0 means that everything agrees that was judged, 1 that something does not, 2 that an argument was refused.
    """
    import pyturingvi as tv
    from pyturingvi.comparisons.result import comparison_targets
    from pyturingvi.support.arguments import whole_number

    names = [name.strip() for name in families.split(",")]
    if not all(names):
        raise InputError(f"--families must be names with commas between them, got {families!r}.")
    whole_number("--iterations", iterations, 1)
    whole_number("--runs", runs, 2)
    with exit_when_interrupted("Interrupted."):
        model = tv.load_problem(problem, data_dir=data_dir, simulated=simulated, seed=seed, variant=variant)
        if out is not None:
            comparison_targets(out, model.label, "--out")
        found = tv.compare(model, names, n_iterations=iterations, n_runs=runs, seed=seed, progress=not quiet)
        typer.echo(found.to_markdown())
        for path in [] if out is None else found.save(out):
            typer.echo(f"wrote {path}")
    if not found.agrees:
        raise typer.Exit(EXIT_UNUSABLE)
