"""What a sweep is over: grids, the names of their cells, and what is refused before any work."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from sweep_targets import SIZES, SMALL, run

import pyturingvi as tv
from pyturingvi.errors import DataError, EngineError, InputError
from pyturingvi.sweeps.grid import SETTINGS, read_grid


def test_a_mapping_is_a_product_and_a_list_of_them_a_union(isotropic):
    product = {"model": isotropic, "family": ["mean-field", "full-rank"], "stepsize": np.array([1e-3, 1e-2])}
    cells = read_grid({**product, "seed": range(3)})
    assert len({cell.name for cell in cells}) == 12
    varied = [
        (c.description["family"]["family"], c.description["optimizer"]["stepsize"], c.description["seed"])
        for c in cells[:4]
    ]
    assert varied == [*(("mean-field", 1e-3, seed) for seed in range(3)), ("mean-field", 1e-2, 0)]
    union = read_grid([{**product, "seed": 0}, {**product, "seed": [0, 5]}])
    assert [cell.name for cell in union][:4] == [cell.name for cell in read_grid({**product, "seed": 0})]
    assert len(union) == 8
    assert all(json.loads(json.dumps(cell.description)) == cell.description for cell in cells)


def test_a_cell_name_is_readable_and_tells_everything_apart(isotropic, poisson):
    poisson.label = "Poisson / Ünder *test*" + 60 * "x"
    base = {"model": isotropic, **SMALL}
    changes = [
        {},
        {"model": poisson},
        {"family": tv.Structured(standardized=False)},
        {"family": tv.Structured(base=("student_t", 8))},
        {"optimizer": tv.Adam(1e-3, beta1=0.8)},
        {"optimizer": "sgd", "stepsize": 1e-3},
        {"stepsize": tv.step_decay(1e-3)},
        {"init_location": 0.5},
        {"init_location": [np.arange(float(isotropic.dim))]},
        {"init_scale": 0.2},
        {"averaging": tv.PolynomialAveraging()},
        {"dtype": "float32"},
        {"device": "cuda"},
        {"seed": 1},
        *({key: value + 1} for key, value in SIZES.items()),
    ]
    cells = read_grid([{**base, **change} for change in changes])
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(changes)
    assert names[0].startswith("gaussian_structured_adam-0.001_seed0_")
    assert names[1].startswith("poisson-nder-test-xxx")
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-") and len(name) < 140 for name in names)
    again = read_grid({**base, "n_samples": 4.0, "family": tv.Structured(), "optimizer": "adam", "stepsize": 1e-3})
    assert [cell.name for cell in again] == names[:1]


def test_a_problem_by_name_is_the_model_that_it_loads(tmp_path):
    cell, other = read_grid({"model": "volatility-small", "simulated": True, "data_seed": [0, 1], **SMALL})
    model = tv.load_problem("volatility-small", simulated=True)
    assert cell.description["model"] == "volatility-small (simulated)"
    assert cell.description["d"] == model.dim
    np.testing.assert_array_equal(cell.model.get_state()["returns"], model.get_state()["returns"])
    assert cell.description["model_digest"] != other.description["model_digest"]


def test_what_a_cell_leaves_open_is_the_default_of_fit(isotropic, executor, tmp_path):
    grid = {"model": isotropic, "family": "mean-field", "n_iterations": 1}
    run(grid, executor, tmp_path, keep="fit")
    direct = tv.fit(isotropic, "mean-field", n_iterations=1, progress=False)
    spec = tv.load_sweep(tmp_path).fit(read_grid(grid)[0].name).spec
    assert spec == direct.spec


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (3, "grid must be a mapping"),
        ([], "grid is empty"),
        ([{"seed": 1}], "model is missing"),
        ({"model": "rpoisson-smal"}, "Did you mean 'rpoisson-small'"),
        ({"model": 3}, "model must be a problem's name"),
        ({"model": "MODEL", "sead": 1}, "Unknown setting of a cell 'sead'. Did you mean 'seed'"),
        ({"problem": "rpoisson-small"}, "give the problem's name as model="),
        ({"model": "MODEL", "checkpoint": "x.npz"}, "a sweep keeps its own checkpoints"),
        ({"model": "MODEL", "n_threads": 2}, "argument of tv.sweep itself"),
        ({"model": "MODEL", "seed": []}, "seed is an empty list"),
        ({"model": "MODEL", "seed": [0, -1]}, "seed must be a whole number"),
        ({"model": "MODEL", "family": ["structured", "mean-feild"]}, "Did you mean 'mean-field'"),
        ({"model": "MODEL", "optimizer": "adm"}, "Did you mean 'adam'"),
        ({"model": "MODEL", "optimizer": "sgd"}, "needs a stepsize"),
        ({"model": "MODEL", "stepsize": [1e-3, -1]}, "stepsize must be a finite number above 0"),
        ({"model": "MODEL", "init_location": [np.zeros(3)]}, "init_location must be"),
        ({"model": "MODEL", "simulated": True}, "simulated goes with a problem's name"),
        ({"model": "rpoisson-small", "simulated": "yes"}, "simulated must be True or False"),
        ("grid", "grid must be a mapping"),
        (range(10**12), "grid must be a mapping"),
        (itertools.repeat({"model": "rpoisson-small"}), "grid must be a mapping"),
        (np.array(3), "grid must be a mapping"),
        ({"model": "MODEL", "seed": range(1_000_001)}, "grid has 1,000,001 cells, and a sweep takes at most 1,000,000"),
        ({"model": "MODEL", "seed": range(10**30)}, r"grid has more than 10\*\*18 cells"),
        ({"model": "MODEL", "seed": range(10**4), "n_samples": range(1, 10**4)}, "grid has 99,990,000 cells"),
        (2 * [{"model": "rpoisson-small", "seed": range(600_000)}], "grid has 1,200,000 cells"),
        ({"model": "MODEL", "seed": itertools.count()}, r"grid: seed is count\(0\), which does not tell how many"),
        ({"model": "MODEL", "seed": (i for i in range(3))}, "grid: seed is <generator .* give a list"),
    ],
)
def test_a_bad_grid_is_refused_before_anything_is_written(isotropic, tmp_path, grid, words):
    if isinstance(grid, dict) and grid.get("model") == "MODEL":
        grid = {**grid, "model": isotropic}
    with pytest.raises((InputError, EngineError), match=words):
        run(grid, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "init_location"])
@pytest.mark.parametrize("value", [np.array(["a", "b"]), np.array([1e-3, 1e-2]), np.array([]), [1, 2], {"a": 1}, 1j])
def test_a_value_of_a_wrong_kind_is_refused_by_its_name(isotropic, name, value):
    """An array in a list is one value, not the values along the axis."""
    for resolve_engine in (True, False):
        with pytest.raises(InputError, match=name):
            read_grid({"model": isotropic, **SMALL, name: [value]}, resolve_engine)


def test_a_data_seed_and_a_folder_of_data_may_be_of_numpy_and_a_string(isotropic, tmp_path):
    given = {"model": isotropic, "data_seed": np.int64(0), "simulated": np.bool_(False), "data_dir": None, **SMALL}
    assert read_grid(given)[0].description == read_grid({"model": isotropic, **SMALL})[0].description
    simulated = {"model": "volatility-small", "simulated": True, **SMALL}
    seeds = [1, np.int64(1), 1.0]
    assert len(read_grid({**simulated, "data_seed": seeds})) == 1
    with pytest.raises(DataError, match="is not a folder"):
        read_grid({"model": "rpoisson-small", "data_dir": str(tmp_path / "none"), **SMALL})


def test_a_setting_that_came_later_changes_no_name_where_it_has_its_default(isotropic, executor, tmp_path):
    base = {"model": isotropic, **SMALL}
    plain, default, given = (
        read_grid({**base, **more})[0] for more in ({}, {"stop_within": None}, {"stop_within": 0.5})
    )
    assert (default.name, default.description) == (plain.name, plain.description)
    assert given.name != plain.name
    frame = run([base, {**base, "stop_within": [0.5, 1e-9]}], executor, tmp_path).frame()
    assert frame["stop_within"].fillna(-1.0).tolist() == [-1.0, 0.5, 1e-9]
    assert "stop_within" not in run(base, executor, tmp_path).frame()


def test_a_seed_may_be_as_large_as_that_of_a_fit(isotropic, executor, tmp_path):
    found = run({"model": isotropic, "seed": 2**70, **SMALL}, executor, tmp_path)
    direct = tv.fit(isotropic, seed=2**70, progress=False, **SMALL)
    assert found.frame()["elbo"].tolist() == [direct.elbo["elbo"].iloc[-1]]
    assert found.frame()["seed"].tolist() == [2**70]


@pytest.mark.parametrize(
    ("setting", "parent", "argument"),
    [("optimizer", tv.Adam, [1e-3]), ("family", tv.Structured, []), ("model", tv.models.IsotropicGaussian, [3])],
)
def test_a_class_that_is_not_registered_is_refused_by_name(isotropic, tmp_path, setting, parent, argument):
    own = type("MyOwn", (parent,), {"__module__": __name__})(*argument)
    with pytest.raises(InputError, match=r"test_sweep_grid\.MyOwn is a \w+ of your own.*@tv\.register"):
        run({"model": isotropic, **SMALL, setting: own}, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_note_says_which_cell_is_wrong(isotropic, tmp_path):
    with pytest.raises(InputError) as caught:
        run({"model": isotropic, "seed": [4, -4]}, None, tmp_path)
    assert any("'seed': -4" in note for note in caught.value.__notes__)


def test_the_expected_cost_grows_with_what_takes_time(isotropic, poisson):
    def cost(**changes):
        return read_grid({"model": poisson, **SMALL, **changes})[0].cost

    assert cost(n_iterations=600) == pytest.approx(10 * cost(), rel=0.1)
    assert cost(family="full-rank") > cost(family="structured") > cost(family="mean-field")
    assert cost(n_samples=400) > 10 * cost()
    assert cost(elbo_samples=16_000) > 10 * cost()
    assert cost(model=isotropic) < cost()
