"""Julia's own tests, run with the Julia environment that is set up."""

import os
import subprocess

import pytest

from pyturingvi.bridge.environment import find_environment
from pyturingvi.bridge.packages import source_directory


@pytest.mark.julia
@pytest.mark.parametrize("group", ["", pytest.param("users", marks=pytest.mark.slow)])
def test_julias_own_tests_pass(group: str) -> None:
    environment, source = find_environment(), source_directory()
    assert environment is not None
    code = f'push!(LOAD_PATH, raw"{source}"); include(raw"{source / "test" / "runtests.jl"}")'
    command = [
        environment.executable,
        f"--project={environment.project}",
        "--startup-file=no",
        "-O1",
        "-e",
        code,
        group,
    ]
    variables = {**os.environ, **environment.variables()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=2400, env=variables)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "PyTuringVI" in done.stdout
