"""All figures that a verdict rests on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pyturingvi.diagnosis.check import GlobalsCheck
from pyturingvi.diagnosis.moves import Moves
from pyturingvi.diagnosis.starts import Starts
from pyturingvi.diagnosis.weights import ImportanceWeights


@dataclass(frozen=True)
class GlobalMoves:
    """How the globals would move, each (d_z,): means in the fit's standard deviations, and their errors; sd ratios."""

    labels: list[str]
    shift: np.ndarray
    error: np.ndarray
    ratio: np.ndarray
    by: str

    @property
    def sure(self) -> np.ndarray:
        """What of each shift is beyond its noise."""
        return np.asarray(np.clip(np.abs(self.shift) - 3 * self.error, 0.0, None))

    @property
    def change(self) -> np.ndarray:
        """Factor by which each standard deviation is too small or too large, at least 1."""
        return np.asarray(np.maximum(self.ratio, 1.0 / np.maximum(self.ratio, 1e-300)))

    @property
    def sure_change(self) -> np.ndarray:
        """What of each factor is beyond its noise."""
        return np.asarray(1 + np.clip(self.change - 1 - 3 * self.error, 0.0, None))


@dataclass(frozen=True)
class RestartEnd:
    """Where a fit from another seed and start ended.

    Attributes
    ----------
    seed : int
    elbo : float
        -inf where it diverged.
    distance : float
        Largest distance of a global's mean from that of the fit, in its standard deviations there.
    where : str
        That global.
    params : (p,) array
        Flat parameters: `tv.fit(model, init=params)` goes on from them.
    """

    seed: int
    elbo: float
    distance: float
    where: str
    params: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Findings:
    """All figures that a verdict rests on.

    `cut_short` says that an optimizer that ends by itself had not when its updates were used up, and `capped` that
    their number was not chosen by the user; `astray` is the fit's. `forgetful` says that the family takes locals as
    independent that the model calls a chain. `far_out` tells what a refined fit does not know of its tails, `warned`
    what the end of the run found of the density's shape.
    """

    status: str
    message: str
    cut_short: bool
    capped: bool
    dim: int
    elbo: float
    elbo_error: float
    spread: float
    joint: ImportanceWeights
    gain: tuple[float, float] | None = None
    astray: bool = False
    has_locals: bool = True
    integrated: bool = False
    refinable: bool = False
    refined: bool = False
    forgetful: bool = False
    far_out: list[str] = field(default_factory=list)
    moves: Moves | None = None
    globals: GlobalMoves | None = None
    restarts: list[RestartEnd] = field(default_factory=list)
    starts: Starts | None = None
    check: GlobalsCheck | None = None
    advice: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
