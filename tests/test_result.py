"""Fit: draws, summary, density, file, ArviZ and plot."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from model_checks import BUNDLED
from scipy import stats
from targets import Counting, GaussianTarget, dense_location_scale, fit_at, quick_fit, random_flat

import pyturingvi as tv
from pyturingvi.errors import InputError, OutputError
from pyturingvi.layout import Layout
from pyturingvi.support.archive import read_archive, write_archive

BASES: list[Any] = ["gaussian", "laplace", ("student_t", 7.0)]


@pytest.fixture
def poisson_fit(poisson: tv.models.RobustPoisson) -> tv.Fit:
    return quick_fit(poisson, n_iterations=250)


# ---- draws and density -------------------------------------------------------------------------------------
def test_draws_have_the_models_names_and_shapes(bundled_model: tv.models.Model) -> None:
    fit = quick_fit(bundled_model, n_iterations=5)
    draws = fit.sample(7)
    assert list(draws) == list(bundled_model.constrain(np.zeros(bundled_model.dim)))
    for name, value in draws.items():
        shape = tuple(len(bundled_model.coords[axis]) for axis in bundled_model.dims[name])
        assert value.shape == (7, *shape), name
    np.testing.assert_array_equal(fit.sample(7)[name], value)
    assert np.all(fit.sample(7, seed=1)[name] != value)


@pytest.mark.parametrize("base", BASES, ids=str)
@pytest.mark.parametrize("standardized", [True, False])
def test_draws_have_the_location_and_covariance_of_the_fit(
    gaussian_target: GaussianTarget, base: Any, standardized: bool
) -> None:
    family = tv.Structured(base=base, standardized=standardized)
    fit = fit_at(gaussian_target.model, family, random_flat(family, gaussian_target.layout))
    location, scale = dense_location_scale(family, gaussian_target.layout, fit.params)
    np.testing.assert_allclose(fit.location, location, atol=1e-14)
    np.testing.assert_allclose(fit.scale.toarray(), scale, atol=1e-14)
    n = 100_000
    u = np.linalg.solve(scale, (fit.sample_unconstrained(n) - location).T)
    assert np.abs(u.mean(axis=1)).max() < 5 / np.sqrt(n)
    second = u @ u.T / n
    kurtosis = {"gaussian": 3.0, "laplace": 6.0}.get(str(base), 5.0)
    assert np.abs(np.diag(second) - 1).max() < 5 * np.sqrt((kurtosis - 1) / n)
    off = second[~np.eye(len(second), dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(n)  # Var(u_i u_j) = 1


@pytest.mark.parametrize("family", [tv.MeanField(), tv.Structured(standardized=False), tv.FullRank()], ids=str)
def test_log_q_is_the_density_of_the_draws(gaussian_target: GaussianTarget, family: Any) -> None:
    fit = fit_at(gaussian_target.model, family, random_flat(family, gaussian_target.layout))
    location, scale = dense_location_scale(family, gaussian_target.layout, fit.params)
    points = fit.sample_unconstrained(6)
    expected = stats.multivariate_normal(location, scale @ scale.T).logpdf(points)
    np.testing.assert_allclose(fit.log_q(points), expected, rtol=1e-8)
    np.testing.assert_allclose(fit.log_q(points[0]), expected[:1], rtol=1e-8)
    np.testing.assert_allclose(fit.log_q(points.tolist()), expected, rtol=1e-8)
    with pytest.raises(InputError, match="points must have shape"):
        fit.log_q(points[:, 1:])


def test_summary_has_the_quantiles_of_the_fitted_distribution(poisson: tv.models.RobustPoisson) -> None:
    """For a Gaussian base: normal for alpha and beta, log-normal for the scales, in closed form."""
    family = tv.FullRank()
    flat = random_flat(family, poisson.layout)
    flat *= 0.3
    flat[: poisson.dim] += 2.0  # away from 0, so that an error in the location is many standard errors
    fit = fit_at(poisson, family, flat)
    n = 40_000
    table = fit.summary(n)
    assert list(table.index) == ["s_alpha", "s_beta", "s_eta", "alpha", "beta[x1]", "beta[x2]"]
    assert list(table.columns) == ["mean", "sd", "q5", "median", "q95"]
    sd = np.sqrt(np.diag((fit.scale @ fit.scale.T).toarray()))
    for k, name in enumerate(table.index):
        normal = stats.norm(fit.location[k], sd[k])
        exact: Any = stats.lognorm(sd[k], scale=np.exp(fit.location[k])) if k < 3 else normal
        row = table.loc[name]
        assert abs(row["mean"] - exact.mean()) < 5 * exact.std() / np.sqrt(n)
        fourth = exact.stats("k") + 2  # Var((x - mean)^2) / sd^4
        assert abs(row["sd"] ** 2 - exact.var()) < 5 * exact.var() * np.sqrt(fourth / n)
        for column, q in (("q5", 0.05), ("median", 0.5), ("q95", 0.95)):
            # a sample quantile has standard error sqrt(q (1 - q)/n)/density
            error = np.sqrt(q * (1 - q) / n) / exact.pdf(exact.ppf(q))
            assert abs(row[column] - exact.ppf(q)) < 5 * error, (name, column)
    again = fit.summary(n)
    np.testing.assert_array_equal(table, again)


@pytest.mark.parametrize("layout", [Layout(0, 3, 1), Layout(3, 0, 0), Layout(2, 3, 1)], ids=str)
def test_models_without_globals_or_without_locals_can_be_summarized(layout: Layout) -> None:
    for family in ("mean-field", "structured", "markov", "full-rank", tv.Structured(standardized=False)):
        fit = quick_fit(Counting(layout).model, family, n_iterations=3)
        assert list(fit.summary(100).index) == [f"z[{k}]" for k in range(layout.n_global)]
        assert list(fit.sample(2)) == ["z"] * (layout.n_global > 0) + ["y"] * (layout.n_local > 0)


def test_no_summary_row_is_lost_to_odd_column_names() -> None:
    returns = pd.DataFrame(np.random.default_rng(0).standard_normal((6, 4)), columns=["a", "b,c", "a,b", "c"])
    fit = quick_fit(tv.models.StochasticVolatility(returns), "mean-field", n_iterations=2)
    assert len(fit.summary(n=50)) == 3 * 4 + 2 * 16


def test_numbers_and_seeds_of_draws_are_checked(poisson_fit: tv.Fit) -> None:
    draws = (poisson_fit.sample, poisson_fit.sample_unconstrained, poisson_fit.to_arviz)
    n: Any
    for n in (0, -1, 1.5, True, "10"):
        for method in draws:
            with pytest.raises(InputError, match="n must be a whole number of at least 1"):
                method(n)
    for n in (0, 1, 1.5, True):  # one draw has no standard deviation
        with pytest.raises(InputError, match="n must be a whole number of at least 2"):
            poisson_fit.summary(n)
    assert poisson_fit.sample(1)["beta"].shape == (1, 2)
    seed: Any
    for seed in (-1, 0.5, "x", True):
        for method in (*draws[:2], poisson_fit.summary):
            with pytest.raises(InputError, match="seed must be a whole number of at least 0"):
                method(10, seed=seed)


def test_repr_tells_what_was_fitted_and_how_it_ended(poisson_fit: tv.Fit) -> None:
    text = repr(poisson_fit)
    # d = 6 + 30; p = d + 6*7/2 + 30*(6 + 1)
    for words in ("rpoisson", "structured", "p=267", "numpy engine", "completed after 250 updates", "ELBO -"):
        assert words in text
    assert poisson_fit.params.shape == (267,)
    assert poisson_fit.engine == "numpy"
    assert poisson_fit.family == tv.Structured()
    assert poisson_fit.seconds > 0


# ---- file --------------------------------------------------------------------------------------------------
def assert_same_fit(found: tv.Fit, fit: tv.Fit) -> None:
    np.testing.assert_array_equal(found.params, fit.params)
    assert found.spec == fit.spec
    assert found.elbo.equals(fit.elbo)
    for name in ("status", "message", "n_updates", "seconds", "versions", "engine"):
        assert getattr(found, name) == getattr(fit, name), name
    assert found.model.layout == fit.model.layout
    assert found.model.label == fit.model.label
    assert repr(found) == repr(fit)
    for name, value in fit.sample(5).items():
        np.testing.assert_array_equal(found.sample(5)[name], value)
    assert found.summary(100).equals(fit.summary(100))


_FORMS = ["mean-field", "full-rank", tv.Structured("laplace", standardized=np.False_), tv.Markov("laplace")]


@pytest.mark.parametrize(  # each family of one model, each model with one family
    ("name", "family"),
    [*(("poisson", family) for family in _FORMS), *zip(("isotropic", "irt", "volatility"), _FORMS[1:], strict=True)],
    ids=str,
)
def test_a_saved_fit_comes_back_as_it_was(name: str, family: Any, tmp_path: Path) -> None:
    bundled_model = copy.deepcopy(BUNDLED[name])
    bundled_model.label = "of the test (simulated)"
    averaging = tv.PolynomialAveraging(2)
    fit = quick_fit(bundled_model, family, n_iterations=30, elbo_every=10, averaging=averaging)
    path = fit.save(tmp_path / "fit.npz")
    assert path == tmp_path / "fit.npz"
    found = tv.load_fit(path)
    for other in (found, pickle.loads(pickle.dumps(fit)), copy.deepcopy(fit)):
        assert_same_fit(other, fit)
    assert "of the test (simulated)" in repr(found)
    assert found.family == fit.family
    points = fit.sample_unconstrained(3)
    np.testing.assert_array_equal(found.model.log_density(points), bundled_model.log_density(points))
    np.testing.assert_array_equal(found.log_q(points), fit.log_q(points))
    # the model inside is whole: the fit can go on from it
    more = quick_fit(found.model, family, n_iterations=5, init=found)
    same = quick_fit(bundled_model, family, n_iterations=5, init=fit)
    np.testing.assert_array_equal(more.params, same.params)


def test_a_file_holds_arrays_and_json_and_no_pickle(poisson_fit: tv.Fit, tmp_path: Path) -> None:
    path = poisson_fit.save(tmp_path / "fit.npz")
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    assert json.loads(arrays["header"].tobytes())["kind"] == "fit"
    assert all(array.dtype.kind in "fiub" for array in arrays.values())
    np.testing.assert_array_equal(arrays["params"], poisson_fit.params)
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_warned_of_is_read_back(poisson: tv.models.RobustPoisson, tmp_path: Path) -> None:
    fit = quick_fit(poisson, n_iterations=3)
    assert tv.load_fit(fit.save(tmp_path / "silent.npz")).warnings == []
    fit.warnings, fit.advice = ["The run had not converged."], ["Refine it."]
    found = tv.load_fit(fit.save(tmp_path / "fit.npz"))
    assert (found.warnings, found.advice) == (fit.warnings, fit.advice)
    assert "had not converged" in repr(found)


def test_a_fit_of_a_users_density_keeps_its_names_but_not_its_function(tmp_path: Path) -> None:
    model = tv.models.LogDensity(Counting(), Layout(2, 3, 1), names=["left", "right"])
    fit = quick_fit(model, n_iterations=20)
    found = tv.load_fit(fit.save(tmp_path / "fit.npz"))
    assert_same_fit(found, fit)
    assert list(found.summary(10).index) == ["z[left]", "z[right]"]
    points = found.sample_unconstrained(2)
    np.testing.assert_array_equal(found.log_q(points), fit.log_q(points))
    for use in (lambda: found.model.log_density(points), lambda: quick_fit(found.model, n_iterations=1)):
        with pytest.raises(InputError, match="does not hold its function"):
            use()


def test_saving_replaces_a_file_whole_and_refuses_other_places(
    poisson_fit: tv.Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "fit.npz", tmp_path / "link.npz"
    path.write_text("old")
    link.symlink_to(path)
    poisson_fit.save(str(link))
    assert link.is_symlink()
    assert_same_fit(tv.load_fit(path), poisson_fit)
    for place, words in (  # the others are those of a checkpoint
        (tmp_path, "is a directory"),
        (tmp_path / "none" / "fit.npz", "does not exist"),
    ):
        with pytest.raises(OutputError, match=f"save: .*{words}"):
            poisson_fit.save(place)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        poisson_fit.save(path)
    assert path.read_bytes() == before
    assert set(tmp_path.iterdir()) == {path, link}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"load_fit: there is no file '.*x\.npz'"),
        ({"a": np.zeros(3)}, r"load_fit: .*x\.npz' is damaged or not .* \(it has no header; it holds 'a'\)"),
        ({"header": np.array([{"a": 1}], dtype=object)}, "damaged"),
        (np.zeros(3), "damaged"),
        (b"", "damaged"),
        (b"hello", r"no \.npz archive"),
    ],
)
def test_files_that_are_no_fit_are_refused(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "x.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content, allow_pickle=True)
    elif content is not None:
        with open(path, "wb") as stream:
            np.save(stream, content)
    with pytest.raises(OutputError, match=words):
        tv.load_fit(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="it is a directory"):
        tv.load_fit(tmp_path)
    with pytest.raises(OutputError, match="too long"):
        tv.load_fit("x" * 5000)
    with pytest.raises(InputError, match="load_fit must be a path"):
        tv.load_fit(None)  # type: ignore[arg-type]


def test_every_cut_of_a_file_is_refused(poisson_fit: tv.Fit, tmp_path: Path) -> None:
    path = poisson_fit.save(tmp_path / "fit.npz")
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(OutputError, match="damaged"):
            tv.load_fit(path)


def test_a_flipped_byte_is_refused_or_harmless(poisson_fit: tv.Fit, tmp_path: Path) -> None:
    """Checksums guard the arrays; a flip elsewhere is an OutputError or changes none of the numbers."""
    path = poisson_fit.save(tmp_path / "fit.npz")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    # the zip directory at the end, and all of the file, at random
    places = np.r_[np.arange(len(whole) - 700, len(whole)), rng.integers(0, len(whole), 500)]
    refused = 0
    for place, bit in zip(places, rng.integers(0, 8, places.size), strict=True):
        content = bytearray(whole)
        content[place] ^= 1 << bit
        path.write_bytes(content)
        try:
            found = tv.load_fit(path)
        except OutputError:
            refused += 1
        else:
            np.testing.assert_array_equal(found.params, poisson_fit.params)
            assert found.spec == poisson_fit.spec
    assert refused > 500


@pytest.mark.parametrize(
    "part", ["params", "elbo", "model.y", "spec", "n_updates", "label", "model", "format", "length of params"]
)
def test_a_file_that_lacks_a_part_or_has_another_is_refused(poisson_fit: tv.Fit, tmp_path: Path, part: str) -> None:
    path = poisson_fit.save(tmp_path / "fit.npz")
    header, arrays = read_archive(path, "fit", "test")
    if part == "format":
        header["format"] = 99
    elif part == "length of params":
        arrays["params"] = arrays["params"][:-1]
    else:
        del (arrays if part in arrays else header)[part]
    write_archive(path, header, arrays)
    words = "later version of pyturingvi" if part == "format" else r"load_fit: .*fit\.npz' is damaged"
    with pytest.raises(OutputError, match=words):
        tv.load_fit(path)


# ---- other tools -------------------------------------------------------------------------------------------
def test_arviz_gets_the_draws_with_labelled_coordinates(bundled_model: tv.models.Model) -> None:
    fit = quick_fit(bundled_model, n_iterations=5)
    posterior = fit.to_arviz(6)["posterior"]
    draws = fit.sample(6)
    assert set(posterior.data_vars) == set(draws)
    for name, value in draws.items():
        found = posterior[name]
        assert found.dims[:2] == ("chain", "draw")
        np.testing.assert_array_equal(found.values[0], value)
        for axis in bundled_model.dims[name]:
            assert found.coords[axis].values.tolist() == list(bundled_model.coords[axis])
    assert posterior.attrs["inference_library"] == "pyturingvi"


def test_the_elbo_plot_shows_the_trace(poisson: tv.models.RobustPoisson) -> None:
    fit = quick_fit(poisson, n_iterations=300, elbo_every=10)
    axes = fit.plot_elbo()
    line = axes.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), fit.elbo["iteration"])
    np.testing.assert_array_equal(line.get_ydata(), fit.elbo["elbo"])
    assert "rpoisson" in axes.get_title()
    given = plt.subplots()[1]
    assert fit.plot_elbo(given) is given
    assert len(given.get_lines()) == 1
    plt.close("all")


@pytest.mark.filterwarnings("ignore::pyturingvi.errors.ConvergenceWarning")
def test_traces_of_one_row_and_of_infinite_rows_can_be_drawn(isotropic: tv.models.Model) -> None:
    diverged = quick_fit(isotropic, "mean-field", tv.SGD(1e5), n_iterations=500, elbo_every=1)
    assert diverged.status == "diverged"
    for fit in (quick_fit(isotropic, n_iterations=2), diverged):
        fit.plot_elbo().figure.canvas.draw()
    plt.close("all")


def test_without_arviz_the_error_says_how_to_get_it(poisson_fit: tv.Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(tv.errors.DataError, match=r"pip install 'pyturingvi\[arviz\]'"):
        poisson_fit.to_arviz()


def test_a_summary_of_some_variables_has_their_rows_alone(bundled_model: tv.models.Model) -> None:
    fit = quick_fit(bundled_model, n_iterations=5)
    whole = fit.summary(500, local=True)
    for name in bundled_model.dims:
        found = fit.summary(variables=name, n=500)
        assert list(found.index) == bundled_model.scalar_labels(name)
        pd.testing.assert_frame_equal(found, whole.loc[found.index])
    first, last = bundled_model.scalar_labels(name)[0], next(iter(bundled_model.dims))
    assert fit.summary(first).equals(fit.summary([first]))
    assert list(fit.summary([first, last]).index) == [first, *bundled_model.scalar_labels(last)]


def test_unknown_names_in_a_summary_are_refused(poisson_fit: tv.Fit) -> None:
    with pytest.raises(InputError, match=r"Unknown variable 'bet'. Did you mean 'beta'\?"):
        poisson_fit.summary(["bet"])
    with pytest.raises(InputError, match=r"Unknown label 'beta\[x3\]'"):
        poisson_fit.summary(["beta[x3]"])
    with pytest.raises(InputError, match="eta has 30, from 'eta\\[0\\]'"):
        poisson_fit.summary(["eta[77]"])
    with pytest.raises(InputError, match="names once"):
        poisson_fit.summary(["beta"], variables=["alpha"])
