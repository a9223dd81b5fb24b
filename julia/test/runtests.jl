using ChainRulesCore: rrule, unthunk
using LinearAlgebra: I, LowerTriangular, tril
using PyTuringVI: PyTuringVI as P
using Random: MersenneTwister, randn
using SparseArrays: nnz, sparse
using Test

@testset "PyTuringVI" verbose = true begin
    include("test_families.jl")
end
