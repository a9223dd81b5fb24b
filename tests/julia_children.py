"""Python processes that start Julia: each test of a start has its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyturingvi
from pyturingvi.bridge.environment import JuliaEnvironment

PACKAGE = str(Path(pyturingvi.__file__).parents[1])

# a small model, its fit in Julia, and what of a fit must be equal bit for bit
COMMON = """
import os, signal, sys, threading, time, warnings
import numpy as np
import pyturingvi as tv

def model():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(30, 2))
    return tv.models.RobustPoisson(x, rng.poisson(np.exp(0.3 + x @ [0.5, -0.4])))

def fit(**changes):
    settings = dict(n_iterations=300, elbo_every=30, elbo_samples=32, optimizer=tv.Adam(1e-2), seed=7, progress=False)
    return tv.fit(model(), engine="julia", **(settings | changes))

def bits(fit):
    return fit.params.tobytes().hex() + fit.elbo["elbo"].to_numpy().tobytes().hex()

def outcome(function, *arguments):
    try:
        return function(*arguments)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
"""


def work(seed: int) -> tuple[int, str]:
    """What a worker is given to do: the same fit. Its process, and the numbers."""
    space: dict[str, Any] = {"__name__": "worker"}
    exec(COMMON, space)
    return os.getpid(), space["bits"](space["fit"](seed=seed))


def variables(environment: JuliaEnvironment | None, **changes: str | None) -> dict[str, str]:
    """The variables of a child that finds this environment and no other; None unsets one."""
    paths = [PACKAGE, str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    values: dict[str, str | None] = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if environment is not None:
        values |= {
            "PYTHON_JULIACALL_EXE": environment.executable,
            "PYTHON_JULIACALL_PROJECT": environment.project,
            "PYTURINGVI_CONFIG": "/nonexistent",
            **environment.variables(),
        }
    return {name: value for name, value in (values | changes).items() if value is not None}


@contextmanager
def child(
    code: str,
    environment: JuliaEnvironment | None,
    prefix: tuple[str, ...] = (),
    start_new_session: bool = False,
    **changes: str | None,
) -> Iterator[Any]:
    """A child on `code`, with pipes; killed at the end, if it still runs."""
    command = [*prefix, sys.executable, "-P", "-c", COMMON + textwrap.dedent(code)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    session = {"start_new_session": start_new_session, "text": True}
    with subprocess.Popen(command, env=variables(environment, **changes), **session, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def run(
    code: str, environment: JuliaEnvironment | None, prefix: tuple[str, ...] = (), **changes: str | None
) -> list[str]:
    """What a child that ends well printed, line by line."""
    with child(code, environment, prefix, **changes) as process:
        out, words = process.communicate(timeout=300)
    assert process.returncode == 0, f"code {process.returncode}\n{out[-2000:]}\n{words[-4000:]}"
    assert "Stacktrace" not in words
    lines: list[str] = out.splitlines()
    return lines


def copy_project(environment: JuliaEnvironment, folder: Path) -> JuliaEnvironment:
    """The same environment in another project folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in Path(environment.project).glob("*.toml"):
        (folder / path.name).write_text(path.read_text())
    return JuliaEnvironment(environment.executable, str(folder), "variables")


def edit_manifest(project: str, package: str, change: Any) -> None:
    """Replace a package's entry by `change(entry)`, in every manifest of the project."""
    for path in Path(project).glob("*Manifest*.toml"):
        entry = rf"\[\[deps\.{package}\]\]\n.*?(?=\n\[\[|\Z)"
        text, count = re.subn(entry, lambda found: change(found[0]), path.read_text(), flags=re.DOTALL)
        assert count == 1
        path.write_text(text)


def break_package(project: str, package: str) -> None:
    """Make a project believe that it has a package whose files are not there."""
    edit_manifest(
        project,
        package,
        lambda entry: re.sub(r"^(path|git-tree-sha1) = .*\n", "", entry, flags=re.MULTILINE).replace(
            "\nuuid", '\npath = "/nonexistent"\nuuid', 1
        ),
    )
