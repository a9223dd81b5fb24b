# What Python calls: numbers, strings and addresses of NumPy memory in, plain values out.
#
# Python owns the long arrays. They are seen, not copied, so that both sides have the same memory; Python keeps them
# alive as long as it holds the run. Addresses in place of arrays, because these methods can then be compiled once.

"""The array of the given size at an address."""
memory(::Type{T}, address::Int, dims::Int...) where {T} = unsafe_wrap(Array, Ptr{T}(address), dims)

# ---- models, by Python's names; tables arrive row by row ------------------------------------------------------------
gaussian_model(n_global, n_local, local_dim, mean, variance) =
    IsotropicGaussian(Layout(n_global, n_local, local_dim), mean, variance)
function rpoisson_model(X::Int, y::Int, offset::Int, n::Int, p::Int)
    rows = memory(Float64, X, p, n)
    return RobustPoisson(permutedims(rows), copy(memory(Float64, y, n)), copy(memory(Float64, offset, n)))
end
irt_model(signs::Int, n_students::Int, n_items::Int) = ItemResponse(copy(memory(Int8, signs, n_items, n_students)))
volatility_model(returns::Int, n_times::Int, n_series::Int) =
    StochasticVolatility(copy(memory(Float64, returns, n_series, n_times)))

# ---- families and rules, by their names in Python -------------------------------------------------------------------
function family_named(name::AbstractString, base::AbstractString, nu::Real, standardized::Bool)
    u = base_distribution(base, nu)
    name == "mean-field" && return MeanField(u)
    name == "full-rank" && return FullRank(u)
    name == "structured" && return Structured(u; standardized)
    throw(ArgumentError("unknown family $(repr(name))"))
end

function rule_named(name::AbstractString, settings...)
    name == "adam" && return adam(; beta1=settings[1], beta2=settings[2], epsilon=settings[3])
    name == "sgd" && return sgd()
    name == "proximal-sgd" && return proximal_sgd()
    name == "projected-sgd" && return projected_sgd(; min_scale=settings[1])
    throw(ArgumentError("unknown rule $(repr(name))"))
end

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
    start_session(model, family, rule, settings...) -> Session

`vectors` is the address of the flat parameters, the rule's slots and, where `eta` is not NaN, the average, one after the
other; all are updated in place, from another device at the end of each `advance_session!`. `noise` is 0 or the address
of the user's draws (d x M x n_iterations), `target` 0 or that of the parameters at which the run has arrived.
"""
function start_session(
    model::Model, family::Family, rule::Rule, initial::Float64, factor::Float64, every::Int, dtype::String, vectors::Int,
    noise::Int, n_iterations::Int, n_samples::Int, elbo_samples::Int, seed::String, eta::Float64, done::Int,
    device::String="cpu", target::Int=0, epsilon::Float64=NaN,
)
    T = dtype == "float32" ? Float32 : Float64
    d, p = dim(model.layout), n_params(family, model.layout)
    n_vectors = 1 + n_slots(rule) + !isnan(eta)
    place(v) = device == "cpu" ? v : on_device(v, Val(Symbol(device)))
    owned = [memory(T, vectors + k * p * sizeof(T), p) for k in 0:(n_vectors - 1)]
    placed = device == "cpu" ? owned : map(place, owned)
    flat = first(placed)
    goal = place(target == 0 ? T[] : copy(memory(T, target, p)))
    objective = Objective(model, family; energy_only=rule.energy_only)
    draws = if noise == 0
        NoiseStream(family.base, seed, d, n_samples, flat)
    else
        GivenNoise(memory(Float64, noise, d, n_samples, n_iterations), flat)
    end
    averaging = isnan(eta) ? nothing : PolynomialAveraging(eta, last(placed))
    slots = placed[2:(1 + n_slots(rule))]
    schedule = StepDecay(initial, factor, every)
    run = Run(objective, rule, draws, schedule, flat, slots, n_samples; averaging, done, target=goal, epsilon)
    copies = device == "cpu" ? () : Tuple(zip(owned, placed))
    return Session(run, ElboEstimate(run.objective, elbo_samples, flat), seed, copies)
end

"""Make updates up to number `last` or for some seconds; the number made in all, with a minus sign if the next is not finite."""
function advance_session!(session::Session, last::Int, seconds::Float64)
    finite = advance!(session.run, last, seconds)
    foreach(pair -> copyto!(pair...), session.copies)
    return finite ? session.run.done : -session.run.done - 1
end

"""Updates made; after an exception too, when the vectors are as that many updates left them."""
session_done(session::Session) = session.run.done

"""Whether the run is as near its target as it was to come."""
session_arrived(session::Session) = session.run.arrived

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

"""The ELBO from the draws so far and its standard error."""
elbo_of_session(session::Session) = result(session.estimate, session.run.objective, best(session.run))

"""Gradients (d x M) of the log density at the last points."""
slopes_of_session(session::Session) = in_memory(session.run.workspace.slopes)

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
