"""The data behind a user's own log density: as observed, their likelihood, and drawn anew, by the user's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.natural_space import NaturalSpace
from pyturingvi.models.user_function import failed, probed_points, read_only

Likelihood = Callable[[Any], Any]
Predictive = Callable[[Any, np.random.Generator], Any]


ONE_FOR_ALL = "If all values are one observation, as of a multivariate normal, give observed the shape {}."


def data_array(what: str, value: Any) -> np.ndarray:
    """A copy of observed values, or an InputError where they are no array of real numbers."""
    try:
        array = np.array(value)
    except ValueError as error:  # rows of unequal length
        raise InputError(f"{what} must be an array of real numbers ({error}).") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} must be an array of real numbers, got dtype {array.dtype}.")
    return array


def fits_values(logs: tuple[int, ...], values: tuple[int, ...]) -> bool:
    """Whether log likelihoods of one point can be those of values: a number each, where a value may be a vector."""
    return logs == values[: len(logs)] and bool(logs or not values)


def refuse_nan(what: str, name: str, found: np.ndarray, values: np.ndarray) -> None:
    """Raise InputError where what a function returned (M, ...) for an observed variable is NaN and the data are not."""
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
    missing = missing.any(axis=tuple(range(found.ndim - 1, values.ndim)))
    bad = np.isnan(found) & ~missing
    if bad.any():
        _, *place = np.argwhere(bad)[0]
        at = f"[{', '.join(map(str, place))}]" if place else ""
        raise InputError(
            f"{what} returned NaN for {name}{at} near 0 in unconstrained space, where the log density is finite. Look "
            "for a logarithm or root of a negative number, or data that are missing and not NaN in observed."
        )


class UserData:
    """Observed variables, and functions of points (M, d), or of named values (M, ...) where there is a space.

    Parameters
    ----------
    observed : array or mapping of str to array
        One array alone is called "y".
    log_likelihood, predictive : callable or None
    taken : sequence of str
        Names that the observed variables cannot have.
    space : NaturalSpace, optional

    Raises
    ------
    InputError
        If the data are not arrays of numbers, or a name is taken.
    """

    def __init__(
        self,
        observed: Any,
        log_likelihood: Likelihood | None,
        predictive: Predictive | None,
        taken: Sequence[str],
        space: NaturalSpace | None = None,
    ) -> None:
        given = observed if isinstance(observed, Mapping) else {"y": observed}
        if not given:
            raise InputError("LogDensity: observed must hold at least one array.")
        self.values: dict[str, np.ndarray] = {}
        for name, value in given.items():
            array = data_array(f"LogDensity: observed: {name!r}", value)
            if name in taken:
                raise InputError(
                    f"LogDensity: observed: {name!r} is a variable of the model too; give the data another name, as in "
                    f"observed={{'data': ...}}."
                )
            self.values[str(name)] = array
        for what, function in (("log_likelihood", log_likelihood), ("predictive", predictive)):
            if function is not None and not callable(function):
                raise InputError(f"LogDensity: {what} must be a function, got {function!r}.")
        self._likelihood, self._predictive, self._space = log_likelihood, predictive, space

    @property
    def tells_likelihood(self) -> bool:
        return self._likelihood is not None

    @property
    def tells_replicates(self) -> bool:
        return self._predictive is not None

    def check(self, dim: int, finite_at: float | None) -> None:
        """Call both functions once, with a few points near 0, and refuse what has the wrong shape, or NaN.

        The number of points is that of no axis of the data, so that a transposed table shows.

        Parameters
        ----------
        dim : int
        finite_at : float or None
            What to add to the points so that the log density is finite there; None where that is not known.
        """
        sizes = {size for value in self.values.values() for size in value.shape}
        count = next(m for m in range(3, len(sizes) + 4) if m not in sizes)
        points = np.resize(probed_points(dim)[0], (count, dim)) + (finite_at or 0.0)
        with np.errstate(all="ignore"):
            logs = {} if self._likelihood is None else self.log_likelihood(points)
            anew = {} if self._predictive is None else self.replicate(points, np.random.default_rng(0))
        if finite_at is not None:
            for what, found in (("log_likelihood", logs), ("predictive", anew)):
                for name, value in found.items():
                    refuse_nan(f"LogDensity: {what}", name, value, self.values[name])

    def log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Log likelihood (M, ...) of each observed value."""
        assert self._likelihood is not None
        found = self._call("log_likelihood", self._likelihood, points)
        for name, logs in found.items():
            shape, m = self.values[name].shape, len(points)
            if not fits_values(logs.shape[1:], shape) or len(logs) != m:
                joint = f" {ONE_FOR_ALL.format((1, *shape))}" if shape and logs.shape == (m,) else ""
                raise InputError(
                    f"LogDensity: log_likelihood must return a number for each of {m} points and each value of "
                    f"{name!r}, of shape {(m, *shape)}; it returned {logs.shape}.{joint}"
                )
        return {name: logs.astype(np.float64, copy=False) for name, logs in found.items()}

    def replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The data anew, (M, ...)."""
        assert self._predictive is not None
        found = self._call("predictive", self._predictive, points, rng)
        for name, drawn in found.items():
            wanted = (len(points), *self.values[name].shape)
            if drawn.shape != wanted:
                raise InputError(
                    f"LogDensity: predictive must return {name!r} of shape {wanted} for {len(points)} points; it "
                    f"returned {drawn.shape}."
                )
        return found

    def _call(self, what: str, function: Callable[..., Any], points: np.ndarray, *others: Any) -> dict[str, np.ndarray]:
        given = points.copy() if self._space is None else read_only(self._space.evaluate(points).values)
        try:
            return self._named(what, function(given, *others))
        except InputError:
            raise
        except Exception as error:
            raise failed(what, error, given) from error

    def _named(self, what: str, found: Any) -> dict[str, np.ndarray]:
        if not isinstance(found, Mapping) and len(self.values) == 1:
            found = {next(iter(self.values)): found}
        if not isinstance(found, Mapping) or set(found) != set(self.values):
            got = ", ".join(map(repr, found)) if isinstance(found, Mapping) else f"a {type(found).__name__}"
            raise InputError(
                f"LogDensity: {what} must return a dictionary of arrays for {', '.join(map(repr, self.values))}; it "
                f"returned {got}."
            )
        arrays = {name: np.atleast_1d(np.asarray(found[name])) for name in self.values}
        for name, array in arrays.items():
            if array.dtype.kind not in "biuf":
                raise InputError(
                    f"LogDensity: {what} must return real numbers for {name!r}; it returned dtype {array.dtype}."
                )
        return arrays
