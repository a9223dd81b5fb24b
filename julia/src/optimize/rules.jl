# Update rules: Adam and SGD from Optimisers.jl, and what follows the step on the diagonal of C.

"""
    Rule(optimiser, energy_only, after)

An Optimisers.jl rule and what is done to the diagonal of C after each step: `after(c, stepsize)` maps each entry.
"""
struct Rule{O<:Optimisers.AbstractRule,A}
    optimiser::O
    energy_only::Bool
    after::A
end

"""Adam on the negative ELBO (Kingma and Ba, 2015)."""
adam(; beta1=0.9, beta2=0.999, epsilon=1e-8) = Rule(Optimisers.Adam(1.0, (beta1, beta2), epsilon), false, nothing)

"""Plain stochastic gradient descent on the negative ELBO."""
sgd() = Rule(Optimisers.Descent(1.0), false, nothing)

"""SGD on the energy, then the proximal operator of the entropy (paper, section 2.4)."""
proximal_sgd() = Rule(Optimisers.Descent(1.0), true, proximal_entry)

"""SGD on the negative ELBO, then a projection that keeps `C_ii >= min_scale`."""
projected_sgd(; min_scale=1e-5) = Rule(Optimisers.Descent(1.0), false, (c, _) -> max(c, oftype(c, min_scale)))

"""The minimizer over v of `-log v + (v - c)^2 / (2 gamma)`, written so that neither sign of c cancels."""
function proximal_entry(c::T, gamma::Real) where {T<:Real}
    larger = (abs(c) + hypot(c, T(2 * sqrt(gamma)))) / 2
    return c > 0 ? larger : T(gamma) / larger
end

# ---- a rule at work -----------------------------------------------------------------------------------------------
"""Number of vectors as long as the parameters that a rule carries from update to update."""
n_slots(rule::Rule) = n_slots(rule.optimiser)
n_slots(::Optimisers.Adam) = 2
n_slots(::Optimisers.Descent) = 0

"""
    step!(flat, slope, rule, slots, pattern, stepsize, iteration)

Make update `iteration` (counted from 1) of `flat` and `slots` in place, given the gradient there.
"""
function step!(
    flat::AbstractVector{T}, slope::AbstractVector{T}, rule::Rule, slots, pattern::ScalePattern, stepsize::Real, iteration::Int
) where {T}
    move!(flat, slope, Optimisers.adjust(rule.optimiser, stepsize), slots, iteration)
    return isnothing(rule.after) ? flat : change_diagonal!(flat, pattern, rule.after, stepsize)
end

"""Map each diagonal entry c of C to `after(c, stepsize)`."""
function change_diagonal!(flat::AbstractVector, pattern::ScalePattern, after, stepsize::Real)
    for k in diagonal(pattern)
        place = pattern.dim + k
        flat[place] = after(flat[place], stepsize)
    end
    return flat
end

"""
Optimisers.jl's step. Its Adam here is one pass over memory, where the library makes four: the bias corrections are
folded into the stepsize and epsilon.
"""
function move!(flat::Vector{T}, slope::Vector{T}, o::Optimisers.Adam, slots, iteration::Int) where {T}
    first, second = slots
    beta1, beta2 = o.beta
    root = sqrt(1 - beta2^iteration)
    decay1, decay2, gain1, gain2 = T.((beta1, beta2, 1 - beta1, 1 - beta2))
    rate, epsilon = T(o.eta * root / (1 - beta1^iteration)), T(o.epsilon * root)
    @inbounds @simd ivdep for k in eachindex(flat, slope, first, second)
        g = slope[k]
        m = decay1 * first[k] + gain1 * g
        v = decay2 * second[k] + gain2 * (g * g)
        first[k], second[k] = m, v
        flat[k] -= rate * m / (sqrt(v) + epsilon)
    end
    return flat
end

function move!(flat::AbstractVector, slope::AbstractVector, o::Optimisers.AbstractRule, slots, iteration::Int)
    _, change = Optimisers.apply!(o, optimiser_state(o, slots, iteration, eltype(flat)), flat, slope)
    flat .-= change
    return flat
end

"""Optimisers.jl's state before update `iteration`: the slots hold all that changes but its number."""
optimiser_state(o::Optimisers.Adam, slots, iteration, ::Type{T}) where {T} = (slots..., T.(o.beta .^ iteration))
optimiser_state(::Optimisers.Descent, slots, iteration, ::Type) = nothing
