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
# t = 1, are whitened by W = L^-1 diag(1/tau); pulled_t = -W'W r_t is the gradient with respect to r_t.

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

"""Read one point's globals, and fill `factor`, `remainder` and `whiten`: not finite where L is singular."""
function prepare_globals!(buffers::VolatilityBuffers, points::AbstractMatrix, m::Int, D::Int)
    (; z, phi, tau, factor, remainder, whiten) = buffers
    for k in eachindex(z)
        z[k] = points[k, m]
    end
    for i in 1:D
        phi[i], tau[i] = tanh(z[D + i] / 2), exp(z[2D + i])
    end
    lkj_cholesky!(factor, remainder, view(z, (3D + 1):length(z)))
    fill!(whiten, 0.0)
    @inbounds for j in 1:D, i in j:D
        total = i == j ? 1.0 : 0.0
        for k in j:(i - 1)
            total -= factor[i, k] * whiten[k, j]
        end
        whiten[i, j] = total / factor[i, i]
    end
    @inbounds for j in 1:D, i in j:D
        whiten[i, j] /= buffers.shocks ? tau[i] : tau[j]
    end
    return nothing
end

"""Centred log volatilities and innovations of a block of times."""
function innovate!(buffers::VolatilityBuffers{T}, y::AbstractVector{T}, start::Int, count::Int) where {T}
    (; centred, innovations) = buffers
    D = size(innovations, 2)
    @inbounds for i in 1:D
        mu, phi = T(buffers.z[i]), T(buffers.phi[i])
        centred[1, i] = start == 0 ? zero(T) : y[(start - 1) * D + i] - mu
        for t in 1:count
            centred[t + 1, i] = y[(start + t - 1) * D + i] - mu
        end
        @simd ivdep for t in 1:count
            innovations[t, i] = centred[t + 1, i] - phi * centred[t, i]
        end
        if start == 0
            innovations[1, i] = centred[2, i]
        end
    end
    return nothing
end

"""`white = innovations W'` of a block."""
function whiten!(buffers::VolatilityBuffers{T}, count::Int) where {T}
    (; innovations, white, whiten) = buffers
    @inbounds for i in axes(white, 2)
        set_column!(white, i, T(whiten[i, 1]), innovations, 1, count)
        for j in 2:i
            add_column!(white, i, T(whiten[i, j]), innovations, j, count)
        end
    end
    return nothing
end

"""`pulled = -white W` of a block."""
function pull!(buffers::VolatilityBuffers{T}, count::Int) where {T}
    (; pulled, white, whiten) = buffers
    D = size(pulled, 2)
    @inbounds for j in 1:D
        set_column!(pulled, j, -T(whiten[j, j]), white, j, count)
        for i in (j + 1):D
            add_column!(pulled, j, -T(whiten[i, j]), white, i, count)
        end
    end
    return nothing
end

function set_column!(A::Matrix{T}, i::Int, factor::T, B::Matrix{T}, j::Int, count::Int) where {T}
    @inbounds @simd ivdep for t in 1:count
        A[t, i] = factor * B[t, j]
    end
    return nothing
end

function add_column!(A::Matrix{T}, i::Int, factor::T, B::Matrix{T}, j::Int, count::Int) where {T}
    @inbounds @simd ivdep for t in 1:count
        A[t, i] = muladd(factor, B[t, j], A[t, i])
    end
    return nothing
end

"""Sums over the block's times that the globals' slopes need."""
function add_sums!(buffers::VolatilityBuffers, start::Int, count::Int)
    (; factor_slopes, sums, centred, white, pulled) = buffers
    @inbounds for i in axes(white, 2)
        if start == 0
            sums[i, 3] = pulled[1, i]
        end
        sums[i, 1] += sum_column(pulled, i, count)
        sums[i, 2] -= dot_columns(pulled, i, centred, i, count)
        for j in 1:i
            factor_slopes[i, j] += dot_columns(pulled, i, white, j, count)
        end
    end
    return nothing
end

function sum_column(A::Matrix{T}, i::Int, count::Int) where {T}
    total = zero(T)
    @inbounds @simd for t in 1:count
        total += A[t, i]
    end
    return Float64(total)
end

function dot_columns(A::Matrix{T}, i::Int, B::Matrix{T}, j::Int, count::Int) where {T}
    total = zero(T)
    @inbounds @simd for t in 1:count
        total += A[t, i] * B[t, j]
    end
    return Float64(total)
end

function sum_squares(A::Matrix, i::Int, count::Int)
    total = 0.0
    @inbounds @simd for t in 1:count
        total += abs2(Float64(A[t, i]))
    end
    return total
end

"""Add to the local slopes what the block's innovations give: `pulled_t`, and one time earlier `-phi pulled_t`."""
function add_pulled!(out::AbstractVector{T}, buffers::VolatilityBuffers{T}, start::Int, count::Int) where {T}
    pulled, D = buffers.pulled, size(buffers.pulled, 2)
    @inbounds for i in 1:D
        phi = T(buffers.phi[i])
        if start > 0
            out[(start - 1) * D + i] -= phi * pulled[1, i]
        end
        for t in 1:(count - 1)
            out[(start + t - 1) * D + i] += pulled[t, i] - phi * pulled[t + 1, i]
        end
        out[(start + count - 1) * D + i] += pulled[count, i]
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

"""All terms without a time index: priors, log-Jacobians, log det Q, constants."""
function global_density(model::StochasticVolatility, z::Vector{Float64})
    D, n_times = size(model.returns)
    total = -D * log(10π) + D * log(2 / 5π) - lkj_log_normalizer(D) - (D * n_times + model.n_observed) / 2 * log(2π)
    for i in 1:D
        mu, v, log_tau = z[i], z[D + i], z[2D + i]
        total += uniform_on_tanh_scale(v) - log1p(abs2(mu / 10))
        total += (1 - n_times) * log_tau - softplus(2 * log_tau - 2 * log(5))
    end
    place = 3D
    for i in 2:D, j in 1:(i - 1)
        place += 1
        # log det Q gives each log cosh(v) a weight of T, with the sign against the prior's
        total -= (D - j + 1 - n_times) * log_cosh(z[place])
    end
    return total
end

"""The slopes of one point's globals, from the sums over its times."""
function global_slopes!(buffers::VolatilityBuffers, n_times::Int)
    (; z, slopes, factor, remainder, factor_slopes, sums) = buffers
    D = size(factor, 1)
    @inbounds for i in 1:D
        mu, v, phi = z[i], z[D + i], buffers.phi[i]
        slopes[i] = -2 * mu / (100 + abs2(mu)) - (1 - phi) * sums[i, 1] - phi * sums[i, 3]
        slopes[D + i] = sums[i, 2] * sech_squared(v / 2) / 2 - phi + (v - v)  # not finite where v is not
        in_tau = 0.0
        for j in 1:i
            factor_slopes[i, j] *= -buffers.tau[buffers.shocks ? j : i]
            in_tau += factor_slopes[i, j] * factor[i, j]
        end
        slopes[2D + i] = (buffers.shocks ? 0.0 : in_tau) + 1 - n_times - 2 / (1 + 25 * exp(-2 * z[2D + i]))
    end
    if buffers.shocks
        @inbounds for j in 1:D, i in j:D
            slopes[2D + j] += factor_slopes[i, j] * factor[i, j]
        end
    end
    partial = (3D + 1):length(z)
    lkj_cholesky_pullback!(view(slopes, partial), view(z, partial), factor_slopes, factor, remainder)
    place = 3D
    for i in 2:D, j in 1:(i - 1)
        place += 1
        slopes[place] -= (D - j + 1 - n_times) * tanh(z[place])
    end
    return nothing
end
