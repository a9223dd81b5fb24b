# AdvancedVI's own families on PyTuringVI's log density of one point, for `engines.py`.

module AdvancedVIPeer

using PyTuringVI: PyTuringVI
const need = (name, uuid) -> Base.require(Base.PkgId(Base.UUID(uuid), name))
const AdvancedVI = need("AdvancedVI", "b5ca4192-6429-45e5-a2d9-87aec30a685c")
const LogDensityProblems = need("LogDensityProblems", "6fdf6af0-433a-55f7-b3ed-c6c6e0b8df7c")
const ADTypes = need("ADTypes", "47edcb42-4c32-4615-8424-f2b9edc5f35b")
need("DifferentiationInterface", "a0c0ee7d-e4b9-4e03-894e-1c5f64a51d63")  # Zygote reaches AdvancedVI through it
need("Mooncake", "da2b9cff-9c12-43a0-ae48-6db2b0edb7d6")
const Optimisers = PyTuringVI.Optimisers
const LinearAlgebra = PyTuringVI.LinearAlgebra
const Random = need("Random", "9a3f8284-a2c9-5f02-9a11-845980a1fd5c")

struct Target{M}
    model::M
end

LogDensityProblems.logdensity(target::Target, x) = only(PyTuringVI.log_density(target.model, reshape(x, :, 1)))
LogDensityProblems.dimension(target::Target) = PyTuringVI.dim(target.model.layout)
LogDensityProblems.capabilities(::Type{<:Target}) = LogDensityProblems.LogDensityOrder{0}()

"""Milliseconds an iteration of `family` with Adam and 8 samples, compilation left out: least of three timings."""
function milliseconds(model, family::String, backend::String, seconds::Float64)
    target = Target(model)
    d = LogDensityProblems.dimension(target)
    adtype = backend == "mooncake" ? ADTypes.AutoMooncake(; config=nothing) : ADTypes.AutoZygote()
    start = if family == "mean-field"
        AdvancedVI.MeanFieldGaussian(zeros(d), LinearAlgebra.Diagonal(fill(0.1, d)))
    else
        AdvancedVI.FullRankGaussian(zeros(d), LinearAlgebra.LowerTriangular(Matrix(0.1 * LinearAlgebra.I, d, d)))
    end
    algorithm = AdvancedVI.KLMinRepGradDescent(
        adtype; n_samples=8, optimizer=Optimisers.Adam(1e-4), operator=AdvancedVI.ClipScale()
    )
    rng = Random.Xoshiro(1)
    go(n) = @elapsed AdvancedVI.optimize(rng, algorithm, n, target, start; show_progress=false)
    go(1)
    # the cost of starting `optimize` is taken off: the difference of a long and a short run
    short = go(2)
    n = clamp(round(Int, seconds / max(short / 2, 1e-4)), 3, 2000)
    return minimum(1e3 * (go(2 + n) - go(2)) / n for _ in 1:3)
end

end
