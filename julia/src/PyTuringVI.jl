"""
Structured black-box variational inference: the Julia side of the Python package `pyturingvi`.

Every file mirrors the Python file of the same name. A batch of M points is a `d x M` matrix, the memory of Python's
C-ordered `(M, d)` array; the flat parameter vector is `[m; nonzeros of C in CSC order]` on both sides.
"""
module PyTuringVI

using Base.Cartesian: @nexprs, @ntuple
using ChainRulesCore: ChainRulesCore, NoTangent, @thunk, unthunk
using LinearAlgebra: LinearAlgebra, BLAS, LAPACK, dot
using Optimisers: Optimisers
using PrecompileTools: @compile_workload, @setup_workload
using Random: AbstractRNG, Xoshiro, rand!, randexp!, randn!
using SHA: sha256
using SpecialFunctions: digamma, erfcinv, logbeta, loggamma
using Zygote: Zygote

include("layout.jl")
include("elementary.jl")
include("transforms.jl")
include("priors/base.jl")
include("priors/half.jl")
include("models/base.jl")
include("priors/of_model.jl")
include("models/gaussian.jl")
include("models/rpoisson.jl")
include("models/rpoisson_prior.jl")
include("models/rpoisson_centred.jl")
include("models/rpoisson_noise.jl")
include("models/irt_panels.jl")
include("models/irt_likelihood.jl")
include("models/irt_answers.jl")
include("models/irt_sparse.jl")
include("models/irt.jl")
include("models/volatility.jl")
include("models/volatility_globals.jl")
include("models/volatility_blocks.jl")
include("models/turing.jl")
include("families/base_distributions.jl")
include("families/base.jl")
include("families/location_scale.jl")
include("families/scale_product.jl")
include("families/mean_field.jl")
include("families/full_rank.jl")
include("families/structured.jl")
include("families/recursions.jl")
include("families/markov.jl")
include("families/natural.jl")
include("families/natural_markov.jl")
include("families/natural_widths.jl")
include("optimize/noise.jl")
include("optimize/schedules.jl")
include("optimize/averaging.jl")
include("optimize/objective.jl")
include("optimize/operators.jl")
include("optimize/rules.jl")
include("optimize/loop.jl")
include("optimize/natural_gradient.jl")
include("nuts.jl")
include("bridge.jl")
include("precompile.jl")

end
