"""The command line as a user meets it: a subprocess, its output, its files and its exit code."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import pyturingvi as tv
from pyturingvi import cli


def run(*arguments, cwd, timeout=120):
    environment = {**os.environ, "PYTHONWARNINGS": "error", "MPLBACKEND": "Agg", "COLUMNS": "120"}
    command = [sys.executable, "-m", "pyturingvi.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, env=environment)


def test_fit_writes_a_usable_fit_and_a_picture_and_prints_the_summary(tmp_path):
    done = run("fit", "rpoisson-small", "--family", "mean-field", "--iterations", 200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "beta[age]" in done.stdout
    assert "ELBO" in done.stdout
    fit = tv.load_fit(tmp_path / "rpoisson-small-mean-field.npz")
    assert fit.status == "completed"
    assert fit.model.label == "rpoisson-small"
    assert (tmp_path / "rpoisson-small-mean-field.png").read_bytes().startswith(b"\x89PNG")


def test_a_simulated_problem_says_so_in_its_output_and_its_file_name(tmp_path):
    arguments = ("fit", "volatility-small", "--simulated", "--iterations", 20, "--no-plot", "--quiet")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["volatility-small-simulated-structured.npz"]


def test_a_diverged_fit_is_saved_and_ends_with_code_1(tmp_path):
    arguments = ("fit", "rpoisson-small", "--stepsize", 1e15, "--iterations", 50, "--quiet", "--no-plot")
    done = run(*arguments, "--out", "here.npz", cwd=tmp_path)
    assert done.returncode == 1
    assert "diverged" in done.stderr
    assert tv.load_fit(tmp_path / "here.npz").status == "diverged"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit", "rpoisson-smal"), "rpoisson-small"),
        (("fit", "rpoisson-small", "--family", "structred"), "structured"),
        (("fit", "rpoisson-small", "--stepsize", "0"), "stepsize"),
        (("fit", "rpoisson-small", "--stepsize", "nan"), "stepsize"),
        (("fit", "rpoisson-small", "--iterations", "0"), "n_iterations"),
        (("fit", "rpoisson-small", "--samples", "0"), "n_samples"),
        (("fit", "rpoisson-small", "--dtype", "float16"), "float32"),
        (("fit", "rpoisson-small", "--engine", "numppy"), "numpy"),
        (("fit", "irt-small"), "--simulated"),
        # values come before the data, which are not to be had here
        (("fit", "irt-small", "--stepsize", "0"), "stepsize"),
        (("fit", "irt-small", "--samples", "0"), "n_samples"),
        (("fit", "irt-small", "--elbo-samples", "0"), "elbo_samples"),
        (("fit", "irt-small", "--seed", "-1"), "seed"),
        (("fit", "irt-small", "--engine", "numppy"), "numpy"),
        (("fit", "irt-small", "--device", "gpu"), "device"),
        (("fit", "irt-small", "--dtype", "float16"), "float32"),
        (("fit", "irt-small", "--max-memory", "0"), "max_memory"),
        (("fit", "irt-small", "--checkpoint", "missing/run.npz"), "does not exist"),
        (("fit", "rpoisson-large", "--family", "full-rank", "--max-memory", "1e9"), "bytes"),
        (("fit", "rpoisson-small", "--out", "file/below.npz"), "not a directory"),
        (("fit", "rpoisson-small", "--checkpoint", "file/below.npz"), "not a directory"),
        (("fit", "rpoisson-small", "--checkpoint", "missing/run.npz"), "does not exist"),
        (("fit", "rpoisson-small", "--data-dir", "missing"), "missing"),
        (("fit", "rpoisson-small", "--data-dir", "~nosuchuser"), "data_dir"),
        (("fit", "rpoisson-small", "--seed", "-1"), "seed"),
        (("fit", "rpoisson-small", "--checkpoint", "x.npz", "--out", "x.npz"), "same file"),
    ],
)
def test_a_mistake_gets_one_line_that_names_it_and_code_2(tmp_path, arguments, words):
    (tmp_path / "file").write_text("a regular file")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("option", [("--preset", "nonsense"), ("--from-csv",), ("--workers", "2")])
def test_the_list_of_figures_goes_alone(option, tmp_path):
    done = run("reproduce", "list", *option, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"Error: reproduce list goes alone, without {option[0]}.\n"


@pytest.mark.parametrize(
    ("arguments", "interrupted", "words"),
    [
        (
            ["reproduce", "synthetic"],
            "pyturingvi.reproduce.figure.reproduce",
            "Interrupted; the same command goes on from here.\n",
        ),
        (["compare", "rpoisson-small"], "pyturingvi.compare", "Interrupted.\n"),
    ],
)
def test_a_ctrl_c_is_one_line_and_code_130(arguments, interrupted, words, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupted, interrupt)
    done = CliRunner().invoke(cli.app, arguments)
    assert (done.exit_code, done.stderr, done.stdout) == (130, words, "")


def test_problems_lists_the_nine_problems(tmp_path):
    done = run("problems", cwd=tmp_path)
    assert done.returncode == 0
    assert all(
        f"{kind}-{size}" in done.stdout for kind in ("rpoisson", "volatility", "irt") for size in ("small", "large")
    )
    assert "566817614" in done.stdout


def test_doctor_says_what_is_missing_and_the_command_that_mends_it(tmp_path):
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert "Julia" in done.stdout
    assert "numpy" in done.stdout


def test_help_shows_every_command(tmp_path):
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("problems", "fit", "doctor"))
