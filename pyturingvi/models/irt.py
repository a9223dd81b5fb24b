"""Item response theory: the two-parameter logistic model of students answering items."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.layout import Layout
from pyturingvi.models.irt_answers import Answers
from pyturingvi.models.irt_data import log_likelihoods, observation, replicates
from pyturingvi.models.irt_long import LongTable, read_long
from pyturingvi.models.irt_new import read_new
from pyturingvi.models.irt_nodes import AbilityIntegrals, grid_for
from pyturingvi.models.irt_responses import read_responses
from pyturingvi.models.irt_scoring import abilities, draw_abilities
from pyturingvi.models.irt_sparse import SparseTable
from pyturingvi.models.irt_tables import ResponseTable, codes_of_signs, table_of_answers, table_of_codes
from pyturingvi.models.labels import Labels
from pyturingvi.models.observed import Observation
from pyturingvi.models.one_pass import OnePassModel
from pyturingvi.models.parts import LOG_2PI, refuse_outside, squared_norms, take_natural
from pyturingvi.priors import HalfStudentT
from pyturingvi.priors.of_model import ScalePriors
from pyturingvi.support.arguments import whole_number
from pyturingvi.support.array_namespace import Array, address_of, namespace_of

if TYPE_CHECKING:
    import pandas as pd

    from pyturingvi.bridge.runtime import Runtime

_LOG_T4 = float(np.log(3.0 / 8.0))  # density of Student-t(4) at 0
_PRIORS = {"s_beta": HalfStudentT(4.0), "s_gamma": HalfStudentT(4.0)}
_BETA = {"easiness": 0.5, "difficulty": -0.5}  # half the sign of beta_k + mu_beta in the logit
_LARGEST_TABLE = 1 << 22  # places: 4 MiB in a file


class ItemResponse(OnePassModel):
    """Two-parameter logistic ("2PL") item response model (paper, "Probabilistic Models and Datasets").

    Student j answers item k rightly with logit `gamma_k*alpha_j + beta_k + mu_beta`. Priors: `mu_beta` is
    Student-t with 4 degrees of freedom, `s_beta` and `s_gamma` are its positive half, `beta_k ~ N(0,
    s_beta)`, `log gamma_k ~ N(0, s_gamma)` and `alpha_j ~ N(0, 1)`; scales are standard deviations. Globals
    in the flat vector: `[mu_beta, log s_beta, log s_gamma, log gamma_1..K, beta_1..K]`; the local of
    student j is `alpha_j`.

    Parameters
    ----------
    responses : (J, K) array, DataFrame or pyarrow Table
        One row a student, one column an item; 1 right, 0 wrong, NaN (or pandas' NA) missing. A missing answer
        is left out of the likelihood. A DataFrame's columns and index are kept as names.
    priors : prior or dict, optional
        `tv.priors` of the standard deviations: one for both, or by name ("s_beta", "s_gamma").
    beta : {"easiness", "difficulty"}
        What `beta_k + mu_beta` is: with "difficulty" it is subtracted in the logit, as in the paper's released code.
        All else is the same, since its priors are symmetric.

    Raises
    ------
    InputError
        If the table is not two-dimensional, has fewer than two students or items, holds anything but 0, 1 and
        missing, or has a student or an item without a response; or if a prior or `beta` is none of the above.

    Examples
    --------
    >>> model = ItemResponse([[1, 0, 1], [0, 0, float("nan")]])
    >>> model.layout
    Layout(n_global=9, n_local=2, local_dim=1)
    """

    name: ClassVar[str] = "irt"

    def __init__(self, responses: Any, *, priors: Any = None, beta: str = "easiness") -> None:
        self._set_options(ScalePriors.read(priors, _PRIORS, "ItemResponse"), beta)
        if isinstance(responses, LongTable):
            answers, self._students, self._items = responses
            self._set_up(table_of_answers(answers))
        else:
            codes, self._students, self._items = read_responses(responses)
            self._set_up(table_of_codes(codes))

    def _set_options(self, priors: ScalePriors, beta: str) -> None:
        if beta not in _BETA:
            raise unknown_name("meaning of beta", beta, _BETA)
        self.priors, self.beta, self._half = priors, beta, _BETA[beta]

    def _set_up(self, table: ResponseTable) -> None:
        self._table = table
        self.layout = Layout(n_global=3 + 2 * table.n_items, n_local=table.n_students, local_dim=1)

    @classmethod
    def from_long(cls, df: Any, *, student: str, item: str, response: str, **options: Any) -> ItemResponse:
        """Build the model from one row a response.

        Parameters
        ----------
        df : DataFrame or pyarrow Table
            Long table. Pairs of student and item that do not occur are missing answers.
        student, item, response : str
            Names of the columns. Students and items keep their order of first appearance.
        **options
            `priors` and `beta`, as of the class.

        Raises
        ------
        InputError
            If a column is absent or there twice, a student or item is missing, a pair occurs twice, or a response is
            not 0, 1 or missing.
        """
        return cls(read_long(df, student, item, response), **options)

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

        if not isinstance(getattr(fit, "model", None), ItemResponse) or fit.model._items != self._items:
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

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def n_students(self) -> int:
        """Number J of students."""
        return self._table.n_students

    @property
    def n_items(self) -> int:
        """Number K of items."""
        return self._table.n_items

    @property
    def n_answers(self) -> int:
        """Number of answers that are not missing."""
        return self._table.n_answers

    @property
    def responses(self) -> np.ndarray:
        """The (J, K) int8 table, made anew: 1 right, 0 wrong, -1 missing."""
        return codes_of_signs(self._table.signs())

    @property
    def work_per_point(self) -> int:
        """Places or answers that are visited one by one; a complete table is summed panel by panel."""
        return self._table.work

    @property
    def global_labels(self) -> list[str]:
        return [
            "mu_beta",
            "log s_beta",
            "log s_gamma",
            *(f"log gamma[{item}]" for item in self._items),
            *(f"beta[{item}]" for item in self._items),
        ]

    @property
    def dims(self) -> dict[str, list[str]]:
        return {
            "mu_beta": [],
            "s_beta": [],
            "s_gamma": [],
            "gamma": ["item"],
            "beta": ["item"],
            "alpha": ["student"],
        }

    @property
    def coords(self) -> dict[str, list[Any]]:
        return {"item": list(self._items), "student": self._students.typed}

    def to_julia(self, runtime: Runtime) -> Any:
        shape = self.n_students, self.n_items
        if isinstance(self._table, SparseTable):
            answers = self._table.answers()
            parts = answers.starts, answers.students, answers.signs
            kinds = np.int64, np.int32, np.int8
            arrays = [np.ascontiguousarray(part, dtype=kind) for part, kind in zip(parts, kinds, strict=True)]
            model = runtime.call(runtime.module.sparse_irt_model, *map(address_of, arrays), *shape)
        else:
            signs = np.ascontiguousarray(self._table.signs().T)
            model = runtime.call(runtime.module.irt_model, address_of(signs), *shape)
        if self.beta == "difficulty":
            model = runtime.call(runtime.module.irt_difficulties, model)
        return self.priors.to_julia(runtime, model, {"s_beta": (2, 2), "s_gamma": (3, 3)})

    def get_state(self) -> dict[str, Any]:
        labels = {**self._students.to_state("students"), "items": list(self._items), **self.priors.to_state()}
        if self.beta != "easiness":
            labels["beta"] = self.beta
        # where a table does not grow large it is what files, and digests, have held from the first version on
        if self.n_students * self.n_items <= _LARGEST_TABLE or not isinstance(self._table, SparseTable):
            return {"responses": self.responses, **labels}
        return {**self._table.answers().to_state(), **labels}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ItemResponse:
        model = cls.__new__(cls)
        model._set_options(ScalePriors.from_state(state, _PRIORS, "ItemResponse"), state.get("beta", "easiness"))
        if "responses" in state:
            model._set_up(table_of_codes(np.asarray(state["responses"], dtype=np.int8)))
        else:
            model._set_up(table_of_answers(Answers.from_state(state)))
        model._students = Labels.from_state(state, "students", model.n_students)
        model._items = list(state["items"])
        return model

    @property
    def _contents(self) -> list[str]:
        return [f"{self.n_students:,} students", f"{self.n_items:,} items", f"{self.n_answers:,} answers"]

    @property
    def numpy_only(self) -> str:
        return " and ".join(self.priors.numpy_only)

    @property
    def unusual(self) -> str:
        priors = "" if self.priors.are_usual else "priors other than the paper's"
        return " and ".join(filter(None, ("" if self.beta == "easiness" else f"beta={self.beta!r}", priors)))

    # ---- density ------------------------------------------------------------------------------------------
    def _evaluate(self, points: Array, density: Array | None, out: Array | None) -> None:
        """Fill `density` (M,) and the gradient `out` (M, d), each unless it is None."""
        xp, n_global, n_items = namespace_of(points), self.layout.n_global, self.n_items
        with np.errstate(all="ignore"):
            z = points[:, :n_global].astype(np.float64)
            alpha = points[:, n_global:]
            mu = z[:, 0]
            log_gamma, beta = z[:, 3 : 3 + n_items], z[:, 3 + n_items :]
            half_gamma, half_centre = xp.exp(log_gamma) / 2, (beta + mu[:, None]) * self._half
            alpha_out = None if out is None else out[:, n_global:]
            on = partial(self._on, points)
            logs, pulls = self._table.evaluate(on, half_gamma, half_centre, alpha, alpha_out, value=density is not None)
            precision = xp.exp(-2 * z[:, 1:3])
            chi = precision * self._squares(z)
            if out is not None and pulls is not None:
                self._global_gradient(z, half_gamma, pulls, precision, chi, out)
            if density is not None:
                density[...] = logs
                density -= 0.5 * (chi.sum(axis=1) + squared_norms(alpha))
                self._add_normalizers(density, z, self.n_students)

    def _global_gradient(
        self, z: Array, half_gamma: Array, pulls: Array, precision: Array, chi: Array, out: Array
    ) -> None:
        """Write the gradient in the globals into `out` (M, d), from the likelihood's pulls and the priors of z."""
        n_global, n_items, mu = self.layout.n_global, self.n_items, z[:, 0]
        log_gamma, beta = z[:, 3 : 3 + n_items], z[:, 3 + n_items :]
        gamma_part, beta_part = half_gamma * pulls[:, :, 0], self._half * pulls[:, :, 1]
        out[:, 0] = beta_part.sum(axis=1) - 5 * mu / (4 + mu * mu)
        out[:, 1:3] = chi - n_items + 1 + self.priors.slope(precision)
        out[:, 3 : 3 + n_items] = gamma_part - precision[:, 1:] * log_gamma
        out[:, 3 + n_items : n_global] = beta_part - precision[:, :1] * beta

    def _add_normalizers(self, total: Array, z: Array, n_students: int) -> Array:
        """Add to `total` (M,) the priors of mu_beta and the scales, and what normalizes the normal densities."""
        xp, mu, u_beta, u_gamma = namespace_of(z), z[:, 0], z[:, 1], z[:, 2]
        p_beta, p_gamma = self.priors["s_beta"], self.priors["s_gamma"]
        total -= self.n_items * (u_beta + u_gamma) + (self.n_items + 0.5 * n_students) * LOG_2PI
        constant = math.fsum((_LOG_T4, p_beta.log_constant, p_gamma.log_constant))
        total += constant + u_beta + u_gamma - 2.5 * xp.log1p(mu * mu / 4)
        for u, prior in ((u_beta, p_beta), (u_gamma, p_gamma)):
            total += prior.log_kernel(u)
        return total

    def _log_terms(self, points: Array) -> tuple[Array, Array]:
        return self._terms_of(points.astype(np.float64), None, None)

    def _log_terms_and_gradient(self, points: Array, weights: Array) -> tuple[Array, Array, Array]:
        wide = points.astype(np.float64)
        gradient = namespace_of(points).empty_like(wide)
        return *self._terms_of(wide, weights, gradient), gradient

    def _global_term(self, z: Array) -> Array:
        with np.errstate(all="ignore"):
            chi = namespace_of(z).exp(-2 * z[:, 1:3]) * self._squares(z)
            return self._add_normalizers(-0.5 * chi.sum(axis=1), z, 0)

    def _on_grid(self, mean: np.ndarray, sd: np.ndarray, size: int | None) -> AbilityIntegrals:
        return AbilityIntegrals(self, grid_for(mean, sd, size))

    def _squares(self, z: Array) -> Array:
        """`sum beta^2` and `sum (log gamma)^2`, (M, 2)."""
        log_gamma, beta = z[:, 3 : 3 + self.n_items], z[:, 3 + self.n_items :]
        return namespace_of(z).stack([(beta * beta).sum(axis=1), (log_gamma * log_gamma).sum(axis=1)], axis=1)

    def _terms_of(self, points: Array, weights: Array | None, out: Array | None) -> tuple[Array, Array]:
        """Global term (M,) and local terms (M, J); with `out` (M, d), the gradient of their weighted sum too."""
        xp, n_global, n_items = namespace_of(points), self.layout.n_global, self.n_items
        z, alpha = points[:, :n_global], points[:, n_global:]
        log_gamma, beta = z[:, 3 : 3 + n_items], z[:, 3 + n_items :]
        with np.errstate(all="ignore"):
            half_gamma, half_centre = xp.exp(log_gamma) / 2, (beta + z[:, :1]) * self._half
            local, slopes, pulls = self._table.terms(partial(self._on, points), half_gamma, half_centre, alpha, weights)
            local -= 0.5 * (alpha * alpha + LOG_2PI)
            precision = xp.exp(-2 * z[:, 1:3])
            chi = precision * self._squares(z)
            if out is not None and pulls is not None:
                self._global_gradient(z, half_gamma, pulls, precision, chi, out)
                out[:, n_global:] = weights * (slopes - alpha)
            return self._add_normalizers(-0.5 * chi.sum(axis=1), z, 0), local

    # ---- data ---------------------------------------------------------------------------------------------
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
        found = np.empty((*alpha.shape, self.n_items), dtype=np.int8)
        for m in range(len(alpha)):
            logits = gamma[m] * alpha[m][:, None] + centre[m]
            found[m] = logits > rng.logistic(size=logits.shape)
        return {"alpha": alpha, "responses": found}

    def _draw_prior(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        found = {"mu_beta": rng.standard_t(4, n), **self.priors.draw(rng, n)}
        with np.errstate(over="ignore"):
            found["gamma"] = np.exp(found["s_gamma"][:, None] * rng.standard_normal((n, self.n_items)))
        found["beta"] = found["s_beta"][:, None] * rng.standard_normal((n, self.n_items))
        return found

    # ---- natural space ------------------------------------------------------------------------------------
    def _constrain_global(self, z: Array) -> dict[str, Array]:
        xp, n_items = namespace_of(z), self.n_items
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return {
                "mu_beta": z[:, 0].copy(),
                "s_beta": xp.exp(z[:, 1]),
                "s_gamma": xp.exp(z[:, 2]),
                "gamma": xp.exp(z[:, 3 : 3 + n_items]),
                "beta": z[:, 3 + n_items : 3 + 2 * n_items].copy(),
            }

    def _constrain_local(self, points: Array) -> dict[str, Array]:
        return {"alpha": points[:, self.layout.n_global :].copy()}

    def _unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        items = (self.n_items,)
        shapes = {"mu_beta": (), "s_beta": (), "s_gamma": (), "gamma": items, "beta": items}
        found = take_natural(values, {**shapes, "alpha": (self.n_students,)}, self.name)
        for name in ("s_beta", "s_gamma", "gamma"):
            refuse_outside(found[name] > 0, self.name, name, "positive")
            found[name] = np.log(found[name])
        return np.column_stack(list(found.values()))
