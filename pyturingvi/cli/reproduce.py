"""`pyturingvi reproduce`: the paper's figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyturingvi.cli.shared import Variant, app, exit_when_interrupted
from pyturingvi.errors import InputError


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
    variant: Variant = "paper",
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
    with exit_when_interrupted("Interrupted; the same command goes on from here."):
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
            variant=variant,
        )
        typer.echo(text)
        typer.echo(f"\nwrote {out / f'{figure}_{preset}_*'}")
