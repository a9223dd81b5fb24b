"""The time to an answer: `benchmarks/time_to_answer.py` and the files beside it."""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import pyturingvi as tv

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
TIMINGS = ["engines", "iteration_time", "scaling", "sparse_answers", "time_to_answer"]
REFERENCES = ["reference_exact", "references", "references_picture"]
SCRIPTS = ["against_commit", "doors", "front_doors", *REFERENCES, *TIMINGS]


@pytest.fixture(autouse=True)
def _modules_of_the_folder(monkeypatch):
    """Modules of the folder can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == BENCHMARKS:
            del sys.modules[name]


def run(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_a_help(name, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, name, "--help")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name}")


# ---- what is measured ---------------------------------------------------------------------------------------
def test_the_eight_schools_are_those_of_the_page():
    from answer_problems import eight_schools

    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    block = next(block for block in blocks if "def eight_schools(v)" in block)
    page: dict = {}
    exec(block.split("\nfit = ")[0], page)
    points = np.random.default_rng(0).normal(size=(5, 10))
    for ours, theirs in zip(eight_schools(points), page["model"].log_density_and_gradient(points), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


class Normals(tv.models.LogDensity):
    """Independent N(0, 2^2), normalized."""

    def __init__(self, d):
        super().__init__(lambda x: (stats.norm.logpdf(x, scale=2).sum(1), -x / 4), tv.Layout(d, 0, 0))


def test_the_common_elbo_is_that_of_independent_gaussians():
    from answer_problems import CommonElbo

    mean, sd = np.array([0.5, -1.0, 0.0]), np.array([1.0, 0.5, 2.0])
    exact = -(np.log(2 / sd) + (sd**2 + mean**2) / 8 - 0.5).sum()  # minus the Kullback-Leibler divergence
    assert CommonElbo(Normals(3), 200_000)(mean, sd) == pytest.approx(exact, abs=0.01)


def test_the_elbo_of_a_fit_has_a_standard_error_that_is_true(monkeypatch):
    import answer_problems

    monkeypatch.setattr(answer_problems, "BATCH_BYTES", 4_000)  # several batches
    model, sd = Normals(2), 1.5
    start = {"init_location": 1.0, "init_scale": sd, "engine": "numpy", "progress": False}
    fit = tv.fit(model, "mean-field", tv.SGD(1e-300), n_iterations=1, elbo_samples=2, **start)
    elbo, error = answer_problems.elbo_of(fit, 10_001)
    exact = -2 * (np.log(2 / sd) + (sd**2 + 1) / 8 - 0.5)
    assert abs(elbo - exact) < 4 * error
    sample = np.random.default_rng(0).normal(1, sd, (10_001, 2))
    values = stats.norm.logpdf(sample, scale=2).sum(1) - stats.norm.logpdf(sample, 1, sd).sum(1)
    assert error == pytest.approx(values.std() / 10_001**0.5, rel=0.1)


def test_the_first_time_within_a_nat():
    from answer_problems import first_within

    assert first_within([1.0, 2.0, 3.0, 4.0], [-9.0, -2.9, -2.1, -2.0], -2.0) == 2.0
    assert np.isnan(first_within([1.0], [-9.0], -2.0))


@pytest.mark.parametrize("library", ["numpyro", "pymc"])
@pytest.mark.parametrize("problem", ["eight-schools", "rpoisson"])
def test_a_peer_has_our_gradient(library, problem):
    pytest.importorskip(library)
    from answer_peers import check
    from answer_problems import build

    rng = np.random.default_rng(0)
    small = tv.models.RobustPoisson(rng.normal(size=(5, 2)), rng.poisson(2.0, size=5))
    model = build(problem) if problem == "eight-schools" else small
    if library == "numpyro":
        jax = pytest.importorskip("jax")
        from numpyro_models import flat_log_density

        jax.config.update("jax_enable_x64", True)
        theirs = jax.jit(jax.value_and_grad(flat_log_density(model)))
    else:
        from pymc_models import density_and_gradient, peer_of

        peer = peer_of(model)

        def theirs(point):
            return density_and_gradient(peer, point)

    check(model, theirs)
    with pytest.raises(SystemExit, match="differs"):
        check(model, lambda point: (0.0, np.asarray(theirs(point)[1]) * (1 + 1e-6)))


# ---- the table ----------------------------------------------------------------------------------------------
def rows(**changed):
    row = {"part": "answer", "problem": "rpoisson-small", "engine": "numpy", "method": "default"}
    return [{**row, "seconds": 0.9, "adam_ms": 0.5, "cpu_s": 1.0, "adam_cpu_ms": 0.5, "elbo": -4391.5, **changed}]


def test_rows_replace_those_of_the_same_case_alone(tmp_path):
    from answer_tables import merged, read, write

    frame = merged(read(tmp_path / "none.csv"), rows() + rows(engine="julia", seconds=0.4))
    seeds = [rows(part="seeds", method=f"seed {s}")[0] for s in range(3)]
    frame = merged(merged(frame, seeds), rows(seconds=0.8))
    write(frame, tmp_path / "table.csv")
    again = merged(read(tmp_path / "table.csv"), seeds[:2])
    found = sorted(zip(again["part"], again["engine"], again["seconds"], strict=True))
    assert found == [
        ("answer", "julia", 0.4),
        ("answer", "numpy", 0.8),
        *2 * [("seeds", "numpy", 0.9)],
    ]


def test_verdicts_follow_the_goals():
    from answer_tables import judged, not_met

    frame = pd.DataFrame(
        rows()  # 2,500 updates of half a millisecond would be 1.25 s, but a second is the limit
        + rows(engine="julia", seconds=1.1, elbo=-4392.1)
        + rows(problem="rpoisson-middle", seconds=1.1, elbo=-8655.4)
        + rows(problem="rpoisson-large", elbo=-43131.0)
        + rows(problem="irt-large", elbo=-2.0)
        + rows(part="adam", problem="rpoisson-large", family="structured", method="a", elbo=-43130.0)
        + rows(part="adam", problem="rpoisson-large", family="structured", method="b", elbo=-43132.0)
        + rows(part="adam", problem="irt-large", family="mean-field", method="a", elbo=-3.0)
        + rows(part="peers", method="nuts", seconds=9.0, without_compile=3.0, ours_s=1.0)
        + rows(part="peers", method="advi", seconds=9.0, without_compile=3.0, ours_s=1.0)
        + [rows(part="seeds", method=f"seed {k}", elbo=-4391.5 - k / 2)[0] for k in range(3)]
        + rows(problem="irt-middle")
    )
    tables = judged(frame)
    answer = tables["answer"]
    assert answer["in_time"].tolist() == ["yes", "no", "yes", "yes", "yes", "yes"]
    assert answer["high_enough"].tolist() == ["yes", "no", "yes", "no", "yes", "?"]
    np.testing.assert_allclose(answer["in_adam_updates"][:2], [1800, 2200])
    np.testing.assert_allclose(answer["in_adam_updates_cpu"][:2], 2000)
    assert tables["peers"]["fast_enough"].tolist() == ["no", ""]
    assert tables["seeds"][["range", "narrow_enough"]].to_numpy().tolist() == [[1.0, "yes"]]
    assert not_met(tables) == [
        "answer rpoisson-small default, julia engine: in_time: no",
        "answer rpoisson-small default, julia engine: high_enough: no",
        "answer rpoisson-large default, numpy engine: high_enough: no",
        "answer irt-middle default, numpy engine: high_enough: ?",
        "peers rpoisson-small nuts, numpy engine: fast_enough: no",
    ]


def test_the_peers_own_best_decides_how_long_they_took():
    from answer_peers import Trace, best_of

    model, traces = Normals(1), {"slow": Trace(), "low": Trace()}
    for seconds, mean in [(1.0, 9.0), (2.0, 4.0), (3.0, 0.5), (4.0, 0.0)]:  # ELBOs 1/8 mean^2 below the best
        traces["slow"].points.append((seconds, np.array([mean]), np.array([2.0])))
        traces["low"].points.append((seconds / 4, np.array([9.0]), np.array([2.0])))
    found = best_of(model, traces)
    assert (found["setting"], found["seconds"], found["without_compile"], found["watched_s"]) == ("slow", 3.0, 2.0, 4.0)
    assert found["elbo"] == pytest.approx(0.0, abs=1e-9)


def test_time_spent_twice_counts_once():
    from answer_peers import covered

    assert covered([(0.0, 1.0), (5.0, 9.0), (6.0, 7.0), (8.0, 10.0), (0.5, 1.5)]) == 6.5
    assert covered([]) == 0.0


# ---- five models from every language --------------------------------------------------------------------------
@pytest.mark.parametrize(("door", "library"), [("NumPyro", "numpyro"), ("PyMC", "pymc")])
def test_a_front_door_has_the_density_of_its_source(door, library):
    pytest.importorskip(library)
    import door_case
    from door_data import DATA

    data = DATA["eight schools"]()
    found = door_case.DOORS[door]("eight schools", data)
    names = {"tv": tv, "source": found.source, "data": data}
    exec(found.line, names)
    assert names["model"].structure == "globals: mu, tau; 8 local blocks of 1: e by school"
    assert door_case.largest_difference(names["model"], found) < 1e-10
    other = replace(found, density=lambda values: found.density({**values, "mu": values["mu"] + 1e-6}))
    assert door_case.largest_difference(names["model"], other) > 1e-10


def test_lines_of_a_model_are_those_with_code():
    from door_sources import lines_of

    def model(y):
        """Not this one."""
        import numpy

        # nor this
        a = numpy.sum(
            y,
        )

        return a

    assert lines_of(model) == 5


def test_gaps_are_those_of_the_worst_global_in_sds_of_numpyros_nuts():
    from doors import largest_gap, with_means

    means = with_means(pd.DataFrame(), "a", "NumPyro", {"nuts": {"mu": [1.0, 2.0], "tau": [3.0, 0.1], "e": [0.0, 1.0]}})
    means = with_means(means, "a", "PyMC", {"fit": {"mu": [9.0, 2.0]}})
    new = {"mu": [0.0, 9.0], "tau": [3.2, 9.0]}
    means = with_means(means, "a", "PyMC", {"fit": new})  # in the place of the earlier one
    means = with_means(means, "b", "PyMC", {"fit": {"mu": [9.0, 1.0]}})
    assert largest_gap(means, "a", "PyMC", "fit") == (pytest.approx(2.0), "tau")
    assert np.isnan(largest_gap(means, "b", "PyMC", "fit")[0])


def test_the_committed_table_has_every_case_and_says_what_is_promised():
    from doors import KEY, PROBLEMS, TABLE

    table = pd.read_csv(TABLE)
    assert table[KEY].values.tolist() == [[problem, door] for problem, doors in PROBLEMS.items() for door in doors]
    assert (table["difference"] <= 1e-10).all()
    assert (table["lines_more"] <= 2).all()
    assert (table["status"] == "converged").all()


# ---- the script ---------------------------------------------------------------------------------------------
def test_a_case_that_fails_is_told_and_leaves_no_row(monkeypatch, capsys):
    import time_to_answer

    case = SimpleNamespace(quiet=0.0, cores={0})
    monkeypatch.setattr(time_to_answer.os, "sched_setaffinity", lambda *_: None)
    assert time_to_answer.case("answer_case.py", "no-such-part", "eight-schools", case) == []
    assert "no-such-part eight-schools: " in capsys.readouterr().err


def test_the_script_fills_its_table_and_says_what_is_missed(monkeypatch, capsys, tmp_path):
    out = tmp_path / "table.csv"
    run(
        monkeypatch,
        "time_to_answer",
        "--only",
        "answer",
        "--problems",
        "eight-schools",
        "--out",
        str(out),
        "--seconds",
        ".1",
    )
    said = capsys.readouterr()
    assert "no Julia is set up" in said.err
    assert "| eight-schools | numpy |" in said.out
    [row] = pd.read_csv(out).to_dict("records")
    assert row["elbo"] == pytest.approx(7.7, abs=0.1)
    assert {"other_cores", "load", "cores", "cpu", "in_time", "high_enough"} <= set(row)
    verdicts = [f"{name}: no" in said.out for name in ("in_time", "high_enough")]
    assert verdicts == [row[name] == "no" for name in ("in_time", "high_enough")]


def test_the_committed_table_can_be_read():
    from answer_tables import judged, read, shown

    path = BENCHMARKS / "results" / "time_to_answer.csv"
    if not path.is_file():
        pytest.skip("not recorded yet")
    tables = judged(read(path))
    assert "rpoisson-small" in shown("answer", tables["answer"])
