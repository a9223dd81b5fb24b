"""Mean, standard deviation and quantiles of a fit's variables, a row a scalar under its label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.models.base import Model
from pyturingvi.support.quiet import quietly

if TYPE_CHECKING:
    import pandas as pd

    from pyturingvi.result import Fit

_LOCAL_NUMBERS = 1 << 24  # in the draws behind a summary of the locals
COLUMNS = ("mean", "sd", "q5", "median", "q95")


@quietly
def summarize(fit: Fit, n: int, seed: int, local: bool, variables: str | Sequence[str] | None) -> pd.DataFrame:
    """See `Fit.summary`."""
    model = fit.model
    wanted = None if variables is None else chosen_variables(model, variables)
    draws = fit.sample(n, seed, local=False)
    if local if wanted is None else set(wanted) - set(draws):
        points = fit.sample(min(n, max(1_000, _LOCAL_NUMBERS // model.dim)), seed)
        draws |= {name: values for name, values in points.items() if name not in draws}
    if wanted is None:
        return table_of(model, draws)
    table = table_of(model, {name: draws[name] for name in wanted})
    keep = [label for name, labels in wanted.items() for label in labels or model.scalar_labels(name)]
    return table if len(keep) == len(table) else table.loc[table.index.isin(keep)]


def table_of(model: Model, draws: dict[str, np.ndarray]) -> pd.DataFrame:
    """The figures of draws (n, ...) by variable."""
    import pandas as pd

    labels: list[str] = []  # a list, not a dictionary: odd column names may give two rows one label
    rows: list[list[float]] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for name, values in draws.items():
            flat = values.reshape(values.shape[0], -1)
            quantiles = np.quantile(flat, [0.05, 0.5, 0.95], axis=0)
            spread = flat.std(axis=0, ddof=1) if len(flat) > 1 else np.full(flat.shape[1], np.nan)
            figures = np.vstack([flat.mean(axis=0), spread, quantiles])
            labels += model.scalar_labels(name)
            rows += figures.T.tolist()
    return pd.DataFrame(rows, columns=list(COLUMNS), index=pd.Index(labels, name="variable"))


def chosen_variables(model: Model, variables: str | Sequence[str]) -> dict[str, list[str]]:
    """The variables named, each with those of its scalars that are; all of them where there are none."""
    names = [variables] if isinstance(variables, str) else list(variables)
    known = model.dims
    found: dict[str, list[str]] = {}
    for name in names:
        if name in known:
            found[name] = []
            continue
        variable = str(name).partition("[")[0]
        if variable not in known:
            raise unknown_name("variable", name, known)
        labels = model.scalar_labels(variable)
        if name not in labels:
            raise (
                unknown_name("label", name, labels)
                if len(labels) < 20
                else InputError(
                    f"Unknown label {name!r}: {variable} has {len(labels):,}, from {labels[0]!r} to {labels[-1]!r}."
                )
            )
        if found.get(variable) != []:
            found.setdefault(variable, []).append(name)
    return found
