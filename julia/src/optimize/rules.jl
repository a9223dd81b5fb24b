# Update rules: Adam and SGD from Optimisers.jl, and what follows the step on the diagonal of C.

"""
    Rule(optimiser, after)

An Optimisers.jl rule and what is done to the diagonal of C after each step: `after(c, stepsize)` maps each entry.
"""
struct Rule{O<:Optimisers.AbstractRule,A}
    optimiser::O
    energy_only::Bool
    after::A
end

"""Adam on the negative ELBO (Kingma and Ba, 2015)."""
adam(stepsize=1e-3; beta1=0.9, beta2=0.999, epsilon=1e-8) =
    Rule(Optimisers.Adam(stepsize, (beta1, beta2), epsilon), false, nothing)

"""Plain stochastic gradient descent on the negative ELBO."""
sgd(stepsize) = Rule(Optimisers.Descent(stepsize), false, nothing)

"""SGD on the energy, then the proximal operator of the entropy (paper, section 2.4)."""
proximal_sgd(stepsize) = Rule(Optimisers.Descent(stepsize), true, proximal_entry)

"""SGD on the negative ELBO, then a projection that keeps `C_ii >= min_scale`."""
projected_sgd(stepsize; min_scale=1e-5) = Rule(Optimisers.Descent(stepsize), false, (c, _) -> max(c, min_scale))

"""The minimizer over v of `-log v + (v - c)^2 / (2 gamma)`, written so that neither sign of c cancels."""
function proximal_entry(c::Real, gamma::Real)
    larger = (abs(c) + hypot(c, 2 * sqrt(gamma))) / 2
    return c > 0 ? larger : gamma / larger
end
