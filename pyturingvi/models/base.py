"""What a model is to an engine: a layout, a log density with its gradient, and names in the natural space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import EngineError, InputError
from pyturingvi.layout import Layout
from pyturingvi.models.checks import check_values
from pyturingvi.models.named_values import NamedValues
from pyturingvi.models.observed import Observes
from pyturingvi.support.array_namespace import Array, namespace_of
from pyturingvi.support.registry import Named, Registry, defines

if TYPE_CHECKING:
    from pyturingvi.bridge.runtime import Runtime


class Model(Named, NamedValues, Observes, ABC):
    """A fully normalized log density over `[z, y_1, ..., y_N]` in unconstrained space.

    Subclasses implement the underscored methods on checked input; users call the public ones. All arrays with
    a leading M are batches of points. NumPy and CuPy arrays of float32 or float64 both work, and a result
    lives where its input lives. Log densities are summed in float64.

    A model of your own sets `layout` and defines `_log_density_and_gradient`; the natural space is then the
    unconstrained one, with the globals called z and the locals y. It runs on the NumPy engine, and on Julia once its
    own class defines `to_julia`: an inherited `to_julia`, `_log_terms` or `_log_terms_and_gradient` does not
    count, since it may tell of another density.

    Attributes
    ----------
    layout : Layout
        Who is global and who is local; set by the subclass.
    name : str
        What files call this kind of model; by default the class's own name.
    label : str
        What outputs call this model: the problem's name where it is one, and "simulated" where data are.
    devices : frozenset of str
        Where it runs: "cpu" and, if it takes CuPy arrays (or its Julia form a GPU's), "cuda".
    thread_safe : bool
        Whether an engine may call it on several batches at once.
    default_family : str
        The family of `tv.fit` where none is named.

    Examples
    --------
    >>> class Normal(Model):
    ...     layout = Layout(n_global=2, n_local=3, local_dim=1)
    ...     def _log_density_and_gradient(self, points):
    ...         return -0.5 * (points**2).sum(axis=1), -points
    >>> Normal().log_density([[0.0, 0.0, 0.0, 1.0, 1.0]])
    array([-1.])
    """

    name: ClassVar[str] = "model"
    registry: ClassVar[Registry[Model]] = Registry("model")
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    thread_safe: ClassVar[bool] = False
    default_family: str = "structured"
    no_log_terms: str = "its class does not define how the log density splits (`_log_terms`)"
    layout: Layout
    label: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.label = cls.name
        if "_log_density_and_gradient" in cls.__dict__:
            for method in (Model._log_density, Model._gradient):  # a bundled parent's are of the parent's density
                name = method.__name__
                if name not in cls.__dict__ and getattr(cls, name).__module__.startswith("pyturingvi."):
                    setattr(cls, name, method)

    def __repr__(self) -> str:
        layout = getattr(self, "layout", None)
        if layout is None:
            return f"<{type(self).__name__} without a layout>"
        return (
            f"<{type(self).__name__} {self.label!r}: {', '.join([*self._contents, f'd={layout.dim:,}'])} "
            f"({layout.n_global:,} global, {layout.n_local:,} local{f' of {layout.local_dim}' * (layout.n_local > 0)})>"
        )

    @property
    def description(self) -> str:
        """What messages call a model of this class."""
        cls = type(self)
        bundled = cls.__module__.startswith("pyturingvi.")
        return f"tv.models.{cls.__name__}" if bundled else f"{cls.__qualname__}, a model of your own"

    @property
    def _contents(self) -> list[str]:
        """What it holds, in words for its repr: "316 students" and the like."""
        return []

    # ---- public interface ---------------------------------------------------------------------------------
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
        points = self._check_points(points)
        found = self._log_density_and_gradient(points)
        return check_values(f"{type(self).__name__}: _log_density_and_gradient", found, points)

    def gradient(self, points: Array) -> Array:
        """Gradient (M, d) alone, without the cost of the log density."""
        points = self._check_points(points)
        out = namespace_of(points).empty_like(points)
        self._gradient(points, out)
        return out

    @property
    def has_log_terms(self) -> bool:
        """Whether `log_terms` is to be had."""
        return defines(self, "_log_terms") or self.has_term_gradients

    @property
    def has_term_gradients(self) -> bool:
        """Whether `log_terms_and_gradient` is to be had, which `Fit.refine` needs."""
        return defines(self, "_log_terms_and_gradient")

    @property
    def locals_before(self) -> int | None:
        """How many locals before its own a term of the log density uses, as in a time series; None where not known."""
        return 0 if self.has_log_terms else None

    def log_terms(self, points: Array) -> tuple[Array, Array]:
        """The log density as a sum of one global term and one term a local, which depends on no other local.

        Parameters
        ----------
        points : (M, d) array

        Returns
        -------
        global_term : (M,) float64 array
            Terms in the globals alone: their priors.
        local_terms : (M, N) float64 array
            Term n holds what depends on local n, its prior given the globals included.

        Raises
        ------
        InputError
            If the model has no such terms, as where locals depend on each other given the globals.
        """
        if not self.has_log_terms:
            raise InputError(f"{self.description}: there are no log terms, since {self.no_log_terms}.")
        return self._log_terms(self._check_points(points))

    def log_terms_and_gradient(self, points: Array, weights: Array | None = None) -> tuple[Array, Array, Array]:
        """`log_terms`, and the gradient of the global term plus the weighted sum of the local ones.

        Parameters
        ----------
        points : (M, d) array
        weights : (M, N) array, optional
            Of the local terms; 1 by default, which gives the gradient of the log density.

        Returns
        -------
        global_term : (M,) float64 array
        local_terms : (M, N) float64 array
            Without the weights.
        gradient : (M, d) float64 array
            Of `global_term + (weights * local_terms).sum(axis=1)`.

        Raises
        ------
        InputError
            If the model has no such terms or gives no gradient of them, or a shape is wrong.
        """
        if not self.has_term_gradients:
            why = "its class does not define `_log_terms_and_gradient`" if self.has_log_terms else self.no_log_terms
            raise InputError(f"{self.description}: there are no gradients of log terms, since {why}.")
        points = self._check_points(points)
        xp, shape = namespace_of(points), (len(points), self.layout.n_local)
        weights = xp.ones(shape) if weights is None else xp.asarray(weights, dtype=np.float64)
        if weights.shape != shape:
            raise InputError(f"{self.name}: weights must have shape {shape}, got {weights.shape}.")
        return self._log_terms_and_gradient(points, weights)

    def starts(self, family: str) -> dict[str, tuple[np.ndarray, float]]:
        """Where `tv.fit` should start too, by name: location (d,) and factor of the identity in the scale."""
        return {}

    def advice(self) -> list[str]:
        """What about the data should be changed before a fit, a sentence or two each; `tv.fit` warns of it."""
        return []

    def optimum(self) -> tuple[np.ndarray, float] | None:
        """Location (d,) and factor of the identity in the scale that every family's best fit has, where known."""
        return None

    # ---- for the engines ----------------------------------------------------------------------------------
    @property
    def engines(self) -> frozenset[str]:
        """Names of the engines that run this model."""
        return frozenset({"numpy", "julia"} if defines(self, "to_julia") and not self.numpy_only else {"numpy"})

    @property
    def numpy_only(self) -> str:
        """What of its settings the NumPy engine alone has, in words."""
        return ""

    @property
    def unusual(self) -> str:
        """What of its settings is not as usual, in words: recorded runs are of the usual ones."""
        return ""

    def to_julia(self, runtime: Runtime) -> Any:
        """The model in Julia, with its data sent over: what `log_density` and `gradient` of PyTuringVI.jl take."""
        raise EngineError(f"engine='julia' cannot run {self.description}; use engine='numpy'.")

    def turing_form(self, runtime: Runtime, ad: str | None) -> Any:
        """The model in Julia as DynamicPPL sees it, with a gradient by the backend `ad`: what Turing's NUTS takes."""
        return runtime.call(runtime.module.turing_form, self.to_julia(runtime), ad=ad or "")

    @property
    def work_per_point(self) -> int:
        """Scalar terms in one log density: tells an engine how to cut a batch into pieces."""
        return self.dim

    def fingerprint(self) -> list[Any]:
        """Arrays and plain values beyond `get_state` that tell this model from another, for a checkpoint."""
        if defines(self, "get_state"):  # a parent's does not know what its subclass added
            return []
        return list(self.log_density_and_gradient(np.random.default_rng(0).normal(size=(2, self.dim))))

    @property
    def has_state(self) -> bool:
        """Whether a file can hold it: its own class has `get_state` and `from_state`; a parent's lose something."""
        return defines(self, "get_state") and "from_state" in type(self).__dict__

    def get_state(self) -> dict[str, Any]:
        """Arrays, numbers, strings and lists from which `from_state` rebuilds the model (no pickle)."""
        raise InputError(f"{self.name}: this model cannot be written to a file.")

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Model:
        """Rebuild a model from what `get_state` gave (arrays come back as arrays, the rest as JSON gives it)."""
        raise InputError(f"{cls.__name__} cannot be read from a file.")

    @abstractmethod
    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        """Log density (M,) and gradient (M, d); `points` may be the caller's own array and is never written to."""

    def _log_density(self, points: Array) -> Array:
        """Log density (M,) in float64."""
        return self._log_density_and_gradient(points)[0]

    def _gradient(self, points: Array, out: Array) -> None:
        """Write the gradient at `points` (M, d) into `out`, which never shares memory with `points`."""
        out[...] = self._log_density_and_gradient(points)[1]

    def _log_terms(self, points: Array) -> tuple[Array, Array]:
        xp = namespace_of(points)
        return self._log_terms_and_gradient(points, xp.ones((len(points), self.layout.n_local)))[:2]

    def _global_term(self, z: Array) -> Array:
        """The global term (M,) of `log_terms` at global points (M, d_z).

        A class that defines it, without the work of the locals, lets `Fit.refine` draw from the prior's own shape.
        """
        points = namespace_of(z).zeros((len(z), self.dim))
        points[:, : z.shape[1]] = z
        return self._log_terms(points)[0]

    def _log_terms_and_gradient(self, points: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Global term (M,), local terms (M, N), and the gradient (M, d) of the first plus the weighted second."""
        raise NotImplementedError

    def _at_nodes(self, nodes: np.ndarray, usual: np.ndarray) -> Any:
        """What evaluates local terms at many nodes of each local faster than `_log_terms`; None where nothing does.

        See `CentredNodes` of robust Poisson regression, which has the arguments and methods.
        """
        return None

    def _on_grid(self, mean: np.ndarray, sd: np.ndarray, size: int | None) -> Any:
        """What integrates all locals, of one variable, on a grid that they share; None where each needs its own nodes.

        `mean` and `sd` (N,) are where a fit has the locals. See `AbilityIntegrals` of item response for the methods.
        """
        return None

    # ---- help for subclasses ------------------------------------------------------------------------------
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
