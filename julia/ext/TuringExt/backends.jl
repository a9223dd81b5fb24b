# Which automatic differentiation runs, and whether its gradient is right.

"""A backend's package, how it is asked for, and about how long it compiles for the first gradient of a model."""
struct Backend
    package::String
    uuid::String
    adtype::Function
    compile_seconds::Float64
end

const REVERSEDIFF = ("ReverseDiff", "37e2e3b7-166d-5795-8a7a-e32c996b4267")
const COMPILED = "compiled_reversediff"
const BACKENDS = [
    "forwarddiff" =>
        Backend("ForwardDiff", "f6369f11-7733-5829-9624-2563aa707210", () -> ADTypes.AutoForwardDiff(), 5.0),
    "reversediff" => Backend(REVERSEDIFF..., () -> ADTypes.AutoReverseDiff(), 5.0),
    COMPILED => Backend(REVERSEDIFF..., () -> ADTypes.AutoReverseDiff(; compile=true), 5.0),
    "mooncake" => Backend("Mooncake", "da2b9cff-9c12-43a0-ae48-6db2b0edb7d6", () -> ADTypes.AutoMooncake(), 20.0),
    "zygote" => Backend("Zygote", "e88e6eb3-aa80-5325-afca-941959d7151f", () -> ADTypes.AutoZygote(), 60.0),
]

PyTuringVI.ad_names() = first.(BACKENDS)

# The cost of ForwardDiff grows with the number of variables, that of the others with the work of the model. Measured on a
# varying-intercept regression with 10 rows a group, in whole vectors and in loops (microseconds a gradient,
# forwarddiff/reversediff/mooncake): d = 8 2/36/5 and 2/93/10, d = 23 20/68/13 and 17/274/32, d = 203 1000/357/102 and
# 1516/3266/174, d = 2003 -/5047/1039 and -/57150/1757.
const LARGEST_FORWARD_DIM = 200

const N_GRADIENTS = 80_000  # of a usual fit: where the fastest so far takes less for them than another compiles, it stays
const CLEARLY_FASTER = 0.7  # of the time: another choice from run to run would be for nothing

const N_DRAWS = 8  # of each width, beside the starts, at which a compiled gradient is checked

"""Backends to try in turn where the user names none: those that compile soonest first."""
function default_backends(dim::Int)
    order = dim <= LARGEST_FORWARD_DIM ? ["forwarddiff", "reversediff", "mooncake"] : ["reversediff", "mooncake", "forwarddiff"]
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

# ---- the choice ----------------------------------------------------------------------------------------------------
"""
    Search(model, values, starts, names)

The fastest among backends that give a right gradient, found in steps, between which the caller may look at Ctrl-C:
`advance!` until it is false, then `chosen`.
"""
mutable struct Search
    const model::DynamicPPL.Model
    const values::Any
    const starts::Matrix{Float64}
    const plain::LogDensityFunction
    const waiting::Vector{String}
    const errors::Vector{ModelError}
    prepared::Union{Nothing,Tuple{String,LogDensityFunction}}
    found::Union{Nothing,Tuple{String,LogDensityFunction}}
    seconds::Float64  # a gradient of what is found takes
end

Search(model, values, starts, plain, names) = Search(model, values, starts, plain, names, ModelError[], nothing, nothing, Inf)

"""Prepare the next backend's gradient, or check and time the one that is prepared; false if there is nothing to do."""
function advance!(search::Search)
    if !isnothing(search.prepared)
        name, ldf = search.prepared
        search.prepared = nothing
        Base.invokelatest(judge!, search, name, ldf)
        return true
    end
    filter!(name -> is_worth_trying(search, name), search.waiting)
    isempty(search.waiting) && return false
    name = popfirst!(search.waiting)
    kept_error!(search) do
        adtype = load_backend(name)
        search.prepared = (name, Base.invokelatest(differentiable, search.model, search.values, adtype, name))
    end
    return true
end

function is_worth_trying(search::Search, name::String)
    isnothing(search.found) && return true
    # with few variables it was the first, with many it is slow
    return name != "forwarddiff" && search.seconds * N_GRADIENTS > named_backend(name).compile_seconds
end

function judge!(search::Search, name::String, ldf::LogDensityFunction)
    kept_error!(search) do
        check_gradient(ldf, check_points(search.plain, search.starts, name), name)
        # the last one that can be needs no time of its own
        seconds = isempty(search.waiting) && isnothing(search.found) ? 0.0 : seconds_a_gradient(ldf, search.starts[:, 2:end])
        seconds < CLEARLY_FASTER * search.seconds || return nothing
        search.found, search.seconds = (name, ldf), seconds
    end
    return nothing
end

"""Run `f`; a `ModelError` speaks against the backend that it tries alone."""
function kept_error!(f, search::Search)
    try
        f()
    catch error
        error isa ModelError || rethrow()
        push!(search.errors, error)
    end
    return nothing
end

"""The least time of a few gradients."""
function seconds_a_gradient(ldf::LogDensityFunction, points::AbstractMatrix)
    stop, least, runs = time_ns() + UInt64(50_000_000), Inf, 0
    while runs < 3 || (runs < 500 && time_ns() < stop)
        x = points[:, 1 + runs % size(points, 2)]
        least = min(least, @elapsed LogDensityProblems.logdensity_and_gradient(ldf, x))
        runs += 1
    end
    return least
end

"""Name and log density of the fastest with a right gradient; the first one's error if none has."""
chosen(search::Search) = isnothing(search.found) ? throw(first(search.errors)) : search.found

"""The log density with a prepared gradient."""
function differentiable(model::DynamicPPL.Model, values, adtype, name::AbstractString)
    try
        return LogDensityFunction(model, DynamicPPL.getlogjoint_internal, values; adtype)
    catch error
        error isa InterruptException && rethrow()
        throw(ModelError(cannot_differentiate(name, error)))
    end
end
