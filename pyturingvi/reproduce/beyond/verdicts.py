"""What the page says of the default fits, each as a quantity in nats with an interval and a verdict.

A quantity should be above zero. Medians over replications, and their 95 % intervals, are those of the paper's claims
(`pyturingvi.reproduce.claims`); a single fit has the Monte Carlo error of its own ELBO alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyturingvi.reproduce.beyond.fits import DEFAULT
from pyturingvi.reproduce.claims import BORNE_OUT, NOT_BORNE_OUT, UNSHOWN, WITHIN, Quantity, median_of
from pyturingvi.reproduce.realistic_tables import in_order

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["claim", "problem", "quantity", "value", "low", "high", "replications", "verdict", "remark"]
OPTIMIZER_CLAIMS = {
    "irt": "that structured ends below mean-field on irt is the optimizer's doing, not the family's",
    "family": "with natural gradients structured ends above mean-field, which it contains",
    "good": f"natural gradients, which have no stepsize, end no more than {WITHIN:g} nats below Adam's best of several",
    "higher": "natural gradients end above Adam's best",
}

Ends = dict[tuple[str, str], Quantity]  # (optimizer, family) -> ELBO at the end


def ends_of(table: pd.DataFrame) -> Ends:
    """The ELBO at which each optimizer leaves each family, on one problem."""
    ends: Ends = {}
    for (optimizer, family), rows in table.groupby(["optimizer", "family"]):
        if len(rows) > 1:
            ends[str(optimizer), str(family)] = median_of(rows.elbo.to_numpy(), rows.std_error.to_numpy())
        else:
            row = rows.iloc[0]
            known = ((float(row.std_error) ** 2, int(row.n_draws) - 1),)
            ends[str(optimizer), str(family)] = Quantity(float(row.elbo), known, 1)
    return ends


def judge(fits: pd.DataFrame) -> pd.DataFrame:
    """Every claim on every problem that has the fits for it, in `COLUMNS`."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for problem in in_order(fits.problem):
        ends = ends_of(fits[fits.problem == problem])
        for claim, words, one, other, margin in _comparisons(problem):
            if one in ends and other in ends:
                difference = ends[one] - ends[other]
                low, high = (end + margin for end in difference.interval)
                verdict = BORNE_OUT if low > 0 else NOT_BORNE_OUT if high < 0 else UNSHOWN
                remark = "one seed: what seeds differ by is not in the interval" if difference.n == 1 else ""
                if verdict == UNSHOWN:
                    why = "no second replication" if math.isnan(low) else "zero is inside the interval"
                    remark = "; ".join(filter(None, [why, remark]))
                row = {"claim": claim, "problem": problem, "quantity": words, "value": difference.value + margin}
                row |= {"low": low, "high": high, "replications": difference.n}
                rows.append({**row, "verdict": verdict, "remark": remark})
    return pd.DataFrame(rows, columns=COLUMNS).round({"value": 2, "low": 2, "high": 2})


_Key = tuple[str, str]


def _comparisons(problem: str) -> list[tuple[str, str, _Key, _Key, float]]:
    """(claim, quantity, what should be above, what below, nats added) for a problem."""
    ours, adams = ({family: (who, family) for family in ("mean-field", "structured")} for who in (DEFAULT, "adam"))
    larger, smaller = ours["structured"], ours["mean-field"]
    found: list[tuple[str, str, _Key, _Key, float]] = []
    if problem.startswith("irt"):
        words = "mean-field - structured, Adam, each at its best stepsize"
        found.append(("irt", words, adams["mean-field"], adams["structured"], 0.0))
        found.append(("irt", f"structured - mean-field, {DEFAULT}", larger, smaller, 0.0))
        found.append(("irt", f"structured by {DEFAULT} - mean-field by Adam", larger, adams["mean-field"], 0.0))
    else:
        found.append(("family", f"structured - mean-field, {DEFAULT}", larger, smaller, 0.0))
    for claim, margin in (("good", WITHIN), ("higher", 0.0)):
        added = f" + {margin:g}" if margin else ""
        for family in ours:
            words = f"{family}: {DEFAULT} - Adam at its best stepsize{added}"
            found.append((claim, words, ours[family], adams[family], margin))
    return found
