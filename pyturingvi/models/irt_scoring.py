"""Abilities of new students, given the items: one integral over one variable for each student.

With the items known, students are independent, and a student's posterior is a normal prior times sigmoids: log-concave,
with a curvature of at least 1. Newton's method finds its mode, and the trapezoidal rule its mean and variance: for such
smooth functions it converges faster than any power of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pyturingvi.models.irt_answers import Answers
from pyturingvi.models.irt_sparse import log_sigmoid

_PIECE = 1 << 16
_DROP = 25.0  # nats below the mode where the integral ends; a curvature of 1 is so far down at _FARTHEST
_FARTHEST = math.sqrt(2.0 * _DROP)
_BRACKETS = _FARTHEST * np.linspace(0.0, 1.0, 9)[1:] ** 2
# Steps in standard deviations, and in units of a sigmoid's width: its poles lie pi/gamma away from the real line, and
# the rule's error is exp(-2 pi distance/step).
_STEP, _STEP_OF_SIGMOID = 0.7, 0.9
_MOST_NODES = 2_000
_WINDOW, _CELLS_OF_SD = 8.0, 8.0  # half the width of a grid and its cells, in standard deviations of a posterior
_MOST_STEPS, _CLOSE = 100, 1e-4


def abilities(answers: Answers, gamma: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean and standard deviation (J,) of each student's ability, averaged over S draws of the items.

    Parameters
    ----------
    answers : Answers
        Items may be without an answer.
    gamma, centre : (S, K) arrays
        Discriminations, and `beta + mu_beta`.
    """
    mode = np.zeros(answers.n_students)
    means, variances = np.empty((2, len(gamma), answers.n_students))
    for s in range(len(gamma)):
        means[s], variances[s], mode = _moments(answers, gamma[s], centre[s], mode)
    between = means.var(axis=0, ddof=1) if len(gamma) > 1 else 0.0
    return means.mean(axis=0), np.sqrt(variances.mean(axis=0) + between)


def draw_abilities(answers: Answers, gamma: np.ndarray, centre: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A draw (S, J) of each student's ability with each of S draws of the items, gamma and centre (S, K).

    Each posterior is laid out on one grid for all students, an eighth of the narrowest one's standard deviation apart:
    its sums over items are then two matrix products, and a draw is uniform within its cell.
    """
    mean, sd = abilities(answers, gamma.mean(axis=0)[None], centre.mean(axis=0)[None])
    low, high = float((mean - _WINDOW * sd).min()), float((mean + _WINDOW * sd).max())
    n = min(_MOST_NODES, math.ceil((high - low) / (sd.min() / _CELLS_OF_SD)) + 1)
    grid, cell = np.linspace(low, high, n), (high - low) / (n - 1)
    codes = answers.codes()
    right, wrong = (codes == 1).astype(float), (codes == 0).astype(float)
    found = np.empty((len(gamma), answers.n_students))
    for s in range(len(gamma)):
        logits = gamma[s][:, None] * grid + centre[s][:, None]
        logs = right @ log_sigmoid(np, logits) + wrong @ log_sigmoid(np, -logits) - 0.5 * grid**2
        mass = np.cumsum(np.exp(logs - logs.max(axis=1, keepdims=True)), axis=1)
        chosen = (mass < rng.uniform(size=(len(mass), 1)) * mass[:, -1:]).sum(axis=1)
        found[s] = grid[chosen] + cell * (rng.uniform(size=len(mass)) - 0.5)
    return found


def _moments(
    answers: Answers, gamma: np.ndarray, centre: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, variance and mode (J,) with one set of items; modes are sought from `start`."""
    mode, curvature = _modes(answers, gamma, centre, start)
    top = _log_posterior(answers, gamma, centre, mode)
    low, high = (_end(answers, gamma, centre, mode, top, side) for side in (-1.0, 1.0))
    steepest = np.zeros(answers.n_students)
    np.maximum.at(steepest, answers.students, gamma[answers.items])
    step = np.minimum(_STEP / np.sqrt(curvature), _STEP_OF_SIGMOID / np.maximum(steepest, _STEP_OF_SIGMOID))
    n = min(_MOST_NODES, int(np.ceil(((high - low) / step).max())) + 1)
    total, first, second = np.zeros((3, answers.n_students))
    for t in np.linspace(0.0, 1.0, n):
        distance = low + t * (high - low)
        weight = np.exp(_log_posterior(answers, gamma, centre, mode + distance) - top)
        total += weight
        first += weight * distance
        second += weight * distance**2
    first /= total
    return mode + first, second / total - first**2, mode


def _modes(answers: Answers, gamma: np.ndarray, centre: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each student's posterior is highest, and minus its second derivative there, by Newton's method.

    The slope falls all the way, so that its signs bracket the mode; a step out of the bracket is halved into it.
    """
    weight = gamma[answers.items]
    low = -np.bincount(answers.students, weight * (answers.signs < 0), answers.n_students)
    high = np.bincount(answers.students, weight * (answers.signs > 0), answers.n_students)
    ability = np.clip(start, low, high)
    for _ in range(_MOST_STEPS):
        slope, curvature = -ability, np.ones(answers.n_students)
        for students, logit, signs, steepness in _logits(answers, gamma, centre, ability):
            pull = 0.5 * (signs - np.tanh(0.5 * logit))
            slope += np.bincount(students, steepness * pull, answers.n_students)
            curvature += np.bincount(students, steepness**2 * np.abs(pull) * (1.0 - np.abs(pull)), answers.n_students)
        low, high = np.where(slope > 0, ability, low), np.where(slope < 0, ability, high)
        step = slope / curvature
        outside = (ability + step < low) | (ability + step > high)
        step = np.where(outside, 0.5 * (low + high) - ability, step)
        ability = ability + step
        if not (np.abs(step) * np.sqrt(curvature) > _CLOSE).any():
            break
    return ability, curvature


def _end(
    answers: Answers, gamma: np.ndarray, centre: np.ndarray, mode: np.ndarray, top: np.ndarray, side: float
) -> np.ndarray:
    """How far from the mode, to the side -1 or +1, each posterior has fallen by `_DROP` nats at least."""
    end = np.full(answers.n_students, side * _FARTHEST)
    for distance in _BRACKETS[-2::-1]:
        fallen = top - _log_posterior(answers, gamma, centre, mode + side * distance) > _DROP
        if not fallen.any():
            break
        end[fallen] = side * distance
    return end


def _log_posterior(answers: Answers, gamma: np.ndarray, centre: np.ndarray, ability: np.ndarray) -> np.ndarray:
    """Log posterior (J,) of each student's ability, up to a constant."""
    found = -0.5 * ability**2
    for students, logit, signs, _ in _logits(answers, gamma, centre, ability):
        logit *= signs
        found += np.bincount(students, log_sigmoid(np, logit), answers.n_students)
    return found


def _logits(
    answers: Answers, gamma: np.ndarray, centre: np.ndarray, ability: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Student, logit, sign and discrimination of each answer, in pieces no shorter than a sum over students."""
    items, size = answers.items, max(_PIECE, answers.n_students)
    for first in range(0, answers.n_answers, size):
        piece = slice(first, first + size)
        students, steepness = answers.students[piece], gamma[items[piece]]
        yield students, steepness * ability[students] + centre[items[piece]], answers.signs[piece], steepness
