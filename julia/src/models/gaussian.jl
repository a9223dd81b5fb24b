"""Isotropic Gaussian of the synthetic experiment (paper, section 4.1)."""
struct IsotropicGaussian <: Model
    layout::Layout
    mean::Float64
    variance::Float64
end

# what Python's `to_julia` calls, as in each file here: see bridge.jl
gaussian_model(n_global, n_local, local_dim, mean, variance) =
    IsotropicGaussian(Layout(n_global, n_local, local_dim), mean, variance)

function log_density(model::IsotropicGaussian, points::AbstractMatrix)
    size(points, 1) == dim(model.layout) || throw(DimensionMismatch("points must have $(dim(model.layout)) rows"))
    T = eltype(points)
    constant = T(-dim(model.layout) / 2 * log(2π * model.variance))
    return column_sums(abs2.(points .- T(model.mean))) .* T(-0.5 / model.variance) .+ constant
end

function log_terms(model::IsotropicGaussian, points::AbstractMatrix)
    (; n_local, local_dim) = model.layout
    z, y = split_points(model.layout, points)
    normal(x) = abs2.(x .- model.mean) .* (-0.5 / model.variance) .- log(2π * model.variance) / 2
    blocks = reshape(normal(y), local_dim, n_local, size(points, 2))
    return column_sums(normal(z)), reshape(sum(blocks; dims=1), n_local, size(points, 2))
end

function log_density_gradient!(slopes::StridedMatrix{T}, model::IsotropicGaussian, points::StridedMatrix{T}, _) where {T}
    return slopes .= (T(model.mean) .- points) .* T(1 / model.variance)
end
