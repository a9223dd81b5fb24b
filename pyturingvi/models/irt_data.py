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
    """A list of the answers with who gave them and to what: ArviZ's plots of right and wrong want one axis."""
    coords: Coords = {
        "answer": ("answer", np.arange(answers.n_answers)),
        "student": ("answer", labels_array(students.typed)[answers.students]),
        "item": ("answer", labels_array(items)[answers.items]),
    }
    return Observation((answers.signs > 0).astype(np.int8), ["answer"], coords)


def log_likelihoods(answers: Answers, gamma: np.ndarray, centre: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Log probability (M, n) of each answer in each of M draws.

    Discriminations gamma and easiness `beta + mu_beta` are (M, K), abilities (M, J).
    """
    found = np.empty((len(alpha), answers.n_answers))
    for rows, logits in _logits(answers, gamma, centre, alpha):
        logits *= answers.signs
        found[rows] = log_sigmoid(np, logits)
    return found


def replicates(
    answers: Answers, gamma: np.ndarray, centre: np.ndarray, alpha: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Other answers (M, n) in place of those given, 1 right and 0 wrong; arguments as of `log_likelihoods`."""
    found = np.empty((len(alpha), answers.n_answers), dtype=np.int8)
    for rows, logits in _logits(answers, gamma, centre, alpha):
        found[rows] = logits > rng.logistic(size=logits.shape)  # with probability 1/(1 + exp(-logit))
    return found


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
