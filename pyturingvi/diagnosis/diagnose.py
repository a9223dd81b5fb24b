"""`diagnose()`: draws, weights, moves and restarts of one fit, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.diagnosis.draws import log_ratios
from pyturingvi.diagnosis.integrated import log_marginal
from pyturingvi.diagnosis.moves import Moves, find_moves
from pyturingvi.diagnosis.report import Diagnosis
from pyturingvi.diagnosis.restarts import restart
from pyturingvi.diagnosis.trend import last_third
from pyturingvi.diagnosis.verdict import Findings, GlobalMoves
from pyturingvi.diagnosis.weights import importance_weights
from pyturingvi.errors import InputError
from pyturingvi.families.base import BoundFamily
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model
from pyturingvi.optimize.memory import check_draws_memory
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator
from pyturingvi.support.arguments import LARGEST_SEED, listed, whole_number

if TYPE_CHECKING:
    from pyturingvi.result import Fit

LARGEST_JOINT = 30  # variables whose weights say something when all are taken at once
_LEAST_DRAWS = 100


def diagnose(fit: Fit, n: int = 1000, seed: int = 0, seeds: Sequence[int] | None = None) -> Diagnosis:
    """See `Fit.diagnose`."""
    n = whole_number("n", n, _LEAST_DRAWS)
    seed = whole_number("seed", seed, 0, LARGEST_SEED)
    others = (
        []
        if seeds is None
        else [whole_number("seeds", one, 0, LARGEST_SEED) for one in listed("seeds", seeds, "seeds")]
    )
    model, bound = fit.model, fit.family.bind(fit.model.layout)
    check_draws_memory(2, max(bound.noise_dim, model.dim), "diagnose")
    ratios, z, noise = log_ratios(model, bound, fit.params, n, seed)
    mean, sd = bound.location(fit.params)[: model.layout.n_global], z.std(axis=0, ddof=1)
    try:
        integrated, moves, root = _moves(model, bound, fit.params, n, seed, noise)
    except (InputError, np.linalg.LinAlgError):  # a family without a scale matrix, or one that has gone astray
        integrated, moves, root = False, None, None
    labels = list(model.global_labels)
    found: dict[str, Any] = {
        "status": fit.status,
        "message": fit.message,
        "dim": model.dim,
        "elbo": _finite_mean(ratios),
        "elbo_error": float(ratios.std(ddof=1) / np.sqrt(n)),
        "spread": float(ratios.std(ddof=1)),
        "joint": importance_weights(ratios),
        "gain": _gain(fit),
        "integrated": integrated,
        "moves": moves,
        "advice": model.advice(),
    }
    if moves is not None and root is not None and len(labels):
        sd = np.sqrt(np.einsum("ij,ij->i", root, root))
        found["globals"] = _of_globals(moves, root, sd, labels)
    if others:
        found |= _restarts(fit, others, n, mean, sd, labels)
    return Diagnosis(f"{model.label}, {fit.family.name}", Findings(**found), mean, sd, labels)


def _finite_mean(values: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(values.mean())


def _gain(fit: Fit) -> tuple[float, float] | None:
    trend = last_third([tuple(row) for row in fit.elbo.itertuples(index=False)])
    return None if trend is None else (trend.rise, trend.error)


def _moves(
    model: Model, bound: BoundFamily, flat: np.ndarray, n: int, seed: int, noise: np.ndarray
) -> tuple[bool, Moves | None, np.ndarray | None]:
    """Whether the locals were integrated out, the moves in the coordinates of the noise, and the globals' rows of C."""
    layout, source = model.layout, generator(np, seed, SAMPLE_STREAM, 3)
    with np.errstate(all="ignore"):
        parts = GlobalsAndLocals.of(bound, flat)
        if model.has_log_terms and layout.n_global and layout.n_local:

            def log_p(u: np.ndarray) -> np.ndarray:
                return log_marginal(model, parts, u, seed)

            log_q = bound.base.log_density(noise).sum(axis=1)
            return True, find_moves(log_p, noise, log_q, source), parts.scale
        if model.dim > LARGEST_JOINT or not layout.n_global:
            return False, None, None
        location, scale = bound.location(flat), bound.scale(flat).toarray()
        draws = np.empty((n, model.dim))
        bound.base.fill(source, draws)

        def log_joint(u: np.ndarray) -> np.ndarray:
            return np.asarray(model.log_density(location + u @ scale.T), dtype=np.float64)

        log_q = bound.base.log_density(draws).sum(axis=1)
        return False, find_moves(log_joint, draws, log_q, source), scale[: layout.n_global]


def _of_globals(moves: Moves, root: np.ndarray, sd: np.ndarray, labels: list[str]) -> GlobalMoves:
    shift = root @ moves.mean / sd
    error = np.sqrt((root / sd[:, None]) ** 2 @ moves.error**2)
    variance = np.einsum("ij,jk,ik->i", root, moves.covariance, root)
    return GlobalMoves(labels, shift, error, np.sqrt(np.clip(variance, 0.0, None)) / sd, moves.by)


def _restarts(
    fit: Fit, seeds: list[int], n: int, mean: np.ndarray, sd: np.ndarray, labels: list[str]
) -> dict[str, Any]:
    bound, elbos, means = fit.family.bind(fit.model.layout), [], [mean]
    for seed in seeds:
        other = restart(fit.model, fit.spec, seed)
        ratios, _, _ = log_ratios(fit.model, bound, other.params, n, seed)
        elbos.append(_finite_mean(ratios))
        means.append(bound.location(other.params)[: len(mean)])
    apart = np.ptp(means, axis=0) / sd
    if not len(apart):
        return {"restart_elbos": elbos}
    worst = int(np.argmax(apart))
    return {"restart_elbos": elbos, "restart_distance": float(apart[worst]), "restart_where": labels[worst]}
