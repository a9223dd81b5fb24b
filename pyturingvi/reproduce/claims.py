"""The paper's claims about figures 4 and on, each as a measured quantity with an interval and a verdict.

There are no published numbers to compare with: the pictures are not in the paper's source. A claim is a quantity that
should be above zero. Its interval is 95 %, from the spread over replications (no smaller than the Monte Carlo error
of the ELBO estimates), by Student's t with Welch's degrees of freedom; that the best of several stepsizes was chosen
by the same values is not allowed for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.reproduce import realistic
from pyturingvi.reproduce.bands import band
from pyturingvi.reproduce.figure import FAMILIES
from pyturingvi.reproduce.realistic import PAPER_ITERATIONS
from pyturingvi.reproduce.realistic_tables import in_order
from pyturingvi.sweeps.cell_file import FINISHED

if TYPE_CHECKING:
    import pandas as pd

BORNE_OUT, NOT_BORNE_OUT, UNSHOWN = "borne out", "not borne out", "cannot be shown at this size"
WITHIN = 5.0  # nats below the best, within which a stepsize counts as good
COLUMNS = ["claim", "problem", "iteration", "quantity", "value", "low", "high", "replications", "verdict", "remark"]

STEPSIZE_CLAIMS = {
    "sensitivity": "the ELBO is more sensitive to the stepsize for full-rank than for structured, and for structured "
    "than for mean-field",
    "gap": "on rpoisson the gap between full-rank and structured narrows as the stepsize falls",
    "irt": "on irt structured is worse than mean-field at 1e-3, and as the stepsize falls it catches up (small) or "
    "overtakes (middle)",
    "trade-off": "for a fixed budget structured ends higher than mean-field and full-rank, each at its best stepsize",
}


@dataclass(frozen=True)
class Quantity:
    """A number of nats with its standard error; `parts` are variance and degrees of freedom of what it is made of."""

    value: float
    parts: tuple[tuple[float, int], ...]
    n: int

    def __sub__(self, other: Quantity) -> Quantity:
        both_infinite = math.isinf(self.value) and self.value == other.value
        value = math.nan if both_infinite else self.value - other.value
        return Quantity(value, self.parts + other.parts, min(self.n, other.n))

    def __abs__(self) -> Quantity:
        return Quantity(abs(self.value), self.parts, self.n)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval; NaN where a replication has no other beside it."""
        from scipy.stats import t

        if math.isinf(self.value):  # a median of diverged fits: nothing about it is in doubt
            return self.value, self.value
        variance = sum(v for v, _ in self.parts)
        if not math.isfinite(variance) or any(df < 1 for _, df in self.parts):
            return math.nan, math.nan
        df = variance**2 / sum(v**2 / df for v, df in self.parts)
        half = float(t.ppf(0.975, df)) * math.sqrt(variance)
        return self.value - half, self.value + half


def median_of(values: np.ndarray, errors: np.ndarray) -> Quantity:
    """Median over replications, minus infinity standing for a diverged one, with the error of a median."""
    finite = values[np.isfinite(values)]
    spread = float(np.var(finite, ddof=1)) if len(finite) > 1 else math.nan
    variance = max(spread, float(np.nanmean(np.square(errors)))) if len(finite) > 1 else math.nan
    # normal values: the variance of a median tends to pi/2 times that of a mean, and of two values it is the mean
    factor = 1.0 if len(finite) <= 2 else math.pi / 2
    return Quantity(band(values)["median"], ((factor * variance / max(len(finite), 1), len(finite) - 1),), len(values))


Curves = dict[str, dict[float, Quantity]]  # family -> stepsize -> median ELBO


def medians(elbo: pd.DataFrame) -> dict[tuple[str, int], Curves]:
    """The median ELBOs that may be compared: (problem, iteration) -> family -> stepsize -> median.

    A problem whose families ran to different T appears twice: those of the largest T there, and all at `EARLY`.
    """
    found: dict[tuple[str, int], Curves] = {}
    for problem in in_order(elbo.problem[elbo.status.isin(FINISHED)]):
        here = elbo[(elbo.problem == problem) & elbo.status.isin(FINISHED)]
        longest = int(here.n_iterations.max())
        for iteration in dict.fromkeys([longest, longest if (here.n_iterations == longest).all() else realistic.EARLY]):
            frame = values_at(here, iteration)
            found[problem, iteration] = {
                family: {
                    float(step): median_of(part.value.to_numpy(), part.error.to_numpy())  # type: ignore[arg-type]
                    for step, part in frame[frame.family == family].groupby("stepsize")
                }
                for family in FAMILIES
                if (frame.family == family).any()
            }
    return found


def values_at(elbo: pd.DataFrame, iteration: int) -> pd.DataFrame:
    """The fits that have ended and went so far, with `value` and `error` of the ELBO there.

    Minus infinity is the value of a fit that had diverged by then.
    """
    frame = elbo[elbo.status.isin(FINISHED) & (elbo.n_iterations >= iteration)]
    last, suffix = frame.n_iterations == iteration, f"_{realistic.EARLY}" if iteration == realistic.EARLY else ""
    values, errors = (frame[name].where(last, frame[f"{name}{suffix}"]) for name in ("elbo", "std_error"))
    gone = (frame.status == "diverged") & values.isna() & (last | (frame.n_updates <= iteration))
    frame = frame.assign(value=values.astype(float).mask(gone, -math.inf), error=errors.astype(float))
    return frame[frame.value.notna() & (last | (iteration == realistic.EARLY))]


# ---- sensitivity --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sensitivity:
    """How the median ELBO depends on the stepsize.

    `loss` tells what the noise of too large steps costs; at the smallest stepsize a fit may just not have arrived.
    """

    spread: Quantity  # best minus worst median over the stepsizes; infinite where the median fit diverges
    loss: Quantity  # best median minus that at the largest stepsize
    best: float  # stepsize of the best median
    worst: float
    good: float  # share of the stepsizes whose median is within `WITHIN` nats of the best


def sensitivity(curve: Mapping[float, Quantity]) -> Sensitivity:
    """The sensitivity of one family on one problem."""
    values = {step: median.value for step, median in curve.items()}
    best, worst = _best(curve), min(values, key=lambda step: values[step])
    spread, loss = (_drop(curve[best], curve[step]) for step in (worst, max(curve)))
    good = np.mean([values[best] - value <= WITHIN for value in values.values()])
    return Sensitivity(spread, loss, best, worst, float(good))


def _best(curve: Mapping[float, Quantity]) -> float:
    return max(curve, key=lambda step: curve[step].value)


def _drop(high: Quantity, low: Quantity) -> Quantity:
    return Quantity(0.0, high.parts, high.n) if high is low else high - low


# ---- the claims ---------------------------------------------------------------------------------------------
def judge(elbo: pd.DataFrame) -> pd.DataFrame:
    """Every claim on every problem and iteration on which its families are there, in `COLUMNS`.

    The `quantity`, in nats, is what the claim says is above zero; `replications` are the least in it. A claim about the
    end of T = 50,000 updates that was measured earlier is never borne out or not: its remark says what the numbers
    point to.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    compared = medians(elbo)
    for (problem, iteration), curves in compared.items():
        longest = max(there for name, there in compared if name == problem)
        # what the longest runs tell is not told again at `EARLY`
        settled = set() if iteration == longest else set(compared[problem, longest])
        for claim, judged in (
            ("sensitivity", _judge_sensitivity(curves, settled)),
            ("gap", _judge_gap(curves) if problem.startswith("rpoisson") else []),
            ("irt", _judge_irt(curves, problem) if problem.startswith(("irt-small", "irt-middle")) else []),
            ("trade-off", _judge_trade_off(curves, settled)),
        ):
            for quantity, measured, remark in judged:
                row = {"claim": claim, "problem": problem, "iteration": iteration, "quantity": quantity}
                rows.append({**row, **_verdict(measured, remark, iteration, claim)})
    return pd.DataFrame(rows, columns=COLUMNS).round({"value": 2, "low": 2, "high": 2})


def _verdict(measured: Quantity, remark: str, iteration: int, claim: str) -> dict[str, Any]:
    low, high = measured.interval
    verdict = BORNE_OUT if low > 0 else NOT_BORNE_OUT if high < 0 else UNSHOWN
    remarks = [remark] if remark else []
    if claim != "trade-off" and iteration < PAPER_ITERATIONS:
        points = {BORNE_OUT: "for", NOT_BORNE_OUT: "against", UNSHOWN: "neither for nor against"}[verdict]
        remarks.append(f"points {points} the claim, which is about iteration {PAPER_ITERATIONS:,}")
        verdict = UNSHOWN
    elif verdict == UNSHOWN:
        unknown = "diverged fits on both sides" if math.isnan(measured.value) else "no second replication"
        remarks.append(unknown if math.isnan(low) else "zero is inside the interval")
    numbers = {"value": measured.value, "low": low, "high": high, "replications": measured.n}
    return {**numbers, "verdict": verdict, "remark": "; ".join(remarks)}


_Judged = list[tuple[str, Quantity, str]]


def _shared(curves: Curves, one: str, other: str) -> list[float]:
    """The stepsizes that both families have."""
    return sorted(curves.get(one, {}).keys() & curves.get(other, {}).keys())


def _judge_sensitivity(curves: Curves, settled: set[str]) -> _Judged:
    found: _Judged = []
    for more, less in (("full-rank", "structured"), ("structured", "mean-field")):
        shared = _shared(curves, more, less)
        if len(shared) < 2 or {more, less} <= settled:
            continue
        a, b = (sensitivity({step: curves[family][step] for step in shared}) for family in (more, less))
        remark = ", ".join(
            f"{family} {each.spread.value:.1f} with the worst at {each.worst:.3g}"
            for family, each in ((more, a), (less, b))
        )
        found.append((f"range over {len(shared)} stepsizes, {more} - {less}", a.spread - b.spread, remark))
        remark = f"{more} {a.loss.value:.1f}, {less} {b.loss.value:.1f}"
        found.append((f"loss at the largest stepsize, {more} - {less}", a.loss - b.loss, remark))
    return found


def _judge_gap(curves: Curves) -> _Judged:
    shared = _shared(curves, "full-rank", "structured")
    if len(shared) < 2:
        return []
    gaps = {step: curves["structured"][step] - curves["full-rank"][step] for step in (shared[0], shared[-1])}
    words = ", ".join(f"{gap.value:.1f} at {step:.3g}" for step, gap in gaps.items())
    quantity = "|structured - full-rank| at the largest stepsize - that at the smallest"
    return [(quantity, abs(gaps[shared[-1]]) - abs(gaps[shared[0]]), f"structured - full-rank {words}")]


def _judge_irt(curves: Curves, problem: str) -> _Judged:
    shared = _shared(curves, "mean-field", "structured")
    ahead = {step: curves["structured"][step] - curves["mean-field"][step] for step in shared}
    large = next((step for step in shared if math.isclose(step, 1e-3, rel_tol=1e-3)), None)
    if large is None or large == shared[0]:
        return []
    small = shared[0]
    words = ", ".join(f"{gap.value:.1f} at {step:.3g}" for step, gap in ahead.items())
    behind = curves["mean-field"][large] - curves["structured"][large]
    found: _Judged = [("mean-field - structured at 1e-3", behind, f"structured - mean-field {words}")]
    if problem.startswith("irt-middle"):
        found.append((f"structured - mean-field at {small:.3g}", ahead[small], ""))
    elif behind.value > 0:  # else there is nothing to catch up
        found.append((f"how far structured catches up from 1e-3 to {small:.3g}", ahead[small] - ahead[large], ""))
    return found


def _judge_trade_off(curves: Curves, settled: set[str]) -> _Judged:
    found: _Judged = []
    for other in ("mean-field", "full-rank"):
        if other in curves and "structured" in curves and not {other, "structured"} <= settled:
            best = {family: _best(curves[family]) for family in (other, "structured")}
            measured = curves["structured"][best["structured"]] - curves[other][best[other]]
            words = f"best stepsizes {best['structured']:.3g} and {best[other]:.3g}"
            found.append((f"structured - {other}, at the best stepsize of each", measured, words))
    return found
