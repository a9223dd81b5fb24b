"""One command remakes every committed picture from the committed CSV files."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@pytest.mark.slow
def test_redraw_remakes_every_picture_of_the_results(tmp_path):
    copy = tmp_path / "experiments"
    shutil.copytree(EXPERIMENTS, copy, ignore=shutil.ignore_patterns("cells", "__pycache__"))
    pictures = sorted((copy / "results").rglob("*.png"))
    assert len(pictures) >= 6
    texts = {path: path.read_bytes() for name in ("*_report.txt", "*_claims.csv") for path in copy.rglob(name)}
    for path in [*pictures, *texts]:
        path.unlink()
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, copy / "redraw.py"], capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [picture for picture in pictures if not picture.is_file()] == []
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert {path: path.read_bytes() for path in texts} == texts


def test_redraw_says_which_script_failed(tmp_path, monkeypatch, capsys):
    """In this process, where its libraries are loaded already; the slow test runs it as it is called."""
    copy = tmp_path / "experiments"
    (copy / "results").mkdir(parents=True)
    for name in ("redraw.py", "theory.py", "reproduced.py"):
        shutil.copy(EXPERIMENTS / name, copy)
    monkeypatch.syspath_prepend(str(copy))
    monkeypatch.setattr(sys, "argv", ["redraw.py"])
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(copy / "redraw.py"), run_name="__main__")
    finally:
        sys.modules.pop("reproduced", None)
    assert ended.value.code == "Not redrawn: theory.py"  # Python shows it and ends with code 1
    assert str(copy / "results") in capsys.readouterr().err
