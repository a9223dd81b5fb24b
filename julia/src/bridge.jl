# What Python calls: plain values and NumPy memory in, plain values out.
#
# Python owns the long vectors. They are wrapped, not copied, so that both sides see the same memory; Python keeps them
# alive as long as it holds the run.

"""A NumPy array's memory as an `Array`; whatever is not one contiguous piece is copied."""
wrap(a::Array) = a
function wrap(a::AbstractArray{T,N}) where {T,N}
    contiguous = strides(a) == Base.size_to_strides(1, size(a)...)
    return contiguous ? unsafe_wrap(Array, pointer(a), size(a)) : Array{T,N}(a)
end

# ---- models, by Python's names. Tables arrive with their axes reversed: a row in Python is a column here. ------------
gaussian_model(n_global, n_local, local_dim, mean, variance) =
    IsotropicGaussian(Layout(n_global, n_local, local_dim), mean, variance)
rpoisson_model(X, y, offset) = RobustPoisson(permutedims(wrap(X)), Vector{Float64}(y), Vector{Float64}(offset))
irt_model(signs) = ItemResponse(copy(wrap(signs)))
volatility_model(returns) = StochasticVolatility(Matrix{Float64}(returns))

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
    start_session(model, family, rule, stepsize, vectors, settings...) -> Session

`vectors` are the flat parameters, the rule's slots and, where `eta` is a number, the average; all are updated in place,
from another device at the end of each `advance_session!`. `noise` is nothing or the user's draws (d x M x n_iterations).
"""
function start_session(
    model::Model, family::Family, rule::Rule, stepsize::Tuple, vectors::Tuple, noise, n_samples::Int, elbo_samples::Int,
    seed::AbstractString, eta, done::Int, device::AbstractString="cpu",
)
    owned = map(wrap, vectors)
    flat, others... = placed = map(v -> on_device(v, Val(Symbol(device))), owned)
    objective = Objective(model, family; energy_only=rule.energy_only)
    draws = isnothing(noise) ? NoiseStream(family.base, seed, dim(model.layout), n_samples, flat) : GivenNoise(wrap(noise), flat)
    averaging = isnothing(eta) ? nothing : PolynomialAveraging(Float64(eta), last(others))
    slots = typeof(flat)[others[k] for k in 1:n_slots(rule)]
    run = Run(objective, rule, draws, StepDecay(stepsize...), flat, slots, n_samples; averaging, done)
    copies = device == "cpu" ? () : map(tuple, owned, placed)
    return Session(run, ElboEstimate(run.objective, elbo_samples, flat), String(seed), copies)
end

"""Make updates up to number `last` or for some seconds; the number made in all, with a minus sign if the next is not finite."""
function advance_session!(session::Session, last::Int, seconds::Float64)
    finite = advance!(session.run, last, seconds)
    foreach(pair -> copyto!(pair...), session.copies)
    return finite ? session.run.done : -session.run.done - 1
end

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
"""Log density (M) of points (d x M), in place."""
function log_density_at!(values::AbstractVector, model::Model, points::AbstractMatrix)
    batch = wrap(points)
    log_density!(wrap(values), model, batch, scratch(model, eltype(batch)))
    return nothing
end

"""Gradient (d x M) of the log density, in place."""
function gradient_at!(slopes::AbstractMatrix, model::Model, points::AbstractMatrix)
    batch = wrap(points)
    log_density_gradient!(wrap(slopes), model, batch, scratch(model, eltype(batch)))
    return nothing
end

"""An exception's own words, without the stack."""
message_of(error) = sprint(showerror, error)
