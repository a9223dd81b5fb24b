"""Julia environments found, checked and remembered, on machines that have none: stand-ins answer for Julia."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version as version_of
from pathlib import Path

import pytest
from fake_julia import fake_environment, fake_julia, fake_project

import pyturingvi as tv
from pyturingvi.bridge.environment import DEPOTS, EXE, PROJECT, VARIABLES, JuliaEnvironment, find_environment, remember
from pyturingvi.bridge.log import keep, one_line
from pyturingvi.bridge.packages import (
    bundled,
    installed_by_setup,
    read_manifest,
    required_packages,
    satisfies,
    source_directory,
)
from pyturingvi.bridge.problems import Problem, examine_environment, examine_files
from pyturingvi.bridge.remembered import forget_settings, last_failure, remember_failure, settings_path
from pyturingvi.errors import EngineError, JuliaError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for Julia")


@pytest.fixture
def usable(tmp_path: Path) -> JuliaEnvironment:
    return fake_environment(tmp_path)


def found() -> JuliaEnvironment:
    environment = find_environment()
    assert environment is not None
    return environment


# ---- versions: the rules are those of Julia's Pkg, "Compatibility" in its manual --------------------------------
@pytest.mark.parametrize(
    ("compat", "inside", "outside"),
    [
        ("1.2.3", ("1.2.3", "1.9.0", "1.2.3+1", ""), ("1.2.2", "2.0.0", None)),
        ("1.9", ("1.10.0",), ("1.8.9",)),
        ("0.2.3", ("0.2.3", "0.2.9"), ("0.2.2", "0.3.0")),
        ("0.0.3", ("0.0.3",), ("0.0.2", "0.0.4")),
        ("0.0", ("0.0.9",), ("0.1.0",)),
        ("0", ("0.9.0",), ("1.0.0",)),
        ("0.6, 0.7", ("0.6.1", "0.7.12"), ("0.5.9", "0.8.0")),
        ("~1.2.3", ("1.2.3", "1.2.9"), ("1.2.2", "1.3.0")),
        ("~1", ("1.9.0",), ("2.0.0",)),
        ("=1.2.3", ("1.2.3",), ("1.2.2", "1.2.4")),
        ("", ("0.1.0", ""), (None,)),
    ],
)
def test_satisfies_is_julias_rule(compat: str, inside: tuple[str, ...], outside: tuple[str | None, ...]) -> None:
    assert all(satisfies(version, compat) for version in inside)
    assert not any(satisfies(version, compat) for version in outside)


# ---- found --------------------------------------------------------------------------------------------------
def test_juliacalls_options_come_before_its_variables_and_these_before_what_setup_remembered(
    config: Path, usable: JuliaEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_environment() is None
    assert remember(usable) == config
    assert (found().executable, found().project, found().origin) == (usable.executable, usable.project, "registered")
    for have, lack in ((EXE, PROJECT), (PROJECT, EXE)):
        with monkeypatch.context() as patch:
            patch.setenv(have, "/some/place")
            with pytest.raises(EngineError, match=f"^{have} is set but {lack} is not; set both or neither"):
                find_environment()
    monkeypatch.setenv(EXE, "/other/julia")
    monkeypatch.setenv(PROJECT, "/other/project")
    assert find_environment() == JuliaEnvironment("/other/julia", "/other/project", "variables")
    monkeypatch.setattr(sys, "_xoptions", {"juliacall-exe": "/a"})  # python -X
    assert find_environment() == JuliaEnvironment("/a", "/other/project", "variables")


# ---- remembered ---------------------------------------------------------------------------------------------
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
    remember(usable)
    remember(JuliaEnvironment(usable.executable, "/another", "juliapkg"))
    assert (found().project, found().origin) == ("/another", "juliapkg")
    assert [path.name for path in config.parent.iterdir()] == ["julia.json"]
    assert forget_settings() is True
    config.parent.rmdir()
    config.parent.write_text("a file in its place")
    assert (find_environment(), forget_settings()) == (None, False)


def test_a_setup_that_failed_stands_beside_what_was_remembered_until_one_succeeds(
    config: Path, usable: JuliaEnvironment
) -> None:
    remember_failure("no network", "pyturingvi setup")
    assert (find_environment(), last_failure()) == (None, ("no network", "pyturingvi setup"))
    remember(usable)
    assert last_failure() is None
    remember_failure("no disk", "rm -r ~/old")
    assert (found().project, last_failure()) == (usable.project, ("no disk", "rm -r ~/old"))
    config.write_text("{")
    remember_failure("no luck", "pyturingvi setup")
    assert (find_environment(), last_failure()) == (None, ("no luck", "pyturingvi setup"))


DAMAGED = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"environment": "juliapkg"}', b'{"probe": {"version": 1}}']


@pytest.mark.parametrize("content", [*DAMAGED, "environment", "executable", "project", "probe"])
def test_damaged_settings_get_one_line_that_says_how_to_renew_them(
    config: Path, usable: JuliaEnvironment, content: bytes | str
) -> None:
    """What is in the file, or the entry that it lacks."""
    settings = json.loads(remember(usable).read_text())
    left = {name: value for name, value in settings.items() if name != content}
    config.write_bytes(content if isinstance(content, bytes) else json.dumps(left).encode())
    with pytest.raises(EngineError, match=r"^the settings '.*julia\.json' are unreadable.*pyturingvi setup$") as caught:
        find_environment()
    assert "\n" not in str(caught.value)


def test_an_automatic_choice_warns_once_of_damaged_settings(config: Path, isotropic: tv.models.Model) -> None:
    config.parent.mkdir()
    config.write_text("{")
    words = r"the settings '.*julia\.json' are unreadable.*Mend it with: pyturingvi setup; until then the numpy engine"
    with pytest.warns(RuntimeWarning, match=words) as caught:
        assert tv.fit(isotropic, optimizer=tv.Adam(1e-3), n_iterations=1, progress=False).engine == "numpy"
    assert len(caught) == 1
    assert tv.fit(isotropic, optimizer=tv.Adam(1e-3), n_iterations=1, progress=False).engine == "numpy"


def test_julia_is_asked_again_only_when_its_file_has_changed(config: Path, usable: JuliaEnvironment) -> None:
    remember(usable)
    calls = Path(f"{usable.executable}-calls")
    before = len(calls.read_text())
    environment = found()
    assert environment.probe().version == "1.10.8"
    assert len(calls.read_text()) == before
    fake_julia(Path(usable.executable).parent, "1.10.10")
    assert environment.probe().version == "1.10.10"


# ---- the depots, where the packages are ---------------------------------------------------------------------
def test_the_depots_at_setup_are_restored_unless_the_user_sets_others(
    config: Path, tmp_path: Path, usable: JuliaEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(DEPOTS, f"depot{os.pathsep}~/second{os.pathsep}")
    remember(usable)
    whole = f"{tmp_path / 'depot'}{os.pathsep}/home/me/second{os.pathsep}"
    assert (found().variables(), found().other_depots()) == ({}, "")  # those of this shell are the same
    monkeypatch.delenv(DEPOTS)
    assert (found().variables(), found().other_depots()) == ({DEPOTS: whole}, "")
    monkeypatch.setenv(DEPOTS, "/mine")
    assert found().variables() == {}
    assert found().other_depots() == f"{DEPOTS} is '/mine' here and was '{whole}' at `pyturingvi setup`"


def test_depots_that_were_not_set_at_setup_or_not_remembered_then_are_left_alone(
    config: Path, usable: JuliaEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(usable)
    assert found().variables() == {}
    monkeypatch.setenv(DEPOTS, "/mine")
    assert found().other_depots().endswith("was 'not set' at `pyturingvi setup`")
    settings = json.loads(config.read_text())
    settings["probe"]["stdlib"] = "Random|SHA"
    del settings["depots"]
    config.write_text(json.dumps(settings))  # as earlier versions wrote it
    assert (found().variables(), found().other_depots()) == ({}, "")
    assert examine_environment(found()) == []


def test_julia_looks_for_files_in_the_depots_of_setup_and_so_do_the_commands_that_mend(
    config: Path, tmp_path: Path, usable: JuliaEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEPOTS, "/scratch/my depot")
    remember(usable)
    monkeypatch.delenv(DEPOTS)
    assert examine_files(found()) == []
    assert Path(f"{usable.executable}-calls").read_text().splitlines()[-1] == "/scratch/my depot"
    (tmp_path / "bin" / "missing").write_text("Zygote IRTools")
    (problem,) = examine_files(found())
    assert f"files are not there: Zygote, IRTools ({DEPOTS} is '/scratch/my depot')" in problem.what
    command = [f"{DEPOTS}=/scratch/my depot", usable.executable, f"--project={usable.project}"]
    assert shlex.split(problem.command) == [*command, "-e", "using Pkg; Pkg.instantiate()"]
    monkeypatch.setenv(DEPOTS, "/mine")
    (problem,) = examine_files(found())
    assert found().other_depots() in problem.what
    assert problem.command == f"unset {DEPOTS}"


# ---- checked ------------------------------------------------------------------------------------------------
def problem_of(environment: JuliaEnvironment) -> Problem:
    (problem,) = examine_environment(environment)
    assert "\n" not in str(problem)
    return problem


def test_julias_that_turing_does_not_run_in_are_named_with_what_is_needed_and_others_pass(tmp_path: Path) -> None:
    for version in ("1.9.4", "1.10.0", "1.10.7", "1.11.0", "1.11.5"):
        old = fake_environment(tmp_path, version)
        problem, needed = problem_of(old), "1.10.8 or a later 1.10, or 1.11.6 or later is needed"
        assert problem.what == f"Julia {version} at {old.executable!r} cannot be used: {needed}"
        assert problem.command == "pyturingvi setup"
        assert problem_of(replace(old, origin="variables")).command == f"unset {EXE} {PROJECT}; pyturingvi setup"
    for version in ("1.10.8", "1.10.11", "1.11.6", "1.12.0-rc2", "1.12.1", "1.13.0-beta1"):
        assert examine_environment(fake_environment(tmp_path, version)) == []


@pytest.mark.parametrize(
    ("script", "mode", "words"),
    [
        (None, 0, "there is no Julia executable at "),
        ("#!/bin/sh\necho hello\n", 0o755, "does not answer like Julia: hello"),
        ("#!/bin/sh\necho sorry >&2\nexit 3\n", 0o755, "does not answer like Julia: sorry"),
        ("#!/no/such/shell\n", 0o755, "there is no Julia executable at"),
        ("#!/bin/sh\n", 0o644, "does not run"),
    ],
)
def test_an_executable_that_is_gone_or_no_julia_is_named(
    usable: JuliaEnvironment, script: str | None, mode: int, words: str
) -> None:
    path = Path(usable.executable)
    path.unlink()
    if script is not None:
        path.write_text(script)
        path.chmod(mode)
    problem = problem_of(usable)
    assert words in problem.what
    assert repr(usable.executable) in problem.what


def test_a_project_that_is_gone_or_was_never_installed_is_named(tmp_path: Path, usable: JuliaEnvironment) -> None:
    folder = tmp_path / "other"
    other = replace(usable, project=str(folder))
    assert problem_of(other).what == f"there is no Julia project folder {str(folder)!r}"
    folder.mkdir()
    empty = problem_of(other)
    assert "has no Manifest.toml" in empty.what
    assert all(f'name="{package.name}"' in empty.command for package in required_packages())
    (folder / "Manifest.toml").write_text("deps = [")
    assert "cannot be read" in problem_of(other).what


def test_missing_and_old_packages_are_listed_with_a_command_that_the_shell_reads_right(tmp_path: Path) -> None:
    changes = {"Zygote": "0.6.70", "Optimisers": None, "PythonCall": "0.9.1"}
    environment = fake_environment(tmp_path / "it's a" / "place", changes=changes)
    problem, ours = problem_of(environment), version_of("juliacall")
    words = f"lacks Optimisers 0.4, Zygote 0.7 in place of 0.6.70, PythonCall {ours} in place of 0.9.1"
    assert problem.what.endswith(words)
    versions = {"Optimisers": "0.4", "Zygote": "0.7", "PythonCall": ours}
    added = ", ".join(f'(name="{name}", version="{version}")' for name, version in versions.items())
    command = [environment.executable, f"--project={environment.project}", "-e", f"using Pkg; Pkg.add([{added}])"]
    assert shlex.split(problem.command) == command
    assert problem_of(replace(environment, origin="juliapkg")).command == "pyturingvi setup"


def test_a_package_of_our_own_name_in_the_project_is_in_the_way(usable: JuliaEnvironment) -> None:
    with (Path(usable.project) / "Manifest.toml").open("a") as stream:
        stream.write(f'\n[[deps.PyTuringVI]]\nuuid = "{bundled()["uuid"]}"\nversion = "0.0.1"\n')
    problem = problem_of(usable)
    assert "holds a PyTuringVI of its own" in problem.what
    assert "Pkg.rm" in problem.command


def test_the_manifest_is_the_one_that_this_julia_would_read(tmp_path: Path) -> None:
    (zygote,) = (package.uuid for package in required_packages() if package.name == "Zygote")
    project = str(fake_project(tmp_path, {"Zygote": "0.7.1"}))
    fake_project(tmp_path, {"Zygote": "0.7.2"}, "Manifest-v1.11.toml")
    assert [read_manifest(project, julia)[zygote]["version"] for julia in ("1.10.8", "1.11.6")] == ["0.7.1", "0.7.2"]


def test_setup_installs_every_backend_that_a_turing_model_may_choose_by_itself() -> None:
    """ForwardDiff comes with Turing; the others must be asked for."""
    code = (source_directory() / "ext" / "TuringExt" / "backends.jl").read_text()
    backends = dict(re.findall(r'"(\w+)", "([0-9a-f-]{36})"', code))
    assert set(backends) == {"ForwardDiff", "ReverseDiff", "Mooncake", "Zygote"}
    del backends["ForwardDiff"]
    assert backends.items() <= {package.name: package.uuid for package in installed_by_setup()}.items()


# ---- what Julia writes and throws -------------------------------------------------------------------------------
def test_of_what_julia_writes_one_line_is_told_and_all_of_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "Info: so far\nERROR: LoadError: no\n  package\n\nStacktrace:\n [1] f(x)\n   @ here\nERROR: more\n"
    assert one_line(words) == "LoadError: no package"
    assert one_line("first\nlast words\n\n") == "last words"
    assert one_line("") == ""
    (tmp_path / "file").write_text("")
    for state in (tmp_path, tmp_path / "file"):  # and where nothing can be written, in a temporary file
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        assert keep(words).read_text() == words


def test_what_julia_threw_in_a_worker_arrives_whole() -> None:
    error = pickle.loads(pickle.dumps(JuliaError("DomainError with -1.0", "DomainError")))
    assert (type(error), str(error), error.kind) == (JuliaError, "Julia: DomainError with -1.0", "DomainError")


# ---- with a real Julia ----------------------------------------------------------------------------------------
@pytest.mark.julia
def test_the_command_for_missing_files_brings_them(
    real: JuliaEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two small packages from a registry on this disk: one's depot was emptied, the other's own folder is gone."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    project, depot = tmp_path / "project", tmp_path / "depot"
    registry = depot / "registries" / "Small"
    project.mkdir()
    listed, named, locked = "[packages]\n", "[deps]\n", 'julia_version = "1.10.8"\nmanifest_format = "2.0"\n'
    for name, digit in (("Emptied", "1"), ("Moved", "2")):
        source, uuid = tmp_path / name, f'"{digit * 8}-0000-4000-8000-000000000000"'
        about = f'name = "{name}"\nuuid = {uuid}\n'
        (source / "src").mkdir(parents=True)
        (source / "Project.toml").write_text(f'{about}version = "1.2.0"\n')
        (source / "src" / f"{name}.jl").write_text(f"module {name}; end\n")
        commit = "git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm first"
        tree = subprocess.check_output(f"{commit} && git rev-parse 'HEAD^{{tree}}'", shell=True, cwd=source, text=True)
        where = f'git-tree-sha1 = "{tree.strip()}"\n'
        (registry / name).mkdir(parents=True)
        (registry / name / "Package.toml").write_text(f'{about}repo = "{source}"\n')
        (registry / name / "Versions.toml").write_text(f'["1.2.0"]\n{where}')
        listed += f'{uuid} = {{ name = "{name}", path = "{name}" }}\n'
        named += f"{name} = {uuid}\n"
        gone = where if name == "Emptied" else 'path = "/nonexistent"\n'
        locked += f'[[deps.{name}]]\n{gone}uuid = {uuid}\nversion = "1.2.0"\n'
    (registry / "Registry.toml").write_text(
        f'name = "Small"\nuuid = "99999999-0000-4000-8000-000000000000"\nrepo = "{registry}"\n{listed}'
    )
    (project / "Project.toml").write_text(named)
    (project / "Manifest.toml").write_text(locked)
    monkeypatch.delenv(DEPOTS, raising=False)
    monkeypatch.setenv("JULIA_PKG_SERVER", "")
    monkeypatch.delenv("JULIA_PKG_OFFLINE", raising=False)  # a folder is no network
    environment = JuliaEnvironment(real.executable, str(project), "registered", depots=f"{depot}{os.pathsep}")
    (problem,) = examine_files(environment)
    assert "files are not there: Emptied, Moved (" in problem.what
    subprocess.run(problem.command, shell=True, check=True, capture_output=True, timeout=300)
    assert examine_files(environment) == []


# ---- a start that is refused --------------------------------------------------------------------------------
def test_a_start_that_cannot_succeed_is_refused_in_words_before_juliacall_is_touched(
    config: Path, tmp_path: Path, usable: JuliaEnvironment
) -> None:
    old, lacking = fake_julia(tmp_path / "old", "1.10.4"), fake_project(tmp_path / "lacking", {"Zygote": None})
    cases = [
        ({}, "no Julia environment is set up. `pyturingvi setup` installs one"),
        ({EXE: usable.executable}, f"{EXE} is set but {PROJECT} is not"),
        ({EXE: str(old), PROJECT: usable.project}, "Julia 1.10.4 at"),
        ({EXE: usable.executable, PROJECT: str(lacking)}, "lacks Zygote 0.7. Mend it with: "),
        ({EXE: str(tmp_path / "gone"), PROJECT: usable.project}, "there is no Julia executable at"),
        ({EXE: usable.executable, PROJECT: str(tmp_path / "gone")}, "there is no Julia project folder"),
    ]
    code = f"""
import os, sys
import pyturingvi as tv
for changes, words in {cases!r}:
    for name in {VARIABLES!r}:
        os.environ.pop(name, None)
    os.environ.update(changes)
    for engine in ("julia", "auto"):
        try:
            print(tv.fit(tv.models.IsotropicGaussian(2), n_iterations=2, engine=engine, progress=False).engine)
        except tv.PyTuringVIError as error:
            assert words in str(error), (words, error)
            print(str(error).partition(": ")[0])
print({{"juliacall", "juliapkg"}} & set(sys.modules))
"""
    command = [sys.executable, "-W", "error", "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert out == ["engine='julia'", "numpy"] * len(cases) + ["set()"]
