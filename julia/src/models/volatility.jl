"""
Multivariate stochastic volatility (paper, "Multivariate Stochastic Volatility").

`returns` is D x T. Globals: `[mu, logit-type phi, log tau, partial correlations]`; the local of time t is `y_t` (D).
"""
struct StochasticVolatility{A<:AbstractMatrix} <: Model
    layout::Layout
    returns::A
end

function StochasticVolatility(returns::AbstractMatrix)
    D, T = size(returns)
    T >= 2 || throw(ArgumentError("StochasticVolatility: returns must cover at least 2 times, got $T."))
    return StochasticVolatility(Layout(3D + D * (D - 1) ÷ 2, T, D), returns)
end

function log_density(model::StochasticVolatility, points::AbstractMatrix)
    z, y = split_points(model.layout, points)
    D, T = size(model.returns)
    return [density_of_point(model, z[:, m], reshape(y[:, m], D, T)) for m in axes(points, 2)]
end

"""Log density of one point: globals z, latent log volatilities y (D x T)."""
function density_of_point(model::StochasticVolatility, z::AbstractVector, y::AbstractMatrix)
    R, (D, T) = eltype(z), size(model.returns)
    mu, v, log_tau, correlations = z[1:D], z[(D + 1):(2D)], z[(2D + 1):(3D)], z[(3D + 1):end]
    phi, tau = tanh.(v ./ 2), exp.(log_tau)
    L, log_jacobian = lkj_cholesky(correlations, D)
    weights = R.(D .- (1:D))
    lkj = sum((weights .* log.(L[1:(D + 1):(D * D)]))[2:end]) - R(lkj_log_normalizer(D)) + log_jacobian
    prior =
        sum(-R(log(π * 10)) .- log1p.(abs2.(mu ./ 10))) + sum(uniform_on_tanh_scale.(v)) +
        sum(R(log(2 / (π * 5))) .- log1p.(abs2.(tau ./ 5)) .+ log_tau) + lkj
    scale = tau .* L
    centred = y .- mu
    innovations = hcat(centred[:, 1:1], centred[:, 2:end] .- phi .* centred[:, 1:(end - 1)])
    white = LinearAlgebra.LowerTriangular(scale) \ innovations
    log_det = sum(log_tau) + sum(log.(L[1:(D + 1):(D * D)]))
    path = -sum(abs2, white) / 2 - R(T) * log_det
    observed = -sum(y) / 2 - sum(abs2.(model.returns) .* exp.(-y)) / 2
    return prior + path + observed - R(D * T * log(2π))
end
