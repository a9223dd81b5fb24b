"""Every argument of fit() that cannot be used is refused by name, before any work."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from targets import Counting, peak_memory, quick_fit

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError, MemoryLimitError, PyTuringVIError
from pyturingvi.families import get_family
from pyturingvi.layout import Layout
from pyturingvi.optimize.memory import available_memory, fit_bytes
from pyturingvi.settings import Settings

LAYOUT = Layout(2, 3, 1)  # d = 5; structured: p = 5 + 3 + 3 (2 + 1) = 17
NAN, INF = float("nan"), float("inf")


class Plain(tv.families.Family):
    """A family of one's own without natural coordinates: N(m, I)."""

    def __repr__(self) -> str:  # the tests' names hold it
        return "Plain()"

    def n_params(self, layout: tv.Layout) -> int:
        return layout.dim

    def bind(self, layout: tv.Layout, dtype: Any = np.float64, xp: Any = np) -> Any:
        return BoundPlain(self, layout, dtype, xp)


class BoundPlain(tv.families.BoundFamily):
    def transform(self, work: Any, noise: Any, out: Any) -> None:
        out[...] = noise + work

    def pullback(self, work: Any, noise: Any, points: Any, gradient: Any, out: Any) -> None:
        out[...] = gradient.sum(axis=0)

    def entropy(self, work: Any) -> float:
        return float(self.layout.dim * self.base.entropy)

    def subtract_entropy_gradient(self, work: Any, out: Any) -> bool:
        return True

    def log_q(self, work: Any, points: Any) -> Any:
        return self.base.log_density(points - work).sum(axis=1)

    def initial_flat(self, location: Any, scale: float) -> Any:
        return np.asarray(location, dtype=float)


def refuse(words: str, error: type[Exception] = InputError, **arguments: Any) -> None:
    """fit(), by Adam if nothing else is said, with these arguments raises `error` with `words`.

    It never calls the density.
    """
    counting = Counting()
    usual = {"optimizer": tv.Adam(1e-3), "n_iterations": 3, "n_samples": 2, "progress": False}
    with pytest.raises(error, match=words) as caught:
        tv.fit(counting.model, **{**usual, **arguments})
    assert isinstance(caught.value, PyTuringVIError)
    assert counting.calls == 0


@pytest.mark.parametrize("optimizer", [tv.Adam(1e-3), None], ids=["Adam", "default"])
def test_the_arguments_used_here_are_good_otherwise(optimizer: Any) -> None:
    counting = Counting()
    fit = tv.fit(counting.model, optimizer=optimizer, n_iterations=3, n_samples=2, progress=False)
    assert (fit.status, fit.params.size) == ("completed", 17)
    assert counting.calls > 3


# ---- counts, names and objects -----------------------------------------------------------------------------
@pytest.mark.parametrize("optimizer", [tv.Adam(1e-3), None], ids=["Adam", "default"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", NAN, INF, [3], 2 + 0j, np.True_], ids=repr)
def test_counts_that_are_no_whole_number_above_0_are_refused(value: Any, optimizer: Any) -> None:
    for name in ["n_iterations", "n_samples", "elbo_every", "elbo_samples", "n_threads"]:
        refuse(f"{name} must be a whole number of at least 1, got", optimizer=optimizer, **{name: value})


@pytest.mark.parametrize("optimizer", [tv.Adam(1e-3), None], ids=["Adam", "default"])
def test_the_draws_of_an_estimate_must_be_told(optimizer: Any) -> None:
    refuse("elbo_samples must be a whole number of at least 1, got None", optimizer=optimizer, elbo_samples=None)


def test_counts_left_out_are_the_papers_beside_a_stepsize_and_natural_gradients_own() -> None:
    """Section 4.2 of the paper: 50,000 updates of M = 8 samples."""
    names = ["n_iterations", "n_samples", "elbo_every"]
    for changes in ({"optimizer": tv.SGD(1e-3)}, {"stepsize": 1e-3}, {"optimizer": "adam", "stepsize": 1e-3}):
        settings = Settings.of(**changes)
        assert [getattr(settings, name) for name in names] == [50_000, 8, 100]
        assert settings == Settings.of(**changes, **dict.fromkeys(names))
    by_default = Settings.of()
    assert by_default.optimizer == tv.NaturalGradient()
    assert [getattr(by_default, name) for name in names] == [None] * 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_samples": 3}, "n_samples: NaturalGradient draws in pairs and needs an even number, got 3"),
        (
            {"averaging": tv.PolynomialAveraging()},
            r"averaging: NaturalGradient .* optimizer=tv\.Adam\(1e-3\) beside it",
        ),
        ({"stop_within": 1.0}, r"stop_within: NaturalGradient .* optimizer=tv\.Adam\(1e-3\) beside it"),
        ({"n_iterations": None, "noise": np.zeros((3, 2, 5))}, "noise: give n_iterations and n_samples beside it"),
        ({"n_samples": None, "noise": np.zeros((3, 2, 5))}, "noise: give n_iterations and n_samples beside it"),
        ({"family": Plain()}, r"optimizer: the Plain family has no natural-gradient steps; .* optimizer=tv\.Adam"),
    ],
    ids=str,
)
@pytest.mark.parametrize("optimizer", [None, tv.NaturalGradient(0.1)], ids=["default", "named"])
def test_what_natural_gradients_do_not_take_is_refused_by_name(
    arguments: dict[str, Any], words: str, optimizer: Any
) -> None:
    refuse(words, optimizer=optimizer, **arguments)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(({"rate": x}, r"rate must lie in \(0, 1\], got") for x in (0, -0.1, 1.5, NAN, "1", True)),
        *(({"momentum": x}, r"momentum must lie in \[0, 1\), got") for x in (-0.1, 1, NAN, "0", None, True)),
    ],
    ids=str,
)
def test_natural_gradients_take_a_rate_and_a_momentum_within_bounds(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"NaturalGradient: {words}"):
        tv.NaturalGradient(**given)


def test_natural_gradients_have_no_stepsize() -> None:
    for optimizer in (tv.NaturalGradient(), "natural-gradient"):
        with pytest.raises(InputError, match=r"takes (none|no stepsize)"):
            Settings.of(optimizer=optimizer, stepsize=1e-3)
    assert Settings.of(optimizer="natural-gradient") == Settings.of()


def test_whole_numbers_of_other_types_count_as_integers() -> None:
    plain = quick_fit(Counting().model, n_iterations=4, n_samples=2, seed=5)
    other = quick_fit(Counting().model, n_iterations=4.0, n_samples=np.int32(2), seed=np.uint8(5))
    assert other.spec == plain.spec
    np.testing.assert_array_equal(other.params, plain.params)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"family": "meanfield"}, "Unknown family 'meanfield'. Did you mean 'mean-field'"),
        ({"family": "Structured"}, "Did you mean 'structured'"),
        ({"family": "zzz"}, "Unknown family 'zzz'. Known: mean-field, structured, markov, full-rank.$"),
        ({"family": 0}, "Unknown family 0"),
        ({"family": tv.MeanField}, r"write family=tv\.MeanField\(\)"),
        ({"dtype": "float46"}, "Unknown dtype 'float46'. Did you mean 'float64'"),
        ({"dtype": float}, "Unknown dtype"),
        ({"dtype": np.float32}, "Unknown dtype .*Did you mean 'float32'"),
        ({"dtype": np.dtype("float32")}, "Unknown dtype .*Did you mean 'float32'"),
        ({"engine": "numpi"}, "Unknown engine 'numpi'. Did you mean 'numpy'"),
        ({"engine": None}, "Unknown engine None"),
        ({"device": "gpu"}, "Unknown device 'gpu'.*Known: cpu, cuda"),
        ({"optimizer": "adam"}, r"optimizer='adam' needs a stepsize: tv\.Adam"),
        ({"optimizer": 1e-3}, r"optimizer must be tv\.NaturalGradient.*tv\.Adam.*got 0\.001"),
        ({"optimizer": tv.SGD}, r"write optimizer=tv\.SGD\(1e-3\)"),
        ({"averaging": 8}, r"averaging must be tv\.PolynomialAveraging.*got 8"),
        ({"averaging": tv.PolynomialAveraging}, "averaging must be"),
        ({"callback": 5}, "callback must be a function"),
        *(
            ({name: 10**30}, f"{name} must be at most")
            for name in ("n_iterations", "n_samples", "elbo_every", "elbo_samples")
        ),
        *(({"seed": x}, "seed must be a whole number of at least 0, got") for x in (-1, 0.5, True, "0", None, NAN)),
        ({"seed": 10**4400}, r"seed must be at most 2\*\*1024 - 1"),
        ({"seed": -(10**4400)}, "seed must .* too long to show"),
        *(({"max_memory": x}, "max_memory must be a number of bytes above 0") for x in (0, NAN, "1GB", True)),
        *(
            ({"init_scale": x}, "init_scale must be a (finite )?number above 0, got")
            for x in (0, -0.1, NAN, INF, "0.1", None, True)
        ),
        ({"init_scale": [0.1]}, r"init_scale must be a number or have shape \(5,\), got \(1,\)"),
        ({"init_scale": [1, 1, 0, 1, 1]}, "init_scale must be a number above 0, or one for each variable"),
        *(({"stop_within": x}, "stop_within must be a finite number above 0") for x in (0, -1.0, NAN, True, "1")),
        # noise and the start
        ({"noise": np.zeros((3, 2, 4))}, r"noise must have shape .* = \(3, 2, 5\), got \(3, 2, 4\)"),
        ({"noise": np.zeros((4, 2, 5))}, r"got \(4, 2, 5\)"),
        ({"noise": np.zeros((2, 5))}, r"got \(2, 5\)"),
        ({"noise": 0.0}, r"got \(\)"),
        ({"noise": np.full((3, 2, 5), NAN)}, "noise holds 30 NaN or infinite values"),
        ({"noise": np.where(np.arange(30).reshape(3, 2, 5) == 7, INF, 0.0)}, "noise holds 1 NaN"),
        ({"noise": "noise"}, "noise must be real numbers"),
        ({"noise": np.zeros((3, 2, 5), dtype=complex)}, "noise must be real numbers"),
        ({"noise": [[1.0], [1.0, 2.0]]}, "noise must be real numbers"),
        ({"init_location": np.zeros(4)}, r"init_location must be a number or have shape \(5,\), got \(4,\)"),
        ({"init_location": np.zeros((1, 5))}, r"got \(1, 5\)"),
        ({"init_location": NAN}, "init_location holds 1 NaN or infinite values"),
        ({"init_location": [0, 0, INF, 0, NAN]}, "init_location holds 2 NaN"),
        *(({"init_location": x}, "init_location must be real numbers") for x in ("here", 1j)),
        ({"init_location": None}, "init_location"),
        ({"init": np.ones(16)}, r"init must be .* of shape \(17,\) for the structured family, got shape \(16,\)"),
        ({"init": np.ones((1, 17))}, r"got shape \(1, 17\)"),
        ({"init": 0.0}, r"got shape \(\)"),
        ({"init": np.full(17, NAN)}, "init holds 17 NaN"),
        ({"init": "fit.npz"}, r"init=tv.load_fit\('fit.npz'\) reads it"),
        ({"init": np.zeros(17)}, "init: a diagonal entry of the scale matrix is 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "".join(value),
)
def test_what_cannot_be_used_is_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    refuse(words, **arguments)
    if not {"optimizer", "averaging", "stop_within"} & set(arguments):
        refuse(words, optimizer=None, **arguments)


@pytest.mark.parametrize("model", [None, "rpoisson-small", tv.models.IsotropicGaussian, lambda x: x])
def test_a_model_must_be_a_model(model: Any) -> None:
    with pytest.raises(InputError, match=r"model must be one of tv\.models or come from tv\.load_problem"):
        tv.fit(model, progress=False)


def test_stop_within_needs_a_model_that_knows_its_optimum(poisson: tv.models.Model) -> None:
    with pytest.raises(InputError, match="stop_within: rpoisson does not know its optimum"):
        quick_fit(poisson, stop_within=1.0)


def test_the_julia_engine_cannot_run_a_python_function() -> None:
    refuse("engine='julia' cannot run .*LogDensity.*use engine='numpy'", EngineError, engine="julia")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_gpu_needs_cupy() -> None:
    refuse(r"device='cuda' needs CuPy.*pip install 'pyturingvi\[cuda12\]'", EngineError, device="cuda")


def test_a_fit_of_another_layout_is_refused() -> None:
    other = quick_fit(Counting(Layout(1, 4, 1)).model, n_iterations=1)
    refuse(r"init: the given fit has Layout\(n_global=1.*this model Layout\(n_global=2", init=other)


@pytest.mark.parametrize("where", ["value", "gradient"])
def test_a_density_that_is_not_finite_at_the_start_is_refused(where: str) -> None:
    """It is finite near 0, where runs start unless told otherwise, and NaN where this one would."""

    def fn(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = -0.5 * (points**2).sum(axis=1), -points
        if where == "value":
            value[points[:, 0] > 1] = NAN
        else:
            slope[points[:, 0] > 1, 2] = INF
        return value, slope

    model = tv.models.LogDensity(fn, LAYOUT)
    found = "is nan" if where == "value" else "gradient has 1 non-finite entries"
    with pytest.raises(InputError, match=f"log_density: the log density .*{found}.* choose another init_location"):
        tv.fit(model, init_location=2.0, progress=False)
    assert tv.fit(model, "mean-field", n_iterations=1, progress=False).status == "completed"


# ---- memory ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("family", "optimizer", "averaging", "dtype", "n_vectors", "n_params", "itemsize"),
    [
        ("structured", tv.Adam(1e-3), None, "float64", 4, 17, 8),
        ("mean-field", tv.SGD(1e-3), None, "float64", 2, 10, 8),
        ("markov", tv.Adam(1e-3), None, "float64", 4, 19, 8),
        ("full-rank", tv.Adam(1e-3), tv.PolynomialAveraging(), "float32", 5, 20, 4),
    ],
    ids=["structured", "mean-field", "markov", "full-rank"],
)
def test_memory_is_counted_to_the_byte(
    family: str, optimizer: Any, averaging: Any, dtype: str, n_vectors: int, n_params: int, itemsize: int
) -> None:
    """Parameters, gradient, the optimizer's moments and the average; four batches; start and result in float64.

    And three float64 numbers for each draw of an ELBO estimate.
    """
    needed = itemsize * (n_vectors * n_params + 4 * 2 * 5) + 8 * 2 * n_params + 3 * 8 * 1024
    arguments = {"family": family, "optimizer": optimizer, "averaging": averaging, "dtype": dtype}
    words = f"{n_params} parameters and needs {needed:,} bytes .*{needed - 1:,} bytes .*allowed by max_memory"
    refuse(words, MemoryLimitError, **arguments, max_memory=needed - 1)
    arguments |= {"n_samples": 2, "elbo_samples": 1024, "max_memory": needed}
    assert quick_fit(Counting().model, n_iterations=1, **arguments).params.size == n_params


def test_the_advice_where_a_border_is_too_large_is_a_smaller_family() -> None:
    model = Counting(Layout(200, 300, 1)).model
    with pytest.raises(MemoryLimitError, match="family='mean-field' has 1,000 parameters"):
        quick_fit(model, "structured", max_memory=10**6)
    with pytest.raises(MemoryLimitError, match=r"dtype='float32' halves it\.$"):
        quick_fit(model, "mean-field", max_memory=10**4, elbo_samples=8)


def test_memory_without_a_limit_can_be_asked_for() -> None:
    for limit in (float("inf"), np.int64(10**9)):
        assert quick_fit(Counting().model, n_iterations=1, max_memory=limit).n_updates == 1


@pytest.mark.parametrize(
    ("family", "optimizer", "checkpoint", "averaging"),
    [
        ("structured", tv.Adam(1e-3), False, None),
        ("structured", tv.Adam(1e-3), True, tv.PolynomialAveraging()),
        pytest.param("structured", tv.SGD(1e-3), True, None, marks=pytest.mark.slow),
        ("markov", tv.Adam(1e-3), False, None),
        pytest.param("full-rank", tv.SGD(1e-3), False, tv.PolynomialAveraging(), marks=pytest.mark.slow),
        pytest.param("full-rank", tv.Adam(1e-3), True, None, marks=pytest.mark.slow),
        ("full-rank", tv.SGD(1e-3), True, tv.PolynomialAveraging()),
    ],
)
def test_a_fit_takes_the_memory_that_was_counted(
    tmp_path: Path, family: str, optimizer: Any, checkpoint: bool, averaging: Any
) -> None:
    """Measured at p = 1.1 million, beside fixed buffers.

    These are 4 MiB of noise, 1 MiB of a panel, slices and points; for a checkpoint also the pieces of up to 16 MiB in
    which NumPy writes an array.
    """
    model = tv.models.IsotropicGaussian(500, n_global=5 if family == "full-rank" else 700)
    chosen, few = get_family(family), {"elbo_samples": 16}
    p, options = chosen.n_params(model.layout), {"averaging": averaging is not None, "checkpoint": checkpoint}
    needed = fit_bytes(chosen, model.layout, 8, optimizer.n_slots, 8, **options, **few)
    arguments: dict[str, Any] = {"averaging": averaging, "checkpoint": tmp_path / "run.npz" if checkpoint else None}
    quick_fit(model, family, n_iterations=1, n_threads=1, **few)  # imports
    peak = peak_memory(lambda: quick_fit(model, family, optimizer, n_iterations=3, n_threads=1, **few, **arguments))
    assert p > 1_000_000
    assert needed - 8 * p < peak < needed + (22 if checkpoint else 6) * 2**20


def test_an_elbo_estimate_takes_the_memory_that_was_counted() -> None:
    """Beside the pieces of 2 MiB in which the points are drawn."""
    model, n = tv.models.IsotropicGaussian(2), 2_000_000
    quick_fit(model, n_iterations=1, n_threads=1)  # imports
    peak = peak_memory(lambda: quick_fit(model, n_iterations=1, n_threads=1, elbo_samples=n))
    needed = fit_bytes(get_family("structured"), model.layout, 8, 2, 8, elbo_samples=n)
    assert needed - 8 * n < peak < needed + 10 * 2**20


def test_an_elbo_estimate_that_does_not_fit_is_refused() -> None:
    refuse(r"needs 24,\d{3},\d{3},\d{3},\d{3} bytes .*fewer will do", MemoryLimitError, elbo_samples=10**12)


def test_full_rank_at_the_largest_size_is_refused_before_anything_is_allocated() -> None:
    """irt-large of table 1: p = 566,817,614, so Adam needs 6 p float64 numbers 32 points of d more, and the ELBO."""
    counting = Counting(Layout(193, 33475, 1))
    needed = 8 * (6 * 566_817_614 + 4 * 8 * 33_668 + 3 * 1024)

    def refused() -> None:
        words = f"d=33668.* 566,817,614 parameters and needs {needed:,} bytes(.|\n)*family='structured'"
        with pytest.raises(MemoryLimitError, match=words):
            quick_fit(counting.model, "full-rank", max_memory=16e9, elbo_samples=1024)

    assert peak_memory(refused) < 2**20
    assert counting.calls == 0


def test_what_the_machine_has_free_is_the_default_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyturingvi.optimize.memory.available_memory", lambda device: 100)
    refuse("100 bytes .* are free", MemoryLimitError)


def test_free_memory_is_what_the_control_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total
    files = {"/sys/fs/cgroup/memory.max": "5000000\n", "/sys/fs/cgroup/memory.current": "2000000\n"}

    def read_text(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert available_memory() == 3_000_000
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert available_memory() > 3_000_000
    files["/sys/fs/cgroup/memory.max"] = "1000000\n"
    assert available_memory() == 0


# ---- layouts and errors ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((-1, 2, 1), "n_global must be a whole number of at least 0, got -1"),
        ((1, 2.5, 1), "n_local must be a whole number of at least 0, got 2.5"),
        ((1, 2, "x"), "local_dim must be a whole number, got 'x'"),
        ((1, 2, 0), "both be positive or both be 0"),
        ((0, 0, 0), "at least one variable"),
    ],
    ids=str,
)
def test_layouts_that_make_no_vector_are_refused(counts: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tv.Layout(*counts)


def test_layout_slices_part_the_flat_vector() -> None:
    layout = tv.Layout(2, 3, 2)
    flat = np.arange(layout.dim)
    blocks = [flat[layout.block_slice(n)] for n in range(3)]
    np.testing.assert_array_equal(np.concatenate([flat[: layout.n_global], *blocks]), flat)
    assert (layout.dim, layout.n_local_total) == (8, 6)
    for n in (-1, 3):
        with pytest.raises(InputError, match=f"no local block {n}; there are 3"):
            layout.block_slice(n)


def test_every_error_has_the_packages_base_and_a_builtin_one() -> None:
    builtins = {"InputError": ValueError, "EngineError": RuntimeError, "MemoryLimitError": MemoryError}
    for name, builtin in {**builtins, "OutputError": OSError, "DataError": Exception}.items():
        error = getattr(tv.errors, name)
        assert issubclass(error, tv.PyTuringVIError)
        assert issubclass(error, builtin)
