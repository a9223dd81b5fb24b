# What Python calls: numbers, strings and addresses of NumPy memory in, plain values and named tuples out.
#
# Python owns the long arrays. They are seen, not copied, so that both sides have the same memory; Python keeps them
# alive as long as it holds the run. Addresses in place of arrays, because these methods can then be compiled once.

# The models' constructors stand with the models; tables arrive row by row.

"""The array of the given size at an address."""
memory(::Type{T}, address::Int, dims::Int...) where {T} = unsafe_wrap(Array, Ptr{T}(address), dims)

# ---- devices --------------------------------------------------------------------------------------------------------
# A package's extension adds methods for its device, such as `Val(:cuda)`.
"""Why the device cannot be used, or nothing."""
device_problem(::Val{device}) where {device} = "no package for the device $(repr(String(device))) is loaded"
device_problem(::Val{:cpu}) = nothing
device_problem(device::AbstractString) = device_problem(Val(Symbol(device)))

"""Free bytes of the device's memory."""
function device_memory end
device_memory(device::AbstractString) = device_memory(Val(Symbol(device)))

"""A vector on the device; on the CPU, the same vector."""
function on_device end
on_device(v::Vector, ::Val{:cpu}) = v

# ---- a run ----------------------------------------------------------------------------------------------------------
"""
A run with its ELBO estimate and the seed behind both. `copies` pairs Python's vectors with the run's, where these lie on
another device.
"""
struct Session{R<:Run,E<:ElboEstimate,C<:Tuple}
    run::R
    estimate::E
    seed::String
    copies::C
end

"""
    start_session(model, family, rule; stepsize, vectors, n_iterations, n_samples, elbo_samples, seed, ...) -> Session

# Arguments
- `stepsize`, `factor`, `every`: see `StepDecay`.
- `vectors`: address of the flat parameters, the rule's slots and, with an `eta`, the average, one after the other; all
  are updated in place, from another device at the end of each `advance_session!`.
- `eta`: of the average, or nothing for none.
- `noise`: address of the user's draws (d x M x n_iterations), or nothing for those of the seed.
- `target`: address of the parameters at which the run has arrived within `epsilon`, or nothing.
- `done`: updates that were made before.
"""
function start_session(
    model::Model, family::Family, rule::Rule; stepsize::Float64, vectors::Int, n_iterations::Int, n_samples::Int,
    elbo_samples::Int, seed::String, factor::Float64=1.0, every::Int=1, dtype::String="float64", device::String="cpu",
    done::Int=0, eta::Union{Nothing,Float64}=nothing, noise::Union{Nothing,Int}=nothing,
    target::Union{Nothing,Int}=nothing, epsilon::Union{Nothing,Float64}=nothing,
)
    T = dtype == "float32" ? Float32 : Float64
    d, p = dim(model.layout), n_params(family, model.layout)
    n_vectors = 1 + n_slots(rule) + !isnothing(eta)
    place(v) = device == "cpu" ? v : on_device(v, Val(Symbol(device)))
    owned = [memory(T, vectors + k * p * sizeof(T), p) for k in 0:(n_vectors - 1)]
    placed = device == "cpu" ? owned : map(place, owned)
    flat = first(placed)
    goal = place(isnothing(target) ? T[] : copy(memory(T, target, p)))
    objective = Objective(model, family; energy_only=energy_only(rule))
    draws = if isnothing(noise)
        NoiseStream(family.base, seed, d, n_samples, flat)
    else
        GivenNoise(memory(Float64, noise, d, n_samples, n_iterations), flat)
    end
    averaging = isnothing(eta) ? nothing : PolynomialAveraging(eta, last(placed))
    slots = placed[2:(1 + n_slots(rule))]
    schedule = StepDecay(stepsize, factor, every)
    within = something(epsilon, NaN)
    run = Run(objective, rule, draws, schedule, flat, slots, n_samples; averaging, done, target=goal, epsilon=within)
    copies = device == "cpu" ? () : Tuple(zip(owned, placed))
    return Session(run, ElboEstimate(run.objective, elbo_samples, flat), seed, copies)
end

"""
    advance_session!(session, last, seconds) -> (; done, finite, arrived)

Make updates up to number `last` or for some seconds: the number made in all, whether the next gradient is finite, and
whether the run is as near its target as it was to come.
"""
function advance_session!(session::Session, last::Int, seconds::Float64)
    run = session.run
    finite = advance!(run, last, seconds)
    foreach(pair -> copyto!(pair...), session.copies)
    return (; run.done, finite, run.arrived)
end

"""Updates made; after an exception too, when the vectors are as that many updates left them."""
session_done(session::Session) = session.run.done

"""Go on with the estimate of the ELBO for some seconds, or start it anew; the number of draws so far."""
function estimate_session!(session::Session, anew::Bool, seconds::Float64)
    estimate, run = session.estimate, session.run
    anew && (estimate.done = 0)
    stop = time_ns() + round(UInt64, 1e9 * seconds)
    while estimate.done < length(estimate.values)
        add_piece!(estimate, run.objective, best(run), session.seed, run.done)
        time_ns() >= stop && break
    end
    return estimate.done
end

"""The ELBO from the draws so far and its standard error, `(; value, std_error)`."""
function elbo_of_session(session::Session)
    value, std_error = result(session.estimate, session.run.objective, best(session.run))
    return (; value, std_error)
end

"""Gradients (d x M) of the log density at the last points."""
slopes_of_session(session::Session) = in_memory(session.run.workspace.slopes)

# ---- natural gradients ----------------------------------------------------------------------------------------------
"""A run of natural gradient steps, with its ELBO estimate and the seed behind both."""
mutable struct NaturalSession{R<:NaturalRun}
    const run::R
    const seed::String
    estimate::Union{Nothing,ElboEstimate}
end

"""
    start_natural_session(model, family; vectors, dtype, device, seed, ...) -> NaturalSession

# Arguments
- `vectors`: address of the flat parameters, of the standardized form, and after them the velocity; both are updated in
  place, and may be changed between two calls.
- `done`, `count`: updates that were made before, and since the velocity was last 0.
- `noise`: address of the user's draws (d x noise_rows x n_iterations), or nothing for those of the seed.
"""
function start_natural_session(
    model::Model, family::Family; vectors::Int, seed::String, dtype::String="float64", device::String="cpu",
    done::Int=0, count::Int=0, noise::Union{Nothing,Int}=nothing, noise_rows::Int=0, n_iterations::Int=0,
)
    device == "cpu" || throw(
        ArgumentError("natural gradients run on the CPU only in Julia; use device=\"cpu\", or engine=\"numpy\" for a GPU."),
    )
    T = dtype == "float32" ? Float32 : Float64
    d, p = dim(model.layout), n_params(family, model.layout)
    flat, velocity = (memory(T, vectors + k * p * sizeof(T), p) for k in 0:1)
    objective = Objective(model, family)
    draws = if isnothing(noise)
        PairedNoise(family.base, seed, objective.pattern, T)
    else
        GivenNoise(memory(Float64, noise, d, noise_rows, n_iterations), flat)
    end
    return NaturalSession(NaturalRun(objective, draws, flat, velocity; done, count), seed, nothing)
end

"""
    advance_natural!(session; last, seconds, ...) -> (; done, finite, count, stats)

Make updates up to number `last` or for some seconds: see `Leg` and `advance!`. `stats` is 6 x updates. `count=0` forgets
the velocity.
"""
function advance_natural!(
    session::NaturalSession; last::Int, seconds::Float64, rate::Float64, momentum::Float64, trust::Float64,
    n_samples::Int, frames::Bool, anneal_from::Int=-1, global_rate::Float64=0.0, count::Int=session.run.count,
)
    run = session.run
    run.count = count
    count == 0 && fill!(run.velocity, 0)
    leg = Leg(rate, momentum, trust, anneal_from, global_rate)
    (; finite, stats) = advance!(run, leg, last, seconds; n_samples, frames)
    return (; run.done, finite, run.count, stats)
end

session_done(session::NaturalSession) = session.run.done

"""
Go on for some seconds with an estimate of the ELBO from `n` independent draws, or start it anew; the number of draws so
far.
"""
function estimate_session!(session::NaturalSession, n::Int, anew::Bool, seconds::Float64)
    run = session.run
    if isnothing(session.estimate) || length(session.estimate.values) != n
        session.estimate = ElboEstimate(run.objective, n, run.flat)
    end
    estimate = session.estimate
    anew && (estimate.done = 0)
    stop = time_ns() + round(UInt64, 1e9 * seconds)
    while estimate.done < n
        add_weights_piece!(estimate, run.objective, run.flat, session.seed, run.done)
        time_ns() >= stop && break
    end
    return estimate.done
end

"""The ELBO from the draws so far, its standard error, and the standard deviation of `log p - log q` of a draw."""
function elbo_of_session(session::NaturalSession)
    value, std_error, deviation = weights_result(session.estimate, session.run.objective, session.run.flat)
    return (; value, std_error, deviation)
end

slopes_of_session(session::NaturalSession) = first(session.run.buffers.slopes)

# ---- memory ---------------------------------------------------------------------------------------------------------
const MOST_GARBAGE = 16 << 20  # bytes
const IN_USE = Ref(0)  # bytes, after the last collection here

__init__() = (IN_USE[] = Base.gc_live_bytes(); nothing)

"""
Free what ended runs have left, where that is much. Julia itself looks for garbage only while it allocates. What Python
held is free after the second collection: the first one ends PythonCall's hold on it.
"""
function free_garbage()
    Base.gc_live_bytes() - IN_USE[] > MOST_GARBAGE || return nothing
    GC.gc()
    GC.gc()
    IN_USE[] = Base.gc_live_bytes()
    return nothing
end

# ---- a model alone --------------------------------------------------------------------------------------------------
"""Log density and gradient (d x M) of points (d x M), all at addresses of Float64."""
function evaluate_at!(model::Model, points::Int, values::Int, slopes::Int, M::Int)
    d = dim(model.layout)
    batch, buffers = memory(Float64, points, d, M), scratch(model, Float64)
    log_density!(memory(Float64, values, M), model, batch, buffers)
    log_density_gradient!(memory(Float64, slopes, d, M), model, batch, buffers)
    return nothing
end

"""A NumPy array's memory as an `Array`; whatever is not one contiguous piece is copied."""
wrap(a::Array) = a
function wrap(a::AbstractArray{T,N}) where {T,N}
    contiguous = strides(a) == Base.size_to_strides(1, size(a)...)
    return contiguous ? unsafe_wrap(Array, pointer(a), size(a)) : Array{T,N}(a)
end

"""Log density (M) of points (d x M), in place."""
function log_density_at!(values::AbstractVector, model::Model, points::AbstractMatrix)
    batch = wrap(points)
    log_density!(wrap(values), model, batch, scratch(model, eltype(batch)))
    return nothing
end
