"""The settings of a fit, with their defaults and checks, and its description for files and messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.families import Family, Structured, get_family
from pyturingvi.layout import Layout
from pyturingvi.models.base import Model
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.memory import fit_bytes, natural_bytes
from pyturingvi.optimize.natural_plan import CAP
from pyturingvi.optimize.natural_rule import NaturalGradient
from pyturingvi.optimize.natural_stages import choose_draws
from pyturingvi.optimize.read_rule import get_rule
from pyturingvi.optimize.rules import Adam, Rule
from pyturingvi.support.archive import digest
from pyturingvi.support.arguments import LARGEST_SEED, positive_number, real_array, whole_number
from pyturingvi.support.array_namespace import DTYPES
from pyturingvi.support.registry import defines

Engine = Literal["auto", "numpy", "julia"]
Device = Literal["cpu", "cuda"]
ENGINES: tuple[str, ...] = get_args(Engine)
DEVICES: tuple[str, ...] = get_args(Device)
BY_STEPSIZE = 20_000  # updates where a stepsize alone is given
_PROTOCOL = {"n_iterations": 50_000, "n_samples": 8, "elbo_every": 100}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a fit of any model can be told; beside an optimizer with a stepsize the defaults are the paper's protocol
    for real data (section 4.2).

    Parameters
    ----------
    family : {"mean-field", "structured", "full-rank"} or Family
    optimizer : Rule, or the name of one
    stepsize : float or schedule, optional
        Replaces the optimizer's; the name of an optimizer needs it.
    n_iterations, n_samples, elbo_every : int, optional
        None leaves them to an optimizer that ends by itself; beside others it stands for 50,000, 8 and 100.
    elbo_samples : int
    init_location : float or (d,) array
    init_scale : float or (d,) array
    seed : int
    engine : {"auto", "numpy", "julia"}
    device : {"cpu", "cuda"}
    dtype : {"float64", "float32"}
    averaging : PolynomialAveraging, optional
    stop_within : float, optional
        End after the first update whose parameters lie within this squared distance of the optimum, which the model
        must know: for experiments (paper, section 4.1).

    Raises
    ------
    InputError
        For the first that cannot be used.
    """

    family: Family = field(default_factory=Structured)
    optimizer: Rule = field(default_factory=NaturalGradient)
    n_iterations: int | None = None
    n_samples: int | None = None
    elbo_every: int | None = None
    elbo_samples: int = 1024
    init_location: Any = 0.0
    init_scale: Any = 0.1
    seed: int = 0
    engine: str = "auto"
    device: str = "cpu"
    dtype: str = "float64"
    averaging: PolynomialAveraging | None = None
    stop_within: float | None = None

    @classmethod
    def of(cls, *, stepsize: Any = None, **given: Any) -> Settings:
        """Settings as a user writes them: names where objects are meant, and a stepsize beside the optimizer."""
        for name in given:
            if name not in cls.__dataclass_fields__:
                raise unknown_name("setting", name, cls.__dataclass_fields__)
        optimizer = given.pop("optimizer", None)
        if optimizer is None:
            optimizer = NaturalGradient() if stepsize is None else Adam()
        return cls(optimizer=get_rule(optimizer, stepsize), **given)

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"family": get_family(self.family), "optimizer": get_rule(self.optimizer)}
        by_itself = checked["optimizer"].ends_by_itself
        for name, usual in (*_PROTOCOL.items(), ("elbo_samples", None)):
            value = getattr(self, name)
            if value is None and by_itself and usual is not None:
                continue
            checked[name] = whole_number(name, usual if value is None else value, 1)
        if by_itself and (checked.get("n_samples") or 2) % 2:
            raise InputError(
                f"n_samples: NaturalGradient draws in pairs and needs an even number, got {self.n_samples}."
            )
        checked["seed"] = whole_number("seed", self.seed, 0, LARGEST_SEED)
        location = finite_array("init_location", self.init_location)
        checked["init_location"] = float(location) if location.shape == () else location
        checked["init_scale"] = _positive("init_scale", self.init_scale)
        for name, known in (("engine", ENGINES), ("device", DEVICES), ("dtype", DTYPES)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                raise unknown_name(name, value, known)
        if self.averaging is not None and not isinstance(self.averaging, PolynomialAveraging):
            raise InputError(f"averaging must be tv.PolynomialAveraging(...) or None, got {self.averaging!r}.")
        for name in ("averaging", "stop_within"):
            if by_itself and getattr(self, name) is not None:
                raise InputError(
                    f"{name}: NaturalGradient averages and ends by itself; pass optimizer=tv.Adam(1e-3) beside it."
                )
        if self.stop_within is not None:
            checked["stop_within"] = positive_number("stop_within", self.stop_within)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def most_updates(self) -> int:
        """Updates that a fit makes at most."""
        return CAP if self.n_iterations is None else self.n_iterations

    def draws_of(self, layout: Layout) -> int:
        """Draws M of an update."""
        if self.n_samples is not None:
            return self.n_samples
        return choose_draws(self.family, layout, None, None).n_samples

    @property
    def parts(self) -> list[Any]:
        """The objects whose classes may be a user's own: family, base distribution, rule and operator."""
        family, rule = self.family, self.optimizer
        return [part for part in (family, family.base_distribution, rule, rule.operator) if part is not None]

    def fit_bytes(self, layout: Layout, checkpoint: bool) -> int:
        """Bytes that a fit of a model of this layout takes at its peak."""
        if self.optimizer.ends_by_itself:
            itemsize = np.dtype(self.dtype).itemsize
            return natural_bytes(self.family, layout, itemsize, self.draws_of(layout), self.elbo_samples)
        return fit_bytes(
            self.family,
            layout,
            np.dtype(self.dtype).itemsize,
            self.optimizer.n_slots,
            self.draws_of(layout),
            averaging=self.averaging is not None,
            checkpoint=checkpoint,
            elbo_samples=self.elbo_samples,
        )

    def check_location(self, dim: int) -> np.ndarray:
        """The starting location (d,), or an InputError if it has another length."""
        location = np.asarray(self.init_location)
        if location.shape not in ((), (dim,)):
            raise InputError(f"init_location must be a number or have shape ({dim},), got {location.shape}.")
        return np.broadcast_to(location, (dim,))

    def check_scale(self, dim: int) -> Any:
        """Factor of the identity in the starting scale, or its diagonal (d,); an InputError if of another length."""
        scale = self.init_scale
        if isinstance(scale, np.ndarray) and scale.shape != (dim,):
            raise InputError(f"init_scale must be a number or have shape ({dim},), got {scale.shape}.")
        return scale

    def check_optimum(self, model: Model) -> tuple[np.ndarray, float] | None:
        """Location (d,) and scale of the optimum where the run is to stop within a distance, or an InputError."""
        if self.stop_within is None:
            return None
        optimum = model.optimum() if defines(model, "optimum") else None
        if optimum is None:
            raise InputError(f"stop_within: {model.label} does not know its optimum; tv.models.IsotropicGaussian does.")
        return optimum

    def describe(self) -> dict[str, Any]:
        """JSON-able description; the start apart, which `init` may replace."""
        return {
            **{one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("init_")},
            "family": self.family.config(),
            "optimizer": self.optimizer.config(),
            "averaging": None if self.averaging is None else self.averaging.config(),
        }

    def describe_start(self) -> dict[str, Any]:
        """JSON-able description of where a run starts."""
        location = self.init_location
        return {
            "location": digest(location) if isinstance(location, np.ndarray) else location,
            "scale": digest(self.init_scale) if isinstance(self.init_scale, np.ndarray) else self.init_scale,
        }


def _positive(name: str, value: Any) -> float | np.ndarray:
    """A positive number, or a vector of them."""
    if np.ndim(value) == 0:
        return positive_number(name, value.item() if isinstance(value, np.ndarray) else value)
    array = finite_array(name, value)
    if array.ndim > 1 or not (array > 0).all():
        raise InputError(f"{name} must be a number above 0, or one for each variable.")
    return array.copy()


def finite_array(name: str, value: Any) -> np.ndarray:
    """`value` as a float64 array, or an InputError where it is not, or not finite."""
    array = real_array(name, value)
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise InputError(f"{name} holds {count} NaN or infinite values; all must be finite.")
    return array


# kinds of labels, which came to the state later, and what a machine chose or compiled
_UNDIGESTED = r"(?!data:).*_dtype|ad_chosen|exported_\w+"


def model_digest(model: Model) -> str:
    """Digest of a model's kind, data and whatever else tells it from its likes."""
    try:
        state = model.get_state()
    except InputError:
        state = {}
    layout = model.layout
    items = [
        model.name,
        *model.registry.tag(model).values(),
        layout.n_global,
        layout.n_local,
        layout.local_dim,
        *model.fingerprint(),
    ]
    for key in sorted(state):
        if not re.fullmatch(_UNDIGESTED, key):
            items += [key, state[key]]
    return digest(*items)


_LATER = ("stop_within", "refine")


# ---- the description in files -------------------------------------------------------------------------------
@dataclass(frozen=True)
class FitSpec:
    """All that determined a fit's numbers, JSON-serializable; large arrays appear as digests.

    It names and does not run anything. A field that comes later has the default None, which is what files of earlier
    versions are taken to say.
    """

    model: str
    model_digest: str
    family: dict[str, Any]
    optimizer: dict[str, Any]
    n_iterations: int | None = 50_000
    n_samples: int | None = 8
    elbo_every: int | None = 100
    elbo_samples: int = 1024
    init: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    engine: str = "numpy"
    device: str = "cpu"
    dtype: str = "float64"
    noise: str | None = None
    averaging: dict[str, Any] | None = None
    stop_within: float | None = None
    refine: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain dictionary; what came later is left out where it has its default."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return {key: value for key, value in plain.items() if key not in _LATER or value is not None}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], version: str) -> FitSpec:
        """The description that a file holds; fields that it lacks have their defaults.

        Raises
        ------
        InputError
            For fields that this version does not know; the message names them and the version that wrote the file.
        KeyError
            If one is missing that has no default.
        """
        known = {one.name: one for one in fields(cls)}
        unknown = [key for key in plain if key not in known]
        if unknown:
            raise InputError(
                f"it has the settings {', '.join(map(repr, unknown))}, which this version of pyturingvi does not know; "
                f"pyturingvi {version} wrote it. Read it with that version or a later one."
            )
        for name, one in known.items():
            if name not in plain and one.default is MISSING and one.default_factory is MISSING:
                raise KeyError(name)
        return cls(**plain)
