"""What a model is to an engine: a layout, a log density with its gradient, and names in the natural space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.layout import Layout
from pyturingvi.support.arguments import real_array
from pyturingvi.support.array_namespace import Array, namespace_of


class Model(ABC):
    """A fully normalized log density over `[z, y_1, ..., y_N]` in unconstrained space.

    Subclasses implement the underscored methods on checked input; users call the public ones. All arrays with
    a leading M are batches of points. NumPy and CuPy arrays of float32 or float64 both work, and a result
    lives where its input lives. Log densities are summed in float64.
    """

    name: ClassVar[str] = "model"
    thread_safe: ClassVar[bool] = True  # may an engine call it on several batches at once?
    layout: Layout

    @property
    def label(self) -> str:
        """What outputs call this model: the problem's name where it is one, and "simulated" where data are."""
        return str(self.__dict__.get("_label", self.name))

    @label.setter
    def label(self, value: str) -> None:
        self.__dict__["_label"] = value

    # ---- public interface ---------------------------------------------------------------------------------
    @property
    def dim(self) -> int:
        """Length d of the flat unconstrained vector."""
        return self.layout.dim

    def log_density(self, points: Array) -> Array:
        """Log density of each point, log-Jacobians included.

        Parameters
        ----------
        points : (M, d) array
            Unconstrained points; a single (d,) vector counts as M=1.

        Returns
        -------
        (M,) float64 array

        Raises
        ------
        InputError
            If the shape is not (M, d).
        """
        return self._log_density(self._check_points(points))

    def log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        """Log density (M,) and its exact gradient (M, d) with respect to the point."""
        return self._log_density_and_gradient(self._check_points(points))

    def gradient(self, points: Array) -> Array:
        """Gradient (M, d) alone, without the cost of the log density."""
        points = self._check_points(points)
        out = namespace_of(points).empty_like(points)
        self._gradient(points, out)
        return out

    def constrain(self, points: Array) -> dict[str, Array]:
        """Map (M, d) unconstrained points to named arrays (M, ...) in the natural space."""
        points = self._check_points(points)
        n_global = self.layout.n_global
        return {**self._constrain_global(points[:, :n_global]), **self._constrain_local(points)}

    def constrain_global(self, points: Array) -> dict[str, Array]:
        """The global part of `constrain`, from (M, d_z) points: the locals need not be drawn."""
        xp = namespace_of(points)
        points = xp.atleast_2d(xp.asarray(points))
        if points.ndim != 2 or points.shape[1] != self.layout.n_global:
            raise InputError(
                f"{self.name}: global points must have shape (M, {self.layout.n_global}), got {points.shape}."
            )
        return self._constrain_global(points)

    def unconstrain(self, values: Mapping[str, Any]) -> np.ndarray:
        """Inverse of `constrain`: named natural values (M, ...) to (M, d) unconstrained points.

        Derived quantities (such as volatility's `Q`) may be present and are ignored.

        Raises
        ------
        InputError
            If a name is missing, a shape is wrong or a value lies outside its support.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                f"{self.name}: unconstrain takes a dictionary of named arrays, got {type(values).__name__}."
            )
        arrays = {str(key): real_array(f"{self.name}: {key!r}", value) for key, value in values.items()}
        return self._unconstrain(arrays)

    # ---- names --------------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def global_labels(self) -> list[str]:
        """A name for each unconstrained global coordinate, length d_z, e.g. 'log s_eta' or 'beta[age]'."""

    @property
    @abstractmethod
    def dims(self) -> dict[str, list[str]]:
        """Names of the axes behind M of each natural variable, e.g. {'beta': ['covariate'], 's_eta': []}."""

    @property
    @abstractmethod
    def coords(self) -> dict[str, list[Any]]:
        """Labels along each axis named in `dims`, e.g. {'covariate': ['age', ...], 'row': [0, 1, ...]}."""

    @property
    def global_names(self) -> list[str]:
        """Natural variables that depend on the globals alone, in summary order."""
        return list(self.constrain_global(np.zeros((1, self.layout.n_global))))

    # ---- for the engines ----------------------------------------------------------------------------------
    @property
    def work_per_point(self) -> int:
        """Scalar terms in one log density: tells an engine how to cut a batch into pieces."""
        return self.dim

    def fingerprint(self) -> list[Any]:
        """Arrays and plain values beyond `get_state` that tell this model from another, for a checkpoint."""
        return []

    def get_state(self) -> dict[str, Any]:
        """Arrays, numbers, strings and lists from which `from_state` rebuilds the model (no pickle)."""
        raise InputError(f"{self.name}: this model cannot be written to a file.")

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Model:
        """Rebuild a model from what `get_state` gave (arrays come back as arrays, the rest as JSON gives it)."""
        raise InputError(f"{cls.__name__} cannot be read from a file.")

    @abstractmethod
    def _log_density(self, points: Array) -> Array:
        """Log density (M,) in float64; `points` may be the caller's own array and is never written to."""

    @abstractmethod
    def _gradient(self, points: Array, out: Array) -> None:
        """Write the gradient at `points` (M, d) into `out`, which never shares memory with `points`."""

    @abstractmethod
    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]: ...

    @abstractmethod
    def _constrain_global(self, z: Array) -> dict[str, Array]: ...

    @abstractmethod
    def _constrain_local(self, points: Array) -> dict[str, Array]: ...

    @abstractmethod
    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray: ...

    # ---- help for subclasses ------------------------------------------------------------------------------
    def _check_points(self, points: Array) -> Array:
        xp = namespace_of(points)
        if xp is np and not isinstance(points, np.ndarray):
            points = real_array(f"{self.name}: points", points)
        if points.dtype not in (np.float64, np.float32):
            if points.dtype.kind not in "iubf":
                raise InputError(f"{self.name}: points must be real numbers, got dtype {points.dtype}.")
            points = points.astype(np.float64)
        if points.ndim == 1:
            points = points[None, :]
        if points.ndim != 2 or points.shape[1] != self.dim:
            raise InputError(f"{self.name}: points must have shape (M, {self.dim}), got {points.shape}.")
        return xp.ascontiguousarray(points)

    def _on(self, points: Array, **arrays: np.ndarray) -> tuple[Array, ...]:
        """The model's data in the namespace and dtype of `points`, converted once and kept."""
        xp: ModuleType = namespace_of(points)
        cache: dict[Any, Array] = self.__dict__.setdefault("_device_cache", {})
        found = []
        for name, array in arrays.items():
            key = (xp.__name__, points.dtype.str, name)
            if key not in cache:
                cache[key] = xp.asarray(array, dtype=points.dtype)
            found.append(cache[key])
        return tuple(found)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_device_cache"}


class OnePassModel(Model):
    """A model whose log density and gradient share one evaluation."""

    def _log_density(self, points: Array) -> Array:
        density = namespace_of(points).empty(points.shape[0], dtype=np.float64)
        self._evaluate(points, density, None)
        return density

    def _gradient(self, points: Array, out: Array) -> None:
        self._evaluate(points, None, out)

    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        xp = namespace_of(points)
        density, gradient = xp.empty(points.shape[0], dtype=np.float64), xp.empty_like(points)
        self._evaluate(points, density, gradient)
        return density, gradient

    @abstractmethod
    def _evaluate(self, points: Array, density: Array | None, gradient: Array | None) -> None:
        """Fill `density` (M,) and `gradient` (M, d), each unless it is None."""
