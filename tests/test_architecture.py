"""The house stands as docs/architecture.md says: arrows point one way, and each folder keeps to what is its own."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from page_blocks import docs_script

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyturingvi"
VERBS = {"fitting", "result", "problems", "nuts", "plots"}
SPOKEN_BY_ALL = {"settings", "layout", "errors"}


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    module = docs_script("draw_architecture")
    module.module_graph = functools.cache(module.module_graph)  # it parses all sources
    return module


def test_no_module_imports_itself_in_a_circle(drawing):
    assert drawing.circles(drawing.module_graph()) == []


def test_no_folder_imports_itself_in_a_circle(drawing):
    assert drawing.circles(drawing.folder_graph(drawing.module_graph())) == []


def test_the_root_holds_the_verbs_and_what_everything_speaks():
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__"} | VERBS | SPOKEN_BY_ALL


@pytest.mark.parametrize("folder", ["support", "bridge"])
def test_the_lowest_folders_know_nothing_of_inference(drawing, folder):
    assert drawing.folder_graph(drawing.module_graph())[folder] <= {"errors", "support"}


def test_only_families_know_the_shape_of_the_scale_matrix():
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "families":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("diagonal", "log_abs_det"):
                owner = ast.unparse(node.value)
                if owner not in ("np", "xp"):  # numpy's own function of this name
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {owner}.{node.attr}")
    assert found == []


def test_the_page_shows_the_house_as_it_is(drawing):
    assert drawing.section(drawing.mermaid(drawing.drawn(drawing.folder_graph(drawing.module_graph())))) in (
        drawing.PAGE.read_text()
    )


SOURCES = {
    "__init__": "if TYPE_CHECKING:\n    from pyturingvi.b.inner import thing",
    "a": "from pyturingvi.b import inner\nif TYPE_CHECKING:\n    import pyturingvi.c\nelse:\n    import json",
    "b": "",
    "b.inner": "def late():\n    from pyturingvi.c import value",
    "c": "import pyturingvi.errors\ndef late():\n    import pyturingvi as tv",
    "errors": "",
}


@pytest.fixture
def small_house(tmp_path: Path) -> Path:
    for name, source in SOURCES.items():
        path = tmp_path / "pyturingvi" / ("b/__init__.py" if name == "b" else name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def test_the_drawing_counts_what_can_run(drawing, small_house):
    graph = drawing.module_graph(small_house)
    assert graph == {
        "__init__": {"b.inner"},
        "a": {"b.inner"},
        "b": set(),
        "b.inner": {"c"},
        "c": {"errors", "__init__"},
        "errors": set(),
    }
    assert drawing.circles(graph) == [["__init__", "b.inner", "c"]]
    assert drawing.circles(drawing.folder_graph(graph)) == [["__init__", "b", "c"]]


def test_the_drawing_leaves_out_shortcuts_only(drawing):
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": set(), "d": set()}
    assert drawing.circles(graph) == []
    assert drawing.without_shortcuts(graph) == {"a": {"b", "d"}, "b": {"c"}, "c": set(), "d": set()}


def test_the_drawing_follows_no_relative_import(drawing):
    with pytest.raises(ValueError, match="imports are absolute"):
        drawing.imported("from . import errors", {"errors"})


def test_python_loads_nothing_that_the_drawing_does_not_know(drawing):
    graph = {name: targets | {name.rpartition(".")[0]} - {""} for name, targets in drawing.module_graph().items()}
    code = "import sys, pyturingvi.fitting; print(*(name for name in sys.modules if name.startswith('pyturingvi.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("pyturingvi.") for name in done.stdout.split()}
    assert len(loaded) > 10
    assert loaded <= {"fitting"} | drawing.reachable(graph, "fitting")
