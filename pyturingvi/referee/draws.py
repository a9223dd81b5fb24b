"""What a No-U-Turn sampler found: its draws, in the form of `Fit.sample`, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.models.base import Model
from pyturingvi.optimize.noise import PREDICT_STREAM, generator
from pyturingvi.outputs.arviz import check_data_memory, data_groups
from pyturingvi.outputs.summary import table_of
from pyturingvi.referee import mici, turing
from pyturingvi.referee.run import NutsRun
from pyturingvi.support.arguments import LARGEST_SEED, whole_number
from pyturingvi.support.arviz import Group, tree_of_groups

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SAMPLERS: dict[str, ModuleType] = {"mici": mici, "turing": turing}
_JUDGED = 100  # locals that are judged where there are no globals
_ENOUGH = 100  # effective draws of a chain, from which on a mean and R-hat itself can be relied on
_MIXED = 1.01  # largest R-hat of chains that agree (Vehtari et al. 2021)


class NutsDraws:
    """Draws of NUTS, in the form of `Fit.sample`.

    Attributes
    ----------
    model : Model
    points : (n_chains, n_draws, d) array
        The draws in unconstrained space.
    divergent : (n_chains, n_draws) bool array
        Transitions that diverged: the posterior may not be explored where they happen.
    tree_depth : (n_chains, n_draws) int array
    step_size : (n_chains,) array
    sampler : {"mici", "turing"}
    status : {"completed", "interrupted", "failed"}
        After Ctrl-C, or an error in the model ("failed"), the draws made so far are kept, as many of each chain.
    message : str
        What the model threw, and in which chain; empty unless it failed.
    seconds : float
        Wall time, warm-up and compilation included.
    """

    def __init__(self, model: Model, run: NutsRun, sampler: str, status: str, seconds: float) -> None:
        self.model = model
        self.points = run.points
        self.divergent = run.divergent
        self.tree_depth = run.tree_depth
        self.step_size = run.step_size
        self.sampler = sampler
        self.status = status
        self.seconds = seconds
        self.message = run.failure
        self._natural: dict[str, np.ndarray] | None = None

    def __repr__(self) -> str:
        n_chains, n_draws, _ = self.points.shape
        return (
            f"<NUTS draws of {self.model.label}: {n_chains} chains of {n_draws:,} draws, {self.status} in "
            f"{self.seconds:.1f} s, {self.n_divergent} divergent>"
        )

    @property
    def n_divergent(self) -> int:
        """Number of divergent transitions in all chains."""
        return int(self.divergent.sum())

    def sample(self) -> dict[str, np.ndarray]:
        """All draws in the natural space: name of each variable -> (n_chains*n_draws, ...), chain after chain."""
        if self._natural is None:
            with np.errstate(over="ignore"):
                self._natural = self.model.constrain(self.points.reshape(-1, self.points.shape[-1]))
        return dict(self._natural)

    def by_chain(self) -> dict[str, np.ndarray]:
        """All draws in the natural space: name of each variable -> (n_chains, n_draws, ...)."""
        shape = self.points.shape[:2]
        return {name: value.reshape(*shape, *value.shape[1:]) for name, value in self.sample().items()}

    # ---- how good they are --------------------------------------------------------------------------------
    def summary(self, local: bool = False) -> pd.DataFrame:
        """Mean, standard deviation, quantiles and convergence of the global variables in their natural space.

        Parameters
        ----------
        local : bool
            Tell of the local variables too, and of what the model derives from them.

        Returns
        -------
        DataFrame
            One row a scalar, e.g. `beta[age]`; columns mean, sd, q5, median, q95, as `Fit.summary` has, and r_hat
            (rank-normalized), ess_bulk and ess_tail (Vehtari et al. 2021). These are NaN with fewer than 4 draws of a
            chain, r_hat also of a constant and, by mici, of a single chain; the sd of a single draw is NaN.
        """
        draws = self.sample()
        chosen = {name: draws[name] for name in (draws if local else self.model.global_names)}
        figures = [self._diagnose(values.reshape(len(values), -1)) for values in chosen.values()]
        columns = dict(zip(("r_hat", "ess_bulk", "ess_tail"), np.hstack(figures or [np.empty((3, 0))]), strict=True))
        return table_of(self.model, chosen).assign(**columns)

    def diagnostics(self) -> pd.DataFrame:
        """The worst of each variable's scalars: columns max_r_hat, min_ess_bulk and min_ess_tail."""
        import pandas as pd

        rows = {}
        for name, draws in self.by_chain().items():
            with np.errstate(invalid="ignore"):
                figures = self._diagnose(draws.reshape(-1, int(np.prod(draws.shape[2:], dtype=int))))
            rows[name] = [_worst(np.max, figures[0]), _worst(np.min, figures[1]), _worst(np.min, figures[2])]
        columns = ["max_r_hat", "min_ess_bulk", "min_ess_tail"]
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
        frame.index.name = "variable"
        return frame

    def doubts(self) -> str:
        """What speaks against the draws: a global's R-hat above 1.01, an ESS below 100 a chain, a lone chain."""
        n_chains, n_draws, d = self.points.shape
        if n_draws < 4:
            return f"{n_draws} draws of a chain are too few to tell how good they are"
        judged = self.points[..., : self.model.layout.n_global or min(d, _JUDGED)]
        figures = self._diagnose(judged.reshape(n_chains * n_draws, -1))
        r_hat, ess = _worst(np.max, figures[0]), _worst(np.min, figures[1:])
        stuck = int((judged == judged[:, :1]).all(axis=(1, 2)).sum())  # such draws can have a fine ESS
        found = []
        if stuck:
            found.append(f"{stuck} of {n_chains} chains did not move")
        if r_hat > _MIXED or ess < _ENOUGH * n_chains:
            largest = "" if np.isnan(r_hat) else f"the largest R-hat of a global variable is {r_hat:.3f} and "
            found.append(
                f"{largest}the smallest effective sample size {'' if largest else 'of a global variable is '}{ess:.0f} "
                f"(of {n_chains * n_draws:,} draws)"
            )
        if n_chains == 1:
            found.append("no second chain shows by R-hat whether others would end elsewhere (n_chains=4)")
        if found:
            found.append(f"{self.n_divergent} of {n_chains * n_draws:,} draws diverged")
        return "; ".join(found)

    def _diagnose(self, flat: np.ndarray) -> np.ndarray:
        """R-hat, bulk and tail ESS (3, k) of draws (n_chains*n_draws, k)."""
        n_chains, n_draws, _ = self.points.shape
        if n_draws < 4 or not flat.shape[1]:
            return np.full((3, flat.shape[1]), np.nan)
        figures: np.ndarray = SAMPLERS[self.sampler].diagnose(flat.reshape(n_chains, n_draws, -1))
        return figures

    # ---- other tools --------------------------------------------------------------------------------------
    def to_arviz(self, seed: int = 0, *, log_likelihood: bool = True, posterior_predictive: bool = True) -> xr.DataTree:
        """The draws as an ArviZ DataTree, beside whose fit `az.compare` can hold them.

        Its groups are `posterior` and `sample_stats`, and where the model tells them `log_likelihood`,
        `posterior_predictive`, `observed_data` and `prior`, as of `Fit.to_arviz`.

        Parameters
        ----------
        seed : int
            Of the posterior predictive draws.
        log_likelihood, posterior_predictive : bool
            False leaves the group out, each of which holds a copy of the data for each draw.
        """
        chosen = {"log_likelihood": log_likelihood, "posterior_predictive": posterior_predictive}
        seed = whole_number("seed", seed, 0, LARGEST_SEED)
        n_chains, n_draws, _ = self.points.shape
        check_data_memory(self.model, n_chains * n_draws, "to_arviz", **chosen)
        stats = {
            "diverging": self.divergent,
            "tree_depth": self.tree_depth,
            "step_size": np.repeat(self.step_size[:, None], n_draws, axis=1),
        }
        attrs = {"inference_library": SAMPLERS[self.sampler].LIBRARY, "sampling_time": self.seconds}
        groups = {
            "posterior": Group(self.by_chain(), self.model.dims, self.model.coords, attrs=attrs),
            "sample_stats": Group(stats),
            **data_groups(self.model, self.points, generator(np, seed, PREDICT_STREAM), **chosen),
        }
        return tree_of_groups(groups)


def _worst(of: Callable[[np.ndarray], Any], figures: np.ndarray) -> float:
    """The largest or smallest of the figures that are numbers; NaN where there is none."""
    known = figures[~np.isnan(figures)]
    return float(of(known)) if known.size else np.nan
