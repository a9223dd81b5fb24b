"""`pyturingvi setup`: Julia and its packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyturingvi.cli.shared import app, exit_when_interrupted
from pyturingvi.errors import InputError


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

        with exit_when_interrupted("Interrupted; nothing new is remembered. The same command goes on from here."):
            typer.echo(set_up(julia, project, silent if quiet else typer.echo))
    elif julia is not None or project is not None:
        raise InputError("setup: --forget goes alone.")
    else:
        typer.echo(f"{settings_path()}: {'removed' if forget_settings() else 'there is none'}")
