"""The data behind a user's own log density: as observed, their likelihood, and drawn anew, by the user's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.natural_space import NaturalSpace
from pyturingvi.models.user_function import probed_points, read_only

Likelihood = Callable[[Any], Any]
Predictive = Callable[[Any, np.random.Generator], Any]


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
            array = np.array(value)
            if array.dtype.kind not in "biuf":
                raise InputError(f"LogDensity: observed: {name!r} must be real numbers, got dtype {array.dtype}.")
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

    def check(self, dim: int) -> None:
        """Call both functions once, with a few points near 0, and refuse what has the wrong shape."""
        points = probed_points(dim)[0]
        with np.errstate(all="ignore"):
            if self._likelihood is not None:
                self.log_likelihood(points)
            if self._predictive is not None:
                self.replicate(points, np.random.default_rng(0))

    def log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Log likelihood (M, ...) of each observed value."""
        assert self._likelihood is not None
        found = self._named("log_likelihood", self._likelihood(self._given(points)))
        for name, logs in found.items():
            shape = self.values[name].shape
            if len(logs) != len(points) or logs.shape[1:] != shape[: logs.ndim - 1]:  # a value may be a vector
                raise InputError(
                    f"LogDensity: log_likelihood must return a number for each of {len(points)} points and each value "
                    f"of {name!r}, of shape {(len(points), *shape)}; it returned {logs.shape}."
                )
        return {name: logs.astype(np.float64, copy=False) for name, logs in found.items()}

    def replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The data anew, (M, ...)."""
        assert self._predictive is not None
        found = self._named("predictive", self._predictive(self._given(points), rng))
        for name, drawn in found.items():
            wanted = (len(points), *self.values[name].shape)
            if drawn.shape != wanted:
                raise InputError(
                    f"LogDensity: predictive must return {name!r} of shape {wanted} for {len(points)} points; it "
                    f"returned {drawn.shape}."
                )
        return found

    def _given(self, points: np.ndarray) -> Any:
        return points.copy() if self._space is None else read_only(self._space.evaluate(points).values)

    def _named(self, what: str, found: Any) -> dict[str, np.ndarray]:
        if not isinstance(found, Mapping) and len(self.values) == 1:
            found = {next(iter(self.values)): found}
        if not isinstance(found, Mapping) or set(found) != set(self.values):
            got = ", ".join(map(repr, found)) if isinstance(found, Mapping) else f"a {type(found).__name__}"
            raise InputError(
                f"LogDensity: {what} must return a dictionary of arrays for {', '.join(map(repr, self.values))}; it "
                f"returned {got}."
            )
        return {name: np.atleast_1d(np.asarray(found[name])) for name in self.values}
