"""The page `beyond`: default fits of small models beside Adam's from a table, and what is judged of them."""

import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyturingvi as tv
from pyturingvi.data import simulate_irt, simulate_rpoisson
from pyturingvi.errors import DataError
from pyturingvi.reproduce.beyond import adam, fits, page
from pyturingvi.reproduce.beyond.verdicts import OPTIMIZER_CLAIMS, judge
from pyturingvi.reproduce.claims import BORNE_OUT, NOT_BORNE_OUT, UNSHOWN
from pyturingvi.reproduce.figure import Job, reproduce

pytestmark = pytest.mark.usefixtures("undrawn", "without_processes")

N_SEEDS = {"rpoisson-small": 2, "irt-small": 1}


def small(name, data_dir=None, simulated=False):
    """A model of a few dozen locals in place of a problem."""
    assert data_dir is None
    assert simulated == name.startswith("irt")
    if simulated:
        model = tv.models.ItemResponse(simulate_irt(30, 5, seed=3))
    else:
        model = tv.models.RobustPoisson(*simulate_rpoisson(40, 2, seed=3))
    model.label = f"{name} (simulated)" if simulated else name
    return model


fit_once = functools.cache(fits.default_fit)


@pytest.fixture
def miniature(monkeypatch):
    monkeypatch.setattr(fits, "load_problem", small)
    monkeypatch.setattr(fits, "_TIMED", (20,))
    monkeypatch.setattr(fits, "default_fit", lambda *task: dict(fit_once(*task)))
    monkeypatch.setitem(fits.PRESETS, "quick", fits.Preset("miniature", N_SEEDS))


def job_in(folder, preset="quick"):
    return Job("beyond", preset, folder, "numpy", n_workers=1, progress=False)


# ---- the default fits ---------------------------------------------------------------------------------------
def test_the_table_has_the_fits_that_a_user_gets_and_their_elbo(miniature, tmp_path):
    fits.compute(job_in(tmp_path))
    table = pd.read_csv(tmp_path / "beyond_quick_fits.csv")
    own = table[table.optimizer == fits.DEFAULT]
    assert own.groupby("problem").seed.agg(list).to_dict() == {
        "irt-small (simulated)": [0, 0],
        "rpoisson-small": [0, 1, 0, 1],
    }
    for row in own.itertuples():
        model = small(row.problem.removesuffix(" (simulated)"), None, "simulated" in row.problem)
        fit = tv.fit(model, row.family, engine="numpy", seed=row.seed, progress=False)
        assert (row.status, row.n_updates, row.engine) == (fit.status, fit.n_updates, "numpy")
        points = fit.sample_unconstrained(4000, seed=99)
        ratios = model.log_density(points) - fit.log_q(points)
        assert row.elbo == pytest.approx(ratios.mean(), abs=5 * np.hypot(row.std_error, ratios.std() / 4000**0.5))
        assert row.std_error == pytest.approx(ratios.std() / row.n_draws**0.5, rel=0.5)
        assert row.n_gradients >= 16 * row.n_updates  # of the least draws of an update
        assert row.cpu_seconds > 0
        assert row.adam_update_ms > 0


def test_the_models_gradients_are_counted_and_stay_what_they_are():
    model, again = small("rpoisson-small"), small("rpoisson-small")
    notes = fits.count_gradients(model)
    points = np.random.default_rng(0).normal(size=(7, model.dim))
    for part in (points, points[:2]):
        for ours, plain in zip(model.log_density_and_gradient(part), again.log_density_and_gradient(part), strict=True):
            np.testing.assert_array_equal(ours, plain)
    model.log_density(points)
    assert notes == [7, 2]


def test_only_missing_fits_are_made_and_a_stop_keeps_whole_problems(miniature, tmp_path, monkeypatch):
    made, real = [], fits.default_fit

    def noted(problem, family, seed, *others):
        made.append((problem, family, seed))
        if len(made) == 6:
            raise KeyboardInterrupt
        return real(problem, family, seed, *others)

    monkeypatch.setattr(fits, "default_fit", noted)
    job = job_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fits.compute(job)
    assert set(pd.read_csv(job.file("fits")).problem) == {"rpoisson-small"}
    assert "4 of 6 default fits are there" in page.report(job)
    del made[:]
    fits.compute(job)
    assert made == [("irt-small", family, 0) for family in adam.COMPARED]
    table = pd.read_csv(job.file("fits"))
    lost = (table.optimizer == fits.DEFAULT) & (table.family == "structured") & (table.seed == 1)
    table[~lost].to_csv(job.file("fits"), index=False)
    del made[:]
    fits.compute(job)
    assert made == [("rpoisson-small", "structured", 1)]
    again = pd.read_csv(job.file("fits"))
    rough = ["cpu_seconds", "adam_update_ms"]
    pd.testing.assert_frame_equal(again.drop(columns=rough), table.drop(columns=rough))


def test_a_table_of_another_kind_is_refused_before_any_fit(miniature, tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "default_fit", lambda *task: pytest.fail("work was started"))
    (tmp_path / "beyond_quick_fits.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"lacks the column\(s\) problem.*pyturingvi reproduce beyond --preset quick"):
        fits.compute(job_in(tmp_path))


# ---- Adam's side --------------------------------------------------------------------------------------------
def test_adams_side_is_the_best_stepsize_of_the_committed_fits(tmp_path):
    whole = pd.read_csv(adam.committed_fits())
    whole = whole[(whole.n_iterations == 50_000) & (whole.status == "completed")]
    keys = ["problem", "family"]
    medians = whole.groupby([*keys, "stepsize"]).elbo.median().reset_index()
    best = medians.loc[medians.groupby(keys).elbo.idxmax()]
    expected = whole.merge(best[[*keys, "stepsize"]]).sort_values([*keys, "seed"])
    found = adam.adam_fits(job_in(tmp_path)).sort_values([*keys, "seed"])
    columns = [*keys, "stepsize", "seed", "n_updates", "elbo", "std_error"]
    assert len(found) > 30
    pd.testing.assert_frame_equal(found[columns].reset_index(drop=True), expected[columns].reset_index(drop=True))
    assert set(found.n_gradients) == {50_000 * 8}
    assert found.of_stepsizes[found.problem == "rpoisson-small"].tolist() == [6] * 8


def test_fits_of_ones_own_take_the_place_of_the_committed_ones_if_they_are_long_enough(tmp_path):
    whole = pd.read_csv(adam.committed_fits())
    path = tmp_path / "stepsize_quick_elbo.csv"
    own = whole[(whole.problem == "rpoisson-small") & (whole.n_iterations == 50_000)]
    own.assign(elbo=own.elbo + 100).to_csv(path, index=False)
    found = adam.adam_fits(job_in(tmp_path))
    assert set(found.problem) == {"rpoisson-small"}
    assert found.elbo.between(-4310, -4280).all()
    own.assign(n_iterations=5_000, n_updates=5_000).to_csv(path, index=False)
    assert adam.adam_fits(job_in(tmp_path)).empty


# ---- what is judged -----------------------------------------------------------------------------------------
ENDS = {("adam", "mean-field"): -120, ("adam", "structured"): -140}
ENDS |= {(fits.DEFAULT, "mean-field"): -121, (fits.DEFAULT, "structured"): -100}


def made(problem="irt-small (simulated)", n=3, scale=0.1, **changes):
    """A table of fits that end as in `ENDS` but for `changes`, adam_structured=-90 say."""
    rows = []
    for (optimizer, family), end in ENDS.items():
        value = changes.get(f"{optimizer.split()[0]}_{family.replace('-', '_')}", end)
        for seed in range(n):
            row = {"problem": problem, "family": family, "optimizer": optimizer, "seed": seed, "n_draws": 1024}
            rows.append({**row, "elbo": value + scale * (seed - (n - 1) / 2), "std_error": 0.05})
    return pd.DataFrame(rows)


def verdicts(table, claim):
    found = judge(table)
    return found[found.claim == claim].verdict.tolist()


def test_structured_below_mean_field_on_irt_is_the_optimizers_doing_if_another_ends_above():
    assert verdicts(made(), "irt") == [BORNE_OUT] * 3
    assert verdicts(made(adam_structured=-110), "irt") == [NOT_BORNE_OUT, BORNE_OUT, BORNE_OUT]
    assert verdicts(made(natural_structured=-130), "irt") == [BORNE_OUT, NOT_BORNE_OUT, NOT_BORNE_OUT]
    assert verdicts(made(natural_structured=-121, natural_mean_field=-121), "irt") == [
        BORNE_OUT,
        UNSHOWN,
        NOT_BORNE_OUT,
    ]
    assert judge(made()).value[:3].tolist() == [20.0, 21.0, 20.0]


def test_where_adam_is_not_known_only_the_families_are_compared():
    table = made("volatility-large")
    found = judge(table[table.optimizer != "adam"])
    assert (found.claim.tolist(), found.verdict.tolist()) == (["family"], [BORNE_OUT])
    assert verdicts(made("irt-large (simulated)").query("optimizer != 'adam'"), "irt") == [BORNE_OUT]


def test_a_default_fit_that_falls_short_of_adam_is_called_so():
    close = made("rpoisson-small", adam_structured=-98)
    assert verdicts(close, "good") == [BORNE_OUT, BORNE_OUT]  # one nat and two below
    assert verdicts(close, "higher") == [NOT_BORNE_OUT, NOT_BORNE_OUT]
    far = made("rpoisson-small", adam_structured=-90)
    assert verdicts(far, "good") == [BORNE_OUT, NOT_BORNE_OUT]
    assert verdicts(made("rpoisson-small", scale=3.0), "higher") == [UNSHOWN, BORNE_OUT]


@given(st.floats(-10, 10), st.floats(0.01, 5))
def test_single_fits_are_compared_with_the_error_of_their_elbos(gain, error):
    table = made("rpoisson-small", 1, natural_structured=-121 + gain).assign(std_error=error)
    row = judge(table[table.optimizer != "adam"]).iloc[0]
    # the difference of two independent means, each of so many draws that Student's t is normal
    half = 1.96 * np.sqrt(2) * error
    assert (row.low, row.high) == pytest.approx((gain - half, gain + half), abs=0.01 + 0.003 * half)
    assert "one seed" in row.remark


# ---- the page -----------------------------------------------------------------------------------------------
def test_the_page_has_both_optimizers_and_says_where_adam_is_not_known(miniature, tmp_path):
    pytest.importorskip("matplotlib")
    text = reproduce("beyond", out=tmp_path, engine="numpy", n_workers=1, progress=False)
    assert text.startswith("6 of 6 default fits are there")
    assert "Not known" not in text
    assert all(f"\n{claim}: " in text for claim in OPTIMIZER_CLAIMS)
    assert (tmp_path / "beyond_quick_elbo.png").read_bytes().startswith(b"\x89PNG")
    assert reproduce("beyond", out=tmp_path, from_csv=True) == text
    table = pd.read_csv(tmp_path / "beyond_quick_fits.csv")
    known = (table.optimizer == fits.DEFAULT) | (table.problem == "rpoisson-small")
    table[known].to_csv(tmp_path / "beyond_quick_fits.csv", index=False)
    cut = reproduce("beyond", out=tmp_path, from_csv=True)
    assert "Not known after 50,000 updates of Adam: irt-small (simulated)" in cut


def test_the_summary_counts_what_each_optimizer_takes():
    table = made("rpoisson-small").assign(stepsize=1e-3, n_updates=100, n_gradients=800, cpu_seconds=2.0)
    table = table.assign(adam_update_ms=1.0, n_gradients=np.where(table.optimizer == "adam", 400_000, 800))
    rows = page.summary(table).set_index(["family", "optimizer"])
    ours, theirs = rows.loc[("structured", fits.DEFAULT)], rows.loc[("structured", "adam")]
    assert (ours.ELBO, ours.gradients, ours.CPU, ours.stepsize) == ("-100.0", "800", "2.0", "")
    assert (theirs.ELBO, theirs.gradients, theirs.CPU, theirs.stepsize) == ("-140.0", "400,000", "50", "0.001")


def test_the_page_of_results_has_the_committed_figures():
    root = Path(__file__).parent.parent
    rows = page.summary(pd.read_csv(root / "experiments" / "results" / "beyond_laptop_fits.csv"))
    shown = (root / "docs" / "results.md").read_text()
    keys = ["problem", "family"]
    both = rows[rows.optimizer == fits.DEFAULT].merge(rows[rows.optimizer == "adam"], "left", keys, suffixes=("", "_a"))
    assert len(both) == 18
    for row in both.to_dict("records"):
        adams = (
            f"{row['ELBO_a']} ({row['s.e._a']}), {row['CPU_a']} s" if row["seeds_a"] == row["seeds_a"] else "not known"
        )
        ours = f"{row['ELBO']} ({row['s.e.']}), {row['CPU']} s"
        line = f"| {row['problem']} | {row['family']} | {adams} | {ours} | {row['updates']} | {row['gradients']} |"
        assert line in shown
