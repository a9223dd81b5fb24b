"""`engine="julia"` with `device="cuda"`: what is refused, and why. Nothing here needs a GPU."""

import pytest

import pyturingvi as tv
from pyturingvi.bridge.runtime import start_julia
from pyturingvi.engines.selection import select_engine
from pyturingvi.errors import EngineError
from pyturingvi.models import Turing
from pyturingvi.settings import Settings


def has_cuda() -> bool:
    return bool(start_julia().seval('!isnothing(Base.find_package("CUDA"))'))


def fit_on_gpu() -> tv.Fit:
    settings = {"n_iterations": 2, "engine": "julia", "device": "cuda", "progress": False}
    return tv.fit(tv.models.IsotropicGaussian(2), optimizer=tv.Adam(1e-3), **settings)  # type: ignore[arg-type]


@pytest.mark.julia
def test_cuda_without_the_package_says_how_to_add_it() -> None:
    if has_cuda():
        pytest.skip("this Julia environment has CUDA.jl")
    with pytest.raises(
        EngineError, match=r"device='cuda': Julia does not have the package CUDA. Add it with: .*CUDA.* device='cpu'"
    ):
        fit_on_gpu()


@pytest.mark.julia
def test_cuda_without_a_gpu_says_so() -> None:
    if not has_cuda():
        pytest.skip("this Julia environment has no CUDA.jl")
    runtime = start_julia()
    runtime.load("CUDA")
    for extension in ("CUDAExt", "GPUArraysExt"):
        assert runtime.seval(f"!isnothing(Base.get_extension(PyTuringVI, :{extension}))")
    if runtime.call(runtime.module.device_problem, "cuda") is None:
        pytest.skip("there is a GPU")
    with pytest.raises(EngineError, match=r"device='cuda': CUDA\.jl [\d.]+ finds no usable NVIDIA GPU.*device='cpu'"):
        fit_on_gpu()


def test_the_markov_family_has_no_gpu_in_julia() -> None:
    settings = Settings(family=tv.Markov(), optimizer=tv.Adam(1e-3), engine="julia", device="cuda")
    with pytest.raises(EngineError, match=r"'julia' cannot run the markov family on a GPU; use engine='numpy'"):
        select_engine(tv.models.IsotropicGaussian(2), settings)


def test_a_turing_model_has_no_gpu() -> None:
    stub = Turing.__new__(Turing)
    for engine in ("auto", "julia", "numpy"):
        with pytest.raises(EngineError, match=r"No engine runs tv\.models\.Turing, .* with device='cuda'"):
            select_engine(stub, Settings(optimizer=tv.Adam(1e-3), engine=engine, device="cuda"))
