"""Multivariate stochastic volatility: log-volatilities that follow a vector autoregression."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import unknown_name
from pyturingvi.layout import Layout
from pyturingvi.models.checks import read_matrix
from pyturingvi.models.labels import Labels, relabel
from pyturingvi.models.observed import Observation
from pyturingvi.models.one_pass import OnePassModel
from pyturingvi.models.parts import pieces, row_sums, take_natural
from pyturingvi.models.volatility_data import log_likelihoods, observation, replicates
from pyturingvi.models.volatility_globals import MU_SCALE, VolatilityGlobals
from pyturingvi.models.volatility_returns import WHAT, read_returns, stale_prices
from pyturingvi.priors import HalfCauchy
from pyturingvi.priors.of_model import ScalePriors
from pyturingvi.support.arguments import positive_number, whole_number
from pyturingvi.support.array_namespace import Array, address_of, namespace_of
from pyturingvi.transforms.maps import interval, interval_pullback, lkj_cholesky, lkj_cholesky_pullback

if TYPE_CHECKING:
    from pyturingvi.bridge.runtime import Runtime

_PRIORS = {"tau": HalfCauchy(5.0)}
_OPTIONS: dict[str, Any] = {"tau_of": "series", "partials": "rows", "bound": None}  # as the paper has it


class StochasticVolatility(OnePassModel):
    """Multivariate stochastic volatility of return series (Ko et al. 2024, section of the same name).

    `y_1 ~ N(mu, Q)`, `y_t ~ N(mu + phi*(y_{t-1} - mu), Q)` and `x_t ~ N(0, exp(y_t/2))`, where `exp(y_t/2)`
    is a standard deviation and `Q = diag(tau) L L' diag(tau)`. Priors: `mu ~ Cauchy(0, 10)`,
    `phi ~ Uniform(-1, 1)`, `tau ~ Cauchy+(0, 5)` and `L ~ LKJ-Cholesky(1)`. Globals in the flat vector:
    `[mu, v_phi, log tau, v_L]` with `phi = tanh(v_phi/2)` and the partial correlations `tanh(v_L)` row by
    row; the local of time t is `y_t`.

    Parameters
    ----------
    returns : (T, D) array, DataFrame or pyarrow Table
        One row a time in ascending order, one column a series, as given: centre them before. NaN is missing: such a
        return is left out of the likelihood, and its time keeps its log volatility, so that the times around it stay
        as far apart as they are. Column names and the index are kept.
    priors : prior or dict, optional
        One of `tv.priors` for tau, of each series alike.
    tau_of : {"series", "shocks"}
        What tau are the standard deviations of, given correlated innovations: `Q = diag(tau) L L' diag(tau)`, or the
        shocks behind them, `Q = L diag(tau)^2 L'`, as in the paper's released code.
    partials : {"rows", "columns"}
        Order of the partial correlations in the flat vector: (2,1), (3,1), (3,2), ... or (2,1), (3,1), ..., (3,2), ...
    bound : float, optional
        The likelihood, and what is drawn from it, takes log variances no farther than this from 0.

    Raises
    ------
    InputError
        If it is not a table of numbers, has fewer than two times or more series than times; if dates in its index
        are out of order or there twice; if a series has fewer than two returns, is constant, or holds prices; if a
        return is exactly 0, with which the posterior is improper; or if a prior or an option is none of the above.

    Notes
    -----
    The likelihood of a return x given its log variance y is at most 1/(|x| sqrt(2 pi e)); at x = 0 it is exp(-y/2)/
    sqrt(2 pi), whose mean over y ~ N(mu, tau^2) is exp(-mu/2 + tau^2/8)/sqrt(2 pi). No prior with a tail like Cauchy's
    makes up for that. Zeros that are centred away are no longer exact, but pull tau upwards all the same, and
    `tv.fit` warns of many: make them missing first.

    Examples
    --------
    >>> StochasticVolatility([[0.01, -0.02], [float("nan"), 0.01], [-0.01, 0.03]]).layout
    Layout(n_global=7, n_local=3, local_dim=2)
    """

    name: ClassVar[str] = "volatility"
    default_family: str = "markov"
    no_log_terms: str = "each time's volatility depends on that of the time before, also given the globals"

    def __init__(
        self,
        returns: Any,
        *,
        priors: Any = None,
        tau_of: str = "series",
        partials: str = "rows",
        bound: float | None = None,
    ) -> None:
        priors = ScalePriors.read(priors, _PRIORS, "StochasticVolatility")
        self._set_options(priors, tau_of, partials, bound)
        self._set_up(*read_returns(returns))

    def _set_options(self, priors: ScalePriors, tau_of: str, partials: str, bound: float | None) -> None:
        for what, value, known in (
            ("tau_of", tau_of, ("series", "shocks")),
            ("order of partial correlations", partials, ("rows", "columns")),
        ):
            if value not in known:
                raise unknown_name(what, value, known)
        self.priors, self.tau_of, self.partials = priors, tau_of, partials
        self.bound = None if bound is None else positive_number("StochasticVolatility: bound", bound)

    def _set_up(self, returns: np.ndarray, series: list[str], times: Labels) -> None:
        self.returns, self.series, self._times = returns, series, times
        n_times, size = returns.shape
        # time runs along the last axis: NumPy is several times faster over long contiguous rows
        by_series = np.ascontiguousarray(returns.T)
        observed = ~np.isnan(by_series)
        self._half_squares = 0.5 * np.where(observed, by_series, 0.0) ** 2
        self._halves = None if observed.all() else 0.5 * observed  # what log volatilities weigh in the likelihood
        kinds = self.priors["tau"], self.tau_of, self.partials
        self._globals = VolatilityGlobals(size, n_times, int(observed.sum()), *kinds)
        self.layout = Layout(n_global=self._globals.n_global, n_local=n_times, local_dim=size)

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def global_labels(self) -> list[str]:
        return self._globals.labels(self.series)

    @property
    def dims(self) -> dict[str, list[str]]:
        vector, matrix = ["series"], ["series", "series_2"]
        return {"mu": vector, "phi": vector, "tau": vector, "L": matrix, "Q": matrix, "y": ["time", "series"]}

    @property
    def coords(self) -> dict[str, list[Any]]:
        return {"series": list(self.series), "series_2": list(self.series), "time": self._times.typed}

    def starts(self, family: str) -> dict[str, tuple[np.ndarray, float]]:
        """Slow volatility: the usual start comes from families without a memory."""
        if family != "markov":
            return {}
        n_times, size = self.returns.shape
        level, each = np.log(np.nanmean(self.returns**2, axis=0)), np.ones(size)
        path = np.broadcast_to(level, (n_times, size))
        point = self.unconstrain({"mu": level, "phi": 0.95 * each, "tau": 0.2 * each, "L": np.eye(size), "y": path})
        return {"persistent": (point[0], 0.3)}

    def advice(self) -> list[str]:
        return stale_prices(self.returns, self.series)

    @property
    def locals_before(self) -> int | None:
        # a subclass may couple its locals in another way
        return 1 if type(self) is StochasticVolatility else super().locals_before

    def to_julia(self, runtime: Runtime) -> Any:
        size, bound = len(self.series), math.inf if self.bound is None else self.bound
        shape, module = self.returns.shape, runtime.module
        model = runtime.call(module.volatility_model, address_of(self.returns), *shape, self.tau_of == "shocks", bound)
        if self.partials == "columns":
            model = runtime.call(module.volatility_by_columns, model)
        return self.priors.to_julia(runtime, model, {"tau": (2 * size + 1, 3 * size)})

    def get_state(self) -> dict[str, Any]:
        labels = {"series": list(self.series), **self._times.to_state("times")}
        return {"returns": self.returns, **labels, **self.priors.to_state(), **self._unusual}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StochasticVolatility:
        # a file of an earlier version may hold what a new model is refused: exact zeros, say
        returns, _, _ = read_matrix(state["returns"], WHAT, "series", missing_allowed=True)
        model = cls.__new__(cls)
        priors = ScalePriors.from_state(state, _PRIORS, "StochasticVolatility")
        model._set_options(priors, **{name: state.get(name, usual) for name, usual in _OPTIONS.items()})
        series = relabel(state["series"], returns.shape[1], "StochasticVolatility: series")
        model._set_up(returns, series, Labels.from_state(state, "times", len(returns)))
        return model

    @property
    def _contents(self) -> list[str]:
        return [f"{len(self.returns):,} times", f"{len(self.series)} series"]

    @property
    def numpy_only(self) -> str:
        return " and ".join(self.priors.numpy_only)

    @property
    def unusual(self) -> str:
        options = [f"{name}={value!r}" for name, value in self._unusual.items()]
        return " and ".join([*options, *([] if self.priors.are_usual else ["a prior other than the paper's"])])

    @property
    def _unusual(self) -> dict[str, Any]:
        """The options that are not as the paper has it, which alone files name."""
        return {name: getattr(self, name) for name, usual in _OPTIONS.items() if getattr(self, name) != usual}

    # ---- density ------------------------------------------------------------------------------------------
    def _evaluate(self, points: Array, density: Array | None, gradient: Array | None) -> None:
        """Fill `density` (M,) and `gradient` (M, d), each unless it is None."""
        xp, layout = namespace_of(points), self.layout
        with np.errstate(all="ignore"):
            for rows in pieces(xp, points.shape[0], layout.n_local_total):
                piece = points[rows]
                self._evaluate_piece(
                    xp,
                    piece,
                    None if density is None else density[rows],
                    None if gradient is None else gradient[rows],
                )

    def _evaluate_piece(self, xp: ModuleType, points: Array, density: Array | None, out: Array | None) -> None:
        n_global, n_times, size = self.layout.n_global, self.layout.n_local, self.layout.local_dim
        mu, v_phi, log_tau, v_partial = self._globals.split(points[:, :n_global])
        phi = interval(v_phi)
        factor, remainder = lkj_cholesky(v_partial, size)
        tau = xp.exp(log_tau)
        own, other = tau[:, :, None], tau[:, None, :]  # tau along the axis of L that it scales, and the other
        if self.tau_of == "shocks":
            own, other = other, own
        whiten = _inverse_of_lower(factor) / other  # (M, D, D): whiten @ r_t has unit covariance
        whiten_lagged = whiten * phi[:, None, :]

        y = xp.array(points[:, n_global:].reshape(-1, n_times, size).transpose(0, 2, 1), order="C")
        (half_squares,) = self._on(points, half_squares=self._half_squares)
        clipped = self._clipped(y)
        scaled = xp.negative(clipped)
        xp.exp(scaled, out=scaled)
        scaled *= half_squares  # x_t^2 exp(-y_t) / 2
        halves = None if self._halves is None else self._on(points, halves=self._halves)[0]
        # The innovations r_t = (y_t - mu) - phi (y_{t-1} - mu), whitened; none has a lagged part at t = 1.
        level = 0.0
        if density is not None:
            level = 0.5 * row_sums(clipped) if halves is None else row_sums(clipped * halves)
        inside = None if self.bound is None or out is None else (clipped == y).astype(y.dtype)
        y -= mu[:, :, None]
        white = whiten @ y
        white[:, :, 1:] -= whiten_lagged @ y[:, :, :-1]

        if density is not None:
            squares = row_sums(white * white)
            z = points[:, :n_global].astype(np.float64)
            (weights,) = self._on(z, weights=self._globals.partial_weights)
            density[...] = -level - 0.5 * squares - row_sums(scaled) + self._globals.density(z, weights)
        if out is None:
            return
        g_mu, g_phi, g_log_tau = (out[:, k * size : (k + 1) * size] for k in range(3))
        cross = white[:, :, 1:] @ y[:, :, :-1].transpose(0, 2, 1)
        # gradient in y - mu: -Q^-1 r_t, and further down + phi Q^-1 r_{t+1}
        pulled = xp.matmul(-whiten.transpose(0, 2, 1), white, out=y)
        # d/dL of -|L^-1 diag(1/tau) r|^2 / 2; its product with L is what log tau sees
        g_factor = pulled @ white.transpose(0, 2, 1) * -own
        pulled[:, :, :-1] += whiten_lagged.transpose(0, 2, 1) @ white[:, :, 1:]
        xp.subtract(-2.0 * mu / (MU_SCALE**2 + mu * mu), pulled.sum(axis=2), out=g_mu)
        if inside is not None:  # beyond the bound the likelihood is flat
            scaled *= inside
            halves = inside * 0.5 if halves is None else inside * halves
        scaled += pulled
        local_out = out[:, n_global:].reshape(-1, n_times, size).transpose(0, 2, 1)
        xp.subtract(scaled, 0.5 if halves is None else halves, out=local_out)
        xp.subtract(interval_pullback(v_phi, (whiten * cross).sum(axis=1)), phi, out=g_phi)
        g_log_tau[...] = (g_factor * factor).sum(axis=2 if self.tau_of == "series" else 1)
        g_log_tau += (1.0 - n_times) + self.priors["tau"].slope(xp.exp(-2.0 * log_tau))
        (weights,) = self._on(points, weights=self._globals.partial_weights)
        g_partial = lkj_cholesky_pullback(v_partial, g_factor, factor, remainder)
        g_partial -= weights * xp.tanh(v_partial)
        out[:, 3 * size : n_global] = self._globals.stored(g_partial)

    def _clipped(self, y: Array) -> Array:
        """Log variances as the likelihood has them."""
        return y if self.bound is None else namespace_of(y).clip(y, -self.bound, self.bound)

    # ---- data ---------------------------------------------------------------------------------------------
    def _observations(self) -> dict[str, Observation]:
        return {"returns": observation(self.returns, self.series, self._times)}

    def _log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        return {"returns": log_likelihoods(self.returns, self._clipped(self._constrain_local(points)["y"]))}

    def _replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"returns": replicates(self.returns, self._clipped(self._constrain_local(points)["y"]), rng)}

    def _predict(self, points: np.ndarray, new: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self._forecast(points, whole_number("predict: new, the number of days ahead,", new, 1), rng)

    def _draw_prior(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self._constrain_global(self._globals.draw_prior(n, rng))

    # ---- natural space ------------------------------------------------------------------------------------
    def _constrain_global(self, z: Array) -> dict[str, Array]:
        return self._globals.constrain(z)

    def _constrain_local(self, points: Array) -> dict[str, Array]:
        shape = (points.shape[0], self.layout.n_local, self.layout.local_dim)
        return {"y": points[:, self.layout.n_global :].copy().reshape(shape)}

    def _forecast(self, points: Array, h: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n_points, size = len(points), self.layout.local_dim
        found = self._constrain_global(points[:, : self.layout.n_global])
        mu, phi, root = found["mu"], found["phi"], self._globals.root(found["tau"], found["L"])
        centred = points[:, -size:] - mu
        y = np.empty((n_points, h, size))
        for k in range(h):
            centred = phi * centred + (root @ rng.standard_normal((n_points, size, 1)))[:, :, 0]
            y[:, k] = mu + centred
        with np.errstate(over="ignore"):
            volatility = np.exp(self._clipped(y) / 2)
            return {"volatility": volatility, "returns": volatility * rng.standard_normal(y.shape)}

    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        n_times, size = self.returns.shape
        vector = (size,)
        shapes = {"mu": vector, "phi": vector, "tau": vector, "L": (size, size), "y": (n_times, size)}
        found = take_natural(values, shapes, self.name)
        z = self._globals.unconstrain(found, self.name)
        return np.concatenate([z, found["y"].reshape(-1, n_times * size)], axis=1)


def _inverse_of_lower(factor: Array) -> Array:
    """Inverse of a batch of lower triangular matrices; infinite or NaN, without a word, where singular."""
    xp, size = namespace_of(factor), factor.shape[2]
    try:
        return xp.linalg.inv(factor)
    except np.linalg.LinAlgError:  # one singular matrix: forward substitution serves the others all the same
        inverse = xp.zeros_like(factor)
        for i in range(size):
            inverse[:, i, i] = 1.0
            inverse[:, i, :i] = -(factor[:, i : i + 1, :i] @ inverse[:, :i, :i])[:, 0]
            inverse[:, i, : i + 1] /= factor[:, i, i, None]
        return inverse
