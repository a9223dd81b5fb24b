"""`reproduce synthetic`: the plan, resuming, and a report that fails where the runs are wrong."""

import math
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import pyturingvi as tv
from pyturingvi.errors import DataError, InputError, OutputError
from pyturingvi.reproduce.figure import FAMILIES, Job, reproduce
from pyturingvi.reproduce.synthetic import against_published, plan, problem, runs
from pyturingvi.reproduce.synthetic.plan import Run
from pyturingvi.sweeps.result import load_sweep

pytestmark = pytest.mark.usefixtures("undrawn", "without_processes")

TINY = (
    Run("mean-field", 100, 43, 10, 0),
    Run("mean-field", 100, 43, 10, 1),
    Run("structured", 100, 38, 10, 0),
    Run("structured", 100, 38, 8, 0, max_updates=300),
    Run("mean-field", 200, 41, 10, 0),
    Run("full-rank", 100, 49, 10, 0),  # diverges
)


def tiny_job(folder, **changes):
    return Job("synthetic", "quick", folder, **{"engine": "numpy", "n_workers": 1, "progress": False, **changes})


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(plan.PLANS, "quick", lambda found: list(TINY))


def cell(n_updates):
    """What `row_of` needs of a cell."""
    return SimpleNamespace(status="completed", n_updates=n_updates, engine="numpy", seconds=1.0)


def published_runs(change=lambda row: None):
    """A table of runs with exactly the published values of figures 1 and 2, each row changed as a test likes."""
    rows = []

    def add(run, t):
        row = runs.row_of(run, cell(1 if t < problem.NOT_REACHED else 60_001)) | {"T": t}
        change(row)
        row["max_updates"] = max(row["max_updates"], math.ceil(row["T"]) + 1)
        rows.append(row)

    for family in FAMILIES:
        for n in problem.CURVE_SIZES:
            low, high = problem.curve_ends(family, n)
            for step in range(low - 1, high + 2):
                for repeat in range(3):
                    add(Run(family, n, step, 10, repeat), problem.published_t(family, n, step))
        for n in problem.SCALING_SIZES:
            for step in plan.contenders(family, n) if n not in problem.CURVE_SIZES else ():
                best = step == plan.best_step(family, n)
                for repeat in range(3):
                    add(Run(family, n, step, 10, repeat), problem.best_t(family, n) * (1.0 if best else 1.2))
    return pd.DataFrame(rows)


def report_of(folder, table, preset="paper"):
    job = Job("synthetic", preset, folder)
    table.to_csv(job.file("runs"), index=False)
    return against_published.report(job), job


# ---- the plan -----------------------------------------------------------------------------------------------
def test_the_paper_preset_has_every_published_point_three_times_and_a_neighbor_on_each_side():
    planned = plan.plan("paper", {})
    keys = [run.key for run in planned]
    assert len(set(keys)) == len(keys) == len({run.seed for run in planned})
    curves = problem.published_curves()
    for row in curves[curves.iterations < problem.NOT_REACHED].itertuples():
        for repeat in range(3):
            run = next(r for r in planned if r.key == (row.family, row.n, row.step, 10, repeat))
            assert run.stepsize == pytest.approx(row.stepsize, rel=1e-12)
            assert run.max_updates == 60_000
        assert ((row.family, row.n, row.step, 8, 0) in keys) == (row.n <= 200)
    for family in FAMILIES:
        for n in (100, 200, 300):
            low, high = problem.curve_ends(family, n)
            assert {(family, n, low - 1, 10, 0), (family, n, high + 1, 10, 0)} <= set(keys)
        assert {run.n for run in planned if run.family == family} == set(range(100, 501, 50))
    assert len(plan.plan("full", {})) > len(planned) > len(plan.plan("quick", {}))


def test_long_runs_are_repeated_at_the_best_stepsize_that_the_first_ones_found():
    steps = plan.contenders("full-rank", 400)
    first = [run for run in plan.plan("paper", {}) if run.family == "full-rank" and run.n == 400]
    assert sorted(run.key for run in first) == [("full-rank", 400, step, 10, 0) for step in steps]
    found = dict(zip((("full-rank", 400, step, 10, 0) for step in steps), (35_000.0, 27_000.0, math.nan), strict=True))
    then = [run for run in plan.plan("paper", found) if run.key[:2] == ("full-rank", 400)]
    assert sorted(run.key for run in then if run.repeat) == [("full-rank", 400, steps[1], 10, r) for r in (1, 2)]


def test_the_best_stepsize_is_looked_for_where_the_figure_has_it_at_the_sizes_it_shares(monkeypatch):
    at_figure = {(family, n): plan.best_step(family, n) for family in FAMILIES for n in problem.CURVE_SIZES}
    monkeypatch.setattr(plan, "CURVE_SIZES", ())
    for (family, n), step in at_figure.items():
        assert abs(plan.best_step.__wrapped__(family, n) - step) <= 1


# ---- runs ---------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("tiny")
def test_runs_are_rows_and_are_not_made_again(tmp_path, monkeypatch):
    job = tiny_job(tmp_path)
    runs.compute(job)
    table = runs.read_runs(job)
    assert len(table) == len(TINY)
    ends = {(r.family, r.step, r.n_samples): r.ended for r in table.itertuples()}
    assert ends["full-rank", 49, 10] == "diverged"
    assert ends["structured", 38, 10] == "reached"
    assert ends["structured", 38, 8] == "not reached"
    assert math.isnan(table[table.n_samples == 8]["T"].item())  # 300 updates only: no 59,999
    for row in table[table.ended == "reached"].itertuples():
        expected = problem.proximal_sgd(row.family, row.n, row.stepsize, row.n_samples, row.seed)
        assert row.T == expected.n_updates - 1
    monkeypatch.setattr(runs, "sweep", lambda *arguments, **options: pytest.fail("made again"))
    runs.compute(job)


@pytest.mark.usefixtures("tiny")
def test_what_an_interrupted_call_has_left_is_all_that_is_made(tmp_path):
    job, cells = tiny_job(tmp_path), tmp_path / "cells" / "cells"
    runs.compute(job)
    table = runs.read_runs(job)
    columns = [c for c in runs.COLUMNS if c != "seconds"]
    table[:2].assign(seconds=1e6).to_csv(job.file("runs"), index=False)
    shutil.rmtree(tmp_path / "cells")
    runs.compute(job)
    again = runs.read_runs(job)
    assert (again.seconds[:2] == 1e6).all()  # kept as they were
    assert (again.seconds[2:] < 1e6).all()
    pd.testing.assert_frame_equal(again[columns], table[columns])
    # what a call that was killed has left: cells, and no table
    before = {path: path.stat().st_mtime_ns for path in cells.iterdir()}
    assert len(before) == len(TINY) - 2
    job.file("runs").unlink()
    runs.compute(job)
    pd.testing.assert_frame_equal(runs.read_runs(job)[columns], table[columns])
    assert len(list(cells.iterdir())) == len(TINY)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("status", "error", "words"),
    [("interrupted", KeyboardInterrupt, None), ("incomplete", OutputError, r"4 of 6 runs failed; .* says why")],
)
def test_a_call_that_ends_early_leaves_the_runs_made_and_one_before_any_nothing(
    status, error, words, tmp_path, monkeypatch
):
    def sweep(grid, out, **options):
        assert options["n_workers"] == 3
        if n_made:
            tv.sweep(grid[:n_made], out=out, **options)
        found = load_sweep(out, grid)
        found.status = status
        return found

    monkeypatch.setattr(runs, "sweep", sweep)
    job = tiny_job(tmp_path, n_workers=3)
    (tmp_path / "cells" / "cells").mkdir(parents=True)
    n_made = 0
    with pytest.raises(error):
        runs.compute(job)
    assert not job.file("runs").exists()
    n_made = 2
    with pytest.raises(error, match=words):
        runs.compute(job)
    assert {run.key for run in runs.unmade(runs.read_runs(job), "quick")} == {run.key for run in TINY[2:]}


def test_runs_that_depend_on_the_first_ones_are_made_after_them(tmp_path, monkeypatch):
    first, then = TINY[:2]
    monkeypatch.setitem(plan.PLANS, "quick", lambda found: [first, then] if found.get(first.key, 0) > 10 else [first])
    runs.compute(tiny_job(tmp_path))
    assert runs.read_runs(tiny_job(tmp_path)).repeat.tolist() == [0, 1]


def test_another_table_under_the_name_is_refused(tmp_path):
    job = tiny_job(tmp_path)
    job.file("runs").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"lacks the column\(s\) family"):
        runs.compute(job)
    assert job.file("runs").read_text() == "a,b\n1,2\n"


def test_a_single_run_can_be_reported(tmp_path):
    run = Run("mean-field", 100, plan.best_step("mean-field", 100) - 3, 10, 0)
    text, _ = report_of(tmp_path, pd.DataFrame([runs.row_of(run, cell(90))]), "quick")
    assert text.startswith("Runs: 1; ")


# ---- against the published values ---------------------------------------------------------------------------
def test_the_published_values_themselves_agree_everywhere(tmp_path):
    text, job = report_of(tmp_path, published_runs())
    assert "together: 243 of 243 within 5%, 243 within 10%" in text
    assert "within 5%: holds (100.0%)" in text
    assert "neither do we at 18 of 18" in text
    points = job.read("points")
    assert (points.ratio.dropna() == 1).all()
    assert points.last_before_divergence.sum() == 9
    np.testing.assert_allclose(job.read("scaling").ratio, 1)
    assert all(job.file(part, ".png").is_file() for part in ("curves", "scaling"))
    exponents = job.read("exponents").set_index("family")
    # least squares on the published points of figure 2, by numpy
    for family in FAMILIES:
        table = problem.published_scaling()
        table = table[table.family == family]
        slope = np.polyfit(np.log(table.n), np.log(table.iterations + 1), 1)[0]
        np.testing.assert_allclose(exponents.loc[family, ["ours", "published"]], slope, rtol=1e-9)


def test_wrong_values_fail(tmp_path):
    def longer(row):
        if row["family"] == "full-rank" and row["T"] < problem.NOT_REACHED:
            row["T"] *= 1.06  # 44 of the 243 points

    text, _ = report_of(tmp_path, published_runs(longer))
    assert "together: 199 of 243 within 5%, 243 within 10%" in text
    assert "within 5%: FAILS (81.9%)" in text
    assert "off: full-rank, n = 100" in text

    def arrives(row):
        if row["T"] >= problem.NOT_REACHED and row["family"] == "structured":
            row |= {"T": 59_000.0, "ended": "reached"}

    text, _ = report_of(tmp_path, published_runs(arrives))
    assert "neither do we at 12 of 18" in text
    assert "reached: structured, n = 300" in text


def test_a_wrong_growth_shows_in_the_exponent(tmp_path):
    def faster(row):
        row["T"] = (row["T"] + 1) * (row["n"] / 100) ** 0.5 - 1 if row["T"] < problem.NOT_REACHED else row["T"]

    _, job = report_of(tmp_path, published_runs(faster))
    exponents = job.read("exponents")
    np.testing.assert_allclose(exponents.ours - exponents.published, 0.5, atol=1e-9)


def test_missing_runs_are_told_and_a_size_without_all_contenders_is_left_out(tmp_path):
    table = published_runs()
    gone = (table.family == "full-rank") & (table.n == 400) & (table.step == plan.best_step("full-rank", 400))
    gone |= (table.family == "mean-field") & (table.n == 100) & (table.step == 9)
    gone |= (table.family == "mean-field") & (table.n == 100) & (table.step == 12) & (table.repeat == 2)
    text, job = report_of(tmp_path, table[~gone])
    assert "mean over 3 runs (1 points over fewer)" in text
    assert "2 of 243 points not run" in text
    assert "of the preset are not made yet" in text
    scaling = job.read("scaling")
    assert len(scaling) == 26
    assert scaling[(scaling.family == "full-rank") & (scaling.n == 400)].empty


def test_the_interval_of_the_exponent_covers_the_truth_as_often_as_it_says():
    rng, n = np.random.default_rng(3), np.arange(100.0, 501.0, 50.0)
    inside = 0
    for _ in range(400):
        fitted = against_published.growth(n, 0.2 * n**2 * np.exp(0.05 * rng.standard_normal(9)) - 1)
        inside += fitted.low <= 2 <= fitted.high
    assert 0.915 <= inside / 400 <= 0.985  # 0.95, four standard errors to either side, less at the top


@pytest.mark.usefixtures("tiny")
def test_the_command_computes_then_draws_again_from_the_files_alone(tmp_path, monkeypatch):
    text = reproduce("synthetic", "quick", tmp_path, engine="numpy", n_workers=2, progress=False)
    assert text.startswith("Runs: 6\n")
    monkeypatch.setattr(runs, "sweep", lambda *arguments, **options: pytest.fail("computed"))
    assert reproduce("synthetic", "quick", tmp_path, from_csv=True) == text
    with pytest.raises(DataError, match="Compute it: pyturingvi reproduce synthetic --preset paper"):
        reproduce("synthetic", "paper", tmp_path, from_csv=True)
    with pytest.raises(InputError, match="preset"):
        reproduce("synthetic", "huge", tmp_path)


@pytest.mark.slow
def test_the_quick_preset_agrees_with_the_paper_on_the_numpy_engine(tmp_path):
    text = reproduce("synthetic", "quick", tmp_path, engine="numpy", progress=False)
    assert "points run are within 5%: holds" in text
    exponents = Job("synthetic", "quick", tmp_path).read("exponents").set_index("family")
    np.testing.assert_allclose(exponents.ours, exponents.published, atol=0.1)
    assert exponents.ours["full-rank"] - exponents.ours["structured"] > 0.7
