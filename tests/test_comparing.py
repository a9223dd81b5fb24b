"""`tv.compare`: the report agrees with engines that agree, and with no others."""

from __future__ import annotations

import copy
import math
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from model_checks import BUNDLED, ONE_BUNDLED
from targets import GaussianTarget
from typer.testing import CliRunner

import pyturingvi as tv
from pyturingvi import cli
from pyturingvi.comparisons import compare as comparing
from pyturingvi.comparisons import measures, plan, recorded, timing
from pyturingvi.errors import DataError, EngineError, InputError, MemoryLimitError, OutputError
from pyturingvi.optimize.memory import fit_bytes

SMALL: dict[str, Any] = {"n_iterations": 20, "fit_iterations": 30, "n_runs": 3, "n_samples": 2, "progress": False}
FAULTS = ["log density", "gradient", "parameters", "ELBO"]


class SecondEngine(measures.Side):
    """The numpy engine in place of Julia, with generators of its own and one fault."""

    fault = ""

    def __init__(self, engine: str, n_threads: int = 1, dtype: str = "float64") -> None:
        super().__init__(engine, n_threads, dtype)
        self.second = engine == "julia"

    def log_density_and_gradient(self, model: tv.models.Model, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = model.log_density_and_gradient(points)
        if self.second and self.fault == "log density":
            value[-1] *= 1 + 1e-6
        if self.second and self.fault == "gradient":
            slope[0, np.argmax(abs(slope[0]))] *= 1 + 1e-6
        return value, slope

    def fit(self, model: tv.models.Model, *arguments: Any, **settings: Any) -> tv.Fit:
        if self.second:
            settings["seed"] = settings.get("seed", 0) + 1000
        found = super().fit(model, *arguments, engine="numpy", **settings)
        if self.second and self.fault == "parameters":
            found.params[-1] += 1e-6 * abs(found.params).max()
        if self.second and self.fault == "ELBO":
            found._rows = [(i, elbo + 1e4, error, seconds) for i, elbo, error, seconds in found._rows]
        return found


def one_update_timed(run: Any, seconds: float) -> list[float]:
    """In place of nine fits; tests of the times have the real one."""
    return [1e3 * float(run(1, elbo_every=1).seconds)]


@pytest.fixture
def second_engine(monkeypatch: pytest.MonkeyPatch) -> type[SecondEngine]:
    """A machine on which Julia runs, as far as `compare` sees."""

    class Engine(SecondEngine):
        pass

    monkeypatch.setattr(comparing, "Side", Engine)
    monkeypatch.setattr(comparing, "_julia", lambda demanded: (SimpleNamespace(version="0.0.0"), ""))
    monkeypatch.setattr(measures, "update_times", one_update_timed)
    return Engine


@pytest.fixture
def no_julia(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have started Julia in this process."""
    from pyturingvi.bridge import runtime as julia_runtime

    def refuse() -> None:
        raise EngineError("no Julia environment is set up.")

    monkeypatch.setattr(julia_runtime, "start_julia", refuse)
    monkeypatch.setattr(measures, "update_times", one_update_timed)


# ---- verdicts -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["isotropic", "irt"])
def test_engines_that_agree_are_said_to_agree(second_engine: Any, name: str) -> None:
    found = tv.compare(copy.deepcopy(BUNDLED[name]), **SMALL)
    frame = found.frame()
    assert found.agrees
    assert frame["agrees"].sum() == 2 + 3 * 2 + 3  # points; families by optimizers; families
    assert found.source == "live Julia 0.0.0"
    assert list(frame["part"].unique()) == ["points", "path", "elbo", "time"]
    assert frame["difference"].notna().all()
    assert found.to_markdown().splitlines()[0].endswith("numpy engine beside live Julia 0.0.0.")
    assert "all 11 verdicts agree" in repr(found)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_engine_that_is_wrong_in_one_thing_is_found_out_in_that(
    second_engine: Any, poisson: tv.models.Model, fault: str
) -> None:
    second_engine.fault = fault
    found = tv.compare(poisson, ["mean-field", "structured"], **SMALL)
    frame = found.frame()
    against = frame[frame["agrees"].eq(False).fillna(False)]
    assert not found.agrees
    assert set(against["quantity"]) == {"mean final ELBO" if fault == "ELBO" else fault}
    assert len(against) == {"parameters": 4, "ELBO": 2}.get(fault, 1)
    if fault != "ELBO":
        np.testing.assert_allclose(against["difference"], 1e-6, rtol=1e-3)
    assert f"{len(against)} of 8 do NOT agree" in found.to_markdown()
    assert found.to_markdown().count("**NO**") == len(against)


def test_the_elbo_is_judged_by_welchs_statistic(poisson: tv.models.Model) -> None:
    rng = np.random.default_rng(0)
    here, there = rng.normal(0, 1, 6), rng.normal(1, 3, 9)
    runs = {"numpy": [(x, 0.0) for x in here], "julia": [(x, 0.0) for x in there]}
    row = measures.elbo_row(poisson, tv.MeanField(), tv.Adam(1e-3), "ELBO", 10, runs, "")
    expected = scipy.stats.ttest_ind(here, there, equal_var=False).statistic
    assert row["difference"] == pytest.approx(abs(expected), rel=1e-12)
    # runs that lie close together by chance are no closer than the draws behind each estimate allow
    runs = {"numpy": [(0.0, 3.0)] * 9, "julia": [(1.0, 4.0)] * 4}
    row = measures.elbo_row(poisson, tv.MeanField(), tv.Adam(1e-3), "ELBO", 10, runs, "")
    assert (row["numpy_error"], row["julia_error"]) == (1.0, 2.0)
    assert row["agrees"]


def test_a_diverged_run_leaves_no_verdict_on_the_elbo(second_engine: Any, poisson: tv.models.Model) -> None:
    settings = {**SMALL, "optimizers": [tv.SGD(1.0)]}
    found = tv.compare(poisson, "mean-field", **settings)
    frame = found.frame().set_index("part")
    assert pd.isna(frame.loc["elbo", "agrees"])
    assert "3 of 3 numpy and 3 of 3 julia runs diverged" in frame.loc["elbo", "note"]
    assert frame.loc["path", "agrees"].isna().all()
    assert "smaller stepsize" in frame.loc["path", "note"].iloc[-1]


def test_a_path_that_ends_in_one_engine_only_does_not_agree(poisson: tv.models.Model) -> None:
    fit = tv.fit(poisson, "mean-field", tv.Adam(1e-3), n_iterations=20, engine="numpy", progress=False)
    noise = np.zeros((20, 8, poisson.dim))
    row = measures.path_row(poisson, tv.MeanField(), tv.Adam(1e-3), noise, fit, fit.params, 13, True)
    assert row["agrees"] is False
    assert "20 (numpy) and 13 (julia)" in row["note"]


def test_figures_that_are_not_finite_do_not_agree(poisson: tv.models.Model) -> None:
    slope = np.ones((2, poisson.dim))
    one, two = measures.point_rows(poisson, (np.array([1.0, math.nan]), slope), (np.ones(2), slope))
    assert (one["agrees"], two["agrees"]) == (False, True)


@pytest.mark.parametrize("reference", [None, "recorded"])
def test_paths_in_single_precision_get_no_verdict_and_the_report_says_why(
    second_engine: Any, poisson: tv.models.Model, reference: str | None
) -> None:
    found = tv.compare(poisson, "structured", dtype="float32", reference=reference, **SMALL)
    frame = found.frame()
    assert frame.loc[frame["part"] == "path", "agrees"].isna().all()
    assert frame.loc[frame["part"] != "path", "agrees"].sum() == 3
    assert found.to_markdown().count("float32: no verdict") == 2


def test_the_verdict_is_on_the_first_200_updates(second_engine: Any, poisson: tv.models.Model) -> None:
    frame = tv.compare(poisson, "mean-field", **{**SMALL, "n_iterations": 400}).frame()
    adam = frame[(frame["part"] == "path") & (frame["optimizer"] == "adam")]
    assert adam["iteration"].tolist() == [1, 20, 100, 200, 400]
    assert adam.loc[adam["agrees"].notna(), "iteration"].tolist() == [200]


def test_the_seed_gives_the_same_figures_again(second_engine: Any, poisson: tv.models.Model) -> None:
    seeds = (2**70, 2**70, 4)
    one, two, other = (tv.compare(poisson, "structured", seed=seed, **SMALL).frame() for seed in seeds)
    measured = one["part"] != "time"
    pd.testing.assert_frame_equal(one[measured], two[measured])
    assert not one["numpy"].equals(other["numpy"])


def test_a_family_that_is_too_large_is_skipped_and_the_report_says_why(
    second_engine: Any, poisson: tv.models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MOST_PARAMS", 500)
    found = tv.compare(poisson, **SMALL)
    skipped = found.frame().query("part == 'skipped'")
    assert skipped["family"].tolist() == ["full-rank"]
    assert "too long" in skipped["note"].iloc[0]
    assert "### Skipped" in found.to_markdown()
    monkeypatch.setattr(plan, "MOST_PARAMS", 10**9)
    noise = 8 * SMALL["n_iterations"] * SMALL["n_samples"] * poisson.dim
    needed = fit_bytes(tv.FullRank(), poisson.layout, 8, 2, SMALL["n_samples"], elbo_samples=plan.ELBO_SAMPLES) + noise
    monkeypatch.setattr("pyturingvi.optimize.memory.available_memory", lambda device="cpu": needed - 1)
    assert "than is free" in tv.compare(poisson, **SMALL).frame().query("part == 'skipped'")["note"].iloc[0]


def test_times_are_of_both_engines_and_say_who_else_was_at_work(
    poisson: tv.models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "busy_others", lambda: lambda: 1.5)
    sides = [SecondEngine("numpy"), SecondEngine("julia")]
    row = measures.time_row(sides, poisson, tv.MeanField(), tv.Adam(1e-3), 2, 0.02)
    assert 0.01 < row["numpy"] < 100
    assert row["difference"] == row["numpy"] / row["julia"]
    assert "other processes used 1.5 cores meanwhile: no measure" in row["note"]  # the picture looks for the words


def test_a_fit_is_timed_update_by_update() -> None:
    now = 0.0

    def run(n: int, elbo_every: int, callback: Any = lambda *_: False) -> SimpleNamespace:
        """Updates of two milliseconds each, the first ten of them slow."""
        nonlocal now
        start = now
        for k in range(1, n + 1):
            now += 2e-3 if k > 10 else 1.0
            if k % elbo_every == 0 and callback(k, 0.0):
                break
        return SimpleNamespace(seconds=now - start)

    times = timing.update_times(run, 0.19, every=10, clock=lambda: now)
    assert len(times) == 10
    np.testing.assert_allclose(times, 2.0)
    assert timing.updates_in(lambda n, **_: SimpleNamespace(seconds=2e-3 * n), 0.1) == 50


def test_the_work_of_other_processes_is_measured() -> None:
    spin = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"
    others = timing.busy_others()
    with subprocess.Popen([sys.executable, "-c", spin]) as child:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.6)
            assert others() > 0.2
        finally:
            child.kill()


# ---- the record, without Julia ------------------------------------------------------------------------------
@pytest.mark.parametrize(  # test_julia_reference has every family of every model
    ("name", "families"),
    [
        ("isotropic", ["mean-field", "structured", tv.Structured(standardized=False), "markov", "full-rank"]),
        ("poisson", ["structured"]),
        ("irt", ["mean-field"]),
        ("volatility", ["markov"]),
    ],
)
def test_without_julia_the_record_is_compared_and_the_first_line_says_so(
    no_julia: None, name: str, families: list[Any]
) -> None:
    bundled_model, n = copy.deepcopy(BUNDLED[name]), len(families)
    found = tv.compare(bundled_model, families, **SMALL)
    frame, text = found.frame(), found.to_markdown()
    about = recorded.RecordedReference(bundled_model.name).about
    assert text.splitlines()[0].endswith(f"recorded reference of {about['date']}, Julia {about['julia']}.")
    assert "no Julia environment is set up" in text
    assert f"recorded {bundled_model.name} (N=" in text
    assert found.agrees
    # points; families by optimizers; the ELBO at the end of each Adam path
    assert frame["agrees"].sum() == 2 + n * 2 + n
    own = frame[frame["model"] == bundled_model.label]
    assert own["part"].tolist() == ["elbo"] * n + ["time"] * n
    assert own.loc[own["part"] == "elbo", "numpy"].notna().all()  # a time may be lost on a busy machine
    assert own["julia"].isna().all()
    assert text.count("| not available |") >= max(n, 2 * n - 2)


def test_the_record_finds_out_an_engine_that_is_wrong(
    no_julia: None, poisson: tv.models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = recorded.RecordedReference.path

    def wrong(self: Any, family: Any, rule: str) -> Any:
        path = right(self, family, rule)
        path.params[3] += 1e-6
        return path

    monkeypatch.setattr(recorded.RecordedReference, "path", wrong)
    frame = tv.compare(poisson, "structured", **SMALL).frame()
    assert frame.loc[frame["agrees"].eq(False).fillna(False), "optimizer"].tolist() == ["adam", "proximal-sgd"]


def test_what_was_not_recorded_is_said_not_to_be_available(no_julia: None, poisson: tv.models.Model) -> None:
    family = tv.Structured(base="laplace")
    found = tv.compare(poisson, [family, "mean-field"], optimizers=["adam", "sgd"], **SMALL)
    path = found.frame().query("part == 'path'").set_index(["family", "optimizer"])
    missing = path["note"].str.contains("not recorded")
    assert missing.tolist() == [True, True, False, True]
    assert path["agrees"].notna().tolist() == (~missing).tolist()
    assert path.index[0][0] == "structured(base=laplace)"


def test_a_missing_record_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorded, "__file__", str(tmp_path / "pyturingvi" / "comparisons" / "recorded.py"))
    with pytest.raises(DataError, match="missing from this installation"):
        recorded.reference_directory()


# ---- what is refused ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("reference", [None, "recorded"])
def test_a_model_that_one_engine_runs_is_refused(gaussian_target: GaussianTarget, reference: str | None) -> None:
    class Mine(tv.models.IsotropicGaussian):
        pass

    own = tv.models.LogDensity(gaussian_target.log_density_and_gradient, gaussian_target.layout)
    for model, words in (
        (own, "engine 'julia' cannot run tv.models.LogDensity"),
        (Mine(4), "engine 'julia' cannot run .*Mine, a model of your own"),
        (tv.models.Turing.__new__(tv.models.Turing), "engine 'numpy' cannot run tv.models.Turing"),
    ):
        with pytest.raises(InputError, match=words):
            tv.compare(model, reference=reference, **SMALL)


class MyAdam(tv.Adam):
    """A rule of one's own, which Julia does not have."""


class InBoth(tv.models.IsotropicGaussian):
    """A model of one's own that Julia is given too."""

    def to_julia(self, runtime: Any) -> Any:
        raise AssertionError


def test_a_model_of_ones_own_is_compared_with_julia_itself(second_engine: Any) -> None:
    assert tv.compare(InBoth(4), "structured", **SMALL).agrees


def test_a_model_of_ones_own_is_never_compared_with_the_record(no_julia: None) -> None:
    with pytest.raises(InputError, match="InBoth, a model of your own was not recorded"):
        tv.compare(InBoth(4), reference="recorded", **SMALL)
    with pytest.raises(EngineError, match="reference='julia': no Julia environment is set up"):
        tv.compare(InBoth(4), **SMALL)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "rpoisson-smal"}, "rpoisson-small"),
        ({"model": 3}, "must be a problem's name"),
        ({"families": "structred"}, "structured"),
        ({"families": []}, "families is empty"),
        ({"families": ["structured", tv.Structured()]}, "families names 'structured' twice"),
        ({"optimizers": ()}, "optimizers is empty"),
        ({"optimizers": "adm"}, "adam"),
        ({"optimizers": [tv.Adam(1e-2), "adam"]}, "optimizers names 'adam' twice"),
        ({"stepsize": -1}, "stepsize"),
        ({"n_runs": 1}, "n_runs must be a whole number of at least 2"),
        ({"n_iterations": 0}, "n_iterations"),
        ({"fit_iterations": 0}, "fit_iterations"),
        ({"n_points": 0}, "n_points"),
        ({"n_threads": 0}, "n_threads"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**1024 - 2, "n_runs": 3}, "seed must be at most"),
        ({"optimizers": [MyAdam(1e-3)]}, "engine 'julia' cannot run your own class .*MyAdam"),
        ({"dtype": "float16"}, "float32"),
        ({"reference": "recored"}, "recorded"),
        ({"simulated": True}, "go with a problem's name"),
    ],
)
def test_a_mistake_is_refused_before_any_work(
    second_engine: Any, poisson: tv.models.Model, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        tv.compare(**{"model": poisson, **SMALL, **changes})


def test_julia_is_demanded_in_vain(no_julia: None, poisson: tv.models.Model) -> None:
    with pytest.raises(EngineError, match="reference='julia': no Julia environment is set up"):
        tv.compare(poisson, reference="julia", **SMALL)


def test_noise_that_does_not_fit_in_memory_is_refused(second_engine: Any, poisson: tv.models.Model) -> None:
    with pytest.raises(MemoryLimitError, match="choose a smaller n_iterations"):
        tv.compare(poisson, **{**SMALL, "n_iterations": 10**7, "n_samples": 10**6})


@pytest.mark.parametrize("reference", [None, "julia"])
def test_points_that_do_not_fit_in_memory_are_refused_before_julia_starts(
    poisson: tv.models.Model, monkeypatch: pytest.MonkeyPatch, reference: str | None
) -> None:
    monkeypatch.setattr(comparing, "_julia", lambda demanded: pytest.fail("Julia was started"))
    with pytest.raises(MemoryLimitError, match="choose a smaller n_points"):
        tv.compare(poisson, reference=reference, **SMALL, n_points=10**12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--families", "structured,"), "--families must be names with commas between them, got 'structured,'"),
        (("--runs", "1"), "--runs must be a whole number of at least 2, got 1"),
        (("--out", f"{__file__}/below"), "--out: cannot make the folder"),
        (("--iterations", "0"), "--iterations must be a whole number of at least 1, got 0"),
    ],
)
def test_the_command_names_its_own_options(options: tuple[str, ...], words: str) -> None:
    with pytest.raises((InputError, OutputError), match=f"^{words}"):
        CliRunner().invoke(cli.app, ["compare", "rpoisson-small", *options], catch_exceptions=False)


@pytest.mark.parametrize("every", [5, 20], ids=["in the middle", "after the last update"])
def test_ctrl_c_in_a_fit_ends_the_comparison(poisson: tv.models.Model, every: int) -> None:
    def press(iteration: int, elbo: float) -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append(iteration)

    reached: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        measures.Side("numpy").fit(poisson, tv.MeanField(), tv.Adam(1e-3), 20, elbo_every=every, callback=press)
    assert reached == [every]


# ---- the report ---------------------------------------------------------------------------------------------
def test_a_saved_report_can_be_drawn_again(second_engine: Any, poisson: tv.models.Model, tmp_path: Path) -> None:
    poisson.label = "rpoisson-small (simulated)"
    found = tv.compare(poisson, ["mean-field", "structured"], **SMALL)
    paths = found.save(tmp_path / "new")
    assert [path.name for path in paths] == [f"compare_rpoisson-small-simulated.{end}" for end in ("csv", "md", "png")]
    frame = pd.read_csv(paths[0])
    again = tv.Comparison(frame, frame["source"][0], found.label, found.remarks)
    pd.testing.assert_frame_equal(again.frame(), found.frame())
    assert again.to_markdown() == found.to_markdown() == paths[1].read_text()
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError):
        found.save(paths[0])


def test_the_plot_shows_every_path_and_both_engines(second_engine: Any, poisson: tv.models.Model) -> None:
    import matplotlib.pyplot as plt

    found = tv.compare(poisson, **SMALL)
    figure, axes = plt.subplots(1, 3)
    assert found.plot(axes) is figure
    assert len(axes[0].lines) == 6 + 1  # and the tolerance
    assert [len(axis.containers) for axis in axes] == [0, 2, 2]
    with pytest.raises(InputError, match="three Axes"):
        found.plot(axes[:2])
    plt.close(figure)
    plt.close(found.plot())


# ---- the command --------------------------------------------------------------------------------------------
def test_the_command_without_julia_prints_the_report_and_writes_it(
    no_julia: None, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.Plan, "updates_of", lambda *_: 20)
    options = "volatility-small --simulated --runs 2 --families mean-field --seed 1 --quiet --out report"
    code, shown, _ = command("compare", *options.split())
    assert code == 0
    first = shown.splitlines()[0]
    assert first.startswith("volatility-small (simulated): pyturingvi's numpy engine beside recorded reference of ")
    assert "all 5 verdicts agree" in shown
    assert len(list((tmp_path / "report").glob("compare_volatility-small-simulated.*"))) == 3


def test_the_command_ends_with_1_where_something_does_not_agree(
    second_engine: Any, monkeypatch: pytest.MonkeyPatch, poisson: tv.models.Model
) -> None:
    monkeypatch.setattr(tv, "load_problem", lambda *_, **__: poisson)
    options = ["compare", "rpoisson-small", "--families", "mean-field, structured", "--iterations", "10", "--runs", "2"]
    monkeypatch.setattr(plan.Plan, "updates_of", lambda *_: 20)
    for fault, code in (("", 0), ("gradient", 1)):
        second_engine.fault = fault
        done = CliRunner().invoke(cli.app, [*options, "--quiet"])
        assert done.exit_code == code, done.output
        assert ("**NO**" in done.stdout) == bool(code)


def test_a_mistake_in_the_command_is_one_line(command: Any) -> None:
    code, shown, errors = command("compare", "rpoisson-small", "--families", "structred")
    assert (code, shown) == (2, "")
    assert len(errors.strip().splitlines()) == 1
    assert "structured" in errors


# ---- Julia itself -------------------------------------------------------------------------------------------
@pytest.mark.julia
@pytest.mark.parametrize("bundled_model", ONE_BUNDLED, indirect=True)
def test_julia_agrees(bundled_model: tv.models.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_TIMED_SECONDS", 1e-3)
    families = ["mean-field", "structured", tv.Structured(standardized=False), "markov", "full-rank"]
    rules = ["adam", "proximal-sgd", tv.SGD(1e-4), tv.ProjectedSGD(1e-4, 0.05)]
    settings = {**SMALL, "n_iterations": 200, "n_runs": 4}
    found = tv.compare(bundled_model, families, optimizers=rules, reference="julia", **settings)
    frame = found.frame()
    assert found.agrees, found.to_markdown()
    assert frame["agrees"].sum() == 2 + 5 * 4 + 5
    assert found.source == f"live Julia {tv.start_julia().version}"
    times = frame.loc[frame["part"] == "time", ["numpy", "julia"]].to_numpy(float)
    assert times.shape == (5, 2)
    assert ((times > 0.001) & (times < 100)).all()
