"""What `pyturingvi doctor` says of Julia: four different answers, each with the command that mends it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_julia import fake_julia, fake_project
from julia_children import break_package, copy_project
from typer.testing import CliRunner

from pyturingvi.bridge.environment import VARIABLES, JuliaEnvironment, find_environment, remember
from pyturingvi.cli import app
from pyturingvi.setup import doctor
from pyturingvi.setup.doctor import Finding, examine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for Julia")


@pytest.fixture(autouse=True)
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.node.get_closest_marker("julia") is None:
        monkeypatch.setenv("PYTURINGVI_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config" / "julia.json"


def julia(start: bool = True) -> dict[str, Finding]:
    findings = {finding.topic: finding for finding in examine(start) if "Julia" in finding.topic}
    assert all(finding.ok or finding.remedy or finding.topic == "Julia engine" for finding in findings.values())
    return findings


def test_without_julia_it_says_so_fast_and_names_the_command(config: Path) -> None:
    began = time.perf_counter()
    found = julia()
    assert time.perf_counter() - began < 1.0
    assert list(found) == ["Julia engine"]
    engine = found["Julia engine"]
    assert (engine.ok, engine.remedy) == (False, "pyturingvi setup")
    assert "no Julia is set up" in engine.found
    assert str(config) in engine.found


def test_a_julia_that_is_too_old_is_another_answer(tmp_path: Path) -> None:
    old = fake_julia(tmp_path / "bin", "1.10.4")
    remember(JuliaEnvironment(str(old), str(fake_project(tmp_path / "project")), "registered"))
    engine = julia()["Julia engine"]
    assert (engine.ok, engine.remedy) == (False, "pyturingvi setup")
    assert f"Julia 1.10.4 at {str(old)!r} cannot be used: 1.10.8" in engine.found


def test_missing_packages_are_another_answer(tmp_path: Path, config: Path) -> None:
    project = fake_project(tmp_path / "project", {"Zygote": None})
    remember(JuliaEnvironment(str(fake_julia(tmp_path / "bin")), str(project), "registered"))
    found = julia()
    assert found["Julia"].ok
    assert str(config) in found["Julia"].found
    engine = found["Julia engine"]
    assert not engine.ok
    assert engine.found.endswith("lacks Zygote 0.7")
    assert engine.remedy.endswith("""-e 'using Pkg; Pkg.add([(name="Zygote", version="0.7")])'""")


def test_one_variable_without_the_other_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[0], "julia")
    assert f"{VARIABLES[1]} is not" in julia()["Julia engine"].found


def test_what_passes_all_checks_but_does_not_start_is_told_with_the_reason(tmp_path: Path) -> None:
    """The stand-in has no library to load."""
    executable, project = str(fake_julia(tmp_path / "bin")), str(fake_project(tmp_path / "project"))
    remember(JuliaEnvironment(executable, project, "registered"))
    assert julia(start=False)["Julia engine"].ok
    engine = julia()["Julia engine"]
    assert not engine.ok
    assert engine.found.startswith("does not start: Julia 1.10.8 did not start with the project")
    assert engine.remedy == f"pyturingvi setup --julia {executable} --project {project}"


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda folder, config: None, 0),
        (lambda folder, config: config.write_text("{"), 1),
        (lambda folder, config: config.write_text('{"probe": {"version": null}}'), 1),
        (lambda folder, config: remember_fakes(folder, "1.10.4"), 1),
        (lambda folder, config: remember_fakes(folder, changes={"Zygote": None}), 1),
        (lambda folder, config: remember_fakes(folder), 1),  # the stand-in does not start
    ],
    ids=["nothing", "damaged", "no version", "old", "lacking", "no start"],
)
def test_the_exit_code_tells_a_broken_julia_from_none(
    tmp_path: Path, config: Path, prepare: Callable[[Path, Path], None], code: int
) -> None:
    config.parent.mkdir()
    prepare(tmp_path, config)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == code, done.output
    assert ("--  Julia engine" in done.output) is True


def remember_fakes(folder: Path, version: str = "1.10.8", changes: dict[str, str | None] | None = None) -> None:
    project = fake_project(folder / "project", changes)
    remember(JuliaEnvironment(str(fake_julia(folder / "bin", version)), str(project), "registered"))


# ---- with a real Julia --------------------------------------------------------------------------------------
@pytest.mark.julia
def test_a_julia_that_starts_is_told_with_its_versions() -> None:
    environment = find_environment()
    assert environment is not None
    found = julia()
    assert found["Julia engine"].ok
    assert found["Julia engine"].found.startswith("started in ")
    assert found["Julia"].found.startswith(f"{environment.probe().version} ({environment.executable})")
    assert "Zygote 0.7" in found["Julia packages"].found
    for name in ("Turing", "CUDA"):
        answer = found[f"Julia's {name}"]
        assert answer.ok or "needed for" in answer.found


@pytest.mark.julia
def test_a_real_project_without_turing_says_what_for_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from julia_children import edit_manifest

    environment = find_environment()
    assert environment is not None
    project = copy_project(environment, tmp_path / "project").project
    if doctor._OPTIONAL["Turing"][0] in (tmp_path / "project" / "Manifest.toml").read_text():
        edit_manifest(project, "Turing", lambda entry: "")
    for name, value in zip(VARIABLES, (environment.executable, project), strict=True):
        monkeypatch.setenv(name, value)
    found = julia(start=False)
    assert found["Julia engine"].ok
    assert "tv.sample_nuts" in found["Julia's Turing"].found
    assert 'name="Turing", version="0.46"' in found["Julia's Turing"].remedy


@pytest.mark.julia
def test_a_real_julia_that_breaks_at_the_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = find_environment()
    assert environment is not None
    project = copy_project(environment, tmp_path / "project").project
    break_package(project, "PythonCall")
    for name, value in zip(VARIABLES, (environment.executable, project), strict=True):
        monkeypatch.setenv(name, value)
    engine = julia()["Julia engine"]
    assert not engine.ok
    assert "did not start" in engine.found
