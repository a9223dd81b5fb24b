"""What a page or a notebook shows: blocks of code, and the output that stands below them."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE)
HEAD = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A piece of code, where it begins, and what it prints as far as the page shows it (None: it does not)."""

    language: str
    code: str
    line: int
    output: str | None = None


@dataclass(frozen=True)
class Page:
    """A page: what its head says of running it, its blocks in order, and its prose.

    In the head, `run: slow` is for what takes longer than a few seconds, and `needs:` names packages or "julia".
    """

    path: Path
    blocks: list[Block]
    prose: str
    head: dict[str, Any] = field(default_factory=dict)


def read_page(path: Path) -> Page:
    """A Markdown page or a notebook."""
    return _read_notebook(path) if path.suffix == ".ipynb" else _read_markdown(path)


def _read_markdown(path: Path) -> Page:
    text = path.read_text()
    head = HEAD.match(text)
    blocks: list[Block] = []
    for match in FENCE.finditer(text):
        code, line = match["code"], text.count("\n", 0, match.start()) + 1
        if match["language"] == "text" and blocks and blocks[-1].output is None:
            last = blocks.pop()
            blocks.append(Block(last.language, last.code, last.line, code))
        else:
            blocks.append(Block(match["language"], code, line))
    prose = FENCE.sub("", text if head is None else text[head.end() :])
    return Page(path, blocks, prose, {} if head is None else yaml.safe_load(head[1]))


def _read_notebook(path: Path) -> Page:
    cells = json.loads(path.read_text())["cells"]
    blocks, prose = [], []
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            prose.append(source)
            continue
        streams = ["".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout"]
        blocks.append(Block("python", source, number, "".join(streams) or None))
    return Page(path, blocks, "\n".join(prose), {"run": "slow", "needs": ["numpyro"]})


def differences(shown: str, printed: str) -> list[str]:
    """Where a page's output is not what the code prints; a line `...` stands for any lines.

    Words must be the same. A number may be off by 2 % and two units of its last digit: it rests on random draws, which
    another version of NumPy or JAX, or another processor, rounds to others.
    """
    given, parts, problems = _lines(printed), _parts(_lines(shown)), []
    at = 0
    for k, part in enumerate(parts):
        if k == 0:
            start = 0
        elif k == len(parts) - 1:
            start = max(at, len(given) - len(part))
        else:
            start = next((p for p in range(at, len(given)) if same(part[0], given[p])), len(given))
        for line, other in zip_longest(part, given[start : start + len(part)]):
            if other is None or not same(line, other):
                problems.append(f"the page has {line!r}, the code prints {other!r}")
        at = start + len(part)
    if parts[-1] and at < len(given):
        problems.append(f"the code prints more than the page shows: {given[at]!r}")
    return problems


def _parts(lines: list[str]) -> list[list[str]]:
    """The lines between those that are `...`; between two of these at least one."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def same(shown: str, printed: str) -> bool:
    """Whether two lines have the same words and nearly the same numbers."""
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(value(a) - value(b)) <= 0.02 * abs(value(a)) + 2 * unit(a) for a, b in pairs)


def value(number: str) -> float:
    return float(number.replace(",", ""))


def unit(number: str) -> float:
    """One unit of the last digit of a number as written: 0.01 of 1.25."""
    digits, _, power = number.partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def unsupported_numbers(page: Page) -> list[str]:
    """Numbers with a decimal point in the prose that no output or code of the page has, rounded as there."""
    known = [
        value(number) for block in page.blocks for number in NUMBER.findall(block.code + "\n" + (block.output or ""))
    ]
    prose = re.sub(r"Python \d\.\d+|`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", page.prose, flags=re.DOTALL)
    wanted = [number.rstrip(",.") for number in NUMBER.findall(prose)]
    decimals = [number for number in wanted if "." in number]
    return [n for n in decimals if not any(abs(abs(value(n)) - abs(k)) <= 0.51 * unit(n) for k in known)]


def docs_script(name: str) -> ModuleType:
    """A script of `docs/`, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
