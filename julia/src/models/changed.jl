# Models seen otherwise: with other priors of their scales, or in other coordinates. Each holds the model that it changes,
# whose loops do the work; the paper's released code is a few of these (`load_problem(variant="released")` in Python).

"""
    OtherPrior(inner, places, prior, usual)

`inner` with `prior` in place of `usual` for the standard deviations whose logarithms stand at `places`.
"""
struct OtherPrior{M<:Model,A<:ScalePrior,B<:ScalePrior} <: Model
    layout::Layout
    inner::M
    places::UnitRange{Int}
    prior::A
    usual::B
end

OtherPrior(inner::Model, places::UnitRange{Int}, prior::ScalePrior, usual::ScalePrior) =
    OtherPrior(inner.layout, inner, places, prior, usual)

other_prior(inner::Model, first::Int, last::Int, prior::ScalePrior, usual::ScalePrior) =
    OtherPrior(inner, first:last, prior, usual)

beside(model::OtherPrior, flat::AbstractVector) =
    OtherPrior(model.layout, beside(model.inner, flat), model.places, model.prior, model.usual)
scratch(model::OtherPrior, ::Type{T}) where {T} = scratch(model.inner, T)

change_of_density(model::OtherPrior, v::Real) = log_density_of(model.prior, v) - log_density_of(model.usual, v)

function log_density(model::OtherPrior, points::AbstractMatrix)
    v = points[model.places, :]
    changes = log_density_of.((model.prior,), v) .- log_density_of.((model.usual,), v)
    return log_density(model.inner, points) .+ column_sums(changes)
end

function add_changes!(values::AbstractVector, model::OtherPrior, points::AbstractMatrix)
    for m in axes(points, 2), k in model.places
        values[m] += change_of_density(model, Float64(points[k, m]))
    end
    return values
end

function add_change_slopes!(slopes::AbstractMatrix{T}, model::OtherPrior, points::AbstractMatrix) where {T}
    for m in axes(points, 2), k in model.places
        v = Float64(points[k, m])
        slopes[k, m] += T(slope_of(model.prior, v) - slope_of(model.usual, v))
    end
    return slopes
end

function log_density!(values::AbstractVector, model::OtherPrior, points::StridedMatrix, scratch)
    log_density!(values, model.inner, points, scratch)
    return add_changes!(values, model, points)
end

function log_density_gradient!(slopes::StridedMatrix, model::OtherPrior, points::StridedMatrix, scratch)
    log_density_gradient!(slopes, model.inner, points, scratch)
    return add_change_slopes!(slopes, model, points)
end

function log_density_and_gradient!(
    values::AbstractVector, slopes::StridedMatrix, model::OtherPrior, points::StridedMatrix, scratch
)
    log_density_and_gradient!(values, slopes, model.inner, points, scratch)
    add_changes!(values, model, points)
    add_change_slopes!(slopes, model, points)
    return nothing
end

# ---- other coordinates ----------------------------------------------------------------------------------------------
"""
A model in other coordinates. `inward(model, points)` gives the inner model's points, `log_jacobian(model, points)` what
their density gains a point, and `outward!(slopes, model, points, inner)` the slopes from the inner points' slopes.
"""
abstract type InOtherCoordinates <: Model end

scratch(model::InOtherCoordinates, ::Type{T}) where {T} = scratch(model.inner, T)

log_density(model::InOtherCoordinates, points::AbstractMatrix) =
    log_density(model.inner, inward(model, points)) .+ log_jacobian(model, points)

function log_density!(values::AbstractVector, model::InOtherCoordinates, points::StridedMatrix, scratch)
    log_density!(values, model.inner, inward(model, points), scratch)
    return values .+= log_jacobian(model, points)
end

function log_density_gradient!(slopes::StridedMatrix, model::InOtherCoordinates, points::StridedMatrix, scratch)
    inner = similar(slopes, size(points))
    log_density_gradient!(inner, model.inner, inward(model, points), scratch)
    return outward!(slopes, model, points, inner)
end

function log_density_and_gradient!(
    values::AbstractVector, slopes::StridedMatrix, model::InOtherCoordinates, points::StridedMatrix, scratch
)
    inner = similar(slopes, size(points))
    log_density_and_gradient!(values, inner, model.inner, inward(model, points), scratch)
    values .+= log_jacobian(model, points)
    outward!(slopes, model, points, inner)
    return nothing
end

"""
    Noise(inner, standardized)

`RobustPoisson` whose local of row i is the noise `eta_i - x_i beta - alpha - offset_i`, or that over `s_eta`.
"""
struct Noise{M<:RobustPoisson} <: InOtherCoordinates
    layout::Layout
    inner::M
    standardized::Bool
end

rpoisson_noise(inner::RobustPoisson, standardized::Bool) = Noise(inner.layout, inner, standardized)

beside(model::Noise, flat::AbstractVector) = Noise(model.layout, beside(model.inner, flat), model.standardized)

"""An array of numbers as T, itself where it is that already."""
in_precision(::Type{T}, A::AbstractArray) where {T} = eltype(A) == T ? A : T.(A)

"""How wide the noise is in units of the locals, 1 x M."""
widths(model::Noise, points::AbstractMatrix) = exp.(ifelse(model.standardized, 1, 0) .* points[3:3, :])

function inward(model::Noise, points::AbstractMatrix)
    z, w = split_points(model.layout, points)
    T = eltype(points)
    X, offset = in_precision(T, model.inner.X), in_precision(T, model.inner.offset)
    eta = widths(model, points) .* w .+ X * z[5:end, :] .+ z[4:4, :] .+ offset
    return vcat(z, eta)
end

log_jacobian(model::Noise, points::AbstractMatrix) =
    ifelse(model.standardized, model.layout.n_local, 0) .* points[3, :]

function outward!(slopes::AbstractMatrix{T}, model::Noise, points::AbstractMatrix, inner::AbstractMatrix) where {T}
    X, rows = in_precision(T, model.inner.X), local_range(model.layout)
    width, from_eta, w = widths(model, points), inner[rows, :], points[rows, :]
    copyto!(slopes, inner)
    slopes[4:4, :] .+= sum(from_eta; dims=1)
    slopes[5:(4 + size(X, 2)), :] .+= X' * from_eta
    if model.standardized
        slopes[3:3, :] .+= width .* sum(from_eta .* w; dims=1) .+ size(X, 1)
    end
    slopes[rows, :] .= width .* from_eta
    return slopes
end

"""
    Difficulties(inner)

`ItemResponse` whose `beta` and `mu_beta` are subtracted in the logit.
"""
struct Difficulties{M<:ItemResponse,S<:AbstractVector} <: InOtherCoordinates
    layout::Layout
    inner::M
    signs::S
end

function irt_difficulties(inner::ItemResponse)
    K = size(inner.signs, 1)
    signs = ones(dim(inner.layout))
    signs[[1; (4 + K):(3 + 2K)]] .= -1
    return Difficulties(inner.layout, inner, signs)
end

function beside(model::Difficulties, flat::AbstractVector)
    inner = beside(model.inner, flat)
    return Difficulties(model.layout, inner, beside(eltype(flat).(model.signs), flat))
end

inward(model::Difficulties, points::AbstractMatrix) = in_precision(eltype(points), model.signs) .* points
log_jacobian(::Difficulties, points::AbstractMatrix) = zero(eltype(points))
outward!(slopes::AbstractMatrix{T}, model::Difficulties, ::AbstractMatrix, inner::AbstractMatrix) where {T} =
    slopes .= in_precision(T, model.signs) .* inner

"""
    ByColumns(inner)

`StochasticVolatility` whose partial correlations stand column by column.
"""
struct ByColumns{M<:StochasticVolatility} <: InOtherCoordinates
    layout::Layout
    inner::M
    order::Vector{Int}  # where each coordinate of the inner model stands
end

function volatility_by_columns(inner::StochasticVolatility)
    D = size(inner.returns, 1)
    places = partial_correlation_places(D)
    by_columns = sortperm(places; by=reverse)  # the place in rows of each that stands by columns
    order = collect(1:dim(inner.layout))
    order[3D .+ (1:length(places))] .= 3D .+ invperm(by_columns)
    return ByColumns(inner.layout, inner, order)
end

beside(model::ByColumns, flat::AbstractVector) = ByColumns(model.layout, beside(model.inner, flat), model.order)
inward(model::ByColumns, points::AbstractMatrix) = points[model.order, :]
log_jacobian(::ByColumns, points::AbstractMatrix) = zero(eltype(points))

function outward!(slopes::AbstractMatrix, model::ByColumns, ::AbstractMatrix, inner::AbstractMatrix)
    slopes[model.order, :] .= inner
    return slopes
end
