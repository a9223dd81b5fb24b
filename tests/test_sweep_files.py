"""The files of a sweep: damaged, of a later version, in each other's way, and beside those of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweep_targets import LAYOUT, SMALL, files, normal, run

import pyturingvi as tv
from pyturingvi.errors import DataError, OutputError
from pyturingvi.support.archive import read_archive, write_archive
from pyturingvi.sweeps import folder as folder_module
from pyturingvi.sweeps.cell_file import read_cell
from pyturingvi.sweeps.folder import SweepFolder
from pyturingvi.sweeps.grid import read_grid
from pyturingvi.sweeps.worker import _read_model


# ---- cells ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("content", [b"", b"{", b'{"kind": "x"}', b"[]", b"\xff\x00"])
def test_a_damaged_cell_is_left_out_with_a_warning_and_run_again(
    isotropic: Any, executor: Any, tmp_path: Path, content: bytes
) -> None:
    grid = {"model": isotropic, "seed": range(2), **SMALL}
    whole = run(grid, executor, tmp_path)
    before = files(tmp_path)
    (tmp_path / "cells" / f"{whole.cells[1]}.json").write_bytes(content)
    with pytest.warns(RuntimeWarning, match=r"is damaged.*It is left out"):
        found = tv.load_sweep(tmp_path)
    assert (len(found), found.status) == (1, "incomplete")
    run(grid, executor, tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"n_updates": "abc"}, "completed after 'abc' of 60 updates"),
        ({"n_updates": 59}, "completed after 59 of 60 updates"),
        ({"n_updates": None}, "completed after None of 60 updates"),
        ({"status": "diverged", "n_updates": 61}, "diverged after 61 of 60 updates"),
        ({"status": "done"}, "its status is 'done'"),
        ({"status": ["completed"]}, "its status is"),
        ({"status": "failed"}, "it failed, and has a trace"),
        ({"settings": {}}, "optimizer"),
        ({"settings": "OTHER"}, "its settings are not those of its name"),
        ({"settings": [3]}, ""),
        ({"message": None}, "its message is no text"),
        ({"error": 3}, "its message is no text"),
        ({"std_error": [1.0, 1.0]}, "differ in length"),
        ({"iteration": [], "elbo": [], "std_error": []}, "its trace is not whole"),
        ({"iteration": [25, 50], "elbo": [-9.0, -8.0], "std_error": [1.0, 1.0]}, "its trace is not whole"),
        ({"iteration": [25, 60], "elbo": [-9.0, -8.0], "std_error": [1.0, 1.0]}, "its trace is not whole"),
        ({"iteration": 3}, "int"),
        ({"elbo": [-9.0, -8.0, "nan"]}, "completed with an ELBO of nan"),
        ({"elbo": [-9.0, -8.0, "low"]}, "low"),
        ({"elbo": [-9.0, -8.0, 10**400]}, "too large"),
        ({"format": "1"}, ""),
    ],
)
def test_a_cell_whose_parts_do_not_belong_together_is_damaged(
    isotropic: Any, executor: Any, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    grid = {"model": isotropic, **SMALL}
    name = run(grid, executor, tmp_path).cells[0]
    before, path = files(tmp_path), tmp_path / "cells" / f"{name}.json"
    content = json.loads(path.read_text())
    if changes == {"settings": "OTHER"}:
        changes = {"settings": read_grid({**grid, "seed": 1})[0].settings}
    path.write_text(json.dumps({**content, **changes}))
    with pytest.warns(RuntimeWarning, match=rf"is damaged.*{why}.*It is left out; tv\.sweep runs it again"):
        assert tv.load_sweep(tmp_path).status == "incomplete"
    assert run(grid, executor, tmp_path).status == "completed"
    assert files(tmp_path) == before


def test_a_cell_that_diverged_at_once_is_whole(executor: Any, tmp_path: Path) -> None:
    """Its trace has the estimate at the start alone."""

    def slopeless(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return normal(points)[0], np.full_like(points, np.nan if len(points) == SMALL["n_samples"] else 0.0)

    found = run({"model": tv.models.LogDensity(slopeless, LAYOUT), **SMALL}, executor, tmp_path)
    assert found.frame()[["status", "n_updates"]].iloc[0].tolist() == ["diverged", 0]
    assert found.traces()["iteration"].tolist() == [0]
    assert tv.load_sweep(tmp_path).status == "completed"


def test_the_file_of_a_later_version_is_neither_misread_nor_replaced(
    isotropic: Any, executor: Any, tmp_path: Path
) -> None:
    grid = {"model": isotropic, "seed": range(2), **SMALL}
    path = tmp_path / "cells" / f"{run({**grid, 'seed': 1}, executor, tmp_path).cells[0]}.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2').replace('"settings"', '"set"'))
    before = files(tmp_path)
    with pytest.raises(OutputError, match=f"{path.name}.* by a later version .*upgrade pyturingvi, or give another"):
        run(grid, executor, tmp_path)
    assert files(tmp_path) == before  # the other cell did not begin either
    with pytest.raises(OutputError, match="later version"):
        read_cell(path)
    with pytest.warns(RuntimeWarning, match=r"later version.*It is left out\.$"):
        assert tv.load_sweep(tmp_path).status == "incomplete"


# ---- fits, models and timings --------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["cut", "a byte changed", "no archive", "of another cell", "of other data", "edited"])
def test_a_fit_file_that_is_not_its_cells_is_run_again(
    isotropic: Any, executor: Any, tmp_path: Path, kind: str
) -> None:
    grid = {"model": isotropic, "init_location": [0.5, 0.1], **SMALL}
    whole = run(grid, executor, tmp_path, keep="fit")
    before = files(tmp_path)
    path, other = (tmp_path / "fits" / f"{name}.npz" for name in whole.cells)
    content, params = path.read_bytes(), whole.fit(whole.cells[0]).params
    if kind == "edited":  # a whole file of the right settings, with another ending
        header, arrays = read_archive(path, "fit", "test")
        write_archive(path, {**header, "n_updates": 59}, arrays)
    elif kind == "of other data":
        header, arrays = read_archive(path, "fit", "test")
        write_archive(path, {**header, "spec": {**header["spec"], "model_digest": 16 * "0"}}, arrays)
    else:
        at = content.index(params.tobytes())
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        damage = {"cut": content[:-40], "a byte changed": changed, "no archive": b"x", "of another cell": None}[kind]
        path.write_bytes(other.read_bytes() if damage is None else damage)
    with pytest.raises(OutputError, match=rf"{path.name}.* is damaged .*keep='fit' to run the cell again"):
        whole.fit(whole.cells[0])
    assert run(grid, executor, tmp_path, keep="fit").status == "completed"
    assert files(tmp_path) == before
    np.testing.assert_array_equal(whole.fit(whole.cells[0]).params, params)


def test_whole_fits_of_every_kind_are_not_run_again(poisson: Any, executor: Any, tmp_path: Path) -> None:
    base: dict[str, Any] = {"model": poisson, **SMALL}
    grid = [
        {**base, "init_location": [np.linspace(-0.2, 0.2, poisson.dim)], "averaging": tv.PolynomialAveraging()},
        {**base, "dtype": "float32", "family": tv.Structured(base=("student_t", 8)), "stepsize": tv.step_decay(0.01)},
        {**base, "optimizer": "sgd", "stepsize": 1e12},
    ]
    found = run(grid, executor, tmp_path, keep="fit")
    assert (found.counts["completed"], found.counts["diverged"]) == (2, 1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    run(grid, executor, tmp_path, keep="fit")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")} == before
    assert [found.fit(name).status for name in found.cells] == ["completed", "completed", "diverged"]


def test_a_fit_file_of_a_later_version_is_not_replaced(isotropic: Any, executor: Any, tmp_path: Path) -> None:
    grid = {"model": isotropic, **SMALL}
    found = run(grid, executor, tmp_path, keep="fit")
    path = tmp_path / "fits" / f"{found.cells[0]}.npz"
    header, arrays = read_archive(path, "fit", "test")
    write_archive(path, {**header, "format": 2}, arrays)
    before = files(tmp_path)
    for read in (lambda: run(grid, executor, tmp_path, keep="fit"), lambda: found.fit(found.cells[0])):
        with pytest.raises(OutputError, match=f"{path.name}.* by a later version"):
            read()
    assert files(tmp_path) == before


@pytest.mark.parametrize("kind", ["cut", "no archive", "of another model"])
def test_a_damaged_model_file_is_written_anew(
    isotropic: Any, poisson: Any, executor: Any, tmp_path: Path, kind: str
) -> None:
    grid = {"model": poisson, **SMALL}
    run({**grid, "seed": range(2)}, executor, tmp_path / "calm")
    run(grid, executor, tmp_path / "out")
    (path,) = (tmp_path / "out" / "models").iterdir()
    if kind == "of another model":
        run({"model": isotropic, **SMALL}, executor, tmp_path / "other")
        (other,) = (tmp_path / "other" / "models").iterdir()
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:-50] if kind == "cut" else b"not even an archive")
    _read_model.cache_clear()  # as in a new worker
    with pytest.raises((OutputError, DataError), match=path.name):
        _read_model(str(path), read_grid(grid)[0].settings["model_digest"])
    assert run({**grid, "seed": range(2)}, executor, tmp_path / "out").status == "completed"
    assert files(tmp_path / "out") == files(tmp_path / "calm")


@pytest.mark.parametrize(
    "content",
    [
        '{"seconds": "abc"}',
        '{"seconds": [1.0]}',
        '{"seconds": true}',
        '{"seconds": null}',
        '{"seconds": NaN}',
        '{"seconds": Infinity}',
        '{"seconds": -1}',
        '{"seconds": 1' + 400 * "0" + "}",
        '{"trace_seconds": 5}',
        '{"trace_seconds": ["a", "b", "c"]}',
        '{"trace_seconds": {"a": 1, "b": 2, "c": 3}}',
        100_000 * "[",
        '{"seconds": ' + 100_000 * "[" + 100_000 * "]" + "}",
        "[1]",
        "3",
        "\xff",
    ],
    ids=lambda content: content[:30],
)
def test_a_damaged_timing_is_as_none(isotropic: Any, executor: Any, tmp_path: Path, content: str) -> None:
    grid = {"model": isotropic, **SMALL}
    (name,) = run({**grid, "seed": 0}, executor, tmp_path).cells
    (tmp_path / "timings" / f"{name}.json").write_bytes(content.encode("latin-1"))
    found = run({**grid, "seed": range(2)}, executor, tmp_path)
    assert found.frame()["seconds"].isna().tolist() == [True, False]
    assert found.traces()["seconds"].isna().tolist() == 3 * [True] + 3 * [False]


# ---- what is not the sweep's own -----------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["cells/NAME.json", "fits/NAME.npz", "timings/NAME.json", "models/MODEL.npz"])
def test_a_folder_in_the_place_of_a_file_is_named(isotropic: Any, executor: Any, tmp_path: Path, place: str) -> None:
    cell = read_grid({"model": isotropic, **SMALL})[0]
    place = place.replace("NAME", cell.name).replace("MODEL", f"gaussian-{cell.settings['model_digest']}")
    (tmp_path / place).mkdir(parents=True)
    with pytest.raises(OutputError, match=rf"out: '{tmp_path / place}' is a folder, where the sweep writes a file"):
        run({"model": isotropic, **SMALL}, executor, tmp_path)
    (tmp_path / place).rmdir()
    (tmp_path / "work").mkdir(exist_ok=True)
    scratch = tmp_path / "work" / cell.name
    scratch.touch()
    with pytest.raises(OutputError, match=rf"out: '{scratch}' is a file, where the sweep makes a folder"):
        run({"model": isotropic, **SMALL}, executor, tmp_path)
    scratch.unlink()
    assert run({"model": isotropic, **SMALL}, executor, tmp_path).status == "completed"


def test_an_out_that_cannot_be_a_folder_is_refused(isotropic: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "deeper", Path("/proc/none")):
        with pytest.raises(OutputError, match="out: cannot make the folder"):
            run({"model": isotropic, **SMALL}, None, out)


def test_what_a_killed_call_has_left_is_cleared_and_a_living_one_is_spared(
    isotropic: Any, executor: Any, tmp_path: Path
) -> None:
    living = folder_module.Call(SweepFolder(tmp_path))
    dead = tmp_path / "calls" / "0123456789ab"
    dead.mkdir()
    (dead / "lock").touch()
    run({"model": isotropic, **SMALL}, executor, tmp_path)
    assert living.path.is_dir()
    assert not dead.exists()
    living.close()


def test_folders_that_are_not_the_sweeps_own_are_left_as_they_are(
    isotropic: Any, executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder where a user has other things, under names that a sweep uses too."""
    monkeypatch.chdir(tmp_path)
    grid = {"model": isotropic, **SMALL}
    name = read_grid(grid)[0].name
    calls, work = Path("calls"), Path("work")
    own = [calls / "2024" / "lock", calls / "2024" / "may.txt", calls / "0123456789ab" / "notes.txt"]
    own += [calls / "ba9876543210" / "lock" / "deep.txt", work / name / "notes.txt", work / "other" / "lock"]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    Path("elsewhere").mkdir()
    (calls / "aaaaaaaaaaaa").symlink_to(Path("../elsewhere"))
    dead = calls / "bbbbbbbbbbbb"
    dead.mkdir()
    for left in ("lock", ".pyturingvi-x1.part", "gaussian-0123456789abcdef.npz"):
        (dead / left).touch()
    places = {path for place in (calls, work) for path in place.rglob("*")} - {dead, *dead.iterdir()}
    assert run(grid, executor, Path(".")).status == "completed"
    run(grid, executor, Path("."))
    left = {path for place in (calls, work) for path in place.rglob("*")}
    assert left - {work / name / "lock", work / name / "checkpoint.npz"} == places
    assert {path.read_text() for path in own} == {"mine"}
    assert not list(Path("elsewhere").iterdir())
