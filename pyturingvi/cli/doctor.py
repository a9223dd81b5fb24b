"""`pyturingvi doctor`: what is found on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from pyturingvi.cli.shared import EXIT_UNUSABLE, app


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
