"""
`device="cuda"`: where a run's vectors go. All that it does there is in `GPUArraysExt`.

The scale has no CUSPARSE matrix: its border is dense, and so are its blocks, so that CUBLAS and broadcasts read each
nonzero as often as CSC would, without its row numbers. Not run on a GPU.
"""
module CUDAExt

using CUDA: CUDA, CuArray
using PyTuringVI: PyTuringVI as P

function P.device_problem(::Val{:cuda})
    CUDA.functional() && return nothing
    return "CUDA.jl $(pkgversion(CUDA)) finds no usable NVIDIA GPU and driver here (CUDA.functional() is false)"
end

P.device_memory(::Val{:cuda}) = Int(CUDA.free_memory())  # not run on a GPU

P.on_device(v::Vector, ::Val{:cuda}) = CuArray(v)  # not run on a GPU

end
