"""What can be drawn of a fit: its variables, the posterior by weights, data anew, and what has not been observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.diagnosis.chained_locals import chained
from pyturingvi.diagnosis.integrated import integrals_of
from pyturingvi.errors import InputError
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.optimize.memory import check_draws_memory
from pyturingvi.optimize.noise import FORECAST_STREAM, PREDICT_STREAM, SAMPLE_STREAM, generator
from pyturingvi.outputs.arviz import check_data_memory
from pyturingvi.support.arguments import LARGEST_SEED, whole_number
from pyturingvi.support.parallel import one_blas_thread

if TYPE_CHECKING:
    from pyturingvi.families.base import BoundFamily
    from pyturingvi.models.base import Model
    from pyturingvi.refine.refinement import Refinement


class Draws:
    """The part of a `Fit` that draws."""

    model: Model
    params: np.ndarray
    refined: Refinement | None
    _bound: BoundFamily

    def sample_unconstrained(self, n: int, seed: int = 0) -> np.ndarray:
        """Draw n unconstrained points (n, d)."""
        n = whole_number("n", n, 1)
        check_draws_memory(n, max(self._bound.noise_dim, self.model.dim), "sample")
        if self.refined is not None:
            z = self._draw_globals(n, seed, least=1)
            parts = GlobalsAndLocals.of(self._bound, self.params)
            with one_blas_thread(), np.errstate(all="ignore"):
                integrals = integrals_of(
                    self.model, parts, self.refined.n_nodes, chain=chained(self.model, self._bound.family)
                )
                return np.hstack([z, integrals.draw(z, generator(np, seed, SAMPLE_STREAM))])
        noise = np.empty((n, self._bound.noise_dim))
        self._bound.base.fill(generator(np, whole_number("seed", seed, 0, LARGEST_SEED), SAMPLE_STREAM), noise)
        points = np.empty((n, self.model.dim))
        self._bound.transform(self._bound.from_flat(self.params), noise, points)
        return points

    def sample(self, n: int, seed: int = 0, *, local: bool = True) -> dict[str, np.ndarray]:
        """Draw from the fitted distribution, in the natural space.

        Parameters
        ----------
        n : int
            Number of draws; at least 2 of the globals alone.
        seed : int
        local : bool
            False leaves the local variables out, which then need not be drawn; the draws are others.

        Returns
        -------
        dict
            Name of each variable -> (n, ...) array, as `model.constrain` gives.
        """
        with np.errstate(all="ignore"):  # of a run that has exploded
            if not local:
                return self.model.constrain_global(self._draw_globals(n, seed))
            return self.model.constrain(self.sample_unconstrained(n, seed))

    def resample(self, n: int = 1000, seed: int = 0, *, local: bool = True) -> dict[str, np.ndarray]:
        """Draw from the posterior itself, as far as importance weights carry from the fit to it.

        Four draws of the fit for each that is wanted are weighted by density over fit, their largest weights smoothed
        (Pareto smoothed importance sampling), and taken again by these weights. A draw may occur more than once.

        Parameters
        ----------
        n : int
        seed : int
        local : bool
            False gives the globals alone. Where the model has `log_terms` their weights have the locals integrated
            out by quadrature, and are good far more often than those of all variables at once.

        Returns
        -------
        dict
            Name of each variable -> (n, ...) array, as `sample` gives.

        Raises
        ------
        UnreliableError
            If the weights cannot be relied on: k-hat above min(1 - 1/log10(draws), 0.7), or worth fewer than 50 draws.
        """
        if self.refined is not None and self.refined.weighted:  # what `sample` gives is that already
            return self.sample(n, seed, local=local)
        from pyturingvi.diagnosis.resample import resample

        n, seed = whole_number("n", n, 1), whole_number("seed", seed, 0, LARGEST_SEED)
        return resample(self.model, self._bound, self.params, n, seed, local)

    def forecast(self, h: int, n_draws: int = 1000, seed: int = 0) -> dict[str, np.ndarray]:
        """Draw what the model says of the h times after the last one, over all that the fit leaves uncertain.

        Each draw continues one draw of the fitted distribution: its path, from its last local on, with its globals.

        Parameters
        ----------
        h : int
            Times ahead: days, where the returns are daily.
        n_draws : int
        seed : int
            The same seed takes the same draws of the fit as `sample` does.

        Returns
        -------
        dict
            Of stochastic volatility, arrays (n_draws, h, D): `volatility`, the standard deviation exp(y/2) of each
            return, and `returns`; as they were given, so add the mean that was taken off.

        Raises
        ------
        InputError
            If the model's locals are no times.
        MemoryLimitError
            If the draws do not fit in memory.
        """
        h, n_draws = self.model.check_forecast(h), whole_number("n_draws", n_draws, 1)
        check_draws_memory(n_draws, h * self.model.layout.local_dim, "forecast")
        source = generator(np, whole_number("seed", seed, 0, LARGEST_SEED), FORECAST_STREAM)
        return self.model.forecast(self.sample_unconstrained(n_draws, seed), h, source)

    def predict(self, new: Any = None, n_draws: int = 1000, seed: int = 0, **options: Any) -> dict[str, np.ndarray]:
        """Draw data of the posterior predictive distribution, over all that the fit leaves uncertain.

        Parameters
        ----------
        new : optional
            What to predict for; by default the data of the fit anew, to be held against those observed.

            - Robust Poisson regression: covariates of new rows. Columns of a DataFrame are found by their names; an
              array has them in the order of the model. `offset=` is theirs.
            - Item response: answers of new students as `ItemResponse.score` takes them, NaN where there is none; a
              student may have none at all. A long table comes with `student=`, `item=` and `response=`.
            - Stochastic volatility: a number of days, as of `forecast`.
            - NumPyro: a dictionary of the model's arguments that are to change, such as `{"x": x_new, "y": None}`, or a
              tuple of all positional ones, with `kwargs=`.
            - PyMC: a dictionary of the `pm.Data` that are to change, with `coords=` as of `pm.set_data`.

            In the last two, latent variables that keep their shape (and labels) are those of the fit; others, and
            those named in `anew=`, are drawn from their prior given the former: new groups. One line tells which.
        n_draws : int
        seed : int
            The same seed takes the same draws of the fit as `sample` does.
        **options
            See `new`.

        Returns
        -------
        dict
            Arrays (n_draws, ...) by name: of the data of the fit, as `model.observations` has them; of new rows `eta`,
            the log rates, and `y`, the counts; of new students `alpha`, given their answers, and `responses` (n_draws,
            J, K) to all K items of the model, those that were answered anew; of days as `forecast`; of NumPyro and
            PyMC models all variables that are not those of the fit, deterministic ones included.

        Raises
        ------
        InputError
            If the model does not predict, or an argument cannot be used.
        MemoryLimitError
            If the draws do not fit in memory.
        """
        n_draws, seed = whole_number("n_draws", n_draws, 1), whole_number("seed", seed, 0, LARGEST_SEED)
        if new is None:
            if options:
                raise InputError(f"predict: {', '.join(options)} goes with new data, of which there are none.")
            check_data_memory(self.model, n_draws, "predict", posterior_predictive=True)
            return self.model.replicate(self.sample_unconstrained(n_draws, seed), generator(np, seed, PREDICT_STREAM))
        self.model.check_predict()
        source = generator(np, seed, FORECAST_STREAM)
        return self.model.predict(self.sample_unconstrained(n_draws, seed), new, source, **options)

    def _draw_globals(self, n: int, seed: int, least: int = 2) -> np.ndarray:
        """Draws (n, d_z); the locals need not be drawn."""
        source = generator(np, whole_number("seed", seed, 0, LARGEST_SEED), SAMPLE_STREAM, 1)
        n = whole_number("n", n, least)
        check_draws_memory(n, self.model.layout.n_global, "sample")
        if self.refined is not None:
            return self.refined.resample(n, source)
        return self._bound.draw_globals(self.params, source, n)
