# Update rules: Adam and SGD from Optimisers.jl, each with an operator that follows the step.

"""
    Rule(optimiser, operator)

An Optimisers.jl rule, and what is done to the parameters after each step (nothing, or an `Operator`).
"""
struct Rule{O<:Optimisers.AbstractRule,A<:Union{Nothing,Operator}}
    optimiser::O
    operator::A
end

energy_only(rule::Rule) = energy_only(rule.operator)

"""Adam on the negative ELBO (Kingma and Ba, 2015)."""
function adam(operator=nothing; beta1=0.9, beta2=0.999, epsilon=1e-8)
    return Rule(Optimisers.Adam(1.0, (beta1, beta2), epsilon), operator)
end

"""Plain stochastic gradient descent on the negative ELBO."""
sgd(operator=nothing) = Rule(Optimisers.Descent(1.0), operator)

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
    return apply!(flat, pattern, rule.operator, stepsize)
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
