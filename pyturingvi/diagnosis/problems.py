"""What `fit` warns of: a run that went astray, was cut short, or had data on a scale that no run gets right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyturingvi.diagnosis.trend import Row, last_third
from pyturingvi.support.quiet import quietly


@quietly
def convergence_problems(
    status: str,
    message: str,
    rows: Sequence[Row],
    start: tuple[float, float] | None = None,
    *,
    budget_chosen: bool = False,
    ends_by_itself: bool = False,
    astray: bool = False,
    advice: Sequence[str] = (),
) -> list[str]:
    """Reasons not to trust a run, a sentence or two each; none where nothing is wrong.

    Parameters
    ----------
    status, message : str
        How the run ended.
    rows : sequence of (iteration, elbo, std_error, seconds)
        Its ELBO trace.
    start : (elbo, std_error), optional
        ELBO where the run began; without it a run that has exploded is not seen.
    budget_chosen : bool
        Whether the user said how many updates to make: who does need not be told that more would help.
    ends_by_itself : bool
        Whether the optimizer ends when it has converged: that it has not is then all that need be known.
    astray : bool
        Whether it was not on its way when its updates were used up, as `message` says: no budget explains that.
    advice : sequence of str
        What the model says of its data.
    """
    found = []
    remedy = "Try another init_location or a smaller init_scale" if ends_by_itself else "Use a smaller stepsize"
    if status == "diverged":
        found.append(f"The fit diverged: {message}")
    elif rows and start is not None and has_exploded(rows[-1], start):
        found.append(
            f"The fit has exploded: its ELBO was {start[0]:.6g} at the start and is {rows[-1][1]:.6g} at the end. "
            f"{remedy}; what is returned is of no use."
        )
    elif astray:
        found.append(f"The fit had not converged: {message}.")
    elif status == "completed" and not budget_chosen:
        trend = last_third(rows)
        if ends_by_itself:
            found.append(f"The fit had not converged: {message}. Go on with init=fit, or give a larger n_iterations.")
        elif trend is not None and trend.is_rising:
            found.append(
                "The fit had not converged: its ELBO was still rising when the updates were used up, by "
                f"{trend.rise:.1f} nats (standard error {trend.error:.1f}) in a third of them. Go on with "
                "init=fit, or make more updates."
            )
    return found + list(advice)


def has_exploded(last: Row, start: tuple[float, float]) -> bool:
    """Whether the last ELBO is below the first by more than the noise of both."""
    elbo, error = last[1], last[2]
    if not math.isfinite(elbo):
        return True
    # an error beyond that of a single draw at the start is no noise: it tells of the explosion itself
    error = min(error, 8 * start[1]) if math.isfinite(error) else 8 * start[1]
    if not math.isfinite(start[0]) or not math.isfinite(start[1]):
        return False
    return elbo < start[0] - 5 * math.hypot(error, start[1]) - 1.0
