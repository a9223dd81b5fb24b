"""The problems as the paper's released code poses them: what differs from the paper's text, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_checks import draw_points

import pyturingvi as tv
from pyturingvi.data.fx import load_fx_rates
from pyturingvi.errors import InputError
from pyturingvi.problems import list_problems, start_scale
from pyturingvi.reproduce import realistic
from pyturingvi.reproduce.figure import Job, reproduce
from pyturingvi.reproduce.realistic_tables import expected, in_order
from pyturingvi.support.files import file_stem
from pyturingvi.sweeps.grid import read_grid

SIZES = list_problems().set_index("problem")
REAL = [name for name in SIZES.index if not name.startswith("irt")]


@pytest.mark.parametrize("name", SIZES.index)
def test_sizes_are_those_of_table_1_and_labels_say_which_variant(name: str) -> None:
    simulated = name not in REAL
    model = tv.load_problem(name, simulated=simulated, variant="released")
    assert tuple(SIZES.loc[name, ["N", "d_y", "d_z"]]) == (
        model.layout.n_local,
        model.layout.local_dim,
        model.layout.n_global,
    )
    assert model.label == (f"{name} (simulated, released)" if simulated else f"{name} (released)")
    assert file_stem(model.label) == f"{name}-simulated-released" if simulated else f"{name}-released"
    assert np.isfinite(model.log_density(np.zeros(model.dim))).all()


def test_rpoisson_has_half_normal_priors_noise_as_locals_and_one_scale_for_three_columns() -> None:
    model: Any = tv.load_problem("rpoisson-small", variant="released")
    paper: Any = tv.load_problem("rpoisson-small")
    assert model.priors.given == dict.fromkeys(("s_alpha", "s_beta", "s_eta"), tv.priors.HalfNormal(1.0))
    assert model.parametrization == "residual"
    np.testing.assert_array_equal(model.y, paper.y)  # the same rows
    raw = tv.data.load_rwm5yr(1961, standardize=False)[0]
    three = raw[["age", "educ", "hhninc"]].to_numpy()
    entries = three.ravel().tolist()
    mean = sum(entries) / len(entries)
    sd = (sum((x - mean) ** 2 for x in entries) / (len(entries) - 1)) ** 0.5
    np.testing.assert_allclose(model.X[:, :3], (three - mean) / sd, rtol=1e-10)
    np.testing.assert_array_equal(model.X[:, 3:], paper.X[:, 3:])


@pytest.mark.parametrize(("size", "n"), [("small", 262), ("middle", 522), ("large", 2579)])
def test_volatility_has_the_last_returns_until_2022_centred_over_the_whole_window(size: str, n: int) -> None:
    model: Any = tv.load_problem(f"volatility-{size}", variant="released")
    assert (model.tau_of, model.partials, model.bound) == ("shocks", "columns", 15.0)
    assert model.priors.given == {"tau": tv.priors.HalfCauchy(5.0)}
    logs = np.log(load_fx_rates(start="2012-01-01", end="2022-12-31"))
    window = logs[logs.index >= "2013-01-01"]
    mean = (window.iloc[-1] - window.iloc[0]) / (len(window) - 1)  # of returns, which telescope
    by_hand = (logs.iloc[1:] - logs.to_numpy()[:-1]).iloc[-n:] - mean
    np.testing.assert_allclose(model.returns, by_hand, rtol=1e-9, atol=1e-15)
    assert str(model.coords["time"][-1])[:10] == "2022-12-30"


def test_irt_has_difficulties() -> None:
    model: Any = tv.load_problem("irt-small", simulated=True, variant="released")
    assert model.beta == "difficulty"
    assert model.priors.are_usual


def test_where_fits_start() -> None:
    assert [start_scale(name) for name in ("rpoisson-small", "volatility-large", "irt-middle")] == [0.1, 0.1, 0.1]
    assert start_scale("rpoisson-small", "released") == start_scale("irt-large", "released") == pytest.approx(0.1**0.5)
    scale = start_scale("volatility-small", "released")
    assert scale.shape == (1605,)
    np.testing.assert_allclose(scale[:33], 0.1**0.5)
    assert set(scale[33:]) == {1.0}
    # what a fit makes of it: with a stepsize of nearly nothing it ends where it began
    model = tv.load_problem("volatility-small", simulated=True, variant="released")
    still = {"optimizer": tv.SGD(1e-300), "n_iterations": 1, "n_samples": 2, "elbo_samples": 2, "progress": False}
    for family in ("mean-field", "structured", "markov"):
        fit = tv.fit(model, family, init_scale=scale, **still)
        unit = np.zeros(1605)
        unit[[0, 700]] = 1.0
        np.testing.assert_allclose(fit.scale @ unit, scale * unit, atol=1e-12)


@pytest.mark.parametrize("value", [np.ones(4), [1.0] * 13, np.ones((15, 15)), [0.0] * 15, [np.nan] * 15, "a"])
def test_a_start_that_does_not_fit_is_refused(isotropic: tv.models.Model, value: Any) -> None:
    with pytest.raises(InputError, match="init_scale"):
        tv.fit(isotropic, init_scale=value)


def test_restarts_do_not_know_a_scale_of_its_own(isotropic: tv.models.Model) -> None:
    fit = tv.fit(isotropic, n_iterations=50, init_scale=np.full(isotropic.dim, 0.2), progress=False)
    with pytest.raises(InputError, match="the fit began at a scale of its own"):
        fit.diagnose(n=100, seeds=[1])


def test_what_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'release'.*Did you mean 'released'"):
        tv.load_problem("rpoisson-small", variant="release")
    with pytest.raises(InputError, match="the paper's released code has no verbagg"):
        tv.load_problem("verbagg", variant="released")
    with pytest.raises(InputError, match="variant go with a problem's name"):
        tv.compare(tv.load_problem("rpoisson-small"), variant="released")
    with pytest.raises(InputError, match=r"variant \(--variant\) goes with stepsize and trace, not with synthetic"):
        reproduce("synthetic", out=tmp_path, variant="released")
    with pytest.raises(InputError, match="'othr'"):
        reproduce("stepsize", out=tmp_path, variant="othr")


@pytest.mark.julia
@pytest.mark.parametrize("kind", ["rpoisson", "volatility", "irt"])
def test_julia_and_turing_have_the_same_densities(kind: str) -> None:
    model = tv.load_problem(f"{kind}-small", simulated=kind == "irt", variant="released")
    runtime = tv.start_julia()
    runtime.load("Turing")
    points, there = draw_points(model, 3), model.to_julia(runtime)
    for density in (runtime.module.log_density, runtime.module.turing_log_density):
        found = runtime.to_numpy(runtime.call(density, there, runtime.to_julia(points)))
        np.testing.assert_allclose(found, model.log_density(points), rtol=1e-8)


# ---- sweeps and figures --------------------------------------------------------------------------------------
def test_the_papers_variant_leaves_the_names_of_cells_and_files(tmp_path: Path) -> None:
    grid = {"model": "rpoisson-small", "stepsize": 1e-3}
    (plain,), (named,) = read_grid(grid), read_grid({**grid, "variant": "paper"})
    assert named.name == plain.name
    assert "variant" not in plain.description
    (other,) = read_grid({**grid, "variant": "released"})
    assert other.name.startswith("rpoisson-small-released_structured_adam-0.001_seed0_")
    assert other.settings.engine == "numpy"
    assert Job("stepsize", "laptop", tmp_path).file("elbo").name == "stepsize_laptop_elbo.csv"
    assert Job("stepsize", "laptop", tmp_path, variant="released").file("elbo").name == (
        "stepsize_laptop-released_elbo.csv"
    )
    command = Job("trace", "laptop", tmp_path, variant="released").command()
    assert "--preset laptop" in command
    assert "--variant released" in command


def test_the_grid_of_the_released_variant(tmp_path: Path) -> None:
    job = Job("stepsize", "laptop", tmp_path, variant="released")
    cells = read_grid(realistic.grid_of(job))
    assert len(cells) == 48
    assert {cell.model.label for cell in cells} == {"rpoisson-small (released)", "volatility-small (released)"}
    assert {cell.settings.family.name for cell in cells} == {"mean-field", "structured"}
    for cell in cells:
        np.testing.assert_array_equal(cell.settings.init_scale, start_scale(cell.model.label[:-11], "released"))
    assert sum(expected(job).values()) == 48
    assert in_order({cell.model.label for cell in cells})[0] == "rpoisson-small (released)"


@pytest.mark.usefixtures("undrawn", "without_processes")
def test_a_figure_of_the_released_variant_from_fits_to_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realistic, "SETTINGS", {**realistic.SETTINGS, "n_iterations": 4, "elbo_every": 2})

    def few(job: Job, memory: float | None = None) -> list[dict[str, Any]]:
        part = realistic._part(job, "rpoisson-small", ["mean-field"], realistic.STEPSIZES[3:5], 2)
        return [{**part, "elbo_samples": 4}]

    monkeypatch.setitem(realistic.PRESETS, "quick", ("words", few))
    text = reproduce("stepsize", out=tmp_path, variant="released", n_workers=1, progress=False)
    assert "4 of 4 fits are there" in text
    assert "rpoisson-small (released), ELBO after 4 updates" in text
    assert {path.name for path in tmp_path.glob("*.*")} == {
        "stepsize_quick-released_elbo.csv",
        "stepsize_quick-released_claims.csv",
        "stepsize_quick-released_elbo.png",
    }
