"""What needs Turing: the bundled models as Turing models, and users' own."""
module TuringExt

using LinearAlgebra: LinearAlgebra, Cholesky, I, LowerTriangular, PosDefException, SingularException, UpperTriangular, dot, norm
using PyTuringVI: PyTuringVI, ModelError
using PyTuringVI.ChainRulesCore: ChainRulesCore, NoTangent, unthunk
using Random: Random, AbstractRNG, Xoshiro
using Turing
using Turing: ADTypes, AbstractMCMC, DynamicPPL, LogDensityProblems, Statistics
using Turing.Distributions.PDMats: PDMat
using Turing.DynamicPPL: AbstractPPL, LogDensityFunction, VarName
using Turing.DynamicPPL.AbstractPPL: getoptic, subsumes

include("bundled.jl")
include("backends.jl")
include("variables.jl")
include("model.jl")
include("natural.jl")
include("source.jl")
include("nuts.jl")

end
