"""Fit: draws, summary, density, file, ArviZ and plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from targets import GaussianTarget, dense_location_scale, random_flat

import pyturingvi as tv
from pyturingvi.errors import InputError, OutputError
from pyturingvi.layout import Layout
from pyturingvi.support.archive import read_archive, write_archive

QUIET: dict[str, Any] = {"progress": False, "elbo_samples": 64}
STILL = tv.SGD(1e-300)  # one update with it leaves the start as it is
BASES: list[Any] = ["gaussian", "laplace", ("student_t", 7.0)]


def fit_at(model: tv.models.Model, family: Any, flat: np.ndarray) -> tv.Fit:
    """A Fit with these flat parameters."""
    return tv.fit(model, family, STILL, n_iterations=1, init=flat, **QUIET)


@pytest.fixture
def poisson_fit(poisson: tv.models.RobustPoisson) -> tv.Fit:
    return tv.fit(poisson, n_iterations=250, **QUIET)


# ---- draws and density -------------------------------------------------------------------------------------
def test_draws_have_the_models_names_and_shapes(bundled_model: tv.models.Model) -> None:
    fit = tv.fit(bundled_model, n_iterations=5, **QUIET)
    draws = fit.sample(7)
    assert list(draws) == list(bundled_model.constrain(np.zeros(bundled_model.dim)))
    for name, value in draws.items():
        shape = tuple(len(bundled_model.coords[axis]) for axis in bundled_model.dims[name])
        assert value.shape == (7, *shape), name
    np.testing.assert_array_equal(fit.sample(7)[name], value)
    assert np.all(fit.sample(7, seed=1)[name] != value)


def test_poisson_draws_are_named_as_in_the_model(poisson_fit: tv.Fit) -> None:
    shapes = {name: value.shape for name, value in poisson_fit.sample(4).items()}
    assert shapes == {
        "s_alpha": (4,), "s_beta": (4,), "s_eta": (4,), "alpha": (4,), "beta": (4, 2), "eta": (4, 30),
    }  # fmt: skip


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


@pytest.mark.parametrize("layout", [Layout(0, 3, 1), Layout(3, 0, 0)], ids=str)
def test_models_without_globals_or_without_locals_can_be_summarized(layout: Layout) -> None:
    model = tv.models.LogDensity(lambda x: (-0.5 * (x**2).sum(axis=1), -x), layout)
    for family in ("mean-field", "structured", "full-rank", tv.Structured(standardized=False)):
        fit = tv.fit(model, family, n_iterations=3, **QUIET)
        assert len(fit.summary(100)) == layout.n_global
        assert set(fit.sample(2)) == ({"z"} if layout.n_global else {"y"})


def test_labels_of_the_summary_come_from_the_data() -> None:
    import pandas as pd

    x = pd.DataFrame({"age": [0.1, -1.0, 2.0], "income": [1.0, 0.0, 0.5]})
    fit = tv.fit(tv.models.RobustPoisson(x, pd.Series([0, 2, 1])), n_iterations=2, **QUIET)
    assert list(fit.summary(50).index[-2:]) == ["beta[age]", "beta[income]"]


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "10"], ids=repr)
def test_a_number_of_draws_below_1_is_refused(poisson_fit: tv.Fit, n: Any) -> None:
    for method in (poisson_fit.sample, poisson_fit.sample_unconstrained, poisson_fit.to_arviz):
        with pytest.raises(InputError, match="n must be a whole number of at least 1"):
            method(n)
    with pytest.raises(InputError, match="n must be a whole number of at least 2"):
        poisson_fit.summary(n)


def test_one_draw_has_no_standard_deviation(poisson_fit: tv.Fit) -> None:
    with pytest.raises(InputError, match="n must be a whole number of at least 2"):
        poisson_fit.summary(1)
    assert poisson_fit.sample(1)["beta"].shape == (1, 2)


@pytest.mark.parametrize("seed", [-1, 0.5, "x", True], ids=repr)
def test_seeds_of_draws_are_checked(poisson_fit: tv.Fit, seed: Any) -> None:
    for method in (poisson_fit.sample, poisson_fit.summary):
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


@pytest.mark.parametrize("family", ["mean-field", "full-rank", tv.Structured("laplace")], ids=str)
def test_a_saved_fit_comes_back_as_it_was(bundled_model: tv.models.Model, family: Any, tmp_path: Path) -> None:
    fit = tv.fit(bundled_model, family, n_iterations=30, elbo_every=10, averaging=tv.PolynomialAveraging(2), **QUIET)
    path = fit.save(tmp_path / "fit.npz")
    assert path == tmp_path / "fit.npz"
    found = tv.load_fit(path)
    assert_same_fit(found, fit)
    points = fit.sample_unconstrained(3)
    np.testing.assert_array_equal(found.model.log_density(points), bundled_model.log_density(points))
    np.testing.assert_array_equal(found.log_q(points), fit.log_q(points))
    # the model inside is whole: the fit can go on from it
    more = tv.fit(found.model, family, n_iterations=5, init=found, **QUIET)
    same = tv.fit(bundled_model, family, n_iterations=5, init=fit, **QUIET)
    np.testing.assert_array_equal(more.params, same.params)


def test_a_file_holds_arrays_and_json_and_no_pickle(poisson_fit: tv.Fit, tmp_path: Path) -> None:
    path = poisson_fit.save(tmp_path / "fit.npz")
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    header = json.loads(arrays["header"].tobytes())
    assert header["kind"] == "fit"
    assert all(array.dtype.kind in "fiub" for array in arrays.values())
    np.testing.assert_array_equal(arrays["params"], poisson_fit.params)
    assert [p.name for p in tmp_path.iterdir()] == ["fit.npz"]


def test_a_fit_of_a_users_density_keeps_its_names_but_not_its_function(tmp_path: Path) -> None:
    model = tv.models.LogDensity(lambda x: (-0.5 * (x**2).sum(axis=1), -x), Layout(2, 3, 1), names=["left", "right"])
    fit = tv.fit(model, n_iterations=20, **QUIET)
    found = tv.load_fit(fit.save(tmp_path / "fit.npz"))
    assert_same_fit(found, fit)
    assert list(found.summary(10).index) == ["z[left]", "z[right]"]
    points = found.sample_unconstrained(2)
    np.testing.assert_array_equal(found.log_q(points), fit.log_q(points))
    with pytest.raises(InputError, match="does not hold its function"):
        found.model.log_density(points)
    with pytest.raises(InputError, match="does not hold its function"):
        tv.fit(found.model, n_iterations=1, **QUIET)


def test_a_problems_label_is_kept(poisson: tv.models.RobustPoisson, tmp_path: Path) -> None:
    poisson.label = "irt-small (simulated)"
    fit = tv.fit(poisson, n_iterations=2, **QUIET)
    assert "irt-small (simulated)" in repr(tv.load_fit(fit.save(tmp_path / "fit.npz")))


def test_saving_replaces_a_file_whole_and_refuses_other_places(poisson_fit: tv.Fit, tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"
    path.write_text("old")
    assert_same_fit(tv.load_fit(poisson_fit.save(str(path))), poisson_fit)
    for place, words in (
        (tmp_path, "is a directory"),
        (tmp_path / "none" / "fit.npz", "does not exist"),
        (path / "fit.npz", "is a file, not a directory"),
    ):
        with pytest.raises(OutputError, match=f"save: .*{words}"):
            poisson_fit.save(place)


def test_files_that_are_no_fit_are_refused(poisson_fit: tv.Fit, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"load_fit: there is no file '.*none\.npz'"):
        tv.load_fit(tmp_path / "none.npz")
    with pytest.raises(OutputError, match="it is a directory"):
        tv.load_fit(tmp_path)
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(OutputError, match=r"load_fit: .*x\.npz' is damaged"):
        tv.load_fit(path)
    with open(path, "wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(OutputError, match="damaged"):
        tv.load_fit(path)
    path.write_bytes(b"")
    with pytest.raises(OutputError, match="damaged"):
        tv.load_fit(path)
    np.savez(path, header=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(OutputError, match="damaged"):
        tv.load_fit(path)
    with pytest.raises(InputError, match="load_fit must be a path"):
        tv.load_fit(None)  # type: ignore[arg-type]


def test_a_file_of_a_later_version_says_so(poisson_fit: tv.Fit, tmp_path: Path) -> None:
    path = poisson_fit.save(tmp_path / "fit.npz")
    header, arrays = read_archive(path, "fit", "test")
    write_archive(path, {**header, "format": 99}, arrays)
    with pytest.raises(OutputError, match="later version of pyturingvi"):
        tv.load_fit(path)


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


@pytest.mark.parametrize("missing", ["params", "elbo", "model.y", "spec", "n_updates", "label", "model"])
def test_a_file_that_lacks_a_part_is_damaged(poisson_fit: tv.Fit, tmp_path: Path, missing: str) -> None:
    path = poisson_fit.save(tmp_path / "fit.npz")
    header, arrays = read_archive(path, "fit", "test")
    part: dict[str, Any] = arrays if missing in arrays else header
    assert missing in part
    del part[missing]
    write_archive(path, header, arrays)
    with pytest.raises(OutputError, match=r"load_fit: .*fit\.npz' is damaged"):
        tv.load_fit(path)


def test_parameters_of_another_length_are_refused(poisson_fit: tv.Fit, tmp_path: Path) -> None:
    path = poisson_fit.save(tmp_path / "fit.npz")
    header, arrays = read_archive(path, "fit", "test")
    write_archive(path, header, {**arrays, "params": arrays["params"][:-1]})
    with pytest.raises(OutputError, match="damaged"):
        tv.load_fit(path)


# ---- other tools -------------------------------------------------------------------------------------------
def test_arviz_gets_the_draws_with_labelled_coordinates(bundled_model: tv.models.Model) -> None:
    fit = tv.fit(bundled_model, n_iterations=5, **QUIET)
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
    import matplotlib.pyplot as plt

    fit = tv.fit(poisson, n_iterations=300, elbo_every=10, **QUIET)
    axes = fit.plot_elbo()
    line = axes.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), fit.elbo["iteration"])
    np.testing.assert_array_equal(line.get_ydata(), fit.elbo["elbo"])
    assert "rpoisson" in axes.get_title()
    given = plt.subplots()[1]
    assert fit.plot_elbo(given) is given
    assert len(given.get_lines()) == 1
    plt.close("all")


def test_traces_of_one_row_and_of_infinite_rows_can_be_drawn() -> None:
    import matplotlib.pyplot as plt

    model = tv.models.IsotropicGaussian(2)
    one = tv.fit(model, n_iterations=2, **QUIET)
    one.plot_elbo().figure.canvas.draw()
    diverged = tv.fit(model, "mean-field", tv.SGD(1e5), n_iterations=500, elbo_every=1, **QUIET)
    assert diverged.status == "diverged"
    diverged.plot_elbo().figure.canvas.draw()
    plt.close("all")


def test_without_arviz_the_error_says_how_to_get_it(poisson_fit: tv.Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    with pytest.raises(tv.errors.DataError, match=r"pip install 'pyturingvi\[arviz\]'"):
        poisson_fit.to_arviz()
