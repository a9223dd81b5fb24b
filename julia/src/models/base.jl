# What a model is to the engine: a layout and a log density over `[z, y_1, ..., y_N]` in unconstrained space.

"""
    Model

`log_density(model, points)` gives the fully normalized log density, log-Jacobians included, of each column of a
`d x M` matrix. It is written in whole arrays, so that Zygote differentiates it and GPU arrays can run it.
"""
abstract type Model end

"""Split points into the globals (d_z x M) and the locals (N d_y x M)."""
function split_points(layout::Layout, points::AbstractMatrix)
    size(points, 1) == dim(layout) ||
        throw(DimensionMismatch("points must have $(dim(layout)) rows, got $(size(points, 1))"))
    return points[global_range(layout), :], points[local_range(layout), :]
end

column_sums(A::AbstractMatrix) = vec(sum(A; dims=1))
