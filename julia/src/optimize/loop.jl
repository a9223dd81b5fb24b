"""
    run!(flat, objective, rule, stepsizes, noise) -> n_updates

Make one update of `flat` for each slice of `noise` (d x M x T), in place, with the stepsize of its number. Stops before
an update whose gradient is not finite; `flat` then holds the last finite parameters.
"""
function run!(
    flat::AbstractVector, objective::Objective, rule::Rule, stepsizes::AbstractVector, noise::AbstractArray{<:Real,3}
)
    length(stepsizes) == size(noise, 3) ||
        throw(DimensionMismatch("$(length(stepsizes)) stepsizes for $(size(noise, 3)) updates"))
    state = Optimisers.setup(rule.optimiser, flat)
    diagonal_places = objective.pattern.dim .+ diagonal(objective.pattern)
    for t in axes(noise, 3)
        slope = gradient(objective, flat, @view(noise[:, :, t]))
        isfinite(sum(abs2, slope)) || return t - 1
        Optimisers.adjust!(state, stepsizes[t])
        Optimisers.update!(state, flat, slope)
        isnothing(rule.after) && continue
        entries = @view flat[diagonal_places]
        entries .= rule.after.(entries, stepsizes[t])
    end
    return size(noise, 3)
end
