"""What a model says of data, before it has seen them and after: priors, likelihoods, replications, predictions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.support.arguments import whole_number
from pyturingvi.support.registry import defines

if TYPE_CHECKING:
    from pyturingvi.support.array_namespace import Array


REBUILD = "build it again, and pass it as tv.load_fit(path, model=...)"  # what a file cannot hold
ONE_NUMBER = (  # of a program's language
    "{} gives the log density as one number, and the locals can be integrated out only where each has a part of it by "
    "itself. In NumPyro, PyMC or JAX (tv.models.NumPyro, PyMC, Jax) these are found. Or try fit.resample(), which "
    "weighs the draws of the fit as it is"
)

Coords = dict[str, tuple[str, "list[Any] | np.ndarray"]]


@dataclass(frozen=True)
class Observation:
    """An observed variable: what a model was given, without missing values.

    Attributes
    ----------
    values : array
    axes : list of str
        A name for each of its axes.
    coords : dict
        Labels by their name: the axis along which they run, and one a place. Those with the name of their axis are
        its own; others tell more of it, as who gave which answer.
    """

    values: np.ndarray
    axes: list[str]
    coords: Coords = field(default_factory=dict)


class Observes:
    """The part of a model that knows its data. A hook that a class inherits does not count: see `defines`."""

    no_forecast: str = "its locals do not follow each other in time, or its class does not define `_forecast`"
    no_data: str = "its class does not tell its data (`_observations`, `_log_likelihood` and `_replicate`)"
    no_likelihood: str = "it does not tell their likelihood"
    no_replicates: str = "it does not tell how to draw them anew"
    no_prior: str = "its class does not define `_draw_prior`"
    no_predict: str = "its class does not define `_predict`"

    if TYPE_CHECKING:

        @property
        def description(self) -> str: ...

        def _check_points(self, points: Array, length: int | None = None, what: str = "points") -> Array: ...

    @property
    def tells_data(self) -> bool:
        """Whether `observations` are to be had."""
        return all(defines(self, hook) for hook in ("_observations", "_log_likelihood", "_replicate"))

    @property
    def tells_likelihood(self) -> bool:
        """Whether `log_likelihood` is to be had."""
        return self.tells_data

    @property
    def tells_replicates(self) -> bool:
        """Whether `replicate` is to be had."""
        return self.tells_data

    @property
    def observations(self) -> dict[str, Observation]:
        """The observed variables by name; none where the class does not tell them."""
        return self._observations() if self.tells_data else {}

    def log_likelihood(self, points: Array) -> dict[str, np.ndarray]:
        """Log likelihood of each observed value at each point, given the globals and the locals there.

        Parameters
        ----------
        points : (M, d) array

        Returns
        -------
        dict
            Name of each observed variable -> (M, ...) float64 array, without the last axes of `observations` where a
            value is a vector or a matrix. With the prior of the variables they make up the log density.

        Raises
        ------
        InputError
            If the class does not tell its data.
        """
        self._refuse_untold(self.tells_likelihood, "log likelihood", self.no_likelihood)
        return self._log_likelihood(self._check_points(points).astype(np.float64, copy=False))

    def replicate(self, points: Array, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Data that each point could have given in place of those observed.

        Parameters
        ----------
        points : (M, d) array
            Draws of the posterior, from a fit or a sampler; the data are then draws of the posterior predictive.
        rng : Generator

        Returns
        -------
        dict
            Name of each observed variable -> (M, ...) array.

        Raises
        ------
        InputError
            If the class does not tell its data, or not how to draw them.
        """
        self._refuse_untold(self.tells_replicates, "draw of the data", self.no_replicates)
        return self._replicate(self._check_points(points).astype(np.float64, copy=False), rng)

    def draw_prior(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws of the globals from their prior.

        Parameters
        ----------
        n : int
        rng : Generator

        Returns
        -------
        dict
            Name of each global variable -> (n, ...) array in the natural space.

        Raises
        ------
        InputError
            If the class does not tell its prior.
        """
        if not self.tells_prior:
            raise InputError(f"{self.description}: there are no draws of the prior, since {self.no_prior}.")
        return self._draw_prior(whole_number("n", n, 1), rng)

    @property
    def tells_prior(self) -> bool:
        """Whether `draw_prior` is to be had."""
        return defines(self, "_draw_prior")

    def forecast(self, points: Array, h: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A draw of the h times after the last, given each point: the model's own continuation.

        Parameters
        ----------
        points : (M, d) array
            Draws of the posterior, from a fit or a sampler.
        h : int
            Times ahead.
        rng : Generator
            Of the innovations.

        Returns
        -------
        dict
            Name -> (M, h, ...) array.

        Raises
        ------
        InputError
            If the model has no times, or an argument cannot be used.
        """
        return self._forecast(self._check_points(points), self.check_forecast(h), rng)

    def predict(self, points: Array, new: Any, rng: np.random.Generator, **options: Any) -> dict[str, np.ndarray]:
        """Draws for what was not observed, given each point: new rows, new students, further days.

        Parameters
        ----------
        points : (M, d) array
            Draws of the posterior, from a fit or a sampler.
        new : table or int
            What the model predicts for; see `Fit.predict`.
        rng : Generator
        **options
            What the model takes beside it.

        Returns
        -------
        dict
            Name -> (M, ...) array.

        Raises
        ------
        InputError
            If the class does not predict, or `new` cannot be used.
        """
        self.check_predict()
        return self._predict(self._check_points(points).astype(np.float64, copy=False), new, rng, **options)

    def check_predict(self) -> None:
        """Raise an InputError unless the class predicts."""
        if not defines(self, "_predict"):
            raise InputError(f"{self.description}: there is no prediction, since {self.no_predict}.")

    def check_forecast(self, h: int) -> int:
        """The number of times ahead, or an InputError where it is none or the model has no times."""
        if not defines(self, "_forecast"):
            raise InputError(f"{self.description}: there is no forecast, since {self.no_forecast}.")
        return whole_number("h", h, 1)

    def _refuse_untold(self, tells: bool, what: str, why: str) -> None:
        if not self.tells_data:
            raise InputError(f"{self.description}: there is nothing observed to speak of, since {self.no_data}.")
        if not tells:
            raise InputError(f"{self.description}: there is no {what}, since {why}.")

    def _observations(self) -> dict[str, Observation]:
        raise NotImplementedError

    def _log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _forecast(self, points: Array, h: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _predict(self, points: np.ndarray, new: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _draw_prior(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        raise NotImplementedError
