"""The figures' CSV files: one that cannot be used is told in one line, and an interruption leaves whole ones."""

import dataclasses
import errno
import os
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pyturingvi.errors import DataError, InputError, OutputError
from pyturingvi.reproduce import realistic, realistic_tables, table1, theory
from pyturingvi.reproduce.figure import Job, figure_named, reproduce
from pyturingvi.reproduce.tables import read_table

RESULTS = Path(__file__).parent.parent / "experiments" / "results"
# figure -> preset of the committed files, parts, a column of numbers in the last of them
FILES = {
    "table1": ("paper", ["counts"], "ours"),
    "synthetic": ("paper", ["runs"], "stepsize"),
    "theory": ("paper", [*theory.PARTS], "y"),
    "stepsize": ("laptop", ["elbo"], "n_iterations"),
    "trace": ("laptop", ["elbo"], "n"),
    "beyond": ("laptop", ["fits"], "n_updates"),
}
ALL = pytest.mark.parametrize("figure", FILES)


def committed(figure, folder):
    """The figure's job in a folder, with the committed files of what it computes."""
    preset, parts, _ = FILES[figure]
    job = Job(figure, preset, folder)
    if figure == "table1":
        table1.compute(job)
    else:
        for part in parts:
            shutil.copy(RESULTS / job.file(part).name, folder)
    return job


# ---- arguments ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("figure", "arguments", "words"),
    [
        ("table1", {"engine": "jula"}, "julia"),
        ("stepsize", {"engine": None}, "engine"),
        ("synthetic", {"n_workers": 0}, r"n_workers \(--workers\) must be a whole number of at least 1, got 0"),
        ("theory", {"n_workers": 1.5}, r"n_workers \(--workers\).*1\.5"),
        ("trace", {"n_workers": 10**9}, r"n_workers \(--workers\) must be at most"),
        ("table1", {"n_workers": 2}, r"n_workers \(--workers\) goes with the other figures"),
        ("table1", {"cells": "x"}, r"cells \(--cells\) goes with synthetic and stepsize and trace, not with table1"),
        (
            "theory",
            {"data_dir": "x"},
            r"data_dir \(--data-dir\) goes with stepsize and trace and beyond, not with theory",
        ),
        ("stepsize", {"data_dir": "x"}, r"data_dir \(--data-dir\) goes with the preset 'paper'; 'quick' has no"),
    ],
)
def test_what_cannot_be_or_would_have_no_effect_is_refused_before_anything_is_made(figure, arguments, words, tmp_path):
    with pytest.raises(InputError, match=words):
        reproduce(figure, "quick", tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@ALL
def test_a_figure_writes_the_files_that_it_says_and_each_is_tried_before_work_starts(figure, tmp_path, monkeypatch):
    described, preset = figure_named(figure), committed(figure, tmp_path).preset
    assert [f"{part}.csv" for part in FILES[figure][1]] == list(described.computed)
    reproduce(figure, preset, tmp_path, from_csv=True)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {f"{figure}_{preset}_{name}" for name in [*described.computed, *described.reported]}
    for name in [*described.computed, *described.reported]:
        path = tmp_path / f"{figure}_{preset}_{name}"
        path.unlink()
        path.mkdir()
        never = dataclasses.replace(described, compute=lambda job: pytest.fail("work was started"))
        monkeypatch.setattr("pyturingvi.reproduce.figure.figure_named", lambda name, never=never: never)
        with pytest.raises(OutputError, match=f"{re.escape(str(path))}.* is a directory"):
            reproduce(figure, preset, tmp_path)
        path.rmdir()


# ---- damage -------------------------------------------------------------------------------------------------
@ALL
def test_a_word_among_numbers_is_told_in_one_line_with_what_to_do(figure, tmp_path):
    preset, parts, column = FILES[figure]
    path = committed(figure, tmp_path).file(parts[-1])
    lines = [line.split(",") for line in path.read_text().splitlines()]
    lines[2][lines[0].index(column)] = "word"
    path.write_text("".join(",".join(line) + "\n" for line in lines))
    with pytest.raises(DataError) as caught:
        reproduce(figure, preset, tmp_path, from_csv=True)
    assert str(caught.value) == (
        f"{path}: has word as {column} in line 3, where a number is expected. Move it away and compute it again: "
        f"pyturingvi reproduce {figure} --preset {preset} --out {shlex.quote(str(tmp_path))}"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read as a CSV file"),
        (b"\x89PNG\r\n\xff\x00" * 50, "cannot be read as a CSV file"),
        (b'a,b\n1,2\n1,"2\n', "cannot be read as a CSV file"),
        (b"a,y\n1,2\n", r"lacks the column\(s\) x"),
        (b"x,y\n", "has no rows yet"),
        (b"x,y\nTrue,1\n", "has True as x in line 2"),
        (b"x,y\n1,1\n,1\n1.2.3,1\n", r"has 1\.2\.3 as x in line 4"),
    ],
    ids=["empty", "binary", "quote", "column", "header", "flag", "word"],
)
def test_a_file_that_is_no_table_of_the_columns_is_told_with_what_is_wrong(content, words, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.csv: {words}.*\. Move it away and compute it again: make it") as caught:
        read_table(tmp_path / "a.csv", "make it", ["y"], ["x"])
    assert "\n" not in str(caught.value)


def test_numbers_may_be_infinite_or_not_there(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n-inf,word\n,word\n2,\n")
    read = read_table(tmp_path / "a.csv", "make it", ["y"], ["x"])
    np.testing.assert_array_equal(read.x, [-np.inf, np.nan, 2.0])


def test_a_diverged_fit_may_be_without_an_elbo_and_a_band_at_minus_infinity(tmp_path):
    for figure in ("stepsize", "trace"):
        cut(tmp_path, figure, "laptop", lambda table: table[table.problem == "rpoisson-small"])
    elbo = pd.read_csv(tmp_path / "stepsize_laptop_elbo.csv")
    elbo.loc[0, ["elbo", "std_error", "elbo_5000", "std_error_5000"]] = np.nan
    elbo.loc[0, ["status", "n_updates"]] = ["diverged", 70]
    elbo.to_csv(tmp_path / "stepsize_laptop_elbo.csv", index=False)
    assert "1 diverged" in reproduce("stepsize", "laptop", tmp_path, from_csv=True)
    trace = pd.read_csv(tmp_path / "trace_laptop_elbo.csv")
    first = trace[["problem", "family", "stepsize"]].eq(trace.loc[0, ["problem", "family", "stepsize"]]).all(axis=1)
    trace.loc[first, ["median", "q10", "q90", "diverged"]] = [-np.inf, -np.inf, -np.inf, 4]
    trace.to_csv(tmp_path / "trace_laptop_elbo.csv", index=False)
    assert "diverged in 4 of 4 replications" in reproduce("trace", "laptop", tmp_path, from_csv=True)


# ---- how much is there --------------------------------------------------------------------------------------
def cut(folder, figure, preset, keep, name="laptop"):
    """A committed table under a preset's name, with some of its rows alone."""
    frame = pd.read_csv(RESULTS / f"{figure}_{name}_elbo.csv")
    keep(frame).to_csv(folder / f"{figure}_{preset}_elbo.csv", index=False)


@pytest.mark.usefixtures("undrawn")
def test_fits_that_the_table_does_not_name_are_missing_too(tmp_path):
    cut(tmp_path, "stepsize", "laptop", lambda f: f[f.status == "completed"][:24])
    # rpoisson and volatility, two sizes, two families, six stepsizes, four seeds; irt 2 x 3 x 2; full-rank 2 x 6 x 2
    assert 2 * 2 * 2 * 6 * 4 + 2 * 3 * 2 + 2 * 6 * 2 == 228
    assert "24 of 228 fits are there, 204 missing" in reproduce("stepsize", "laptop", tmp_path, from_csv=True)
    cut(tmp_path, "trace", "laptop", lambda f: f[(f.problem == "rpoisson-small") & (f.family != "full-rank")])
    said = reproduce("trace", "laptop", tmp_path, from_csv=True).splitlines()[0]
    # traces have three stepsizes
    assert said.startswith("24 of 120 fits are there; rpoisson-small: 3 of 9 curves are missing; rpoisson-middle: 6 of")
    assert "volatility-small: 9 of 9 curves are missing" in said


def test_the_papers_full_rank_fits_may_come_from_a_machine_with_more_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(realistic, "available_memory", lambda: 10**6)
    # nine problems, six stepsizes, eight seeds; full-rank on the six that the paper has it on
    assert sum(realistic_tables.expected(Job("stepsize", "paper", tmp_path)).values()) == (9 * 2 + 6) * 6 * 8


# ---- interruptions ------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("undrawn")
def test_files_are_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    def interrupted(*paths):
        raise KeyboardInterrupt

    fits = SimpleNamespace(status="complete", counts={"failed": 0})
    table = pd.DataFrame({"status": ["completed"]})
    writes = {
        "table1_quick_counts.csv": lambda: table1.compute(Job("table1", "quick", tmp_path)),
        "stepsize_laptop_claims.csv": lambda: reproduce("stepsize", "laptop", tmp_path, from_csv=True),
        "synthetic_paper_points.csv": lambda: reproduce("synthetic", "paper", tmp_path, from_csv=True),
        "trace_quick_elbo.csv": lambda: realistic_tables.write(Job("trace", "quick", tmp_path), fits, table),
    }
    for figure in ("stepsize", "synthetic"):
        committed(figure, tmp_path)
    for name in writes:
        (tmp_path / name).write_text("old\n")
    monkeypatch.setattr("pyturingvi.support.files.os.replace", interrupted)
    for name, write in writes.items():
        with pytest.raises(KeyboardInterrupt):
            write()
        assert (tmp_path / name).read_text() == "old\n", name
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.usefixtures("undrawn")
def test_pictures_are_replaced_whole_or_not_at_all_and_let_go_of(tmp_path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")

    def interrupted(self, target, **settings):
        if isinstance(target, str | os.PathLike):
            Path(target).write_bytes(b"half")
        else:
            target.write(b"half")
        raise KeyboardInterrupt

    committed("theory", tmp_path)
    pictures = [tmp_path / path.name for path in RESULTS.glob("theory_*.png")]
    open_before = plt.get_fignums()
    reproduce("theory", "paper", tmp_path, from_csv=True)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert plt.get_fignums() == open_before
    for path in pictures:
        path.write_bytes(b"old")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce("theory", "paper", tmp_path, from_csv=True)
    assert pictures
    assert {path.read_bytes() for path in pictures} == {b"old"}
    assert plt.get_fignums() == open_before
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.usefixtures("undrawn")
def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def full(*paths):
        raise OSError(errno.ENOSPC, "No space left on device")

    committed("trace", tmp_path)
    monkeypatch.setattr("pyturingvi.support.files.os.fsync", full)
    with pytest.raises(OutputError, match=r"table1_quick_counts\.csv: cannot be written: No space left on device"):
        reproduce("table1", out=tmp_path)
    with pytest.raises(OutputError, match=r"trace_laptop_elbo\.png: cannot be written: No space left on device"):
        reproduce("trace", "laptop", tmp_path, from_csv=True)
