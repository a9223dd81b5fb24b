"""The reference has every public name: what a page of `docs/pages/api/` does not list itself stands where its mark is.

A page lists names in the order that helps a reader. A mark such as `<!-- the other names of pyturingvi.models -->` is
for those that no page lists, so that a new model, family or optimizer needs no line there. Sources are read, not run.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, REFERENCE = ROOT / "pyturingvi", ROOT / "docs" / "pages" / "api"
MARK = re.compile(r"^<!-- the other names of pyturingvi\.(\w+) -->$", re.MULTILINE)
SHOWN = re.compile(r"^::: pyturingvi\.(?:.+\.)?(\w+)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """mkdocs: put the names in the place of a page's marks."""
    return with_the_others(markdown)


def with_the_others(markdown: str) -> str:
    """The text of a page with the names that no page lists in the place of its marks."""
    listed = {name for page in REFERENCE.glob("*.md") for name in SHOWN.findall(page.read_text())}

    def others(match: re.Match[str]) -> str:
        found = public_names(PACKAGE, match[1])
        return "\n\n".join(f"::: {path}" for name, path in found.items() if name not in listed)

    return MARK.sub(others, markdown)


def public_names(package: Path, folder: str) -> dict[str, str]:
    """Public names of a folder of the package, and of `tv` itself where the folder has them, with their paths."""
    root = package / "__init__.py"
    own = {name: f"pyturingvi.{folder}.{name}" for name in _literal(package / folder / "__init__.py", "__all__")}
    where = _literal(root, "_WHERE")
    return own | {name: f"pyturingvi.{name}" for name in where if where[name].split(".")[0] == folder}


def _literal(path: Path, name: str) -> Any:
    """The value that a module gives a name at its top."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} has no {name}")
