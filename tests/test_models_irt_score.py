"""Scores of new students beside numerical integration, and abilities under their labels in a summary."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from response_tables import make_sparse_table, make_table
from scipy import integrate, special

import pyturingvi as tv
from pyturingvi.errors import InputError
from pyturingvi.models.irt_answers import Answers
from pyturingvi.models.irt_scoring import abilities


def integrated(codes, gamma, centre):
    """Mean and sd of each student's ability, by adaptive quadrature around the highest point of a fine grid."""
    found = []
    for row in codes:
        seen = row >= 0
        signs, g, c = 2.0 * row[seen] - 1.0, gamma[seen], centre[seen]

        def log_posterior(a, signs=signs, g=g, c=c):
            return special.log_expit(signs * (np.multiply.outer(a, g) + c)).sum(axis=-1) - 0.5 * np.square(a)

        grid = np.linspace(-15, 15, 6001)
        heights = log_posterior(grid)
        top, where = heights.max(), grid[heights.argmax()]
        places = where + np.array([-3, -1, -0.3, -0.1, 0, 0.1, 0.3, 1, 3])
        moments = [
            integrate.quad(
                lambda a, k=k, top=top, f=log_posterior: np.exp(f(a) - top) * a**k,
                where - 9, where + 9, points=places, epsabs=1e-13, epsrel=1e-12, limit=400,
            )[0]
            for k in range(3)
        ]  # fmt: skip
        mean = moments[1] / moments[0]
        found.append((mean, np.sqrt(moments[2] / moments[0] - mean**2)))
    return np.transpose(found)


@pytest.fixture(scope="module")
def fit():
    table = pd.DataFrame(make_table(120, 8, seed=3, missing=0.1), columns=list("abcdefgh"))
    table.index = [f"s{j}" for j in range(120)]
    return tv.fit(tv.models.ItemResponse(table), "mean-field", tv.Adam(0.02), n_iterations=300, progress=False)


# ---- the integral -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steepness", [0.3, 1.0, 4.0, 20.0])
def test_moments_are_those_of_adaptive_quadrature(steepness):
    rng = np.random.default_rng(5)
    gamma, centre = steepness * np.exp(0.5 * rng.normal(size=12)), steepness * rng.normal(size=12)
    codes = (rng.random((12, 12)) < 0.6).astype(np.int8)
    codes[rng.random(codes.shape) < 0.3] = -1
    codes[0], codes[1], codes[2] = 1, 0, -1  # all right, all wrong, one answer alone
    codes[2, 4] = 1
    mean, sd = abilities(Answers.of_codes(codes), gamma[None], centre[None])
    expected_mean, expected_sd = integrated(codes, gamma, centre)
    np.testing.assert_allclose(mean, expected_mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(sd, expected_sd, rtol=1e-7)


def test_many_answers_make_a_narrow_posterior_and_no_trouble():
    rng = np.random.default_rng(6)
    gamma, centre = np.exp(0.3 * rng.normal(size=900)), rng.normal(size=900)
    codes = (rng.random((4, 900)) < 0.5).astype(np.int8)
    codes[3] = 1
    mean, sd = abilities(Answers.of_codes(codes), gamma[None], centre[None])
    expected_mean, expected_sd = integrated(codes, gamma, centre)
    assert sd[:3].max() < 0.1
    np.testing.assert_allclose(mean, expected_mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(sd, expected_sd, rtol=1e-7)


def test_draws_of_the_items_add_their_spread():
    rng = np.random.default_rng(7)
    gamma, centre = np.exp(rng.normal(size=(5, 9)) / 2), rng.normal(size=(5, 9))
    codes = (rng.random((6, 9)) < 0.5).astype(np.int8)
    alone = np.array([integrated(codes, gamma[s], centre[s]) for s in range(5)])
    mean, sd = abilities(Answers.of_codes(codes), gamma, centre)
    np.testing.assert_allclose(mean, alone[:, 0].mean(axis=0), atol=1e-8)
    variance = (alone[:, 1] ** 2).mean(axis=0) + np.cov(alone[:, 0], rowvar=False).diagonal()
    np.testing.assert_allclose(sd, np.sqrt(variance), rtol=1e-7)


# ---- score --------------------------------------------------------------------------------------------------
def test_scores_are_under_the_students_names_with_items_where_the_fit_has_them(fit):
    codes = make_table(4, 8, seed=9, missing=0.4)
    new = pd.DataFrame(codes, columns=list("abcdefgh"), index=["ann", "bob", "eve", "tim"])
    scores = fit.model.score(fit, new)
    assert list(scores.columns) == ["mean", "sd", "n_answers"]
    assert scores.index.name == "student"
    assert list(scores.index) == list(new.index)
    mu, log_gamma, beta = fit.location[0], fit.location[3:11], fit.location[11:19]
    mean, sd = integrated(np.where(np.isnan(codes), -1, codes), np.exp(log_gamma), beta + mu)
    np.testing.assert_allclose(scores["mean"], mean, atol=1e-8)
    np.testing.assert_allclose(scores["sd"], sd, rtol=1e-7)
    np.testing.assert_array_equal(scores["n_answers"], np.isfinite(codes).sum(axis=1))
    assert fit.model.score(fit, new[list("hgfedcba")]).equals(fit.model.score(fit, new))
    pd.testing.assert_frame_equal(fit.model.score(fit, new.loc[["eve"]]), scores.loc[["eve"]])
    np.testing.assert_allclose(fit.model.score(fit, codes)["mean"], scores["mean"], rtol=1e-13)
    asked = new.columns[new.loc["bob"].notna()]  # items that were not given may be left out
    pd.testing.assert_frame_equal(fit.model.score(fit, new.loc[["bob"], asked]), scores.loc[["bob"]])


def test_long_and_wide_tables_of_new_students_score_alike(fit):
    new = pd.DataFrame(make_table(30, 8, seed=9, missing=0.4), columns=list("abcdefgh"))
    rows = (
        new.stack().dropna().rename("right").rename_axis(["who", "what"]).reset_index().sample(frac=1.0, random_state=1)
    )
    scores = fit.model.score(fit, rows, student="who", item="what", response="right")
    pd.testing.assert_frame_equal(scores.loc[new.index], fit.model.score(fit, new), rtol=1e-12)


def test_scores_are_averaged_over_draws_of_the_items_from_the_fit(fit):
    codes = make_table(5, 8, seed=10)
    drawn = fit.model.score(fit, codes, n_draws=20, seed=4)
    assert drawn.equals(fit.model.score(fit, codes, n_draws=20, seed=4))
    assert not drawn.equals(fit.model.score(fit, codes, n_draws=20, seed=5))
    items = fit.sample(20, 4, local=False)
    draws = zip(items["gamma"], items["beta"], items["mu_beta"], strict=True)
    alone = np.array([integrated(codes, gamma, beta + mu) for gamma, beta, mu in draws])
    np.testing.assert_allclose(drawn["mean"], alone[:, 0].mean(axis=0), atol=1e-8)
    variance = (alone[:, 1] ** 2).mean(axis=0) + alone[:, 0].var(axis=0, ddof=1)
    np.testing.assert_allclose(drawn["sd"], np.sqrt(variance), rtol=1e-7)


def test_what_cannot_be_scored_is_refused(fit):
    model, new = fit.model, pd.DataFrame([[1, 0]], columns=["a", "b"], index=["ann"])
    with pytest.raises(InputError, match="item 'aa'"):
        model.score(fit, new.rename(columns={"a": "aa"}))
    with pytest.raises(InputError, match="student 'ann' has no response at all"):
        model.score(fit, new.astype(float) * np.nan)
    with pytest.raises(InputError, match=r"a column for each of the 8 items.*got 2"):
        model.score(fit, [[1, 0]])
    with pytest.raises(InputError, match=r"2.* at student 'ann', item 'b' is not 0, 1 or NaN"):
        model.score(fit, new.replace(0, 2))
    with pytest.raises(InputError, match="needs student=, item= and response="):
        model.score(fit, new, student="who")
    long = pd.DataFrame({"who": ["ann", "ann"], "what": ["a", "a"], "right": [1, 0]})
    columns = {"student": "who", "item": "what", "response": "right"}
    with pytest.raises(InputError, match="score: student 'ann' answers item 'a' more than once"):
        model.score(fit, long, **columns)
    with pytest.raises(InputError, match="score: column 'who' is missing in row 1"):
        model.score(fit, long.assign(who=["ann", None]), **columns)
    with pytest.raises(InputError, match="n_draws must be 0"):
        model.score(fit, new, n_draws=1)
    with pytest.raises(InputError, match="must be a fit of this model or of one with the same items, got 'fit'"):
        model.score("fit", new)
    with pytest.raises(InputError, match="one with the same items, got a fit of <Item"):
        tv.models.ItemResponse(make_table(5, 8)).score(fit, new)


# ---- summary ------------------------------------------------------------------------------------------------
def test_a_summary_has_each_students_ability_under_its_label(fit):
    short, whole = fit.summary(seed=2), fit.summary(seed=2, local=True)
    assert whole.iloc[: len(short)].equals(short)
    assert list(whole.index[len(short) :]) == [f"alpha[s{j}]" for j in range(120)]
    locals_ = whole.iloc[len(short) :]
    n, sd = 10_000, fit.scale.diagonal()[19:]  # mean-field: independent normals
    assert (np.abs(locals_["mean"] - fit.location[19:]) < 5 * sd / np.sqrt(n)).all()
    np.testing.assert_allclose(locals_["sd"], sd, rtol=5 / np.sqrt(2 * n))
    np.testing.assert_allclose(locals_["q95"], fit.location[19:] + 1.6449 * sd, atol=5 * sd.max() * 2.1 / np.sqrt(n))


def test_a_summary_of_many_locals_draws_fewer_points(fit, monkeypatch):
    monkeypatch.setattr("pyturingvi.outputs.summary._LOCAL_NUMBERS", 10)
    drawn = []
    sample = type(fit).sample_unconstrained
    monkeypatch.setattr(
        type(fit), "sample_unconstrained", lambda s, n, seed=0: (drawn.append(n), sample(s, n, seed))[1]
    )
    fit.summary(local=True)
    fit.summary(500, local=True)
    assert drawn == [1_000, 500]


def test_sparse_answers_give_abilities_under_the_labels_of_the_long_table():
    table = make_sparse_table(60, 300, 0.05)
    j, k = np.nonzero(~np.isnan(table))
    long = pd.DataFrame({"who": [f"p{i}" for i in j], "what": k, "right": table[j, k]})
    model = tv.models.ItemResponse.from_long(long, student="who", item="what", response="right")
    fit = tv.fit(model, "mean-field", tv.Adam(0.05), n_iterations=100, progress=False)
    summary = fit.summary(500, local=True)
    assert set(summary.index) >= {f"alpha[p{i}]" for i in range(60)}
    scores = model.score(fit, long, student="who", item="what", response="right")
    # the very students of the fit, scored with its items: close to what the fit itself says of them
    ability = summary["mean"][[f"alpha[{name}]" for name in scores.index]]
    assert np.corrcoef(ability, scores["mean"])[0, 1] > 0.9


def test_an_unknown_item_is_refused_without_naming_thousands() -> None:
    model = tv.models.ItemResponse((np.random.default_rng(0).uniform(size=(3, 2000)) < 0.5).astype(float))
    fit = tv.fit(model, "mean-field", tv.Adam(1e-3), n_iterations=1, elbo_samples=2, progress=False, engine="numpy")
    with pytest.raises(InputError, match=r"Unknown item 'item1O'.* and 1,950 more\.$") as caught:
        model.score(fit, pd.DataFrame({"item1O": [1.0], "item2": [0.0]}))
    assert len(str(caught.value)) < 1000
