# What a model is to the engine: a layout and a log density over `[z, y_1, ..., y_N]` in unconstrained space.

"""
    Model

`log_density(model, points)` gives the fully normalized log density, log-Jacobians included, of each column of a
`d x M` matrix. It is written in whole arrays, so that Zygote differentiates it and GPU arrays can run it.
"""
abstract type Model end

# ---- in place, for the engine's loop --------------------------------------------------------------------------------
# A model may give faster methods for dense matrices on the CPU; these serve every other model and every other array.

"""
    scratch(model, T)

Buffers of precision T that `log_density!` and `log_density_gradient!` may overwrite; `nothing` where none are needed.
"""
scratch(::Model, ::Type) = nothing

"""
    log_density!(values, model, points, scratch)

Write the log density of each column of `points` into `values`.
"""
function log_density!(values::AbstractVector, model::Model, points::AbstractMatrix, _)
    return copyto!(values, in_memory(log_density(model, points)))
end

"""
    log_density_gradient!(slopes, model, points, scratch)

Write the gradient of each column's log density into `slopes`, of the size of `points`. Not finite where the density
is not; never throws for that.
"""
function log_density_gradient!(slopes::AbstractMatrix, model::Model, points::AbstractMatrix, _)
    return copyto!(slopes, only(Zygote.gradient(x -> sum(log_density(model, x)), points)))
end

"""
    log_density_and_gradient!(values, slopes, model, points, scratch)

Both at once: a model may have one pass for the two.
"""
function log_density_and_gradient!(values, slopes::AbstractMatrix, model::Model, points::AbstractMatrix, scratch)
    log_density!(values, model, points, scratch)
    log_density_gradient!(slopes, model, points, scratch)
    return nothing
end

"""
    log_terms(model, points)

The log density as a sum: the global term of each point, and an `N x M` matrix of terms, of which the n-th depends on no
local but the n-th. For models whose locals are independent given the globals; in whole arrays, as `log_density`.
"""
function log_terms end

"""
    log_terms_and_gradient(model, points, weights)

`log_terms`, and the gradient of the global term plus the sum of the local ones, weighted by `weights` (`N x M`).
"""
function log_terms_and_gradient(model::Model, points::AbstractMatrix, weights::AbstractMatrix)
    (global_term, local_terms), pullback = Zygote.pullback(x -> log_terms(model, x), points)
    return global_term, local_terms, only(pullback((one.(global_term), weights)))
end

function check_size(model::Model, points::AbstractMatrix, results_fit::Bool)
    size(points, 1) == dim(model.layout) && results_fit ||
        throw(DimensionMismatch("points must have $(dim(model.layout)) rows and results the size of points"))
    return nothing
end

"""An array of the CPU as a plain `Array`; one of another device as it is."""
on_host(A::AbstractArray) = similar(A, Int8, ntuple(zero, ndims(A))) isa Array
plain_on_host(A::AbstractArray) = on_host(A) ? convert(Array, A) : A

in_memory(A::Array) = A
in_memory(A::AbstractArray) = Array(A)

"""
    beside(model, flat)

The model with its data where the parameters `flat` lie, in their precision; itself if it has no arrays.
"""
beside(model::Model, ::AbstractVector) = model

"""A copy of an array where `flat` lies."""
beside(A::AbstractArray, flat::AbstractVector) = copyto!(similar(flat, eltype(A), size(A)), Array(A))

"""An array of numbers as T, itself where it is that already."""
in_precision(::Type{T}, A::AbstractArray) where {T} = eltype(A) == T ? A : T.(A)

"""Split points into the globals (d_z x M) and the locals (N d_y x M)."""
function split_points(layout::Layout, points::AbstractMatrix)
    size(points, 1) == dim(layout) ||
        throw(DimensionMismatch("points must have $(dim(layout)) rows, got $(size(points, 1))"))
    return points[global_range(layout), :], points[local_range(layout), :]
end

column_sums(A::AbstractMatrix) = vec(sum(A; dims=1))

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

"""The locals share the log-Jacobian equally."""
function log_terms(model::InOtherCoordinates, points::AbstractMatrix)
    global_term, local_terms = log_terms(model.inner, inward(model, points))
    return global_term, local_terms .+ transpose(log_jacobian(model, points)) ./ model.layout.n_local
end
