# Standardized base distributions: mean 0, variance 1, third moment 0, finite kurtosis (paper, section 2.2).

abstract type BaseDistribution end

"""
    base_score(base, u)

`psi(u) = -d/du log density`, whose mean square is the `location_information` and whose `E (psi(u) u - 1)^2` is the
`scale_information`.
"""
function base_score end
function location_information end
function scale_information end

"""Sum of the log densities of some coordinates, in Float64."""
function sum_base_logpdf(base::BaseDistribution, u::AbstractVector)
    total = 0.0
    @inbounds @simd for i in eachindex(u)
        total += Float64(base_logpdf(base, u[i]))
    end
    return total
end

"""Standard normal, kurtosis 3."""
struct Gaussian <: BaseDistribution end

kurtosis(::Gaussian) = 3.0
base_entropy(::Gaussian) = (log(2π) + 1) / 2
fill_noise!(rng::AbstractRNG, ::Gaussian, out::AbstractArray{Float64}) = randn!(rng, out)
base_logpdf(::Gaussian, u::T) where {T<:Real} = -(u * u + T(log(2π))) / 2
base_score(::Gaussian, u::Real) = u
location_information(::Gaussian) = 1.0
scale_information(::Gaussian) = 2.0

"""Laplace with scale 1/sqrt(2), hence variance 1; kurtosis 6."""
struct Laplace <: BaseDistribution end

kurtosis(::Laplace) = 6.0
base_entropy(::Laplace) = 1 + log(2) / 2
base_logpdf(::Laplace, u::T) where {T<:Real} = -T(sqrt(2)) * abs(u) - T(log(2) / 2)
base_score(::Laplace, u::T) where {T<:Real} = T(sqrt(2)) * sign(u)
location_information(::Laplace) = 2.0
scale_information(::Laplace) = 1.0

function fill_noise!(rng::AbstractRNG, ::Laplace, out::AbstractArray{Float64})
    # a difference of two unit exponentials is Laplace with scale 1
    randexp!(rng, out)
    out .= (out .- randexp!(rng, similar(out))) .* sqrt(0.5)
    return out
end

"""Student-t with ν > 4 degrees of freedom, scaled to variance 1; kurtosis 3 + 6/(ν - 4)."""
struct StudentT <: BaseDistribution
    nu::Float64

    function StudentT(nu::Real)
        isfinite(nu) && nu > 4 || throw(
            ArgumentError("StudentT: nu must be a finite number above 4, so that the kurtosis is finite; got $nu."),
        )
        return new(nu)
    end
end

kurtosis(base::StudentT) = 3 + 6 / (base.nu - 4)
unit_scale(base::StudentT) = sqrt((base.nu - 2) / base.nu)

function base_entropy(base::StudentT)
    nu = base.nu
    half = (nu + 1) / 2 * (digamma((nu + 1) / 2) - digamma(nu / 2))
    return half + log(nu) / 2 + logbeta(nu / 2, 0.5) + log(unit_scale(base))
end

log_peak(base::StudentT) = -(logbeta(base.nu / 2, 0.5) + log(base.nu) / 2 + log(unit_scale(base)))

function base_logpdf(base::StudentT, u::T) where {T<:Real}
    nu, scale = base.nu, unit_scale(base)
    return T(log_peak(base)) - T((nu + 1) / 2) * log1p((u / T(scale))^2 / T(nu))
end

base_score(base::StudentT, u::T) where {T<:Real} = T(base.nu + 1) * u / (T(base.nu - 2) + u * u)
location_information(base::StudentT) = (base.nu + 1) / (base.nu + 3) / unit_scale(base)^2
scale_information(base::StudentT) = 2 * base.nu / (base.nu + 3)

function sum_base_logpdf(base::StudentT, u::AbstractVector)
    # the constant once, and one logarithm for eight factors
    shrink, total, factors = 1 / (base.nu - 2), 0.0, 1.0
    for (i, x) in enumerate(u)
        factors *= 1 + shrink * abs2(Float64(x))
        if i % 8 == 0
            total += log(factors)
            factors = 1.0
        end
    end
    return length(u) * log_peak(base) - (base.nu + 1) / 2 * (total + log(factors))
end

function fill_noise!(rng::AbstractRNG, base::StudentT, out::AbstractArray{Float64})
    # Bailey's polar method (1994): (u, v) uniform in the unit disc
    nu, scale = base.nu, unit_scale(base)
    for i in eachindex(out)
        u, w = 0.0, 2.0
        while !(0 < w <= 1)
            u, v = 2 * rand(rng) - 1, 2 * rand(rng) - 1
            w = u * u + v * v
        end
        out[i] = scale * u * sqrt(nu * expm1(-2 / nu * log(w)) / w)
    end
    return out
end

"""Draws of another precision are those of `Float64`, rounded: its generators are the fastest."""
function fill_noise!(rng::AbstractRNG, base::BaseDistribution, out::AbstractArray{<:Real})
    return copyto!(out, fill_noise!(rng, base, Array{Float64}(undef, size(out))))
end
