# Which automatic differentiation runs, and whether its gradient is right.

"""A backend's package, and how it is asked for."""
struct Backend
    package::String
    uuid::String
    adtype::Function
end

const REVERSEDIFF = ("ReverseDiff", "37e2e3b7-166d-5795-8a7a-e32c996b4267")
const COMPILED = "compiled_reversediff"
const BACKENDS = [
    "forwarddiff" => Backend("ForwardDiff", "f6369f11-7733-5829-9624-2563aa707210", () -> ADTypes.AutoForwardDiff()),
    "reversediff" => Backend(REVERSEDIFF..., () -> ADTypes.AutoReverseDiff()),
    COMPILED => Backend(REVERSEDIFF..., () -> ADTypes.AutoReverseDiff(; compile=true)),
    "mooncake" => Backend("Mooncake", "da2b9cff-9c12-43a0-ae48-6db2b0edb7d6", () -> ADTypes.AutoMooncake()),
    "zygote" => Backend("Zygote", "e88e6eb3-aa80-5325-afca-941959d7151f", () -> ADTypes.AutoZygote()),
]

PyTuringVI.ad_names() = first.(BACKENDS)

# Measured on a varying-intercept regression with 10 rows a group, in whole vectors and in loops (microseconds a gradient,
# forwarddiff/reversediff/mooncake): d = 8 2/36/5 and 2/93/10, d = 23 20/68/13 and 17/274/32, d = 203 1000/357/102 and
# 1516/3266/174, d = 2003 -/5047/1039 and -/57150/1757. Mooncake compiles for 20 s at first, the others for 5 s.
const LARGEST_FORWARD_DIM = 24

const N_DRAWS = 8  # of each width, beside the starts, at which a compiled gradient is checked

"""Backends to try in turn where the user names none: the fastest that is installed and differentiates the model."""
function default_backends(dim::Int)
    order = dim <= LARGEST_FORWARD_DIM ? ["forwarddiff", "mooncake", "reversediff"] : ["mooncake", "reversediff", "forwarddiff"]
    return filter(name -> is_installed(named_backend(name)), order)
end

is_installed(backend::Backend) = !isnothing(Base.locate_package(package_id(backend)))

package_id(backend::Backend) = Base.PkgId(Base.UUID(backend.uuid), backend.package)

function named_backend(name::AbstractString)
    k = findfirst(==(name), PyTuringVI.ad_names())
    isnothing(k) && throw(ModelError("unknown ad $(repr(name)); known: $(join(PyTuringVI.ad_names(), ", "))."))
    return last(BACKENDS[k])
end

"""The ADTypes object of a backend, its package loaded. The caller goes on in the latest world age."""
function load_backend(name::AbstractString)
    backend = named_backend(name)
    try
        Base.require(package_id(backend))
    catch error
        throw(ModelError(
            "ad=$(repr(name)) needs the Julia package $(backend.package), which does not load: $(summarized(error)) " *
            "Add it to the Julia project, or choose another ad."
        ))
    end
    return backend.adtype()
end

cannot_differentiate(name, error) =
    "ad=$(repr(name)) cannot differentiate this model: $(summarized(error)) $(other_backends(name))"

remedy(name) = name == COMPILED ?
    "compiled_reversediff records one branch of a model; use ad=\"reversediff\"." : other_backends(name)

other_backends(name) = "Choose another ad ($(join(setdiff(PyTuringVI.ad_names(), [name]), ", "))) or rewrite the model."

"""
    check_points(plain, starts, name)

Points at which to check a gradient: all starts but the first, and their negatives where the density is finite. A compiled tape
knows only the branches taken while it was recorded, so that it is also checked at the first start and at draws of two widths.
"""
function check_points(plain::LogDensityFunction, starts::AbstractMatrix, name::AbstractString)
    known = starts[:, 2:end]
    name == COMPILED || return hcat(known, with_density(plain, -known))
    rng, d = Xoshiro(2), size(starts, 1)
    draws = hcat((width .* (2 .* rand(rng, d, N_DRAWS) .- 1) for width in (2, 4))...)
    return hcat(starts, with_density(plain, hcat(-starts, draws)))
end

"""The columns of `points` with a finite density: the model need not run at the others."""
function with_density(plain::LogDensityFunction, points::AbstractMatrix)
    kept = filter(collect(axes(points, 2))) do m
        try
            isfinite(LogDensityProblems.logdensity(plain, points[:, m]))
        catch error
            error isa InterruptException && rethrow()
            false
        end
    end
    return points[:, kept]
end

"""
    check_gradient(ldf, points, name)

Compare the gradient with central differences at each column of `points`, along a random direction, and the density that
comes with it with that of the model run by itself. A `ModelError` that names the backend if it throws, is not finite where
the density is, or differs.
"""
function check_gradient(ldf::LogDensityFunction, points::AbstractMatrix, name::AbstractString)
    rng = Xoshiro(1)
    for point in eachcol(points)
        x = Vector{Float64}(point)
        value, slope = try
            LogDensityProblems.logdensity_and_gradient(ldf, x)
        catch error
            error isa InterruptException && rethrow()
            throw(ModelError(cannot_differentiate(name, error)))
        end
        expected = LogDensityProblems.logdensity(ldf, x)  # never from a tape
        abs(value - expected) <= 1e-8 * (1 + abs(expected)) || throw(ModelError(
            "ad=$(repr(name)) gives a wrong log density: $value where the model itself gives $expected. $(remedy(name))"
        ))
        all(isfinite, slope) || throw(ModelError(
            "ad=$(repr(name)) gives a gradient with $(count(!isfinite, slope)) entries that are not finite at a point where " *
            "the log density is $value. $(remedy(name))"
        ))
        direction = randn(rng, length(x))
        along, (numeric, error) = dot(slope, direction), directional_derivative(ldf, x, direction)
        abs(along - numeric) <= 10 * error + 1e-6 * (abs(numeric) + norm(slope)) || throw(ModelError(
            "ad=$(repr(name)) gives a wrong gradient: along a random direction its slope is $along, and by differences of " *
            "the log density it is $numeric. This happens where the log density jumps, or branches on its variables. " *
            remedy(name)
        ))
    end
    return nothing
end

"""Slope along a direction by central differences, and an estimate of its error; the step with the least error wins."""
function directional_derivative(ldf::LogDensityFunction, x::Vector{Float64}, direction::Vector{Float64})
    value(t) = LogDensityProblems.logdensity(ldf, x .+ t .* direction)
    central(h) = (value(h) - value(-h)) / (2 * h)
    best, smallest = NaN, Inf
    for h in (1e-2, 1e-3, 1e-4, 1e-5)
        wide, narrow = try
            central(h), central(h / 2)
        catch error
            error isa OUTSIDE || rethrow()
            continue
        end
        slope = (4 * narrow - wide) / 3
        error = abs(slope - narrow) + 4 * eps(abs(value(0.0))) / h
        error < smallest && ((best, smallest) = (slope, error))
    end
    return best, smallest
end
