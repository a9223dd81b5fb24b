# The positive halves of symmetric distributions: Student-t, normal, Cauchy.

"""The positive half of a Student-t with `nu` degrees of freedom."""
struct HalfStudentT <: ScalePrior
    nu::Float64
    scale::Float64
end

"""The positive half of a normal distribution, whose standard deviation is `scale`."""
struct HalfNormal <: ScalePrior
    scale::Float64
end

"""The positive half of a Cauchy distribution of median `scale`."""
half_cauchy(scale::Float64) = HalfStudentT(1.0, scale)

function log_density_of(prior::HalfStudentT, v::T) where {T<:Real}
    (; nu, scale) = prior
    constant = log(2 / scale) - log(nu) / 2 - logbeta(nu / 2, 1 / 2)
    return T(constant) - T((nu + 1) / 2) * softplus(2 * v - T(log(nu * scale^2))) + v
end

log_density_of(prior::HalfNormal, v::T) where {T<:Real} =
    T(log(2 / π) / 2 - log(prior.scale)) - exp(2 * v - T(2 * log(prior.scale))) / 2 + v

slope_of(prior::HalfStudentT, v::T) where {T<:Real} =
    1 - T(prior.nu + 1) / (1 + T(prior.nu * prior.scale^2) * exp(-2 * v))
slope_of(prior::HalfNormal, v::T) where {T<:Real} = 1 - exp(2 * v - T(2 * log(prior.scale)))
