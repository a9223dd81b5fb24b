"""Every argument of fit() that cannot be used is refused by name, before any work."""

from __future__ import annotations

import importlib.util
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import pyturingvi as tv
from pyturingvi.errors import EngineError, InputError, MemoryLimitError, PyTuringVIError, unknown_name
from pyturingvi.families import get_family
from pyturingvi.layout import Layout
from pyturingvi.optimize.memory import available_memory, fit_bytes

LAYOUT = Layout(2, 3, 1)  # d = 5; structured: p = 5 + 3 + 3 (2 + 1) = 17
NAN, INF = float("nan"), float("inf")


class Counting:
    """A standard normal log density that counts its calls, those of its construction apart."""

    def __init__(self, layout: Layout = LAYOUT) -> None:
        self.calls = 0
        self.model = tv.models.LogDensity(self, layout)
        self.calls = 0

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.calls += 1
        return -0.5 * (points**2).sum(axis=1), -points


def refuse(words: str, error: type[Exception] = InputError, **arguments: Any) -> None:
    """fit() with these arguments raises `error` with `words` and never calls the density."""
    counting = Counting()
    with pytest.raises(error, match=words) as caught:
        tv.fit(counting.model, **{"n_iterations": 3, "n_samples": 2, "progress": False, **arguments})
    assert isinstance(caught.value, PyTuringVIError)
    assert counting.calls == 0


def test_the_arguments_used_here_are_good_otherwise() -> None:
    counting = Counting()
    fit = tv.fit(counting.model, n_iterations=3, n_samples=2, progress=False)
    assert (fit.status, fit.params.size) == ("completed", 17)
    assert counting.calls > 3


# ---- counts ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["n_iterations", "n_samples", "elbo_every", "elbo_samples", "n_threads"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", NAN, INF, [3], 2 + 0j, np.True_], ids=repr)
def test_counts_that_are_no_whole_number_above_0_are_refused(name: str, value: Any) -> None:
    refuse(f"{name} must be a whole number of at least 1, got", **{name: value})


@pytest.mark.parametrize("name", ["n_iterations", "n_samples", "elbo_every", "elbo_samples"])
def test_counts_cannot_be_none(name: str) -> None:
    refuse(f"{name} must be a whole number of at least 1, got None", **{name: None})


@pytest.mark.parametrize("value", [-1, 0.5, True, "0", None, NAN], ids=repr)
def test_seeds_that_are_no_whole_number_are_refused(value: Any) -> None:
    refuse("seed must be a whole number of at least 0, got", seed=value)


def test_seeds_that_python_does_not_write_out_are_refused() -> None:
    refuse(r"seed must be at most 2\*\*1024 - 1", seed=10**4400)
    refuse("too long to show", seed=-(10**4400))


def test_whole_numbers_of_other_types_count_as_integers() -> None:
    model = Counting().model
    plain = tv.fit(model, n_iterations=4, n_samples=2, seed=5, progress=False)
    other = tv.fit(model, n_iterations=4.0, n_samples=np.int32(2), seed=np.uint8(5), progress=False)  # type: ignore[arg-type]
    assert other.spec == plain.spec
    np.testing.assert_array_equal(other.params, plain.params)


# ---- names and objects -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"family": "meanfield"}, "Unknown family 'meanfield'. Did you mean 'mean-field'"),
        ({"family": "Structured"}, "Did you mean 'structured'"),
        ({"family": None}, "Unknown family None"),
        ({"family": tv.MeanField}, r"write family=tv\.MeanField\(\)"),
        ({"dtype": "float46"}, "Unknown dtype 'float46'. Did you mean 'float64'"),
        ({"dtype": "float16"}, "Unknown dtype 'float16'"),
        ({"dtype": float}, "Unknown dtype"),
        ({"dtype": np.float32}, "Unknown dtype .*Did you mean 'float32'"),
        ({"dtype": np.dtype("float32")}, "Unknown dtype .*Did you mean 'float32'"),
        ({"engine": "numpi"}, "Unknown engine 'numpi'. Did you mean 'numpy'"),
        ({"engine": None}, "Unknown engine None"),
        ({"device": "gpu"}, "Unknown device 'gpu'.*Known: cpu, cuda"),
        ({"device": 0}, "Unknown device 0"),
        ({"optimizer": "adam"}, r"optimizer='adam' needs a stepsize: tv\.Adam"),
        ({"optimizer": 1e-3}, r"optimizer must be tv\.Adam.*got 0\.001"),
        ({"optimizer": tv.SGD}, r"write optimizer=tv\.SGD\(1e-3\)"),
        ({"averaging": 8}, r"averaging must be tv\.PolynomialAveraging.*got 8"),
        ({"averaging": tv.PolynomialAveraging}, "averaging must be"),
        ({"callback": 5}, "callback must be a function"),
        ({"max_memory": 0}, "max_memory must be a number of bytes above 0"),
        ({"max_memory": NAN}, "max_memory must be a number of bytes above 0"),
        ({"max_memory": "1GB"}, "max_memory must be a number of bytes above 0"),
        ({"max_memory": True}, "max_memory must be a number of bytes above 0"),
    ],
    ids=str,
)
def test_unknown_names_and_objects_are_refused(arguments: dict[str, Any], words: str) -> None:
    refuse(words, **arguments)


@pytest.mark.parametrize("model", [None, "rpoisson-small", tv.models.IsotropicGaussian, lambda x: x])
def test_a_model_must_be_a_model(model: Any) -> None:
    with pytest.raises(InputError, match=r"model must be one of tv\.models or come from tv\.load_problem"):
        tv.fit(model, progress=False)


def test_the_julia_engine_cannot_run_a_python_function() -> None:
    refuse("engine='julia' cannot run .*LogDensity.*use engine='numpy'", EngineError, engine="julia")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_gpu_needs_cupy() -> None:
    refuse(r"device='cuda' needs CuPy.*pip install 'pyturingvi\[cuda12\]'", EngineError, device="cuda")


# ---- noise and the start -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (np.zeros((3, 2, 4)), r"noise must have shape .* = \(3, 2, 5\), got \(3, 2, 4\)"),
        (np.zeros((4, 2, 5)), r"got \(4, 2, 5\)"),
        (np.zeros((2, 5)), r"got \(2, 5\)"),
        (0.0, r"got \(\)"),
        (np.full((3, 2, 5), NAN), "noise holds 30 NaN or infinite values"),
        (np.where(np.arange(30).reshape(3, 2, 5) == 7, INF, 0.0), "noise holds 1 NaN"),
        ("noise", "noise must be real numbers"),
        (np.zeros((3, 2, 5), dtype=complex), "noise must be real numbers"),
        ([[1.0], [1.0, 2.0]], "noise must be real numbers"),
    ],
    ids=["d", "T", "ndim", "scalar", "nan", "inf", "str", "complex", "ragged"],
)
def test_noise_of_another_shape_or_kind_is_refused(noise: Any, words: str) -> None:
    refuse(words, noise=noise)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (np.zeros(4), r"init_location must be a number or have shape \(5,\), got \(4,\)"),
        (np.zeros((1, 5)), r"got \(1, 5\)"),
        (NAN, "init_location holds 1 NaN or infinite values"),
        ([0, 0, INF, 0, NAN], "init_location holds 2 NaN"),
        ("here", "init_location must be real numbers"),
        (None, "init_location"),
        (1j, "init_location must be real numbers"),
    ],
    ids=str,
)
def test_locations_of_another_shape_or_kind_are_refused(location: Any, words: str) -> None:
    refuse(words, init_location=location)


@pytest.mark.parametrize("scale", [0, 0.0, -0.1, NAN, INF, "0.1", None, True, [0.1], np.ones(5)], ids=repr)
def test_scales_that_are_no_positive_number_are_refused(scale: Any) -> None:
    refuse("init_scale must be a (finite )?number above 0, got", init_scale=scale)


@pytest.mark.parametrize(
    ("init", "words"),
    [
        (np.ones(16), r"init must be .* of shape \(17,\) for the structured family, got shape \(16,\)"),
        (np.ones((1, 17)), r"got shape \(1, 17\)"),
        (0.0, r"got shape \(\)"),
        (np.full(17, NAN), "init holds 17 NaN"),
        ("fit.npz", r"init=tv.load_fit\('fit.npz'\) reads it"),
        (np.zeros(17), "init: a diagonal entry of the scale matrix is 0"),
    ],
    ids=["short", "ndim", "scalar", "nan", "str", "zero"],
)
def test_parameters_of_another_shape_or_kind_are_refused(init: Any, words: str) -> None:
    refuse(words, init=init)


def test_a_fit_of_another_layout_is_refused() -> None:
    other = tv.fit(Counting(Layout(1, 4, 1)).model, n_iterations=1, progress=False)
    refuse(r"init: the given fit has Layout\(n_global=1.*this model Layout\(n_global=2", init=other)


@pytest.mark.parametrize("where", ["value", "gradient"])
def test_a_density_that_is_not_finite_at_the_start_is_refused(where: str) -> None:
    """It is finite near 0, where LogDensity looks at it, and NaN where the run would start."""

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
        ("full-rank", tv.Adam(1e-3), tv.PolynomialAveraging(), "float32", 5, 20, 4),
    ],
    ids=["structured", "mean-field", "full-rank"],
)
def test_memory_is_counted_to_the_byte(
    family: str, optimizer: Any, averaging: Any, dtype: str, n_vectors: int, n_params: int, itemsize: int
) -> None:
    """Parameters, gradient, the optimizer's moments and the average; four batches; start and result in float64.

    And three float64 numbers for each draw of an ELBO estimate.
    """
    needed = itemsize * (n_vectors * n_params + 4 * 2 * 5) + 8 * 2 * n_params + 3 * 8 * 1024
    arguments = {"family": family, "optimizer": optimizer, "averaging": averaging, "dtype": dtype}
    refuse(
        f"{n_params} parameters and needs {needed:,} bytes .*{needed - 1:,} bytes .*allowed by max_memory",
        MemoryLimitError,
        **arguments,
        max_memory=needed - 1,
    )
    fit = tv.fit(Counting().model, n_iterations=1, n_samples=2, progress=False, max_memory=needed, **arguments)
    assert fit.params.size == n_params


def test_memory_without_a_limit_can_be_asked_for() -> None:
    for limit in (float("inf"), np.int64(10**9)):
        assert tv.fit(Counting().model, n_iterations=1, progress=False, max_memory=limit).n_updates == 1


@pytest.mark.parametrize("family", ["structured", "full-rank"])
@pytest.mark.parametrize("optimizer", [tv.Adam(1e-3), tv.SGD(1e-3)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("averaging", [None, tv.PolynomialAveraging()])
def test_a_fit_takes_the_memory_that_was_counted(
    tmp_path: Path, family: str, optimizer: Any, checkpoint: bool, averaging: Any
) -> None:
    """Measured at p = 1.1 million, beside fixed buffers.

    These are 4 MiB of noise, 1 MiB of a panel, slices and points; for a checkpoint also the pieces of up to 16 MiB in
    which NumPy writes an array.
    """
    model = tv.models.IsotropicGaussian(500, n_global=5 if family == "full-rank" else 700)
    chosen = get_family(family)
    needed = fit_bytes(
        chosen,
        model.layout,
        8,
        optimizer.n_slots,
        8,
        averaging=averaging is not None,
        checkpoint=checkpoint,
        elbo_samples=16,
    )
    arguments: dict[str, Any] = {"optimizer": optimizer, "averaging": averaging, "elbo_samples": 16}
    if checkpoint:
        arguments["checkpoint"] = tmp_path / "run.npz"
    tv.fit(model, family, n_iterations=1, progress=False, n_threads=1, elbo_samples=16)  # imports
    tracemalloc.start()
    tv.fit(model, family, n_iterations=3, progress=False, n_threads=1, **arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    p = chosen.n_params(model.layout)
    assert p > 1_000_000
    assert needed - 8 * p < peak < needed + (22 if checkpoint else 6) * 2**20


def test_an_elbo_estimate_takes_the_memory_that_was_counted() -> None:
    """Beside the pieces of 2 MiB in which the points are drawn."""
    model, n = tv.models.IsotropicGaussian(2), 2_000_000
    arguments: dict[str, Any] = {"n_iterations": 1, "progress": False, "n_threads": 1}
    tv.fit(model, elbo_samples=16, **arguments)  # imports
    tracemalloc.start()
    tv.fit(model, elbo_samples=n, **arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    needed = fit_bytes(get_family("structured"), model.layout, 8, 2, 8, elbo_samples=n)
    assert needed - 8 * n < peak < needed + 10 * 2**20


def test_an_elbo_estimate_that_does_not_fit_is_refused() -> None:
    refuse(r"needs 24,\d{3},\d{3},\d{3},\d{3} bytes .*fewer will do", MemoryLimitError, elbo_samples=10**12)


def test_full_rank_at_the_largest_size_is_refused_before_anything_is_allocated() -> None:
    """irt-large of table 1: p = 566,817,614, so Adam needs 6 p float64 numbers 32 points of d more, and the ELBO."""
    counting = Counting(Layout(193, 33475, 1))
    needed = 8 * (6 * 566_817_614 + 4 * 8 * 33_668 + 3 * 1024)
    tracemalloc.start()
    with pytest.raises(MemoryLimitError, match=f"566,817,614 parameters and needs {needed:,} bytes") as caught:
        tv.fit(counting.model, "full-rank", progress=False, max_memory=16e9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "d=33668" in str(caught.value)
    assert "family='structured'" in str(caught.value)
    assert peak < 2**20
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
        ((True, 2, 1), "n_global must be a whole number"),
        ((1, NAN, 1), "n_local must be a whole number"),
        ((1, INF, 1), "n_local must be a whole number"),
        ((1, 2, 0), "both be positive or both be 0"),
        ((1, 0, 2), "both be positive or both be 0"),
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
    errors = tv.errors
    for error, builtin in (
        (errors.InputError, ValueError),
        (errors.EngineError, RuntimeError),
        (errors.MemoryLimitError, MemoryError),
        (errors.OutputError, OSError),
        (errors.DataError, Exception),
    ):
        assert issubclass(error, tv.PyTuringVIError)
        assert issubclass(error, builtin)


def test_a_name_unlike_all_known_ones_is_answered_with_the_list() -> None:
    message = str(unknown_name("family", "zzz", ["mean-field", "full-rank"]))
    assert message == "Unknown family 'zzz'. Known: mean-field, full-rank."


@pytest.mark.parametrize("name", ["n_iterations", "n_samples", "elbo_every", "elbo_samples"])
def test_a_number_that_64_bits_do_not_hold_is_refused(poisson: tv.models.Model, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at most"):
        tv.fit(poisson, progress=False, **{name: 10**30})
