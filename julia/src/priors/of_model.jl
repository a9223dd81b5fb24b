# The priors of a model's standard deviations, where they are not its usual ones: the model's own loops do the work.

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

"""What the other prior adds to each point's log density."""
function changes_of_density(model::OtherPrior, points::AbstractMatrix)
    v = points[model.places, :]
    return column_sums(log_density_of.((model.prior,), v) .- log_density_of.((model.usual,), v))
end

log_density(model::OtherPrior, points::AbstractMatrix) =
    log_density(model.inner, points) .+ changes_of_density(model, points)

function log_terms(model::OtherPrior, points::AbstractMatrix)
    global_term, local_terms = log_terms(model.inner, points)
    return global_term .+ changes_of_density(model, points), local_terms
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
