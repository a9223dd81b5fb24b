"""Julia's own tests, run where a Julia environment is named by juliacall's two variables."""

import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "julia"


@pytest.mark.julia
def test_julias_own_tests_pass() -> None:
    executable, project = (os.environ.get(f"PYTHON_JULIACALL_{name}") for name in ("EXE", "PROJECT"))
    if not executable or not project:
        pytest.skip("no Julia: PYTHON_JULIACALL_EXE and PYTHON_JULIACALL_PROJECT are not both set")
    code = f'push!(LOAD_PATH, raw"{SOURCE}"); include(raw"{SOURCE / "test" / "runtests.jl"}")'
    command = [executable, f"--project={project}", "--startup-file=no", "-e", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "PyTuringVI" in done.stdout
