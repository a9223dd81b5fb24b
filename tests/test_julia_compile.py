"""Where the bundled Julia code is compiled to, so that two copies of the package do not replace each other's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from pyturingvi.bridge import compiling as julia_compile
from pyturingvi.bridge.compiling import compile_ahead, spare_depot


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(julia_compile, "user_cache_path", lambda name: tmp_path / "cache" / name)
    folder = tmp_path / "depot" / "compiled" / "v1.10" / "PyTuringVI"
    folder.mkdir(parents=True)
    return folder


def copy_of_the_package(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    return folder


def compile_into(compiled: Path, source: Path, name: str = "slug_project.ji") -> None:
    """A file with the path among other bytes, as Julia's has it."""
    (compiled / name).write_bytes(b"\xfbjli\x00\x01" + os.fsencode(source / "src" / "PyTuringVI.jl") + b"\xd1e\x0f")


def test_julias_own_depot_does_for_the_first_copy_under_any_path(compiled: Path, tmp_path: Path) -> None:
    source = copy_of_the_package(tmp_path / "first")
    assert spare_depot(str(compiled), source) is None
    assert spare_depot(str(compiled / "not" / "there yet"), source) is None
    compile_into(compiled, source)
    assert spare_depot(str(compiled), source) is None
    link = tmp_path / "link"
    link.symlink_to(source)
    assert spare_depot(str(compiled), link) is None


def test_another_copy_gets_a_depot_of_its_own_and_keeps_it_as_long_as_it_is_there(
    compiled: Path, tmp_path: Path
) -> None:
    first, second, third = (copy_of_the_package(tmp_path / name) for name in ("first", "second", "third"))
    compile_into(compiled, first)
    found, other = (spare_depot(str(compiled), source) for source in (second, third))
    assert found is not None
    assert other is not None
    assert found != other
    assert tmp_path / "cache" in Path(found).parents
    assert spare_depot(str(compiled), second) == found
    compile_into(compiled, second, "slug_another_project.ji")
    assert spare_depot(str(compiled), second) is None
    shutil.rmtree(second)
    assert spare_depot(str(compiled), third) == other
    assert [Path(folder).exists() for folder in (found, other)] == [False, True]


def test_only_empty_files_of_the_compilation_at_hand_are_removed(compiled: Path, tmp_path: Path) -> None:
    other = compiled.parent / "Zygote"
    other.mkdir()
    for name, content in (("jl_half", b""), ("jl_written", b"ji"), ("whole.ji", b"")):
        (compiled / name).write_bytes(content)
    for name in ("jl_half", "jl_old"):
        (other / name).write_bytes(b"")
    os.utime(other / "jl_old", (0, 0))
    with pytest.raises(KeyboardInterrupt):
        compile_ahead([sys.executable, "-c", "import time; time.sleep(60)"], "Zygote", compiled, lambda: True)
    left = sorted(path.name for folder in (compiled, other) for path in folder.iterdir())
    assert left == ["jl_old", "jl_written", "whole.ji"]
