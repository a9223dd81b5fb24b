"""`diagnose()`: draws, weights, moves and restarts of one fit, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.diagnosis.chained_locals import chained
from pyturingvi.diagnosis.check import GlobalsCheck, check_globals, refinable
from pyturingvi.diagnosis.draws import log_ratios
from pyturingvi.diagnosis.findings import Findings, GlobalMoves, RestartEnd
from pyturingvi.diagnosis.integrated import log_marginal
from pyturingvi.diagnosis.moves import OWN_DRAWS, SLOPE, Moves, draws_for_curvature, find_moves
from pyturingvi.diagnosis.report import Diagnosis
from pyturingvi.diagnosis.restarts import restart
from pyturingvi.diagnosis.trend import last_third
from pyturingvi.diagnosis.verdict import DISTRUST, MORE
from pyturingvi.diagnosis.weights import importance_weights
from pyturingvi.errors import InputError
from pyturingvi.families import MeanField, Structured
from pyturingvi.families.base import BoundFamily
from pyturingvi.families.conditional import GlobalsAndLocals
from pyturingvi.models.base import Model
from pyturingvi.optimize.memory import check_draws_memory
from pyturingvi.optimize.natural_rule import NaturalGradient
from pyturingvi.optimize.noise import SAMPLE_STREAM, generator
from pyturingvi.support.arguments import LARGEST_SEED, listed, whole_number
from pyturingvi.support.parallel import one_blas_thread
from pyturingvi.support.quiet import quietly
from pyturingvi.support.registry import defines

if TYPE_CHECKING:
    from pyturingvi.refine.refinement import Refinement
    from pyturingvi.result import Fit

_LEAST_DRAWS = 100
LARGEST_JOINT = 30  # variables whose weights say something when all are taken at once


@quietly
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
    integrated = model.has_log_terms and model.layout.n_global > 0 and model.layout.n_local > 0
    joint = not integrated and model.dim <= LARGEST_JOINT and model.layout.n_global > 0
    if joint:
        n = max(n, draws_for_curvature(model.dim))
    keep = model.dim if joint else model.layout.n_global
    check_draws_memory(n, model.layout.n_global + keep + 1, "diagnose")
    ratios, z, noise = log_ratios(model, bound, fit.params, n, seed, keep)
    mean = bound.location(fit.params)[: model.layout.n_global]
    sd, spread = z.std(axis=0, ddof=1), float(ratios.std(ddof=1))
    moves, root = None, None
    try:
        with one_blas_thread():
            source = generator(np, seed, SAMPLE_STREAM, 3)
            if fit.refined is not None:
                moves, root = _moves_of_refined(fit.refined, GlobalsAndLocals.of(bound, fit.params))
            elif integrated:
                moves, root = _moves_of_globals(model, bound, fit.params, noise, seed, source)
            elif joint:
                moves, root = _moves_of_all(model, bound, fit.params, noise, source)
    except (InputError, np.linalg.LinAlgError):  # a family without a scale matrix, or one that has gone astray
        moves = None
    labels = list(model.global_labels)
    found: dict[str, Any] = {
        "status": fit.status,
        "message": fit.message,
        "cut_short": fit.status == "completed" and fit.spec.optimizer.get("rule") == NaturalGradient.name,
        "capped": fit.spec.n_iterations is None,
        "astray": fit.astray,
        "dim": model.dim,
        "elbo": float(ratios.mean()),
        "elbo_error": spread / float(np.sqrt(n)),
        "spread": spread,
        "joint": importance_weights(ratios) if fit.refined is None else fit.refined.importance,
        "refined": fit.refined is not None,
        "forgetful": chained(model, fit.family) and fit.family.name in (MeanField.name, Structured.name),
        "gain": _gain(fit),
        "has_locals": model.layout.n_local > 0,
        "integrated": integrated or fit.refined is not None,
        "refinable": fit.refined is None and refinable(model, fit.family),
        "moves": moves,
        "advice": model.advice(),
        "warned": [_bare(words) for words in fit.warnings if words.startswith(DISTRUST) and fit.refined is None],
        "starts": fit.starts,
        "check": _check(fit, bound, n, seed),
    }
    if fit.refined is not None:
        found |= _of_refined(fit.refined, labels, with_others=bool(others))
    if moves is not None and root is not None and len(labels):
        sd = np.sqrt(np.einsum("ij,ij->i", root, root))
        found["globals"] = _of_globals(moves, root, sd, labels)
    if others:
        found |= _restarts(fit, others, n, mean, sd, labels)
    return Diagnosis(f"{model.label}, {fit.family.label}", Findings(**found), mean, sd, labels)


def _bare(warning: str) -> str:
    """What a warning of a fit's shape found."""
    return warning.removeprefix(DISTRUST).removesuffix(MORE).strip()


def _check(fit: Fit, bound: BoundFamily, n: int, seed: int) -> GlobalsCheck | None:
    """What the slopes say of the globals; None where weights have told, or nothing can be told in this way."""
    if fit.refined is not None or fit.status == "diverged" or not defines(bound, "natural_coordinates"):
        return None
    try:
        return check_globals(fit.model, bound, fit.params, seed, n)
    except Exception:  # a log density of the user's own, at points that the run itself did not visit
        return None


def _of_refined(refined: Refinement, labels: list[str], *, with_others: bool) -> dict[str, Any]:
    """What its own draws have; the Gaussian behind it holds its locals otherwise. Restarts have an ELBO each."""
    weights = refined.weights[refined.weights > 0]
    bound = {} if with_others else {"elbo": refined.bound, "elbo_error": refined.bound_error}
    far_out = [refined.endless_words] if refined.endless else []
    far_out += [refined.coarse_words] if refined.coarse else []
    far_out += [words for words in (refined.doubt_words, refined.vague_words(labels)) if words]
    return {"spread": float(np.log(weights).std()), "far_out": far_out, **bound}


def _gain(fit: Fit) -> tuple[float, float] | None:
    if fit.status == "converged":  # the optimizer has looked closer, and averaged since
        return fit.gain
    trend = last_third([tuple(row) for row in fit.elbo.itertuples(index=False)])
    return None if trend is None else (trend.rise, trend.error)


def _moves_of_globals(
    model: Model, bound: BoundFamily, flat: np.ndarray, noise: np.ndarray, seed: int, source: np.random.Generator
) -> tuple[Moves, np.ndarray]:
    """Moves of the globals with the locals integrated out, in coordinates of their noise, and C_zz."""
    parts = GlobalsAndLocals.of(bound, flat)

    def log_p(u: np.ndarray) -> np.ndarray:
        return log_marginal(model, parts, u, seed)

    return find_moves(log_p, noise, bound.base.log_density(noise).sum(axis=1), source), parts.scale


def _moves_of_refined(refined: Refinement, parts: GlobalsAndLocals) -> tuple[Moves, np.ndarray]:
    """The weights that a refined fit has; its Gaussian has their moments, so that nothing is left to move."""
    noise = np.linalg.solve(parts.scale, (refined.draws - parts.mean).T).T
    error = np.sqrt(refined.weights**2 @ noise**2)
    by = OWN_DRAWS if refined.weighted else SLOPE
    d = noise.shape[1]
    return Moves(refined.importance, refined.importance, np.zeros(d), np.eye(d), error, by, 1), parts.scale


def _moves_of_all(
    model: Model, bound: BoundFamily, flat: np.ndarray, noise: np.ndarray, source: np.random.Generator
) -> tuple[Moves, np.ndarray]:
    """Moves of all variables together, in coordinates of their noise, and the globals' rows of C."""
    location, scale = bound.location(flat), bound.scale(flat).toarray()

    def log_p(u: np.ndarray) -> np.ndarray:
        return np.asarray(model.log_density(location + u @ scale.T), dtype=np.float64)

    moves = find_moves(log_p, noise, bound.base.log_density(noise).sum(axis=1), source)
    return moves, scale[: model.layout.n_global]


def _of_globals(moves: Moves, root: np.ndarray, sd: np.ndarray, labels: list[str]) -> GlobalMoves:
    shift = root @ moves.mean / sd
    error = np.sqrt((root / sd[:, None]) ** 2 @ moves.error**2)
    variance = np.einsum("ij,jk,ik->i", root, moves.covariance, root)
    return GlobalMoves(labels, shift, error, np.sqrt(np.clip(variance, 0.0, None)) / sd, moves.by)


def _restarts(
    fit: Fit, seeds: list[int], n: int, mean: np.ndarray, sd: np.ndarray, labels: list[str]
) -> dict[str, Any]:
    bound, found = fit.family.bind(fit.model.layout), []
    for seed in seeds:
        other = restart(fit.model, fit.spec, fit.params, seed)
        ratios, _, _ = log_ratios(fit.model, bound, other.params, n, seed, 0)
        elbo = float(ratios.mean()) if other.status != "diverged" else -np.inf
        apart = np.abs(bound.location(other.params)[: len(mean)] - mean) / sd
        worst = int(np.argmax(apart)) if len(apart) else -1
        where = (float(apart[worst]), labels[worst]) if len(apart) else (0.0, "")
        found.append(RestartEnd(seed, elbo, *where, other.params))
    return {"restarts": found}
