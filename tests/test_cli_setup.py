"""`pyturingvi setup`: what it installs, registers, refuses and remembers.

juliapkg's downloads are not tested here: a made-up module of its name plays them, or the real one runs offline.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import psutil
import pytest
from fake_julia import fake_julia, fake_project
from julia_children import PACKAGE, break_package, copy_project, run, variables

from pyturingvi.bridge.environment import VARIABLES, JuliaEnvironment, find_environment
from pyturingvi.errors import EngineError, InputError, OutputError
from pyturingvi.setup import install as julia_setup
from pyturingvi.setup import trial as julia_trial
from pyturingvi.setup.trial import Trial, try_start

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for Julia")


@pytest.fixture(autouse=True)
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.node.get_closest_marker("julia") is None:
        monkeypatch.setenv("PYTURINGVI_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config" / "julia.json"


def setup(*arguments: str, timeout: float = 300, **changes: str | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pyturingvi", "setup", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=variables(None, **changes))


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error with exit code 2."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return line


# ---- with a made-up juliapkg ---------------------------------------------------------------------------------
class FakeJuliapkg(types.ModuleType):
    """Says what was asked of it; `installs` puts the packages there when it is called for the n-th time."""

    def __init__(self, executable: Path, project: Path, complete_after: int = 1) -> None:
        super().__init__("juliapkg")
        self.calls: list[dict[str, bool]] = []
        self.executable = lambda: str(executable)
        self.project = lambda: str(project)
        self._folder, self._complete_after = project, complete_after

    def resolve(self, **options: bool) -> bool:
        self.calls.append(options)
        fake_project(self._folder, {} if len(self.calls) >= self._complete_after else {"Zygote": None})
        return True


def install(fake: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the installation in this process, the trial start left out; returns what it said."""
    said: list[str] = []
    monkeypatch.setitem(sys.modules, "juliapkg", fake)
    monkeypatch.setattr(julia_setup, "try_start", lambda *_, **__: Trial("1.10.8", 3.0, {"Turing": "no reason"}))
    julia_setup.set_up(say=said.append)
    return said


def test_what_juliapkg_installs_is_what_is_found_afterwards(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeJuliapkg(fake_julia(tmp_path / "bin"), tmp_path / "project")
    said = install(fake, monkeypatch)
    assert "minutes" in said[0]  # the plan comes before all else
    assert "GB" in said[0]
    assert fake.calls == [{}]
    found = find_environment()
    assert found is not None
    assert (found.executable, found.project, found.origin) == (fake.executable(), fake.project(), "juliapkg")
    assert str(config) in said[-1]
    assert any("Turing is installed but does not load: no reason" in line for line in said)


def test_a_project_that_was_changed_behind_juliapkgs_back_is_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeJuliapkg(fake_julia(tmp_path / "bin"), tmp_path / "project", complete_after=2)
    install(fake, monkeypatch)
    assert fake.calls == [{}, {"force": True}]
    assert find_environment() is not None


@pytest.mark.parametrize(("version", "complete_after", "words"), [("1.10.2", 1, "1.10.2"), ("1.10.8", 9, "Zygote 0.7")])
def test_what_juliapkg_leaves_unusable_is_not_remembered(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, version: str, complete_after: int, words: str
) -> None:
    fake = FakeJuliapkg(fake_julia(tmp_path / "bin", version), tmp_path / "project", complete_after)
    with pytest.raises(EngineError, match=words) as caught:
        install(fake, monkeypatch)
    assert "--julia EXE --project DIR" in str(caught.value)
    assert not config.exists()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("import urllib.error; raise urllib.error.URLError('no route to host')", "no route to host"),
        ("raise PermissionError(13, 'Permission denied', '/opt/env')", "Permission denied: '/opt/env'"),
        (
            "import subprocess; subprocess.run(['sh', '-c', '''exit 1\\n\\nimport Pkg\\nPkg.add()'''], check=True)",
            "Julia ended with code 1; its own words stand above",
        ),
        ("raise Exception('one\\n  two\\n')", "failed: one two. Nothing was remembered"),
        ("raise Exception", "failed: Exception. Nothing"),
        ("import no_such_module", "no_such_module"),
    ],
)
def test_an_installation_that_fails_ends_in_one_line_with_code_2(
    tmp_path: Path, config: Path, statement: str, words: str
) -> None:
    (tmp_path / "juliapkg.py").write_text(f"def resolve(**options):\n    {statement}\n")
    done = setup(PYTHONPATH=f"{tmp_path}{os.pathsep}{PACKAGE}")
    line = refused(done)
    assert words in line
    assert "pyturingvi setup --julia EXE --project DIR" in line
    assert "PYTHON_JULIAPKG_EXE" in line
    assert "This will" in done.stdout
    assert not config.exists()


def test_nothing_is_installed_while_the_variables_name_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeJuliapkg(fake_julia(tmp_path / "bin"), tmp_path / "project")
    for name in VARIABLES:
        monkeypatch.setenv(name, "/elsewhere")
        with pytest.raises(InputError, match="Unset them first"):
            install(fake, monkeypatch)
    assert fake.calls == []


# ---- one's own Julia -----------------------------------------------------------------------------------------
def test_an_environment_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, config: Path) -> None:
    julia, old = str(fake_julia(tmp_path / "bin")), str(fake_julia(tmp_path / "bin", "1.10.4", "old"))
    project = str(fake_project(tmp_path / "project"))
    lacking = str(fake_project(tmp_path / "lacking", {"Zygote": None}))
    for arguments, words in [
        (("--julia", julia), "--julia and --project go together"),
        (("--project", project), "--julia and --project go together"),
        (("--julia", str(tmp_path / "gone"), "--project", project), "is no executable file"),
        (("--julia", julia, "--project", str(tmp_path / "gone")), "is no folder"),
        (("--julia", old, "--project", project), "Julia 1.10.4"),
        (("--julia", "/bin/cat", "--project", project), "does not answer like Julia"),
        (("--julia", julia, "--project", lacking), "lacks Zygote 0.7"),
        (("--forget", "--julia", julia), "--forget goes alone"),
    ]:
        assert words in refused(setup(*arguments))
    assert not config.exists()


def test_a_project_file_stands_for_its_folder_and_a_name_for_an_executable_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    julia, project = fake_julia(tmp_path / "bin"), fake_project(tmp_path / "project")
    monkeypatch.setenv("PATH", str(julia.parent), prepend=os.pathsep)
    given = julia_setup.registered_environment("julia", project / "Project.toml")
    assert given == JuliaEnvironment(str(julia), str(project), "registered")


def test_a_julia_that_does_not_start_is_not_remembered(tmp_path: Path, config: Path) -> None:
    """The stand-in passes every check, and has no library to load."""
    julia, project = str(fake_julia(tmp_path / "bin")), str(fake_project(tmp_path / "project"))
    assert "did not start" in refused(setup("--julia", julia, "--project", project))
    assert not config.exists()


def test_settings_that_cannot_be_written_are_refused_before_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    julia, project = str(fake_julia(tmp_path / "bin")), str(fake_project(tmp_path / "project"))
    (tmp_path / "taken" / "julia.json").mkdir(parents=True)
    for name in ("install_environment", "examine_environment", "try_start"):
        monkeypatch.setattr(julia_setup, name, lambda *args, **options: pytest.fail("work was begun"))
    for folder in (tmp_path / "file" / "below", tmp_path / "taken"):
        monkeypatch.setenv("PYTURINGVI_CONFIG", str(folder))
        for named in ((None, None), (julia, project)):
            with pytest.raises(OutputError, match=r"^setup: .*julia\.json'"):
                julia_setup.set_up(*named, say=lambda words: None)


def test_forget_says_what_it_removed(tmp_path: Path, config: Path) -> None:
    config.parent.mkdir()
    config.write_text("damaged")
    first, second = setup("--forget"), setup("--forget")
    assert (first.returncode, first.stdout) == (0, f"{config}: removed\n")
    assert (second.returncode, second.stdout) == (0, f"{config}: there is none\n")


# ---- the trial ----------------------------------------------------------------------------------------------
def test_a_trial_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in answers the probe, in the trial's process, after a long time."""
    julia = fake_julia(tmp_path / "bin")
    julia.write_text(f"#!/bin/sh\necho $$ > '{tmp_path / 'pid'}'\nexec sleep 300\n")
    monkeypatch.setattr(julia_trial, "_TICK", 0.5)
    ticks: list[float] = []
    with pytest.raises(EngineError, match="did not start within 3 s"):
        try_start(JuliaEnvironment(str(julia), str(tmp_path), "registered"), timeout=3.0, tick=ticks.append)
    assert len(ticks) >= 3
    process = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10  # a killed process needs a moment, and may wait as a zombie to be collected
    while psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_trial_that_crashes_says_with_which_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\necho words of Julia >&2\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crashing))
    with pytest.raises(EngineError, match="Python ended with code -11 while starting Julia: words of Julia"):
        try_start(JuliaEnvironment("julia", str(tmp_path), "registered"))


# ---- with a real Julia ---------------------------------------------------------------------------------------
@pytest.fixture
def real() -> JuliaEnvironment:
    found = find_environment()
    assert found is not None
    return found


def without_variables(config: Path) -> dict[str, str | None]:
    return {**dict.fromkeys(VARIABLES), "PYTURINGVI_CONFIG": str(config.parent)}


@pytest.mark.julia
def test_ones_own_julia_is_tried_out_and_used_from_then_on(real: JuliaEnvironment, config: Path) -> None:
    alone = without_variables(config)
    done = setup("--julia", real.executable, "--project", real.project, **alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Remembered in {config}" in done.stdout
    used = "fit = tv.fit(model(), n_iterations=2, elbo_samples=8, progress=False); print(fit.spec.engine)"
    assert run(used, None, **alone) == ["julia"]


@pytest.mark.julia
def test_the_real_juliapkg_offline_finds_a_project_that_is_there(
    real: JuliaEnvironment, config: Path, tmp_path: Path
) -> None:
    pytest.importorskip("juliapkg")
    project = copy_project(real, tmp_path / "project").project
    juliapkg = {"PYTHON_JULIAPKG_EXE": real.executable, "PYTHON_JULIAPKG_PROJECT": project}
    alone = without_variables(config)
    done = setup(PYTHON_JULIAPKG_OFFLINE="yes", **juliapkg, **alone)
    assert done.returncode == 0, done.stdout + done.stderr
    code = "e = tv.start_julia().environment; print(e.origin, e.project, 'juliapkg' in sys.modules)"
    assert run(code, None, **alone) == [f"juliapkg {project} False"]


@pytest.mark.julia
def test_a_real_julia_with_a_broken_package_is_refused(real: JuliaEnvironment, config: Path, tmp_path: Path) -> None:
    broken = copy_project(real, tmp_path / "project")
    break_package(broken.project, "PythonCall")
    done = setup("--julia", broken.executable, "--project", broken.project, **without_variables(config))
    assert "did not start" in refused(done)
    assert not config.exists()


def test_the_real_juliapkg_without_a_julia_and_a_network_fails_in_one_line(tmp_path: Path, config: Path) -> None:
    pytest.importorskip("juliapkg")
    project = str(tmp_path / "project")
    done = setup(PYTHON_JULIAPKG_OFFLINE="yes", PYTHON_JULIAPKG_PROJECT=project, PATH="/nonexistent")
    assert "could not find Julia" in refused(done)
    assert not config.exists()
