"""What `pyturingvi doctor` says of Julia: several different answers, each with the command that mends it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from fake_julia import fake_environment
from julia_children import break_package, copy_project, edit_manifest
from typer.testing import CliRunner

from pyturingvi.bridge.environment import DEPOTS, VARIABLES, JuliaEnvironment, remember
from pyturingvi.bridge.remembered import remember_failure
from pyturingvi.cli import app
from pyturingvi.setup.doctor import Finding, examine

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for Julia"),
    pytest.mark.usefixtures("config"),
]


def julia(start: bool = True) -> dict[str, Finding]:
    findings = {finding.topic: finding for finding in examine(start) if "Julia" in finding.topic}
    assert all(finding.ok or finding.remedy or finding.topic == "Julia engine" for finding in findings.values())
    return findings


def code_of_doctor(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["doctor", *options])
    return done.exit_code, done.stdout


def test_without_julia_it_says_so_fast_and_names_the_command(config: Path) -> None:
    began = time.perf_counter()
    (engine,) = julia().values()
    assert time.perf_counter() - began < 1.0
    assert (engine.ok, engine.broken, engine.remedy) == (False, False, "pyturingvi setup")
    assert f"no Julia is set up (no {config})" in engine.found
    assert code_of_doctor()[0] == 0


def test_a_setup_that_failed_is_told_with_what_mends_it() -> None:
    remember_failure("the Julia project '/p' lacks Zygote 0.7", "julia --project=/p -e 'add it' && pyturingvi setup")
    code, words = code_of_doctor("--quiet")
    assert code == 1
    assert words.split("\n") == [
        "--  Last setup  failed: the Julia project '/p' lacks Zygote 0.7",
        "                -> julia --project=/p -e 'add it' && pyturingvi setup",
        "",
    ]


def test_damaged_settings_are_broken(config: Path) -> None:
    config.parent.mkdir()
    config.write_text("{")
    code, words = code_of_doctor("--quiet")
    assert (code, words.count("are unreadable")) == (1, 1)


def test_an_old_julia_missing_packages_and_half_of_the_variables_are_other_answers(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(fake_environment(tmp_path, "1.10.4"))
    engine = julia()["Julia engine"]
    assert (engine.broken, engine.remedy) == (True, "pyturingvi setup")
    assert "cannot be used: 1.10.8" in engine.found
    remember(fake_environment(tmp_path, changes={"Zygote": None}))
    ours, engine = julia().values()
    assert ours.ok
    assert str(config) in ours.found
    assert engine.broken
    assert engine.found.endswith("lacks Zygote 0.7")
    assert engine.remedy.endswith("""-e 'using Pkg; Pkg.add([(name="Zygote", version="0.7")])'""")
    monkeypatch.setenv(VARIABLES[0], "julia")
    assert f"{VARIABLES[1]} is not" in julia()["Julia engine"].found


def test_packages_that_the_manifest_names_but_the_depots_have_not_are_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(fake_environment(tmp_path))
    assert "Julia packages" in julia(start=False)
    (tmp_path / "bin" / "missing").write_text("Zygote")
    monkeypatch.setenv(DEPOTS, "/mine")
    _, others, engine = julia().values()
    assert others.found.startswith(f"{DEPOTS} is '/mine' here and was 'not set'")
    assert "files are not there: Zygote" in engine.found
    assert engine.remedy == f"unset {DEPOTS}"


def test_what_passes_all_checks_but_does_not_start_is_told_with_the_reason(tmp_path: Path) -> None:
    """The stand-in has no library to load."""
    environment = fake_environment(tmp_path)
    remember(environment)
    assert julia(start=False)["Julia engine"].ok
    engine = julia()["Julia engine"]
    assert engine.broken
    assert engine.found.startswith("does not start: Julia 1.10.8 did not start with the project")
    assert "Stacktrace" not in engine.found
    assert engine.remedy == f"pyturingvi setup --julia {environment.executable} --project {environment.project}"
    assert code_of_doctor()[0] == 1


# ---- with a real Julia --------------------------------------------------------------------------------------
@pytest.mark.julia
def test_a_julia_that_starts_is_told_with_its_versions(real: JuliaEnvironment) -> None:
    found = julia()
    assert found["Julia engine"].ok
    assert found["Julia engine"].found.startswith("started in ")
    assert found["Julia"].found.startswith(f"{real.probe().version} ({real.executable})")
    assert "Zygote 0.7" in found["Julia packages"].found
    for name in ("Turing", "CUDA"):
        answer = found[f"Julia's {name}"]
        assert answer.ok or "needed for" in answer.found


@pytest.mark.julia
def test_a_real_project_without_turing_and_then_without_files_of_a_package(
    real: JuliaEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = copy_project(real, tmp_path / "project").project
    for name, value in {**dict(zip(VARIABLES, (real.executable, project), strict=True)), **real.variables()}.items():
        monkeypatch.setenv(name, value)
    if "[[deps.Turing]]" in (Path(project) / "Manifest.toml").read_text():
        edit_manifest(project, "Turing", lambda entry: "")
    found = julia(start=False)
    assert found["Julia engine"].ok
    assert "tv.sample_nuts" in found["Julia's Turing"].found
    assert 'name="Turing", version="0.46"' in found["Julia's Turing"].remedy
    break_package(project, "PythonCall")
    assert "files are not there: PythonCall (" in julia()["Julia engine"].found
