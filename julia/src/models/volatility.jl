"""
Multivariate stochastic volatility (paper, "Multivariate Stochastic Volatility").

`returns` is D x T, NaN where one is missing: it is left out of the likelihood. Globals: `[mu, logit-type phi, log tau, partial
correlations]`; the local of time t is `y_t` (D). With `shocks` Q is `L diag(tau)^2 L'` in place of `diag(tau) L L' diag(tau)`; the
likelihood takes log variances no farther than `bound` from 0.
"""
struct StochasticVolatility{A<:AbstractMatrix} <: Model
    layout::Layout
    returns::A
    half_squares::A  # x^2 / 2, and what weighs y: 1/2; both 0 where the return is missing
    halves::A
    n_observed::Int
    shocks::Bool
    bound::Float64
end

function StochasticVolatility(returns::AbstractMatrix; shocks::Bool=false, bound::Float64=Inf)
    D, T = size(returns)
    T >= 2 || throw(ArgumentError("StochasticVolatility: returns must cover at least 2 times, got $T."))
    given = plain_on_host(float(returns))
    observed = .!isnan.(given)
    half_squares = abs2.(ifelse.(observed, given, zero(eltype(given)))) ./ 2
    halves = convert(typeof(given), observed ./ 2)
    return StochasticVolatility(Layout(3D + D * (D - 1) ÷ 2, T, D), given, half_squares, halves, sum(observed), shocks, bound)
end

volatility_model(returns::Int, n_times::Int, n_series::Int, shocks::Bool=false, bound::Float64=Inf) =
    StochasticVolatility(copy(memory(Float64, returns, n_series, n_times)); shocks, bound)

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
    scale = model.shocks ? L .* tau' : tau .* L
    centred = y .- mu
    innovations = hcat(centred[:, 1:1], centred[:, 2:end] .- phi .* centred[:, 1:(end - 1)])
    white = LinearAlgebra.LowerTriangular(scale) \ innovations
    log_det = sum(log_tau) + sum(log.(L[1:(D + 1):(D * D)]))
    path = -sum(abs2, white) / 2 - R(T) * log_det
    seen = isfinite(model.bound) ? clamp.(y, R(-model.bound), R(model.bound)) : y
    observed = -sum(model.halves .* seen) - sum(model.half_squares .* exp.(-seen))
    return prior + path + observed - R((D * T + model.n_observed) / 2 * log(2π))
end

# ---- in place, on the CPU -------------------------------------------------------------------------------------------
# Times run in blocks that stay in the cache, turned so that the times of a series stand side by side: every loop over
# times is then one of vectors, whatever D is. The innovations r_t = (y_t - mu) - phi (y_{t-1} - mu), none lagged at
# t = 1, are whitened by W = L^-1 diag(1/tau), or diag(1/tau) L^-1 with `shocks`; pulled_t = -W'W r_t is the gradient
# with respect to r_t.

const HostVolatility = StochasticVolatility{<:Matrix}
const BLOCK_TIMES = 64

"""Buffers: data, globals of one point, and for a block of times one row a time."""
struct VolatilityBuffers{T}
    half_squares::Vector{T}
    halves::Vector{T}
    z::Vector{Float64}
    phi::Vector{Float64}
    tau::Vector{Float64}
    slopes::Vector{Float64}
    factor::Matrix{Float64}
    remainder::Matrix{Float64}
    whiten::Matrix{Float64}
    factor_slopes::Matrix{Float64}
    shocks::Bool
    bound::T
    sums::Matrix{Float64}  # D x 3: of pulled_t, of -pulled_t (y_{t-1} - mu), and pulled_1
    centred::Matrix{T}  # one row more: the time before the block comes first
    innovations::Matrix{T}
    white::Matrix{T}
    pulled::Matrix{T}
end

function scratch(model::HostVolatility, ::Type{T}) where {T<:Union{Float32,Float64}}
    D, n_global = size(model.returns, 1), model.layout.n_global
    return VolatilityBuffers{T}(
        vec(model.half_squares),
        vec(model.halves),
        zeros(n_global),
        zeros(D),
        zeros(D),
        zeros(n_global),
        (zeros(D, D) for _ in 1:4)...,
        model.shocks,
        T(model.bound),
        zeros(D, 3),
        zeros(T, BLOCK_TIMES + 1, D),
        (zeros(T, BLOCK_TIMES, D) for _ in 1:3)...,
    )
end

function log_density!(
    values::AbstractVector, model::HostVolatility, points::StridedMatrix{T}, buffers::VolatilityBuffers{T}
) where {T}
    check_size(model, points, length(values) == size(points, 2))
    D, n_times = size(model.returns)
    for m in axes(points, 2)
        prepare_globals!(buffers, points, m, D)
        y = @view points[local_range(model.layout), m]
        squares = 0.0
        for start in 0:BLOCK_TIMES:(n_times - 1)
            count = min(BLOCK_TIMES, n_times - start)
            innovate!(buffers, y, start, count)
            whiten!(buffers, count)
            for i in 1:D
                squares += sum_squares(buffers.white, i, count)
            end
        end
        values[m] = global_density(model, buffers.z) - squares / 2 - observed(buffers, y)
    end
    return values
end

function log_density_gradient!(
    slopes::StridedMatrix{T}, model::HostVolatility, points::StridedMatrix{T}, buffers::VolatilityBuffers{T}
) where {T}
    log_density_and_gradient!(nothing, slopes, model, points, buffers)
    return slopes
end

function log_density_and_gradient!(
    values::Union{Nothing,AbstractVector}, slopes::StridedMatrix{T}, model::HostVolatility, points::StridedMatrix{T},
    buffers::VolatilityBuffers{T},
) where {T}
    check_size(model, points, size(slopes) == size(points))
    D, n_times = size(model.returns)
    rows = local_range(model.layout)
    for m in axes(points, 2)
        prepare_globals!(buffers, points, m, D)
        fill!(buffers.factor_slopes, 0.0)
        fill!(buffers.sums, 0.0)
        y, out = view(points, rows, m), view(slopes, rows, m)
        observed_slopes!(out, buffers, y)
        squares = 0.0
        for start in 0:BLOCK_TIMES:(n_times - 1)
            count = min(BLOCK_TIMES, n_times - start)
            innovate!(buffers, y, start, count)
            whiten!(buffers, count)
            pull!(buffers, count)
            add_sums!(buffers, start, count)
            add_pulled!(out, buffers, start, count)
            if !isnothing(values)
                for i in 1:D
                    squares += sum_squares(buffers.white, i, count)
                end
            end
        end
        isnothing(values) || (values[m] = global_density(model, buffers.z) - squares / 2 - observed(buffers, y))
        global_slopes!(buffers, n_times)
        for k in eachindex(buffers.slopes)
            slopes[k, m] = buffers.slopes[k]
        end
    end
    return nothing
end

"""`sum y/2 + x^2 exp(-y)/2` over the returns there are, their log density with the sign turned and without its constant."""
function observed(buffers::VolatilityBuffers{T}, y::AbstractVector{T}) where {T}
    (; half_squares, halves) = buffers
    total = 0.0
    if isfinite(buffers.bound)
        for n in eachindex(half_squares, halves)
            seen = clamp(y[n], -buffers.bound, buffers.bound)
            total += Float64(halves[n] * seen) + Float64(half_squares[n] * exp(-seen))
        end
        return total
    end
    @inbounds @simd for n in eachindex(half_squares, halves)
        total += Float64(halves[n] * y[n]) + Float64(half_squares[n] * fast_exp(-y[n]))
    end
    return total
end

function observed_slopes!(out::AbstractVector{T}, buffers::VolatilityBuffers{T}, y::AbstractVector{T}) where {T}
    (; half_squares, halves) = buffers
    if isfinite(buffers.bound)  # beyond it the likelihood is flat
        for n in eachindex(half_squares, halves)
            out[n] = abs(y[n]) <= buffers.bound ? half_squares[n] * exp(-y[n]) - halves[n] : zero(T)
            isfinite(y[n]) || (out[n] = y[n] - y[n])
        end
        return nothing
    end
    @inbounds @simd ivdep for n in eachindex(half_squares, halves)
        out[n] = muladd(half_squares[n], fast_exp(-y[n]), -halves[n])
    end
    return nothing
end
