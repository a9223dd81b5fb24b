using ChainRulesCore: rrule, unthunk
using LinearAlgebra: I, det, tril
using PyTuringVI: PyTuringVI as P
using Random: MersenneTwister, randn
using SparseArrays: nnz, sparse
using Test
using Zygote: Zygote

@testset "PyTuringVI" verbose = true begin
    include("test_families.jl")
    include("test_models.jl")
    include("test_gradients.jl")
    include("test_optimize.jl")
end
