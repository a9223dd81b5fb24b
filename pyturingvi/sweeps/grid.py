"""What a sweep is over: a grid of settings, read, checked and taken apart into cells before any work starts."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeGuard

import numpy as np

from pyturingvi.engines.selection import select_engine
from pyturingvi.errors import InputError, unknown_name
from pyturingvi.models.base import Model
from pyturingvi.problems import VARIANTS, load_problem
from pyturingvi.settings import Settings, model_digest
from pyturingvi.support.archive import digest
from pyturingvi.support.arguments import LARGEST, LARGEST_SEED, whole_number
from pyturingvi.support.files import as_path

MAX_CELLS = 1_000_000  # each has files of its own
_OF_DATA: dict[str, Any] = {"data_dir": None, "simulated": False, "data_seed": 0, "variant": "paper"}
_OF_FIT = [one.name for one in fields(Settings)]
SETTINGS = ("model", *_OF_DATA, "stepsize", *_OF_FIT)
# what came after the first version: left out of a description where it has its default, so that names stay
LATER = {"stop_within": None}

_Loaded = tuple[Model, str, int]  # a model, its digest, and the size of its data

_ELSEWHERE = {
    "problem": "give the problem's name as model=",
    "n_threads": "it is an argument of tv.sweep itself",
    "progress": "it is an argument of tv.sweep itself",
    "out": "it is an argument of tv.sweep itself",
    "checkpoint": "a sweep keeps its own checkpoints",
    "callback": "a sweep needs it for itself",
    "max_memory": "a sweep watches the memory itself",
    "noise": "a cell's randomness comes from its seed",
    "init": "a cell starts at init_location and init_scale",
}


@dataclass(frozen=True)
class Cell:
    """One fit of a sweep."""

    name: str  # of its files: readable, and unique by a digest of the description
    description: dict[str, Any]  # all that determines its numbers, JSON-able; data and large arrays as digests
    settings: Settings = field(repr=False, compare=False)
    model: Model = field(repr=False, compare=False)
    cost: float  # expected work, for the order of the cells and the time left
    n_bytes: int  # memory that the fit takes at its peak


def read_grid(grid: Any, resolve_engine: bool = True) -> list[Cell]:
    """The cells of a grid as `tv.sweep` takes it, each once, in the order given.

    Without `resolve_engine` a named engine is trusted to be where the workers are. A setting that cannot be used is an
    InputError, EngineError or DataError; a note on it says in which cell.
    """
    models: dict[Any, _Loaded] = {}
    cells: dict[str, Cell] = {}
    for given in _product(grid):
        try:
            cell = _cell(given, models, resolve_engine)
        except Exception as error:
            error.add_note(f"This is about the cell {given!r}.")
            raise
        cells.setdefault(cell.name, cell)
    return list(cells.values())


# ---- the product --------------------------------------------------------------------------------------------
def _product(grid: Any) -> Iterator[dict[str, Any]]:
    parts = [grid] if isinstance(grid, Mapping) or not _is_list(grid) else grid
    if not all(isinstance(part, Mapping) for part in parts):
        raise InputError(
            "grid must be a mapping such as {'model': 'rpoisson-small', 'stepsize': [1e-2, 1e-3], 'seed': range(5)}, "
            f"or a list of such mappings, got {grid!r}."
        )
    if not len(parts):
        raise InputError("grid is empty: there is nothing to do.")
    for part in parts:
        for name in part:
            _check_name(name)
        if "model" not in part:
            raise InputError("grid: model is missing; give a problem's name, a model, or a list of them.")
    axes = [{name: _axis(name, value) for name, value in part.items()} for part in parts]
    n_cells = sum(math.prod(map(_length, axis.values())) for axis in axes)
    if n_cells > MAX_CELLS:  # before any is built
        words = f"{n_cells:,} cells" if n_cells < 10**18 else "more than 10**18 cells"
        raise InputError(
            f"grid has {words}, and a sweep takes at most {MAX_CELLS:,}; give fewer values, or several sweeps."
        )
    for axis in axes:
        for values in itertools.product(*axis.values()):
            yield dict(zip(axis, values, strict=True))


def _check_name(name: Any) -> None:
    if name in _ELSEWHERE:
        raise InputError(f"grid: {name!r} is no setting of a cell: {_ELSEWHERE[name]}.")
    if name not in SETTINGS:
        raise unknown_name("setting of a cell", name, SETTINGS)


def _axis(name: str, value: Any) -> Any:
    """The values of a setting, with a length; a range, which may be a long one, is left as it is."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return [value]
    if not _is_list(value):
        raise InputError(f"grid: {name} is {value!r}, which does not tell how many values it has; give a list.")
    if not _length(value):
        raise InputError(f"grid: {name} is an empty list: there is nothing to do.")
    return value


def _is_list(value: Any) -> TypeGuard[Collection[Any]]:
    """Whether its values can be counted before they are taken; an iterator's cannot, and may have no end."""
    return isinstance(value, Iterable) and isinstance(value, Sized) and getattr(value, "ndim", 1) > 0


def _length(values: Sized) -> int:
    try:
        return len(values)
    except OverflowError:  # a range beyond what 64 bits count
        return LARGEST


# ---- one cell -----------------------------------------------------------------------------------------------
def _cell(given: Mapping[str, Any], models: dict[Any, _Loaded], resolve_engine: bool) -> Cell:
    data = {**_OF_DATA, **{name: value for name, value in given.items() if name in _OF_DATA}}
    if not isinstance(data["simulated"], bool | np.bool_):
        raise InputError(f"simulated must be True or False, got {data['simulated']!r}.")
    if not isinstance(data["variant"], str) or data["variant"] not in VARIANTS:
        raise unknown_name("variant", data["variant"], VARIANTS)
    data["data_seed"] = whole_number("data_seed", data["data_seed"], 0, LARGEST_SEED)
    data["data_dir"] = None if data["data_dir"] is None else as_path(data["data_dir"], "data_dir")
    model, model_id, n_data = _model(given["model"], data, models)
    settings = Settings.of(**{name: value for name, value in given.items() if name in (*_OF_FIT, "stepsize")})
    settings.check_location(model.dim)
    settings.check_scale(model.dim)
    settings.check_optimum(model)
    model.registry.require(model, "sweep")
    for part in settings.parts:
        part.registry.require(part, "sweep")
    if resolve_engine or settings.engine == "auto":
        settings = replace(settings, engine=select_engine(model, settings).name)
    by_name, family, start = isinstance(given["model"], str), settings.family, settings.describe_start()
    of_fit = {**settings.describe(), "init_location": start["location"], "init_scale": start["scale"]}
    description = {
        "model": model.label,
        "model_digest": model_id,
        "n_local": model.layout.n_local,
        "d": model.dim,
        "n_params": family.n_params(model.layout),
        "simulated": bool(data["simulated"]) if by_name else None,
        "data_seed": data["data_seed"] if by_name else None,
        **{name: of_fit[name] for name in _OF_FIT if name not in LATER or of_fit[name] != LATER[name]},
    }
    description = json.loads(json.dumps(description))  # as the cell's file will give it back
    n_bytes = settings.fit_bytes(model.layout, checkpoint=True)
    return Cell(cell_name(description), description, settings, model, _cost(model, n_data, settings), n_bytes)


def cell_name(description: Mapping[str, Any]) -> str:
    """`MODEL_FAMILY_RULE-STEPSIZE_seedSEED_DIGEST`, in characters that every file system takes."""
    rule, stepsize = description["optimizer"]["rule"], description["optimizer"].get("stepsize")
    if isinstance(stepsize, dict):
        stepsize = stepsize["initial"]
    rule = rule if stepsize is None else f"{rule}-{stepsize:g}"
    parts = [description["model"], description["family"]["family"], rule, f"seed{description['seed']}"]
    words = "_".join(re.sub(r"[^a-z0-9.-]+", "-", part.lower()).strip("-.")[:40] for part in parts)
    return f"{words}_{digest(dict(description))[:12]}"


def _model(model: Any, data: Mapping[str, Any], models: dict[Any, _Loaded]) -> _Loaded:
    if not isinstance(model, str | Model):
        raise InputError(f"model must be a problem's name or one of tv.models, got {model!r}.")
    if isinstance(model, str):
        options = {name: data[name] for name in ("data_dir", "simulated", "variant")} | {"seed": data["data_seed"]}
        key: Any = (model, *map(str, options.values()))
    else:
        key = id(model)
        extra = [name for name, default in _OF_DATA.items() if data[name] != default]
        if extra:
            raise InputError(f"{extra[0]} goes with a problem's name; this model has its data already.")
    if key not in models:
        loaded = load_problem(model, **options) if isinstance(model, str) else model
        models[key] = (loaded, model_digest(loaded), _n_data(loaded))
    return models[key]


def _cost(model: Model, n_data: int, settings: Settings) -> float:
    """Nanoseconds on one core, roughly: over twelve unlike fits, seconds per unit differed by less than a factor of 3.

    A draw costs noise and density in each coordinate, a pass over the data, and the product with C; a gradient takes
    three times that; an update passes over the parameters, and has a cost however small it is.
    """
    p = settings.family.n_params(model.layout)
    draw = 10 * model.work_per_point + 0.4 * n_data + 0.3 * (p - model.dim)
    update = 3 * settings.draws_of(model.layout) * draw + 12 * p + 20_000
    # few natural-gradient fits take more than some hundred updates
    n_updates = settings.n_iterations or 300
    n_estimates = n_updates // (settings.elbo_every or n_updates) + 1
    return float(n_updates) * update + float(n_estimates) * settings.elbo_samples * draw


def _n_data(model: Model) -> int:
    """Numbers in a model's data, as far as it tells."""
    try:
        return sum(value.size for value in model.get_state().values() if isinstance(value, np.ndarray))
    except InputError:
        return 0
