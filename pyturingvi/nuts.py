"""Turing's NUTS on the same model as a fit: the reference posterior."""

from __future__ import annotations

import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import EngineError, InputError, unknown_name
from pyturingvi.models.base import Model
from pyturingvi.models.turing import AD_BACKENDS, Turing
from pyturingvi.optimize.memory import check_nuts_memory
from pyturingvi.support.arguments import LARGEST_SEED, whole_number
from pyturingvi.support.arviz import arviz_tree
from pyturingvi.support.interrupts import DeferredInterrupt

if TYPE_CHECKING:
    import pandas as pd

_CHUNK_SECONDS = 0.1  # between two looks at Ctrl-C and the progress bar


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
    status : {"completed", "interrupted", "failed"}
        After Ctrl-C, or an error in the model ("failed"), the draws made so far are kept, as many of each chain.
    message : str
        What the model threw, and in which chain; empty unless it failed.
    seconds : float
        Wall time, warm-up and compilation included.
    """

    def __init__(
        self,
        model: Model,
        points: np.ndarray,
        divergent: np.ndarray,
        tree_depth: np.ndarray,
        step_size: np.ndarray,
        status: str,
        seconds: float,
        message: str = "",
    ) -> None:
        self.model = model
        self.points = points
        self.divergent = divergent
        self.tree_depth = tree_depth
        self.step_size = step_size
        self.status = status
        self.seconds = seconds
        self.message = message
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
            (rank-normalized), ess_bulk and ess_tail (Vehtari et al. 2021). A constant has NaN there, as all have with
            fewer than 4 draws of a chain; the sd of a single draw is NaN.
        """
        import pandas as pd

        columns = ["mean", "sd", "q5", "median", "q95", "r_hat", "ess_bulk", "ess_tail"]
        labels: list[str] = []
        blocks: list[np.ndarray] = []
        draws = self.by_chain()
        for name in draws if local else self.model.global_names:
            flat = draws[name].reshape(-1, int(np.prod(draws[name].shape[2:], dtype=int)))
            quantiles = np.quantile(flat, [0.05, 0.5, 0.95], axis=0)
            diagnostics = self._diagnose(flat)
            spread = flat.std(axis=0, ddof=1) if len(flat) > 1 else np.full(flat.shape[1], np.nan)
            blocks.append(np.vstack([flat.mean(axis=0), spread, quantiles, diagnostics]).T)
            labels += self.model.scalar_labels(name)
        figures = np.vstack(blocks) if blocks else np.empty((0, len(columns)))
        return pd.DataFrame(figures, columns=columns, index=pd.Index(labels, name="variable"))

    def diagnostics(self) -> pd.DataFrame:
        """The worst of each variable's scalars: columns max_r_hat, min_ess_bulk and min_ess_tail."""
        import pandas as pd

        rows = {}
        for name, draws in self.by_chain().items():
            with np.errstate(invalid="ignore"):
                figures = self._diagnose(draws.reshape(-1, int(np.prod(draws.shape[2:], dtype=int))))
            known = figures[:, ~np.isnan(figures[0])]
            rows[name] = [known[0].max(), known[1].min(), known[2].min()] if known.size else [np.nan, np.nan, np.nan]
        columns = ["max_r_hat", "min_ess_bulk", "min_ess_tail"]
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
        frame.index.name = "variable"
        return frame

    def _diagnose(self, flat: np.ndarray) -> np.ndarray:
        """R-hat, bulk and tail ESS (3, k) of draws (n_chains*n_draws, k), by MCMCDiagnosticTools.jl."""
        from pyturingvi.bridge.runtime import start_julia

        n_chains, n_draws, _ = self.points.shape
        if n_draws < 4:
            return np.full((3, flat.shape[1]), np.nan)
        runtime = start_julia()
        runtime.load("Turing")
        # Julia wants draws x chains x variables, whose memory is that of variables, chains, draws here
        batch = np.ascontiguousarray(flat.reshape(n_chains, n_draws, -1).transpose(2, 0, 1))
        found = runtime.call(runtime.module.diagnostics, batch.T)
        return np.array([runtime.to_numpy(figures) for figures in found])

    # ---- other tools --------------------------------------------------------------------------------------
    def to_arviz(self) -> Any:
        """The draws as an ArviZ DataTree with groups `posterior` and `sample_stats`."""
        stats = {
            "diverging": self.divergent,
            "tree_depth": self.tree_depth,
            "step_size": np.repeat(self.step_size[:, None], self.points.shape[1], axis=1),
        }
        attrs = {"inference_library": "Turing.jl", "sampling_time": self.seconds}
        groups = {"posterior": self.by_chain(), "sample_stats": stats}
        return arviz_tree(groups, self.model.dims, self.model.coords, attrs)


def sample_nuts(
    model: Model,
    n_draws: int = 1000,
    n_tune: int = 1000,
    n_chains: int = 4,
    seed: int = 0,
    target_acceptance: float = 0.8,
    ad: str | None = None,
    progress: bool = True,
) -> NutsDraws:
    """Draw from the posterior with Turing's No-U-Turn sampler (needs Julia with Turing).

    Bundled models run in their Turing form, which is the same density; the cost of a draw grows faster than that
    of an update of a fit, so take the small problems.

    Parameters
    ----------
    model : Model
        A bundled model or `tv.models.Turing`.
    n_draws, n_tune : int
        Draws kept of each chain, and steps before them in which the step size and the metric are adapted.
    n_chains : int
        Chains, one after the other on one core, each from its own start.
    seed : int
        The same seed gives the same draws again with the same versions of the Julia packages.
    target_acceptance : float
        At least 0.1 and below 1; nearer to 1 means smaller steps and fewer divergences.
    ad : str, optional
        Automatic differentiation as in `tv.models.Turing`; by default the model's own, or the fastest that works.
    progress : bool
        Show a progress bar.

    Returns
    -------
    NutsDraws
        After Ctrl-C, or if the model throws, the draws made so far; the latter with a RuntimeWarning.

    Raises
    ------
    InputError
        If an argument is out of range.
    MemoryLimitError
        If the draws need more memory than is free; nothing was started.
    EngineError
        If there is no Julia with Turing, the model is a Python function, or it throws before there are draws.
    KeyboardInterrupt
        After Ctrl-C during the warm-up: there are no draws yet.
    """
    if not isinstance(model, Model):
        raise InputError(f"model must be one of tv.models or come from tv.load_problem, got {type(model).__name__!r}.")
    if "julia" not in model.engines:
        raise EngineError(f"sample_nuts runs in Julia and cannot call {model.description}; use tv.models.Turing.")
    n_draws = whole_number("n_draws", n_draws, 1)
    n_tune = whole_number("n_tune", n_tune, 0)
    n_chains = whole_number("n_chains", n_chains, 1)
    seed = whole_number("seed", seed, 0, LARGEST_SEED)
    if not isinstance(target_acceptance, float | int | np.floating) or not 0.1 <= target_acceptance < 1:
        raise InputError(f"target_acceptance must be a number of at least 0.1 and below 1, got {target_acceptance!r}.")
    if ad is not None and ad not in AD_BACKENDS:
        raise unknown_name("ad", ad, AD_BACKENDS)
    check_nuts_memory(model.dim, n_chains, n_draws)

    from pyturingvi.bridge.runtime import start_julia

    start = time.perf_counter()
    runtime = start_julia()
    runtime.load("Turing")
    P = runtime.module
    inner = _turing_form(runtime, model, ad)
    run = runtime.call(P.start_nuts, inner, str(seed), n_chains, n_draws, n_tune, float(target_acceptance))
    n_tuned, n_drawn, failure = 0, 0, ""
    with DeferredInterrupt() as interrupt, _bar(model.label, n_tune + n_draws, progress) as bar:
        while n_drawn < n_draws and not (failure or interrupt.requested):
            n_tuned, n_drawn, n_divergent, failure = runtime.call(P.advance_nuts_b, run, _CHUNK_SECONDS)
            _show(bar, n_tuned + n_drawn, "warm-up" if n_tuned < n_tune else f"{n_divergent} divergent")
    failure = str(failure)
    if n_drawn == 0 and failure:
        raise EngineError(f"sample_nuts: {model.label} fails in {failure}. There are no draws yet.")
    if n_drawn == 0:
        raise KeyboardInterrupt(f"sample_nuts was interrupted after {n_tuned} of {n_tune} warm-up steps: no draws yet.")
    points, divergent, tree_depth, step_size = (np.array(runtime.to_numpy(a)) for a in runtime.call(P.nuts_draws, run))
    del run
    runtime.call(P.free_garbage)
    status = "completed" if n_drawn == n_draws else "failed" if failure else "interrupted"
    if status == "failed":
        kept = f"The {n_drawn:,} draws of each chain before are kept, with the status 'failed'."
        warnings.warn(f"sample_nuts: {model.label} fails in {failure}. {kept}", RuntimeWarning, stacklevel=2)
    seconds = time.perf_counter() - start
    return NutsDraws(model, points, divergent.astype(bool), tree_depth, step_size, status, seconds, failure)


def _turing_form(runtime: Any, model: Model, ad: str | None) -> Any:
    """The model in Julia as DynamicPPL sees it, with a gradient."""
    if isinstance(model, Turing):
        return model.to_julia(runtime, ad)
    return runtime.call(runtime.module.turing_form, model.to_julia(runtime), ad=ad or "")


def _bar(label: str, total: int, progress: bool) -> Any:
    from tqdm.auto import tqdm

    shown = progress and sys.stderr is not None  # a program without a console has none
    interval = 0.2 if shown and sys.stderr.isatty() else 10.0  # a log file wants few lines
    return tqdm(
        total=total,
        desc=f"{label} NUTS",
        unit="step",
        dynamic_ncols=True,
        mininterval=interval,
        disable=not shown,
    )


def _show(bar: Any, done: int, words: str) -> None:
    """Move the bar to `done` steps of every chain."""
    bar.set_postfix_str(words, refresh=False)
    bar.update(done - bar.n)
