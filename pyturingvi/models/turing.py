"""A user's own Turing model, given as Julia source; it runs in Julia."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError, JuliaError, unknown_name
from pyturingvi.layout import Layout
from pyturingvi.models.base import Model
from pyturingvi.models.observed import ONE_NUMBER
from pyturingvi.models.parts import take_natural
from pyturingvi.models.structure import family_of_blocks
from pyturingvi.models.turing_data import (
    is_text,
    julia_data,
    julia_name,
    read_data,
    read_local,
    read_source,
    suspicious_data,
)
from pyturingvi.support.array_namespace import Array, namespace_of
from pyturingvi.support.registry import defines

AD_BACKENDS = ("forwarddiff", "reversediff", "compiled_reversediff", "mooncake", "zygote")
_announced: set[tuple[str, str]] = set()  # sources and backends that this process has compiled


class Turing(Model):
    """A Turing `@model` as Julia source, with data from Python (Julia engine only).

    The joint density must have the form `p(z) prod_n p(y_n, x_n | z)` for the structured family to make sense (Ko
    et al. 2024, section "Hierarchical Branched Structured Families"): tell which variables are the `y_n` by `local`.

    Parameters
    ----------
    source : str
        Julia code with at least one `@model function`. Turing, Distributions, LinearAlgebra, Random and Statistics
        are loaded; other packages of the Julia project can be with `using`. Other models serve inside of it through
        `to_submodel`. Where it calls the model itself, as in `f(3) | (y=[1.0, 2.0],)`, and `data` is left out, that is
        the model.
    data : dict or DataFrame
        Value of each argument of the model by its name; a DataFrame gives its columns. Arrays keep their axes
        (`X[i, k]` is `X[i+1, k+1]` in Julia) and whether they hold floats, integers, booleans or strings; a Series
        becomes a vector, a DataFrame of numbers a matrix, Python's scalars and strings Julia's. NaN and infinity
        are refused unless the source tests for them (`isnan`, `isinf` or `isfinite`).
    local : sequence of str
        Names of the local variables: arrays whose last axis runs over the N local blocks. Block n holds slice n of
        each. All other variables are global. Given these, no two blocks may touch, or each only its neighbours, in
        which case the Markov family is the default; the gradient is asked.
    ad : str, optional
        Automatic differentiation: "forwarddiff", "reversediff", "compiled_reversediff" (records one path through
        the model: only without branches on its variables), "mooncake" or "zygote" (whole vectors only: no
        assignment to elements). By default the first, the second and the fourth are timed on the model when it is
        built, and the fastest with a right gradient is taken; one that compiles for longer than a usual fit takes with
        the fastest so far is left out (Mooncake: below some 0.25 ms a gradient). Another build may choose otherwise
        where two are about as fast, and numbers then differ by rounding: `ad=model.ad` fixes the choice.
    name : str, optional
        Which `@model function` of the source to use; by default the last.

    Attributes
    ----------
    ad : str
        The backend in use.

    Raises
    ------
    InputError
        If the source does not compile, the data do not fit the arguments, the model throws, a variable is discrete, a
        local variable is unknown, does not line up with the others or contradicts the gradient, the log density is
        random or keeps a state between two runs, the model changes its data or has other variables from run to run, or
        the gradient cannot be had or is wrong.
    EngineError
        If there is no Julia environment with Turing.

    Notes
    -----
    Draws come back under the model's own names with the axes they have in Julia, behind the one of the draws;
    labels of elements count from 1 as in Julia. What the model sets with `:=` is returned too. A Cholesky factor
    comes back as its triangular matrix.

    The first build of a model compiles it, for 10 seconds to more than a minute, in steps between which it answers
    Ctrl-C; the longest is Mooncake's or Zygote's. What the source does runs inside this process: a function in it that
    calls itself without end overflows the stack, and ends Python.

    Examples
    --------
    >>> source = '''
    ... @model function eight_schools(y, sigma)
    ...     mu ~ Normal(0, 5)
    ...     tau ~ truncated(Cauchy(0, 5); lower=0)
    ...     theta ~ MvNormal(fill(mu, length(y)), tau^2 * I)
    ...     y ~ MvNormal(theta, Diagonal(sigma .^ 2))
    ... end
    ... '''
    >>> data = {"y": [28.0, 8.0, -3.0], "sigma": [15.0, 10.0, 16.0]}
    >>> model = Turing(source, data, local=["theta"])  # doctest: +SKIP
    >>> model.layout  # doctest: +SKIP
    Layout(n_global=2, n_local=3, local_dim=1)
    """

    name: ClassVar[str] = "turing"
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})  # Turing runs a model statement by statement
    no_log_terms: str = ONE_NUMBER.format("Turing")

    def __init__(
        self,
        source: str,
        data: Any = None,
        local: Sequence[str] = (),
        ad: str | None = None,
        name: str | None = None,
    ) -> None:
        self.source = read_source(source)
        self.data = read_data(data, nonfinite_allowed=re.search(r"\bis(nan|finite|inf)\b", source) is not None)
        self.local = read_local(local)
        if ad is not None and ad not in AD_BACKENDS:
            raise unknown_name("ad", ad, AD_BACKENDS)
        if name is not None and not (isinstance(name, str) and is_text(name)):
            raise InputError(f"Turing: name must be the name of a `@model function`, got {name!r}.")
        self._function = julia_name(name or "")
        self._asked_ad = ad or ""
        self.ad = self._asked_ad
        self._inner: Any = None
        self._describe()
        if self.local:
            words = " and ".join(self.local)
            self.default_family = family_of_blocks(
                self.layout, words, lambda points: self._log_density_and_gradient(points)[1], "Turing", first=1
            )

    # ---- Julia --------------------------------------------------------------------------------------------
    @property
    def engines(self) -> frozenset[str]:
        return frozenset({"julia"} if defines(self, "to_julia") else ())

    @property
    def description(self) -> str:
        return "tv.models.Turing, a Turing model in Julia source" if defines(self, "to_julia") else super().description

    def to_julia(self, runtime: Any = None, ad: str | None = None) -> Any:
        """The model inside Julia, built on first use; with another backend than its own, it is built anew."""
        if ad is not None and ad != self.ad:
            return self._build(ad)
        if self._inner is None:
            self._inner = self._build(self.ad)
        return self._inner

    def turing_form(self, runtime: Any, ad: str | None) -> Any:
        return self.to_julia(runtime, ad)

    def _build(self, ad: str) -> Any:
        try:
            return self._build_inside(ad)
        except InputError as error:
            raise InputError(" ".join([str(error), *suspicious_data(self.source, self.data)])) from None

    def _build_inside(self, ad: str) -> Any:
        runtime = self._runtime
        P = runtime.module
        program = self._call(P.turing_program, self.source, julia_data(runtime, self.data), self._function)
        self._title = str(program.name)
        known = [str(variable) for variable in self._call(P.variable_names, program)]
        for variable in set(self.local).difference(known):
            raise unknown_name("local variable", variable, known)
        if (self.source, ad) not in _announced:
            words = "some 10 seconds to a minute; Ctrl-C is answered after the step at work"
            print(f"pyturingvi: compiling the Turing model {self._title!r}, {words}", file=sys.stderr)
            _announced.add((self.source, ad))
        build = self._call(P.start_build, program, tuple(self.local), ad)
        while self._call(P.advance_build_b, build):  # in steps, for Ctrl-C
            pass
        return self._call(P.built_model, build)

    @property
    def _runtime(self) -> Any:
        from pyturingvi.bridge.runtime import start_julia

        runtime = start_julia()
        runtime.load("Turing")
        return runtime

    def _call(self, function: Any, *args: Any) -> Any:
        """Call Julia; what it says against the model is an InputError."""
        try:
            return self._runtime.call(function, *args)
        except JuliaError as error:
            if error.kind == "ModelError":
                raise InputError(f"Turing: {error.text.removeprefix('ModelError: ')}") from None
            raise

    def _describe(self) -> None:
        """Layout, names and shapes, as Julia found them."""
        P, inner = self._runtime.module, self.to_julia()
        layout = inner.layout
        self.layout = Layout(int(layout.n_global), int(layout.n_local), int(layout.local_dim))
        self.ad = str(P.ad_of(inner))
        self._global_labels = [str(label) for label in P.global_labels(inner)]
        self._variables = [str(variable) for variable in P.variable_names(inner)]
        self._reference = np.array(self._runtime.to_numpy(P.reference_point(inner)))
        natural = self._constrain_all(self._reference[None])
        self._shapes = {variable: list(value.shape[1:]) for variable, value in natural.items()}
        self.label = self._title

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_inner": None}

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def global_labels(self) -> list[str]:
        """A name for each global coordinate; "linked x" where it is a transformed x (DynamicPPL's word)."""
        return list(self._global_labels)

    @property
    def dims(self) -> dict[str, list[str]]:
        found = {}
        for variable, shape in self._shapes.items():
            axes = [f"{variable}_dim_{k}" for k in range(len(shape))]
            found[variable] = [*axes[:-1], "local"] if variable in self.local else axes
        return found

    @property
    def coords(self) -> dict[str, list[Any]]:
        return {
            axis: list(range(1, size + 1))
            for variable, axes in self.dims.items()
            for axis, size in zip(axes, self._shapes[variable], strict=True)
        }

    @property
    def global_names(self) -> list[str]:
        return [variable for variable in self._variables if variable not in self.local]

    def get_state(self) -> dict[str, Any]:
        """The source, the data and what Julia found; a model read from a file starts Julia when it is first used."""
        return {
            "source": self.source,
            "local": list(self.local),
            "ad": self._asked_ad,
            "ad_chosen": self.ad,
            "function": self._function,
            "title": self._title,
            "layout": [self.layout.n_global, self.layout.n_local, self.layout.local_dim],
            "labels": self.global_labels,
            "variables": list(self._variables),
            "shapes": {variable: list(shape) for variable, shape in self._shapes.items()},
            "reference": self._reference,
            "family": self.default_family,
            **{f"data:{key}": value for key, value in self.data.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Turing:
        model = cls.__new__(cls)
        model.source, model.local, model._asked_ad = state["source"], list(state["local"]), state["ad"]
        model.ad = state.get("ad_chosen", model._asked_ad)
        model._function = state["function"]
        model._inner = None
        model.data = {key.removeprefix("data:"): value for key, value in state.items() if key.startswith("data:")}
        model.layout = Layout(*(int(count) for count in state["layout"]))
        model._global_labels, model._variables = list(state["labels"]), list(state["variables"])
        model._shapes = {variable: [int(size) for size in shape] for variable, shape in state["shapes"].items()}
        model._reference = np.asarray(state["reference"])
        model.default_family = state.get("family", "structured")
        model.label = model._title = str(state["title"])
        return model

    # ---- density ------------------------------------------------------------------------------------------
    def _log_density(self, points: Array) -> Array:
        values = np.empty(len(points))
        batch = _on_cpu(points)
        self._call(self._runtime.module.log_density_at_b, values, self.to_julia(), batch.T)
        return values

    def _log_density_and_gradient(self, points: Array) -> tuple[Array, Array]:
        batch = _on_cpu(points)
        values, slopes = np.empty(len(batch)), np.empty_like(batch)
        function = self._runtime.module.log_density_and_gradient_at_b
        self._call(function, values, slopes.T, self.to_julia(), batch.T)
        with np.errstate(over="ignore"):
            return values, slopes.astype(points.dtype, copy=False)

    # ---- natural space ------------------------------------------------------------------------------------
    def _natural(self, function: Any, points: Array) -> dict[str, np.ndarray]:
        runtime, batch = self._runtime, _on_cpu(points)
        pairs = self._call(function, self.to_julia(), batch.T)
        # Julia's last axis is that of the points, and its axes arrive reversed
        return {str(name): _axes_as_in_julia(runtime.to_numpy(value)) for name, value in pairs}

    def _constrain_all(self, points: Array) -> dict[str, np.ndarray]:
        return self._natural(self._runtime.module.constrain, points)

    def constrain(self, points: Array) -> dict[str, Array]:
        """Map (M, d) unconstrained points to named arrays (M, ...), what the model sets with `:=` included."""
        found = self._constrain_all(self._check_points(points))
        order = [*self.global_names, *self.local, *(name for name in found if name not in self._variables)]
        return {name: found[name] for name in order}

    def _constrain_global(self, z: Array) -> dict[str, Array]:
        return self._natural(self._runtime.module.constrain_globals, z)

    def _constrain_local(self, points: Array) -> dict[str, Array]:
        found = self._constrain_all(points)
        return {name: found[name] for name in found if name not in self.global_names}

    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        shapes = {name: tuple(self._shapes[name]) for name in self._variables}
        found = take_natural(values, shapes, self.name)
        runtime = self._runtime
        arrays = tuple(runtime.to_julia(_axes_as_in_julia(value)) for value in found.values())
        points = self._call(runtime.module.unconstrain, self.to_julia(), tuple(found), arrays)
        return np.array(runtime.to_numpy(points), order="C")


def _on_cpu(points: Array) -> np.ndarray:
    if namespace_of(points) is not np:
        raise InputError("Turing: the model runs in Julia on the CPU. Use device='cpu'.")
    return np.ascontiguousarray(points, dtype=np.float64)


def _axes_as_in_julia(array: np.ndarray) -> np.ndarray:
    """Reverse all axes but the first."""
    return np.ascontiguousarray(array.transpose(0, *range(array.ndim - 1, 0, -1)))
