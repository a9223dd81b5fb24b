"""The command line as a user meets it: its output, its files and its exit code."""

import copy

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import pyturingvi as tv
from pyturingvi import cli, fitting


@pytest.fixture
def here(tmp_path, command):
    """The command in this process, in a folder with one file: exit code, standard output and standard error."""
    (tmp_path / "file").write_text("a regular file")
    return command


def test_fit_writes_a_usable_fit_and_a_picture_and_prints_the_summary(tmp_path, here):
    """By natural gradients until they have converged, if nothing is said."""
    code, shown, errors = here("fit", "rpoisson-small", "--family", "mean-field")
    assert code == 1
    assert "With the locals integrated out, means would move" in errors  # which speaks against it
    assert "beta[age]" in shown
    assert "ELBO" in shown
    fit = tv.load_fit(tmp_path / "rpoisson-small-mean-field.npz")
    assert fit.status == "converged"
    assert fit.model.label == "rpoisson-small"
    assert fit.spec.optimizer == tv.NaturalGradient().config()
    assert fit.spec.n_iterations is None
    assert (tmp_path / "rpoisson-small-mean-field.png").read_bytes().startswith(b"\x89PNG")


def test_with_a_stepsize_it_fits_by_adam(tmp_path, here):
    options = "--stepsize 0.01 --iterations 30 --no-plot --quiet --out fit.npz"
    code, _, _ = here("fit", "volatility-small", "--simulated", *options.split())
    fit = tv.load_fit(tmp_path / "fit.npz")
    assert (code, fit.status, fit.n_updates) == (1, "completed", 30)
    assert fit.spec.optimizer == tv.Adam(0.01).config()


@pytest.mark.parametrize(
    ("options", "scale"), [("", 0.1), ("--stepsize 0.01", 0.1), ("--stepsize 0.01 --variant released", 0.1**0.5)]
)
def test_the_released_variant_is_fitted_by_adam_from_where_its_code_starts(here, monkeypatch, options, scale):
    def refuse(model, settings, **others):
        raise tv.errors.InputError(f"{model.label}: {settings.init_scale:.6g}")

    monkeypatch.setattr("pyturingvi.fitting.run", refuse)
    code, _, errors = here("fit", "irt-small", "--simulated", *options.split())
    label = "simulated, released" if "--variant" in options else "simulated"
    assert (code, errors) == (2, f"Error: irt-small ({label}): {scale:.6g}\n")


def test_what_the_released_variant_does_not_have_is_refused(here, tmp_path, monkeypatch):
    def refuse():
        raise tv.errors.EngineError("no Julia environment is set up.")

    monkeypatch.setattr("pyturingvi.bridge.runtime.start_julia", refuse)  # Julia would compare it
    code, _, errors = here("fit", "verbagg", "--variant", "released")
    assert code == 2
    assert "the paper's released code has no verbagg" in errors
    code, _, errors = here("compare", "rpoisson-small", "--variant", "released")  # which was not recorded
    assert code == 2
    assert "reference='julia'" in errors
    code, _, errors = here("reproduce", "theory", "--variant", "released")
    assert (code, "not with theory" in errors) == (2, True)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    code, _, errors = here("fit", "table.csv", "--model", "irt", "--variant", "released")
    assert (code, "--variant go with the name of a problem" in errors) == (2, True)


@pytest.mark.parametrize(
    ("options", "counts"),
    [("", (None, None, None)), ("--iterations 70", (70, None, None)), ("--stepsize 0.01", (20_000, 8, 100))],
)
def test_what_the_command_leaves_open(here, monkeypatch, options, counts):
    def refuse(model, settings, **others):
        raise tv.errors.InputError(repr((settings.n_iterations, settings.n_samples, settings.elbo_every)))

    monkeypatch.setattr("pyturingvi.fitting.run", refuse)
    code, _, errors = here("fit", "volatility-small", "--simulated", *options.split())
    assert (code, errors) == (2, f"Error: {counts}\n")


def test_refine_corrects_the_globals_of_a_table(tmp_path, here):
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    counts = rng.poisson(np.exp(0.5 + 0.4 * x + 0.5 * rng.normal(size=30)))
    pd.DataFrame({"x": x, "counts": counts}).to_csv(tmp_path / "table.csv", index=False)
    options = "--model robust-poisson --response counts --covariates x --refine --no-plot --quiet"
    code, shown, errors = here("fit", "table.csv", *options.split())
    assert (code, len(errors.splitlines())) == (0, 1)
    assert errors.startswith("wrote ")
    assert "table, structured, refined, numpy engine: integrated bound" in shown
    assert "effective sample size" in shown
    fit = tv.load_fit(tmp_path / "table-structured-refined.npz")
    assert fit.refined.weighted
    python = tv.fit(fit.model, refine=True, progress=False)
    np.testing.assert_array_equal(fit.params, python.params)


def test_globals_that_would_move_are_corrected_where_nothing_else_was_asked_for(tmp_path, here, monkeypatch):
    """By three commands, which make the same fit before they part: it is made once."""
    run, made = fitting.run, []

    def run_once(model, settings, **others):
        if not made:
            made.append((settings, others, run(model, settings, **others)))
        assert (settings, others) == made[0][:2]
        return copy.deepcopy(made[0][2])

    monkeypatch.setattr("pyturingvi.fitting.run", run_once)
    options = "--quiet --no-plot --out fit.npz".split()
    code, shown, errors = here("fit", "rpoisson-small", *options)
    fit = tv.load_fit(tmp_path / "fit.npz")
    assert (code, fit.status, fit.advice) == (0, "converged", [])
    assert "rpoisson-small, structured, refined, numpy engine: integrated bound" in shown
    assert "log s_eta by about" in errors
    assert "They are corrected now (--no-refine leaves them)." in errors
    # as the long NUTS run of docs/results.md has it
    assert abs(fit.summary().loc["s_eta", "mean"] - 1.3555) < 0.2 * 0.0375
    code, shown, errors = here("fit", "rpoisson-small", "--no-refine", *options)
    left = tv.load_fit(tmp_path / "fit.npz")
    assert (code, left.refined, len(left.advice)) == (1, None, 1)
    assert left.advice[0] in errors

    monkeypatch.setattr("pyturingvi.refine.refine.expected_seconds", lambda fit: 600.0)
    code, shown, errors = here("fit", "rpoisson-small", *options)
    assert (code, tv.load_fit(tmp_path / "fit.npz").refined) == (1, None)
    assert "To correct them takes some 10 minutes: --refine does it." in errors
    assert left.advice[0] in errors

    def too_large(model):
        raise tv.errors.MemoryLimitError("no room to refine.")

    monkeypatch.setattr("pyturingvi.refine.refine.check_refinable", lambda *_: too_large(None))
    code, shown, errors = here("fit", "rpoisson-small", *options)
    assert (code, "no room to refine." in errors) == (1, True)
    np.testing.assert_array_equal(tv.load_fit(tmp_path / "fit.npz").params, left.params)


def test_a_refinement_that_does_not_fit_is_refused_before_any_work(here, tmp_path, monkeypatch):
    monkeypatch.setattr("pyturingvi.optimize.memory.available_memory", lambda device="cpu": 300_000)
    code, _, errors = here(*"fit volatility-small --simulated --refine --no-plot".split())
    assert (code, "refine with" in errors, "300,000 bytes" in errors) == (2, True, True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_budget_that_is_used_up_is_saved_and_ends_with_code_1(tmp_path, here):
    code, _, errors = here(*"fit volatility-small --simulated --iterations 20 --no-plot --quiet --out fit.npz".split())
    fit = tv.load_fit(tmp_path / "fit.npz")
    assert (code, fit.status, fit.n_updates) == (1, "completed", 20)
    assert errors.splitlines()[-1] == "completed: 20 updates made without converging"


@pytest.mark.parametrize("family", [(), ("--family", "structured")])
def test_conditional_widths_are_an_option_whose_file_has_its_own_name(tmp_path, here, family):
    arguments = "fit volatility-small --simulated --iterations 20 --no-plot --quiet --conditional-scale".split()
    _, shown, _ = here(*arguments, *family)
    fit = tv.load_fit(tmp_path / "volatility-small-simulated-conditional-scale-structured.npz")
    assert fit.family == tv.Structured(conditional_scale=True)
    assert ", conditional-scale structured, " in shown


def test_a_simulated_problem_says_so_in_its_output_and_its_file_name(tmp_path, here):
    _, shown, _ = here(*"fit volatility-small --simulated --iterations 20 --no-plot --quiet".split())
    assert "simulated" in shown
    assert {path.name for path in tmp_path.iterdir()} == {"file", "volatility-small-simulated-markov.npz"}


def test_a_diverged_fit_is_saved_and_ends_with_code_1(tmp_path, here):
    options = "--stepsize 1e15 --iterations 50 --quiet --no-plot --out here.npz"
    code, _, errors = here("fit", "rpoisson-small", *options.split())
    assert code == 1
    assert "diverged" in errors
    assert tv.load_fit(tmp_path / "here.npz").status == "diverged"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("rpoisson-smal", "rpoisson-small"),
        ("irt-small", "--simulated"),
        # values come before the data, which are not to be had here
        ("irt-small --family structred", "structured"),
        ("irt-small --family markov --conditional-scale", "--conditional-scale goes with --family structured"),
        ("irt-small --stepsize 0", "stepsize"),
        ("irt-small --stepsize nan", "stepsize"),
        ("irt-small --iterations 0", "n_iterations"),
        ("irt-small --stepsize 0.01 --iterations 0", "n_iterations"),
        ("irt-small --samples 0", "n_samples"),
        ("irt-small --samples 3", "even"),
        ("irt-small --elbo-samples 0", "elbo_samples"),
        ("irt-small --elbo-every 0", "elbo_every"),
        ("irt-small --seed -1", "seed"),
        ("irt-small --engine numppy", "numpy"),
        ("irt-small --device gpu", "device"),
        ("irt-small --dtype float16", "float32"),
        ("irt-small --max-memory 0", "max_memory"),
        ("irt-small --checkpoint missing/run.npz", "does not exist"),
        ("irt-small --checkpoint file/below.npz", "not a directory"),
        ("rpoisson-large --family full-rank --max-memory 1e9", "bytes"),
        ("rpoisson-small --out file/below.npz", "not a directory"),
        ("rpoisson-small --data-dir missing", "missing"),
        ("rpoisson-small --data-dir ~nosuchuser", "data_dir"),
        ("rpoisson-small --checkpoint x.npz --out x.npz", "same file"),
    ],
)
def test_a_mistake_gets_one_line_that_names_it_and_code_2(tmp_path, here, arguments, words):
    code, _, errors = here("fit", *arguments.split())
    assert code == 2
    assert words in errors
    assert errors.startswith("Error: ")
    assert len(errors.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("option", ["--preset nonsense", "--from-csv", "--workers 2"])
def test_the_list_of_figures_goes_alone(option, here):
    code, _, errors = here("reproduce", "list", *option.split())
    assert (code, errors) == (2, f"Error: reproduce list goes alone, without {option.split()[0]}.\n")


@pytest.mark.parametrize(
    ("arguments", "interrupted", "words"),
    [
        ("reproduce synthetic", "reproduce.figure.reproduce", "Interrupted; the same command goes on from here.\n"),
        ("compare rpoisson-small", "compare", "Interrupted.\n"),
    ],
)
def test_a_ctrl_c_is_one_line_and_code_130(arguments, interrupted, words, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"pyturingvi.{interrupted}", interrupt)
    done = CliRunner().invoke(cli.app, arguments.split())
    assert (done.exit_code, done.stderr, done.stdout) == (130, words, "")


def test_problems_lists_the_nine_problems_and_verbagg(here):
    code, shown, _ = here("problems")
    assert code == 0
    assert all(f"{kind}-{size}" in shown for kind in ("rpoisson", "volatility", "irt") for size in ("small", "large"))
    assert "566817614" in shown
    assert "verbagg" in shown.splitlines()[-1]


def test_help_shows_every_command(here):
    code, shown, _ = here("--help")
    assert code == 0
    assert all(word in shown for word in ("problems", "fit", "compare", "reproduce", "setup", "doctor"))
