"""What the commands share: the application, exit codes and options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

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
Variant = Annotated[str, typer.Option(help="paper, or released: the problem as in the paper's released code.")]


def note(words: str) -> None:
    """Say something beside the result, on standard error."""
    typer.echo(words, err=True)


def _version(wanted: bool) -> None:
    if wanted:
        import pyturingvi as tv

        typer.echo(f"pyturingvi {tv.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    pass


@contextmanager
def exit_when_interrupted(words: str) -> Iterator[None]:
    """A Ctrl-C becomes one line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(words, err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
