"""Small models that several test files fit."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib.metadata
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Read when NumPy and JAX are loaded, by the processes that tests start too. Beside other processes of tests the threads
# of BLAS wait for each other and burn up to five times the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Julia compiles in half the time at -O1, and most of its tests is compilation
os.environ.setdefault("PYTHON_JULIACALL_OPTIMIZE", "1")

os.environ["MPLBACKEND"] = "Agg"

# what takes a second to import is imported by fixtures, since the process that hands out the tests waits for this file
import pytest
from left_out import build_commands_once, draw_coarsely, leave_out_drawing, leave_out_processes

if TYPE_CHECKING:
    from targets import GaussianTarget

    import pyturingvi as tv
    from pyturingvi.bridge.environment import JuliaEnvironment


def xla_flags() -> str:
    """JAX compiles in half the time without optimizing, by its plainer way to join operations, and in one piece.

    All but the first flag are set for the release alone that is known to have them: an unknown one ends the process.
    """
    flags = "--xla_backend_optimization_level=0"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("jaxlib").startswith("0.10."):
            flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    return flags


os.environ.setdefault("XLA_FLAGS", xla_flags())  # likewise read by the processes that tests start

# a shell starts its background jobs with SIGINT ignored, which the processes that tests interrupt would inherit
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def ctrl_c_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Presses Ctrl-C, once, where a sampler's progress bar would show so many steps."""
    from pyturingvi.referee import run

    def arrange(stop_at: int) -> None:
        pressed: list[int] = []

        def press(bar: Any, done: int, words: str) -> None:
            if done >= stop_at and not pressed:
                pressed.append(done)
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(run, "show", press)

    return arrange


_LONG = {  # with Julia, and without it
    *("test_julia_package.py", "test_julia_runtime.py", "test_models_turing.py", "test_nuts.py"),
    *(
        "test_sweep_processes.py",
        "test_models_numpyro.py",
        "test_reproduce_files.py",
        "test_natural_fit.py",
        "test_refine.py",
        "test_comparing.py",
        "test_models_numpyro_data.py",
    ),
}


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of the files: pytest-xdist would put those with few tests last, however long these take."""
    gc.disable()  # imports and the collection leave next to no garbage, and a tenth of their time is to look for it
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest begin first, so that none is left over for one process at the end."""
    items.sort(key=lambda item: item.path.name not in _LONG)
    _leave_most_of_products_to_slow([item for item in items if item.get_closest_marker("in_turn")])


def _leave_most_of_products_to_slow(items: list[Any]) -> None:
    """Of the products of tests marked `in_turn`, each value stays with others in turn; the rest is slow."""
    sizes: dict[Any, dict[str, int]] = {}
    for item in items:
        known = sizes.setdefault(item.function, {})
        for name, index in item.callspec.indices.items():
            known[name] = max(known.get(name, 0), index + 1)
    for item in items:
        if sum(item.callspec.indices.values()) % min(sizes[item.function].values()):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """What has been imported and collected stays to the end: the garbage collector need not look at it each time."""
    draw_coarsely()
    build_commands_once()
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _only_marked_tests_find_julia(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Tests marked `julia` use the environment that is set up; all others see a machine without one."""
    from pyturingvi.bridge.environment import VARIABLES, find_environment
    from pyturingvi.bridge.problems import examine_environment
    from pyturingvi.errors import EngineError

    if request.node.get_closest_marker("julia") is None:
        monkeypatch.setenv("PYTURINGVI_CONFIG", str(tmp_path_factory.getbasetemp() / "no-settings"))
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        return
    try:
        environment = find_environment()
    except EngineError as error:
        pytest.skip(f"no Julia: {error}")
    if environment is None:
        pytest.skip("no Julia: none is set up (`pyturingvi setup`)")
    for problem in examine_environment(environment):
        pytest.skip(f"no Julia: {problem}")


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings of this test's own are, and its own place for Julia's log; real settings stay in use."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if request.node.get_closest_marker("julia") is None:
        monkeypatch.setenv("PYTURINGVI_CONFIG", str(tmp_path / "config"))
        monkeypatch.delenv("JULIA_DEPOT_PATH", raising=False)
    return tmp_path / "config" / "julia.json"


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Any, str, str]]:
    """The command line in this process, in a folder of its own: exit code, standard output and standard error."""
    from pyturingvi import cli

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["pyturingvi", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return run


@pytest.fixture
def real() -> JuliaEnvironment:
    """The Julia environment that tests marked `julia` use."""
    from pyturingvi.bridge.environment import find_environment

    found = find_environment()
    assert found is not None
    return found


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """One thread of this process: no processes to start."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_drawing(monkeypatch)


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_processes(monkeypatch)


@pytest.fixture
def gaussian_target() -> GaussianTarget:
    from targets import hierarchical_normal

    return hierarchical_normal()


def bundled(name: str) -> tv.models.Model:
    from model_checks import BUNDLED

    return copy.deepcopy(BUNDLED[name])


@pytest.fixture
def isotropic() -> tv.models.Model:
    return bundled("isotropic")


@pytest.fixture
def poisson() -> tv.models.Model:
    return bundled("poisson")


@pytest.fixture
def irt() -> tv.models.Model:
    return bundled("irt")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `bundled_model` is made for each: only then are the models built."""
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "bundled_model" in metafunc.fixturenames and "bundled_model" not in own:
        from model_checks import BUNDLED

        metafunc.parametrize("bundled_model", list(BUNDLED), indirect=True)


@pytest.fixture
def bundled_model(request: pytest.FixtureRequest) -> tv.models.Model:
    return bundled(request.param)
