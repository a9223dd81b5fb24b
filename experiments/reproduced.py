"""What the scripts share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from pyturingvi.errors import PyTuringVIError
from pyturingvi.problems import VARIANTS
from pyturingvi.reproduce.figure import Job

HERE = Path(__file__).parent
PRESET = "laptop"


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """An error on purpose becomes one line and exit code 2, a Ctrl-C one and 130, as on the command line."""
    try:
        yield
    except PyTuringVIError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


def run_figure(name: str, description: str | None) -> None:
    """The command line of a figure: fit what is missing unless told not to, then draw and judge from its CSV."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=VARIANTS, help="paper by default; from the CSV, all that are there")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--from-csv", action="store_true", help="draw and judge again from the committed CSV")
    source.add_argument("--from-cells", type=Path, metavar="DIR", help="take what a sweep's folder has; fit nothing")
    arguments = parser.parse_args()
    module = import_module(f"pyturingvi.reproduce.{name}")
    for variant in [arguments.variant] if arguments.variant else VARIANTS if arguments.from_csv else VARIANTS[:1]:
        job = Job(name, PRESET, HERE / "results", cells=arguments.from_cells or HERE / "cells", variant=variant)
        if not arguments.variant and variant != "paper" and not job.file("elbo").is_file():
            continue
        module.FIGURE.check_files(job, arguments.from_csv)
        if not arguments.from_csv:
            module.compute(job, fit=arguments.from_cells is None)
        print(module.report(job))
