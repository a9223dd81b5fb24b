"""The wheel and the source distribution carry the Julia code, what Julia was recorded to give, and the fits by Adam."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from julia_children import PACKAGE

CLONE = Path(PACKAGE)
pytestmark = pytest.mark.skipif(not (CLONE / "pyproject.toml").exists(), reason="not in a clone")


def build(what: str, source: Path, target: Path) -> Path:
    """A distribution, made by the build backend's hook, as pip and build call it."""
    pytest.importorskip("hatchling", reason="the build backend hatchling is not installed")
    code = f"from hatchling.build import build_{what}; print(build_{what}({str(target)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


def files_below(folder: Path, *left_out: str) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[0] not in left_out and not path.name.startswith("Manifest")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", CLONE, tmp_path_factory.mktemp("wheel"))


def test_an_unpacked_wheel_uses_the_julia_code_and_the_record_inside_it(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    inside = tmp_path / "site" / "pyturingvi"
    assert files_below(inside / "julia") == files_below(CLONE / "julia", "test")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "site")!r})
from pyturingvi.bridge.packages import installed_by_setup, source_directory
from pyturingvi.comparisons.recorded import RecordedReference, reference_directory
from pyturingvi.reproduce.beyond.adam import committed_fits
print(source_directory(), "Zygote" in [name for name, *_ in installed_by_setup()], reference_directory())
print(committed_fits())
assert len(RecordedReference("irt").points()) == 3
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    fits = inside / "measured" / "stepsize_laptop_elbo.csv"
    assert done.stdout.split() == [str(inside / "julia"), "True", str(inside / "julia_reference"), str(fits)]
    assert fits.read_bytes() == (CLONE / "experiments" / "results" / fits.name).read_bytes()
    assert files_below(inside / "julia_reference") == {"models.npz", "paths.npz"}


def test_the_source_distribution_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", CLONE, tmp_path)) as source:
        source.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    assert files_below(folder / "julia") == files_below(CLONE / "julia")
    contents = []
    for path in (wheel, build("wheel", folder, tmp_path)):
        with zipfile.ZipFile(path) as packed:
            contents.append({item.filename: item.CRC for item in packed.infolist()})
    assert contents[0] == contents[1]


def test_an_editable_install_uses_the_julia_code_in_place(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("editable", CLONE, tmp_path)) as packed:
        names = [name for name in packed.namelist() if ".dist-info" not in name]
        assert names == ["_pyturingvi.pth"]
        assert packed.read(names[0]).decode().strip() == str(CLONE)
