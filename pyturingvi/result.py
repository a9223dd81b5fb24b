"""`Fit`: what a run found, in the user's own terms, and its file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.diagnosis.starts import Starts
from pyturingvi.errors import ConvergenceWarning, InputError
from pyturingvi.families import Family, family_from_config
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model
from pyturingvi.optimize.monitor import Outcome
from pyturingvi.outputs.arviz import tree_of_fit
from pyturingvi.outputs.cards import html_of, text_of
from pyturingvi.outputs.draws import Draws
from pyturingvi.outputs.fit_file import read_fit, versions_here, write_fit
from pyturingvi.outputs.summary import summarize
from pyturingvi.refine.refinement import Refinement
from pyturingvi.settings import FitSpec
from pyturingvi.support.arguments import LARGEST_SEED, real_array, whole_number
from pyturingvi.support.files import check_writable

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from scipy.sparse import csc_array

    from pyturingvi.diagnosis.report import Diagnosis
    from pyturingvi.families.markov_scale import MarkovScale


class Fit(Draws):
    """A fitted variational distribution.

    Attributes
    ----------
    model : Model
    spec : FitSpec
        Everything that determined the numbers.
    params : (p,) array
        Flat parameters, `[m; nonzeros of C in CSC order]` in the bundled families.
    status : {"converged", "completed", "interrupted", "diverged"}
    message : str
        How the run ended, in words.
    n_updates : int
        Updates behind `params`.
    arrived : bool
        Whether the run ended within `stop_within` of the optimum.
    gain : (rise, std_error) or None
        Rise of the ELBO over the last part of the climb, where the optimizer ended by itself.
    astray : bool
        Whether a run that used its updates up was not on its way when it ended, as `message` says.
    seconds : float
        Wall time of the run.
    warnings : list of str
        What `tv.fit` warned of.
    advice : list of str
        What `tv.fit` said by a RefineWarning: globals that `refine` would correct.
    starts : Starts or None
        How fits from the model's other starts ended, where it has some: `names`, `elbos`, `distance`, `words`.
    refined : Refinement or None
        Of a fit that `refine` made: the weighted draws of the globals and the integrated bound, which `elbo` then has
        too. `params`, `location` and `scale` are those of the structured Gaussian with its moments.
    verdict : {None, "good", "usable with care", "do not trust"}
        What `diagnose` said last; None before.
    """

    def __init__(
        self,
        model: Model,
        family: Family,
        spec: FitSpec,
        outcome: Outcome,
        elbo_rows: list[tuple[int, float, float, float]],
        seconds: float,
        versions: dict[str, str] | None = None,
    ) -> None:
        self.model = model
        self.spec = spec
        self.params = outcome.params
        self.status = outcome.status
        self.message = outcome.message
        self.n_updates = outcome.n_updates
        self.arrived = outcome.arrived
        self.gain, self.astray = outcome.gain, outcome.astray
        self.seconds = seconds
        self.versions = versions or versions_here()
        self.warnings: list[str] = []
        self.advice: list[str] = []
        self.verdict: str | None = None
        self.starts: Starts | None = None
        self.refined: Refinement | None = None
        self._rows = list(elbo_rows)
        self._family = family
        self._bound = self._family.bind(model.layout)

    def __repr__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_bound"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bound = self._family.bind(self.model.layout)

    # ---- what was found -----------------------------------------------------------------------------------
    @property
    def engine(self) -> str:
        """Name of the engine that ran the fit."""
        return self.spec.engine

    @property
    def family(self) -> Family:
        """The fitted family."""
        return self._family

    @property
    def elbo(self) -> pd.DataFrame:
        """The ELBO trace: columns iteration, elbo, std_error (Monte Carlo), seconds."""
        import pandas as pd

        return pd.DataFrame(self._elbo_columns())

    def _elbo_columns(self) -> dict[str, np.ndarray]:
        """The columns of `elbo`: for files too, which a sweep's worker writes without loading pandas."""
        columns = list(zip(*self._rows, strict=True)) or [()] * 4
        kinds = {"iteration": int, "elbo": float, "std_error": float, "seconds": float}
        return {name: np.array(one, dtype=kind) for (name, kind), one in zip(kinds.items(), columns, strict=True)}

    @property
    def last_elbo(self) -> float:
        """The last estimate of the ELBO; -inf where there is none."""
        return self._rows[-1][1] if self._rows and np.isfinite(self._rows[-1][1]) else -np.inf

    def replace_params(self, params: np.ndarray, elbo: float, std_error: float) -> None:
        """Take other parameters (p,) in place of those at the end of the run, with their ELBO."""
        self.params = params
        self._rows[-1] = (self._rows[-1][0], elbo, std_error, self._rows[-1][3])

    @property
    def global_sds(self) -> np.ndarray:
        """Standard deviations (d_z,) of the globals in unconstrained space."""
        scale = GlobalsAndLocals.of(self._bound, self.params).scale
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", scale, scale)))

    @property
    def location(self) -> np.ndarray:
        """Mean (d,) in unconstrained space."""
        return self._bound.location(self.params)

    @property
    def scale(self) -> csc_array | MarkovScale:
        """Scale matrix C (d, d) in unconstrained space, as a scipy.sparse.csc_array.

        In the Markov family it is dense, and a scipy LinearOperator in its place: `scale @ x`, `scale.T @ x` and
        `scale.toarray()`. With conditional widths there is none, and an InputError says so.
        """
        return self._bound.scale(self.params)

    def log_q(self, points: Any) -> np.ndarray:
        """Log density of the fitted distribution at unconstrained points (M, d), as an (M,) array."""
        checked = self.model._check_points(real_array("points", points))
        return np.asarray(self._bound.log_q(self._bound.from_flat(self.params), checked))

    def summary(
        self,
        n: int | str | Sequence[str] = 10_000,
        seed: int = 0,
        local: bool = False,
        *,
        variables: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Mean, standard deviation and quantiles of the variables in their natural space.

        Parameters
        ----------
        n : int
            Monte Carlo draws behind the figures, at least 2. A name or a list of names in its place is `variables`:
            `fit.summary("beta")`, `fit.summary(["alpha"])`.
        seed : int
        local : bool
            Add the local variables under their labels, e.g. `alpha[ann]` for the ability of the student ann, after the
            global ones. Of many locals fewer points are drawn, at least 1,000, to take no more than some 500 MB.
        variables : str or sequence of str, optional
            These alone, global or local: names of variables, or of single scalars, such as `beta[age]`.

        Returns
        -------
        DataFrame
            One row a scalar, e.g. `beta[age]`; columns mean, sd, q5, median, q95.

        Raises
        ------
        InputError
            If a name is unknown, or an argument cannot be used.
        """
        if isinstance(n, str | list | tuple):
            if variables is not None:
                raise InputError("summary: give names once, as the first argument or as variables=.")
            return summarize(self, 10_000, seed, local, n)
        return summarize(self, whole_number("n", n, 2), seed, local, variables)

    def refine(
        self,
        n_nodes: int | None = None,
        n_draws: int = 2000,
        *,
        seed: int = 0,
        progress: bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Fit:
        """Correct the globals: integrate every local out, step q(z) on what is left, and weight its draws.

        Where the locals are independent given the globals, the density of the globals alone is a product of integrals
        over one local each. Where each depends on its neighbours, as in a time series (a model whose `default_family`
        is "markov", or a fit of that family), it is had from the Gaussian that is nearest to the whole chain, and from
        draws of that. Natural gradients step a full-rank Gaussian of the globals on this density until converged; its
        draws then get Pareto-smoothed importance weights. Where these can be relied on, as far as their effective
        sample size tells, the globals' means and standard deviations are those of the posterior, as a long run of NUTS
        has them.

        Parameters
        ----------
        n_nodes : int, optional
            Gauss-Hermite nodes along each variable of a local, or draws where a local has more than two; of item
            response, nodes of the grid that all abilities share; of time series, pairs of draws of the whole chain. By
            default as many as twice the number does not change.
        n_draws : int
            Weighted draws of the globals, at least 100.
        seed : int
        progress : bool
            Show a progress bar.
        checkpoint : path, optional
            File that keeps the state of the steps, from which a killed run goes on.

        Returns
        -------
        Fit
            With `refined`. Its `sample`, `summary` and `to_arviz` resample the weighted draws and draw each local given
            them; `elbo` is the integrated bound, and `refined.log_evidence` estimates the log marginal likelihood.

        Warns
        -----
        ConvergenceWarning
            Where refining cannot help: an effective sample size below a tenth of the draws, whose weights are then not
            used, steps that did not converge, or a chain too far from normal. `warnings` has the words.

        Raises
        ------
        InputError
            Before any work, where given the globals the model's locals are neither independent nor a chain, where it
            gives log terms without their gradients (`Model.log_terms_and_gradient`), or the fit diverged.
        """
        from pyturingvi.refine.refine import refine

        found = refine(
            self,
            None if n_nodes is None else whole_number("n_nodes", n_nodes, 2, 4096),
            whole_number("n_draws", n_draws, 100),
            whole_number("seed", seed, 0, LARGEST_SEED),
            progress,
            None if checkpoint is None else check_writable(checkpoint, "checkpoint"),
        )
        family = family_from_config(found.spec.family)
        refined = Fit(self.model, family, found.spec, found.outcome, found.rows, self.seconds + found.seconds)
        refined.refined, refined.warnings = found.refinement, found.problems
        if self.starts is not None:
            refined.starts = self.starts.beside(self, refined) if found.refinement.weighted else self.starts
        for problem in found.problems:
            warnings.warn(f"{self.model.label}: {problem}", ConvergenceWarning, stacklevel=2)
        return refined

    def diagnose(self, n: int = 1000, seed: int = 0, seeds: Sequence[int] | None = None) -> Diagnosis:
        """Say how good the fit is: `print(fit.diagnose())`.

        It compares the log density with that of the fit at n draws. Where the model has `log_terms`, the locals are
        integrated out by quadrature, so that what is judged is the globals; the draws are then moved to where the
        density is, which also gives corrected means and standard deviations.

        Parameters
        ----------
        n : int
            Draws, at least 100. A draw costs some 12 to 50 evaluations of the log density.
        seed : int
        seeds : sequence of int, optional
            Fit again with each of these seeds, from a start far from the others, and see whether all end at the same
            place. Only this can find a second mode. The same seed starts at the same place again.

        Returns
        -------
        Diagnosis
            With `verdict`, `reasons`, `table` and `globals`.
        """
        from pyturingvi.diagnosis.diagnose import diagnose

        found = diagnose(self, n, seed, seeds)
        self.verdict = found.verdict
        return found

    # ---- other tools --------------------------------------------------------------------------------------
    def plot_elbo(self, ax: Axes | None = None) -> Axes:
        """Plot the ELBO trace; returns the matplotlib Axes."""
        from pyturingvi.plots import plot_elbo

        return plot_elbo(self, ax)

    def plot_forest(self, variables: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
        """Plot medians and the central 90 % of variables, named as in `summary`; by default of the globals."""
        from pyturingvi.plots import plot_forest

        return plot_forest(self, variables, ax)

    def plot_pair(self, variables: Sequence[str] | None = None, n: int = 1000, seed: int = 0) -> Figure:
        """Plot draws of scalars against each other, named as in `summary`; by default the first globals."""
        from pyturingvi.plots import plot_pair

        return plot_pair(self, variables, n, seed)

    def plot_prior(self, variables: Sequence[str] | None = None, n: int = 4000, seed: int = 0) -> Figure:
        """Plot densities of globals under the fit against those under their prior; by default of the first ones."""
        from pyturingvi.plots import plot_prior

        return plot_prior(self, variables, n, seed)

    def to_arviz(
        self, n: int = 1000, seed: int = 0, *, log_likelihood: bool = True, posterior_predictive: bool = True
    ) -> xr.DataTree:
        """The fit as an ArviZ DataTree, which `arviz` reads also from a file: `.to_netcdf(path)`.

        Where ArviZ is older than 1.0, as beside PyMC 5, it is an `InferenceData` with the same groups.
        Its groups are `posterior` (one chain of n draws), `sample_stats` (`lp`, the log density of the model, and
        `log_q`, that of the fit), `log_likelihood` (of each observed value, given globals and locals, for `az.loo`),
        `posterior_predictive`, `observed_data`, `prior` (of the globals), and `optimization` (the ELBO trace). What a
        model does not tell is left out. Status, verdict, ELBO and the like are attributes of `posterior`.

        Parameters
        ----------
        n : int
            Draws.
        seed : int
            The same seed takes the same draws as `sample` does.
        log_likelihood, posterior_predictive : bool
            False leaves the group out, each of which holds n copies of the data.

        Raises
        ------
        DataError
            Without xarray.
        MemoryLimitError
            If the draws do not fit in memory.

        Notes
        -----
        Where each observed value has a local of its own, as in robust Poisson regression, leaving one out moves its
        local so far that `az.loo` warns of large Pareto k: what it then gives says little.
        """
        n, seed = whole_number("n", n, 1), whole_number("seed", seed, 0, LARGEST_SEED)
        given = {"log_likelihood": log_likelihood, "posterior_predictive": posterior_predictive}
        return tree_of_fit(self, n, seed, **given)

    # ---- file ---------------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fit with its model's data to one file (an .npz without pickle); returns its path.

        A model of your own class that does not tell its state is left out: `load_fit` then needs it.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        return write_fit(self, path)


def load_fit(path: str | os.PathLike[str], model: Model | None = None) -> Fit:
    """Read a fit that `Fit.save` wrote, in this version or an earlier one.

    Parameters
    ----------
    path : path
    model : Model, optional
        The fitted model, where the file could not hold it.

    Raises
    ------
    OutputError
        If the file is missing, damaged, written by a later version, or names a class that is not registered here.
    InputError
        If the file holds no model and none is given, or the given one is another.
    """
    saved = read_fit(path, model)
    found = Fit(saved.model, saved.family, saved.spec, saved.outcome, saved.rows, saved.seconds, saved.versions)
    found.verdict = saved.verdict
    found.starts, found.refined = saved.starts, saved.refined
    found.warnings, found.advice = saved.warnings, saved.advice
    return found
