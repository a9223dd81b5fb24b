"""What the pages and docstrings show is run as it stands there, but for smaller counts."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

import pyturingvi as tv
from pyturingvi.cli import app
from pyturingvi.problems import load_problem

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# what takes minutes in the pages -> what takes a second
SMALLER = {
    "n_iterations=10_000": "n_iterations=40",
    '["n_iterations"] = 20_000': '["n_iterations"] = 10',
    '"seed": range(5)': '"seed": range(1)',
    "n_draws=1000": "n_draws=20",
}


def blocks() -> list:
    """Each block of Python in the pages, by its page and the line where it begins; those with Julia are marked."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            name = f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}"
            marks = [pytest.mark.julia] if re.search(r"models\.Turing|sample_nuts|engine=\"julia\"", match[1]) else []
            found.append(pytest.param(match[1], id=name, marks=marks))
    return found


def few_rows(name, **options):
    """The problem; of rpoisson-small, which test_cli.py fits as it is, 200 rows."""
    model = load_problem(name, **options)
    if name != "rpoisson-small":
        return model
    return tv.models.RobustPoisson(pd.DataFrame(model.X[:200], columns=model.covariates), model.y[:200])


@pytest.mark.usefixtures("without_processes")
@pytest.mark.filterwarnings("ignore:sample_nuts.*:pyturingvi.errors.ConvergenceWarning")  # of fewer draws than shown
@pytest.mark.parametrize("block", blocks())
def test_a_block_of_a_page_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tv, "load_problem", few_rows)
    for shown, small in SMALLER.items():
        block = block.replace(shown, small)
    exec(compile(block, "page", "exec", dont_inherit=True), {"__name__": "page"})


def test_every_smaller_count_stands_in_a_page():
    text = "".join(page.read_text() for page in PAGES)
    assert [shown for shown in SMALLER if shown not in text] == []


def modules_with_examples() -> list[str]:
    paths = [path for path in (ROOT / "pyturingvi").rglob("*.py") if ">>> " in path.read_text()]
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_give_what_they_show(name):
    examples = doctest.testmod(importlib.import_module(name), extraglobs={"tv": tv, "np": np})
    assert examples.attempted > 0
    assert examples.failed == 0


def commands() -> list[list[str]]:
    """What the pages tell to type that begins with `pyturingvi` or `python FILE`, comments cut off."""
    lines = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]:
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in re.split(r"\n| && ", block):
                words = shlex.split(line, comments=True)
                if words and Path(words[0]).name in ("pyturingvi", "python"):
                    lines.append([Path(words[0]).name, *words[1:]])
    return lines


def test_the_commands_of_the_pages_are_there():
    group = typer.main.get_command(app)
    subcommands = set()
    for program, first, *rest in commands():
        if program == "pyturingvi":
            group.commands[first].make_context(first, rest)  # reads the options, and runs nothing
            subcommands.add(first)
        elif first != "-m":
            assert (ROOT / first).is_file(), first
    assert subcommands >= {"fit", "compare", "reproduce", "setup", "doctor"}
