"""Mistakes and mishaps that a hostile but honest user found, one test each."""

import copy
import os
import pickle
import signal
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pyturingvi as tv
from pyturingvi.data.rwm5yr import load_rwm5yr
from pyturingvi.errors import DataError, InputError, OutputError

QUIET = {"progress": False, "elbo_samples": 16}
LAYOUT = tv.Layout(2, 3, 1)


def gaussian_at(mean: float) -> tv.models.LogDensity:
    return tv.models.LogDensity(lambda x: (-0.5 * ((x - mean) ** 2).sum(axis=1), mean - x), LAYOUT)


def test_a_checkpoint_of_another_function_with_the_same_layout_is_refused(tmp_path: Path) -> None:
    tv.fit(gaussian_at(0.0), n_iterations=20, checkpoint=tmp_path / "run.npz", **QUIET)
    with pytest.raises(InputError, match="belongs to another fit"):
        tv.fit(gaussian_at(3.0), n_iterations=20, checkpoint=tmp_path / "run.npz", **QUIET)


def test_a_fit_whose_last_elbo_is_not_finite_is_not_called_complete() -> None:
    model = tv.models.RobustPoisson([[0.5], [-0.5], [1.0]], [3, 0, 2])
    fit = tv.fit(model, optimizer=tv.Adam(1e10), n_iterations=1, **QUIET)
    assert fit.status == "diverged"
    assert np.isfinite(fit.params).all()


def test_a_function_that_turns_to_nan_ends_the_run() -> None:
    calls = 0

    def fn(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal calls
        calls += 1
        value = -0.5 * (x**2).sum(axis=1)
        return (value if calls < 30 else value * np.nan), -x

    fit = tv.fit(tv.models.LogDensity(fn, LAYOUT), n_iterations=500, elbo_every=50, **QUIET)
    assert fit.status == "diverged"
    assert fit.n_updates == 50
    assert "ELBO" in fit.message


def test_a_named_pipe_is_refused_as_a_target(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    fit = tv.fit(gaussian_at(0.0), n_iterations=2, **QUIET)
    with pytest.raises(OutputError, match="device or a pipe"):
        fit.save(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_link_is_followed_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "real.npz").write_bytes(b"")
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    tv.fit(gaussian_at(0.0), n_iterations=2, **QUIET).save(tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert tv.load_fit(tmp_path / "real.npz").n_updates == 2


@pytest.mark.parametrize("path", ["~nosuchuser/x.npz", "\ud800.npz"])
def test_a_path_that_cannot_be_is_refused_in_words(path: str) -> None:
    with pytest.raises(InputError, match="checkpoint"):
        tv.fit(gaussian_at(0.0), n_iterations=2, checkpoint=path, **QUIET)


def test_a_full_disk_gives_an_output_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    fit = tv.fit(gaussian_at(0.0), n_iterations=2, **QUIET)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        fit.save(tmp_path / "fit.npz")
    assert not list(tmp_path.iterdir())


def test_a_relative_checkpoint_stays_where_it_was_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    move = lambda iteration, elbo: os.chdir(tmp_path / "there")  # noqa: E731
    tv.fit(gaussian_at(0.0), n_iterations=4, elbo_every=2, checkpoint="run.npz", callback=move, **QUIET)
    assert (tmp_path / "here" / "run.npz").is_file()


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        send = lambda iteration, elbo: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
        fit = tv.fit(gaussian_at(0.0), n_iterations=20, elbo_every=5, callback=send, **QUIET)
    finally:
        signal.signal(signal.SIGINT, before)
    assert fit.status == "completed"


def test_a_fit_can_be_pickled_and_copied() -> None:
    fit = tv.fit(tv.models.IsotropicGaussian(3), n_iterations=5, **QUIET)
    for other in (pickle.loads(pickle.dumps(fit)), copy.deepcopy(fit)):
        np.testing.assert_array_equal(other.sample(4)["y"], fit.sample(4)["y"])
        assert other.spec == fit.spec


@pytest.mark.parametrize("seed", [-1, 1.5, "x"])
def test_a_bad_seed_of_a_loader_is_named(seed: object) -> None:
    with pytest.raises(InputError, match="seed"):
        tv.load_problem("rpoisson-small", seed=seed)
    with pytest.raises(InputError, match="seed"):
        tv.load_problem("rpoisson-small", seed=seed, simulated=True)


def test_a_fraction_in_a_users_own_rwm5yr_is_refused_not_truncated(tmp_path: Path) -> None:
    X, y = load_rwm5yr(20, standardize=False)
    table = pd.concat([X, y], axis=1).astype({"docvis": float})
    table.loc[3, "docvis"] = 1.5
    table.to_csv(tmp_path / "rwm5yr.csv", index=False)
    with pytest.raises(DataError, match=r"1\.5"):
        load_rwm5yr(data_dir=tmp_path)


def test_no_summary_row_is_lost_to_odd_column_names() -> None:
    returns = pd.DataFrame(np.random.default_rng(0).standard_normal((6, 4)), columns=["a", "b,c", "a,b", "c"])
    fit = tv.fit(tv.models.StochasticVolatility(returns), "mean-field", n_iterations=2, **QUIET)
    assert len(fit.summary(n=50)) == 3 * 4 + 2 * 16


def test_the_summary_of_a_users_function_labels_its_globals_once() -> None:
    fit = tv.fit(gaussian_at(0.0), n_iterations=2, **QUIET)
    assert list(fit.summary(n=10).index) == ["z[0]", "z[1]"]


@pytest.mark.parametrize("value", ["no", 2, None])
def test_standardized_must_be_true_or_false(value: object) -> None:
    with pytest.raises(InputError, match="standardized"):
        tv.Structured(standardized=value)  # type: ignore[arg-type]


def test_a_numpy_bool_for_standardized_can_be_saved(tmp_path: Path) -> None:
    family = tv.Structured(standardized=np.False_)  # type: ignore[arg-type]
    path = tv.fit(gaussian_at(0.0), family, n_iterations=2, **QUIET).save(tmp_path / "fit.npz")
    assert tv.load_fit(path).family == tv.Structured(standardized=False)


@pytest.mark.parametrize(
    "points",
    [[[1, 2], [3]], [["a"] * 5], np.zeros((1, 5), dtype=complex)],
    ids=["ragged", "text", "complex"],
)
def test_points_that_are_no_real_numbers_are_refused(points: object) -> None:
    with pytest.raises(InputError, match="real numbers"):
        gaussian_at(0.0).log_density(points)


@pytest.mark.parametrize("values", [5, None, np.zeros(3), {"z": [[1j, 0]], "y": [[[0.0]] * 3]}])
def test_unconstrain_of_no_dictionary_of_reals_is_refused(values: object) -> None:
    with pytest.raises(InputError):
        gaussian_at(0.0).unconstrain(values)  # type: ignore[arg-type]


def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "notes.npz").write_text("hello")
    with pytest.raises(OutputError, match=r"no \.npz archive"):
        tv.load_fit(tmp_path / "notes.npz")
    with pytest.raises(OutputError, match="directory"):
        tv.load_fit(tmp_path)
    with pytest.raises(OutputError, match="too long"):
        tv.load_fit("x" * 5000)


def test_series_of_counts_and_offsets_in_another_order_are_refused() -> None:
    X = np.array([[0.5], [-0.5], [1.0]])
    y, offset = pd.Series([3, 0, 2], index=[0, 1, 2]), pd.Series([0.1, 0.2, 0.3], index=[2, 1, 0])
    with pytest.raises(InputError, match="y and offset"):
        tv.models.RobustPoisson(X, y, offset)


def test_a_count_beyond_exact_whole_numbers_is_refused() -> None:
    with pytest.raises(InputError, match="1e\\+300"):
        tv.models.RobustPoisson([[0.5], [-0.5]], [1e300, 0])
