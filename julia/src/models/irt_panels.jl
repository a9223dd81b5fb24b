# The sums of a complete response table, through polynomials in the ability instead of cell by cell.
#
# Without missing cells every student shares the same functions of the ability: `F(a) = sum_k log(2 cosh h_k(a))` and
# `tanh h_k(a)`, with `h_k(a) = (gamma_k a + beta_k + mu)/2`. They are analytic up to a distance pi/gamma_k from the
# real line. Cut the abilities' range into panels of width 1/(2 max gamma): on each, interpolation in 11 Chebyshev
# points converges like 25^-11, so it is exact to rounding. Chebyshev coefficients are turned into powers of the panel
# coordinate `t` only as the last step: they decay, so that powers lose no digits.

const N_NODES = 11
const PANELS_PER_LOGIT = 2.0
# 32 panels, their nodes then a whole number of vectors; the last block is filled up to one.
const BLOCK_NODES = 32 * N_NODES
const NODE_PADDING = 16
# Interpolating pays while there are clearly fewer nodes than students.
const MAX_NODES_PER_STUDENT = 0.5
const MAX_FACTORS_64 = 1000  # factors (1, 2] multiplied before one logarithm: 2^1000 does not overflow

const NODE_ANGLES = [π * (n - 0.5) / N_NODES for n in 1:N_NODES]
const NODES = cos.(NODE_ANGLES)
const TO_CHEBYSHEV = [(k == 0 ? 1.0 : 2.0) / N_NODES * cos(k * angle) for k in 0:(N_NODES - 1), angle in NODE_ANGLES]

"""Column k + 1 holds the powers of the Chebyshev polynomial T_k: T_0 = 1, T_1 = t, T_k = 2t T_(k-1) - T_(k-2)."""
function powers_of_chebyshev(n::Integer)
    table = zeros(n, n)
    table[1, 1] = table[2, 2] = 1.0
    for k in 3:n
        table[2:n, k] .= 2 .* table[1:(n - 1), k - 1]
        table[:, k] .-= table[:, k - 2]
    end
    return table
end
const TO_POWERS = powers_of_chebyshev(N_NODES)

"""Buffers of `panel_value` and `panel_gradient!` for tables of up to `n_students`."""
struct PanelBuffers
    powers::Matrix{Float64}  # power sums, later the interpolant's powers, a column a panel
    nodes::Vector{Float64}
    weights::Vector{Float64}
    ability_weights::Vector{Float64}
    at_nodes::Vector{Float64}
    products::Vector{Float64}
    chebyshev::Vector{Float64}
end

function PanelBuffers(n_students::Integer)
    panels = 1 + floor(Int, MAX_NODES_PER_STUDENT * n_students / N_NODES)
    nodes = N_NODES * panels + NODE_PADDING
    return PanelBuffers(zeros(N_NODES + 1, panels), (zeros(nodes) for _ in 1:5)..., zeros(N_NODES))
end

"""How the range of abilities is cut: `n` panels from `low` on, `per_unit` of them a unit; n = 0 where none pay."""
struct Panels
    low::Float64
    per_unit::Float64
    n::Int
end

function Panels(half_gamma::AbstractVector{Float64}, alpha::AbstractVector)
    low = high = Float64(alpha[1])
    not_finite = 0.0  # NaN if an ability is not finite, which comparisons alone would pass over
    @inbounds @simd for j in eachindex(alpha)
        a = Float64(alpha[j])
        low = ifelse(a < low, a, low)
        high = ifelse(a > high, a, high)
        not_finite += a - a
    end
    per_unit = max(2 * PANELS_PER_LOGIT * maximum(half_gamma), 1e-300)
    span = (high - low) * per_unit + not_finite
    pays = span * N_NODES < MAX_NODES_PER_STUDENT * length(alpha) - N_NODES
    return Panels(low, per_unit, pays ? unsafe_trunc(Int, span) + 1 : 0)
end

"""Number of an ability's panel, and its place t in [-1, 1] there."""
@inline function place(panels::Panels, ability::Real)
    x = (Float64(ability) - panels.low) * panels.per_unit
    left = unsafe_trunc(Int, x)
    return left + 1, 2 * (x - left) - 1
end

"""
    panel_value(panels, buffers, half_gamma, half_centre, alpha)

`sum_jk log(2 cosh h)` over all cells of one point.
"""
function panel_value(
    panels::Panels,
    buffers::PanelBuffers,
    half_gamma::AbstractVector,
    half_centre::AbstractVector,
    alpha::AbstractVector,
)
    n_nodes = prepare_nodes!(buffers, panels, alpha)
    total = 0.0
    for start in 0:BLOCK_NODES:(n_nodes - 1)
        total += node_logs(buffers, start, min(BLOCK_NODES, n_nodes - start), half_gamma, half_centre)
    end
    return total
end

"""
    panel_gradient!(slopes, moments, ability_moments, panels, buffers, half_gamma, half_centre, alpha, with_value)

Subtract `sum_k half_gamma_k tanh(h)` from the J slopes, `sum_j tanh(h)` from the K moments, and `sum_j alpha_j tanh(h)`
from the K ability moments of one point. The `panel_value`, or 0 unless `with_value` is `Val(true)`.
"""
function panel_gradient!(
    slopes::AbstractVector,
    moments::AbstractVector,
    ability_moments::AbstractVector,
    panels::Panels,
    buffers::PanelBuffers,
    half_gamma::AbstractVector,
    half_centre::AbstractVector,
    alpha::AbstractVector,
    with_value::Val{V},
) where {V}
    n_nodes = prepare_nodes!(buffers, panels, alpha)
    total, factors = 0.0, 0
    @inbounds for start in 0:BLOCK_NODES:(n_nodes - 1)
        count = min(BLOCK_NODES, n_nodes - start)
        for i in (start + 1):(start + count)
            buffers.at_nodes[i], buffers.products[i] = 0.0, 1.0
        end
        for k in eachindex(half_gamma)
            moment, ability_moment, value =
                node_moments!(buffers, start, count, half_gamma[k], half_centre[k], with_value)
            moments[k] -= moment
            ability_moments[k] -= ability_moment
            V || continue
            total += value
            factors += 1
            if factors == MAX_FACTORS_64 || k == lastindex(half_gamma)
                for i in (start + 1):(start + count)
                    total += buffers.weights[i] * log(buffers.products[i])
                    buffers.products[i] = 1.0
                end
                factors = 0
            end
        end
    end
    interpolate!(buffers, panels)
    powers = buffers.powers
    @inbounds for j in eachindex(alpha)
        panel, t = place(panels, alpha[j])
        value = powers[N_NODES, panel]
        for i in (N_NODES - 1):-1:1
            value = muladd(value, t, powers[i, panel])
        end
        slopes[j] -= value
    end
    return total
end

"""
Nodes of all panels and the weights with which values there add up to sums over the students, plain and times the
ability. Returns the number of nodes, filled up with weights of 0 to whole vectors.
"""
function prepare_nodes!(buffers::PanelBuffers, panels::Panels, alpha::AbstractVector)
    sum_powers!(buffers.powers, panels, alpha)
    (; powers, nodes, weights, ability_weights, chebyshev) = buffers
    width = 1 / panels.per_unit
    @inbounds for panel in 1:(panels.n)
        first = N_NODES * (panel - 1)
        for n in 1:N_NODES
            nodes[first + n] = panels.low + (panel - 1 + (1 + NODES[n]) / 2) * width
        end
        node_weights!(weights, first, chebyshev, i -> powers[i, panel])
        # alpha = centre + t/(2 per_unit): its weights come from the same power sums, shifted by one
        centre = panels.low + (panel - 0.5) * width
        shifted(i) = centre * powers[i, panel] + powers[i + 1, panel] * width / 2
        node_weights!(ability_weights, first, chebyshev, shifted)
    end
    count = N_NODES * panels.n
    padded = cld(count, NODE_PADDING) * NODE_PADDING
    for i in (count + 1):padded
        nodes[i], weights[i], ability_weights[i] = panels.low, 0.0, 0.0
    end
    return padded
end

"""`sum t^i` over the students of each panel, i = 0..N_NODES down each column."""
function sum_powers!(powers::Matrix{Float64}, panels::Panels, alpha::AbstractVector)
    fill!(view(powers, :, 1:(panels.n)), 0.0)
    @inbounds for j in eachindex(alpha)
        panel, t = place(panels, alpha[j])
        power = 1.0
        for i in 1:(N_NODES + 1)
            powers[i, panel] += power
            power *= t
        end
    end
    return nothing
end

"""Weights `first + 1, ...` of one panel's nodes from its power sums."""
@inline function node_weights!(weights::Vector{Float64}, first::Int, chebyshev::Vector{Float64}, power_sum)
    fill!(chebyshev, 0.0)
    @inbounds for i in 1:N_NODES
        sum_i = power_sum(i)
        for k in i:N_NODES
            chebyshev[k] += sum_i * TO_POWERS[i, k]
        end
    end
    @inbounds for n in 1:N_NODES
        weight = 0.0
        for k in 1:N_NODES
            weight += chebyshev[k] * TO_CHEBYSHEV[k, n]
        end
        weights[first + n] = weight
    end
    return nothing
end

"""
Weighted sums of tanh(h) over a block of nodes for one item, plain and times the ability; adds `half_gamma tanh(h)` to the
values at the nodes. With `Val(true)` the weighted sum of |h| too, and factors `1 + exp(-2|h|)` into the products.
"""
function node_moments!(
    buffers::PanelBuffers, start::Int, count::Int, half_gamma::Float64, half_centre::Float64, ::Val{V}
) where {V}
    (; nodes, weights, ability_weights, at_nodes, products) = buffers
    moment = ability_moment = magnitude = 0.0
    @inbounds @simd ivdep for i in (start + 1):(start + count)
        h = muladd(half_gamma, nodes[i], half_centre)
        e = fast_exp(-2 * abs(h))
        tanh_h = copysign((1 - e) / (1 + e), h)
        at_nodes[i] = muladd(half_gamma, tanh_h, at_nodes[i])
        moment += weights[i] * tanh_h
        ability_moment += ability_weights[i] * tanh_h
        if V
            magnitude += weights[i] * abs(h)
            products[i] *= 1 + e
        end
    end
    return moment, ability_moment, magnitude
end

"""Weighted sum of log(2 cosh h) over a block of nodes and all items: `|h| + log(1 + exp(-2|h|))`, one log for many."""
function node_logs(
    buffers::PanelBuffers, start::Int, count::Int, half_gamma::AbstractVector, half_centre::AbstractVector
)
    (; nodes, weights, at_nodes, products) = buffers
    total, factors, block = 0.0, 0, (start + 1):(start + count)
    @inbounds for i in block
        at_nodes[i], products[i] = 0.0, 1.0
    end
    @inbounds for k in eachindex(half_gamma)
        gamma, centre = half_gamma[k], half_centre[k]
        @simd ivdep for i in block
            magnitude = abs(muladd(gamma, nodes[i], centre))
            at_nodes[i] += magnitude
            products[i] *= 1 + fast_exp(-2 * magnitude)
        end
        factors += 1
        if factors == MAX_FACTORS_64 || k == lastindex(half_gamma)
            for i in block
                total += weights[i] * (at_nodes[i] + log(products[i]))
                at_nodes[i], products[i] = 0.0, 1.0
            end
            factors = 0
        end
    end
    return total
end

"""Turn the values at the nodes into powers of t, a column a panel."""
function interpolate!(buffers::PanelBuffers, panels::Panels)
    (; powers, at_nodes, chebyshev) = buffers
    @inbounds for panel in 1:(panels.n)
        first = N_NODES * (panel - 1)
        for k in 1:N_NODES
            coefficient = 0.0
            for n in 1:N_NODES
                coefficient += TO_CHEBYSHEV[k, n] * at_nodes[first + n]
            end
            chebyshev[k] = coefficient
        end
        for i in 1:N_NODES
            power = 0.0
            for k in i:N_NODES
                power += TO_POWERS[i, k] * chebyshev[k]
            end
            powers[i, panel] = power
        end
    end
    return nothing
end
