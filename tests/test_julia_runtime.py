"""Starting Julia inside Python: every known way in which it goes wrong, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import loky
import numpy as np
import pytest
from julia_children import PACKAGE, break_package, child, copy_project, run, variables, work

import pyturingvi as tv
from pyturingvi.bridge.environment import DEPOTS, JuliaEnvironment
from pyturingvi.errors import EngineError, JuliaError

pytestmark = pytest.mark.julia


# ---- a Julia that runs, in this process ---------------------------------------------------------------------
def test_a_second_start_gives_the_julia_that_runs_and_one_outside_the_main_thread_is_refused() -> None:
    assert tv.start_julia() is tv.start_julia()
    with ThreadPoolExecutor(1) as pool, pytest.raises(EngineError, match=r"^Julia runs in the main thread only"):
        pool.submit(tv.start_julia).result()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ('error("boom")', "ErrorException", "Julia: boom"),
        ("sqrt(-1.0)", "DomainError", "Julia: DomainError with -1.0:\n"),
        ("nothing_of_that_name", "UndefVarError", "Julia: UndefVarError: `nothing_of_that_name` not defined"),
        ("sin(1, 2, 3)", "MethodError", "Julia: MethodError: no method matching sin(::Int64, ::Int64, ::Int64)"),
        ('error("x" ^ 100_000)', "ErrorException", "Julia: " + "x" * 2000),
        ("struct Ours <: Exception end; throw(Ours())", "Ours", "Julia: "),
        ("struct Mute <: Exception end; Base.showerror(::IO, ::Mute) = error(); throw(Mute())", "Mute", "Julia: Mute"),
    ],
)
def test_an_error_in_julia_arrives_in_few_words_with_its_kind(code: str, kind: str, words: str) -> None:
    with pytest.raises(JuliaError) as caught:
        tv.start_julia().seval(code)
    assert caught.value.kind == kind
    assert str(caught.value).startswith(words)
    assert len(str(caught.value)) < 2100
    assert len(traceback.format_exception(caught.value)) < 15
    assert not any(word in str(caught.value) for word in ("Stacktrace", "Closest candidates"))


def test_a_call_takes_keywords_and_tells_a_wrong_one() -> None:
    runtime = tv.start_julia()
    f = runtime.seval("(x; args=1, y=2) -> x + 10y + 100args")
    assert runtime.call(f, 5, y=4, args=3) == 345
    assert runtime.call(f, 5) == 125
    names = runtime.seval("(x; keywords...) -> string(x, keys(keywords))")
    assert runtime.call(names, 7, late=1, early="a", middle=None) == "7(:early, :late, :middle)"
    for arguments, keywords in (((5,), {"z": 1}), ((), {}), (("a",), {})):
        with pytest.raises(JuliaError, match=r"MethodError: no method matching") as caught:
            runtime.call(f, *arguments, **keywords)
        assert caught.value.kind == "MethodError"
        assert "\n" not in str(caught.value)


def test_a_first_fit_calls_what_was_compiled_with_the_package(real: JuliaEnvironment) -> None:
    """No method instance of the calls that take a model and a family is made anew."""
    code = """
    runtime = tv.start_julia()
    count = runtime.seval('''P -> map((P.start_session, P.start_natural_session, P.advance_natural!)) do f
        instances(m) = count(!isnothing, Base.specializations(m))
        sum(instances, methods(Core.kwcall, (Any, typeof(f), Vararg)))
    end''')
    before = [int(n) for n in runtime.call(count, runtime.module)]
    fit()
    fit(optimizer=tv.NaturalGradient(), n_iterations=None, elbo_every=None)
    print([int(n) for n in runtime.call(count, runtime.module)] == before, min(before) > 3)
    """
    assert run(code, real) == ["True True"]


def test_a_second_ctrl_c_ends_a_run_at_once_and_leaves_julia_usable(isotropic: tv.models.Model) -> None:
    def run_it(callback: Any = None) -> np.ndarray:
        settings = {"n_iterations": 300, "elbo_every": 30, "engine": "julia", "progress": False}
        return tv.fit(isotropic, optimizer=tv.Adam(1e-3), callback=callback, **settings).params  # type: ignore[arg-type]

    def press_twice(iteration: int, elbo: float) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = run_it()
    with pytest.raises(KeyboardInterrupt):
        run_it(press_twice)
    np.testing.assert_array_equal(run_it(), before)


# ---- who else is there --------------------------------------------------------------------------------------
def test_torch_or_numba_imported_before_julia_gets_one_warning_and_juliacalls_own_switch_off_is_named(
    real: JuliaEnvironment,
) -> None:
    code = """
    import types
    sys.modules["torch"] = sys.modules["numba"] = types.ModuleType("stub")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print(outcome(tv.start_julia))
    print(*[one.message for one in caught], sep="|")
    """
    early = "torch and numba was imported before Julia started, which may crash the process."
    assert run(code, real, PYTHON_JULIACALL_INIT="no") == [
        "EngineError: PYTHON_JULIACALL_INIT=no keeps Julia from starting; unset it.",
        f"{early} Call tv.start_julia() first.",
    ]


def test_a_julia_that_other_code_started_with_its_own_project_is_used_with_a_warning(
    real: JuliaEnvironment, tmp_path: Path
) -> None:
    other = copy_project(real, tmp_path / "theirs")
    for path in Path(other.project).glob("*Project.toml"):
        path.write_text('[deps]\nPythonCall = "6099a3de-0909-46bc-b1f4-468b9a2dfc0d"\n')
    code = """
    ours = os.environ["PYTHON_JULIACALL_PROJECT"]
    os.environ["PYTHON_JULIACALL_PROJECT"] = os.environ["THEIRS"]
    import juliacall
    os.environ["PYTHON_JULIACALL_PROJECT"] = ours
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print(bits(fit(seed=1)))
    print(*[one.message for one in caught], sep="|")
    """
    numbers, said = run(code, real, THEIRS=other.project)
    assert numbers == work(1)[1]
    assert said.startswith("Julia was started by other code with the project")
    assert other.project in said
    assert real.project in said


def depots(real: JuliaEnvironment) -> str:
    return os.environ.get(DEPOTS) or real.depots or ""


def stub_checkout(real: JuliaEnvironment, folder: Path, body: str) -> dict[str, str]:
    """Variables of a checkout whose Julia package is small, and compiled nowhere yet."""
    shutil.copytree(Path(PACKAGE) / "pyturingvi", folder / "pyturingvi")
    shutil.rmtree(folder / "pyturingvi" / "julia", ignore_errors=True)
    (folder / "julia" / "src").mkdir(parents=True)
    shutil.copy(Path(PACKAGE) / "julia" / "Project.toml", folder / "julia")
    (folder / "julia" / "src" / "PyTuringVI.jl").write_text(f"module PyTuringVI\n{body}\nend\n")
    (folder.parent / "depot").mkdir(exist_ok=True)
    depot = f"{folder.parent / 'depot'}:{depots(real)}"
    return {"PYTHONPATH": str(folder), "JULIA_DEPOT_PATH": depot}


def test_two_checkouts_each_run_their_own_julia_code(real: JuliaEnvironment, tmp_path: Path) -> None:
    body = 'const COMPILED_IN = @__DIR__\nconst NAME = "{}"'
    settings = {name: stub_checkout(real, tmp_path / name, body.format(name)) for name in ("one", "two")}
    code = "P = tv.start_julia().module; print(P.NAME, P.COMPILED_IN)"
    for name in ("one", "two", "one"):  # the last with what the other may have put in its place
        assert run(code, real, **settings[name]) == [f"{name} {tmp_path / name / 'julia' / 'src'}"]


# ---- threads and processes ----------------------------------------------------------------------------------
def test_a_forked_worker_gets_an_error_and_the_parent_goes_on(real: JuliaEnvironment) -> None:
    code = """
    import multiprocessing
    before = bits(fit())
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks of its own accord
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.apply(outcome, (fit,)))
    child = os.fork()
    if child == 0:
        from pyturingvi.bridge.runtime import _runtime as runtime
        said = outcome(runtime.seval, "1 + 1")
        os.write(1, f"{said}\\n".encode())
        sys.exit(7)  # with Python's exit handlers, Julia's among them
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print(bits(fit()) == before)
    """
    worker, forked, code_of_child, same = run(code, real)
    assert worker.startswith("EngineError: engine='julia': Julia was started before this process was forked")
    assert forked.startswith("EngineError: Julia was started before this process was forked")
    assert code_of_child == "7"
    assert same == "True"


def test_workers_of_loky_and_spawned_ones_start_their_own_julia_and_give_the_same_numbers(
    real: JuliaEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", variables(real)["PYTHONPATH"])
    here = [work(seed) for seed in (1, 2)]
    with loky.ProcessPoolExecutor(2) as pool:
        there = list(pool.map(work, (1, 2)))
    with multiprocessing.get_context("spawn").Pool(1) as spawned:
        there.append(spawned.apply(work, (1,)))
    assert [numbers for _, numbers in there] == [numbers for _, numbers in (*here, here[0])]
    assert os.getpid() not in [process for process, _ in there]


# ---- Ctrl-C and kill ------------------------------------------------------------------------------------------
def test_ctrl_c_in_a_long_run_returns_what_is_fitted_and_the_process_lives_on(real: JuliaEnvironment) -> None:
    code = """
    fit()
    print("ready", flush=True)
    started = []
    tell = lambda i, e: (started or (started.append(i), print("running", flush=True))) and None
    part = fit(n_iterations=10**8, elbo_every=10_000, callback=tell)
    print(part.status, 10_000 <= part.n_updates < 10**8, np.isfinite(part.params).all(), flush=True)
    print(len(part.summary()))
    print(fit().status, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
    with child(code, real) as process:
        assert [process.stdout.readline().strip() for _ in range(2)] == ["ready", "running"]
        time.sleep(0.35)
        process.send_signal(signal.SIGINT)
        began = time.perf_counter()
        part = process.stdout.readline().split()
        waited = time.perf_counter() - began
        rest, words = process.stdout.read(), process.stderr.read()
    assert part == ["interrupted", "True", "True"], words[-2000:]
    assert waited < 2.0
    assert rest.split()[1:] == ["completed", "True"]
    assert process.returncode == 0


@pytest.mark.parametrize("delay", [0.1, 1.2])
def test_ctrl_c_while_julia_starts_is_kept_until_it_has(real: JuliaEnvironment, delay: float) -> None:
    code = """
    start = tv.start_julia  # imports what the start needs
    print("starting", flush=True)
    print(outcome(start).split(":")[0], flush=True)
    print(fit().status)
    """
    with child(code, real) as process:
        assert process.stdout.readline() == "starting\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        out, words = process.communicate(timeout=120)
    assert out.split() == ["KeyboardInterrupt", "completed"], words[-2000:]
    assert process.returncode == 0


def test_many_ctrl_c_while_julia_starts_end_in_words_and_not_in_a_crash(real: JuliaEnvironment) -> None:
    code = """
    print("starting", flush=True)
    first = ""
    while True:
        try:
            first = first or outcome(tv.start_julia).split(":")[0]
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            break
        except KeyboardInterrupt:  # the next one, between two statements of this test
            first = "KeyboardInterrupt"
    print(first, flush=True)
    print(outcome(lambda: fit().status))
    """
    with child(code, real) as process:
        assert process.stdout.readline() == "starting\n"
        while process.poll() is None:
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
        out, words = process.communicate(timeout=120)
    first, second = out.splitlines()
    assert first == "KeyboardInterrupt", words[-2000:]
    assert second == "completed" or "Restart Python" in second
    assert process.returncode == 0


def test_ctrl_c_while_the_package_is_compiled_ends_that_at_once(real: JuliaEnvironment, tmp_path: Path) -> None:
    """As at a terminal: every process of the group is told."""
    slow = 'isfile(raw"SLOW") && sleep(600)'.replace("SLOW", str(tmp_path / "slow"))
    body = f'write(raw"{tmp_path / "began"}", string(getpid()))\n{slow}'
    settings = stub_checkout(real, tmp_path / "checkout", body)
    (tmp_path / "slow").write_text("")
    code = """
    print(outcome(tv.start_julia).split(":")[0], flush=True)
    os.remove(os.environ["SLOW"])
    print(tv.start_julia().version)
    """
    with child(code, real, SLOW=str(tmp_path / "slow"), start_new_session=True, **settings) as process:
        until = time.monotonic() + 120
        while not (tmp_path / "began").exists():
            assert time.monotonic() < until
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        began = time.perf_counter()
        assert process.stdout.readline() == "KeyboardInterrupt\n"
        assert time.perf_counter() - began < 5.0
        assert not list((tmp_path / "depot").rglob("jl_*"))  # half-made files
        version, words = process.stdout.read(), process.stderr.read()
    assert version.strip() == real.probe().version, words[-2000:]
    assert words.count("compiling its Julia code") == 2


def test_a_killed_run_resumes_to_the_same_numbers(real: JuliaEnvironment, tmp_path: Path) -> None:
    """With an average of all iterates, so that every one of them counts."""
    code = """
    import functools
    from pyturingvi import fitting
    from pyturingvi.optimize import monitor
    fitting.RunMonitor = functools.partial(monitor.RunMonitor, checkpoint_seconds=0.0)
    averaging = tv.PolynomialAveraging()
    def go_on(pace):
        tell = lambda i, e: (print(i, flush=True), time.sleep(pace), None)[2]
        return fit(n_iterations=3000, checkpoint=os.environ["FILE"], callback=tell, averaging=averaging)
    """
    file = str(tmp_path / "run.npz")
    with child(f"{code}\n    go_on(0.03)", real, FILE=file) as process:
        while int(process.stdout.readline()) < 900:
            pass
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    first, *_, resumed, whole = run(
        f"""{code}
    done = go_on(0.0)
    print(done.status, done.n_updates, bits(done))
    print(bits(fit(n_iterations=3000, averaging=averaging)))
    """,
        real,
        FILE=file,
    )
    assert int(first) > 300  # it did not start anew
    assert resumed == f"completed 3000 {whole}"


# ---- places that cannot be used -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("package", "words", "second"),
    [
        ("Optimisers", "the Julia package PyTuringVI could not be compiled (code 1): ", ""),
        ("PythonCall", " did not start with the project", " Restart Python for another attempt."),
    ],
)
def test_a_package_whose_files_are_gone_gets_a_short_error_each_time_and_a_log(
    real: JuliaEnvironment, tmp_path: Path, package: str, words: str, second: str
) -> None:
    broken = copy_project(real, tmp_path / "project")
    break_package(broken.project, package)
    depot = f"{tmp_path / 'depot'}:{depots(real)}"
    code = "print(*[outcome(tv.start_julia) for _ in range(2)], sep='\\n')"
    said = run(code, broken, JULIA_DEPOT_PATH=depot, XDG_STATE_HOME=str(tmp_path / "state"))
    for one in said:
        assert one.startswith("EngineError: ")
        assert all(part in one for part in (words, f"Package {package}"))
        assert len(one) < 1000
    assert said[1].endswith(second)
    (log,) = (tmp_path / "state").rglob("julia.log")
    assert str(log) in said[0]
    assert f"Package {package}" in log.read_text()


def read_only(folder: Path) -> tuple[str, ...]:
    """The start of a command under which nothing can be written to `folder`; permission bits do not bind root."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        return ()
    script = f'mount --bind "{folder}" "{folder}" && mount -o remount,ro,bind "{folder}" && exec "$@"'
    prefix = ("unshare", "-m", "sh", "-c", script, "sh")
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("root without the right to mount cannot make a folder read-only")
    assert subprocess.run([*prefix, "touch", str(folder / "file")], capture_output=True).returncode
    return prefix


@pytest.mark.skipif(sys.platform != "linux", reason="mounts, and takes the network away, as Linux does")
def test_a_start_needs_no_network_no_path_no_juliapkg_and_no_project_that_can_be_written(
    real: JuliaEnvironment, tmp_path: Path
) -> None:
    project = copy_project(real, tmp_path / "project")
    prefix = (*read_only(Path(project.project)), "unshare", "-n" if os.geteuid() == 0 else "-rn")
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this user cannot take the network away")
    code = "print(fit().status, 'juliapkg' in sys.modules)"
    assert run(code, project, (*prefix, "/usr/bin/env", "PATH=/nonexistent")) == ["completed False"]


@pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux does")
def test_a_depot_that_cannot_be_written_is_used(real: JuliaEnvironment, tmp_path: Path) -> None:
    settings = stub_checkout(real, tmp_path / "checkout", "const ANSWER = 42")
    prefix = read_only(tmp_path / "depot")
    for cache in (str(tmp_path / "cache"), "/proc/nonexistent"):  # with nothing writable at all, a temporary one
        code = "print(tv.start_julia().module.ANSWER)"
        assert run(code, real, prefix, XDG_CACHE_HOME=cache, **settings) == ["42"]
    assert list((tmp_path / "cache").glob("pyturingvi/julia/*/compiled/*/PyTuringVI/*.ji"))
    assert not any((tmp_path / "depot").iterdir())


# ---- what a start leaves alone ------------------------------------------------------------------------------
def test_a_start_prints_nothing_and_leaves_threads_signals_and_variables_as_they_are(
    real: JuliaEnvironment,
) -> None:
    code = """
    before = dict(os.environ)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    warnings.simplefilter("error")
    runtime = tv.start_julia()
    fit()
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert int(runtime.seval("Threads.nthreads()")) == 1
    changed = {name for name in before | os.environ if before.get(name) != os.environ.get(name)}
    assert changed <= {"JULIA_PYTHONCALL_EXE"}, changed
    runtime.seval('println(stderr, "Julia writes where it did")')
    """
    with child(code, real, JULIA_NUM_THREADS="4") as process:
        assert process.communicate(timeout=300) == ("", "Julia writes where it did\n")
