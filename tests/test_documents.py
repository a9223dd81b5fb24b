"""Links between the pages and files of the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
