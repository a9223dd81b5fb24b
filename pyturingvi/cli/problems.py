"""`pyturingvi problems`: what there is to fit."""

from __future__ import annotations

import typer

from pyturingvi.cli.shared import app


@app.command()
def problems() -> None:
    """List the paper's problems, and those beside them, with their sizes and parameter counts."""
    import pandas as pd

    import pyturingvi as tv

    with pd.option_context("display.width", 200, "display.max_columns", None):
        typer.echo(tv.list_problems(extra=True).to_string(index=False))
