# Standardized base distributions: mean 0, variance 1, third moment 0, finite kurtosis (paper, section 2.2).

abstract type BaseDistribution end

"""Standard normal, kurtosis 3."""
struct Gaussian <: BaseDistribution end

kurtosis(::Gaussian) = 3.0
base_entropy(::Gaussian) = (log(2π) + 1) / 2
fill_noise!(rng::AbstractRNG, ::Gaussian, out::AbstractArray{Float64}) = randn!(rng, out)
base_logpdf(::Gaussian, u::T) where {T<:Real} = -(u * u + T(log(2π))) / 2

"""Laplace with scale 1/sqrt(2), hence variance 1; kurtosis 6."""
struct Laplace <: BaseDistribution end

kurtosis(::Laplace) = 6.0
base_entropy(::Laplace) = 1 + log(2) / 2
base_logpdf(::Laplace, u::T) where {T<:Real} = -T(sqrt(2)) * abs(u) - T(log(2) / 2)

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

function base_logpdf(base::StudentT, u::T) where {T<:Real}
    nu, scale = base.nu, unit_scale(base)
    constant = -(logbeta(nu / 2, 0.5) + log(nu) / 2 + log(scale))
    return T(constant) - T((nu + 1) / 2) * log1p((u / T(scale))^2 / T(nu))
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
