# The Bernoulli-logit sums of the item response model on the CPU, over blocks of students that stay in the cache.
#
# With half logits `h = (gamma*alpha + beta + mu)/2` and signs `s` = +1 (right), -1 (wrong), 0 (missing), an observed
# cell has log probability `s*h - log(2 cosh h)` and derivative `s - tanh(h)` with respect to `h`. With `e = exp(-2|h|)`
# these are `s*h - |h| - log(1 + e)` and `s - sign(h) (1 - e)/(1 + e)`: one exponential a cell. Complete tables need
# less: see `irt_panels.jl`; their terms in `s` are then plain products with the signs.

const BLOCK_STUDENTS = 256
# Points that share one pass over the signs, and items in one piece of it.
const GROUP_POINTS = 8
const PIECE_ITEMS = 8
# Factors (1, 2] multiplied before one logarithm, far below the overflow.
max_factors(::Type{Float64}) = MAX_FACTORS_64
max_factors(::Type{Float32}) = 96

"""
Buffers for a group of points. `half_gamma` and `half_centre` are `gamma/2` and `(beta + mu)/2`, K x points; `moments`
and `ability_moments` the sums over the observed cells of each item of `s - tanh(h)`, plain and times the ability.
"""
struct ResponseBuffers{T}
    complete::Bool
    right_minus_wrong::Vector{Float64}
    half_gamma::Matrix{Float64}
    half_centre::Matrix{Float64}
    moments::Matrix{Float64}
    ability_moments::Matrix{Float64}
    by_panels::Vector{Bool}
    ability::Vector{T}
    slope::Vector{T}
    product::Vector{T}
    signs::Matrix{T}
    panels::PanelBuffers
end

"""Buffers for a table of signs, students x items."""
function ResponseBuffers{T}(signs::Matrix{Int8}) where {T}
    J, K = size(signs)
    complete = !any(iszero, signs)
    return ResponseBuffers{T}(
        complete,
        vec(sum(Float64, signs; dims=1)),
        (zeros(K, GROUP_POINTS) for _ in 1:4)...,
        zeros(Bool, GROUP_POINTS),
        (zeros(T, BLOCK_STUDENTS) for _ in 1:3)...,
        zeros(T, BLOCK_STUDENTS, PIECE_ITEMS),
        PanelBuffers(complete ? J : 0),
    )
end

"""
    cells_value(signs, alpha, half_gamma, half_centre, buffers)

Log likelihood of one point, cell by cell. `signs` is J x K.
"""
function cells_value(
    signs::Matrix{Int8},
    alpha::AbstractVector,
    half_gamma::AbstractVector,
    half_centre::AbstractVector,
    buffers::ResponseBuffers{T},
) where {T}
    (; ability, product) = buffers
    total, factors = 0.0, 0
    fill!(product, one(T))
    for start in 0:BLOCK_STUDENTS:(length(alpha) - 1)
        count = min(BLOCK_STUDENTS, length(alpha) - start)
        copyto!(ability, 1, alpha, start + 1, count)
        for k in eachindex(half_gamma)
            total += item_value!(product, signs, start, k, ability, count, T(half_gamma[k]), T(half_centre[k]))
            logs, factors = take_logs!(product, factors + 1)
            total -= logs
        end
    end
    return total - sum_logs!(product)
end

"""`sum (s h - |s h|)` over a block of students for one item; their factors `1 + |s| e` go into `product`."""
function item_value!(
    product::Vector{T}, signs::Matrix{Int8}, start::Int, k::Int, ability::Vector{T}, count::Int,
    half_gamma::T, half_centre::T,
) where {T}
    total = zero(T)
    @inbounds @simd ivdep for i in 1:count
        s = T(signs[start + i, k])
        h = muladd(half_gamma, ability[i], half_centre)
        product[i] *= muladd(abs(s), fast_exp(-2 * abs(h)), one(T))
        total += s * h - abs(s * h)
    end
    return Float64(total)
end

"""Sum of the logarithms of the factors, which are set to 1."""
function sum_logs!(product::Vector)
    total = 0.0
    for factor in product
        total += Float64(log(factor))
    end
    fill!(product, 1)
    return total
end

"""What is to be taken off for so many factors in each product, and how many are left: all until there are too many."""
take_logs!(product::Vector{T}, factors::Int) where {T} = factors < max_factors(T) ? (0.0, factors) : (sum_logs!(product), 0)

"""
    cells_gradient!(slopes, moments, ability_moments, signs, alpha, half_gamma, half_centre, buffers, with_value)

Add `sum_k half_gamma_k (s - tanh(h))` to the J slopes of one point and its moments to the K others, cell by cell. The log
likelihood, or 0 unless `with_value` is `Val(true)`.
"""
function cells_gradient!(
    slopes::AbstractVector,
    moments::AbstractVector,
    ability_moments::AbstractVector,
    signs::Matrix{Int8},
    alpha::AbstractVector,
    half_gamma::AbstractVector,
    half_centre::AbstractVector,
    buffers::ResponseBuffers{T},
    with_value::Val{V},
) where {T,V}
    (; ability, slope, product) = buffers
    total, factors = 0.0, 0
    V && fill!(product, one(T))
    for start in 0:BLOCK_STUDENTS:(length(alpha) - 1)
        count = min(BLOCK_STUDENTS, length(alpha) - start)
        copyto!(ability, 1, alpha, start + 1, count)
        copyto!(slope, 1, slopes, start + 1, count)
        for k in eachindex(half_gamma)
            g, c = T(half_gamma[k]), T(half_centre[k])
            moment, ability_moment, value = item_gradient!(slope, product, signs, start, k, ability, count, g, c, with_value)
            moments[k] += moment
            ability_moments[k] += ability_moment
            V || continue
            logs, factors = take_logs!(product, factors + 1)
            total += value
            total -= logs
        end
        copyto!(slopes, start + 1, slope, 1, count)
    end
    return V ? total - sum_logs!(product) : total
end

function item_gradient!(
    slope::Vector{T}, product::Vector{T}, signs::Matrix{Int8}, start::Int, k::Int, ability::Vector{T}, count::Int,
    half_gamma::T, half_centre::T, ::Val{V},
) where {T,V}
    moment = ability_moment = value = zero(T)
    @inbounds @simd ivdep for i in 1:count
        s = T(signs[start + i, k])
        h = muladd(half_gamma, ability[i], half_centre)
        e = fast_exp(-2 * abs(h))
        pull = s - abs(s) * copysign((1 - e) / (1 + e), h)
        slope[i] = muladd(half_gamma, pull, slope[i])
        moment += pull
        ability_moment += ability[i] * pull
        if V
            product[i] *= muladd(abs(s), e, one(T))
            value += s * h - abs(s * h)
        end
    end
    return Float64(moment), Float64(ability_moment), Float64(value)
end

"""
    signed_sums!(sums, slopes, signs, points, rows, group, buffers)

For each point of `group` (columns of `points`, of which `rows` are the abilities) that goes by panels: add
`sum_j s_jk alpha_j` to its column of `sums`, and `sum_k half_gamma_k s_jk` to its slopes unless `slopes` is nothing.
"""
function signed_sums!(
    sums::Matrix{Float64},
    slopes,
    signs::Matrix{Int8},
    points::AbstractMatrix,
    rows::UnitRange{Int},
    group::UnitRange{Int},
    buffers::ResponseBuffers{T},
) where {T}
    J, K = size(signs)
    piece = buffers.signs
    for start in 0:BLOCK_STUDENTS:(J - 1), first_item in 1:PIECE_ITEMS:K
        count, items = min(BLOCK_STUDENTS, J - start), first_item:min(first_item + PIECE_ITEMS - 1, K)
        for (c, k) in enumerate(items)
            @inbounds @simd for i in 1:count
                piece[i, c] = signs[start + i, k]
            end
        end
        for c in (length(items) + 1):PIECE_ITEMS
            fill!(view(piece, :, c), zero(T))
        end
        for (p, m) in enumerate(group)
            buffers.by_panels[p] || continue
            alpha = @view points[rows[start + 1]:rows[start + count], m]
            found = dot_piece(piece, alpha)
            for (c, k) in enumerate(items)
                sums[k, p] += found[c]
            end
            isnothing(slopes) && continue
            g = ntuple(c -> c <= length(items) ? T(buffers.half_gamma[items[c], p]) : zero(T), Val(PIECE_ITEMS))
            add_piece!(@view(slopes[rows[start + 1]:rows[start + count], m]), piece, g)
        end
    end
    return nothing
end

"""Products of the piece's columns with the abilities."""
function dot_piece(piece::Matrix{T}, alpha::AbstractVector{T}) where {T}
    @nexprs 8 c -> sum_c = zero(T)
    @inbounds @simd for i in eachindex(alpha)
        a = alpha[i]
        @nexprs 8 c -> sum_c += piece[i, c] * a
    end
    return @ntuple 8 c -> Float64(sum_c)
end

"""Add the piece's columns to the slopes, each times its `g`."""
function add_piece!(slopes::AbstractVector{T}, piece::Matrix{T}, g::NTuple{PIECE_ITEMS,T}) where {T}
    @inbounds @simd ivdep for i in eachindex(slopes)
        slope = slopes[i]
        @nexprs 8 c -> slope = muladd(g[c], piece[i, c], slope)
        slopes[i] = slope
    end
    return nothing
end
