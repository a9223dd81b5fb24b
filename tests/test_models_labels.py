"""Labels of rows keep their types, in ArviZ's coordinates and through a file; and tables of Arrow."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.models import ItemResponse, RobustPoisson, StochasticVolatility
from pyturingvi.models.turing_data import read_data

TABLE = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
MODELS: dict[str, Callable[[pd.DataFrame], tv.models.Model]] = {
    "row": lambda table: RobustPoisson(table, pd.Series([0, 1, 2], index=table.index)),
    "student": ItemResponse,
    "time": lambda table: StochasticVolatility(table - 0.5),
}
DAYS = np.array(["2006-05-17", "2006-05-18", "2006-05-19"], dtype="datetime64[ns]")
INDEXES: dict[str, tuple[Any, list[Any], type]] = {
    "days": (pd.DatetimeIndex(DAYS), list(DAYS), np.datetime64),
    "moments": (pd.DatetimeIndex(DAYS + np.timedelta64(7, "ns")), list(DAYS + np.timedelta64(7, "ns")), np.datetime64),
    "python dates": ([datetime.date(2006, 5, 17 + k) for k in range(3)], list(DAYS), np.datetime64),
    "floats": ([0.1, 1 / 3, 1e300], [0.1, 1 / 3, 1e300], float),
    "whole numbers": ([7, 5, 6], [7, 5, 6], int),
    "words": (["a", "0.5", "2006-05-17"], ["a", "0.5", "2006-05-17"], str),
    "days with a zone": (
        pd.DatetimeIndex(DAYS, tz="UTC"), [f"2006-05-{k} 00:00:00+00:00" for k in (17, 18, 19)], str
    ),
}  # fmt: skip


@pytest.mark.parametrize("axis", MODELS)
@pytest.mark.parametrize("case", INDEXES)
def test_an_index_keeps_its_type_also_in_a_file(axis: str, case: str, tmp_path: Path) -> None:
    index, labels, kind = INDEXES[case]
    model = MODELS[axis](pd.DataFrame(TABLE, index=index))
    fit = tv.fit(model, n_iterations=2, elbo_every=2, elbo_samples=8, engine="numpy", progress=False)
    for found in (fit, tv.load_fit(fit.save(tmp_path / "fit.npz"))):
        coordinates = found.model.coords[axis]
        assert coordinates == labels
        assert {type(label) for label in coordinates} == {kind}
        arviz = found.to_arviz(2)["posterior"].coords[axis].values
        assert arviz.dtype.kind == {np.datetime64: "M", float: "f", int: "i", str: "U"}[kind]
        assert (arviz == np.array(labels)).all()


def test_a_file_written_before_labels_had_types_gives_strings() -> None:
    model = StochasticVolatility(pd.DataFrame(TABLE - 0.5, index=DAYS))
    state = model.get_state()
    del state["times_dtype"]
    assert state["times"] == StochasticVolatility.from_state(state).coords["time"]
    assert state["times"][0] == "2006-05-17 00:00:00"
    with pytest.raises(InputError, match="times: needs a list of 3 labels"):
        StochasticVolatility.from_state({**state, "times": ["one"]})


def test_names_of_scalars_show_a_day_without_its_time() -> None:
    model = StochasticVolatility(pd.DataFrame(TABLE - 0.5, columns=["EUR", "JPY"], index=DAYS))
    assert model.scalar_labels("y")[:2] == ["y[2006-05-17,EUR]", "y[2006-05-17,JPY]"]


# ---- tables of Arrow ---------------------------------------------------------------------------------------
class ArrowTable:
    """What a pyarrow Table is to us: `columns` holds arrays, and `column_names` the names."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        self.column_names = list(frame.columns)
        self.columns = [frame[name].to_numpy() for name in frame.columns]

    def to_pandas(self) -> pd.DataFrame:
        return self._frame


def test_a_pyarrow_table_is_taken_as_a_data_frame() -> None:
    frame = pd.DataFrame(TABLE, columns=["a", "b"])
    table = ArrowTable(frame)
    poisson = RobustPoisson(table, ArrowTable(pd.DataFrame({"n": [0, 1, 2]})))
    assert poisson.coords == {"covariate": ["a", "b"], "row": [0, 1, 2]}
    np.testing.assert_array_equal(poisson.X, TABLE)
    np.testing.assert_array_equal(poisson.y, [0, 1, 2])
    assert StochasticVolatility(ArrowTable(frame - 0.5)).series == ["a", "b"]
    assert ItemResponse(table).coords["item"] == ["a", "b"]
    long = pd.DataFrame({"who": [7, 7, 8, 8], "what": [*"abab"], "right": [1, 0, 0, 1]})
    names = {"student": "who", "item": "what", "response": "right"}
    assert ItemResponse.from_long(ArrowTable(long), **names).coords == {"item": ["a", "b"], "student": [7, 8]}
    assert list(read_data(table)) == ["a", "b"]
    with pytest.raises(InputError, match=r"X has 1 entries .*column 'a': NaN"):
        RobustPoisson(ArrowTable(frame.replace(0.0, None)[["a"]]), [0, 1, 2])
