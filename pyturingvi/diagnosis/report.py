"""`Diagnosis`: the figures, the globals and the verdict on one fit, as tables and as text."""

from __future__ import annotations

import html
import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.diagnosis.findings import Findings, GlobalMoves
from pyturingvi.diagnosis.verdict import judge

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 5


class Diagnosis:
    """How good a fit is, as `fit.diagnose()` found.

    Attributes
    ----------
    verdict : {"good", "usable with care", "do not trust"}
    reasons : list of str
        What led to it, the gravest first.
    table : DataFrame
        A row a figure: value, std_error (Monte Carlo; NaN where there is none), meaning.
    globals : DataFrame
        A row a global coordinate, unconstrained: mean and sd of the fit; corrected_mean and corrected_sd, those of the
        density as far as the draws tell; shift between the means in the fit's sd, and std_error of it. NaN where
        nothing can be told.
    corrected_by : str
        Where the corrected figures come from: "the fit's own draws" or "corrected draws", which are weighted and right
        but for noise; "slope and curvature" of the log density, which is a direction; or "nothing".
    restarts : list of RestartEnd
        Where the fits of `seeds=` ended: `seed`, `elbo`, `distance`, `where` and `params`, flat parameters for `init=`.
    """

    def __init__(self, label: str, found: Findings, mean: np.ndarray, sd: np.ndarray, labels: list[str]) -> None:
        self.label = label
        self.verdict, self.reasons = judge(found)
        self.restarts = found.restarts
        self.corrected_by = "nothing" if found.globals is None else found.globals.by
        self.table = _table(found)
        self.globals = _globals_table(found.globals, mean, sd, labels)

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.label}: {self.verdict}>"

    def __str__(self) -> str:
        lines = [f"{self.label}: {self.verdict}", ""]
        for reason in self.reasons:
            lines += textwrap.wrap(reason, 100, initial_indent="- ", subsequent_indent="  ")
        lines += ["", self._figures().to_string(max_colwidth=None)]
        moved = self._moved()
        if len(moved):
            lines += ["", f"Globals that would move most (from {self.corrected_by}):", moved.to_string()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in self.reasons)
        text = f"<p><b>{html.escape(self.label)}: {self.verdict}</b></p><ul>{reasons}</ul>{self._figures().to_html()}"
        moved = self._moved()
        if len(moved):
            text += f"<p>Globals that would move most (from {self.corrected_by}):</p>{moved.to_html()}"
        return text

    def _figures(self) -> pd.DataFrame:
        shown = self.table.copy()
        shown["value"] = [
            _number(value, error) for value, error in zip(shown["value"], shown["std_error"], strict=True)
        ]
        return shown[["value", "meaning"]]

    def _moved(self) -> pd.DataFrame:
        table = self.globals.dropna(subset=["shift"])
        order = table["shift"].abs().sort_values(ascending=False, kind="stable").index
        return table.loc[order].head(_SHOWN).map(lambda value: f"{value:.3g}")


def _number(value: float, error: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if math.isfinite(error):
        digits = int(min(max(0, 1 - math.floor(math.log10(error))), 6)) if error > 0 else 2
        return f"{value:.{digits}f} ± {error:.{digits}f}"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def _table(found: Findings) -> pd.DataFrame:
    import pandas as pd

    rows: list[tuple[str, float, float, str]] = []

    def add(quantity: str, value: float, meaning: str, error: float = math.nan) -> None:
        rows.append((quantity, value, error, meaning))

    n = len(found.joint.weights)
    add("ELBO", found.elbo, f"mean of log p - log q over {n:,} draws", found.elbo_error)
    add("sd of log p - log q", found.spread, "nats between draws; 0 where the fit is the density itself")
    if found.gain is not None:
        add(
            "gain still to be had",
            found.gain[0],
            "nats in a third of the updates, or in the last part of what converged",
            found.gain[1],
        )
    add(
        "k-hat, all variables",
        found.joint.k_hat,
        f"of the weights of all {found.dim:,} variables; bad where these are many",
    )
    if found.moves is not None and found.globals is not None:
        first, last = found.moves.first, found.moves.last
        what = "globals, locals integrated out" if found.integrated else "all variables"
        if found.integrated:
            add("k-hat, globals", first.k_hat, f"weights of the {what}: below 0.7 they can be relied on")
        add("effective sample size", first.ess, f"of {n:,} draws: {what}")
        if last is not first:
            add(
                "effective sample size, corrected",
                last.ess,
                "of as many draws moved to where the density is",
            )
        add("largest move of a global", float(np.abs(found.globals.shift).max()), "of its mean, in the fit's sd")
        add("largest change of an sd", float(found.globals.change.max()), "of a global: factor")
    if found.restarts:
        elbos = [found.elbo, *(one.elbo for one in found.restarts)]
        add("ELBOs of restarts apart", max(elbos) - min(elbos), f"nats between {len(elbos)} fits")
        distance = max(one.distance for one in found.restarts)
        add("means of restarts apart", distance, "largest distance of a global's mean from the fit's, in sd")
    frame = pd.DataFrame(rows, columns=["quantity", "value", "std_error", "meaning"])
    return frame.set_index("quantity")


def _globals_table(moves: GlobalMoves | None, mean: np.ndarray, sd: np.ndarray, labels: list[str]) -> pd.DataFrame:
    import pandas as pd

    unknown = np.full(len(labels), np.nan)
    columns: dict[str, Any] = {"mean": mean, "sd": sd}
    if moves is None:
        columns |= dict.fromkeys(["corrected_mean", "corrected_sd", "shift", "std_error"], unknown)
    else:
        with np.errstate(all="ignore"):  # of a run that has exploded
            corrected = {"corrected_mean": mean + moves.shift * sd, "corrected_sd": moves.ratio * sd}
        columns |= {**corrected, "shift": moves.shift, "std_error": moves.error}
    return pd.DataFrame(columns, index=pd.Index(labels, name="global"))
