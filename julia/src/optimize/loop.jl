# The stochastic optimization loop, in pieces that Python may look in between.

"""
    Run(objective, rule, noise, schedule, flat, slots, averaging)

A run at work: `flat` and `slots` are updated in place; `done` counts the updates made. It runs where `flat` lies, with
the model's data brought there. Where `target` is not empty, the run has `arrived`, and makes no more updates, once the
squared distance of `flat` to it is at most `epsilon`.
"""
mutable struct Run{V<:AbstractVector,O<:Objective,R<:Rule,N,A,W<:Workspace}
    const objective::O
    const rule::R
    const noise::N
    const schedule::StepDecay
    const flat::V
    const slots::Vector{V}
    const averaging::A
    const gradient::V
    const workspace::W
    const target::V
    const epsilon::Float64
    done::Int
    arrived::Bool
end

function Run(
    objective::Objective, rule::Rule, noise, schedule::StepDecay, flat::V, slots::Vector{V},
    n_samples::Int; averaging=nothing, done::Int=0, target::V=similar(flat, 0), epsilon::Float64=NaN,
) where {V<:AbstractVector}
    d, p = dim(objective.model.layout), n_params(objective.family, objective.model.layout)
    length(flat) == p || throw(DimensionMismatch("the family has $p parameters, got $(length(flat))"))
    length(slots) == n_slots(rule) || throw(DimensionMismatch("the rule has $(n_slots(rule)) slots"))
    objective = beside(objective, flat)
    workspace = Workspace(objective, n_samples, flat)
    gradient = similar(flat)
    return Run(
        objective, rule, noise, schedule, flat, slots, averaging, gradient, workspace, target, epsilon, done, false
    )
end

"""The parameters that the run would return now."""
best(run::Run) = isnothing(run.averaging) ? run.flat : run.averaging.average

"""Whether the squared distance of two vectors is at most `epsilon`."""
is_within(a::AbstractVector, b::AbstractVector, epsilon::Real) = sum(abs2, a .- b) <= epsilon
function is_within(a::Vector{T}, b::Vector{T}, epsilon::Real) where {T}
    total = zero(T)
    # far away, the first piece tells
    for piece in Iterators.partition(eachindex(a, b), 1024)
        part = zero(T)
        @inbounds @simd for k in piece
            part += abs2(a[k] - b[k])
        end
        total += part
        total <= epsilon || return false
    end
    return true
end

"""
    advance!(run, last, seconds) -> finite

Make updates up to number `last`, or until `seconds` are over or the run has arrived. False if the next gradient is not
finite: the parameters are then the last finite ones, and `run.workspace.slopes` shows where it broke.
"""
function advance!(run::Run, last::Int, seconds::Float64=Inf)
    stop = time_ns() + (isfinite(seconds) ? round(UInt64, 1e9 * seconds) : typemax(UInt64) ÷ 4)
    while run.done < last && !run.arrived
        noise = draw!(run.noise, run.done)
        gradient!(run.gradient, run.objective, run.flat, noise, run.workspace) || return false
        t = run.done + 1
        step!(run.flat, run.gradient, run.rule, run.slots, run.objective.pattern, run.schedule(t), t)
        isnothing(run.averaging) || update!(run.averaging, run.flat, t)
        run.done = t
        run.arrived = !isempty(run.target) && is_within(run.flat, run.target, run.epsilon)
        time_ns() >= stop && break
    end
    return true
end
