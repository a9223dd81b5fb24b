"""What an item response model says of answers: those it was fitted to, new ones, and the abilities of new students."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import InputError
from pyturingvi.models.irt_data import log_likelihoods, observation, replicates
from pyturingvi.models.irt_new import read_new
from pyturingvi.models.irt_scoring import abilities, draw_abilities
from pyturingvi.models.labels import Labels
from pyturingvi.models.observed import Observation
from pyturingvi.models.one_pass import OnePassModel
from pyturingvi.support.arguments import whole_number

if TYPE_CHECKING:
    import pandas as pd

    from pyturingvi.models.irt_tables import ResponseTable


class Answering(OnePassModel):
    """The part of an `ItemResponse` that speaks of answers."""

    _table: ResponseTable
    _students: Labels
    _items: list[Any]
    _half: float

    def score(
        self,
        fit: Any,
        responses: Any,
        *,
        student: str | None = None,
        item: str | None = None,
        response: str | None = None,
        n_draws: int = 0,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Abilities of new students, with the items as `fit` has them: expected a posteriori (EAP) scores.

        A student's ability has the prior N(0, 1) of the model, and its posterior given the items is integrated by
        quadrature: nothing is fitted, and students do not change each other's scores. The items stay what the fit
        made of them; new answers do not move them.

        Parameters
        ----------
        fit : Fit
            Of this model, or of one with the same items.
        responses : (J, K) array, DataFrame or pyarrow Table
            As in `ItemResponse`; one student is enough. Columns of a DataFrame are the names of items, in any order,
            and items that were not given may be left out; an array has all K items in the order of the model.
        student, item, response : str, optional
            Names of the columns, where `responses` is a long table, one row a response.
        n_draws : int
            0 fixes the items at the fit's location: `log gamma`, `beta` and `mu_beta` at their means. From 2 on, the
            posterior is averaged over as many draws of the items from the fit, so that `sd` has their uncertainty.
        seed : int
            Of these draws.

        Returns
        -------
        DataFrame
            One row a student, under its label; columns mean and sd of the posterior, and n_answers.

        Raises
        ------
        InputError
            If the fit is of other items, a table is none that `ItemResponse` could read, has an item that the model
            has not, or a student without an answer, for whom the prior would be all there is.
        """
        import pandas as pd

        if not isinstance(getattr(fit, "model", None), Answering) or fit.model._items != self._items:
            what = f"a fit of {fit.model!r}" if hasattr(fit, "model") else repr(fit)
            raise InputError(f"score: fit must be a fit of this model or of one with the same items, got {what}.")
        n_draws = whole_number("n_draws", n_draws, 0)
        if n_draws == 1:
            raise InputError("score: n_draws must be 0 (items fixed) or at least 2, got 1.")
        answers, students = read_new(responses, self._items, (student, item, response), "score")
        location = self.constrain_global(fit.location[: self.layout.n_global])
        items = fit.sample(n_draws, seed, local=False) if n_draws else location
        mean, sd = abilities(answers, items["gamma"], self._intercepts(items))
        columns = {"mean": mean, "sd": sd, "n_answers": np.bincount(answers.students)}
        return pd.DataFrame(columns, index=pd.Index(students.typed, name="student"))

    def _observations(self) -> dict[str, Observation]:
        return {"responses": observation(self._table.answers(), self._students, self._items)}

    def _log_likelihood(self, points: np.ndarray) -> dict[str, np.ndarray]:
        return {"responses": log_likelihoods(self._table.answers(), *self._abilities_and_items(points))}

    def _replicate(self, points: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"responses": replicates(self._table.answers(), *self._abilities_and_items(points), rng)}

    def _abilities_and_items(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = self._constrain_global(points[:, : self.layout.n_global])
        return found["gamma"], self._intercepts(found), points[:, self.layout.n_global :]

    def _intercepts(self, items: Mapping[str, np.ndarray]) -> np.ndarray:
        """What is added to `gamma_k alpha_j` in the logit, (M, K)."""
        centre: np.ndarray = items["beta"] + items["mu_beta"][:, None]
        return centre if self._half > 0 else -centre

    def _predict(
        self,
        points: np.ndarray,
        new: Any,
        rng: np.random.Generator,
        student: str | None = None,
        item: str | None = None,
        response: str | None = None,
    ) -> dict[str, np.ndarray]:
        answers, _ = read_new(new, self._items, (student, item, response), "predict", silent_allowed=True)
        gamma, centre, _ = self._abilities_and_items(points)
        alpha = draw_abilities(answers, gamma, centre, rng)
        found = np.empty((*alpha.shape, len(self._items)), dtype=np.int8)
        for m in range(len(alpha)):
            logits = gamma[m] * alpha[m][:, None] + centre[m]
            found[m] = logits > rng.logistic(size=logits.shape)
        return {"alpha": alpha, "responses": found}
