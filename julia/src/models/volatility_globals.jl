# The globals of stochastic volatility: level, memory, and the covariance of the innovations.

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

"""
    ByColumns(inner)

`StochasticVolatility` whose partial correlations stand column by column.
"""
struct ByColumns{M<:StochasticVolatility} <: InOtherCoordinates
    layout::Layout
    inner::M
    order::Vector{Int}  # where each coordinate of the inner model stands
end

function volatility_by_columns(inner::StochasticVolatility)
    D = size(inner.returns, 1)
    places = partial_correlation_places(D)
    by_columns = sortperm(places; by=reverse)  # the place in rows of each that stands by columns
    order = collect(1:dim(inner.layout))
    order[3D .+ (1:length(places))] .= 3D .+ invperm(by_columns)
    return ByColumns(inner.layout, inner, order)
end

beside(model::ByColumns, flat::AbstractVector) = ByColumns(model.layout, beside(model.inner, flat), model.order)
inward(model::ByColumns, points::AbstractMatrix) = points[model.order, :]
log_jacobian(::ByColumns, points::AbstractMatrix) = zero(eltype(points))

function outward!(slopes::AbstractMatrix, model::ByColumns, ::AbstractMatrix, inner::AbstractMatrix)
    slopes[model.order, :] .= inner
    return slopes
end
