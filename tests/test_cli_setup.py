"""`pyturingvi setup`: what it installs, registers, refuses and remembers.

juliapkg's downloads are not tested here: a made-up module of its name plays them, or the real one runs offline.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fake_julia import fake_environment, fake_julia, fake_project
from julia_children import PACKAGE, copy_project, run

from pyturingvi.bridge.environment import DEPOTS, VARIABLES, JuliaEnvironment, find_environment, remember
from pyturingvi.bridge.packages import installed_by_setup
from pyturingvi.bridge.remembered import last_failure
from pyturingvi.cli import main
from pyturingvi.errors import EngineError, OutputError
from pyturingvi.setup import child, install
from pyturingvi.setup.trial import Trial, try_start

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for Julia"),
    pytest.mark.usefixtures("config"),
]
TESTS = str(Path(__file__).parent)


Setup = Callable[..., tuple[int, str, str]]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Setup:
    """The command, under changed variables (None unsets one): its exit code, and what it wrote to either stream."""

    def call(*arguments: str, **changes: str | None) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in changes.items():
                patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
            patch.setattr(sys, "argv", ["pyturingvi", "setup", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        code = ended.value.code
        assert isinstance(code, int)
        return code, *capsys.readouterr()

    return call


def refused(done: tuple[int, str, str]) -> str:
    """The one line of an error with exit code 2, which is all that is said on standard error."""
    code, out, err = done
    assert code == 2, out + err
    (line,) = err.splitlines()
    assert line.startswith("Error: ")
    assert "Stacktrace" not in out
    return line


def found() -> JuliaEnvironment:
    environment = find_environment()
    assert environment is not None
    return environment


def failure_told() -> tuple[str, str]:
    failure = last_failure()
    assert failure is not None
    return failure


# ---- with a made-up juliapkg ---------------------------------------------------------------------------------
Installed = Callable[..., list[str]]


@pytest.fixture
def fake_juliapkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Installs through a made-up module, the trial start left out, and gives what was asked of the module.

    Its `resolve` makes the project complete at the n-th call, or does what a statement says.
    """

    def run_setup(version: str = "1.10.8", complete_after: int = 1, statement: str = "") -> list[str]:
        project, calls = tmp_path / "project", tmp_path / "calls"
        made = f"fake_project(Path({str(project)!r}), {{}} if n >= {complete_after} else {{'Zygote': None}})"
        code = f"""
from pathlib import Path
from fake_julia import fake_project
calls = Path({str(calls)!r})
require_julia = add = lambda *_, **__: None
executable = lambda: {str(fake_julia(tmp_path / "bin", version))!r}
project = lambda: {str(project)!r}
def resolve(**options):
    n = calls.open("a").write(f"{{options}}\\n") and len(calls.read_text().splitlines())
    {statement or made}
"""
        (tmp_path / "juliapkg.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), PACKAGE, TESTS)))
        monkeypatch.setattr(install, "try_start", lambda *_, **__: Trial("1.10.8", 3.0, {"Turing": "no reason"}))
        said: list[str] = []
        said.append(install.set_up(say=said.append))
        return [*calls.read_text().splitlines(), *said]

    return run_setup


def test_what_juliapkg_installs_is_what_is_found_afterwards(
    tmp_path: Path, config: Path, fake_juliapkg: Installed
) -> None:
    call, plan, *_, words = fake_juliapkg()
    assert call == "{'force': False}"
    assert "minutes" in plan  # it comes before all else
    assert "GB" in plan
    place = (str(tmp_path / "bin" / "julia"), str(tmp_path / "project"))
    assert find_environment() == JuliaEnvironment(*place, "juliapkg", found().remembered, depots="")
    assert str(config) in words
    assert "Turing is installed but does not load: no reason" in words


def test_a_project_that_was_changed_behind_juliapkgs_back_is_installed_again(fake_juliapkg: Installed) -> None:
    assert fake_juliapkg(complete_after=2)[:2] == ["{'force': False}", "{'force': True}"]
    assert found().origin == "juliapkg"


@pytest.mark.parametrize(("version", "after", "words"), [("1.10.2", 1, "1.10.2"), ("1.10.8", 9, "Zygote 0.7")])
def test_what_juliapkg_leaves_unusable_is_not_remembered(
    fake_juliapkg: Installed, version: str, after: int, words: str
) -> None:
    with pytest.raises(EngineError, match=f"{words}.* --julia EXE --project DIR"):
        fake_juliapkg(version, after)
    assert find_environment() is None


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("import urllib.error; raise urllib.error.URLError('no route to host')", "no route to host"),
        ("raise PermissionError(13, 'Permission denied', '/opt/env')", "Permission denied: '/opt/env'"),
        ("raise Exception('one\\n  two\\n')", "failed: one two. Julia"),
        ("raise Exception", "failed: Exception. Julia"),
        ("import os; os._exit(3)", "failed: Python ended with code 3. Julia"),
        ("import no_such_module", "no_such_module"),
    ],
)
def test_an_installation_that_fails_ends_in_one_line_that_doctor_knows_too(
    fake_juliapkg: Installed, statement: str, words: str
) -> None:
    with pytest.raises(EngineError, match="the installation failed: ") as caught:
        fake_juliapkg(statement=statement)
    said = str(caught.value)
    assert all(part in said for part in (words, "pyturingvi setup --julia EXE --project DIR", "PYTHON_JULIAPKG_EXE"))
    assert "\n" not in said
    assert failure_told()[0] in said
    assert find_environment() is None


def test_of_a_julia_that_fails_its_message_is_told_and_its_stack_kept_in_a_file(
    tmp_path: Path, fake_juliapkg: Installed, setup: Setup
) -> None:
    script = "echo Downloading; echo ERROR: no host >&2; echo Stacktrace: >&2; echo ' [1] pkgerror' >&2; exit 1"
    with pytest.raises(EngineError):
        fake_juliapkg(statement=f"import subprocess; subprocess.run(['sh', '-c', {script!r}], check=True)")
    log = next((tmp_path / "state").rglob("julia.log"))
    for options in ((), ("--quiet",)):
        log.unlink()
        code, out, err = setup(*options)
        assert f"exit status 1.: no host. Julia's own words are in {log}" in refused((code, out, err))
        assert ("This will" in out, "Downloading" in out) == ((False, False) if options else (True, True))
        assert "pkgerror" not in out
        assert "[1] pkgerror" in log.read_text()


def test_the_real_juliapkg_is_asked_for_the_bounds_of_the_bundled_project_alone(tmp_path: Path, setup: Setup) -> None:
    compat = pytest.importorskip("juliapkg.compat")
    project = str(tmp_path / "project")
    done = setup(PYTHON_JULIAPKG_OFFLINE="yes", PYTHON_JULIAPKG_PROJECT=project, PATH="/nonexistent")
    assert "could not find Julia" in refused(done)
    asked = json.loads((tmp_path / "project" / "pyjuliapkg" / "juliapkg.json").read_text())
    assert asked["packages"] == {
        name: {"uuid": uuid, "version": version} for name, uuid, version in installed_by_setup()
    }
    assert "Turing" in asked["packages"]
    needed = compat.Compat.parse(asked["julia"])
    for minor in range(8, 14):
        for patch in range(12):
            version = (1, minor, patch)
            passes = (1, 10, 8) <= version < (1, 11, 0) or (1, 11, 6) <= version < (1, 13, 0)
            assert (compat.Version(*version) in needed) is passes


def test_nothing_is_installed_while_the_variables_name_another_place(tmp_path: Path, setup: Setup) -> None:
    for name in VARIABLES:
        assert "Unset them first" in refused(setup(**{name: "/elsewhere"}))


# ---- one's own Julia -----------------------------------------------------------------------------------------
def test_an_environment_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, setup: Setup) -> None:
    julia, old = str(fake_julia(tmp_path / "bin")), str(fake_julia(tmp_path / "bin", "1.10.4", "old"))
    project = str(fake_project(tmp_path / "project"))
    lacking = str(fake_project(tmp_path / "lacking", {"Zygote": None}))
    for arguments, words in [
        (("--julia", julia), "--julia and --project go together"),
        (("--project", project), "--julia and --project go together"),
        (("--julia", str(tmp_path / "gone"), "--project", project), "is no executable file"),
        (("--julia", julia, "--project", str(tmp_path / "gone")), "is no folder"),
        (("--forget", "--julia", julia), "--forget goes alone"),
        (("--julia", old, "--project", project), "Julia 1.10.4"),
        (("--julia", "/bin/cat", "--project", project), "does not answer like Julia"),
        (("--julia", julia, "--project", lacking), "lacks Zygote 0.7"),
    ]:
        line = refused(setup(*arguments))
        assert words in line
        if words.startswith(("Julia 1.10.4", "does not answer")):  # to register the same again would fail again
            assert line.endswith("Mend it with: pyturingvi setup")
    assert find_environment() is None


def test_what_mends_a_refused_environment_ends_with_the_setup_itself(tmp_path: Path, setup: Setup) -> None:
    environment = fake_environment(tmp_path, changes={"Zygote": None})
    named = ["pyturingvi", "setup", "--julia", environment.executable, "--project", environment.project]
    commands = []
    for missing in ("", "Zygote"):
        if missing:
            fake_project(tmp_path / "project")
            (tmp_path / "bin" / "missing").write_text(missing)
        line = refused(setup(*named[2:]))
        what, command = failure_told()
        assert line == f"Error: setup: {what}. Mend it with: {command}"
        words = shlex.split(command)
        assert words[-len(named) - 1 :] == ["&&", *named]
        commands.append(words[3])
    assert commands == ['using Pkg; Pkg.add([(name="Zygote", version="0.7")])', "using Pkg; Pkg.instantiate()"]


def test_a_project_file_stands_for_its_folder_and_a_name_for_an_executable_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    julia, project = fake_julia(tmp_path / "bin"), fake_project(tmp_path / "project")
    monkeypatch.setenv("PATH", str(julia.parent), prepend=os.pathsep)
    given = install.registered_environment("julia", project / "Project.toml")
    assert given == JuliaEnvironment(str(julia), str(project), "registered")


def test_a_julia_that_does_not_start_is_not_remembered_and_what_was_stays(tmp_path: Path, setup: Setup) -> None:
    """The stand-in passes every check, and has no library to load."""
    remember(fake_environment(tmp_path))
    before = find_environment()
    other = fake_environment(tmp_path / "other")
    assert "did not start" in refused(setup("--julia", other.executable, "--project", other.project))
    assert find_environment() == before
    assert "did not start" in failure_told()[0]


def test_settings_that_cannot_be_written_are_refused_before_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken" / "julia.json").mkdir(parents=True)
    environment = fake_environment(tmp_path)
    for name in ("call_in_child", "examine_julia"):
        monkeypatch.setattr(install, name, lambda *args, **options: pytest.fail("work was begun"))
    for folder in (Path(environment.executable) / "below", tmp_path / "taken"):
        monkeypatch.setenv("PYTURINGVI_CONFIG", str(folder))
        for named in ((None, None), (environment.executable, environment.project)):
            with pytest.raises(OutputError, match=r"^setup: "):
                install.set_up(*named, say=child.silent)


def test_forget_says_what_it_removed(config: Path, setup: Setup) -> None:
    config.parent.mkdir()
    config.write_text("damaged")
    first, second = setup("--forget"), setup("--forget")
    assert first[:2] == (0, f"{config}: removed\n")
    assert second[:2] == (0, f"{config}: there is none\n")


# ---- processes ----------------------------------------------------------------------------------------------
def gone(process: int) -> bool:
    """Whether a process ends within ten seconds, be it as a zombie that nobody collects."""
    until = time.monotonic() + 10
    while psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_a_trial_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in answers the probe, in the trial's process, after a long time."""
    julia = fake_julia(tmp_path / "bin")
    julia.write_text(f"#!/bin/sh\necho $$ > '{tmp_path / 'pid'}'\nexec sleep 300\n")
    monkeypatch.setattr(child, "_TICK", 0.5)
    said: list[str] = []
    with pytest.raises(EngineError, match="it took more than 3 s"):
        try_start(JuliaEnvironment(str(julia), str(tmp_path), "registered"), timeout=3.0, say=said.append)
    assert len(said) >= 3
    assert gone(int((tmp_path / "pid").read_text()))


def test_ctrl_c_ends_the_installation_and_what_it_started(tmp_path: Path, fake_juliapkg: Installed) -> None:
    began = tmp_path / "began"
    sleep = f"import subprocess; subprocess.run(['sh', '-c', 'echo $$ > {began}; exec sleep 300'])"
    with pytest.raises(EngineError):
        fake_juliapkg(statement="raise Exception")
    module = tmp_path / "juliapkg.py"
    module.write_text(module.read_text().replace("raise Exception", sleep))
    command = [sys.executable, "-P", "-m", "pyturingvi", "setup", "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (began.exists() and began.read_text().endswith("\n")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10)[1].startswith("Interrupted; nothing new is remembered.")
    assert process.returncode == 130
    assert gone(int(began.read_text()))


# ---- with a real Julia ---------------------------------------------------------------------------------------
@pytest.mark.julia
@pytest.mark.parametrize("way", ["own", "juliapkg"])
def test_ones_own_julia_or_that_of_juliapkg_is_tried_out_and_used_from_then_on_with_its_depots(
    real: JuliaEnvironment, config: Path, tmp_path: Path, setup: Setup, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    alone: dict[str, str | None] = {**dict.fromkeys(VARIABLES), "PYTURINGVI_CONFIG": str(config.parent)}
    if way == "own":
        project, named, installs = real.project, ("--julia", real.executable, "--project", real.project), {}
    else:  # offline, juliapkg takes a project that is there
        pytest.importorskip("juliapkg")
        project, named = copy_project(real, tmp_path / "project").project, ()
        names = ("PYTHON_JULIAPKG_OFFLINE", "PYTHON_JULIAPKG_EXE", "PYTHON_JULIAPKG_PROJECT")
        installs = dict(zip(names, ("yes", real.executable, project), strict=True))
        # a trial that makes a fit and loads all packages is shown by the other way
        monkeypatch.setattr(install, "try_start", lambda environment, **_: try_start(environment))
    done = setup(*named, **installs, **alone, **real.variables())
    assert done[0] == 0, done
    assert f"Remembered in {config}" in done[1]
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTURINGVI_CONFIG", str(config.parent))
    assert (found().origin, found().project) == ("registered" if way == "own" else "juliapkg", project)
    if way == "own":
        settings = "optimizer=tv.Adam(1e-3), n_iterations=2, elbo_samples=8, progress=False"
        used = f"fit = tv.fit(model(), {settings}); print(fit.spec.engine)"
        assert run(used, None, **alone, **{DEPOTS: None}) == ["julia"]
