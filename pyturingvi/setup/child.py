"""A function called in a Python process of its own, because it may crash, never end or print pages of stack."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyturingvi.bridge.compiling import end_process
from pyturingvi.bridge.log import failure
from pyturingvi.errors import EngineError, PyTuringVIError

Say = Callable[[str], object]

_TICK = 10.0  # seconds between two lines that say that it is still at it
_ANSWER = "pyturingvi answers: "


def call_in_child(
    function: Callable[..., Any],
    *arguments: Any,
    variables: Mapping[str, str] | None = None,
    say: Say | None = None,
    timeout: float = float("inf"),
) -> Any:
    """What a function of a module returns for these arguments, all of them such as JSON takes.

    Parameters
    ----------
    variables : mapping
        Environment variables for the process, beside those of this one.
    say : callable, optional
        Receives each line that the process writes, the stacks of errors left out, and where it writes none, every ten
        seconds how long it has run.
    timeout : float
        Seconds.

    Raises
    ------
    EngineError
        If the function raises, the process crashes, or the time is over.
    """
    code = f"from {__name__} import _answer; _answer({function.__module__!r}, {function.__name__!r}, {arguments!r})"
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    listener = _Listener(say)
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-P", "-u", "-c", code],
        env={**os.environ, **(variables or {}), "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # a Ctrl-C is for this process, which then ends that one
    ) as process:
        reader = threading.Thread(target=listener.listen, args=(process.stdout,))
        reader.start()
        try:
            while process.poll() is None:
                try:
                    process.wait(min(_TICK, timeout))
                except subprocess.TimeoutExpired:
                    gone = time.perf_counter() - began
                    if gone >= timeout:
                        raise EngineError(f"it took more than {timeout:.0f} s") from None
                    listener.tick(gone)
        finally:
            end_process(process)
            reader.join()
    words = "".join(listener.lines)
    if listener.answer is None:
        raise failure(f"Python ended with code {process.returncode}", words)
    if "error" in listener.answer:
        raise EngineError(listener.answer["error"])
    if "unexpected" in listener.answer:
        raise failure(listener.answer["unexpected"], words)
    return listener.answer["result"]


class _Listener:
    """Reads the lines of a process: its answer, and what is passed on."""

    def __init__(self, say: Say | None) -> None:
        self.lines: list[str] = []
        self.answer: dict[str, Any] | None = None
        self._say, self._in_stack = say, False
        self._last = time.perf_counter()

    def listen(self, stream: Any) -> None:
        for line in stream:
            if line.startswith(_ANSWER):
                self.answer = json.loads(line.removeprefix(_ANSWER))
                continue
            self.lines.append(line)
            starts = line.lstrip().startswith("Stacktrace:")
            self._in_stack = starts or (self._in_stack and (line[0].isspace() or line.startswith("in expression")))
            if self._say is not None and not self._in_stack and line.strip():
                self._last = time.perf_counter()
                self._say(line.rstrip())

    def tick(self, gone: float) -> None:
        if self._say is not None and time.perf_counter() - self._last >= 0.9 * _TICK:
            self._say(f"  at it for {gone:.0f} s")


def _answer(module: str, name: str, arguments: tuple[Any, ...]) -> None:
    """In the process: the last line says what came of the call."""
    try:
        answer = {"result": getattr(importlib.import_module(module), name)(*arguments)}
    except PyTuringVIError as error:
        answer = {"error": str(error)}
    except Exception as error:
        answer = {"unexpected": " ".join((str(error) or type(error).__name__).split())[:500]}
    print("\n" + _ANSWER + json.dumps(answer), flush=True)
