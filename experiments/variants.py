"""The paper's problems and its released code's, centred and not: the best ELBO of each family by natural gradients.

rpoisson-small with priors and data as in the paper's text and as in its released code, each in the three
parametrizations; volatility-small in both variants, with the markov family beside. The ELBO is of 8,192 draws. Of
rpoisson, mean and standard deviation of the log scales, beside those with the locals integrated out (`Fit.refine`,
whose effective sample size is given), which do not depend on the parametrization. `rows` is the seed of the subset of
rows, of which the released code draws a new one for every fit. Writes `results/variants.csv`; a few minutes.

    python experiments/variants.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from reproduced import errors_in_one_line

import pyturingvi as tv
from pyturingvi.diagnosis.draws import log_ratios
from pyturingvi.problems import VARIANTS
from pyturingvi.support.files import write_table

RESULTS = Path(__file__).parent / "results"
FORMS = ("centred", "residual", "noncentred")
FAMILIES = {"rpoisson": ("mean-field", "structured"), "volatility": ("mean-field", "structured", "markov")}
N_DRAWS, N_SUBSETS = 8_192, 8


def rows() -> Iterator[dict[str, Any]]:
    """A row a fit."""
    for variant in VARIANTS:
        known: Any = tv.load_problem("rpoisson-small", variant=variant)
        for form in FORMS:
            model = tv.models.RobustPoisson(known.X, known.y, priors=known.priors.given, parametrization=form)
            for family in FAMILIES["rpoisson"]:
                fit = tv.fit(model, family, progress=False)
                yield {**row("rpoisson-small", variant, form, fit), **log_scales(fit)}
        yield {**row("rpoisson-small", variant, "any", fit.refine(progress=False)), "family": "refined"}
    for seed in range(1, N_SUBSETS):
        model = tv.load_problem("rpoisson-small", seed=seed, variant="released")
        yield {**row("rpoisson-small", "released", "residual", tv.fit(model, progress=False)), "rows": seed}
    for variant in VARIANTS:
        model = tv.load_problem("volatility-small", variant=variant)
        for family in FAMILIES["volatility"]:
            fit = tv.fit(model, family, progress=False)
            yield row("volatility-small", variant, "centred", fit)


def row(problem: str, variant: str, form: str, fit: tv.Fit) -> dict[str, Any]:
    """What every fit tells; of a refined one, its log evidence in place of the ELBO."""
    shared = {"problem": problem, "variant": variant, "parametrization": form, "family": fit.family.name, "rows": 0}
    if fit.refined is not None:
        found = fit.refined
        value, error = found.log_evidence, found.log_evidence_error
        return {**shared, "elbo": value, "std_error": error, "ess": found.ess, **log_scales(fit)}
    ratios = log_ratios(fit.model, fit.family.bind(fit.model.layout), fit.params, N_DRAWS, 0, 0)[0]
    error = ratios.std(ddof=1) / np.sqrt(N_DRAWS)
    return {**shared, "status": fit.status, "elbo": float(ratios.mean()), "std_error": float(error)}


def log_scales(fit: tv.Fit) -> dict[str, float]:
    """Mean and standard deviation of log s_alpha, log s_beta and log s_eta, from draws."""
    draws = fit.sample(N_DRAWS, local=False)
    found = {}
    for name in ("s_alpha", "s_beta", "s_eta"):
        log = np.log(draws[name])
        found |= {f"mean_log_{name}": float(log.mean()), f"sd_log_{name}": float(log.std(ddof=1))}
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = []
    for one in rows():
        found.append(one)
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in one.items()}, flush=True)
    write_table(RESULTS / "variants.csv", pd.DataFrame(found).round(4))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
