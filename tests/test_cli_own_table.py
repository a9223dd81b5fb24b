"""A table of one's own from the command line: what becomes of its columns, what is said of it, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pyturingvi as tv
from pyturingvi import cli
from pyturingvi.cli import own_table
from pyturingvi.cli.own_table import OwnTable
from pyturingvi.errors import EngineError


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    """Files ticks.csv, answers.csv, wide.csv and rates.csv in the current folder, and what they hold."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 60
    ticks = pd.DataFrame(
        {
            "y": rng.poisson(3.0, n),
            "age": rng.normal(40, 10, n).round(3),
            "county": rng.integers(1, 5, n),
            "kind": rng.choice(["red", "hazel", "oak"], n),
            "area": rng.uniform(0.5, 2, n).round(3),
        }
    )
    wide = pd.DataFrame(rng.integers(0, 2, (12, 4)), columns=list("abcd"), index=[f"s{j}" for j in range(12)])
    wide.index.name = "who"
    long = wide.stack().rename_axis(["who", "what"]).rename("right").reset_index()
    rates = pd.DataFrame(
        np.exp(0.01 * rng.normal(size=(40, 2)).cumsum(axis=0)).round(6), columns=["usd", "gbp"],
        index=pd.bdate_range("2024-01-01", periods=40, name="day"),
    )  # fmt: skip
    rates.iloc[7, 0] = rates.iloc[6, 0]
    ticks.to_csv("ticks.csv", index=False)
    wide.to_csv("wide.csv")
    long.to_csv("answers.csv", index=False)
    rates.sample(frac=1, random_state=1).to_csv("rates.csv")
    return {"ticks": ticks, "wide": wide, "answers": long, "rates": rates}


def build(path: str, kind: str, **said: str) -> tuple[tv.models.Model, list[str]]:
    notes: list[str] = []
    return OwnTable(**said).model(Path(path), kind, notes.append), notes


def command(
    *arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["pyturingvi", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def test_a_formula_gives_the_columns_as_by_hand(tables: dict[str, pd.DataFrame]) -> None:
    """Treatment contrasts: the first category has no column, the intercept is the model's own."""
    ticks = tables["ticks"]
    said = {"response": "y", "covariates": "scale(age) + C(county) + kind + age:area", "offset": "area"}
    model, notes = build("ticks.csv", "robust-poisson", **said)
    assert isinstance(model, tv.models.RobustPoisson)
    by_hand = {"scale(age)": (ticks["age"] - ticks["age"].mean()) / ticks["age"].std()}
    by_hand |= {f"C(county)[T.{k}]": ticks["county"] == k for k in (2, 3, 4)}
    by_hand |= {f"kind[T.{k}]": ticks["kind"] == k for k in ("oak", "red")}
    by_hand["age:area"] = ticks["age"] * ticks["area"]
    assert set(model.covariates) == set(by_hand)
    for name, column in zip(model.covariates, model.X.T, strict=True):
        np.testing.assert_allclose(column, np.asarray(by_hand[name], dtype=float), rtol=1e-12)
    np.testing.assert_array_equal(model.y, ticks["y"])
    np.testing.assert_array_equal(model.offset, ticks["area"])
    assert (model.label, notes) == ("ticks", [])


def test_codes_without_a_gap_are_asked_about_at_a_keyboard_and_told_elsewhere(
    tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"response": "y", "covariates": "county + age"}
    model, notes = build("ticks.csv", "robust-poisson", **said)
    assert isinstance(model, tv.models.RobustPoisson)
    assert model.covariates == ["county", "age"]
    assert notes == [
        "ticks.csv: column 'county' holds the whole numbers 1 to 4, and is taken as a number; "
        "for categories write C(county)"
    ]
    asked: list[str] = []
    monkeypatch.setattr(own_table, "_at_keyboard", lambda: True)
    for answer, covariates in (
        (True, ["county[T.2]", "county[T.3]", "county[T.4]", "age"]),
        (False, ["county", "age"]),
    ):
        monkeypatch.setattr(own_table, "_confirm", lambda question, a=answer: (asked.append(question), a)[1])
        model, _ = build("ticks.csv", "robust-poisson", **said)
        assert isinstance(model, tv.models.RobustPoisson)
        assert sorted(model.covariates) == sorted(covariates)
    assert asked == ["ticks.csv: column 'county' holds the whole numbers 1 to 4. Are these categories?"] * 2


def test_answers_come_in_rows_or_in_columns(tables: dict[str, pd.DataFrame]) -> None:
    long, _ = build("answers.csv", "irt", student="who", item="what", response="right")
    wide, notes = build("wide.csv", "irt", student="who")
    for model in (long, wide):
        assert isinstance(model, tv.models.ItemResponse)
        np.testing.assert_array_equal(model.responses, tables["wide"])
        assert model.coords == {"item": list("abcd"), "student": [f"s{j}" for j in range(12)]}
    assert notes == ["wide.csv: a row a student and a column an item, 12 by 4"]


def test_prices_become_centred_returns_in_the_order_of_time(tables: dict[str, pd.DataFrame]) -> None:
    model, notes = build("rates.csv", "volatility", prices="gbp, usd")
    rates = tables["rates"][["gbp", "usd"]].to_numpy()
    returns = np.log(rates[1:] / rates[:-1])
    returns[returns == 0] = np.nan
    assert isinstance(model, tv.models.StochasticVolatility)
    np.testing.assert_allclose(model.returns, returns - np.nanmean(returns, axis=0), atol=1e-15)
    assert model.coords["time"] == list(tables["rates"].index[1:].to_numpy())
    assert "1 returns of exactly 0" in notes[0]
    table = pd.DataFrame(returns, columns=["gbp", "usd"], index=tables["rates"].index[1:])
    table.to_csv("returns.tsv", sep="\t")
    same, _ = build("returns.tsv", "volatility", returns="gbp,usd", date="day")
    assert isinstance(same, tv.models.StochasticVolatility)
    np.testing.assert_allclose(same.returns, model.returns, atol=1e-15)


def test_a_fit_that_has_converged_ends_with_code_0(
    tables: dict[str, pd.DataFrame], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results on standard output, all else on standard error; a budget that is used up is code 1."""
    words = ["fit", "ticks.csv", "--model", "robust-poisson", "--response", "y", "--covariates", "scale(age) + kind"]
    code, shown, notes = command(*words, "--no-plot", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0, notes
    assert "beta[kind[T.red]]" in shown
    assert "pyturingvi: ticks, d=67: using the" in notes
    assert "wrote" in notes
    assert not any(word in shown for word in ("wrote", "using the", "it/s"))
    fit = tv.load_fit("ticks-structured.npz")
    assert (fit.status, fit.model.label) == ("converged", "ticks")
    code, _, notes = command(
        *words, "--no-plot", "--iterations", "5", "--quiet", capsys=capsys, monkeypatch=monkeypatch
    )
    assert code == 1
    assert "completed: 5 updates made without converging" in notes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("ticks.csv", "'ticks.csv' is a file: say what to fit to it, by --model"),
        ("rpoisson-small --response y", "--response goes with a table of your own: say by --model"),
        ("ticks.csv --model poisson", "Did you mean 'robust-poisson'?"),
        ("ticks.csv --model robust-poisson", "Columns of ticks.csv: y, age, county, kind, area"),
        ("ticks.csv --model robust-poisson --response y --covariates agee", "Unknown column of ticks.csv 'agee'"),
        ("ticks.csv --model robust-poisson --response yy --covariates age", "Unknown column of ticks.csv 'yy'"),
        ("ticks.csv --model robust-poisson --response y --covariates age+", "is no formula"),
        (
            "ticks.csv --model robust-poisson --response y --covariates nothing(age)",
            "Unknown column of ticks.csv 'nothing'",
        ),
        ("ticks.csv --model robust-poisson --response y --covariates 1", "gives no column beside the intercept"),
        ("ticks.csv --model robust-poisson --response age --covariates area", "fractional"),
        ("ticks.csv --model robust-poisson --response y --covariates age --student kind", "--student does not go with"),
        ("ticks.csv --model robust-poisson --response y --covariates age:C(kind,what=1)", "--covariates 'age:C(kind"),
        ("ticks.csv --model robust-poisson --response y --covariates age --simulated", "go with the name of a problem"),
        ("answers.csv --model irt --student who --item what", "--student, --item and --response together"),
        ("answers.csv --model irt --student who --item what --response who", "not a number"),
        ("rates.csv --model volatility", "needs --prices or --returns"),
        ("rates.csv --model volatility --prices usd --date gbp", "must hold dates"),
        (
            "twice.csv --model volatility --prices usd",
            "'day': 2024-01-01 stands in rows 1 and 3 (counted from 0)",
        ),
        ("undated.csv --model volatility --prices usd", "1 dates are missing, the first in row 1 (counted from 0)"),
        ("rates.csv --model volatility --prices day", "Unknown column of rates.csv 'day'"),
        ("ticks.csv --model volatility --prices kind", "must hold numbers"),
        ("ticks.csv --model volatility --prices y", "are not above 0"),
        ("rates.csv --model volatility --returns usd", "never changes its sign"),
        (
            "ticks.csv --model robust-poisson --response y --covariates scale(agee)",
            "Unknown column of ticks.csv 'agee'",
        ),
        ("ticks.csv --model robust-poisson --response y --covariates scale(kind)", "column 'kind' must hold numbers"),
        (
            "ticks.csv --model robust-poisson --response y --covariates y~age",
            "give the right-hand side only, 'age'",
        ),
        ("cells.csv --model robust-poisson --response y --covariates age", "'many' in row 3 (counted from 0)"),
        (
            "cells.csv --model robust-poisson --response age --covariates scale(y)",
            "'many' in row 3",
        ),
        ("cells.csv --model volatility --prices y", "'many' in row 3"),
        ("ticks.csv --model robust-poisson --response y --covariates age,county", "Join columns with +"),
        ("odd.csv --model robust-poisson --response y --covariates one+x", "column 'one' has one value only"),
        ("odd.csv --model robust-poisson --response y --covariates scale(one)", "column 'one' has one value only"),
        ("odd.csv --model robust-poisson --response y --covariates text", "is text, 4 different ones in 4 rows"),
        ("gaps.csv --model robust-poisson --response y --covariates scale(age)", "column 'age' is missing in 1 rows"),
        ("none.csv --model irt", "There is no file"),
        ("semicolons.csv --model irt", "divided by semicolons"),
        ("binary.csv --model irt", "cannot be read as a table"),
        ("gaps.csv --model robust-poisson --response y --covariates age", "column 'age' is missing in 1 rows"),
    ],
)
def test_a_mistake_is_one_line_with_code_2(
    tables: dict[str, pd.DataFrame],
    arguments: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("semicolons.csv").write_text("a;b\n1;0\n")
    Path("binary.csv").write_bytes(b"\xff\xfe\x00")
    Path("gaps.csv").write_text("y,age\n1,2.5\n2,\n")
    Path("odd.csv").write_text("y,one,x,text\n1,1,2.5,1 m\n2,1,3.5,2 m\n0,1,1.5,3 m\n4,1,0.5,4 m\n")
    Path("cells.csv").write_text("y,age\n2,25\n1,30\n0,41\nmany,50\n3,33\n")
    days = "day,usd\n2024-01-02,1.1\n{},1.0\n2024-01-03,1.2\n2024-01-01,1.3\n2024-01-04,1.1\n"
    Path("twice.csv").write_text(days.format("2024-01-01"))  # the first day: it has no return that would show it
    Path("undated.csv").write_text(days.format(""))
    before = sorted(Path().iterdir())
    code, shown, notes = command("fit", *arguments.split(), capsys=capsys, monkeypatch=monkeypatch)
    assert (code, shown) == (2, "")
    assert words in notes
    assert notes.startswith("Error: ")
    assert len(notes.strip().splitlines()) == 1
    assert sorted(Path().iterdir()) == before


def test_without_formulaic_the_extra_is_named(tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(EngineError, match=r"--covariates needs formulaic.*pip install 'pyturingvi\[formula\]'"):
        build("ticks.csv", "robust-poisson", response="y", covariates="age")


def test_the_version_is_told() -> None:
    done = subprocess.run([sys.executable, "-m", "pyturingvi", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pyturingvi {tv.__version__}\n"
