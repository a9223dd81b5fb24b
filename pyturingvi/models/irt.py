"""Item response theory: the two-parameter logistic model of students answering items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyturingvi.errors import InputError, unknown_name
from pyturingvi.layout import Layout
from pyturingvi.models.irt_likelihood import even_part, log_probabilities, signed_sums
from pyturingvi.models.irt_responses import MISSING, column_values, read_responses
from pyturingvi.models.labels import Labels, plain_label
from pyturingvi.models.one_pass import OnePassModel
from pyturingvi.models.parts import LOG_2PI, refuse_outside, take_natural
from pyturingvi.support.array_namespace import Array, address_of, namespace_of

if TYPE_CHECKING:
    from pyturingvi.bridge.runtime import Runtime

_LOG_2 = float(np.log(2.0))
_LOG_T4 = float(np.log(3.0 / 8.0))  # density of Student-t(4) at 0


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
        One row a student, one column an item; 1 right, 0 wrong, NaN (or pandas' NA) missing. A missing cell
        is left out of the likelihood. A DataFrame's columns and index are kept as names.

    Raises
    ------
    InputError
        If the table is not two-dimensional, has fewer than two students or items, holds anything but 0, 1 and
        missing, or has a student or an item without a response.

    Examples
    --------
    >>> model = ItemResponse([[1, 0, 1], [0, 0, float("nan")]])
    >>> model.layout
    Layout(n_global=9, n_local=2, local_dim=1)
    """

    name: ClassVar[str] = "irt"

    def __init__(self, responses: Any) -> None:
        codes, self._students, self._items = read_responses(responses)
        self._set_up(codes)

    def _set_up(self, codes: np.ndarray) -> None:
        # One byte a cell: +1 right, -1 wrong, 0 missing; items first, which is how the sums run.
        signs = np.where(codes == MISSING, 0, 2 * codes - 1).astype(np.int8)
        self._signs = np.ascontiguousarray(signs.T)
        self._complete = bool(self._signs.all())
        self._right_minus_wrong = self._signs.sum(axis=1, dtype=np.float64)
        n_items, n_students = self._signs.shape
        self.layout = Layout(n_global=3 + 2 * n_items, n_local=n_students, local_dim=1)

    @classmethod
    def from_long(cls, df: Any, *, student: str, item: str, response: str) -> ItemResponse:
        """Build the model from one row a response.

        Parameters
        ----------
        df : DataFrame
            Long table. Pairs of student and item that do not occur are missing cells.
        student, item, response : str
            Names of the columns. Students and items keep their order of first appearance.

        Raises
        ------
        InputError
            If a column is absent or there twice, a student or item is missing, a pair occurs twice, or a response is
            not 0, 1 or missing.
        """
        import pandas as pd

        if not isinstance(df, pd.DataFrame):
            raise InputError(f"from_long: df must be a pandas DataFrame, got {type(df).__name__}.")
        for column in (student, item, response):
            if column not in df.columns:
                raise unknown_name("column", column, [str(name) for name in df.columns])
            if list(df.columns).count(column) > 1:
                raise InputError(f"from_long: df has more than one column named {column!r}. Rename the columns.")
        if df.empty:
            raise InputError("from_long: df has no rows.")
        for column in (student, item):
            absent = df[column].isna()
            if absent.any():
                raise InputError(
                    f"from_long: column {column!r} is missing in row {absent.idxmax()!r} "
                    f"({int(absent.sum())} such rows). Fill it in or drop these rows."
                )
        repeats = df.duplicated([student, item])
        if repeats.any():
            first = df.loc[repeats.to_numpy()].iloc[0]
            raise InputError(
                f"from_long: student {plain_label(first[student])!r} answers item "
                f"{plain_label(first[item])!r} more than once "
                f"({int(repeats.sum())} repeated rows). Keep one response a pair, e.g. with drop_duplicates."
            )
        rows, students = pd.factorize(df[student])
        columns, items = pd.factorize(df[item])
        values = column_values(df[response])
        wide = np.full((len(students), len(items)), np.nan, dtype=values.dtype)
        wide[rows, columns] = values
        return cls(pd.DataFrame(wide, index=students, columns=items))

    # ---- names --------------------------------------------------------------------------------------------
    @property
    def n_students(self) -> int:
        """Number J of students."""
        return int(self._signs.shape[1])

    @property
    def n_items(self) -> int:
        """Number K of items."""
        return int(self._signs.shape[0])

    @property
    def responses(self) -> np.ndarray:
        """The (J, K) int8 table: 1 right, 0 wrong, -1 missing."""
        signs = self._signs.T
        return np.where(signs == 0, MISSING, signs > 0).astype(np.int8)

    @property
    def work_per_point(self) -> int:
        """Number of cells J*K where they are visited one by one; a complete table is summed panel by panel."""
        return self.dim if self._complete else int(self._signs.size)

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
        signs = np.ascontiguousarray(self._signs.T)
        return runtime.call(runtime.module.irt_model, address_of(signs), *signs.shape)

    def get_state(self) -> dict[str, Any]:
        return {"responses": self.responses, **self._students.to_state("students"), "items": list(self._items)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ItemResponse:
        model = cls.__new__(cls)
        model._set_up(np.asarray(state["responses"], dtype=np.int8))
        model._students = Labels.from_state(state, "students", model.n_students)
        model._items = list(state["items"])
        return model

    # ---- density ------------------------------------------------------------------------------------------
    def _evaluate(self, points: Array, density: Array | None, out: Array | None) -> None:
        """Fill `density` (M,) and the gradient `out` (M, d), each unless it is None."""
        xp, n_global, n_items = namespace_of(points), self.layout.n_global, self.n_items
        with np.errstate(all="ignore"):
            z = points[:, :n_global].astype(np.float64)
            alpha = points[:, n_global:]
            mu, u_beta, u_gamma = z[:, 0], z[:, 1], z[:, 2]
            log_gamma, beta = z[:, 3 : 3 + n_items], z[:, 3 + n_items :]
            half_gamma, half_centre = xp.exp(log_gamma) / 2, (beta + mu[:, None]) / 2
            (signs,) = self._on(points, signs=self._signs)
            mask = None if self._complete else self._on(points, mask=np.abs(self._signs))[0]
            right_minus_wrong = xp.asarray(self._right_minus_wrong)
            alpha_sums = signed_sums(xp, signs, alpha)
            alpha_out = None
            if out is not None:
                alpha_out = out[:, n_global:]
                alpha_out[...] = half_gamma.astype(points.dtype) @ signs
                alpha_out -= alpha
            logs, moments = even_part(xp, half_gamma, half_centre, alpha, mask, alpha_out, value=density is not None)
            precision_beta, precision_gamma = xp.exp(-2 * u_beta), xp.exp(-2 * u_gamma)
            chi_beta = precision_beta * (beta * beta).sum(axis=1)
            chi_gamma = precision_gamma * (log_gamma * log_gamma).sum(axis=1)
            if out is not None and moments is not None:
                gamma_part = half_gamma * (alpha_sums - moments[:, :, 0])
                beta_part = 0.5 * (right_minus_wrong - moments[:, :, 1])
                out[:, 0] = beta_part.sum(axis=1) - 5 * mu / (4 + mu * mu)
                out[:, 1] = chi_beta - n_items + 1 - 5 / (1 + 4 * precision_beta)
                out[:, 2] = chi_gamma - n_items + 1 - 5 / (1 + 4 * precision_gamma)
                out[:, 3 : 3 + n_items] = gamma_part - precision_gamma[:, None] * log_gamma
                out[:, 3 + n_items : n_global] = beta_part - precision_beta[:, None] * beta
            if density is not None:
                density[...] = (half_gamma * alpha_sums).sum(axis=1) + half_centre @ right_minus_wrong - logs
                density -= 0.5 * (chi_beta + chi_gamma + _squared_norms(xp, alpha))
                self._add_normalizers(density, z, self.n_students)

    def _add_normalizers(self, total: Array, z: Array, n_students: int) -> Array:
        """Add to `total` (M,) the priors of mu_beta and the scales, and what normalizes the normal densities."""
        xp, mu, u_beta, u_gamma = namespace_of(z), z[:, 0], z[:, 1], z[:, 2]
        total -= self.n_items * (u_beta + u_gamma) + (self.n_items + 0.5 * n_students) * LOG_2PI
        total += 3 * _LOG_T4 + 2 * _LOG_2 + u_beta + u_gamma - 2.5 * xp.log1p(mu * mu / 4)
        for u in (u_beta, u_gamma):
            total -= 2.5 * xp.logaddexp(0.0, 2 * u - 2 * _LOG_2)
        return total

    def _log_terms(self, points: Array) -> tuple[Array, Array]:
        xp, n_items = namespace_of(points), self.n_items
        wide = points.astype(np.float64)
        z, alpha = wide[:, : self.layout.n_global], wide[:, self.layout.n_global :]
        log_gamma, beta = z[:, 3 : 3 + n_items], z[:, 3 + n_items :]
        (signs,) = self._on(wide, signs=self._signs)
        with np.errstate(all="ignore"):
            local = log_probabilities(xp, xp.exp(log_gamma), beta + z[:, :1], alpha, signs)
            local -= 0.5 * (alpha * alpha + LOG_2PI)
            squares = xp.stack([(beta * beta).sum(axis=1), (log_gamma * log_gamma).sum(axis=1)], axis=1)
            prior = -0.5 * (xp.exp(-2 * z[:, 1:3]) * squares).sum(axis=1)
            return self._add_normalizers(prior, z, 0), local

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


def _squared_norms(xp: Any, alpha: Array) -> Array:
    """Row sums of squares in float64, a few rows at a time so that no large copy is made."""
    total = xp.empty(alpha.shape[0])
    for m in range(0, alpha.shape[0], 64):
        rows = alpha[m : m + 64].astype(np.float64)
        total[m : m + 64] = xp.einsum("ij,ij->i", rows, rows)
    return total
