"""A user's own log density as a model calls it: checked, of points or of named values, of a batch or one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyturingvi.errors import InputError, in_short
from pyturingvi.models.checks import check_values
from pyturingvi.models.gradient_check import check_gradient
from pyturingvi.models.natural_space import NaturalSpace
from pyturingvi.support.array_namespace import Array, namespace_of

Function = Callable[[Any], tuple[Any, Any]]

_PROBED = (0.0, 1.0, -1.0, 10.0, -10.0)  # the latter where fn is not finite at the former


class UserFunction:
    """The log density over unconstrained points, and its gradient, by the user's function.

    Parameters
    ----------
    fn : callable
        Of points (M, d), or of named values (M, ...) where there is a space.
    space : NaturalSpace, optional
        What leads from points to the values.
    """

    def __init__(self, fn: Function, space: NaturalSpace | None = None) -> None:
        self._fn, self._space = fn, space

    def __call__(self, points: Array, log_jacobian: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Log density (M,), with the log-Jacobian as often as is said, and gradient (M, d); perhaps fn's own arrays."""
        if namespace_of(points) is not np:
            raise InputError("LogDensity: fn works on NumPy arrays. Use device='cpu'.")
        wide = np.array(points, dtype=np.float64)  # a copy: fn may write into what it is given
        if self._space is None:
            return check_values("LogDensity: fn", self._fn(wide), points)
        at = self._space.evaluate(wide)
        value, gradients = check_named("LogDensity: fn", self._fn(read_only(at.values)), at.values)
        with np.errstate(invalid="ignore"):
            total = value + log_jacobian * (at.global_log_jacobian + at.local_log_jacobian.sum(axis=1))
            return total, self._space.pullback(at, gradients, log_jacobian)

    # ---- the first calls ----------------------------------------------------------------------------------
    def probe(self, dim: int, n_global: int, label: Callable[[int], str]) -> list[np.ndarray]:
        """Call fn on a few points near 0, their number unlike d so that a transposed gradient shows.

        What it returns there need not be finite: `fit` looks at where it starts. It tells one function from another,
        and where it is not finite, so do values elsewhere. Where it is, the gradient is checked.
        """
        near_0, _ = probed_points(dim)
        found: list[np.ndarray] = []
        for centre in _PROBED:
            try:
                with np.errstate(all="ignore"):
                    value, gradient = self._first(near_0) if centre == 0 else self(near_0 + centre)
            except Exception as error:
                if centre != 0:  # no business of the user's
                    break
                refused = None if isinstance(error, InputError) else self._in_words(error, near_0)
                if refused is not None:
                    raise refused from error
                error.add_note(
                    f"LogDensity called fn with {near_0.shape} points near 0 to check it. Where it is not defined it "
                    "must return NaN or -inf."
                )
                raise
            found += [np.array(value), np.array(gradient)]
            if np.isfinite(value).all() and np.isfinite(gradient).all():
                check_gradient(self._try, np.full(dim, centre), n_global, label, "LogDensity: fn")
                break
        return found

    def _in_words(self, error: Exception, points: np.ndarray) -> InputError | None:
        """An error of NumPy's, or of a name that is not there, in words of what fn was given; None for others."""
        first = in_short(error)
        if self._space is not None:
            shapes = {name: value.shape for name, value in self._space.evaluate(points).values.items()}
            listed = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
            if isinstance(error, KeyError) and error.args[0] not in shapes:
                return InputError(
                    f"LogDensity: fn looks up {error.args[0]!r}, which constrain does not name: {listed}."
                )
            if isinstance(error, ValueError | IndexError | TypeError):
                return InputError(
                    f"LogDensity: fn failed ({first}) with the values of {len(points)} points, of shapes {listed}: the "
                    "layout and constrain must be those that fn is written for, whose first axis is the points'."
                )
            return None
        as_mapping = isinstance(error, AttributeError) and "ndarray" in str(error)
        if as_mapping or (isinstance(error, IndexError) and "only integers" in str(error)):
            return InputError(
                f"LogDensity: fn takes named values ({first}), but is given an array of points {points.shape}: pass "
                "constrain=, a dictionary of the variables' names and transforms, such as "
                "{'tau': tv.transforms.Positive()}."
            )
        if isinstance(error, ValueError | IndexError | TypeError):
            return InputError(
                f"LogDensity: fn failed ({first}) with an array of points {points.shape}, whose d = {points.shape[1]} "
                "columns are the layout's n_global + n_local * local_dim: the layout must be that which fn is written "
                "for, and fn must take a batch of points."
            )
        return None

    def _first(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first call of all; a function that takes a single point is called in a loop from now on."""
        try:
            return self(points)
        except Exception:
            if not takes_one_point(self._fn, points if self._space is None else self._space.evaluate(points).values):
                raise
        self._fn = PointByPoint(self._fn)
        wanted = "(M, d) arrays" if self._space is None else "dictionaries of arrays (M, ...)"
        print(
            "pyturingvi: LogDensity: fn takes one point, so it is called point by point. One that takes "
            f"{wanted} is usually many times faster.",
            file=sys.stderr,
        )
        return self(points)

    def _try(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the gradient's check sees, without log-Jacobians; NaN where fn cannot be called."""
        try:
            with np.errstate(all="ignore"):
                value, gradient = self(points, log_jacobian=0.0)
                return np.array(value, dtype=np.float64), np.array(gradient, dtype=np.float64)
        except Exception:  # at points that the user did not choose
            return np.full(len(points), np.nan), np.full(points.shape, np.nan)


def probed_points(dim: int) -> tuple[np.ndarray, tuple[float, ...]]:
    """Points (M, d) near 0, and centres that are added to them in turn."""
    near_0 = np.zeros((3 if dim != 3 else 4, dim))
    near_0[1:] = 0.01 * np.random.default_rng(0).standard_normal(near_0[1:].shape)
    return near_0, _PROBED


class PointByPoint:
    """A function of one point as one of a batch.

    Parameters
    ----------
    fn : callable
        From a point (d,), or a dictionary of one's values, to a number and a gradient alike.
    """

    def __init__(self, fn: Function) -> None:
        self._fn = fn

    def __call__(self, batch: Any) -> tuple[Any, Any]:
        if not isinstance(batch, Mapping):
            values, gradients = zip(*(self._fn(point) for point in batch), strict=True)
            return np.array(values), np.array(gradients)
        count = len(next(iter(batch.values())))
        values, tables = zip(*(self._fn({key: batch[key][m] for key in batch}) for m in range(count)), strict=True)
        return np.array(values), {key: np.array([table[key] for table in tables]) for key in tables[0]}


def takes_one_point(fn: Function, batch: Any) -> bool:
    """Whether the function, which failed with a batch, gives a number and a gradient for one point."""
    named = isinstance(batch, Mapping)
    point: Any = {key: value[-1] for key, value in batch.items()} if named else batch[-1]
    try:
        with np.errstate(all="ignore"):
            value, gradient = fn(point)
        if named and set(gradient) != set(point):
            return False
        pairs = [(gradient[key], point[key]) for key in point] if named else [(gradient, point)]
        return np.shape(value) == () and all(np.shape(one) == np.shape(other) for one, other in pairs)
    except Exception:  # then the error with a batch is the one to tell
        return False


def failed(what: str, error: Exception, given: Any) -> InputError:
    """What to say of a user's function, other than fn, that raised: its name, the error, and what it was given.

    Parameters
    ----------
    what : str
        Argument of LogDensity that the function is.
    error : Exception
    given : (M, d) array, or mapping of str to (M, ...) array
    """
    if isinstance(given, Mapping):
        count = len(next(iter(given.values())))
        listed = ", ".join(f"{name!r} {value.shape}" for name, value in given.items())
        shapes = f"the values of {count} points, of shapes {listed}"
    else:
        shapes = f"an array of points {given.shape}"
    return InputError(
        f"LogDensity: {what} failed ({in_short(error)}) with {shapes}. The first axis is the points', and their number "
        "varies."
    )


def check_named(what: str, result: Any, values: Mapping[str, Array]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What a function of named values returned, refused unless it is a log density (M,) and a gradient for each."""
    listed = ", ".join(map(repr, values))
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], Mapping):
        got = type(result).__name__
        if isinstance(result, tuple | list):
            got += " of " + " and ".join(type(part).__name__ for part in result)
        raise InputError(
            f"{what} must return the log density and a dictionary of its gradients, one for each of {listed}; it "
            f"returned a {got}."
        )
    density, gradients = result
    count = len(next(iter(values.values())))
    missing, unknown = [key for key in values if key not in gradients], [key for key in gradients if key not in values]
    if missing or unknown:
        wrong = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}, which is no variable"
        raise InputError(f"{what} must return a gradient for each of {listed}; what it returned {wrong}.")
    found = {}
    for key, value in values.items():
        found[key] = _array(what, f"gradient of {key!r}", gradients[key], value.shape)
    return _array(what, "log density", density, (count,)), found


def _array(what: str, word: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} returned a {word} of dtype {array.dtype}; it must be real numbers.")
    if array.shape != shape:
        raise InputError(
            f"{what} must return a {word} of shape {shape} for {shape[0]} points, it returned {array.shape}."
        )
    return array.astype(np.float64, copy=False)


def read_only(values: Mapping[str, Array]) -> dict[str, Array]:
    """Views that a user's function cannot write through."""
    found = {}
    for key, value in values.items():
        found[key] = value.view()
        found[key].flags.writeable = False
    return found
