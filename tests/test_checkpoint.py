"""Checkpoints: killed and interrupted runs end with the numbers of an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_checks import BUNDLED
from targets import TRACE, Counting, assert_same_run, quick_fit

import pyturingvi as tv
from pyturingvi.errors import InputError, OutputError
from pyturingvi.layout import Layout
from pyturingvi.support.archive import read_archive, write_archive
from pyturingvi.support.interrupts import DeferredInterrupt, interrupts_raised

N_ITERATIONS, EVERY = 3000, 30

# A child process makes the same fit as `uninterrupted`, slowed down by its callback.
CHILD = """
import functools, sys, time
sys.path.insert(0, {tests!r})
from pyturingvi import fitting
from pyturingvi.optimize import monitor
from test_checkpoint import fit_again

fitting.RunMonitor = functools.partial(monitor.RunMonitor, checkpoint_seconds=0.0)
fit = fit_again({checkpoint!r}, averaging={averaging!r}, callback=lambda i, e: time.sleep(0.03))
fit.save({result!r})
print(fit.status, fit.n_updates, len(fit.summary()), fit.message, sep="|")
"""


def fit_again(checkpoint: Any = None, averaging: bool = False, **changes: Any) -> tv.Fit:
    settings: dict[str, Any] = {
        "n_iterations": N_ITERATIONS,
        "elbo_every": EVERY,
        "elbo_samples": 32,
        "optimizer": tv.Adam(tv.step_decay(1e-2, every=1000)),
        "seed": 7,
        "averaging": tv.PolynomialAveraging() if averaging else None,
    }
    return quick_fit(BUNDLED["poisson"], checkpoint=checkpoint, **{**settings, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.npz"


class Child:
    """A running fit in another process that checkpoints about ten times a second."""

    def __init__(self, folder: Path, averaging: bool) -> None:
        self.checkpoint, self.result = folder / "run.npz", folder / "fit.npz"
        names = {"tests": str(Path(__file__).parent), "checkpoint": str(self.checkpoint), "result": str(self.result)}
        code = CHILD.format(**names, averaging=averaging)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(tv.__file__).parents[1])},
        )

    def wait_for_updates(self, n: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.checkpoint.exists() and self.updates() >= n:
                return
            time.sleep(0.05)  # a look reads the file
        raise AssertionError(self.process.communicate()[1])

    def updates(self) -> int:
        return int(read_archive(self.checkpoint, "checkpoint", "test")[0]["iteration"])


@pytest.fixture
def start_child(tmp_path: Path) -> Iterator[Any]:
    children: list[Child] = []

    def start(averaging: bool = False) -> Child:
        children.append(Child(tmp_path, averaging))
        return children[-1]

    yield start
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()


# ---- killed ------------------------------------------------------------------------------------------------
def test_a_run_that_is_killed_twice_resumes_to_the_same_numbers(start_child: Any) -> None:
    reached, averaging = 0, True
    for _ in range(2):
        child = start_child(averaging)
        child.wait_for_updates(reached + 10)
        time.sleep(random.uniform(0.0, 0.3))
        child.process.send_signal(signal.SIGKILL)
        assert child.process.wait(30) == -signal.SIGKILL
        assert reached + 10 <= child.updates() < N_ITERATIONS
        assert not child.result.exists()
        reached = child.updates()
    resumed = fit_again(child.checkpoint, averaging)
    assert resumed.status == "completed"
    assert_same_run(resumed, fit_again(averaging=averaging))
    assert np.all(np.diff(resumed.elbo["seconds"]) >= 0)


# ---- Ctrl-C ------------------------------------------------------------------------------------------------
def test_ctrl_c_returns_a_usable_fit_that_can_be_taken_up(start_child: Any) -> None:
    child = start_child()
    child.wait_for_updates(10)
    time.sleep(random.uniform(0.0, 0.3))
    child.process.send_signal(signal.SIGINT)
    out, errors = child.process.communicate(timeout=60)
    assert child.process.returncode == 0, errors
    status, n_updates, n_rows, message = out.strip().split("|")
    assert status == "interrupted"
    assert 0 < int(n_updates) < N_ITERATIONS
    assert message == f"stopped by Ctrl-C after {n_updates} of {N_ITERATIONS} updates"
    assert int(n_rows) == 6  # three scales, alpha and two coefficients
    partial = tv.load_fit(child.result)
    assert partial.n_updates == child.updates() == int(n_updates)
    assert partial.elbo["iteration"].iloc[-1] == int(n_updates)
    uninterrupted = fit_again()
    whole_rows = uninterrupted.elbo[TRACE][uninterrupted.elbo["iteration"] < int(n_updates)]
    np.testing.assert_array_equal(partial.elbo[TRACE].iloc[: len(whole_rows)], whole_rows)
    shorter = fit_again(n_iterations=int(n_updates))
    np.testing.assert_array_equal(partial.params, shorter.params)
    assert_same_run(fit_again(child.checkpoint), uninterrupted)


def test_ctrl_c_during_an_elbo_estimate_leaves_no_trace_after_resuming(path: Path) -> None:
    """Ctrl-C cuts an estimate short; the row is estimated anew, from all draws, when the run goes on."""
    calls = 0

    def fn(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal calls
        calls += len(points) > 8
        if calls == interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        return -0.5 * (points**2).sum(axis=1), -points

    def run(checkpoint: Path | None) -> tv.Fit:
        nonlocal calls
        calls = 0
        model = tv.models.LogDensity(fn, Layout(5, 6000, 1))
        settings = {"n_iterations": 12, "elbo_every": 3, "elbo_samples": 400, "n_threads": 1}
        return quick_fit(model, "mean-field", checkpoint=checkpoint, **settings)

    interrupt_at = -1
    whole = run(None)
    interrupt_at = calls // 2 + 1  # inside the second or third of four estimates
    cut = run(path)
    assert cut.status == "interrupted"
    assert cut.n_updates in (6, 9)
    assert cut.elbo["std_error"].iloc[-1] > whole.elbo["std_error"].max()  # from fewer draws
    interrupt_at = -1
    assert_same_run(run(path), whole)


def test_the_first_ctrl_c_is_noted_the_second_interrupts_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupt = DeferredInterrupt()
    with interrupt:
        assert not interrupt.requested
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_ctrl_c_in_the_last_moment_of_a_fit_ends_what_is_around_it() -> None:
    """Such a fit is complete, so that nothing in it tells of the Ctrl-C: a series of short fits would go on."""
    before = signal.getsignal(signal.SIGINT)

    def short_fit() -> tv.Fit:
        return fit_again(n_iterations=3, elbo_every=3, callback=lambda *_: signal.raise_signal(signal.SIGINT))

    assert short_fit().status == "completed"
    with pytest.raises(KeyboardInterrupt), interrupts_raised():
        short_fit()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fit_in_another_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[tv.Fit] = []
    thread = threading.Thread(target=lambda: found.append(fit_again(n_iterations=50)))
    thread.start()
    thread.join()
    assert_same_run(found[0], fit_again(n_iterations=50))
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        fit = fit_again(n_iterations=60, callback=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert fit.status == "completed"


# ---- stopped otherwise -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("mean-field", "float64"),
        (tv.Structured(standardized=False), "float32"),
        ("markov", "float64"),
        ("full-rank", "float32"),
    ],
    ids=str,
)
def test_a_run_goes_on_from_any_update(tmp_path: Path, family: Any, dtype: str) -> None:
    """300 is in the second block of draws, which has 256 updates; at 320 the run is complete already."""
    settings = {"family": family, "elbo_every": 40, "dtype": dtype}
    expected = fit_again(n_iterations=320, **settings)
    for stop in (1, 119, 300, 320):
        path = tmp_path / f"{stop}.npz"
        fit_again(path, n_iterations=stop, **settings)
        assert_same_run(fit_again(path, n_iterations=320, **settings), expected)


def test_given_noise_goes_on_from_a_checkpoint(path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=(60, 8, BUNDLED["poisson"].dim))
    fit_again(path, n_iterations=60, noise=noise, callback=lambda i, e: True)
    assert read_archive(path, "checkpoint", "test")[0]["iteration"] == 30
    resumed = fit_again(path, n_iterations=60, noise=noise)
    assert_same_run(resumed, fit_again(n_iterations=60, noise=noise))
    with pytest.raises(InputError, match="noise was"):
        fit_again(path, n_iterations=60, noise=noise + 1)


def test_a_callback_that_raises_is_not_swallowed_and_the_checkpoint_is_kept(path: Path) -> None:
    def fail(iteration: int, elbo: float) -> None:
        if iteration == 90:
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        fit_again(path, n_iterations=300, callback=fail)
    assert read_archive(path, "checkpoint", "test")[0]["iteration"] == 90
    assert_same_run(fit_again(path, n_iterations=300), fit_again(n_iterations=300))


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_a_diverged_run_does_not_overwrite_the_checkpoint(path: Path, isotropic: tv.models.Model) -> None:
    arguments = (isotropic, "mean-field", tv.SGD(10.0))
    quick_fit(*arguments, n_iterations=3, checkpoint=path)
    before = path.read_bytes()
    assert quick_fit(*arguments, n_iterations=1000, checkpoint=path).status == "diverged"
    assert path.read_bytes() == before


def test_a_checkpoint_that_cannot_be_written_in_the_middle_does_not_end_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk fills up: hours of work must not be lost for it."""

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyturingvi.optimize.monitor.write_archive", full)
    with pytest.warns(RuntimeWarning, match=r"checkpoint: .*run\.npz.* No space left on device"):
        fit = fit_again(path, n_iterations=90)
    assert_same_run(fit, fit_again(n_iterations=90))


def test_a_relative_checkpoint_stays_where_it_was_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    fit_again("run.npz", n_iterations=60, callback=lambda *_: os.chdir(tmp_path / "there"))
    assert (tmp_path / "run.npz").is_file()


# ---- refused -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 8}, "seed was 7, is 8"),
        ({"n_samples": 4}, "n_samples was 8, is 4"),
        ({"elbo_every": 60}, "elbo_every was 30, is 60"),
        ({"elbo_samples": 33}, "elbo_samples was 32, is 33"),
        ({"dtype": "float32"}, "dtype was 'float64', is 'float32'"),
        ({"family": "mean-field"}, "family was .*'structured'.*, is .*'mean-field'"),
        ({"optimizer": tv.Adam(1e-3)}, "optimizer was "),
        ({"init_scale": 0.2}, "init was "),
        ({"averaging": tv.PolynomialAveraging()}, "averaging was None"),
        ({"n_iterations": 50}, "already holds 60 updates, more than n_iterations=50"),
    ],
    ids=str,
)
def test_the_checkpoint_of_another_fit_is_refused_with_the_difference(
    path: Path, changes: dict[str, Any], words: str
) -> None:
    fit_again(path, n_iterations=60)
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"checkpoint: .*{words}"):
        fit_again(path, **{"n_iterations": 60, **changes})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "make",
    [
        lambda k: tv.models.RobustPoisson(np.arange(4.0)[:, None], [0, 3, 1, k]),
        lambda k: Counting(mean=k).model,
    ],
    ids=["data", "function"],
)
def test_the_checkpoint_of_other_data_or_another_function_is_refused(path: Path, make: Any) -> None:
    quick_fit(make(1), n_iterations=5, checkpoint=path)
    with pytest.raises(InputError, match=r"belongs to another fit \(model_digest was"):
        quick_fit(make(2), n_iterations=5, checkpoint=path)


def test_a_checkpoint_is_not_a_fit_nor_a_fit_a_checkpoint(tmp_path: Path) -> None:
    fit = fit_again(tmp_path / "run.npz", n_iterations=5)
    with pytest.raises(OutputError, match=r"load_fit: .* holds a 'checkpoint', not a 'fit'"):
        tv.load_fit(tmp_path / "run.npz")
    fit.save(tmp_path / "fit.npz")
    with pytest.raises(OutputError, match=r"checkpoint: .* holds a 'fit', not a 'checkpoint'"):
        fit_again(tmp_path / "fit.npz", n_iterations=5)


def test_damaged_checkpoints_are_refused_and_an_empty_file_is_a_new_one(path: Path) -> None:
    expected = fit_again(path, n_iterations=5)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1], b"not a zip file", whole[10:]):
        path.write_bytes(content)
        with pytest.raises(OutputError, match=r"checkpoint: .*run\.npz' is damaged"):
            fit_again(path, n_iterations=5)
        assert path.read_bytes() == content
    path.write_bytes(b"")
    assert_same_run(fit_again(path, n_iterations=5), expected)


@pytest.mark.parametrize("missing", ["rows", "params", "slot1", "average"])
def test_a_checkpoint_that_lacks_a_part_is_damaged(path: Path, missing: str) -> None:
    fit_again(path, averaging=True, n_iterations=5)
    header, arrays = read_archive(path, "checkpoint", "test")
    del arrays[missing]
    write_archive(path, header, arrays)
    with pytest.raises(OutputError, match="damaged"):
        fit_again(path, averaging=True, n_iterations=5)


def test_a_checkpoint_holds_no_pickle(path: Path) -> None:
    fit_again(path, n_iterations=5)
    with np.load(path, allow_pickle=False) as content:
        assert {"header", "params", "rows", "slot0", "slot1"} == set(content.files)
        header = json.loads(content["header"].tobytes())
    assert header["spec"]["seed"] == 7
    assert zipfile.ZipFile(path).testzip() is None
    assert list(path.parent.iterdir()) == [path]  # no half-written file beside it


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("missing/run.npz", "does not exist"),
        ("file/run.npz", "is a file, not a directory"),
        ("file/below/run.npz", "is a file, not a directory"),
        ("folder", "is a directory"),
        ("pipe", "is a device or a pipe"),
        ("x" * 300, "name too long"),
        pytest.param(
            "/proc/self/run.npz",
            r"cannot write '/proc/self/run\.npz'",
            marks=pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a directory that even root cannot write"),
        ),
    ],
)
def test_paths_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    counting = Counting()
    with pytest.raises(OutputError, match=f"(?i)checkpoint: .*{words}"):
        quick_fit(counting.model, n_iterations=5, checkpoint=tmp_path / place)
    assert counting.calls == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("checkpoint", [5, True, ["run.npz"], "~nosuchuser/x.npz", "\ud800.npz"], ids=ascii)
def test_a_checkpoint_that_is_no_path_is_refused(checkpoint: Any) -> None:
    with pytest.raises(InputError, match=r"checkpoint( must be a path|: .* is not a usable path)"):
        quick_fit(Counting().model, n_iterations=5, checkpoint=checkpoint)


def test_long_file_names_and_the_home_folder_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    name = "r" * 251 + ".npz"  # 255, the longest a file system takes
    fit_again(f"~/{name}", n_iterations=2)
    assert [p.name for p in tmp_path.iterdir()] == [name]
