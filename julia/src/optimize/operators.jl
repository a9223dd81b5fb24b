# Operators that follow an update: what keeps the scale away from 0, for any rule.

"""What is done to the parameters after each step of a rule."""
abstract type Operator end

"""The proximal operator of the negative entropy; the gradient is then that of the energy (paper, section 2.4)."""
struct ProximalEntropy <: Operator end

"""A projection that keeps `C_ii >= min_scale`."""
struct ScaleProjection <: Operator
    min_scale::Float64
end

"""Whether the entropy enters through the operator, so that the gradient leaves it out."""
energy_only(::Union{Nothing,Operator}) = false
energy_only(::ProximalEntropy) = true

"""Change the flat parameters in place, after a step of the given size."""
apply!(flat::AbstractVector, ::ScalePattern, ::Nothing, ::Real) = flat
function apply!(flat::AbstractVector, pattern::ScalePattern, ::ProximalEntropy, stepsize::Real)
    return change_diagonal!(flat, pattern, proximal_entry, stepsize)
end
function apply!(flat::AbstractVector, pattern::ScalePattern, operator::ScaleProjection, stepsize::Real)
    min_scale = operator.min_scale
    return change_diagonal!(flat, pattern, (c, _) -> max(c, oftype(c, min_scale)), stepsize)
end

"""The minimizer over v of `-log v + (v - c)^2 / (2 gamma)`, written so that neither sign of c cancels."""
function proximal_entry(c::T, gamma::Real) where {T<:Real}
    larger = (abs(c) + hypot(c, T(2 * sqrt(gamma)))) / 2
    return c > 0 ? larger : T(gamma) / larger
end

"""Map each diagonal entry c of C to `change(c, stepsize)`."""
function change_diagonal!(flat::AbstractVector, pattern::ScalePattern, change, stepsize::Real)
    for k in diagonal(pattern)
        place = pattern.dim + k
        flat[place] = change(flat[place], stepsize)
    end
    return flat
end
