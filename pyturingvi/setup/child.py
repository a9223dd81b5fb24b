"""A function called in a Python process of its own, because it may crash, never end or print pages of stack."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyturingvi.bridge.compiling import end_process
from pyturingvi.bridge.log import failure
from pyturingvi.errors import EngineError, PyTuringVIError

Say = Callable[[str], object]
_TICK = 10.0  # seconds between two lines that say that it is still at it
_ANSWER = "pyturingvi answers: "


def silent(line: str) -> None:
    """Nothing is said."""


def call_in_child(
    function: Callable[..., Any],
    *arguments: Any,
    variables: Mapping[str, str] | None = None,
    say: Say = silent,
    timeout: float = float("inf"),
) -> Any:
    """What a function of a module returns for arguments such as JSON takes; EngineError if it raises, crashes or hangs.

    `variables` come to those of this process. `say` receives each line that is written, the stacks of errors left out,
    and every ten seconds how long it has run; after `timeout` seconds it is ended.
    """
    code = f"from {__name__} import _answer; _answer({function.__module__!r}, {function.__name__!r}, {arguments!r})"
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    lines: list[str] = []
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
        reader = threading.Thread(target=_listen, args=(process.stdout, lines, say))
        reader.start()
        try:
            while process.poll() is None:
                try:
                    process.wait(min(_TICK, timeout))
                except subprocess.TimeoutExpired:
                    gone = time.perf_counter() - began
                    if gone >= timeout:
                        raise EngineError(f"it took more than {timeout:.0f} s") from None
                    say(f"  at it for {gone:.0f} s")
        finally:
            end_process(process)
            reader.join()
    words = "".join(line for line in lines if not line.startswith(_ANSWER))
    answers = [json.loads(line.removeprefix(_ANSWER)) for line in lines if line.startswith(_ANSWER)]
    answer = answers[0] if answers else {"unexpected": f"Python ended with code {process.returncode}"}
    if "unexpected" in answer:
        raise failure(answer["unexpected"], words)
    if "error" in answer:
        raise EngineError(answer["error"])
    return answer["result"]


def _listen(stream: Iterable[str], lines: list[str], say: Say) -> None:
    in_stack = False
    for line in stream:
        lines.append(line)
        in_stack = line.lstrip().startswith("Stacktrace:") or (in_stack and line.startswith((" ", "in expression")))
        if line.strip() and not in_stack and not line.startswith(_ANSWER):
            say(line.rstrip())


def _answer(module: str, name: str, arguments: tuple[Any, ...]) -> None:
    """In the process: the last line says what came of the call."""
    try:
        answer = {"result": getattr(importlib.import_module(module), name)(*arguments)}
    except PyTuringVIError as error:
        answer = {"error": str(error)}
    except Exception as error:
        answer = {"unexpected": " ".join((str(error) or type(error).__name__).split())[:500]}
    print("\n" + _ANSWER + json.dumps(answer), flush=True)
