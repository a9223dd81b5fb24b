"""The `pyturingvi` command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyturingvi.errors import InputError, OutputError, PyTuringVIError

if TYPE_CHECKING:
    from pyturingvi.result import Fit

app = typer.Typer(
    help="Variational inference for hierarchical Bayesian models whose local variables grow with the data.\n\n"
    "Start with `pyturingvi fit rpoisson-small`; `pyturingvi problems` lists what else there is.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

EXIT_ERROR, EXIT_UNUSABLE, EXIT_INTERRUPTED = 2, 1, 130

DataDir = Annotated[
    Path | None, typer.Option(help="Folder with your own copy of the data, instead of the packaged one.")
]
Simulated = Annotated[bool, typer.Option("--simulated", help="Use data of the same shape drawn from the model itself.")]


@app.command()
def problems() -> None:
    """List the paper's problems with their sizes and parameter counts."""
    import pandas as pd

    import pyturingvi as tv

    with pd.option_context("display.width", 200, "display.max_columns", None):
        typer.echo(tv.list_problems().to_string(index=False))


@app.command()
def fit(
    problem: Annotated[str, typer.Argument(help="A name from `pyturingvi problems`.")],
    family: Annotated[
        str | None,
        typer.Option(
            help="mean-field (fast, crude), structured, markov (time series) or full-rank (slow, big); by default the "
            "model's own, which is markov for volatility and structured for others."
        ),
    ] = None,
    stepsize: Annotated[
        float | None, typer.Option(help="Fit by Adam with this stepsize, instead of natural gradients.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Updates; by default until converged, with --stepsize 20,000.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Monte Carlo samples in each gradient; by default chosen, with --stepsize 8.")
    ] = None,
    elbo_every: Annotated[
        int | None,
        typer.Option(help="Updates between two separate estimates of the ELBO; by default none, with --stepsize 100."),
    ] = None,
    elbo_samples: Annotated[int, typer.Option(help="Samples in each estimate of the ELBO.")] = 1024,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers again.")] = 0,
    engine: Annotated[str, typer.Option(help="auto, numpy or julia.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    out: Annotated[Path | None, typer.Option(help="Folder, or path of an .npz file, for the results.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File that keeps the run's state; an existing one is gone on with.")
    ] = None,
    max_memory: Annotated[float | None, typer.Option(help="Bytes the fit may use; by default what is free.")] = None,
    data_dir: DataDir = None,
    simulated: Simulated = False,
    plot: Annotated[bool, typer.Option(help="Write the ELBO plot beside the fit.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fit a problem, print the summary, and write PROBLEM-FAMILY.npz and PROBLEM-FAMILY.png.

    It runs natural gradients until they have converged, or Adam with --stepsize.

    Exit code 0 means that the fit is complete and usable, 1 that it is not: it diverged, ended below its start, or had
    not converged (what was fitted is saved all the same), 2 that an argument was refused before anything ran, 130 that
    it was interrupted (likewise saved).
    """
    import pyturingvi as tv
    from pyturingvi.fitting import default_family, run
    from pyturingvi.optimize.memory import check_limit
    from pyturingvi.plots import save_elbo_plot
    from pyturingvi.settings import Settings
    from pyturingvi.support.files import check_writable
    from pyturingvi.support.interrupts import DeferredInterrupt

    settings = Settings.of(
        family=family or "structured",
        stepsize=stepsize,
        n_iterations=20_000 if stepsize is not None and iterations is None else iterations,
        n_samples=samples,
        elbo_every=elbo_every,
        elbo_samples=elbo_samples,
        seed=seed,
        engine=engine,
        device=device,
        dtype=dtype,
    )
    check_limit(max_memory)
    if checkpoint is not None:
        check_writable(checkpoint, "--checkpoint")
    model = tv.load_problem(problem, data_dir=data_dir, simulated=simulated, seed=seed)
    if family is None:
        settings = replace(settings, family=default_family(model, engine))
    name = settings.family.name
    target, picture = _targets(model.label, name, out, plot)
    if checkpoint is not None and check_writable(checkpoint, "--checkpoint") in (target, picture):
        raise InputError("--checkpoint and --out name the same file; the fit would replace its own checkpoint.")
    typer.echo(f"{model.label}: d={model.dim:,}, {name}, p={settings.family.n_params(model.layout):,}")
    result = run(
        model,
        settings,
        checkpoint=checkpoint,
        max_memory=max_memory,
        progress=not quiet,
        budget_chosen=iterations is not None,
        several_starts=family is None,
    )
    with DeferredInterrupt() as late:  # Ctrl-C from here on must not cost the fit
        typer.echo(_summary_text(result))
        last = result.elbo.iloc[-1]
        typer.echo(
            f"\n{model.label}, {name}, {result.engine} engine: ELBO {last['elbo']:.2f} "
            f"(Monte Carlo standard error {last['std_error']:.2f}) "
            f"after {result.n_updates:,} updates in {result.seconds:.1f} s"
        )
        if result.starts is not None:
            typer.echo(result.starts.words)
        result.save(target)
        typer.echo(f"wrote {target}")
        if picture is not None:
            try:
                save_elbo_plot(result, picture)
                typer.echo(f"wrote {picture}")
            except OutputError as error:
                typer.echo(str(error), err=True)
    if result.status == "interrupted":
        typer.echo(f"{result.status}: {result.message}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    for problem in result.warnings:
        typer.echo(f"{result.status}: {problem}", err=True)
    if result.warnings:
        raise typer.Exit(EXIT_UNUSABLE)
    if late.requested:
        typer.echo("interrupted after the fit was complete; everything is saved", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)


@contextmanager
def _exit_when_interrupted(words: str) -> Iterator[None]:
    """A Ctrl-C becomes one line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(words, err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@app.command()
def reproduce(
    context: typer.Context,
    figure: Annotated[
        str, typer.Argument(help="table1, synthetic, stepsize, trace, theory or beyond; `list` describes them.")
    ],
    preset: Annotated[str, typer.Option(help="quick: minutes. paper: the paper's size; `list` has more.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for FIGURE_PRESET_*.csv and .png.")] = Path("reproduced"),
    from_csv: Annotated[
        bool, typer.Option("--from-csv", help="Compute nothing: draw and judge again from the CSV files in --out.")
    ] = False,
    engine: Annotated[str, typer.Option(help="auto, numpy or julia.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes; by default one a physical core.")] = None,
    progress: Annotated[bool, typer.Option(help="Show progress bars.")] = True,
    cells: Annotated[
        Path | None, typer.Option(help="synthetic, stepsize, trace: folder of the sweep; by default OUT/cells.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="stepsize, trace, beyond, --preset paper: folder with the published data.csv of irt."),
    ] = None,
) -> None:
    """Reproduce a figure or table of the paper, and show how far each value is from the published one.

    Repeated after an interruption, it does only what is missing.
    """
    from pyturingvi.reproduce import figure as figures

    if figure == "list":
        for option in context.params:
            source = context.get_parameter_source(option)
            if option != "figure" and source is not None and source.name == "COMMANDLINE":
                raise InputError(f"reproduce list goes alone, without --{option.replace('_', '-')}.")
        for name in figures.FIGURES:
            described = figures.figure_named(name)
            typer.echo(f"{name:<10} {described.source}")
            for word, content in described.presets.items():
                typer.echo(f"{'':<10}   --preset {word}: {content}")
        return
    with _exit_when_interrupted("Interrupted; the same command goes on from here."):
        text = figures.reproduce(
            figure,
            preset,
            out,
            from_csv=from_csv,
            engine=engine,
            n_workers=workers,
            progress=progress,
            cells=cells,
            data_dir=data_dir,
        )
        typer.echo(text)
        typer.echo(f"\nwrote {out / f'{figure}_{preset}_*'}")


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
    with _exit_when_interrupted("Interrupted."):
        model = tv.load_problem(problem, data_dir=data_dir, simulated=simulated, seed=seed)
        if out is not None:
            comparison_targets(out, model.label, "--out")
        found = tv.compare(model, names, n_iterations=iterations, n_runs=runs, seed=seed, progress=not quiet)
        typer.echo(found.to_markdown())
        for path in [] if out is None else found.save(out):
            typer.echo(f"wrote {path}")
    if not found.agrees:
        raise typer.Exit(EXIT_UNUSABLE)


@app.command()
def setup(
    julia: Annotated[str | None, typer.Option(help="Julia executable of yours, to use instead of installing.")] = None,
    project: Annotated[Path | None, typer.Option(help="Folder of the Julia project with the packages for it.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove what was remembered; uninstalls nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Install Julia and its packages for the Julia engine, or register your own; tried out, then remembered.

    Without options it downloads and installs, into this Python environment and Julia's depot. Exit code 2 means that
    it failed: what was remembered before stays, and `pyturingvi doctor` says what failed and what mends it.
    """
    from pyturingvi.bridge.remembered import forget_settings, settings_path

    if not forget:
        from pyturingvi.setup.child import silent
        from pyturingvi.setup.install import set_up

        with _exit_when_interrupted("Interrupted; nothing new is remembered. The same command goes on from here."):
            typer.echo(set_up(julia, project, silent if quiet else typer.echo))
    elif julia is not None or project is not None:
        raise InputError("setup: --forget goes alone.")
    else:
        typer.echo(f"{settings_path()}: {'removed' if forget_settings() else 'there is none'}")


@app.command()
def doctor(
    start: Annotated[bool, typer.Option(help="Start Julia for trial, where it is set up.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only what is broken.")] = False,
) -> None:
    """Show what is found on this machine, and the command that mends what is missing.

    Exit code 1 means that a Julia is set up which cannot be used, that its settings are damaged, or that the last
    `pyturingvi setup` failed; 0 that nothing is broken, whatever is not installed.
    """
    from pyturingvi.setup.doctor import examine

    if start and not quiet:
        typer.echo(
            "A Julia that is set up is started for trial: seconds, or minutes where it has to compile.", err=True
        )
    findings = [finding for finding in examine(start) if finding.broken or not quiet]
    width = max((len(finding.topic) for finding in findings), default=0)
    for finding in findings:
        typer.echo(f"{'ok' if finding.ok else '--':<3} {finding.topic:<{width}}  {finding.found}")
        if finding.remedy:
            typer.echo(f"{'':<{width + 5}} -> {finding.remedy}")
    if any(finding.broken for finding in findings):
        raise typer.Exit(EXIT_UNUSABLE)


def _targets(label: str, family: str, out: Path | None, plot: bool) -> tuple[Path, Path | None]:
    """Paths of the fit and its picture, found writable."""
    from pyturingvi.support.files import as_path, check_writable, file_stem, make_folder

    stem = f"{file_stem(label)}-{family}"
    if out is not None:
        out = as_path(out, "--out")
    if out is not None and out.suffix.lower() == ".npz":
        target = out
    else:
        target = make_folder(out or Path(), "--out") / f"{stem}.npz"
    target = check_writable(target, "--out")
    if not plot:
        return target, None
    from pyturingvi.plots import pyplot

    pyplot()
    return target, check_writable(target.with_suffix(".png"), "--out")


def _summary_text(result: Fit, most: int = 60) -> str:
    summary = result.summary()
    text = summary.head(most).to_string(float_format=lambda value: f"{value:.4g}")
    more = len(summary) - most
    return text + (f"\n... and {more} more in the saved fit" if more > 0 else "")


def main() -> None:
    """Entry point: an error on purpose becomes one line and exit code 2, never a stack."""
    try:
        app()
    except PyTuringVIError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        typer.echo("Interrupted.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:  # a full disk behind standard output, say
        sys.stderr.write(f"Error: {error.strerror or error}\n")
        sys.exit(EXIT_UNUSABLE)


if __name__ == "__main__":
    main()
