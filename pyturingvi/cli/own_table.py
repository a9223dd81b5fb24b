"""A model of a table of one's own, from what the command line says of its columns."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyturingvi.errors import DataError, InputError, unknown_name
from pyturingvi.support.extras import require
from pyturingvi.support.files import as_path

if TYPE_CHECKING:
    import pandas as pd

    from pyturingvi.models.base import Model


# functions in a formula
_OF_NUMBERS = {"scale", "center", "standardize", "poly", "bs", "cs", "cr", "cc"}


@dataclass(frozen=True)
class OwnTable:
    """What is said of the columns; each model takes some of it."""

    response: str | None = None
    covariates: str | None = None
    offset: str | None = None
    student: str | None = None
    item: str | None = None
    prices: str | None = None
    returns: str | None = None
    date: str | None = None

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [name for name, value in asdict(self).items() if value is not None]

    def model(self, path: Path, kind: str, note: Callable[[str], None]) -> Model:
        """The model of a file; `note` is told what was done to the data.

        Raises
        ------
        InputError
            If the kind is unknown, an option is missing or does not go with it, or the table cannot be used.
        DataError
            If the file cannot be read.
        EngineError
            If a formula is given without formulaic.
        """
        if kind not in _KINDS:
            raise unknown_name("--model", kind, _KINDS)
        build, taken = _KINDS[kind]
        for name in self.given:
            if name not in taken:
                raise InputError(f"--{name} does not go with --model {kind}, which takes {_options(taken)}.")
        where = as_path(path, "fit")
        model = build(self, _read(where), where.name, note)
        model.label = where.name.partition(".")[0] or where.name
        return model


def _robust_poisson(said: OwnTable, table: pd.DataFrame, name: str, note: Callable[[str], None]) -> Model:
    from pyturingvi.models import RobustPoisson

    if said.response is None or said.covariates is None:
        raise InputError(
            "--model robust-poisson needs --response and --covariates, a formula such as 'age + C(county)'. "
            f"Columns of {name}: {', '.join(map(str, table.columns))}."
        )
    response = _column(table, said.response, name)
    offset = None if said.offset is None else _column(table, said.offset, name)
    return RobustPoisson(_design(said.covariates, table, name, note), response, offset)


def _item_response(said: OwnTable, table: pd.DataFrame, name: str, note: Callable[[str], None]) -> Model:
    from pyturingvi.models import ItemResponse

    if said.item is not None or said.response is not None:
        if said.student is None or said.item is None or said.response is None:
            raise InputError(
                "--model irt takes a table with a row an answer by --student, --item and --response together, or one "
                "with a row a student and a column an item, with --student alone or without."
            )
        for column in (said.student, said.item, said.response):
            _column(table, column, name)
        return ItemResponse.from_long(table, student=said.student, item=said.item, response=said.response)
    if said.student is not None:
        _column(table, said.student, name)
        table = table.set_index(said.student)
    note(f"{name}: a row a student and a column an item, {len(table):,} by {table.shape[1]}")
    return ItemResponse(table)


def _volatility(said: OwnTable, table: pd.DataFrame, name: str, note: Callable[[str], None]) -> Model:
    from pyturingvi.models import StochasticVolatility
    from pyturingvi.models.volatility_returns import refuse_prices

    if (said.prices is None) == (said.returns is None):
        raise InputError("--model volatility needs --prices or --returns: names of columns with commas between them.")
    wanted = [word.strip() for word in str(said.prices or said.returns).split(",")]
    read, table = table, _by_date(said.date, table, name)
    series = table[[_column(table, word, name).name for word in wanted]]
    for word in wanted:
        if series[word].dtype.kind not in "iuf":
            raise InputError(f"{name}: column {word!r} must hold numbers; {_no_number(read[word])} is none.")
    if said.prices is not None:
        low = (series <= 0).to_numpy()
        if low.any():
            raise InputError(f"{name}: {int(low.sum())} of the prices are not above 0, and have no log returns.")
        series = series.apply(np.log).diff().iloc[1:]
    elif not series.isna().all().any():
        refuse_prices(series.to_numpy(dtype=float), wanted)  # centred, they would no longer show it
    still = int((series == 0).to_numpy().sum())
    if still:
        note(f"{name}: {still} returns of exactly 0, of prices that did not move, are left out as missing")
        series = series.where(series != 0)
    note(f"{name}: {len(series):,} returns of {', '.join(wanted)}, their means taken off")
    return StochasticVolatility(series - series.mean())


_KINDS: dict[str, tuple[Callable[[OwnTable, Any, str, Callable[[str], None]], Model], tuple[str, ...]]] = {
    "robust-poisson": (_robust_poisson, ("response", "covariates", "offset")),
    "irt": (_item_response, ("student", "item", "response")),
    "volatility": (_volatility, ("prices", "returns", "date")),
}


def _options(names: tuple[str, ...]) -> str:
    return ", ".join(f"--{name}" for name in names)


def _read(path: Path) -> pd.DataFrame:
    """A table of comma- or tab-separated values, or of Parquet."""
    import pandas as pd

    if not path.is_file():
        raise DataError(f"There is no file {str(path)!r}.")
    words = [suffix.lower() for suffix in path.suffixes]
    try:
        if words[-1:] == [".parquet"]:
            return pd.read_parquet(path)
        table = pd.read_csv(path, sep="\t" if ".tsv" in words else ",")
    except ImportError as error:
        raise DataError(f"{path}: {error}") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as a table: {str(error).strip()}") from None
    if table.shape[1] == 1 and ";" in str(table.columns[0]):
        raise DataError(
            f"{path}: its columns are divided by semicolons; write it with commas, and decimals with points."
        )
    if table.empty:
        raise DataError(f"{path} has no rows.")
    return table


def _column(table: pd.DataFrame, column: str, name: str) -> pd.Series[Any]:
    if column not in table.columns:
        raise unknown_name(f"column of {name}", column, map(str, table.columns))
    return table[column]


def _no_number(values: pd.Series[Any]) -> str:
    """The first cell of a column of text that is no number, in words."""
    import pandas as pd

    from pyturingvi.models.checks import is_written_number

    odd = (row for row, cell in enumerate(values) if not (pd.isna(cell) or is_written_number(cell)))
    row = next(odd, 0)
    return f"{str(values.iloc[row])!r} in row {row} (counted from 0)"


def _by_date(column: str | None, table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The table in the order of its dates: of the column named, or of a first one that holds nothing else."""
    import pandas as pd

    first = str(table.columns[0])
    chosen = first if column is None else str(_column(table, column, name).name)
    if column is None and pd.api.types.is_numeric_dtype(table[first]):
        return table
    try:
        dates = pd.DatetimeIndex(pd.to_datetime(table[chosen].astype(str), format="ISO8601"), name=chosen)
    except (TypeError, ValueError):
        if column is None:
            return table
        example = table[chosen].iloc[0]
        raise InputError(f"{name}: column {chosen!r} must hold dates like 2024-05-17; {example!s} is none.") from None
    _refuse_dates(dates, f"{name}: column {chosen!r}")
    return table.drop(columns=chosen).set_index(dates).sort_index()


def _refuse_dates(dates: pd.DatetimeIndex, what: str) -> None:
    """Raise InputError for a date that is missing, or there twice: two prices of a day are a jump that was none."""
    missing = np.flatnonzero(dates.isna())
    if missing.size:
        raise InputError(f"{what}: {missing.size} dates are missing, the first in row {missing[0]} (counted from 0).")
    again = dates.duplicated()
    if again.any():
        first = dates[again].min()
        rows = np.flatnonzero(dates == first)
        listed = f"{', '.join(map(str, rows[:-1]))} and {rows[-1]}"
        raise InputError(
            f"{what}: {str(first).removesuffix(' 00:00:00')} stands in rows {listed} (counted from 0); "
            f"{int(again.sum())} rows repeat a date. Keep one row a date, or one series a column."
        )


# ---- formulas ----------------------------------------------------------------------------------------------
def _design(formula: str, table: pd.DataFrame, name: str, note: Callable[[str], None]) -> pd.DataFrame:
    """Columns of a formula without its intercept, which the model has of its own; categories as contrasts."""
    formulaic = require("formulaic", "formula", "--covariates")
    left, tilde, right = formula.partition("~")
    if tilde:
        raise InputError(
            f"--covariates {formula!r}: give the right-hand side only, {right.strip()!r}; the counts are --response"
            f"{f' {left.strip()}' if left.strip() else ''}."
        )
    try:
        parsed = formulaic.Formula(f"1 + {formula}")
        bare = {factor.expr for term in parsed for factor in term.factors}
        scaled = {column for expression in bare for column in _first_arguments(expression)}
        wanted = sorted(set(map(str, parsed.required_variables)) | scaled)
    except Exception as error:  # formulaic's own kinds
        hint = " Join columns with +." if "," in formula else ""
        raise InputError(f"--covariates {formula!r} is no formula: {str(error).splitlines()[0]}{hint}") from None
    for column in wanted:
        _refuse_unusable(_column(table, column, name), name, column in scaled, column in bare)
    table = _with_categories(table, [column for column in wanted if column in bare], name, note)
    try:
        matrix = formulaic.model_matrix(parsed, table, na_action="raise", output="pandas")
    except Exception as error:
        raise InputError(f"--covariates {formula!r}: {str(error).splitlines()[0]}") from None
    found = matrix.drop(columns="Intercept", errors="ignore")
    if not found.shape[1]:
        raise InputError(f"--covariates {formula!r} gives no column beside the intercept.")
    import pandas as pd

    return pd.DataFrame(found.to_numpy(dtype=float), columns=list(map(str, found.columns)), index=table.index)


def _refuse_unusable(values: pd.Series[Any], name: str, scaled: bool, bare: bool) -> None:
    """Raise InputError for a covariate that no model can use: `scaled` inside a function of numbers, or `bare`."""
    column = str(values.name)
    missing, n_different = int(values.isna().sum()), values.nunique()
    if missing:
        raise InputError(f"{name}: column {column!r} is missing in {missing} rows. Fill it in or drop these rows.")
    if n_different == 1:
        raise InputError(
            f"{name}: column {column!r} has one value only, whose effect is the intercept's. Leave it out."
        )
    text = values.dtype.kind not in "iufb"
    if text and scaled and not bare:
        raise InputError(f"{name}: column {column!r} must hold numbers; {_no_number(values)} is none.")
    if text and bare and n_different > len(values) / 2:
        raise InputError(
            f"{name}: column {column!r} is text, {n_different} different ones in {len(values)} rows: a number "
            f"with a unit in it? Make it numbers; or write C({column}) if these are categories."
        )


def _first_arguments(expression: str) -> set[str]:
    """Columns that are called by `scale(x)` and the like, of which formulaic does not tell."""
    try:
        nodes = list(ast.walk(ast.parse(expression)))
    except SyntaxError:  # a name in backticks
        return set()
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in _OF_NUMBERS]
    return {node.args[0].id for node in calls if node.args and isinstance(node.args[0], ast.Name)}


def _with_categories(table: pd.DataFrame, columns: list[str], name: str, note: Callable[[str], None]) -> pd.DataFrame:
    """The table, with columns of codes 1, 2, ... made categories where the user at the keyboard says that they are."""
    for column in columns:
        values = table[column]
        if values.dtype.kind not in "iu":
            continue
        codes = np.unique(values)
        if len(codes) < 3 or codes[0] not in (0, 1) or codes[-1] - codes[0] != len(codes) - 1:
            continue
        what = f"{name}: column {column!r} holds the whole numbers {codes[0]} to {codes[-1]}"
        if _at_keyboard() and _confirm(f"{what}. Are these categories?"):
            table = table.assign(**{column: values.astype("category")})
        else:
            note(f"{what}, and is taken as a number; for categories write C({column})")
    return table


def _at_keyboard() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _confirm(question: str) -> bool:
    import typer

    return typer.confirm(question, err=True)
