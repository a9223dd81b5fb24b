"""A log density written in JAX, as a function of a pytree of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.foreign import ForeignModel
from pyturingvi.models.interactions import Variable, split
from pyturingvi.models.jax_batches import Batched, traced
from pyturingvi.support.extras import require


class Jax(ForeignModel):
    """A log density that JAX differentiates (NumPy engine only; the extra `jax`).

    Parameters
    ----------
    log_density : callable
        Takes one pytree of arrays like `example`, and returns the log density there, a number: log-Jacobians included,
        since every element of every leaf may be any real number. It is jitted, batched with vmap and differentiated, in
        64 bits; JAX's own settings stay as they are.
    example : pytree
        Arrays or numbers with the shapes of the variables, e.g. `{"mu": 0.0, "theta": np.zeros(8)}`; values do not
        count. A leaf is called by its path: `mu`, `county.slope`, `layers.0`.
    local : list of str, optional
        Names of the leaves that are local, each with an axis along which the blocks are counted; [] for none. By
        default the structure is found from the gradient. Names that contradict it are refused.

    Attributes
    ----------
    structure : str
        What is global and what is local, in one line; it is printed when the model is built.

    Raises
    ------
    InputError
        If log_density is not a function of such a pytree that JAX can trace, does not return a number, or has no finite
        gradient near 0; or local contradicts it.
    EngineError
        If JAX is not installed.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def schools(p):
    ...     return -0.5 * (p["mu"] ** 2 + jnp.sum((p["theta"] - p["mu"]) ** 2))
    >>> Jax(schools, {"mu": 0.0, "theta": np.zeros(8)}).layout
    Layout(n_global=1, n_local=8, local_dim=1)
    """

    name: ClassVar[str] = "jax"
    door: ClassVar[str] = "Jax"
    no_log_terms: str = "a JAX function does not tell how it splits"

    def __init__(self, log_density: Callable[[Any], Any], example: Any, local: Any = None) -> None:
        jax = require("jax", "jax", "tv.models.Jax")
        if not callable(log_density):
            raise InputError(f"Jax: log_density must be a function of a pytree, got {log_density!r}.")
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(example)
        variables = [_variable(path, leaf) for path, leaf in leaves]
        if not sum(variable.size for variable in variables):
            raise InputError(f"Jax: example must hold at least one number, got {example!r}.")
        names = [variable.name for variable in variables]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise InputError(f"Jax: two leaves of example would both be called {repeated!r}; rename one.")
        self._function: Callable[[Any], Any] | None = log_density
        self._variables = tuple(variables)
        self._compiled: Batched | None = None
        self._check_function()
        title = getattr(log_density, "__name__", type(log_density).__name__)
        self._settle("jax" if title == "<lambda>" else title, variables, local)

    def _check_function(self) -> None:
        """Trace it once, for a message that says what is wrong with it."""
        jax = require("jax", "jax", "tv.models.Jax")
        dim = sum(variable.size for variable in self._variables)
        try:
            shape = jax.ShapeDtypeStruct((dim,), np.float64)
            found = traced(lambda: jax.eval_shape(lambda point: self._at(point), shape))
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else ""
            raise InputError(
                f"Jax: log_density cannot be traced ({type(error).__name__}: {first}). It takes one pytree like "
                "example and must be written with jax.numpy, without branches on values."
            ) from error
        if getattr(found, "shape", None) != () or found.dtype.kind != "f":
            raise InputError(
                f"Jax: log_density must return one real number for one pytree like example (it is batched here), it "
                f"returned {found}."
            )

    def _at(self, point: Any) -> Any:
        """The log density at a (d,) array."""
        leaves = split(point, {variable.name: variable.shape for variable in self._variables})
        assert self._function is not None
        return self._function(self._tree.unflatten(leaves.values()))

    def _evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._function is None:
            raise self._unavailable("the log density")
        if self._compiled is None:
            self._compiled = Batched(require("jax", "jax", "tv.models.Jax").value_and_grad(self._at))
        value, slope = self._compiled(points)
        return value, slope

    @property
    def description(self) -> str:
        return "tv.models.Jax, a JAX function"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_compiled": None}

    def get_state(self) -> dict[str, Any]:
        return super().get_state()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Jax:
        """A model that knows its variables but has no function: `constrain` works, `log_density` does not."""
        model = cls.__new__(cls)
        model._function = model._compiled = None
        model._restore(state)
        return model


def _variable(path: tuple[Any, ...], leaf: Any) -> Variable:
    """A leaf's name and shape, or an InputError where it is no array of real numbers."""
    parts = [str(next(getattr(key, word) for word in ("key", "idx", "name") if hasattr(key, word))) for key in path]
    name = ".".join(parts) or "x"
    kind = getattr(getattr(leaf, "dtype", None), "kind", None) or np.asarray(leaf).dtype.kind
    if kind not in "iuf":
        raise InputError(f"Jax: example: {name!r} must be an array of real numbers, got {leaf!r}.")
    return Variable(name, tuple(np.shape(leaf)))
