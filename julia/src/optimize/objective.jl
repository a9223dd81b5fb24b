"""
    Objective(model, family; energy_only=false)

The negative ELBO of a family's member as a function of its flat parameters and of noise `U` (d x M); with `energy_only`
the entropy is left out, for the proximal operator.
"""
struct Objective{M<:Model,F<:Family}
    model::M
    family::F
    pattern::ScalePattern
    energy_only::Bool
end

function Objective(model::Model, family::Family; energy_only::Bool=false)
    return Objective(model, family, ScalePattern(family, model.layout), energy_only)
end

function (objective::Objective)(flat::AbstractVector, U::AbstractMatrix)
    family, pattern, layout = objective.family, objective.pattern, objective.model.layout
    points = transform(family, layout, pattern, flat, U)
    energy = -sum(log_density(objective.model, points)) / size(U, 2)
    return objective.energy_only ? energy : energy - entropy(family, pattern, flat)
end

"""Gradient of the objective with respect to the flat parameters, by Zygote."""
function gradient(objective::Objective, flat::AbstractVector, U::AbstractMatrix)
    return only(Zygote.gradient(parameters -> objective(parameters, U), flat))
end

"""ELBO from the noise `U`, with its Monte Carlo standard error."""
function elbo(objective::Objective, flat::AbstractVector, U::AbstractMatrix)
    points = transform(objective.family, objective.model.layout, objective.pattern, flat, U)
    values = log_density(objective.model, points)
    n = length(values)
    mean = sum(values) / n
    error = sqrt(sum(abs2, values .- mean) / (n - 1) / n)
    return mean + entropy(objective.family, objective.pattern, flat), error
end
