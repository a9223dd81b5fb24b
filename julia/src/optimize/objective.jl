"""
    Objective(model, family; energy_only=false)

The negative ELBO of a family's member as a function of its flat parameters and of noise `U` (d x M); with `energy_only`
the entropy is left out, for the proximal operator.
"""
struct Objective{M<:Model,F<:Family,P<:ScalePattern}
    model::M
    family::F
    pattern::P
    energy_only::Bool
end

function Objective(model::Model, family::Family; energy_only::Bool=false)
    return Objective(model, family, ScalePattern(family, model.layout), energy_only)
end

"""The same objective with its model and pattern where the parameters `flat` lie; itself on the CPU."""
beside(objective::Objective, ::Vector) = objective
function beside(objective::Objective, flat::AbstractVector)
    (; model, family, pattern, energy_only) = objective
    return Objective(beside(model, flat), family, beside(pattern, flat), energy_only)
end

function (objective::Objective)(flat::AbstractVector, U::AbstractMatrix)
    family, pattern, layout = objective.family, objective.pattern, objective.model.layout
    points = transform(family, layout, pattern, flat, U)
    energy = -sum(log_density(objective.model, points)) / size(U, 2)
    return objective.energy_only ? energy : energy - entropy(family, pattern, flat)
end

"""Gradient of the objective with respect to the flat parameters, by Zygote alone."""
function gradient(objective::Objective, flat::AbstractVector, U::AbstractMatrix)
    return only(Zygote.gradient(parameters -> objective(parameters, U), flat))
end

# ---- the same in place, for the loop ------------------------------------------------------------------------------
"""
    Workspace(objective, n_samples, flat)

Buffers for gradients with `n_samples` points, in the precision and on the device of the parameters `flat`.
"""
struct Workspace{A<:AbstractMatrix,S}
    points::A
    slopes::A
    scratch::S
end

function Workspace(objective::Objective, n_samples::Int, flat::AbstractVector)
    d = dim(objective.model.layout)
    return Workspace(similar(flat, d, n_samples), similar(flat, d, n_samples), scratch(objective.model, eltype(flat)))
end

"""
    gradient!(out, objective, flat, U, workspace) -> Bool

Write the objective's gradient into `out`; false if it is not finite (`out` is then unusable).
"""
function gradient!(
    out::AbstractVector{T}, objective::Objective, flat::AbstractVector{T}, U::AbstractMatrix, workspace::Workspace
) where {T}
    family, pattern, layout = objective.family, objective.pattern, objective.model.layout
    points, slopes = workspace.points, workspace.slopes
    transform!(points, family, layout, pattern, flat, U)
    log_density_gradient!(slopes, objective.model, points, workspace.scratch)
    # the squared norm overflows wherever an optimizer's second moment would
    isfinite(sum(abs2, slopes)) || return false
    slopes .*= -one(T) / size(U, 2)
    pullback!(out, family, layout, pattern, flat, U, points, slopes)
    return objective.energy_only || subtract_entropy_gradient!(out, pattern, flat)
end

"""Take `1 / C_ii` from the diagonal's gradient; false if that is not finite."""
function subtract_entropy_gradient!(out::AbstractVector{T}, pattern::ScalePattern, flat::AbstractVector{T}) where {T}
    d, total = pattern.dim, zero(T)
    for k in diagonal(pattern)
        inverse = inv(flat[d + k])
        total += abs2(inverse)
        out[d + k] -= inverse
    end
    return isfinite(total)
end

# ---- the ELBO -----------------------------------------------------------------------------------------------------
const ELBO_CHUNK_BYTES = 2 << 20

"""Points in one cache-sized piece of an ELBO estimate."""
elbo_chunk(dim::Int, n_samples::Int, ::Type{T}) where {T} = clamp(ELBO_CHUNK_BYTES ÷ (sizeof(T) * dim), 1, n_samples)

"""
    ElboEstimate(objective, n_samples, flat)

Buffers and log densities of an estimate of the ELBO from `n_samples` draws, made piece by piece with `add_piece!`, in the
precision and on the device of the parameters `flat`.
"""
mutable struct ElboEstimate{D<:Draws,A<:AbstractMatrix,S}
    const values::Vector{Float64}
    const noise::D
    const points::A
    const scratch::S
    done::Int
end

function ElboEstimate(objective::Objective, n_samples::Int, flat::AbstractVector{T}) where {T}
    d = dim(objective.model.layout)
    piece = d, elbo_chunk(d, n_samples, T)
    return ElboEstimate(zeros(n_samples), Draws(flat, piece...), similar(flat, piece), scratch(objective.model, T), 0)
end

"""
Add the next piece at the parameters `flat`. The draws depend on the seed and the iteration only, so a trace is the
same however often it is taken.
"""
function add_piece!(estimate::ElboEstimate, objective::Objective, flat::AbstractVector, seed::AbstractString, iteration::Int)
    chunk = size(estimate.points, 2)
    columns = 1:min(chunk, length(estimate.values) - estimate.done)
    noise, points = @views estimate.noise.array[:, columns], estimate.points[:, columns]
    # always the whole buffer: what a generator gives depends on the kind and length of array it fills
    fill_noise!(generator(seed, ELBO_STREAM, iteration, estimate.done ÷ chunk), objective.family.base, estimate.noise.host)
    send!(estimate.noise)
    transform!(points, objective.family, objective.model.layout, objective.pattern, flat, noise)
    values = @view estimate.values[estimate.done .+ columns]
    log_density!(values, objective.model, points, estimate.scratch)
    estimate.done += length(columns)
    return estimate
end

"""The ELBO and its Monte Carlo standard error, from the pieces so far."""
function result(estimate::ElboEstimate, objective::Objective, flat::AbstractVector)
    values = @view estimate.values[1:(estimate.done)]
    n = length(values)
    mean = sum(values) / n
    error = sqrt(sum(x -> abs2(x - mean), values) / (n - 1) / n)
    return mean + entropy(objective.family, objective.pattern, flat), error
end
