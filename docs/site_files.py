"""Pages and pictures of the site that have their place elsewhere in the repository, and the links between them.

mkdocs reads `docs/pages/`. `architecture.md`, `results.md` and the files at the root are read on GitHub too, so that
their links are those of the repository; here they are turned into the site's.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from math import log
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

# a file of the repository -> its place in the site
PAGES = {
    "docs/architecture.md": "architecture.md",
    "docs/results.md": "results.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
OTHERS = {"README.md": "index.md"}  # what a link to it leads to
PICTURES = ("docs/images", "experiments/results")
GALLERY = ROOT / "docs" / "gallery" / "gallery.csv"
GALLERY_MARK = "<!-- the table of docs/gallery/gallery.csv -->"
DOORS = ROOT / "benchmarks" / "results" / "doors.csv"
DOORS_MARK = "<!-- the table of benchmarks/results/doors.csv -->"
REFERENCES = ROOT / "benchmarks" / "results" / "references.csv"
REFERENCES_MARK = "<!-- the table of benchmarks/results/references.csv -->"
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


def places() -> dict[str, str]:
    """Every file from outside `docs/pages/`, pages and pictures, and its place in the site."""
    pictures = [path for folder in PICTURES for path in sorted((ROOT / folder).glob("*.png"))]
    return {**PAGES, **{str(path.relative_to(ROOT)): f"images/{path.name}" for path in pictures}}


def on_files(files: Files, config: Any) -> Files:
    """mkdocs: add them."""
    for source, place in places().items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def site_links(text: str, source: str) -> str:
    """The text of the repository's file `source` with its links as the site has them."""
    known = {**places(), **OTHERS}

    def turned(match: re.Match[str]) -> str:
        target = normpath(str(PurePosixPath(source).parent / match[1]))
        if target.startswith("docs/pages/"):
            return f"]({target.removeprefix('docs/pages/')}{match[2] or ''})"
        if target not in known:
            raise ValueError(f"{source} links to {target}, which has no place in the site (docs/site_files.py)")
        return f"]({known[target]}{match[2] or ''})"

    return LINK.sub(turned, text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """mkdocs: turn the links of a page that is read in the repository too, and put tables in their place."""
    sources = {place: source for source, place in PAGES.items()}
    source = sources.get(page.file.src_uri)
    if source is not None:
        markdown = site_links(markdown, source)
    tables = {GALLERY_MARK: gallery_table, DOORS_MARK: doors_table, REFERENCES_MARK: references_table}
    for mark, table in tables.items():
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return markdown


# ---- the gallery ------------------------------------------------------------------------------------------------
def gallery_table(path: Path = GALLERY) -> str:
    """The table of the gallery as Markdown, and under it the reasons of what is refused or not good."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| model | after | d | found | fit | verdict | ELBO | s |", "|---|---|--:|---|---|---|--:|--:|"]
    for row in rows:
        found = f"`{row['structure']}`" if row["structure"] else "-"
        fit = f"{row['family']}, {row['status']}" if row["family"] else row["status"]
        size = f"{float(row['d']):.0f}" if row["d"] else ""
        cells = [f"{row['name']} ({row['data']})", f"{row['gallery']}: {row['source']}", size, found, fit]
        lines.append(f"| {' | '.join([*cells, row['verdict'] or '-', row['elbo'], row['seconds']])} |")
    reasons = [f"- **{row['name']}**: {row['reason']}" for row in rows if row["reason"]]
    counts = Counter(row["verdict"] or row["status"] for row in rows)
    total = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return "\n".join([f"{len(rows)} models: {total}.", "", *lines, "", "## Why not", "", *reasons])


# ---- five models from each language -------------------------------------------------------------------------------
def doors_table(path: Path = DOORS) -> str:
    """A table for each of the models, a row a language, under what was found to be local."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    head = [
        "| from | log density | ELBO | means | refined | lines | seconds | own VI: ELBO | seconds |"
        " NUTS: draws | seconds | R-hat |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        cases = [row for row in rows if row["problem"] == problem]
        lines += ["", f"### {problem}", "", f"`{cases[0]['structure']}`", "", *head]
        lines += [f"| {' | '.join(_door_cells(row))} |" for row in cases]
    return "\n".join(lines)


def _door_cells(row: dict[str, str]) -> list[str]:
    """The cells of one row; what was not measured is left empty."""
    vi = f"{float(row['vi_elbo']):.2f} ({row['vi']})" if row["vi_elbo"] else ""
    return [
        row["door"],
        f"{float(row['difference']):.0e}" if float(row["difference"]) else "0",
        f"{float(row['elbo']):.2f} ± {float(row['elbo_se']):.2f}",
        _digits(row["gap"], 2),
        _digits(row["gap_refined"], 2),
        f"{float(row['model_lines']):.0f} + {float(row['lines_more']):.0f}",
        f"{float(row['build_cpu_s']) + float(row['fit_cpu_s']):.1f}",
        vi,
        _digits(row["vi_cpu_s"], 1),
        _digits(row["nuts_draws"], 0),
        _digits(row["nuts_cpu_s"], 1),
        _digits(row["nuts_r_hat"], 3),
    ]


def _digits(number: str, digits: int) -> str:
    return f"{float(number):.{digits}f}" if number else ""


# ---- fits beside the truth --------------------------------------------------------------------------------------
def references_table(path: Path = REFERENCES) -> str:
    """Of each problem and method the largest bias, the ratio farthest from 1, seconds and verdict, as Markdown."""
    fits: dict[tuple[str, str], list[dict[str, str]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            fits.setdefault((row["problem"], row["method"]), []).append(row)
    lines = [
        "| problem | method | mean off by | of | sd times | of | s | verdict |",
        "|---|---|--:|---|--:|---|--:|---|",
    ]
    for (problem, method), rows in fits.items():
        cells = ["-"] * 4
        if rows[0]["bias"]:
            far = max(rows, key=lambda row: abs(float(row["bias"])))
            wide = max(rows, key=lambda row: abs(log(float(row["ratio"]))))
            cells = [f"{float(far['bias']):+.2f}", far["global"], f"{float(wide['ratio']):.2f}", wide["global"]]
        seconds = f"{float(rows[0]['cpu_s']):.1f}"
        lines.append(f"| {' | '.join([problem, method, *cells, seconds, rows[0]['verdict'] or '-'])} |")
    return "\n".join(lines)
