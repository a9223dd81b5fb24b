"""The answers of an item response model as data: how likely each is, and others in their place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyturingvi.models.irt_answers import Answers
from pyturingvi.models.irt_sparse import log_sigmoid
from pyturingvi.models.labels import Labels
from pyturingvi.models.observed import Coords, Observation
from pyturingvi.models.parts import pieces
from pyturingvi.support.arviz import labels_array


def observation(answers: Answers, students: Labels, items: list[str]) -> Observation:
    """A (J, K) table where it is complete, and otherwise a list of the answers with who gave them and to what."""
    right = in_cells(answers, (answers.signs > 0).astype(np.int8))
    who, what = labels_array(students.typed), labels_array(items)
    if right.ndim == 2:
        return Observation(right, ["student", "item"], {"student": ("student", who), "item": ("item", what)})
    coords: Coords = {
        "answer": ("answer", np.arange(answers.n_answers)),
        "student": ("answer", who[answers.students]),
        "item": ("answer", what[answers.items]),
    }
    return Observation(right, ["answer"], coords)


def log_likelihoods(answers: Answers, gamma: np.ndarray, centre: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Log probability of each answer, in the shape of `observation` behind the M draws.

    Discriminations gamma and easiness `beta + mu_beta` are (M, K), abilities (M, J).
    """
    found = np.empty((len(alpha), answers.n_answers))
    for rows, logits in _logits(answers, gamma, centre, alpha):
        logits *= answers.signs
        found[rows] = log_sigmoid(np, logits)
    return in_cells(answers, found)


def replicates(
    answers: Answers, gamma: np.ndarray, centre: np.ndarray, alpha: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Other answers in the place of those that were given, 1 right and 0 wrong; arguments as of `log_likelihoods`."""
    found = np.empty((len(alpha), answers.n_answers), dtype=np.int8)
    for rows, logits in _logits(answers, gamma, centre, alpha):
        found[rows] = logits > rng.logistic(size=logits.shape)  # with probability 1/(1 + exp(-logit))
    return in_cells(answers, found)


def in_cells(answers: Answers, values: np.ndarray) -> np.ndarray:
    """Values (..., n) of the answers as (..., J, K) where every cell has one, and otherwise as they are."""
    shape = (answers.n_items, answers.n_students)
    if answers.n_answers < shape[0] * shape[1]:
        return values
    return np.ascontiguousarray(np.swapaxes(values.reshape(*values.shape[:-1], *shape), -1, -2))


def _logits(
    answers: Answers, gamma: np.ndarray, centre: np.ndarray, alpha: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Logits of the answers, a few draws at a time."""
    items = answers.items
    for rows in pieces(np, len(alpha), answers.n_answers):
        logits = gamma[rows][:, items]
        logits *= alpha[rows][:, answers.students]
        logits += centre[rows][:, items]
        yield rows, logits
