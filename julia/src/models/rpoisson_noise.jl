# Robust Poisson regression whose locals are the noise of the log rates, as it is or standardized.

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
