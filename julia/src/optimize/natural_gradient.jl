# Natural gradient steps in the coordinates of the family's matrix group, in legs whose settings Python chooses.
#
# At x = m + C u with slopes g, `h = C' g + psi(u)` has no noise left where q is the posterior ("sticking the landing",
# Roeder, Wu and Duvenaud, 2017); the step is along the means of h and of `pattern(h u')`. For a pair of draws, u and -u,
# these need C' times the slopes' difference alone, and C' times the sum over all pairs once.

const NATURAL_CHUNK_BYTES = 1 << 18
const NATURAL_CHUNK_ROUND = 8  # the points that a response table's signs are read once for

"""
    Leg(rate, momentum, trust, anneal_from, global_rate=0.0)

Settings of some updates. From update number `anneal_from` on, if that is not below 0, the rate falls like 1/k. The
globals' own block has the `global_rate`, where that is larger.
"""
struct Leg
    rate::Float64
    momentum::Float64
    trust::Float64
    anneal_from::Int
    global_rate::Float64
end

Leg(rate, momentum, trust, anneal_from) = Leg(rate, momentum, trust, anneal_from, 0.0)

"""The rate of the update after `done` updates."""
rate_at(leg::Leg, done::Int) = leg.anneal_from < 0 ? leg.rate : leg.rate / (1 + leg.rate * (done - leg.anneal_from))

"""Buffers for a chunk of draws, and the values of all."""
struct NaturalBuffers{T}
    product::Matrix{T}
    points::Matrix{T}
    slopes::NTuple{2,Matrix{T}}
    total::Vector{T}
    factors::Vector{T}
    values::Vector{Float64}
end

function NaturalBuffers{T}(dim::Int, n_samples::Int, n_signs::Int) where {T}
    m = n_samples ÷ n_signs
    chunk = NATURAL_CHUNK_ROUND * cld(NATURAL_CHUNK_BYTES, NATURAL_CHUNK_ROUND * sizeof(T) * dim)
    matrix() = Matrix{T}(undef, dim, min(chunk, m))
    return NaturalBuffers{T}(matrix(), matrix(), (matrix(), matrix()), zeros(T, dim), zeros(T, dim), zeros(n_samples))
end

"""
    NaturalRun(objective, noise, flat, velocity; done=0, count=0)

A run of natural gradient steps. `flat` and `velocity`, the average of the steps' directions in the same layout, are
updated in place whenever `advance!` returns; both may be changed in between. `done` counts updates, `count` those since
the velocity was last 0. A non-standardized family is stepped in its standardized form.
"""
mutable struct NaturalRun{T,O<:Objective,N,S}
    const objective::O
    const noise::N
    const flat::Vector{T}
    const velocity::Vector{T}
    const scratch::S
    const member::Unpacked{T}
    const roots::Vector{T}  # what `local_roots!` gives of the member, in the Markov family
    const tangent::Unpacked{T}
    speed::Unpacked{T}
    spare::Unpacked{T}
    buffers::NaturalBuffers{T}
    done::Int
    count::Int
end

function NaturalRun(
    objective::Objective, noise, flat::Vector{T}, velocity::Vector{T}; done::Int=0, count::Int=0
) where {T}
    p = n_params(objective.family, objective.model.layout)
    length(flat) == length(velocity) == p ||
        throw(DimensionMismatch("the family has $p parameters, got $(length(flat)) and a velocity of $(length(velocity))"))
    is_direct(objective.family) && throw(ArgumentError("natural gradients need the standardized form of the family."))
    member, tangent, speed, spare = (Unpacked{T}(objective.pattern) for _ in 1:4)
    buffers, buffers_of_model = NaturalBuffers{T}(1, 0, 1), scratch(objective.model, T)
    roots = zero(member.chain)
    return NaturalRun(
        objective, noise, flat, velocity, buffers_of_model, member, roots, tangent, speed, spare, buffers, done, count
    )
end

"""
    advance!(run, leg, last, seconds; n_samples, frames) -> (; finite, stats)

Make updates up to number `last` or for some seconds. `stats` has a column for each: mean and variance over the draws of
`log p - log q`, the natural gradient's inner product with the velocity before it (NaN where there is none) and with
itself, the share of blocks whose step was cut short, and the gradient's squared norm in the globals' own block. Not
finite if an update could not be made: everything is then as the last one left it.
"""
function advance!(run::NaturalRun, leg::Leg, last::Int, seconds::Float64=Inf; n_samples::Int, frames::Bool=false)
    prepare!(run, n_samples, frames)
    stop = time_ns() + (isfinite(seconds) ? round(UInt64, 1e9 * seconds) : typemax(UInt64) ÷ 4)
    stats, finite = Float64[], true
    pattern = run.objective.pattern
    unpack!(run.member, pattern, run.flat)
    unpack!(run.speed, pattern, run.velocity)
    try
        while finite && run.done < last
            finite = update!(run, leg, stats)
            time_ns() >= stop && break
        end
    finally  # what a model throws leaves the last update's parameters
        pack!(run.flat, pattern, run.member)
        pack!(run.velocity, pattern, run.speed)
    end
    return (; finite, stats=reshape(stats, 6, :))
end

function prepare!(run::NaturalRun{T}, n_samples::Int, frames::Bool) where {T}
    prepare!(run.noise, n_samples, frames)
    n = n_draws(run.noise)
    if length(run.buffers.values) != n
        run.buffers = NaturalBuffers{T}(run.objective.pattern.dim, n, n_signs(run.noise))
    end
    return run
end

"""Make one update and add its column to `stats`; false if it cannot be made."""
function update!(run::NaturalRun{T}, leg::Leg, stats::Vector{Float64}) where {T}
    (; member, roots, tangent, speed, spare, buffers) = run
    pattern, base, values = run.objective.pattern, run.objective.family.base, buffers.values
    tangent!(tangent, run, draw!(run.noise, run.done)) || return false
    inner = run.count > 0 ? fisher_inner(tangent, speed, pattern, base) : NaN
    square = fisher_inner(tangent, tangent, pattern, base)
    weight = T((1 - leg.momentum) / (1 - leg.momentum^(run.count + 1)))
    map((new, old, gradient) -> new .= old .+ weight .* (gradient .- old), parts(spare), parts(speed), parts(tangent))
    of_globals = global_square(tangent, pattern)
    rates = T(rate_at(leg, run.done)), T(leg.global_rate)
    cut = bound_step!(tangent, spare, pattern, rates..., T(leg.trust), buffers.factors)
    isfinite(cut) && keeps_diagonal(member, tangent, pattern) || return false
    run.speed, run.spare = spare, speed
    retract!(member, tangent, speed, pattern, roots)
    run.count += 1
    run.done += 1
    mean = sum(values) / length(values)
    variance = length(values) > 1 ? sum(x -> abs2(x - mean), values) / (length(values) - 1) : NaN
    push!(stats, mean, variance, inner, square, cut, of_globals)
    return true
end

"""
Write the natural gradient of the ELBO at the member into `t`, from draws U and, if the noise is paired, their opposites;
into `run.buffers.values` each draw's `log p - log q`. False if a log density or slope is not finite.
"""
function tangent!(t::Unpacked{T}, run::NaturalRun{T}, U::AbstractMatrix{T}) where {T}
    (; member, buffers, scratch) = run
    (; model, pattern, family) = run.objective
    base, total, values, m = family.base, buffers.total, buffers.values, size(U, 2)
    signs, chunk = n_signs(run.noise), size(buffers.points, 2)
    volume = log_abs_det(member, pattern)
    squares = zero(T)
    clear!(t)
    fill!(total, 0)
    for first in 1:chunk:m
        columns = first:min(first + chunk - 1, m)
        some(A) = view(A, :, eachindex(columns))
        u, product, points = view(U, :, columns), some(buffers.product), some(buffers.points)
        slopes, others = map(some, buffers.slopes)
        scale_mul!(product, pattern, member, u)
        for (k, g) in zip(1:signs, (slopes, others))
            points .= member.location .+ (k == 1 ? one(T) : -one(T)) .* product
            found = view(values, (k - 1) * m .+ columns)
            log_density_and_gradient!(found, g, model, points, scratch)
            squares += sum(abs2, g)
            if !(isfinite(squares) && all(isfinite, found))
                k == 2 && copyto!(slopes, others)
                return false
            end
        end
        for column in columns
            log_q = sum_base_logpdf(base, view(U, :, column)) - volume
            for k in 1:signs
                values[(k - 1) * m + column] -= log_q
            end
        end
        add_columns!(total, slopes)
        if signs == 2
            add_columns!(total, others)
            slopes .-= others
        end
        product .= T(signs) .* base_score.(Ref(base), u)
        # in a pair, the scores of a symmetric base cancel
        signs == 1 && add_columns!(t.location, product)
        add_scale_adjoint_mul!(product, pattern, member, slopes)
        add_outer!(t, pattern, product, u)
        add_chain_outer!(t, pattern, member, product, u, points)
    end
    column(v) = reshape(v, :, 1)
    add_scale_adjoint_mul!(column(t.location), pattern, member, column(total))
    normalize!(t, pattern, base, signs * m)
    normalize_chain!(t, pattern, local_roots!(run.roots, run.spare.chain, pattern, member))
    return true
end

"""Natural gradient and values as `tangent!` of any family has them: here the two draws of a pair have nothing in common."""
function tangent!(
    t::Unpacked{T}, run::NaturalRun{T,<:Objective{<:Model,ConditionalStructured}}, U::AbstractMatrix{T}
) where {T}
    (; member, buffers, scratch) = run
    (; model, pattern, family) = run.objective
    values, m, b = buffers.values, size(U, 2), member.widths
    signs, chunk = n_signs(run.noise), size(buffers.points, 2)
    volume, totals = log_abs_det(member, pattern), [sum(Float64, column; init=0.0) for column in eachcol(b)]
    z, y = heads_and_tails(pattern)
    squares = zero(T)
    clear!(t)
    for first in 1:chunk:m, sign in 1:signs
        columns = first:min(first + chunk - 1, m)
        some(A) = view(A, :, eachindex(columns))
        u = sign == 1 ? U[:, columns] : -U[:, columns]
        h, points, slopes = some(buffers.product), some(buffers.points), some(Base.first(buffers.slopes))
        u_z, u_y = u[z, :], u[y, :]
        relative = exp.(b * u_z)
        wide = vcat(u_z, relative .* u_y)
        scale_mul!(points, pattern, member, wide)
        points .+= member.location
        found = view(values, (sign - 1) * m .+ columns)
        log_density_and_gradient!(found, slopes, model, points, scratch)
        squares += sum(abs2, slopes)
        isfinite(squares) && all(isfinite, found) || return false
        for (k, draw) in enumerate(eachcol(u))
            found[k] -= sum_base_logpdf(family.base, draw) - volume - dot(totals, view(u_z, :, k))
        end
        h .= u
        view(h, y, :) ./= relative
        # of the locals, `exp(-w_n) h_n`
        add_scale_adjoint_mul!(h, pattern, member, slopes)
        with_u = relative .* view(h, y, :) .* u_y .- u_y .* u_y .+ one(T)
        view(h, z, :) .+= transpose(b) * with_u
        add_columns!(t.location, h)
        add_outer!(t, pattern, h, wide)
        LinearAlgebra.mul!(t.widths, view(h, y, :) .* view(wide, y, :), transpose(u_z), true, true)
    end
    normalize!(t, pattern, family.base, signs * m)
    normalize_widths!(t, member, pattern)
    return true
end

function add_columns!(out::Vector{T}, A::AbstractMatrix{T}) where {T}
    for column in eachcol(A)
        out .+= column
    end
    return out
end

# ---- the ELBO, from independent draws -------------------------------------------------------------------------------
"""
Add the next piece of an estimate of the ELBO by `log p - log q`, which has less variance near the posterior than `log p`
and the exact entropy. To be read with `weights_result`.
"""
function add_weights_piece!(
    estimate::ElboEstimate, objective::Objective, flat::AbstractVector, seed::AbstractString, iteration::Int
)
    before, totals = estimate.done, width_totals(objective.family, objective.pattern, flat)
    add_piece!(estimate, objective, flat, seed, iteration)
    for (i, draw) in zip((before + 1):(estimate.done), eachcol(estimate.noise.host))
        estimate.values[i] -= sum_base_logpdf(objective.family.base, draw)
        isempty(totals) || (estimate.values[i] += dot(totals, view(draw, 1:length(totals))))
    end
    return estimate
end

"""Mean of `log p - log q`, its Monte Carlo standard error, and the standard deviation of a single draw."""
function weights_result(estimate::ElboEstimate, objective::Objective, flat::AbstractVector)
    values, pattern = view(estimate.values, 1:(estimate.done)), objective.pattern
    n = length(values)
    mean = sum(values) / n
    deviation = sqrt(sum(x -> abs2(x - mean), values) / (n - 1))
    volume = sum(log ∘ abs ∘ Float64, view(flat, pattern.dim .+ diagonal(pattern)))
    return mean + volume, deviation / sqrt(n), deviation
end
