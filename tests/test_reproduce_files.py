"""The figures' CSV files: damaged ones are told in one line, and an interruption leaves whole ones."""

import dataclasses
import errno
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest
from test_cli import run

from pyturingvi.errors import DataError, InputError, OutputError
from pyturingvi.reproduce import realistic, table1, theory
from pyturingvi.reproduce.figure import Job, figure_named, reproduce
from pyturingvi.reproduce.synthetic import plan, runs
from pyturingvi.reproduce.synthetic.plan import Run
from pyturingvi.reproduce.synthetic.problem import Reached
from pyturingvi.reproduce.tables import Table, read_table

RESULTS = Path(__file__).parent.parent / "experiments" / "results"
# figure -> preset of the committed files, parts, a part with a column of numbers and values that cannot be in it
FILES = {
    "table1": ("paper", ["counts"], "counts", "ours", ["0", "-3", "1.5"]),
    "synthetic": ("paper", ["runs"], "runs", "stepsize", ["0", "-0.1", "inf", "0.3"]),
    "theory": ("paper", [*theory.PARTS], "complexity", "stepsize", ["0", "-1", "inf"]),
    "stepsize": ("laptop", ["elbo"], "elbo", "n_iterations", ["0", "-5", "2.5"]),
    "trace": ("laptop", ["elbo"], "elbo", "n", ["0", "-1", "inf"]),
}
ALL = pytest.mark.parametrize("figure", FILES)


@pytest.fixture
def damaged(tmp_path):
    """Copies a figure's files, has one changed, and returns the message of the error that comes of it."""

    def message(figure, change, part=None):
        preset, parts, numeric, *_ = FILES[figure]
        job = Job(figure, preset, tmp_path)
        if figure == "table1":
            table1.compute(job)
        else:
            for name in parts:
                shutil.copy(RESULTS / job.file(name).name, job.file(name))
        path = job.file(part or numeric)
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(DataError) as caught:
            reproduce(figure, preset, tmp_path, from_csv=True)
        said = str(caught.value)
        assert str(path) in said
        assert f"pyturingvi reproduce {figure} --preset {preset} --out {shlex.quote(str(tmp_path))}" in said
        assert "\n" not in said
        return said

    return message


def edited(change):
    """A change of the file's table, as one of its bytes."""

    def of_bytes(content):
        lines = [line.split(",") for line in content.decode().splitlines()]
        change(lines)
        return "".join(",".join(line) + "\n" for line in lines).encode()

    return of_bytes


# ---- arguments ----------------------------------------------------------------------------------------------
@ALL
@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("engine", "jula", "julia"),
        ("engine", None, "engine"),
        ("n_workers", 0, r"n_workers \(--workers\) must be a whole number of at least 1, got 0"),
        ("n_workers", -1, r"n_workers \(--workers\).*-1"),
        ("n_workers", 1.5, "n_workers"),
    ],
)
def test_engine_and_workers_are_refused_before_anything_is_made(figure, argument, value, words, tmp_path):
    with pytest.raises(InputError, match=words):
        reproduce(figure, "quick", tmp_path / "out", **{argument: value})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("figure", "preset", "arguments", "words"),
    [
        ("table1", "quick", {"cells": "x"}, r"cells \(--cells\) goes with stepsize and trace, not with table1"),
        (
            "theory",
            "quick",
            {"data_dir": "x"},
            r"data_dir \(--data-dir\) goes with stepsize and trace, not with theory",
        ),
        ("table1", "quick", {"n_workers": 2}, r"n_workers \(--workers\) goes with the other figures"),
        (
            "stepsize",
            "quick",
            {"data_dir": "x"},
            r"data_dir \(--data-dir\) goes with the preset 'paper'; 'quick' has no",
        ),
        ("synthetic", "quick", {"n_workers": 10**9}, r"n_workers \(--workers\) must be at most"),
    ],
)
def test_what_would_have_no_effect_is_refused(figure, preset, arguments, words, tmp_path):
    with pytest.raises(InputError, match=words):
        reproduce(figure, preset, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@ALL
def test_a_figure_writes_the_files_that_it_says_and_each_is_tried_before_work_starts(figure, tmp_path, monkeypatch):
    preset, parts, *_ = FILES[figure]
    described, job = figure_named(figure), Job(figure, preset, tmp_path)
    assert [f"{part}.csv" for part in parts] == list(described.computed)
    if figure == "table1":
        described.compute(job)
    for path in RESULTS.glob(f"{figure}_{preset}_*.csv"):
        if path.stem.removeprefix(f"{figure}_{preset}_") in parts:
            shutil.copy(path, tmp_path)
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
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: b"", "is empty"),
        (lambda content: b"\x89PNG\r\n\xff\x00" * 50, "cannot be read as a CSV file"),
        (lambda content: b'a,b\n1,2\n1,"2\n', "cannot be read as a CSV file"),
        (lambda content: b"a,b\n1,2,3\n", "more fields than its header"),
        (lambda content: content.splitlines(keepends=True)[0], "has no rows yet"),
        (lambda content: content[:-4], "ends in the middle of a line"),
        (lambda content: content + content.splitlines(keepends=True)[-1], "two rows of"),
    ],
    ids=["empty", "binary", "quote", "fields", "header", "cut", "twice"],
)
def test_a_damaged_file_is_told_with_what_is_wrong_and_what_to_do(figure, change, words, damaged):
    assert words in damaged(figure, change)


@ALL
def test_a_column_that_is_missing_is_named(figure, damaged):
    _, _, _, column, _ = FILES[figure]

    def drop(lines):
        place = lines[0].index(column)
        for line in lines:
            del line[place]

    assert f"lacks the column(s) {column}" in damaged(figure, edited(drop))


@pytest.mark.parametrize(
    ("figure", "value"),
    [(figure, value) for figure, (*_, values) in FILES.items() for value in [*values, "", "nan", "word", "True"]],
)
def test_a_value_that_cannot_be_is_told_with_its_column(figure, value, damaged):
    _, _, _, column, _ = FILES[figure]

    def change(lines):
        lines[2][lines[0].index(column)] = value

    said = damaged(figure, edited(change))
    assert column in said
    if value != "0.3":  # a stepsize in itself, but not one of the figure's
        assert "in line 3" in said


@pytest.mark.parametrize("part", theory.PARTS)
def test_every_part_of_the_theory_is_checked(part, damaged):
    assert "has no rows yet" in damaged("theory", lambda content: content.splitlines(keepends=True)[0], part)


@pytest.mark.parametrize(("figure", "part"), [("table1", "counts"), ("theory", "variance"), ("theory", "dimension")])
def test_a_row_that_is_missing_of_a_whole_table_is_told(figure, part, damaged):
    assert "rows that every" in damaged(figure, edited(lambda lines: lines.pop(3)), part)


def test_a_missing_family_of_a_whole_table_is_named(damaged):
    def drop(lines):
        lines[:] = [line for line in lines if "structured" not in line]

    assert "no row of family structured" in damaged("theory", edited(drop), "dimension")


@pytest.mark.parametrize(
    ("value", "table", "good"),
    [
        ("-inf", Table(numbers=["x"]), True),
        ("-inf", Table(finite=["x"]), False),
        ("", Table(finite=["x"], empty=["x"]), True),
        ("", Table(finite=["x"]), False),
        ("-0.5", Table(finite=["x"]), True),
        ("-1", Table(counts=["x"]), False),
        ("0", Table(counts=["x"]), True),
        ("0", Table(natural=["x"]), False),
        ("False", Table(flags=["x"]), True),
        ("0", Table(flags=["x"]), False),
        ("", Table(columns=["x"]), False),
    ],
)
def test_what_a_column_may_have(value, table, good, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"x,y\n{value},1\n")
    if good:
        assert len(read_table(path, table)) == 1
    else:
        with pytest.raises(DataError, match=r"a\.csv: has .* as x in line 2"):
            read_table(path, table)


def test_a_diverged_fit_may_be_without_an_elbo_and_a_band_at_minus_infinity(tmp_path):
    for figure in ("stepsize", "trace"):
        shutil.copy(RESULTS / f"{figure}_laptop_elbo.csv", tmp_path)
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


def with_values(**values):
    """A change of the first row, which of synthetic is one that reached the accuracy."""

    def change(content):
        frame = pd.read_csv(io.BytesIO(content))
        if "ended" in frame:
            frame = frame.sort_values("ended", key=lambda ended: ended != "reached", kind="stable", ignore_index=True)
        frame = frame.astype({name: object for name in values})
        for name, value in values.items():
            frame.loc[0, name] = value
        return frame.to_csv(index=False).encode()

    return change


@pytest.mark.parametrize(
    ("figure", "values", "words"),
    [
        ("stepsize", {"elbo": None}, "a completed fit without an ELBO or its standard error in line 2"),
        ("stepsize", {"std_error": "nan"}, "a completed fit without an ELBO or its standard error in line 2"),
        ("stepsize", {"status": "diverged"}, "a diverged fit with an ELBO at its end in line 2"),
        ("stepsize", {"status": "missing"}, "an ELBO of a fit that is not there in line 2"),
        ("stepsize", {"status": "failed"}, "an ELBO of a fit that is not there in line 2"),
        ("stepsize", {"std_error": -1.0}, "-1.0 as std_error in line 2"),
        ("stepsize", {"std_error_5000": -1.0}, "-1.0 as std_error_5000 in line 2"),
        ("stepsize", {"n_updates": None}, "a finished fit without its number of updates in line 2"),
        ("stepsize", {"n_updates": 50_001}, "more updates than iterations in line 2"),
        ("stepsize", {"engine": "jax"}, "jax as engine in line 2"),
        ("trace", {"diverged": 5}, "more diverged replications than there are in line 2"),
        ("trace", {"q10": -15124.0}, "a 10 % quantile above the median in line 2"),
        ("trace", {"q90": -15125.0}, "a 90 % quantile below the median in line 2"),
        ("trace", {"iteration": 50_100}, "an iteration beyond the last in line 2"),
        ("trace", {"n": 5}, "5 replications of rpoisson-small, mean-field, 0.0001, of which there are 4"),
        ("trace", {"engine": "jax"}, "jax as engine in line 2"),
        ("synthetic", {"T": 60_000}, "a run that reached the accuracy after more updates than it may make in line 2"),
        (
            "synthetic",
            {"max_updates": 2},
            "a run that reached the accuracy after more updates than it may make in line 2",
        ),
        ("synthetic", {"ended": "diverged"}, "a run without the accuracy and a T that is not 59,999 in line 2"),
        ("synthetic", {"ended": "not reached"}, "a run without the accuracy and a T that is not 59,999 in line 2"),
        ("synthetic", {"seconds": -0.5}, "-0.5 as seconds in line 2"),
        ("synthetic", {"engine": "jax"}, "jax as engine in line 2"),
    ],
)
def test_values_that_contradict_each_other_are_refused(figure, values, words, damaged):
    assert f"has {words}" in damaged(figure, with_values(**values))


# ---- the preset's rows --------------------------------------------------------------------------------------
def cut(folder, figure, preset, keep, name="laptop"):
    """A committed table under a preset's name, with some of its rows alone."""
    frame = pd.read_csv(RESULTS / f"{figure}_{name}_elbo.csv")
    keep(frame).to_csv(folder / f"{figure}_{preset}_elbo.csv", index=False)


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


@pytest.mark.parametrize("preset", ["quick", "paper"])
@pytest.mark.parametrize("figure", ["stepsize", "trace"])
def test_the_table_of_another_preset_is_refused(figure, preset, tmp_path):
    cut(tmp_path, figure, preset, lambda f: f.assign(n_iterations=lambda f: f.n_iterations + (preset == "paper")))
    with pytest.raises(DataError, match=rf"has problem rpoisson-small, .* which the preset '{preset}' does not have"):
        reproduce(figure, preset, tmp_path, from_csv=True)


def test_the_papers_full_rank_fits_may_come_from_a_machine_with_more_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(realistic, "available_memory", lambda: 10**6)
    row = {"problem": "irt-middle", "simulated": False, "family": "full-rank", "stepsize": 1e-3, "seed": 0}
    row |= {"engine": "julia", "dtype": "float64", "n_iterations": 50_000, "status": "completed", "n_updates": 50_000}
    row |= {"elbo": -1.0, "std_error": 0.1, "elbo_5000": -2.0, "std_error_5000": 0.1}
    pd.DataFrame([row]).to_csv(tmp_path / "stepsize_paper_elbo.csv", index=False)
    # nine problems, six stepsizes, eight seeds; full-rank on the six that the paper has it on
    assert f"1 of {(9 * 2 + 6) * 6 * 8} fits are there" in reproduce("stepsize", "paper", tmp_path, from_csv=True)
    both = [row, {**row, "problem": "irt-middle (simulated)"}]
    pd.DataFrame(both).to_csv(tmp_path / "stepsize_paper_elbo.csv", index=False)
    with pytest.raises(DataError, match=r"has problem irt-middle \(simulated\), .* in line 3, which the preset"):
        reproduce("stepsize", "paper", tmp_path, from_csv=True)


def test_a_table_of_fits_none_of_which_is_finished_is_refused(tmp_path):
    figures = ["n_updates", "elbo", "std_error", "elbo_5000", "std_error_5000"]
    cut(tmp_path, "stepsize", "laptop", lambda f: f.assign(status="missing", **dict.fromkeys(figures, np.nan)))
    with pytest.raises(DataError, match="has no finished fit yet"):
        reproduce("stepsize", "laptop", tmp_path, from_csv=True)


@pytest.mark.parametrize("n", [1, 50, 87, 89])
def test_a_trace_cut_off_within_a_curve_is_refused(n, tmp_path):
    cut(tmp_path, "trace", "laptop", lambda f: f[:n])
    with pytest.raises(DataError, match=rf"has {(n - 1) % 88 + 1} of the 88 rows of rpoisson-small, mean-field, "):
        reproduce("trace", "laptop", tmp_path, from_csv=True)


def test_the_command_tells_a_damaged_file_in_one_line(tmp_path):
    (tmp_path / "synthetic_quick_runs.csv").write_text(",".join(runs.COLUMNS) + "\nmean-field,100,4")
    done = run("reproduce", "synthetic", "--from-csv", "--out", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert "ends in the middle of a line" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["synthetic", "theory", "stepsize", "trace"])
def test_the_scripts_tell_a_damaged_file_in_one_line(script, tmp_path):
    for path in [*RESULTS.parent.glob("*.py"), *RESULTS.glob(f"{script}_*.csv")]:
        place = tmp_path / path.relative_to(RESULTS.parent)
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
    for path in tmp_path.glob("results/*.csv"):
        path.write_bytes(path.read_bytes()[:-4])
    command = [sys.executable, str(tmp_path / f"{script}.py"), "--from-csv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


# ---- interruptions ------------------------------------------------------------------------------------------
def test_files_are_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    def interrupted(*paths):
        raise KeyboardInterrupt

    fits = SimpleNamespace(status="complete", counts={"failed": 0})
    table = pd.DataFrame({"status": ["completed"]})
    writes = {
        "table1_quick_counts.csv": lambda: table1.compute(Job("table1", "quick", tmp_path)),
        "stepsize_laptop_claims.csv": lambda: reproduce("stepsize", "laptop", tmp_path, from_csv=True),
        "synthetic_paper_points.csv": lambda: reproduce("synthetic", "paper", tmp_path, from_csv=True),
        "trace_quick_elbo.csv": lambda: realistic.write(Job("trace", "quick", tmp_path), fits, table),
    }
    for name in ("stepsize_laptop_elbo.csv", "synthetic_paper_runs.csv"):
        shutil.copy(RESULTS / name, tmp_path)
    for name in writes:
        (tmp_path / name).write_text("old\n")
    monkeypatch.setattr("pyturingvi.support.files.os.replace", interrupted)
    for name, write in writes.items():
        with pytest.raises(KeyboardInterrupt):
            write()
        assert (tmp_path / name).read_text() == "old\n", name
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("figure", ["synthetic", "theory", "stepsize", "trace"])
def test_pictures_are_replaced_whole_or_not_at_all_and_let_go_of(figure, tmp_path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")

    def interrupted(self, target, **settings):
        if isinstance(target, str | os.PathLike):
            Path(target).write_bytes(b"half")
        else:
            target.write(b"half")
        raise KeyboardInterrupt

    preset, parts, *_ = FILES[figure]
    for part in parts:
        shutil.copy(RESULTS / f"{figure}_{preset}_{part}.csv", tmp_path)
    pictures = [tmp_path / path.name for path in RESULTS.glob(f"{figure}_*.png")]
    open_before = plt.get_fignums()
    reproduce(figure, preset, tmp_path, from_csv=True)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert plt.get_fignums() == open_before
    for path in pictures:
        path.write_bytes(b"old")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(figure, preset, tmp_path, from_csv=True)
    assert pictures
    assert {path.read_bytes() for path in pictures} == {b"old"}
    assert plt.get_fignums() == open_before
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def full(*paths):
        raise OSError(errno.ENOSPC, "No space left on device")

    shutil.copy(RESULTS / "trace_laptop_elbo.csv", tmp_path)
    monkeypatch.setattr("pyturingvi.support.files.os.fsync", full)
    with pytest.raises(OutputError, match=r"table1_quick_counts\.csv: cannot be written: No space left on device"):
        reproduce("table1", out=tmp_path)
    with pytest.raises(OutputError, match=r"trace_laptop_elbo\.png: cannot be written: No space left on device"):
        reproduce("trace", "laptop", tmp_path, from_csv=True)


def row(run, t):
    return runs.row_of(run, Reached(t), "numpy", 1.0)


def test_two_calls_into_one_folder_keep_each_others_runs(tmp_path):
    job = Job("synthetic", "quick", tmp_path, "numpy", 1, False)
    first, second = runs.Runs(job), runs.Runs(job)
    made = [Run("mean-field", 100, 43, 10, repeat) for repeat in range(3)]
    first.add(row(made[0], 90))
    second.add(row(made[1], 80))
    first.add(row(made[2], 70))
    first.write()
    second.write()
    assert runs.found_in(runs.read_runs(job)) == {made[0].key: 89, made[1].key: 79, made[2].key: 69}
    assert made[2].key in second.found  # and is not made again


def test_a_call_interrupted_before_any_run_leaves_nothing_to_stumble_over(tmp_path, monkeypatch):
    job = Job("synthetic", "quick", tmp_path, "numpy", 1, False)
    runs.Runs(job).write()
    assert not job.file("runs").exists()
    job.file("runs").write_text(",".join(runs.COLUMNS) + "\n")
    with pytest.raises(DataError, match="has no rows yet"):
        reproduce("synthetic", "quick", tmp_path, from_csv=True)
    assert runs.Runs(job).found == {}


def test_a_single_run_can_be_reported(tmp_path):
    job = Job("synthetic", "quick", tmp_path, "numpy", 1, False)
    one = runs.Runs(job)
    one.add(row(Run("mean-field", 100, plan.best_step("mean-field", 100) - 3, 10, 0), 90))
    assert "Runs: 1; " in reproduce("synthetic", "quick", tmp_path, from_csv=True)


_WAITS = """
import os, sys, time
from pathlib import Path
from pyturingvi.reproduce import theory
from pyturingvi.reproduce.figure import Job
def wait(folder, name):
    Path(folder, f"{name}.tmp").write_text(str(os.getpid()))
    Path(folder, f"{name}.tmp").rename(Path(folder, f"{name}.pid"))
    time.sleep(120)
if __name__ == "__main__":
    cells = [(sys.argv[1], "a"), (sys.argv[1], "b")]
    theory.run_cells(wait, cells, Job("theory", "quick", Path(sys.argv[1]), n_workers=2, progress=False), "waiting")
"""


@pytest.mark.skipif(os.name != "posix", reason="an orphan is seen by its parent's number")
def test_the_theorys_processes_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(_WAITS)
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = [psutil.Process(int(path.read_text())) for path in tmp_path.glob("*.pid")]
    parent.kill()
    parent.wait()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=15)
    for process in alive:
        process.kill()
    assert not alive
