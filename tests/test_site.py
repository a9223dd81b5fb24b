"""The site: its pages run from top to bottom and print what they show, and its reference leaves no public name out."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from page_blocks import Page, differences, docs_script, read_page, unsupported_numbers

import pyturingvi as tv
from pyturingvi.cli import app

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "pages"
PAGES = [read_page(path) for path in sorted(SITE.rglob("*")) if path.suffix in (".md", ".ipynb")]
BOUNDS = {"0.7", "1.01"}  # of k-hat and R-hat, by which the package judges
pytestmark = pytest.mark.docs


@pytest.fixture
def reference() -> ModuleType:
    module = docs_script("site_reference")
    return module


def title(page: Page) -> str:
    return str(page.path.relative_to(SITE))


def runnable() -> list:
    """The pages with code, marked by what their heads say."""
    found = []
    for page in PAGES:
        if not any(block.language == "python" for block in page.blocks):
            continue
        needs = page.head.get("needs", [])
        marks = [pytest.mark.slow] if page.head.get("run") == "slow" else []
        marks += [pytest.mark.julia] if "julia" in needs else []
        found.append(pytest.param(page, id=title(page), marks=marks))
    return found


@pytest.mark.filterwarnings("default::pyturingvi.errors.ConvergenceWarning")  # a reader is warned, and goes on
@pytest.mark.filterwarnings("default::pyturingvi.errors.RefineWarning")
@pytest.mark.parametrize("page", runnable())
def test_a_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    for package in page.head.get("needs", []):
        if package != "julia":
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for block in page.blocks:
        printed = io.StringIO()
        where = f"{title(page)}:{block.line}"
        with contextlib.redirect_stdout(printed):
            if block.language == "python":
                exec(compile(block.code, where, "exec", dont_inherit=True), names)
            elif block.language == "bash":
                run_commands(block.code)
        if block.output is not None:
            assert differences(block.output, printed.getvalue()) == [], where


def run_commands(code: str) -> None:
    """The commands of a block that begin with `pyturingvi`."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["pyturingvi"]:
            assert not app(words[1:], standalone_mode=False), line  # the exit code


@pytest.mark.parametrize("page", [param for param in PAGES if param.blocks], ids=title)
def test_numbers_in_the_text_are_printed_by_the_code(page):
    assert [number for number in unsupported_numbers(page) if number not in BOUNDS] == []


def test_the_reference_has_every_public_name(reference):
    text = "\n".join(reference.with_the_others(page.read_text()) for page in (SITE / "api").glob("*.md"))
    shown = re.findall(r"^::: pyturingvi\.(.+)$", text, re.MULTILINE)
    public = {name for name in tv.__all__ if not isinstance(getattr(tv, name), type(tv))}
    for module in ("data", "families", "models", "optimize", "priors", "theory", "transforms"):
        public |= set(importlib.import_module(f"pyturingvi.{module}").__all__)
    public |= {
        name
        for name, found in vars(tv.errors).items()
        if isinstance(found, type) and found.__module__.endswith("errors")
    }
    assert sorted(public - {name.rsplit(".", 1)[-1] for name in shown}) == []


def test_a_name_that_no_page_lists_stands_where_the_mark_is(reference, tmp_path, monkeypatch):
    package, pages = tmp_path / "pyturingvi", tmp_path / "api"
    for folder in (package / "models", package / "optimize", pages):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text('_WHERE = {"New": "optimize.new", "fit": "fitting"}')
    (package / "models" / "__init__.py").write_text('__all__ = ["Known", "Own"]')
    (package / "optimize" / "__init__.py").write_text('__all__ = ["New", "Rule"]')
    (pages / "all.md").write_text("::: pyturingvi.models.Known\n\n::: pyturingvi.Rule\n")
    monkeypatch.setattr(reference, "PACKAGE", package)
    monkeypatch.setattr(reference, "REFERENCE", pages)
    marks = "".join(f"<!-- the other names of pyturingvi.{name} -->\n" for name in ("models", "optimize"))
    assert reference.with_the_others(marks) == "::: pyturingvi.models.Own\n::: pyturingvi.New\n"


def test_every_page_is_in_the_menu():
    class Loader(yaml.SafeLoader):
        """YAML with the names of Python functions, which mkdocs' extensions are given by, left alone."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
    menu = yaml.load((ROOT / "docs" / "mkdocs.yml").read_text(), Loader)["nav"]

    def entries(node) -> list[str]:
        if isinstance(node, str):
            return [node]
        return [found for part in (node.values() if isinstance(node, dict) else node) for found in entries(part)]

    assert {title(page) for page in PAGES} <= set(entries(menu))


# ---- the comparison itself ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("mu 1.02\n", "mu   1.03\n", True),
        ("mu 1.02\n", "mu 1.30\n", False),
        ("mu 1.02\n", "nu 1.02\n", False),
        ("a\n...\nc 5\n", "a\nb\nc 5\n", True),
        ("a\n...\n", "a\nb\n", True),
        ("a\n...\nb 3\n...\nz\n", "a\nq\nb 3\nr\nz\n", True),
        ("a\n", "a\nb\n", False),
        ("a\nb\n", "a\n", False),
        ("ELBO -4,392.4\n", "ELBO -4,392.9\n", True),
    ],
)
def test_output_is_compared_by_words_and_nearness(shown, printed, fits):
    assert (differences(shown, printed) == []) is fits
