"""Draw the house: which folder of `pyturingvi/` imports which, and whether anything goes round in a circle.

    python docs/draw_architecture.py            a table of folders, the arrows and the circles
    python docs/draw_architecture.py --write    puts the diagram into docs/architecture.md
    python docs/draw_architecture.py --check    exit code 1 if there is a circle or the page shows an old diagram

Every import that can run counts, those inside functions too; `if TYPE_CHECKING:` blocks never run and do not, but
for the root's `__init__`, which loads on first use what it names there. A module at the root of the package stands for
itself, all others for their folder. `__init__` and `__main__` of the root only lead to the verbs: they are left out of
the diagram.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pyturingvi"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by docs/draw_architecture.py -->\n", "<!-- end of the drawing -->\n"

Graph = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module by its dotted name without the package's; a folder's `__init__` has the folder's name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a module but those of `if TYPE_CHECKING:` blocks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from running(other)
            continue
        yield node
        yield from running(node)


def imported(source: str, known: set[str] | dict[str, Path], *, lazily: bool = False) -> set[str]:
    """The modules that a source imports, by their names in `known`; the package itself is `__init__`.

    lazily: what stands under `if TYPE_CHECKING:` counts too.
    """
    names = set()
    tree = ast.parse(source)
    for node in ast.walk(tree) if lazily else running(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: imports are absolute here, so that they can be read off")
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner.removeprefix(f"{PACKAGE}.") in known else str(node.module))
    inside = {name.removeprefix(f"{PACKAGE}.") for name in names if name == PACKAGE or name.startswith(f"{PACKAGE}.")}
    return {"__init__" if name == PACKAGE else name for name in inside}


def module_graph(root: Path = ROOT) -> Graph:
    """Module -> the modules that it imports."""
    known = modules(root)
    return {name: imported(path.read_text(), known, lazily=name == "__init__") - {name} for name, path in known.items()}


def folder_graph(graph: Graph) -> Graph:
    """Folder, or module at the root -> the folders and root modules that it imports."""
    folders: Graph = defaultdict(set)
    for name, targets in graph.items():
        folder = name.split(".")[0]
        folders[folder] |= {target.split(".")[0] for target in targets} - {folder}
    return dict(folders)


def reachable(graph: Graph, start: str) -> set[str]:
    """What can be come to from `start` over one arrow or more."""
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += graph.get(name, ())
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Groups of nodes of which each can be come to from every other."""
    reach = {name: reachable(graph, name) for name in graph}
    groups = {tuple(sorted(other for other in reach[name] if name in reach.get(other, ()))) for name in graph}
    return [list(group) for group in sorted(groups) if group]


def without_shortcuts(graph: Graph) -> Graph:
    """The arrows that are not also a way over other arrows; of a graph without circles."""
    longer = {name: {far for near in targets for far in reachable(graph, near)} for name, targets in graph.items()}
    return {name: targets - longer[name] for name, targets in graph.items()}


def drawn(graph: Graph) -> Graph:
    """The folder graph without what only leads to the verbs."""
    doors = {"__init__", "__main__"}
    return {name: targets - doors for name, targets in graph.items() if name not in doors}


def mermaid(graph: Graph) -> str:
    """The diagram, as GitHub shows it; arrows that other arrows imply are left out unless there are circles."""
    shown = graph if circles(graph) else without_shortcuts(graph)
    folders = {name for name in graph if (ROOT / PACKAGE / name).is_dir()}
    lines = ["graph TD"]
    lines += [f"  {name}[{name}/]" for name in sorted(folders)]
    lines += [f"  {name} --> {target}" for name in sorted(shown) for target in sorted(shown[name])]
    return "\n".join(lines) + "\n"


def table(graph: Graph) -> str:
    """Files, lines and arrows of each folder."""
    count: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, path in modules().items():
        entry = count[name.split(".")[0]]
        entry[0] += 1
        entry[1] += len(path.read_text().splitlines())
    rows = [
        f"{name:<12} {count[name][0]:>3} files {count[name][1]:>5} lines -> {' '.join(sorted(graph[name]))}"
        for name in sorted(graph)
    ]
    return "\n".join(rows)


def section(diagram: str) -> str:
    """The diagram as it stands in the page."""
    return f"{BEGIN}```mermaid\n{diagram}```\n{END}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the diagram into docs/architecture.md")
    parser.add_argument("--check", action="store_true", help="exit code 1 if there is a circle or an old diagram")
    wanted = parser.parse_args()
    files = module_graph()
    folders = folder_graph(files)
    round_files, round_folders = circles(files), circles(folders)
    new = section(mermaid(drawn(folders)))
    if wanted.write:
        page = PAGE.read_text()
        PAGE.write_text(page[: page.index(BEGIN)] + new + page[page.index(END) + len(END) :])
    elif not wanted.check:
        print(table(folders))
        print()
        print(mermaid(drawn(folders)))
    for kind, found in (("modules", round_files), ("folders", round_folders)):
        print(f"{len(found)} circles among {kind}")
        for group in found:
            print("  " + " ".join(group))
    old = wanted.check and new not in PAGE.read_text()
    if old:
        print(f"{PAGE.relative_to(ROOT)} shows an old diagram: run with --write")
    return int(wanted.check and bool(round_files or round_folders or old))


if __name__ == "__main__":
    sys.exit(main())
