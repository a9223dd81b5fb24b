"""Julia environments found, checked and remembered, on machines that have none: stand-ins answer for Julia."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version as version_of
from pathlib import Path

import pytest
from fake_julia import fake_julia, fake_project, packages

import pyturingvi as tv
from pyturingvi.bridge import environment as julia_environment
from pyturingvi.bridge.environment import (
    BROKEN,
    OLDEST,
    VARIABLES,
    JuliaEnvironment,
    Probe,
    examine_environment,
    find_environment,
    juliapkg_table,
    manifest_versions,
    remember,
    satisfies,
    source_directory,
)
from pyturingvi.bridge.remembered import forget_settings, settings_path
from pyturingvi.engines import base
from pyturingvi.errors import EngineError, JuliaError, OutputError

EXE, PROJECT = VARIABLES
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for Julia")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTURINGVI_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config" / "julia.json"


@pytest.fixture
def usable(tmp_path: Path) -> JuliaEnvironment:
    return JuliaEnvironment(str(fake_julia(tmp_path / "bin")), str(fake_project(tmp_path / "project")), "registered")


# ---- versions: the rules are those of Julia's Pkg, "Compatibility" in its manual --------------------------------
@pytest.mark.parametrize(
    ("version", "compat", "expected"),
    [
        ("1.2.3", "1.2.3", True),
        ("1.9.0", "1.2.3", True),
        ("1.2.2", "1.2.3", False),
        ("2.0.0", "1.2.3", False),
        ("1.10.0", "1.9", True),
        ("0.2.9", "0.2.3", True),
        ("0.3.0", "0.2.3", False),
        ("0.2.2", "0.2.3", False),
        ("0.0.3", "0.0.3", True),
        ("0.0.4", "0.0.3", False),
        ("0.0.9", "0.0", True),
        ("0.1.0", "0.0", False),
        ("0.9.0", "0", True),
        ("1.0.0", "0", False),
        ("0.7.12", "0.6, 0.7", True),
        ("0.8.0", "0.6, 0.7", False),
        ("2.8.0+1", "2.3", True),
        ("", "2.3", True),
        ("0.1.0", "", True),
        (None, "", False),
        (None, "1", False),
    ],
)
def test_satisfies_is_julias_caret_rule(version: str | None, compat: str, expected: bool) -> None:
    assert satisfies(version, compat) is expected


# ---- found --------------------------------------------------------------------------------------------------
def test_juliacalls_variables_come_before_what_setup_remembered(
    config: Path, usable: JuliaEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_environment() is None
    remember(usable)
    found = find_environment()
    assert found is not None
    assert (found.executable, found.project, found.origin) == (usable.executable, usable.project, "registered")
    monkeypatch.setenv(EXE, "/other/julia")
    monkeypatch.setenv(PROJECT, "/other/project")
    assert find_environment() == JuliaEnvironment("/other/julia", "/other/project", "variables")


@pytest.mark.parametrize(("have", "lack"), [(EXE, PROJECT), (PROJECT, EXE)])
def test_one_of_the_two_variables_is_an_error_that_names_the_other(
    config: Path, usable: JuliaEnvironment, monkeypatch: pytest.MonkeyPatch, have: str, lack: str
) -> None:
    remember(usable)
    monkeypatch.setenv(have, "/some/place")
    with pytest.raises(EngineError, match=f"^{have} is set but {lack} is not; set both or neither"):
        find_environment()


def test_juliacalls_options_of_the_interpreter_come_before_its_variables() -> None:
    code = "from pyturingvi.bridge.environment import find_environment as f; e = f(); print(e.executable, e.project)"
    command = [sys.executable, "-X", "juliacall-exe=/a", "-X", "juliacall-project=/b", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, EXE: "/c"})
    assert done.stdout == "/a /b\n"


def test_an_environment_of_juliapkg_is_found_without_juliapkg(config: Path, usable: JuliaEnvironment) -> None:
    remember(JuliaEnvironment(usable.executable, usable.project, "juliapkg"))
    code = (
        "import sys; sys.modules['juliapkg'] = None\n"
        "from pyturingvi.bridge.environment import examine_environment, find_environment\n"
        "print(find_environment().origin, examine_environment(find_environment()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "juliapkg []\n"


def test_the_settings_lie_where_the_variable_says_or_in_the_users_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTURINGVI_CONFIG", "~/here")
    assert settings_path() == tmp_path / "here" / "julia.json"
    monkeypatch.delenv("PYTURINGVI_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert settings_path().name == "julia.json"
    assert settings_path().parent.name == "pyturingvi"


def test_what_is_remembered_can_be_replaced_and_forgotten(config: Path, usable: JuliaEnvironment) -> None:
    assert forget_settings() is False
    assert remember(usable) == config
    remember(JuliaEnvironment(usable.executable, "/another", "juliapkg"))
    found = find_environment()
    assert found is not None
    assert (found.project, found.origin) == ("/another", "juliapkg")
    assert [path.name for path in config.parent.iterdir()] == ["julia.json"]
    assert forget_settings() is True
    assert find_environment() is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"environment": "registered"}', b'{"environment": "juliapkg"}'],
)
def test_damaged_settings_get_one_line_that_says_how_to_renew_them(config: Path, content: bytes) -> None:
    config.parent.mkdir()
    config.write_bytes(content)
    with pytest.raises(EngineError, match=r"^the settings '.*julia\.json' are unreadable.*pyturingvi setup$") as caught:
        find_environment()
    assert "\n" not in str(caught.value)


def test_an_automatic_choice_warns_once_of_damaged_settings(
    config: Path, isotropic: tv.models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_told", set())
    config.parent.mkdir()
    config.write_text("{")
    words = r"the settings '.*julia\.json' are unreadable.*Mend it with: pyturingvi setup; until then the numpy engine"
    with pytest.warns(RuntimeWarning, match=words) as caught:
        assert base.select_engine("auto", isotropic).name == "numpy"
    assert len(caught) == 1
    assert base.select_engine("auto", isotropic).name == "numpy"


def test_settings_with_half_a_probe_are_damaged(config: Path, usable: JuliaEnvironment) -> None:
    remember(usable)
    settings = json.loads(config.read_text())
    del settings["probe"]["library"]
    config.write_text(json.dumps(settings))
    with pytest.raises(EngineError, match="unreadable"):
        find_environment()


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", None), ("version", 1.1), ("library", []), ("stdlib", None), ("modified", "now"), ("modified", True)],
)
def test_settings_with_wrong_types_in_the_probe_are_damaged(
    config: Path, usable: JuliaEnvironment, name: str, value: object
) -> None:
    remember(usable)
    settings = json.loads(config.read_text())
    settings["probe"][name] = value
    config.write_text(json.dumps(settings))
    with pytest.raises(EngineError, match=f"julia.json' are unreadable .*'{name}' is .*pyturingvi setup$"):
        find_environment()


@pytest.mark.parametrize("probe", [None, [], "1.10.8"])
@pytest.mark.parametrize("name", ["probe", "executable", "project", "environment"])
def test_settings_with_wrong_types_are_damaged(
    config: Path, usable: JuliaEnvironment, name: str, probe: object
) -> None:
    if name != "probe" and isinstance(probe, str):
        probe = 1
    remember(usable)
    config.write_text(json.dumps(json.loads(config.read_text()) | {name: probe}))
    with pytest.raises(EngineError, match=f"'{name}' is .*pyturingvi setup$"):
        find_environment()


def test_settings_that_cannot_be_written_get_an_error_that_names_them(
    tmp_path: Path, usable: JuliaEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYTURINGVI_CONFIG", str(tmp_path / "file" / "below"))
    with pytest.raises(OutputError, match=r"setup: cannot write '.*below/julia\.json'"):
        remember(usable)
    assert find_environment() is None
    assert forget_settings() is False


def test_julia_is_asked_again_only_when_its_file_has_changed(config: Path, usable: JuliaEnvironment) -> None:
    remember(usable)
    calls = Path(f"{usable.executable}-calls")
    before = len(calls.read_text())
    found = find_environment()
    assert found is not None
    assert found.probe().version == "1.10.8"
    assert len(calls.read_text()) == before
    fake_julia(Path(usable.executable).parent, "1.10.10")
    assert found.probe().version == "1.10.10"


# ---- checked ------------------------------------------------------------------------------------------------
def problem_of(environment: JuliaEnvironment) -> julia_environment.Problem:
    (problem,) = examine_environment(environment)
    assert "\n" not in str(problem)
    return problem


def test_an_environment_with_all_that_is_needed_has_no_problem(usable: JuliaEnvironment) -> None:
    assert examine_environment(usable) == []


@pytest.mark.parametrize("version", ["1.9.4", "1.10.0", "1.10.7", "1.11.0", "1.11.5"])
def test_a_julia_that_turing_does_not_run_in_is_named_with_what_is_needed(tmp_path: Path, version: str) -> None:
    julia = fake_julia(tmp_path / "bin", version)
    problem = problem_of(JuliaEnvironment(str(julia), str(fake_project(tmp_path / "project")), "registered"))
    assert problem.what == (
        f"Julia {version} at {str(julia)!r} cannot be used: 1.10.8 or a later 1.10, or 1.11.6 or later is needed"
    )
    assert problem.command == "pyturingvi setup"
    named = problem_of(JuliaEnvironment(str(julia), str(tmp_path / "project"), "variables"))
    assert named.command == f"unset {EXE} {PROJECT}; pyturingvi setup"


@pytest.mark.parametrize("version", ["1.10.8", "1.10.11", "1.11.6", "1.12.1", "1.13.0-beta1"])
def test_other_versions_of_julia_pass(tmp_path: Path, version: str) -> None:
    julia = fake_julia(tmp_path / "bin", version)
    project = fake_project(tmp_path / "project")
    assert examine_environment(JuliaEnvironment(str(julia), str(project), "registered")) == []


def test_an_executable_that_is_gone_or_no_julia_is_named(tmp_path: Path) -> None:
    project = str(fake_project(tmp_path / "project"))
    gone = problem_of(JuliaEnvironment(str(tmp_path / "gone"), project, "registered"))
    assert gone.what == f"there is no Julia executable at {str(tmp_path / 'gone')!r}"
    other = fake_julia(tmp_path, name="other")
    other.write_text("#!/bin/sh\necho hello\n")
    assert "does not answer like Julia: hello" in problem_of(JuliaEnvironment(str(other), project, "registered")).what
    other.write_text("#!/bin/sh\necho sorry >&2\nexit 3\n")
    assert "does not answer like Julia: sorry" in problem_of(JuliaEnvironment(str(other), project, "registered")).what
    other.chmod(0o644)
    assert "does not run" in problem_of(JuliaEnvironment(str(other), project, "registered")).what


def test_a_project_that_is_gone_or_was_never_installed_is_named(tmp_path: Path) -> None:
    julia = str(fake_julia(tmp_path / "bin"))
    gone = problem_of(JuliaEnvironment(julia, str(tmp_path / "gone"), "registered"))
    assert gone.what == f"there is no Julia project folder {str(tmp_path / 'gone')!r}"
    (tmp_path / "empty").mkdir()
    empty = problem_of(JuliaEnvironment(julia, str(tmp_path / "empty"), "registered"))
    assert "has no Manifest.toml" in empty.what
    assert all(f'name="{name}"' in empty.command for name in packages())
    (tmp_path / "empty" / "Manifest.toml").write_text("deps = [")
    assert "cannot be read" in problem_of(JuliaEnvironment(julia, str(tmp_path / "empty"), "registered")).what


def test_missing_and_old_packages_are_listed_with_a_command_that_the_shell_reads_right(tmp_path: Path) -> None:
    julia = fake_julia(tmp_path / "a b" / "bin")
    project = fake_project(tmp_path / "it's" / "project", {"Zygote": "0.6.70", "Optimisers": None, "PythonCall": None})
    problem = problem_of(JuliaEnvironment(str(julia), str(project), "registered"))
    assert problem.what.endswith("lacks Optimisers 0.4, Zygote 0.7 in place of 0.6.70, PythonCall")
    words = shlex.split(problem.command)
    assert words[:3] == [str(julia), f"--project={project}", "-e"]
    assert words[3] == (
        'using Pkg; Pkg.add([(name="Optimisers", version="0.4"), (name="Zygote", version="0.7"), '
        f'(name="PythonCall", version="{version_of("juliacall")}")])'
    )
    assert problem_of(JuliaEnvironment(str(julia), str(project), "juliapkg")).command == "pyturingvi setup"


def test_a_package_of_our_own_name_in_the_project_is_in_the_way(tmp_path: Path, usable: JuliaEnvironment) -> None:
    uuid = tomllib.loads((source_directory() / "Project.toml").read_text())["uuid"]
    with (Path(usable.project) / "Manifest.toml").open("a") as stream:
        stream.write(f'\n[[deps.PyTuringVI]]\nuuid = "{uuid}"\nversion = "0.0.1"\n')
    problem = problem_of(usable)
    assert "holds a PyTuringVI of its own" in problem.what
    assert "Pkg.rm" in problem.command


def test_the_manifest_is_the_one_that_this_julia_would_read(tmp_path: Path) -> None:
    zygote = packages()["Zygote"][0]
    project = fake_project(tmp_path, {"Zygote": "0.7.1"})
    fake_project(tmp_path, {"Zygote": "0.7.2"}, "Manifest-v1.11.toml")
    assert manifest_versions(str(project), (1, 10, 8))[zygote] == "0.7.1"
    assert manifest_versions(str(project), (1, 11, 6))[zygote] == "0.7.2"


# ---- what is bundled ----------------------------------------------------------------------------------------
def test_juliapkg_installs_what_the_bundled_project_needs_and_no_other_versions() -> None:
    project = tomllib.loads((source_directory() / "Project.toml").read_text())
    standard = {"Dates", "LinearAlgebra", "Printf", "Random", "SHA", "SparseArrays", "Statistics"}
    known = {**project["deps"], **project.get("weakdeps", {})}
    listed = juliapkg_table()["packages"]
    assert set(project["deps"]) - standard <= set(listed)
    for name, entry in listed.items():
        assert entry == {"uuid": known[name], "version": project["compat"][name]}


def test_juliapkg_installs_every_backend_that_a_turing_model_may_choose_by_itself() -> None:
    """ForwardDiff comes with Turing; the others must be asked for."""
    code = (source_directory() / "ext" / "TuringExt" / "backends.jl").read_text()
    backends = dict(re.findall(r'"(\w+)", "([0-9a-f-]{36})"', code))
    assert set(backends) == {"ForwardDiff", "ReverseDiff", "Mooncake", "Zygote"}
    listed = juliapkg_table()["packages"]
    for name in ("ReverseDiff", "Mooncake", "Zygote"):
        assert listed[name]["uuid"] == backends[name]


def test_juliapkg_takes_a_julia_that_the_checks_take() -> None:
    compat = pytest.importorskip("juliapkg.compat")
    needed = compat.Compat.parse(juliapkg_table()["julia"])
    for minor in range(8, 14):
        for patch in range(12):
            version = (1, minor, patch)
            passes = version >= OLDEST and not BROKEN[0] <= version < BROKEN[1] and minor <= 12
            assert (compat.Version(*version) in needed) is passes


def test_a_probe_reads_versions_with_and_without_a_suffix() -> None:
    assert Probe("1.12.0-rc2", "", "", "", 0).numbers == (1, 12, 0)
    assert Probe("1.10.8", "", "", "", 0).numbers == (1, 10, 8)


# ---- what Julia throws ---------------------------------------------------------------------------------------
def test_what_julia_threw_in_a_worker_arrives_whole() -> None:
    error = pickle.loads(pickle.dumps(JuliaError("DomainError with -1.0", "DomainError")))
    assert (type(error), str(error), error.kind) == (JuliaError, "Julia: DomainError with -1.0", "DomainError")


# ---- a start that is refused --------------------------------------------------------------------------------
def test_a_start_that_cannot_succeed_is_refused_in_words_before_juliacall_is_touched(
    config: Path, tmp_path: Path, usable: JuliaEnvironment
) -> None:
    code = """
import sys
import numpy as np
import pyturingvi as tv
for engine in ("julia", "auto"):
    try:
        print(tv.fit(tv.models.IsotropicGaussian(2), n_iterations=2, engine=engine, progress=False).engine)
    except tv.PyTuringVIError as error:
        print(error)
print({"juliacall", "juliapkg"} & set(sys.modules))
"""

    def say(**changes: str) -> list[str]:
        command = [sys.executable, "-W", "error", "-c", code]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, **changes}
        ).stdout.splitlines()

    old, lacking = fake_julia(tmp_path / "old", "1.10.4"), fake_project(tmp_path / "lacking", {"Zygote": None})
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "no Julia environment is set up. `pyturingvi setup` installs one"),
        ({EXE: usable.executable}, f"{EXE} is set but {PROJECT} is not"),
        ({EXE: str(old), PROJECT: usable.project}, "Julia 1.10.4 at"),
        ({EXE: usable.executable, PROJECT: str(lacking)}, "lacks Zygote 0.7. Mend it with: "),
        ({EXE: str(tmp_path / "gone"), PROJECT: usable.project}, "there is no Julia executable at"),
        ({EXE: usable.executable, PROJECT: str(tmp_path / "gone")}, "there is no Julia project folder"),
    ]
    for changes, words in cases:
        refused, engine, loaded = say(**changes)
        assert refused.startswith("engine='julia': ")
        assert words in refused
        assert (engine, loaded) == ("numpy", "set()")
