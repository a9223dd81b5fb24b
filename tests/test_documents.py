"""The pages and files at the root of the repository say the same: links, versions, what CI runs."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    files = [link for link in links if "://" not in link]
    assert [link for link in files if not (page.parent / link).is_file()] == []


def test_the_page_of_results_shows_every_figure():
    shown = (ROOT / "docs" / "results.md").read_text()
    figures = {path.name.split("_")[0] for path in (ROOT / "experiments" / "results").glob("*_*.png")}
    figures -= {"families"}
    assert [figure for figure in sorted(figures) if f"results/{figure}_" not in shown] == []


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert citation["preferred-citation"]["url"] in (ROOT / "README.md").read_text()


def test_ci_tests_every_python_that_is_promised():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    promised = [item.split(" :: ")[-1] for item in PROJECT["classifiers"] if "Python :: 3" in item]
    assert matrix["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


def test_hooks_check_the_same_as_ci():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repository in hooks["repos"] for hook in repository["hooks"] if "entry" in hook]
    script = (ROOT / ".ci" / "run").read_text()
    checks = re.findall(r"bin/(ruff check|ruff format|mypy)", script)
    assert checks == ["ruff check", "ruff format", "mypy"]
    assert [check for check in checks if not any(entry.startswith(check) for entry in entries)] == []
