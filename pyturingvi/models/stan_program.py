"""A Stan program that BridgeStan has compiled, with its data: its functions, and the order of its variables."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyturingvi.errors import EngineError, InputError
from pyturingvi.models.foreign import element_labels
from pyturingvi.models.interactions import Variable
from pyturingvi.models.stan_library import as_json, bridgestan_module, compiled, first_words

_STEP = 0.5  # of a coordinate, by which is seen what moves with it
_one_at_a_time = threading.Lock()  # a library without STAN_THREADS has one stack for its derivatives


@dataclass(frozen=True)
class StanVariable:
    """A parameter or transformed parameter in the program's own space.

    Attributes
    ----------
    name : str
    shape : tuple of int
    places : (size,) array
        Where its elements, in C order, stand among the values of the program, which counts the first index fastest.
    """

    name: str
    shape: tuple[int, ...]
    places: np.ndarray

    def of(self, values: np.ndarray) -> np.ndarray:
        """Its values (M, *shape) among all (M, ...)."""
        return values[:, self.places].reshape((len(values), *self.shape))


class StanProgram:
    """A program with its data.

    Parameters
    ----------
    program : str or path
        A `.stan` file, a library that BridgeStan has compiled, or the code itself.
    data : mapping, path of a `.json` file, or str
        The last is JSON.

    Attributes
    ----------
    latents : tuple of Variable
        The parameters in unconstrained space, in their order.
    labels : list of str
        For each of their coordinates: `mu`, `log tau`, or `unconstrained rho` for other transforms.
    parameters, derived, generated : tuple of StanVariable
        The parameters, the transformed ones, and the generated quantities.
    order : (d,) array
        Where each of these coordinates stands in Stan's own vector.
    """

    def __init__(self, program: Any, data: Any = None) -> None:
        self.code, self.library, self.title = compiled(program)
        self.data = as_json(data)
        self._open()
        if not self._model.param_unc_num():
            raise InputError("Stan: the program has no parameters, so that there is nothing to fit.")
        try:
            self._find_variables()
        except RuntimeError as error:
            raise InputError(f"Stan: the parameters cannot be had near 0: {first_words(error)}") from error

    @property
    def dim(self) -> int:
        return len(self.order)

    # ---- opening ----------------------------------------------------------------------------------------------
    def _open(self) -> None:
        bridgestan = bridgestan_module()
        try:
            with warnings.catch_warnings():  # that the library was loaded before, or is of another BridgeStan
                warnings.simplefilter("ignore")
                self._model = bridgestan.StanModel(str(self.library), self.data or None)
        except OSError as error:
            raise EngineError(f"Stan: {self.library} cannot be loaded: {error}") from error
        except RuntimeError as error:
            raise InputError(f"Stan: the data do not go with the program: {first_words(error)}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_model"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    # ---- functions of points ----------------------------------------------------------------------------------
    def log_density_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log density (M,), with its constants and log-Jacobians, and gradient (M, d); not finite where Stan rejects.

        Points are (M, d) in the order of `latents`.
        """
        value, theirs = np.empty(len(points)), self._theirs(points)
        slope = np.empty_like(theirs)
        with _one_at_a_time:
            for m, point in enumerate(theirs):
                value[m] = self._density_at(point, slope[m])
        return value, slope[:, self.order]

    def why_rejected(self, point: np.ndarray) -> str:
        """What Stan says where it has no log density."""
        try:
            with _one_at_a_time:
                self._model.log_density_gradient(self._theirs(point[None])[0], propto=False)
        except RuntimeError as error:
            return first_words(error)
        return ""

    def _density_at(self, point: np.ndarray, slope: np.ndarray) -> float:
        try:
            return float(self._model.log_density_gradient(point, propto=False, jacobian=True, out=slope)[0])
        except RuntimeError:
            slope[:] = math.nan
            return -math.inf

    def constrained(self, points: np.ndarray) -> np.ndarray:
        """Parameters and transformed ones, (M, ...), in Stan's order; NaN where Stan rejects the point."""
        found = np.full((len(points), self._model.param_num(include_tp=True)), math.nan)
        with _one_at_a_time:
            for row, point in zip(found, self._theirs(points), strict=True):
                try:
                    self._model.param_constrain(point, include_tp=True, out=row)
                except RuntimeError:
                    row[:] = math.nan
        return found

    def with_generated(self, points: np.ndarray, seed: int) -> np.ndarray:
        """As `constrained`, with the generated quantities behind, whose draws follow from the seed."""
        found = np.full((len(points), self._model.param_num(include_tp=True, include_gq=True)), math.nan)
        with _one_at_a_time:
            rng = self._model.new_rng(seed)
            for row, point in zip(found, self._theirs(points), strict=True):
                try:
                    self._model.param_constrain(point, include_tp=True, include_gq=True, rng=rng, out=row)
                except RuntimeError as error:
                    raise InputError(f"Stan: the generated quantities cannot be had: {first_words(error)}") from error
        return found

    def unconstrained(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Points (M, d) of parameters (M, *shape); an InputError where they lie outside of their support."""
        flat = np.empty((len(next(iter(values.values()))), self._model.param_num()))
        for one in self.parameters:
            flat[:, one.places] = values[one.name].reshape(len(flat), -1)
        found = np.empty((len(flat), self.dim))
        try:
            with _one_at_a_time:
                for row, point in zip(found, flat, strict=True):
                    self._model.param_unconstrain(point, out=row)
        except RuntimeError as error:
            raise InputError(f"Stan: unconstrain: {first_words(error)}") from error
        return found[:, self.order]

    def _theirs(self, points: np.ndarray) -> np.ndarray:
        theirs = np.empty((len(points), self.dim))
        theirs[:, self.order] = points
        return theirs

    # ---- variables --------------------------------------------------------------------------------------------
    def _find_variables(self) -> None:
        names = self._model.param_names(include_tp=True, include_gq=True)
        n_own, n_all = self._model.param_num(), self._model.param_num(include_tp=True)
        self.parameters = tuple(_variables(names[:n_own], 0))
        self.derived = tuple(_variables(names[n_own:n_all], n_own))
        self.generated = tuple(_variables(names[n_all:], n_all))
        free = [(name, len(places)) for name, _, places in _grouped(self._model.param_unc_names())]
        self.order = np.arange(sum(count for _, count in free))  # until it is known
        self._start = np.random.default_rng(0).uniform(0.1, 0.4, self.dim)
        latents, order, offset = [], [], 0
        self.labels: list[str] = []
        for name, count in free:
            natural = next(one for one in self.parameters if one.name == name)
            shape, places, label = self._free_form(natural, offset, count)
            latents.append(Variable(name, shape))
            order.append(offset + places)
            self.labels += element_labels(label, shape)
            offset += count
        self.latents, self.order = tuple(latents), np.concatenate(order)

    def _free_form(self, natural: StanVariable, offset: int, count: int) -> tuple[tuple[int, ...], np.ndarray, str]:
        """Shape of a parameter in unconstrained space, its coordinates in C order, and what one of them is called."""
        driver = self._drivers(natural, offset, np.arange(count))
        if sorted(driver) == list(range(count)):  # each element has a coordinate of its own
            free = self._start[offset + driver]
            values = natural.of(self.constrained(self._start[None]))[0].ravel()
            named = natural.name if np.array_equal(values, free) else f"unconstrained {natural.name}"
            if np.allclose(values, np.exp(free), rtol=1e-12):
                named = f"log {natural.name}"
            return natural.shape, driver, named
        named = f"unconstrained {natural.name}"
        length = natural.shape[0] if natural.shape else 1
        if length > 1 and count % length == 0:  # an array of simplexes, of Cholesky factors, ...
            rows = self._drivers(natural, offset, np.arange(count) // (count // length)).reshape(length, -1)
            own = np.arange(length)[:, None]
            if ((rows == own) | (rows < 0)).all() and (rows == own).any(axis=1).all():
                return (length, count // length), np.arange(count), named
        return (count,), np.arange(count), named

    def _drivers(self, natural: StanVariable, offset: int, groups: np.ndarray) -> np.ndarray:
        """For each element the group of coordinates it moves with; -1 for none, another number for several.

        The groups move together by the bits of their numbers, so that a few evaluations tell them all.
        """
        n_bits = int(groups.max() + 1).bit_length()
        points = np.repeat(self._start[None], n_bits + 1, axis=0)
        for bit in range(n_bits):
            points[bit + 1, offset : offset + len(groups)] += _STEP * (((groups + 1) >> bit) & 1)
        values = natural.of(self.constrained(points)).reshape(n_bits + 1, -1)
        moved: np.ndarray = (values[1:] != values[0]).T @ (1 << np.arange(n_bits)) - 1
        return moved


# ---- names ----------------------------------------------------------------------------------------------------
def _grouped(names: Sequence[str]) -> Iterator[tuple[str, list[str], list[int]]]:
    """Variables in the order of their names `beta.2.1`: name, the indices of its elements, and their places."""
    found: dict[str, tuple[list[str], list[int]]] = {}
    for place, name in enumerate(names):
        cut = min((k for k in (name.find("."), name.find(":")) if k >= 0), default=len(name))
        indices, places = found.setdefault(name[:cut], ([], []))
        indices.append(name[cut + 1 :])
        places.append(place)
    for name, (indices, places) in found.items():
        yield name, indices, places


def _variables(names: Sequence[str], offset: int) -> Iterator[StanVariable]:
    for name, indices, places in _grouped(names):
        where = offset + np.array(places)
        if indices == [""]:
            yield StanVariable(name, (), where)
            continue
        split = [index.split(".") for index in indices]
        if not all(part.isdigit() for index in split for part in index):  # a tuple or complex numbers: as a list
            yield StanVariable(name, (len(where),), where)
            continue
        index = np.array(split, dtype=int) - 1
        shape = tuple(int(size) for size in index.max(axis=0) + 1)
        yield StanVariable(name, shape, where[np.lexsort(index.T[::-1])])
