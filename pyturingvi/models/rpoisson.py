"""Robust Poisson regression: the Poisson-log-normal model of counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.layout import Layout
from pyturingvi.models.checks import read_matrix, read_new_rows, read_vector, refuse_different_rows, refuse_non_counts
from pyturingvi.models.labels import Labels, relabel, row_labels
from pyturingvi.models.observed import Observation
from pyturingvi.models.one_pass import OnePassModel
from pyturingvi.models.parts import LOG_2PI, refuse_outside, take_natural
from pyturingvi.models.rpoisson_centred import CentredForm
from pyturingvi.models.rpoisson_nodes import CentredNodes
from pyturingvi.models.rpoisson_noise import NoiseForm
from pyturingvi.models.rpoisson_prior import normals_and_scales
from pyturingvi.priors import HalfStudentT
from pyturingvi.priors.of_model import ScalePriors
from pyturingvi.support.array_namespace import Array, address_of, namespace_of

if TYPE_CHECKING:
    from pyturingvi.bridge.runtime import Runtime

_MAX_COUNT = 2.0**53
_FAR, _WIDE, _NARROW = 20.0, 100.0, 0.03  # mean in sd, sd and range of a covariate beyond which advice is given
_SCALES = ("s_alpha", "s_beta", "s_eta")
_PRIORS = dict.fromkeys(_SCALES, HalfStudentT(4.0))
_PARAMETRIZATIONS = ("centred", "residual", "noncentred")
_LARGEST_RATE = 2.0**62  # NumPy draws no Poisson counts beyond it
_LARGEST_LOSS = 0.01  # nats that a log density may lose in float32


class RobustPoisson(OnePassModel):
    """Poisson regression with a normal error on each log rate (Ko et al. 2024, "Robust Poisson Regression").

    `y_i ~ Poisson(exp(eta_i))` and `eta_i ~ N(X_i beta + alpha + offset_i, s_eta)`, with
    `alpha ~ N(0, s_alpha)`, `beta_k ~ N(0, s_beta)` and each scale (a standard deviation) the positive half
    of a Student-t with 4 degrees of freedom. Globals in the flat vector:
    `[log s_alpha, log s_beta, log s_eta, alpha, beta_1..beta_p]`; the local of row i is `eta_i`, or its noise.

    Parameters
    ----------
    X : (N, p) array, DataFrame or pyarrow Table
        Covariates, as given: standardize them before. A DataFrame's column names are kept. A constant column is
        allowed (a rare group may be absent from a subset); it shares its effect with the intercept.
    y : (N,) array or Series
        Counts 0, 1, 2, ...
    offset : (N,) array or Series, optional
        Known part of the mean log rate, such as a log exposure.
    priors : prior or dict, optional
        `tv.priors` of the standard deviations: one for all, or by name ("s_alpha", "s_beta", "s_eta").
    parametrization : {"centred", "residual", "noncentred"}
        What the local of row i is: the log rate `eta_i`; its noise `eps_i = eta_i - X_i beta - alpha - offset_i ~
        N(0, s_eta)`, as in the paper's released code; or the standardized noise `eps_i/s_eta ~ N(0, 1)`. The posterior
        is the same, its shape is not (Papaspiliopoulos, Roberts and Skold, 2007): a structured or full-rank fit has one
        optimum in the first two, and another in the third. Results are in `eta` always.

    Raises
    ------
    InputError
        If a shape does not fit, there is no row or no covariate, an entry is missing, infinite or no number,
        y holds anything but counts, a column name occurs twice, pandas inputs have different indexes, or a prior or
        parametrization is none of the above.

    Examples
    --------
    >>> model = RobustPoisson([[0.5], [-0.5]], [3, 0])
    >>> model.layout
    Layout(n_global=5, n_local=2, local_dim=1)
    """

    name: ClassVar[str] = "rpoisson"

    def __init__(
        self, X: Any, y: Any, offset: Any = None, *, priors: Any = None, parametrization: str = "centred"
    ) -> None:
        owner = "RobustPoisson"
        self.priors = ScalePriors.read(priors, _PRIORS, owner)
        if parametrization not in _PARAMETRIZATIONS:
            raise unknown_name("parametrization", parametrization, _PARAMETRIZATIONS)
        self.parametrization = parametrization
        matrix, self.covariates, self._rows = read_matrix(X, f"{owner}: X", "x")
        counts = read_vector(y, f"{owner}: y")
        refuse_non_counts(counts, f"{owner}: y")
        if counts.max() > _MAX_COUNT:
            raise InputError(
                f"{owner}: y holds {counts.max():g}; counts above {_MAX_COUNT:g} are not exact in float64."
            )
        known = np.zeros(len(counts)) if offset is None else read_vector(offset, f"{owner}: offset")
        for array, word in ((counts, "y"), (known, "offset")):
            if len(array) != len(matrix):
                raise InputError(f"{owner}: X has {len(matrix)} rows but {word} has {len(array)}.")
        refuse_different_rows(X, y, owner, ("X", "y"))
        refuse_different_rows(X, offset, owner, ("X", "offset"))
        refuse_different_rows(y, offset, owner, ("y", "offset"))
        if not hasattr(X, "columns") and hasattr(y, "iloc"):
            self._rows = row_labels(y)
        self.X, self.y, self.offset = matrix, counts, known
        self._has_offset = bool(known.any())
        n_rows, n_covariates = matrix.shape
        self.layout = Layout(n_global=4 + n_covariates, n_local=n_rows, local_dim=1)
        # the intercept's column of ones first: [alpha, beta] is then one contiguous piece of the flat vector
        self._design = np.vstack([np.ones(n_rows), matrix.T])
        self._sizes = np.array([1.0, n_covariates, n_rows])
        self._log_factorials = np.array([math.lgamma(count + 1.0) for count in counts])
        # rounding of float32 in y*eta and exp(eta) at eta = log y, as it adds up over the rows
        self._large_counts = float(np.linalg.norm(counts * np.log1p(counts))) * 2.0**-24 > _LARGEST_LOSS
        self._constant = -math.fsum(self._log_factorials) - 0.5 * (1 + n_covariates + n_rows) * LOG_2PI

    @property
    def _form(self) -> CentredForm | NoiseForm:
        """The density in the locals of this parametrization."""
        if self.parametrization == "centred":
            return CentredForm(self)
        return NoiseForm(self, self.parametrization == "noncentred")

    def advice(self) -> list[str]:
        """Covariates far from 0 or on a scale far from 1, for which the priors of alpha and beta are not meant."""
        found = []
        for name, column in zip(self.covariates, self.X.T, strict=True):
            mean, sd, width = float(column.mean()), float(column.std()), float(np.ptp(column))
            if np.isin(column, (0, 1)).all():  # a rare group, not a scale
                continue
            if abs(mean) > _FAR * sd > 0 or sd > _WIDE or 0 < width < _NARROW:
                found.append(
                    f"Covariate {name!r} of X has mean {mean:.6g} and standard deviation {sd:.3g}; the priors are "
                    "meant for covariates of mean 0 and standard deviation 1, and may hide the effect of any other, "
                    "whatever fits the model. Subtract its mean and divide by its standard deviation."
                )
        return found

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def global_labels(self) -> list[str]:
        return [f"log {s}" for s in _SCALES] + ["alpha"] + [f"beta[{name}]" for name in self.covariates]

    @property
    def dims(self) -> dict[str, list[str]]:
        return {**{name: [] for name in (*_SCALES, "alpha")}, "beta": ["covariate"], "eta": ["row"]}

    @property
    def coords(self) -> dict[str, list[Any]]:
        return {"covariate": list(self.covariates), "row": self._rows.typed}

    def to_julia(self, runtime: Runtime) -> Any:
        places = (address_of(array) for array in (self.X, self.y, self.offset))
        model = runtime.call(runtime.module.rpoisson_model, *places, *self.X.shape)
        if self.parametrization != "centred":
            model = runtime.call(runtime.module.rpoisson_noise, model, self.parametrization == "noncentred")
        return self.priors.to_julia(runtime, model, {name: (k, k) for k, name in enumerate(_SCALES, 1)})

    def get_state(self) -> dict[str, Any]:
        return {
            "X": self.X,
            "y": self.y,
            "offset": self.offset,
            "covariates": list(self.covariates),
            **self._rows.to_state("rows"),
            **self.priors.to_state(),
            **({} if self.parametrization == "centred" else {"parametrization": self.parametrization}),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RobustPoisson:
        model = cls(
            state["X"],
            state["y"],
            state["offset"],
            priors=ScalePriors.from_state(state, _PRIORS, "RobustPoisson").given,
            parametrization=state.get("parametrization", "centred"),
        )
        model.covariates = relabel(state["covariates"], model.X.shape[1], "RobustPoisson: covariates")
        model._rows = Labels.from_state(state, "rows", len(model.y))
        return model

    @property
    def _contents(self) -> list[str]:
        return [f"{len(self.y):,} rows", f"{len(self.covariates)} covariates"]

    @property
    def numpy_only(self) -> str:
        return " and ".join(self.priors.numpy_only)

    @property
    def unusual(self) -> str:
        priors = "" if self.priors.are_usual else "priors other than the paper's"
        form = "" if self.parametrization == "centred" else f"parametrization={self.parametrization!r}"
        return " and ".join(filter(None, (form, priors)))

    # ---- density ------------------------------------------------------------------------------------------
    def _evaluate(self, points: Array, density: Array | None, gradient: Array | None) -> None:
        self._form.evaluate(points, density, gradient)

    def _log_terms(self, points: Array) -> tuple[Array, Array]:
        return self._form.terms(points.astype(np.float64), None, None)

    def _log_terms_and_gradient(self, points: Array, weights: Array) -> tuple[Array, Array, Array]:
        wide = points.astype(np.float64)
        gradient = namespace_of(points).empty_like(wide)
        return *self._form.terms(wide, weights, gradient), gradient

    def _global_term(self, z: Array) -> Array:
        xp = namespace_of(z)
        (sizes,) = self._on(z, sizes_of_globals=self._sizes * [1, 1, 0])
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return normals_and_scales(self.priors, z, xp.zeros(len(z)), sizes) - 0.5 * (z.shape[1] - 3) * LOG_2PI

    def _at_nodes(self, nodes: np.ndarray, usual: np.ndarray) -> CentredNodes | None:
        return CentredNodes(self, nodes, usual) if self.parametrization == "centred" else None

    # ---- data ---------------------------------------------------------------------------------------------
    def _observations(self) -> dict[str, Observation]:
        return {"y": Observation(self.y.astype(np.int64), ["row"], {"row": ("row", self._rows.typed)})}

    def _log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        eta = self._log_rates(points)
        with np.errstate(over="ignore"):
            found = -np.exp(eta)
        found += eta * self.y
        found -= self._log_factorials
        return {"y": found}

    def _replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"y": _draw_counts(self._log_rates(points), rng)}

    def _log_rates(self, points: Array) -> Array:
        """The log rates eta (M, N), which are the locals themselves where these are centred."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._form.log_rates(points[:, : self.layout.n_global], points[:, self.layout.n_global :])

    def _predict(
        self, points: np.ndarray, new: Any, rng: np.random.Generator, offset: Any = None
    ) -> dict[str, np.ndarray]:
        matrix, known = read_new_rows(new, self.covariates, offset, offset_needed=self._has_offset)
        z = points[:, : self.layout.n_global]
        eta = z[:, 3:4] + z[:, 4:] @ matrix.T + known
        with np.errstate(over="ignore"):
            eta += np.exp(z[:, 2:3]) * rng.standard_normal(eta.shape)
        return {"eta": eta, "y": _draw_counts(eta, rng)}

    def _draw_prior(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        found = self.priors.draw(rng, n)
        found["alpha"] = found["s_alpha"] * rng.standard_normal(n)
        found["beta"] = found["s_beta"][:, None] * rng.standard_normal((n, len(self.covariates)))
        return found

    # ---- natural space ------------------------------------------------------------------------------------
    def _constrain_global(self, z: Array) -> dict[str, Array]:
        with np.errstate(over="ignore"):
            scales = namespace_of(z).exp(z[:, :3])
        named = {name: scales[:, k].copy() for k, name in enumerate(_SCALES)}
        return {**named, "alpha": z[:, 3].copy(), "beta": z[:, 4:].copy()}

    def _constrain_local(self, points: Array) -> dict[str, Array]:
        return {"eta": self._log_rates(points).copy()}

    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        n_rows, n_covariates = self.X.shape
        shapes: dict[str, tuple[int, ...]] = {name: () for name in (*_SCALES, "alpha")}
        found = take_natural(values, {**shapes, "beta": (n_covariates,), "eta": (n_rows,)}, self.name)
        for name in _SCALES:
            refuse_outside(found[name] > 0, self.name, name, "positive")
        scales = np.log(np.column_stack([found[name] for name in _SCALES]))
        z = np.column_stack([scales, found["alpha"], found["beta"]])
        return np.column_stack([z, self._form.locals_of(z, found["eta"])])


def _draw_counts(log_rates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(rng.poisson(np.minimum(np.exp(log_rates), _LARGEST_RATE)))
