"""A Stan program as it is: its own names, constraints and transformed parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from pyturingvi.errors import InputError, PyTuringVIError
from pyturingvi.models.axes import read_axes
from pyturingvi.models.foreign import ForeignModel, Natural, axis_names
from pyturingvi.models.interactions import Variable
from pyturingvi.models.observed import ONE_NUMBER, REBUILD, Observation
from pyturingvi.models.parts import take_natural
from pyturingvi.models.stan_library import is_of_code
from pyturingvi.models.stan_observed import read_observed
from pyturingvi.models.stan_program import StanProgram


class Stan(ForeignModel):
    """A Stan program with its data (NumPy engine only; the extra `stan`).

    Parameters
    ----------
    program : str or path
        A `.stan` file, Stan code, or a library that BridgeStan has compiled. Code is compiled in the user's cache, a
        file beside itself, once.
    data : mapping, path of a `.json` file, or str of JSON
        What the program's data block names: numbers, lists, NumPy arrays, columns of a table.
    local : list of str, optional
        Names of the parameters that are local, each with an axis along which the blocks are counted; [] for none. By
        default the structure is found from the gradient. Names that contradict it are refused.
    dims : mapping, optional
        Parameter or transformed parameter -> names of its axes, as for ArviZ.
    coords : mapping, optional
        Axis -> labels.
    observed : mapping, optional
        Name in the data -> the generated quantities, each a name or None, that hold its pointwise log likelihood and a
        draw of it; by default `{"y": ("log_lik", "y_rep")}`, as far as the program has them. With these ArviZ's loo,
        compare and predictive checks work.

    Attributes
    ----------
    structure : str
        What is global and what is local, in one line; it is printed when the model is built.

    Raises
    ------
    InputError
        If the program cannot be compiled, with Stan's words; has no parameter; the data do not go with it; it has no
        finite log density near 0 in unconstrained space; or local contradicts the gradient.
    EngineError
        If BridgeStan, its sources or a C++ compiler are missing.

    Notes
    -----
    The log density is Stan's with its constants (`~` drops none) and the log-Jacobians of its constraints; the gradient
    is Stan's own, for one point at a time. Draws come back as parameters and transformed parameters; what rests on
    globals alone counts as global. A saved fit holds the code and the data: draws in the program's own space need
    BridgeStan again.

    Examples
    --------
    >>> code = '''data { int J; vector[J] y; vector[J] sigma; }
    ... parameters { real mu; real<lower=0> tau; vector[J] theta; }
    ... model { mu ~ normal(0, 5); tau ~ cauchy(0, 5); theta ~ normal(mu, tau); y ~ normal(theta, sigma); }'''
    >>> data = {"J": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}
    >>> Stan(code, data, dims={"theta": ["school"]}).structure  # doctest: +SKIP
    'globals: mu, tau; 8 local blocks of 1: theta by school'
    """

    name: ClassVar[str] = "stan"
    door: ClassVar[str] = "Stan"
    thread_safe: ClassVar[bool] = False
    no_log_terms: str = ONE_NUMBER.format("Stan")

    def __init__(
        self,
        program: Any,
        data: Any = None,
        local: Any = None,
        *,
        dims: Mapping[str, Any] | None = None,
        coords: Mapping[str, Any] | None = None,
        observed: Mapping[str, tuple[str | None, str | None]] | None = None,
    ) -> None:
        found = StanProgram(program, data)
        self._program: StanProgram | None = found
        self._observed = read_observed(observed, found)
        self._source = {"code": found.code, "library": str(found.library), "data": found.data}
        shapes = {one.name: one.shape for one in (*found.parameters, *found.derived)}
        shapes |= {one.name: one.values.shape for one in self._observed}
        defaults = {name: axis_names(name, (), len(shape)) for name, shape in shapes.items()}
        self._named = read_axes(shapes, defaults, dims, None, "Stan").dims
        variables = [Variable(one.name, one.shape, self._free_axes(one, shapes[one.name])) for one in found.latents]
        start = np.random.default_rng(0).normal(0.0, 0.1, (1, found.dim))
        if not np.isfinite(found.log_density_and_gradient(start)[0]).all() and (why := found.why_rejected(start[0])):
            raise InputError(
                f"Stan: the program has no log density near 0 in unconstrained space, where fits start: {why}. Check "
                "the data and the priors."
            )
        self._settle(found.title, variables, local, found.labels, coords)

    def _free_axes(self, latent: Variable, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Names of the axes of an unconstrained variable that the user named: those that have kept their length."""
        names = self._named[latent.name]
        if names == list(axis_names(latent.name, (), len(shape))):
            return ()
        if len(shape) == len(latent.shape):
            return tuple(name if a == b else "" for name, a, b in zip(names, shape, latent.shape, strict=True))
        return (names[0], *[""] * (len(latent.shape) - 1)) if latent.shape[0] == shape[0] else ("",) * len(latent.shape)

    @property
    def description(self) -> str:
        return "tv.models.Stan, a Stan program"

    # ---- what Stan computes ---------------------------------------------------------------------------------
    def _opened(self, what: str) -> StanProgram:
        if self._program is None:
            try:
                self._program = self._reopened()
            except PyTuringVIError as error:
                raise self._unavailable(what) from error
        return self._program

    def _reopened(self) -> StanProgram:
        """The program of a saved fit: its library where that is still there, else compiled again from the code."""
        library, code = self._source["library"], self._source["code"]
        program = library if not code or is_of_code(Path(library), code) else code
        return StanProgram(program, self._source["data"] or None)

    def _evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._opened("the log density").log_density_and_gradient(points)

    def _natural_values(self, points: np.ndarray, *, global_only: bool) -> dict[str, np.ndarray]:
        program = self._opened("a draw in the model's own space")
        values = program.constrained(points)
        every = (*program.parameters, *program.derived)
        return {one.name: one.of(values) for one in every if not global_only or self._naturals[one.name].is_global}

    def _flat_values(self, values: dict[str, np.ndarray]) -> np.ndarray:
        program = self._opened("unconstrain")
        shapes = {one.name: one.shape for one in program.parameters}
        return program.unconstrained(take_natural(values, shapes, self.door))

    # ---- names ----------------------------------------------------------------------------------------------
    def _natural_axes(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        program = self._opened("the names")
        return {one.name: (tuple(self._named[one.name]), one.shape) for one in (*program.parameters, *program.derived)}

    def _describe_naturals(self) -> dict[str, Natural]:
        """Parameters and transformed ones."""
        program = self._opened("the names")
        values = program.constrained(self._points_apart_in_locals())
        derived = {one.name: one.of(values) for one in program.derived}
        return self._told_apart([one.name for one in program.parameters], derived)

    # ---- data -----------------------------------------------------------------------------------------------
    @property
    def tells_data(self) -> bool:
        if self._program is None:
            self.no_data = f"it was read from a file, where what is observed is not said: {REBUILD}"
            return False
        self.no_data = "no generated quantity holds the likelihood of data or draws of them (observed=)"
        return bool(self._observed)

    @property
    def tells_likelihood(self) -> bool:
        self.no_likelihood = "no generated quantity holds it (log_lik)"
        return self.tells_data and any(one.likelihood for one in self._observed)

    @property
    def tells_replicates(self) -> bool:
        self.no_replicates = "no generated quantity holds it (y_rep)"
        return self.tells_data and any(one.replicate for one in self._observed)

    def _observed_axes(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        return {one.name: (tuple(self._named[one.name]), one.values.shape) for one in self._observed}

    def _observations(self) -> dict[str, Observation]:
        found = {}
        for one in self._observed:
            axes = self._named[one.name]
            found[one.name] = Observation(one.values, axes, {axis: (axis, self._coords[axis].typed) for axis in axes})
        return found

    def _log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        found = self._opened("a likelihood").with_generated(self._in_their_order(points), 0)
        return {one.name: one.likelihood.of(found) for one in self._observed if one.likelihood}

    def _replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        seed = int(rng.integers(1 << 31))
        found = self._opened("a draw of data").with_generated(self._in_their_order(points), seed)
        return {one.name: one.replicate.of(found) for one in self._observed if one.replicate}

    # ---- file -----------------------------------------------------------------------------------------------
    def get_state(self) -> dict[str, Any]:
        """Names, shapes and labels, the code and the data."""
        return {**super().get_state(), **self._source}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A model that knows its variables; what else it needs is compiled when it is asked for."""
        model = cls.__new__(cls)
        model._program, model._observed = None, []
        model._source = {key: str(state[key]) for key in ("code", "library", "data")}
        model._restore(state)
        model._named = {name: list(natural.dims) for name, natural in model._naturals.items()}
        return model
