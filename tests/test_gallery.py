"""The gallery's table is that of its models, and what is refused is refused still."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

import pyturingvi as tv

pytest.importorskip("numpyro")
GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
sys.path.insert(0, str(GALLERY))

import run  # noqa: E402  (docs/gallery/run.py)

with (GALLERY / "gallery.csv").open(newline="") as file:
    ROWS = {row["name"]: row for row in csv.DictReader(file)}
ENTRIES = {entry.name: entry for entry in run.ENTRIES}
pytestmark = pytest.mark.docs


def test_the_table_has_each_model_once_and_says_where_it_is_from():
    assert list(ROWS) == list(ENTRIES)
    assert len(ENTRIES) >= 30
    for name, entry in ENTRIES.items():
        assert [ROWS[name][column] for column in ("gallery", "source", "data")] == [
            entry.gallery,
            entry.source,
            entry.data,
        ]


def test_every_model_is_fitted_or_refused_with_a_reason():
    for row in ROWS.values():
        if row["status"] == "refused":
            assert row["reason"], row["name"]
        else:
            assert row["structure"], row["name"]
            assert row["verdict"] in ("good", "usable with care", "do not trust"), row["name"]
            assert bool(row["reason"]) is (row["verdict"] != "good"), row["name"]


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row["status"] == "refused"])
def test_what_is_refused_is_refused_with_these_words(name):
    with pytest.raises(tv.errors.InputError) as refusal:
        ENTRIES[name].build()
    assert str(refusal.value) == ROWS[name]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row["status"] != "refused"])
def test_a_model_is_fitted_as_the_table_says(name):
    """ELBOs differ by their noise, and a verdict that is near a bound may fall on its other side."""
    found, row = run.row_of(ENTRIES[name]), ROWS[name]
    assert (str(found["d"]), found["structure"], found["family"]) == (row["d"], row["structure"], row["family"])
    assert found["status"] == row["status"]
    assert found["elbo"] == pytest.approx(float(row["elbo"]), abs=1.0, rel=1e-3)
