"""The `pyturingvi` command, a file a subcommand."""

from __future__ import annotations

import sys

import typer

# isort: off  (in the order in which the help lists them)
from pyturingvi.cli import compare, doctor, fit, problems, reproduce, setup  # noqa: F401

# isort: on
from pyturingvi.cli.shared import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_UNUSABLE, app
from pyturingvi.errors import PyTuringVIError

__all__ = ["app", "main"]


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
