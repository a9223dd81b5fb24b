"""
Poisson regression with a normal error on each log rate (paper, "Robust Poisson Regression").

`X` is N x p. Globals: `[log s_alpha, log s_beta, log s_eta, alpha, beta_1..beta_p]`; the local of row i is `eta_i`.
"""
struct RobustPoisson{A<:AbstractMatrix,V<:AbstractVector} <: Model
    layout::Layout
    X::A
    y::V
    offset::V
    constant::Float64
end

function RobustPoisson(X::AbstractMatrix, y::AbstractVector, offset::AbstractVector)
    n, p = size(X)
    n == length(y) == length(offset) ||
        throw(DimensionMismatch("X has $n rows, y has $(length(y)) and offset has $(length(offset))"))
    factorials = sum(loggamma.(y .+ 1))
    return RobustPoisson(Layout(4 + p, n, 1), X, y, offset, -factorials - (1 + p + n) / 2 * log(2π))
end

function log_density(model::RobustPoisson, points::AbstractMatrix)
    T, (n, p) = eltype(points), size(model.X)
    z, eta = split_points(model.layout, points)
    log_scales, alpha, beta = z[1:3, :], z[4:4, :], z[5:end, :]
    residual = eta .- model.X * beta .- alpha .- model.offset
    squares = vcat(abs2.(alpha), sum(abs2, beta; dims=1), sum(abs2, residual; dims=1))
    sizes = T[1, p, n]
    normal = squares .* exp.(-2 .* log_scales) ./ -2 .- sizes .* log_scales
    prior = half_student_t4_on_log_scale.(log_scales)
    poisson = column_sums(eta .* model.y .- exp.(eta))
    return column_sums(normal .+ prior) .+ poisson .+ T(model.constant)
end
