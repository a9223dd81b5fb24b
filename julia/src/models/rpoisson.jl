"""
Poisson regression with a normal error on each log rate (paper, "Robust Poisson Regression").

`X` is N x p. Globals: `[log s_alpha, log s_beta, log s_eta, alpha, beta_1..beta_p]`; the local of row i is `eta_i`.
`large_counts` says that a log density in Float32 needs its terms of the counts in Float64.
"""
struct RobustPoisson{A<:AbstractMatrix,Y<:AbstractVector,V<:AbstractVector} <: Model
    layout::Layout
    X::A
    y::Y
    offset::V
    constant::Float64
    large_counts::Bool
end

const LARGEST_LOSS = 0.01  # nats that a log density may lose in Float32

function RobustPoisson(X::AbstractMatrix, y::AbstractVector, offset::AbstractVector)
    n, p = size(X)
    n == length(y) == length(offset) ||
        throw(DimensionMismatch("X has $n rows, y has $(length(y)) and offset has $(length(offset))"))
    factorials = sum(loggamma.(y .+ 1))
    # rounding of Float32 in y eta and exp(eta) at eta = log y, as it adds up over the rows
    loss = sqrt(sum(abs2, y .* log1p.(y))) * 2.0^-24
    constant = -factorials - (1 + p + n) / 2 * log(2π)
    return RobustPoisson(Layout(4 + p, n, 1), X, y, offset, constant, loss > LARGEST_LOSS)
end

function rpoisson_model(X::Int, y::Int, offset::Int, n::Int, p::Int)
    rows = memory(Float64, X, p, n)
    return RobustPoisson(permutedims(rows), copy(memory(Float64, y, n)), copy(memory(Float64, offset, n)))
end

function beside(model::RobustPoisson, flat::AbstractVector{T}) where {T}
    X, offset = (beside(T.(A), flat) for A in (model.X, model.offset))
    y = beside(model.large_counts ? Float64.(model.y) : T.(model.y), flat)
    return RobustPoisson(model.layout, X, y, offset, model.constant, model.large_counts)
end

function log_density(model::RobustPoisson, points::AbstractMatrix)
    T, (n, p) = eltype(points), size(model.X)
    z, eta = split_points(model.layout, points)
    log_scales, alpha, beta = z[1:3, :], z[4:4, :], z[5:end, :]
    residual = eta .- model.X * beta .- alpha .- model.offset
    squares = vcat(abs2.(alpha), sum(abs2, beta; dims=1), sum(abs2, residual; dims=1))
    sized = vcat(log_scales[1:1, :], T(p) .* log_scales[2:2, :], T(n) .* log_scales[3:3, :])
    normal = squares .* exp.(-2 .* log_scales) ./ -2 .- sized
    prior = half_student_t4_on_log_scale.(log_scales)
    terms = model.large_counts ? Float64.(eta) : eta
    poisson = column_sums(terms .* model.y .- exp.(terms))
    return column_sums(normal .+ prior) .+ (poisson .+ eltype(poisson)(model.constant))
end

function log_terms(model::RobustPoisson, points::AbstractMatrix)
    p = size(model.X, 2)
    z, eta = split_points(model.layout, points)
    log_scales, alpha, beta = z[1:3, :], z[4:4, :], z[5:end, :]
    residual = eta .- model.X * beta .- alpha .- model.offset
    squares = vcat(abs2.(alpha), sum(abs2, beta; dims=1))
    sized = vcat(log_scales[1:1, :], p .* log_scales[2:2, :])
    normal = squares .* exp.(-2 .* log_scales[1:2, :]) ./ -2 .- sized
    prior = column_sums(normal) .+ column_sums(half_student_t4_on_log_scale.(log_scales)) .- (1 + p) / 2 * log(2π)
    poisson = eta .* model.y .- exp.(eta) .- loggamma.(model.y .+ 1)
    noise = abs2.(residual) .* exp.(-2 .* log_scales[3:3, :]) ./ -2 .- log_scales[3:3, :]
    return prior, poisson .+ noise .- log(2π) / 2
end
