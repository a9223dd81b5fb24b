"""Figures of the paper: the frame, table 1, and the two figures of the realistic sweep in miniature."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from left_out import leave_out_processes

import pyturingvi as tv
from pyturingvi.errors import OutputError
from pyturingvi.reproduce import realistic, realistic_tables, stepsize
from pyturingvi.reproduce.bands import band
from pyturingvi.reproduce.figure import FIGURES, Job, reproduce
from pyturingvi.sweeps.folder import SweepFolder
from pyturingvi.sweeps.grid import read_grid
from pyturingvi.sweeps.result import SweepResult

pytestmark = pytest.mark.usefixtures("undrawn", "without_processes")

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
STEPS = (1e-3, 1e15)  # the second diverges


# ---- the frame ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stepsizes",), "stepsize"),
        (("stepsize", "--preset", "papr"), "paper"),
        (("stepsize", "--from-csv", "--out", "nowhere"), "nowhere"),
        (("trace", "--from-csv", "--out", "."), "pyturingvi reproduce trace --preset quick"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_in_one_line(arguments, words, tmp_path, command):
    code, _, errors = command("reproduce", *arguments)
    assert code == 2
    assert words in errors
    assert len(errors.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"out: cannot make the folder .* a file is in its way"):
        reproduce("table1", out=tmp_path / "file" / "folder")


def test_list_describes_every_figure_and_its_presets(command):
    _, told, _ = command("reproduce", "list")
    assert [name for name in FIGURES if f"{name} " not in told] == []
    assert told.count("--preset quick") == told.count("--preset paper") == len(FIGURES)


def test_table_1_differs_from_the_printed_one_in_three_misprints_alone(tmp_path):
    text = reproduce("table1", out=tmp_path)
    counts = pd.read_csv(tmp_path / "table1_quick_counts.csv")
    wrong = counts[counts.difference.fillna(0) != 0].set_index(["problem", "quantity"])
    # d of rpoisson-large is 16 + 19,609; d of volatility-middle 33 + 6 * 522
    assert wrong.ours.to_dict() == {
        ("rpoisson-large", "mean_field_p"): 2 * 19_625,
        ("volatility-middle", "mean_field_p"): 2 * 3_165,
        ("volatility-middle", "full_rank_p"): 3_165 + 3_165 * 3_166 // 2,
    }
    assert wrong.explanation.notna().all()
    assert "rpoisson-large mean_field_p: 39250, printed 39282" in text
    assert "unexplained" not in text
    assert reproduce("table1", out=tmp_path, from_csv=True) == text


# ---- the paper's families ---------------------------------------------------------------------------------
_FOURTH_FAMILY = """
import sys
from pathlib import Path
import pyturingvi as tv
class Diagonal(tv.MeanField):
    name = "diagonal"
tv.register(Diagonal)
from pyturingvi.reproduce import realistic, theory
from pyturingvi.reproduce.figure import Job, reproduce
from pyturingvi.reproduce.synthetic import plan
from left_out import leave_out_drawing
import pytest
leave_out_drawing(pytest.MonkeyPatch())
theory.list_problems = lambda: tv.list_problems().query("N < 500")
folder = Path(sys.argv[1])
for preset in realistic.PRESETS:
    print(*(family for part in realistic.grid_of(Job("stepsize", preset, folder)) for family in part["family"]))
for preset in plan.PLANS:
    print(*(run.family for run in plan.plan(preset, {})))
print(*theory.dimension(Job("theory", "quick", folder), theory.SIZES["quick"]).family)
print(reproduce("synthetic", "paper", folder, from_csv=True), reproduce("stepsize", "laptop", folder, from_csv=True))
"""


def test_another_family_in_the_package_changes_nothing_of_the_papers_experiments(tmp_path):
    for name in ("synthetic_paper_runs.csv", "stepsize_laptop_elbo.csv"):
        shutil.copy(EXPERIMENTS / "results" / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _FOURTH_FAMILY, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[:7]
    assert [set(line.split()) for line in lines] == [{"mean-field", "structured", "full-rank"}] * 7
    assert "diagonal" not in done.stdout
    for name in ("synthetic_paper_report.txt", "stepsize_laptop_claims.csv"):
        assert (tmp_path / name).read_bytes() == (EXPERIMENTS / "results" / name).read_bytes()


# ---- grids --------------------------------------------------------------------------------------------------
def test_the_paper_preset_is_the_papers_grid(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(realistic, "available_memory", lambda: 10**15)
    job = Job("stepsize", "paper", tmp_path)
    grid = {part["model"]: part for part in realistic.grid_of(job)}
    assert list(grid) == list(tv.list_problems().problem)
    assert [name for name, part in grid.items() if "full-rank" not in part["family"]] == [
        "rpoisson-large",
        "volatility-large",
        "irt-large",
    ]
    for name, part in grid.items():
        assert np.log10(part["stepsize"]) == pytest.approx([-4, -3.75, -3.5, -3.25, -3, -2.75])
        assert part["seed"] == list(range(8))
        assert (part["n_samples"], part["n_iterations"], part["elbo_every"]) == (8, 50_000, 100)
        assert (part["elbo_samples"], part["init_location"], part["init_scale"]) == (1024, 0.0, 0.1)
        assert part.get("simulated", False) == name.startswith("irt")
    with_data = realistic.grid_of(Job("stepsize", "paper", tmp_path, data_dir=tmp_path))
    assert all(part["data_dir"] == tmp_path for part in with_data if part["model"].startswith("irt"))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(realistic, "available_memory", lambda: 10**6)
    assert all("full-rank" not in part["family"] for part in realistic.grid_of(job))
    assert "full-rank on irt-middle is left out" in capsys.readouterr().err


def test_a_trace_takes_the_published_stepsizes_and_four_replications_of_the_same_cells(tmp_path):
    whole = realistic.grid_of(Job("stepsize", "laptop", tmp_path))
    for part, cut in zip(whole, realistic.grid_of(Job("trace", "laptop", tmp_path)), strict=True):
        expected = {"rpoisson": [-4, -3.5, -3], "volatility": [-3.5, -3, -2.75], "irt": [-4, -3.5, -3]}
        assert np.log10(cut["stepsize"]) == pytest.approx(expected[part["model"].split("-")[0]])
        assert set(cut["stepsize"]) <= set(part["stepsize"])
        assert {**cut, "stepsize": 0, "seed": 0} == {**part, "stepsize": 0, "seed": 0}
        assert cut["seed"] == part["seed"][:4]


# ---- the sweep in miniature -----------------------------------------------------------------------------------
FEW = {"n_iterations": 40, "elbo_every": 10, "elbo_samples": 16}
CALL = {"engine": "numpy", "n_workers": 1, "progress": False}


def miniature(job, memory=None):
    return [
        realistic._part(job, "volatility-small", ["mean-field", "structured"], STEPS, 2, **FEW),
        realistic._part(job, "volatility-small", ["full-rank"], STEPS[:1], 2, **{**FEW, "n_iterations": 20}),
    ]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(realistic, "EARLY", 20)
    monkeypatch.setitem(realistic.PRESETS, "quick", ("miniature", miniature))
    monkeypatch.setitem(realistic.PUBLISHED_TRACES, "volatility", STEPS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished miniature; copied by the tests, which must not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(realistic.PRESETS, "quick", ("miniature", miniature))
        leave_out_processes(patch)
        job = Job("stepsize", "quick", tmp_path_factory.mktemp("done"), "numpy", 1, False)
        realistic.run(job)
    return job.folder


@pytest.fixture
def out(finished, small, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def state(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("cells/cells/*.json")}


def test_stepsize_and_trace_come_from_the_same_fits(out):
    before = state(out)
    assert len(before) == 2 * 2 * 2 + 2
    text, curves = (reproduce(figure, out=out, **CALL) for figure in ("stepsize", "trace"))
    assert state(out) == before
    elbo = pd.read_csv(out / "stepsize_quick_elbo.csv")
    assert len(elbo) == len(before)
    assert set(elbo.status[elbo.stepsize == 1e15]) == {"diverged"}
    assert elbo.elbo[elbo.status == "diverged"].isna().all()
    one = elbo[(elbo.family == "structured") & (elbo.seed == 1) & (elbo.stepsize == 1e-3)].iloc[0]
    settings = {"init_location": 0.0, "init_scale": 0.1, "seed": 1, "engine": "numpy", "progress": False}
    fit = tv.fit(tv.load_problem("volatility-small"), "structured", tv.Adam(1e-3), **FEW, **settings)
    trace = fit.elbo.set_index("iteration").elbo
    assert one.elbo == pytest.approx(trace[40], abs=1e-3)
    assert one.elbo_20 == pytest.approx(trace[20], abs=1e-3)
    table = pd.read_csv(out / "trace_quick_elbo.csv")
    assert set(table.iteration[table.family == "full-rank"]) == {10, 20}
    assert set(table.iteration[table.family == "structured"]) == {10, 20, 30, 40}
    assert np.isneginf(table["median"][table.stepsize == 1e15].to_numpy(float)).all()
    assert "-> cannot be shown at this size" in text
    assert "volatility-small, ELBO after 20 updates" in text
    assert "diverged in 2 of 2 replications" in curves
    for figure in ("stepsize", "trace"):
        assert (out / f"{figure}_quick_elbo.png").read_bytes().startswith(b"\x89PNG")
    (out / "stepsize_quick_elbo.png").unlink()
    assert reproduce("stepsize", out=out, from_csv=True) == text
    assert (out / "stepsize_quick_elbo.png").is_file()


def test_only_missing_fits_are_made_and_the_table_is_the_same(out):
    reproduce("stepsize", out=out, **CALL)
    table, before = (out / "stepsize_quick_elbo.csv").read_bytes(), state(out)
    lost = next(path for path in before if "full-rank" in path.name)
    lost.unlink()
    reproduce("stepsize", out=out, **CALL)
    after = state(out)
    assert [path for path in after if after[path] != before[path]] == [lost]
    assert (out / "stepsize_quick_elbo.csv").read_bytes() == table


def test_what_is_there_can_be_taken_before_all_is_done(out):
    lost = [path for path in state(out) if "mean-field" in path.name]
    for path in lost:
        path.unlink()
    job = Job("stepsize", "quick", out, "numpy")
    stepsize.compute(job, fit=False)
    text = stepsize.report(job)
    assert f"{10 - len(lost)} of 10 fits are there" in text
    assert f"{len(lost)} missing" in text
    assert not any(path.exists() for path in lost)


def sweep_of(folder, status="completed", **counts):
    class Result(list):
        pass

    result = Result(range(sum(counts.values())))
    result.status, result.out = status, folder
    result.counts = {**dict.fromkeys(("completed", "diverged", "failed", "missing"), 0), **counts}
    return result


def fits(completed, missing=0):
    statuses = ["completed"] * completed + ["missing"] * missing
    return pd.DataFrame({"status": statuses, "elbo": [-1.5] * completed + [np.nan] * missing})


def traces(*replications):
    """A curve of two iterations each."""
    curves = {"problem": "irt-small", "family": "structured", "engine": "numpy", "dtype": "float64"}
    rows = [{**curves, "stepsize": 10.0**-k, "n_iterations": 20, "n": n} for k, n in enumerate(replications)]
    return pd.DataFrame([{**row, "iteration": i, "median": -1.5} for row in rows for i in (10, 20)])


@pytest.mark.parametrize(
    ("figure", "more", "fewer"), [("stepsize", fits(3), fits(2, 1)), ("trace", traces(4, 2), traces(4, 1))]
)
def test_a_table_of_more_fits_is_never_replaced_by_one_of_fewer(figure, more, fewer, tmp_path, capsys):
    job, path = Job(figure, "quick", tmp_path), tmp_path / f"{figure}_quick_elbo.csv"
    partly = {"completed": 2, "missing": 1}
    nothing = realistic_tables.trace_table(SweepResult(SweepFolder(tmp_path), {})) if figure == "trace" else fits(0, 3)
    for table, there in ((nothing, False), (fewer, True)):
        with pytest.raises(KeyboardInterrupt):
            realistic_tables.write(job, sweep_of(tmp_path, "interrupted", **partly), table)
        assert path.exists() == there
        assert "1 fits are left; the same call goes on" in capsys.readouterr().err
    realistic_tables.write(job, sweep_of(tmp_path, completed=3), more)
    whole, before = path.read_bytes(), realistic_tables.n_finished(more)
    with pytest.raises(KeyboardInterrupt):
        realistic_tables.write(job, sweep_of(tmp_path, "interrupted", **partly), fewer)
    with pytest.raises(OutputError, match=rf"left as it is, with {before} finished .* has {before - 1} of this figure"):
        realistic_tables.write(job, sweep_of(tmp_path, "incomplete", **partly), fewer)
    assert path.read_bytes() == whole
    realistic_tables.write(job, sweep_of(tmp_path, completed=3), more.assign(elbo=-1.0))
    assert path.read_bytes() != whole


def test_failed_fits_are_told_with_the_place_of_the_reasons_and_are_no_table(tmp_path, capsys):
    job = Job("stepsize", "quick", tmp_path, progress=False)
    with pytest.raises(OutputError, match="3 of 3 fits failed"):
        realistic_tables.write(job, sweep_of(tmp_path, "incomplete", failed=3), fits(0))
    assert not list(tmp_path.iterdir())
    realistic_tables.write(job, sweep_of(tmp_path, "incomplete", completed=2, failed=1), fits(2))
    assert f"1 of 3 fits failed; {tmp_path} says why, in cells/*.json" in capsys.readouterr().err


def test_cells_made_elsewhere_are_found(out, tmp_path):
    (out / "cells").rename(tmp_path / "elsewhere")
    text = reproduce("trace", out=tmp_path / "new", cells=tmp_path / "elsewhere", **CALL)
    assert "volatility-small" in text
    assert not (tmp_path / "new" / "cells").exists()


def test_the_expectation_learns_from_the_fits_that_are_done(out, small):
    cells = read_grid(realistic.grid_of(Job("stepsize", "quick", out, "numpy")))
    folder = SweepFolder(out / "cells")
    assert realistic.expectation(cells, folder, 2) == "all 10 fits are done already"
    kept = cells[0]
    for cell in cells[1:]:
        folder.cell_file(cell.name).unlink()
    timing = folder.timing_file(kept.name)
    days = 3 * 86_400 * 2 * kept.cost / sum(cell.cost for cell in cells[1:])
    timing.write_text(json.dumps({"seconds": days}))
    assert "9 of 10 fits to do, about 3.0 days on 2 processes" in realistic.expectation(cells, folder, 2)


# ---- numbers --------------------------------------------------------------------------------------------------
def test_a_band_is_numpys_where_all_is_finite_and_counts_divergence_as_minus_infinity():
    values = np.random.default_rng(0).normal(size=9)
    expected = np.quantile(values, [0.5, 0.1, 0.9])
    assert list(band(values).values()) == pytest.approx(list(expected))
    assert band(np.array([3.0, -np.inf, 1.0, 2.0])) == pytest.approx({"median": 1.5, "q10": -np.inf, "q90": 2.7})
    assert band(np.array([3.0, -np.inf, -np.inf, 2.0]))["median"] == -np.inf


@pytest.mark.parametrize("n", [1, 7, 100, 101, 500, 5000])
def test_a_thinned_curve_is_short_and_keeps_its_ends(n):
    iterations = np.arange(100, 100 * n + 1, 100)
    kept = realistic_tables.thinned(iterations)
    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (iterations[0], iterations[-1])
    assert set(kept) <= set(iterations)
    assert (np.diff(kept) > 0).all()
