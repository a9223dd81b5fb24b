"""Tables of responses and points for the tests of the item response model."""

import numpy as np

from pyturingvi.models.irt import ItemResponse
from pyturingvi.models.irt_answers import Answers
from pyturingvi.models.irt_sparse import SparseTable
from pyturingvi.models.irt_tables import DenseTable


def make_table(n_students, n_items, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    table = (rng.random((n_students, n_items)) < 0.6).astype(float)
    if missing:
        lost = rng.random(table.shape) < missing
        # A student and an item keep one answer each, else the table is refused.
        lost[np.arange(n_students), np.arange(n_students) % n_items] = False
        lost[np.arange(n_items) % n_students, np.arange(n_items)] = False
        table[lost] = np.nan
    return table


def make_points(model, n, seed=1, spread=0.7):
    return spread * np.random.default_rng(seed).standard_normal((n, model.dim))


def make_sparse_table(n_students, n_items, share, seed=0):
    """A table with about this share of its cells answered, no student and no item without an answer."""
    return make_table(n_students, n_items, seed, missing=1.0 - share)


def both_forms(table):
    """A model that keeps its answers as a list, and one of the same answers that keeps a table of all cells."""
    listed, whole = ItemResponse(table), ItemResponse(table)
    listed._set_up(SparseTable(Answers.of_codes(whole.responses)))
    whole._set_up(DenseTable(listed.responses))
    return listed, whole
