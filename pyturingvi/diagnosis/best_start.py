"""A fit from each start that a model asks for; the one with the highest ELBO is kept, and bettered by the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.diagnosis.draws import log_ratios
from pyturingvi.diagnosis.starts import as_good, compare_starts
from pyturingvi.errors import InputError

if TYPE_CHECKING:
    from pyturingvi.result import Fit

_PAIRS = 500  # of draws, the same at every point of a line, so that differences have little noise
_STEPS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0)  # from the fit that is kept, as shares of the way to the other


class _Race:
    """A callback that ends a run which has made as many updates as the first, and is no higher."""

    def __init__(self, n_updates: int, elbo: float, callback: Callable[[int, float], Any] | None) -> None:
        self.n_updates, self.elbo, self.callback = n_updates, elbo, callback
        self.lost = False

    def __call__(self, iteration: int, elbo: float) -> bool:
        if self.callback is not None and self.callback(iteration, elbo):
            return True
        self.lost = self.lost or (iteration >= self.n_updates and not elbo > self.elbo)
        return self.lost


def best_of_starts(
    first: Fit,
    callback: Callable[[int, float], Any] | None,
    again: Callable[[str, np.ndarray, Callable[[int, float], Any]], Fit],
) -> Fit:
    """The best of a fit and of those from the further starts of its model.

    Parameters
    ----------
    first : Fit
        From the usual start.
    callback : callable, optional
        The user's, heard in every run.
    again : callable
        Makes a fit of a start's name and flat parameters (p,), with the callback given.

    Returns
    -------
    Fit
        With `starts`, where there was more than one. Ctrl-C, or a true answer of the callback, during a further start
        ends that one alone.
    """
    model, bound = first.model, first.family.bind(first.model.layout)
    fits: list[tuple[str, Fit]] = [("usual", first)]
    lost: list[tuple[str, Fit]] = []
    for name, (location, scale) in model.starts(first.family.name).items():
        best = max(fit.last_elbo for _, fit in fits)
        race = _Race(first.n_updates, best, callback)
        found = again(name, bound.initial_flat(location, scale), race)
        if found.status == "interrupted" and not race.lost:
            break
        if found.status != "diverged":
            (lost if race.lost else fits).append((name, found))
    fits.sort(key=lambda pair: -pair[1].last_elbo)
    kept = fits[0][1]
    for _, other in [*fits[1:], *lost]:
        if as_good(kept, other):
            _search_line(kept, other)
    if len(fits) + len(lost) > 1:
        kept.starts = compare_starts([*fits, *lost])
        if kept.starts.disagree:
            kept.warnings.append(kept.starts.words)
        kept.seconds = sum(fit.seconds for _, fit in [*fits, *lost])
    return kept


def _search_line(kept: Fit, other: Fit) -> None:
    """Move a fit along the line to another one, and beyond, to where the ELBO is highest.

    A posterior that is flat along a curve lets runs end anywhere on it, since what is to be gained there drowns in the
    noise of an update; the same draws at each point see it, in antithetic pairs.
    """
    bound, seed, way = kept.family.bind(kept.model.layout), kept.spec.seed, other.params - kept.params

    def ratios(step: float) -> np.ndarray:
        flat = kept.params + step * way
        try:
            bound.check_flat(flat)
        except InputError:  # a diagonal that is not positive
            return np.full(_PAIRS, -np.inf)
        return np.asarray(
            log_ratios(kept.model, bound, flat, 2 * _PAIRS, seed, 0, pairs=True)[0].reshape(-1, 2).mean(1)
        )

    here = ratios(0.0)
    found = {0.0: 0.0}  # what a step gains

    def gain(step: float) -> float:
        with np.errstate(invalid="ignore"):
            value = float((ratios(step) - here).mean())
        return value if np.isfinite(value) else -np.inf

    found |= {step: gain(step) for step in _STEPS}
    steps = sorted(found)
    best = max(steps, key=found.__getitem__)
    place = min(max(steps.index(best), 1), len(steps) - 2)
    x = np.array(steps[place - 1 : place + 2])
    y = np.array([found[step] for step in x])
    if np.isfinite(y).all():
        curvature, slope, _ = np.polyfit(x - best, y, 2)
        if curvature < 0 and x[0] < (top := best - slope / (2 * curvature)) < x[2]:
            found[top] = gain(top)
    step = max(found, key=found.__getitem__)
    after = ratios(step)
    error = float((after - here).std(ddof=1)) / np.sqrt(_PAIRS)
    if step != 0.0 and found[step] > 3 * error:
        kept.replace_params(kept.params + step * way, float(after.mean()), float(after.std(ddof=1)) / np.sqrt(_PAIRS))
