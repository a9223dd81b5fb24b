"""The one Julia in this process: started once, in the main thread; the only file that imports juliacall."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyturingvi.bridge.compiling import compile_ahead, spare_depot
from pyturingvi.bridge.environment import JuliaEnvironment, find_environment
from pyturingvi.bridge.log import captured_stderr, failure
from pyturingvi.bridge.packages import bundled, extensions_for, optional_packages, source_directory
from pyturingvi.bridge.problems import add_command, examine_environment
from pyturingvi.errors import EngineError, JuliaError
from pyturingvi.support.interrupts import DeferredInterrupt

_BEFORE_JULIA = ("torch", "numba")  # their LLVM and OpenMP may crash a Julia that starts after them
_LONGEST_MESSAGE, _LONGEST_LIST_OF_TYPES = 2_000, 200
_DOCTOR = "`pyturingvi doctor` looks for the cause."
_FORKED = (
    "Julia was started before this process was forked, and does not survive that. Start workers with the 'spawn' "
    "method, or with loky, and let each start its own."
)


class Runtime:
    """A started Julia with the bundled package loaded.

    Attributes
    ----------
    module : juliacall module
        The Julia module PyTuringVI.
    """

    def __init__(self, juliacall: Any, environment: JuliaEnvironment | None, interrupted: Callable[[], bool]) -> None:
        self._juliacall, self._interrupted, self.environment = juliacall, interrupted, environment
        self._process = os.getpid()
        self._start = _start_module(juliacall)
        self._loaded: set[str] = set()
        self._spare_depot = spare_depot(str(self._start.compiled_into()), source_directory())
        # after the active project: packages are found in it first, and in ours what it does not have
        places = [*([environment.project] if environment else []), str(source_directory())]
        self.call(self.seval("(places...) -> union!(Base.LOAD_PATH, places)"), *places)
        self.module = self._require("PyTuringVI", bundled()["uuid"])
        self.seval("using PyTuringVI: PyTuringVI")
        ran = Path(str(self.seval("pathof(PyTuringVI)")))
        if ran.resolve() != (source_directory() / "src" / "PyTuringVI.jl").resolve():
            raise EngineError(
                f"this Julia has loaded another PyTuringVI, from {str(ran)!r}. Restart Python, or remove it from the "
                "Julia project: pyturingvi runs the Julia code bundled with it."
            )

    @property
    def version(self) -> str:
        """Julia's version."""
        return str(self.seval("string(VERSION)"))

    def seval(self, code: str) -> Any:
        """Evaluate Julia code in a module of our own."""
        return self.call(self._start.evaluate, code)

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a Julia function, with its keyword arguments too, which arrive in alphabetical order.

        Raises
        ------
        JuliaError
            For what Julia throws: its message without the stack, and the name of its type.
        """
        if os.getpid() != self._process:
            raise EngineError(_FORKED)
        try:
            if not kwargs:
                return self._start.call(function, *args)
            names = sorted(kwargs)
            return self._start.call_with(function, " ".join(names), *[kwargs[name] for name in names], *args)
        except self._juliacall.JuliaError as error:
            kind, text = map(str, self._start.describe(error.exception))
            text = re.split(r"\n(?:Stacktrace|Closest candidates are):", text)[0]
            text = "\n".join(line for line in text.splitlines() if line.strip())
            longest = _LONGEST_LIST_OF_TYPES if kind == "MethodError" else _LONGEST_MESSAGE
            raise JuliaError(text[:longest], kind) from None

    def load(self, package: str) -> None:
        """Load an optional Julia package of the environment, and our extension to it with it.

        Raises
        ------
        EngineError
            If Julia does not have it, with the command that adds it, or it does not load.
        """
        if package in self._loaded:
            return
        wanted = next(one for one in optional_packages() if one.name == package)
        if not self.call(self._start.is_there, wanted.name, wanted.uuid):
            add = f". Add it with: {add_command(self.environment, [wanted])}" if self.environment else ""
            raise EngineError(f"Julia does not have the package {package}{add}")
        self._require(wanted.name, wanted.uuid)
        self._loaded.add(package)

    def to_julia(self, array: np.ndarray) -> Any:
        """A Julia Array of the reversed axes, a copy: (M, d) becomes d x M."""
        return self.call(self.seval("Array"), np.ascontiguousarray(array).T)

    def to_numpy(self, array: Any) -> np.ndarray:
        """A Julia array as a NumPy array of the reversed axes, sharing memory."""
        return np.asarray(array).T

    def _require(self, name: str, uuid: str) -> Any:
        executable = self.environment.executable if self.environment else None
        wanted = (executable, bundled()["uuid"], name, uuid, " ".join(extensions_for(name)))
        try:
            command = self.call(self._start.compile_command, *wanted, self._spare_depot)
            if command is not None:
                folder = Path(str(self._start.with_depot(self._start.compiled_into, self._spare_depot)))
                compile_ahead(str(command).split("\0"), name, folder, self._interrupted)
            return self.call(self._start.load, name, uuid, self._spare_depot)
        except EngineError as error:
            what = f"the Julia package {name} could not be loaded: " if isinstance(error, JuliaError) else ""
            raise EngineError(f"{what}{error}. {_DOCTOR}") from None


def _start_module(juliacall: Any) -> Any:
    space = juliacall.newmodule("PyTuringVIPython")
    space.seval((Path(__file__).parent / "start.jl").read_text())
    return space


_runtime: Runtime | None = None
_started_in: int | None = None
_failure = ""  # a Julia that did not come up cannot be started again in the same process


def start_julia() -> Runtime:
    """Start Julia and load the bundled package, unless that is done.

    Any fit with `engine="julia"` does it by itself. Call it first, before importing torch or numba, in a program
    that uses them too. The first start compiles the bundled package, for a minute or two. Ctrl-C is answered when
    Julia has started, a second one, or one while it compiles, at once.

    Returns
    -------
    Runtime

    Raises
    ------
    EngineError
        If no environment is set up, it cannot be used, or this is not the main thread of the process that started
        Julia.
    """
    global _runtime, _started_in, _failure
    if _started_in not in (None, os.getpid()):
        raise EngineError(_FORKED)
    if threading.current_thread() is not threading.main_thread():
        raise EngineError("Julia runs in the main thread only; use worker processes in place of threads.")
    if _failure:
        raise EngineError(f"{_failure} Restart Python for another attempt.")
    if _runtime is None:
        environment = _usable_environment()
        with DeferredInterrupt() as interrupt:  # Julia must not be left half started
            try:
                _failure = "the start of Julia was interrupted."
                juliacall = _import_juliacall(environment)
                _failure, _started_in = "", os.getpid()
                _end_without_julia_when_forked(juliacall)
                _runtime = None if interrupt.requested else Runtime(juliacall, environment, lambda: interrupt.requested)
            except EngineError as error:
                _failure = "" if _already_started() else str(error)
                if not interrupt.requested:
                    raise
        if interrupt.requested:
            raise KeyboardInterrupt
        assert _runtime is not None
    return _runtime


def running_environment() -> JuliaEnvironment | None:
    """The environment of the Julia that runs in this process, if one does."""
    return _runtime.environment if _runtime is not None and _started_in == os.getpid() else None


def _end_without_julia_when_forked(juliacall: Any) -> None:
    """Keep juliacall from ending, at the exit of a forked child, a Julia whose other threads are not there."""

    def forget() -> None:
        if "lib" in juliacall.CONFIG:
            juliacall.CONFIG["lib"].jl_atexit_hook = lambda code: None  # juliacall looks it up when Python exits

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


def _usable_environment() -> JuliaEnvironment | None:
    """The environment to start with; None where somebody else's Julia already runs without one."""
    environment = find_environment()
    if environment is None:
        if _already_started():
            return None
        raise EngineError(
            "no Julia environment is set up. `pyturingvi setup` installs one, and `pyturingvi setup --julia EXE "
            "--project DIR` registers one of yours; engine='numpy' needs none."
        )
    for problem in examine_environment(environment):
        raise problem
    return environment


def _already_started() -> bool:
    juliacall = sys.modules.get("juliacall")
    return juliacall is not None and bool(getattr(juliacall, "CONFIG", {}).get("inited"))


def _import_juliacall(environment: JuliaEnvironment | None) -> Any:
    if _already_started():
        running: Any = sys.modules["juliacall"]
        active = str(running.CONFIG.get("project"))
        if environment is not None and Path(active).resolve() != Path(environment.project).resolve():
            said = (
                f"Julia was started by other code with the project {active!r}; pyturingvi looks for its packages there "
                f"first, then in {environment.project!r}. Call tv.start_julia() before that code to avoid it."
            )
            warnings.warn(said, RuntimeWarning, stacklevel=3)
        return running
    assert environment is not None  # _usable_environment has seen to it
    if early := " and ".join(name for name in _BEFORE_JULIA if name in sys.modules):
        said = f"{early} was imported before Julia started, which may crash the process. Call tv.start_julia() first."
        warnings.warn(said, RuntimeWarning, stacklevel=3)
    probe = environment.probe()
    variables = {
        "PYTHON_JULIACALL_EXE": environment.executable,
        "PYTHON_JULIACALL_PROJECT": environment.project,
        "PYTHON_JULIACALL_LIB": probe.library,
        "PYTHON_JULIACALL_BINDIR": probe.bindir,
        "PYTHON_JULIACALL_THREADS": "1",  # whatever JULIA_NUM_THREADS says: more are not safe under Python's signals
        "PYTHON_JULIACALL_AUTOLOAD_IPYTHON_EXTENSION": "no",
        "PYTHON_JULIAPKG_OFFLINE": "yes",  # nothing asks juliapkg; if something did, it would not download
    }
    added = {name: value for name, value in (variables | environment.variables()).items() if name not in os.environ}
    os.environ.update(added)  # read once; what the user has set stays
    try:
        with captured_stderr() as words, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch was imported before juliacall")
            import juliacall
    except Exception as error:
        what = f"Julia {probe.version} did not start with the project {environment.project!r}"
        parts = (str(failure(what, "".join(words) or f"ERROR: {error}")), environment.other_depots(), _DOCTOR)
        raise EngineError(". ".join(filter(None, parts))) from None
    finally:
        for name in added:
            os.environ.pop(name, None)
    if not juliacall.CONFIG["inited"]:
        raise EngineError("PYTHON_JULIACALL_INIT=no keeps Julia from starting; unset it.")
    if words:
        _start_module(juliacall).take_stderr()  # Julia took the file that was there when it started
        os.write(2, "".join(words).encode())
    return juliacall
