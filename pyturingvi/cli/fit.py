"""`pyturingvi fit`: a problem by its name, or a table of one's own."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyturingvi.cli.own_table import OwnTable
from pyturingvi.cli.shared import EXIT_INTERRUPTED, EXIT_UNUSABLE, DataDir, Simulated, Variant, app, note
from pyturingvi.errors import ConvergenceWarning, InputError, MemoryLimitError, OutputError

if TYPE_CHECKING:
    from pyturingvi.models.base import Model
    from pyturingvi.result import Fit

_LONG, _MANY_TIMES = 60.0, 10.0  # seconds, and times those of the fit: beyond both nothing is corrected unasked


@app.command()
def fit(
    problem: Annotated[
        str, typer.Argument(help="A name from `pyturingvi problems`, or with --model a table: .csv, .tsv or .parquet.")
    ],
    family: Annotated[
        str | None,
        typer.Option(
            help="mean-field (fast, crude), structured, markov (time series) or full-rank (slow, big); by default the "
            "model's own, which is markov for volatility and structured for others."
        ),
    ] = None,
    conditional_scale: Annotated[
        bool,
        typer.Option(
            "--conditional-scale",
            help="structured, with locals whose widths follow the globals: better standard deviations of scales.",
        ),
    ] = False,
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
    refine: Annotated[
        bool | None,
        typer.Option(
            "--refine/--no-refine",
            help="Integrate the locals out and correct the globals (robust-poisson, irt); by default where the fit's "
            "own check says that they would move, and no --family is given.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder, or path of an .npz file, for the results.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File that keeps the run's state; an existing one is gone on with.")
    ] = None,
    max_memory: Annotated[float | None, typer.Option(help="Bytes the fit may use; by default what is free.")] = None,
    data_dir: DataDir = None,
    simulated: Simulated = False,
    variant: Variant = "paper",
    kind: Annotated[
        str | None, typer.Option("--model", help="For a table of your own: robust-poisson, irt or volatility.")
    ] = None,
    response: Annotated[
        str | None, typer.Option(help="robust-poisson, irt: column of the counts, or of the answers 0 and 1.")
    ] = None,
    covariates: Annotated[
        str | None, typer.Option(help="robust-poisson: a formula of columns, such as 'scale(age) + C(county)'.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option(help="robust-poisson: column of the known part of the log rate.")
    ] = None,
    student: Annotated[str | None, typer.Option(help="irt: column of the students.")] = None,
    item: Annotated[str | None, typer.Option(help="irt: column of the items, of a table with a row an answer.")] = None,
    prices: Annotated[str | None, typer.Option(help="volatility: columns of prices, with commas between them.")] = None,
    returns: Annotated[str | None, typer.Option(help="volatility: columns of returns, in place of prices.")] = None,
    date: Annotated[str | None, typer.Option(help="volatility: column of the dates; by default a first one.")] = None,
    plot: Annotated[bool, typer.Option(help="Write the ELBO plot beside the fit.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fit a problem or a table of your own, print the summary, and write NAME-FAMILY.npz and NAME-FAMILY.png.

    It runs natural gradients until they have converged, or Adam with --stepsize, with --variant released from where
    that code starts. Globals that would move with the locals integrated out are corrected. What an explicit --refine
    has corrected is in NAME-FAMILY-refined.npz and .png.

    Exit code 0 means that the fit has converged and nothing speaks against it, 1 that it has not, diverged, ended below
    its start, made all the updates it was given, that its globals would move and were not corrected, or that the data
    should be changed (what was fitted is saved all the same), 2 that an argument was refused before anything ran, 130
    that it was interrupted (likewise saved).
    """
    from pyturingvi.families import Structured
    from pyturingvi.fitting import default_family, run
    from pyturingvi.optimize.memory import check_limit
    from pyturingvi.plots import save_elbo_plot
    from pyturingvi.problems import start_scale
    from pyturingvi.refine.refine import check_refinable
    from pyturingvi.settings import BY_STEPSIZE, Settings
    from pyturingvi.support.files import check_writable
    from pyturingvi.support.interrupts import DeferredInterrupt

    if conditional_scale and family not in (None, Structured.name):
        raise InputError(f"--conditional-scale goes with --family structured, got {family!r}.")
    settings = Settings.of(
        family=Structured(conditional_scale=True) if conditional_scale else family or Structured.name,
        stepsize=stepsize,
        n_iterations=BY_STEPSIZE if stepsize is not None and iterations is None else iterations,
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
    said = OwnTable(response, covariates, offset, student, item, prices, returns, date)
    model = _model(problem, kind, said, data_dir, simulated, variant, seed)
    if stepsize is not None and variant != "paper":
        settings = replace(settings, init_scale=start_scale(problem, variant))
    if family is None and not conditional_scale:
        settings = replace(settings, family=default_family(model, engine))
    if refine:
        check_refinable(model, settings.family)
    name = f"{settings.family.label}-refined" if refine else settings.family.label
    target, picture = _targets(model.label, name, out, plot)
    if checkpoint is not None and check_writable(checkpoint, "--checkpoint") in (target, picture):
        raise InputError("--checkpoint and --out name the same file; the fit would replace its own checkpoint.")
    told = model.advice()
    for words in told:
        note(words)
    result = run(
        model,
        settings,
        checkpoint=checkpoint,
        max_memory=max_memory,
        progress=not quiet,
        budget_chosen=iterations is not None,
        several_starts=family is None and not conditional_scale,
        check_shape=not refine,
    )
    if refine or (refine is None and family is None and not conditional_scale and result.advice):
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # they are told below
            result = _refined(result, not quiet, wanted=bool(refine))
    with DeferredInterrupt() as late:  # Ctrl-C from here on must not cost the fit
        typer.echo(_summary_text(result))
        last = result.elbo.iloc[-1]
        typer.echo(
            f"\n{model.label}, {result.family.label}{'' if result.refined is None else ', refined'}, "
            f"{result.engine} engine: "
            f"{'ELBO' if result.refined is None else 'integrated bound'} {last['elbo']:.2f} "
            f"(Monte Carlo standard error {last['std_error']:.2f}) "
            f"after {result.n_updates:,} updates in {result.seconds:.1f} s"
        )
        if result.refined is not None:
            typer.echo(result.refined.words)
        if result.starts is not None:
            note(result.starts.words)
        result.save(target)
        note(f"wrote {target}")
        if picture is not None:
            try:
                save_elbo_plot(result, picture)
                note(f"wrote {picture}")
            except OutputError as error:
                note(str(error))
    if result.status == "interrupted":
        note(f"{result.status}: {result.message}")
        raise typer.Exit(EXIT_INTERRUPTED)
    for advice in result.advice:
        note(advice)
    problems = [problem for problem in result.warnings if problem not in told]
    for problem in problems:
        note(f"{result.status}: {problem}")
    if result.status != "converged" and not problems:
        note(f"{result.status}: {result.message}")
    if result.status != "converged" or result.warnings or result.advice:
        raise typer.Exit(EXIT_UNUSABLE)
    if late.requested:
        note("interrupted after the fit was complete; everything is saved")
        raise typer.Exit(EXIT_INTERRUPTED)


def _model(
    problem: str, kind: str | None, said: OwnTable, data_dir: Path | None, simulated: bool, variant: str, seed: int
) -> Model:
    """The problem of that name, or the model of that table."""
    import pyturingvi as tv

    if kind is not None:
        if data_dir is not None or simulated or variant != "paper":
            raise InputError("--data-dir, --simulated and --variant go with the name of a problem, not with --model.")
        return said.model(Path(problem), kind, note)
    if said.given:
        raise InputError(f"--{said.given[0]} goes with a table of your own: say by --model what to fit to it.")
    if Path(problem).is_file():
        raise InputError(f"{problem!r} is a file: say what to fit to it, by --model robust-poisson, irt or volatility.")
    return tv.load_problem(problem, data_dir=data_dir, simulated=simulated, seed=seed, variant=variant)


def _refined(fit: Fit, progress: bool, *, wanted: bool) -> Fit:
    """The fit refined; where nobody asked for it and it cannot be, the fit itself, with the reason told."""
    from pyturingvi.diagnosis.shape import REFINE
    from pyturingvi.fitting import refined
    from pyturingvi.refine.refine import check_refinable, expected_seconds

    if wanted:
        return refined(fit, progress=progress)
    words = " ".join(advice.removesuffix(REFINE).strip() for advice in fit.advice)
    try:
        check_refinable(fit.model, fit.family)
        seconds = expected_seconds(fit)
        if seconds > max(_LONG, _MANY_TIMES * fit.seconds):
            long = "about a minute" if seconds < 90 else f"some {seconds / 60:.0f} minutes"
            note(f"{words} To correct them takes {long}: --refine does it.")
            return fit
        note(f"{words} They are corrected now (--no-refine leaves them).")
        return refined(fit, progress=progress)
    except (InputError, MemoryLimitError) as error:
        note(str(error))
        return fit


def _targets(label: str, family: str, out: Path | None, plot: bool) -> tuple[Path, Path | None]:
    """Paths of the fit and its picture, found writable."""
    from pyturingvi.support.files import as_path, check_writable, file_stem, make_folder

    stem = f"{file_stem(label)}-{family.replace(' ', '-')}"
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
