"""Reading the responses of new students to items that a model knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.models.irt_answers import Answers
from pyturingvi.models.irt_long import read_long
from pyturingvi.models.irt_responses import MISSING, read_table, refuse_silent
from pyturingvi.models.labels import Labels


def read_new(
    responses: Any, items: list[str], columns: tuple[str | None, ...], caller: str, *, silent_allowed: bool = False
) -> tuple[Answers, Labels]:
    """Answers to `items`, some of which may have none, and their students.

    `columns` names the student, the item and the response of a long table, or all are None for a wide one. An
    InputError for what cannot be read, for an item that is not among `items`, and for a student without an answer, whom
    a wide table may hold where `silent_allowed`.
    """
    if any(column is not None for column in columns):
        if not all(isinstance(column, str) for column in columns):
            raise InputError(f"{caller}: a long table needs student=, item= and response=, the names of its columns.")
        student, item, response = (str(column) for column in columns)
        answers, students, found = read_long(responses, student, item, response, least=1, caller=caller)
    else:
        codes, students, found = read_table(responses, least=1)
        if not silent_allowed:
            refuse_silent((codes == MISSING).all(axis=1), "student", students.plain)
        answers = Answers.of_codes(codes)
        if not hasattr(responses, "columns") and not hasattr(responses, "column_names"):
            if len(found) != len(items):
                raise InputError(
                    f"{caller}: an array must have a column for each of the {len(items)} items, in the order of the "
                    f"model; got {len(found)}. A DataFrame may leave items out."
                )
            return answers, students
    places = {name: place for place, name in enumerate(items)}
    for name in found:
        if name not in places:
            raise unknown_name("item", name, items)
    return answers.placed(np.array([places[name] for name in found]), len(items)), students
