"""The files of a sweep: damaged, of a later version, in each other's way, and beside those of others."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from sweep_targets import LAYOUT, SMALL, files, normal, run

import pyturingvi as tv
from pyturingvi.errors import DataError, OutputError
from pyturingvi.support.archive import read_archive
from pyturingvi.sweeps.cell_file import read_cell
from pyturingvi.sweeps.grid import read_grid
from pyturingvi.sweeps.worker import _read_model


# ---- cells ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        *((content, "") for content in (b"", b"{", b'{"kind": "x"}', b"[]", b"\xff\x00")),
        ({"n_updates": "abc"}, "interpreted as an integer"),
        ({"n_updates": 59}, "its trace is not whole"),
        ({"status": "done"}, "its status is 'done'"),
        ({"status": "failed"}, "its trace is not whole"),
        ({"settings": "OTHER"}, "its settings are not those of its name"),
        ({"message": None}, "its message is no text"),
        ({"std_error": [1.0, 1.0]}, "differ in length"),
        ({"iteration": [25, 60], "elbo": [-9.0, -8.0], "std_error": [1.0, 1.0]}, "its trace is not whole"),
        ({"elbo": [-9.0, -8.0, 10**400]}, "too large"),
        ({"format": "1"}, ""),
    ],
)
def test_a_damaged_cell_is_left_out_with_a_warning_and_run_again(isotropic, executor, tmp_path, changes, why):
    grid = {"model": isotropic, "seed": range(2), **SMALL}
    other, name = run(grid, executor, tmp_path).cells
    before, path = files(tmp_path), tmp_path / "cells" / f"{name}.json"
    if changes == {"settings": "OTHER"}:
        changes = {"settings": read_cell(path.with_stem(other))["settings"]}
    if isinstance(changes, bytes):
        path.write_bytes(changes)
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.warns(RuntimeWarning, match=rf"is damaged.*{why}.*It is left out; tv\.sweep runs it again"):
        found = tv.load_sweep(tmp_path)
    assert (found.cells, found.status) == ([other], "incomplete")
    assert run(grid, executor, tmp_path).status == "completed"
    assert files(tmp_path) == before


def test_a_cell_that_diverged_at_once_is_whole(executor, tmp_path):
    """Its trace has the estimate at the start alone."""

    def slopeless(points):
        value, slopes = normal(points)
        return value, np.full_like(slopes, np.nan) if len(points) == SMALL["n_samples"] else slopes

    found = run({"model": tv.models.LogDensity(slopeless, LAYOUT), **SMALL}, executor, tmp_path)
    assert found.frame()[["status", "n_updates"]].iloc[0].tolist() == ["diverged", 0]
    assert found.traces()["iteration"].tolist() == [0]
    assert tv.load_sweep(tmp_path).status == "completed"


def test_the_file_of_a_later_version_is_neither_misread_nor_replaced(isotropic, executor, tmp_path):
    grid = {"model": isotropic, "seed": range(2), **SMALL}
    path = tmp_path / "cells" / f"{run({**grid, 'seed': 1}, executor, tmp_path).cells[0]}.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2').replace('"settings"', '"set"'))
    before = files(tmp_path)
    with pytest.raises(OutputError, match=f"{path.name}.* by a later version .*upgrade it, or give another"):
        run(grid, executor, tmp_path)
    assert files(tmp_path) == before  # the other cell did not begin either
    with pytest.raises(OutputError, match="later version"):
        read_cell(path)
    with pytest.warns(RuntimeWarning, match=r"later version.*It is left out\.$"):
        assert tv.load_sweep(tmp_path).status == "incomplete"


# ---- fits, models and timings --------------------------------------------------------------------------------
def test_a_damaged_fit_file_is_told_and_when_it_is_away_written_again(isotropic, executor, tmp_path):
    grid = {"model": isotropic, "seed": range(2), **SMALL}
    whole = run(grid, executor, tmp_path, keep="fit")
    before, name = files(tmp_path), whole.cells[0]
    path, params = tmp_path / "fits" / f"{name}.npz", whole.fit(name).params
    at = path.read_bytes().index(params.tobytes())
    path.write_bytes(path.read_bytes()[:at] + b"?" + path.read_bytes()[at + 1 :])
    with pytest.raises(OutputError, match=f"{path.name}.* is damaged"):
        whole.fit(name)
    path.unlink()
    assert run(grid, executor, tmp_path, keep="fit").status == "completed"
    assert files(tmp_path) == before
    np.testing.assert_array_equal(whole.fit(name).params, params)


def test_whole_fits_of_every_kind_are_not_run_again(poisson, executor, tmp_path):
    base = {"model": poisson, **SMALL}
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


@pytest.mark.parametrize("kind", ["cut", "of another model"])
def test_a_damaged_model_file_is_written_anew(isotropic, poisson, executor, tmp_path, kind):
    grid = {"model": poisson, **SMALL}
    run({**grid, "seed": range(2)}, executor, tmp_path / "calm")
    run([grid, {"model": isotropic, **SMALL}], executor, tmp_path / "out")
    other, path = sorted((tmp_path / "out" / "models").iterdir())
    path.write_bytes(path.read_bytes()[:-50] if kind == "cut" else other.read_bytes())
    _read_model.cache_clear()  # as in a new worker
    with pytest.raises((OutputError, DataError), match=path.name):
        _read_model(str(path), read_grid(grid)[0].description["model_digest"])
    assert run({**grid, "seed": range(2)}, executor, tmp_path / "out").status == "completed"
    assert files(tmp_path / "calm").items() <= files(tmp_path / "out").items()


def test_a_damaged_timing_is_as_none(isotropic, executor, tmp_path):
    found = run({"model": isotropic, "seed": range(2), **SMALL}, executor, tmp_path)
    wrong = ['{"seconds": "abc"}', '{"seconds": NaN}', '{"seconds": -1}', '{"trace_seconds": ["a", "b", "c"]}']
    for content in (*wrong, 100_000 * "[", "[1]", "\xff"):
        (tmp_path / "timings" / f"{found.cells[0]}.json").write_bytes(content.encode("latin-1"))
        assert found.frame()["seconds"].isna().tolist() == [True, False], content[:30]
        assert found.traces()["seconds"].isna().tolist() == 3 * [True] + 3 * [False], content[:30]


# ---- what is not the sweep's own -----------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["cells/NAME.json", "fits/NAME.npz", "models/MODEL.npz", "work/NAME"])
def test_what_is_in_the_place_of_a_file_or_folder_is_named(isotropic, executor, tmp_path, place):
    cell = read_grid({"model": isotropic, **SMALL})[0]
    path = tmp_path / place.replace("NAME", cell.name).replace("MODEL", f"gaussian-{cell.description['model_digest']}")
    path.parent.mkdir(parents=True)
    path.touch() if place == "work/NAME" else path.mkdir()
    with pytest.raises(OutputError, match=str(path)):
        run({"model": isotropic, **SMALL}, executor, tmp_path, keep="fit")
    path.unlink() if place == "work/NAME" else path.rmdir()
    assert run({"model": isotropic, **SMALL}, executor, tmp_path, keep="fit").status == "completed"


def test_an_out_that_cannot_be_a_folder_is_refused(isotropic, tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "deeper", Path("/proc/none")):
        with pytest.raises(OutputError, match="out: cannot make the folder"):
            run({"model": isotropic, **SMALL}, None, out)


def test_what_is_not_the_sweeps_own_is_left_as_it_is(isotropic, executor, tmp_path, monkeypatch):
    """In a folder where a user has other things, under names that a sweep uses too."""
    monkeypatch.chdir(tmp_path)
    grid = {"model": isotropic, **SMALL}
    own = [Path("work", read_grid(grid)[0].name, "notes.txt"), Path("work", "other", "lock"), Path("cells", "a.txt")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    for _ in range(2):
        assert run(grid, executor, Path(".")).status == "completed"
        assert {path.read_text() for path in own} == {"mine"}
        assert {path.name for path in Path("work").rglob("*")} == {own[0].parent.name, "notes.txt", "other", "lock"}


@pytest.mark.parametrize("name", ["fits", "models", "timings", "work", "calls"])
def test_an_empty_folder_of_the_users_stays(executor, tmp_path, name):
    (tmp_path / name).mkdir()
    model = tv.models.LogDensity(normal, LAYOUT)  # which goes into no file
    assert run({"model": model, **SMALL}, executor, tmp_path).status == "completed"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"cells", "timings", name})


@pytest.mark.parametrize("place", ["cells", "fits", "timings", "models", "work"])
def test_a_full_disk_is_told_with_the_path_and_nothing_is_lost(
    isotropic, poisson, executor, tmp_path, monkeypatch, place
):
    grid = {"model": poisson, "seed": range(2), **SMALL}
    run([{"model": isotropic, **SMALL}, grid], executor, tmp_path / "calm", keep="fit")
    run({"model": isotropic, **SMALL}, executor, tmp_path / "out", keep="fit")
    before = files(tmp_path / "out")

    def mkstemp(*, dir, **options):
        if dir.name == place:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(dir=dir, **options)

    whole = tempfile.mkstemp
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkstemp", mkstemp)
        with pytest.raises(OutputError, match=f"{tmp_path / 'out' / place}/.*No space left on device"):
            run(grid, executor, tmp_path / "out", keep="fit")
    assert before.items() <= files(tmp_path / "out").items()
    assert list(tmp_path.glob("out/work/*/checkpoint.npz")) or place in ("models", "work")
    run(grid, executor, tmp_path / "out", keep="fit")
    assert files(tmp_path / "out") == files(tmp_path / "calm")
    assert not (tmp_path / "out" / "work").exists()


# ---- of an earlier version -----------------------------------------------------------------------------------
def test_a_sweep_that_the_first_version_began_goes_on(executor, tmp_path):
    """`old_sweep` is what 0.1.0 left when it was killed: two cells done, and the checkpoint of a third at update 25.

    `expected.json` is the third cell as 0.1.0 ends it.
    """
    out = tmp_path / "out"
    shutil.copytree(Path(__file__).parent / "old_sweep", out)
    expected = json.loads((out / "expected.json").read_text())
    model = tv.models.IsotropicGaussian(3, n_global=2, local_dim=1)
    base = {"model": model, "engine": "numpy", **SMALL}
    sgd = {"optimizer": "sgd", "stepsize": tv.step_decay(0.01, every=20), "averaging": tv.PolynomialAveraging()}
    grid = [{**base, "family": ["mean-field", tv.Structured(standardized=False)]}, {**base, **sgd, "seed": 7}]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("[cft]*/*")}
    began = tv.load_sweep(out, grid)
    assert list(began.frame()["status"]) == ["completed", "completed", "missing"]
    np.testing.assert_allclose(began.frame()["elbo"][:2], [-617.7585566297524, -617.5037861458503], rtol=1e-9)
    assert began.fit(began.cells[1]).family.standardized is False
    (checkpoint,) = out.glob("work/*/checkpoint.npz")
    assert checkpoint.parent.name == began.cells[2]
    assert read_archive(checkpoint, "checkpoint", "test")[0]["iteration"] == 25
    found = run(grid, executor, out, keep="fit")
    assert found.status == "completed"
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    assert not (out / "work").exists()
    cell = read_cell(out / "cells" / f"{found.cells[2]}.json")
    np.testing.assert_allclose(cell.pop("elbo"), expected.pop("elbo"), rtol=1e-9)
    np.testing.assert_allclose(cell.pop("std_error"), expected.pop("std_error"), rtol=1e-9)
    assert cell == expected
