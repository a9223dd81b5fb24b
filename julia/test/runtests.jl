using ChainRulesCore: rrule, unthunk
using LinearAlgebra: I, det, tril
using Optimisers: Optimisers
using PyTuringVI: PyTuringVI as P
using Random: MersenneTwister, randn
using SpecialFunctions: erf
using Test
using Zygote: Zygote

const WHOLE_PRODUCTS = "users" in ARGS  # else of models, families and rules some pairs: most of the time is compilation

@testset "PyTuringVI" verbose = true begin
    include("test_families.jl")
    include("test_models.jl")
    include("test_gradients.jl")
    include("test_parametrizations.jl")
    include("test_optimize.jl")
    include("test_natural.jl")
    include("test_markov.jl")
    include("test_widths.jl")
    # in this test environment only if it supplies the package
    isnothing(Base.find_package("Aqua")) || include("test_quality.jl")
    isnothing(Base.find_package("JLArrays")) || include("test_gpu_arrays.jl")
    # minutes of compilation: with `users` among the arguments only
    if WHOLE_PRODUCTS
        include("test_turing.jl")
        include("test_turing_users.jl")
    end
end
