# A family's members as a matrix group: what natural gradients are in its coordinates, and steps along them.
#
# The scale matrices of a pattern are closed under products. A step is `m + C a` and `C E(K)`, with K of C's pattern and
# `E(K) = I + K + B^2/2`, where B is K without the border; in these coordinates the Fisher matrix is constant, and diagonal
# (Lin, Nielsen, Khan and Schmidt, 2021; Tan, 2021).

"""
    Unpacked{T}(pattern)

Flat parameters `[m; C]`, or a step `[a; K]`, with the dense columns as a `d x n_dense` matrix that BLAS can read: zero
above the diagonal. `blocks` are the packed lower triangles behind it, in CSC order; `chain` has the matrices A_n of the
Markov family, or their steps L_n, and is empty in all others; `widths` likewise has b of conditional widths.
"""
struct Unpacked{T}
    location::Vector{T}
    dense::Matrix{T}
    blocks::Vector{T}
    chain::Vector{T}
    widths::Matrix{T}
end

function Unpacked{T}(pattern::ScalePattern) where {T}
    d, n, n_in_blocks = pattern.dim, pattern.n_dense, n_nonzeros(pattern) - block_start(pattern)
    widths = zeros(T, d - n, pattern.n_widths > 0 || d == n ? n : 0)
    return Unpacked(zeros(T, d), zeros(T, d, n), zeros(T, n_in_blocks), zeros(T, n_chain(pattern)), widths)
end

parts(u::Unpacked) = u.location, u.dense, u.blocks, u.chain, u.widths
clear!(u::Unpacked{T}) where {T} = map(part -> fill!(part, zero(T)), parts(u))

function unpack!(u::Unpacked, pattern::ScalePattern, flat::AbstractVector)
    d, start = pattern.dim, block_start(pattern)
    copyto!(u.location, 1, flat, 1, d)
    for j in 1:(pattern.n_dense)
        copyto!(u.dense, (j - 1) * d + j, flat, d + pattern.colptr[j], d - j + 1)
    end
    copyto!(u.blocks, 1, flat, d + start + 1, length(u.blocks))
    copyto!(u.chain, chain_of(pattern, flat))
    isempty(u.widths) || copyto!(u.widths, widths_of(pattern, flat))
    return u
end

function pack!(flat::AbstractVector, pattern::ScalePattern, u::Unpacked)
    d, start = pattern.dim, block_start(pattern)
    copyto!(flat, 1, u.location, 1, d)
    for j in 1:(pattern.n_dense)
        copyto!(flat, d + pattern.colptr[j], u.dense, (j - 1) * d + j, d - j + 1)
    end
    copyto!(flat, d + start + 1, u.blocks, 1, length(u.blocks))
    copyto!(chain_of(pattern, flat), u.chain)
    isempty(u.widths) || copyto!(widths_of(pattern, flat), u.widths)
    return flat
end

# ---- products with many draws ---------------------------------------------------------------------------------------
# Dense columns go to BLAS a panel at a time, from the panel's first row down: half the work where all of C is dense.

const PANEL_COLUMNS = 128

function each_panel(visit, pattern::ScalePattern, bottom::Int=pattern.dim)
    n = pattern.n_dense
    for first in 1:PANEL_COLUMNS:n
        visit(first:min(first + PANEL_COLUMNS - 1, n), first:bottom)
    end
    return nothing
end

"""Write `C U` into `out`."""
function scale_mul!(out::AbstractMatrix{T}, pattern::ScalePattern, C::Unpacked{T}, U::AbstractMatrix{T}) where {T}
    local_mul!(out, pattern, C.blocks, C.chain, U, 0)
    each_panel(pattern) do columns, rows
        @views BLAS.gemm!('N', 'N', one(T), C.dense[rows, columns], U[columns, :], one(T), out[rows, :])
    end
    return out
end

"""Add `C' G` to `out`; G may be overwritten."""
function add_scale_adjoint_mul!(
    out::AbstractMatrix{T}, pattern::ScalePattern, C::Unpacked{T}, G::AbstractMatrix{T}
) where {T}
    each_panel(pattern) do columns, rows
        @views BLAS.gemm!('T', 'N', one(T), C.dense[rows, columns], G[rows, :], one(T), out[columns, :])
    end
    run_backward!(G, pattern, C.chain)
    return add_block_adjoint_mul!(out, pattern, C.blocks, G, 0)
end

"""Add `pattern(H U')` to the scale of `out`; what stands above the diagonal is then no zero until `normalize!`."""
function add_outer!(out::Unpacked{T}, pattern::ScalePattern, H::AbstractMatrix{T}, U::AbstractMatrix{T}) where {T}
    each_panel(pattern) do columns, rows
        @views BLAS.gemm!('N', 'T', one(T), H[rows, :], U[columns, :], one(T), out.dense[rows, columns])
    end
    add_block_pullback!(out.blocks, pattern, H, U, 0)
    return out
end

# ---- the Fisher metric ----------------------------------------------------------------------------------------------
"""Call `visit(k, entries...)` for each of the d diagonal entries, the k-th of an array of each scale."""
@inline function each_diagonal(visit, pattern::ScalePattern, scales::Unpacked...)
    d, n, start = pattern.dim, pattern.n_dense, block_start(pattern)
    dense, blocks = map(u -> u.dense, scales), map(u -> u.blocks, scales)
    for j in 1:n
        visit((j - 1) * d + j, dense...)
    end
    for j in (n + 1):d
        visit(pattern.colptr[j] - start, blocks...)
    end
    return nothing
end

"""`sum log|C_ii|`."""
function log_abs_det(C::Unpacked, pattern::ScalePattern)
    total = Ref(0.0)
    each_diagonal((k, c) -> total[] += log(abs(Float64(c[k]))), pattern, C)
    return total[]
end

"""Sums over M draws of h and of `pattern(h u')` become the natural gradient: the mean over the base's information."""
function normalize!(t::Unpacked{T}, pattern::ScalePattern, base::BaseDistribution, M::Int) where {T}
    below, on = location_information(base), scale_information(base)
    for j in 2:(pattern.n_dense)
        fill!(view(t.dense, 1:(j - 1), j), zero(T))
    end
    map(part -> part .*= T(1 / (M * below)), parts(t))
    each_diagonal((k, entries) -> entries[k] *= T(below / on), pattern, t)
    t.widths .*= T(below / on)  # log scales, as the diagonal
    return t
end

"""Inner product of two steps: the base's information on location and scale weighs their entries."""
function fisher_inner(s::Unpacked, t::Unpacked, pattern::ScalePattern, base::BaseDistribution)
    below, on = location_information(base), scale_information(base)
    plain = sum(map((a, b) -> Float64(BLAS.dot(length(a), a, 1, b, 1)), parts(s), parts(t)))
    total = Ref(below * plain)
    each_diagonal((k, a, b) -> total[] += (on - below) * Float64(a[k]) * Float64(b[k]), pattern, s, t)
    isempty(s.widths) || (total[] += (on - below) * Float64(dot(s.widths, t.widths)))
    return total[]
end

"""Whether what a step does to the globals alone is one block among others."""
has_global_block(pattern::ScalePattern) = pattern.n_dense > 0 && pattern.n_blocks > 0

"""Squared norm of what a direction does to the globals alone; 0 where they have no block of their own."""
function global_square(direction::Unpacked, pattern::ScalePattern)
    has_global_block(pattern) || return 0.0
    z = 1:(pattern.n_dense)  # above its diagonal, the scale is 0
    return sum(abs2 ∘ Float64, view(direction.location, z)) + sum(abs2 ∘ Float64, view(direction.dense, z, z))
end

# ---- steps ----------------------------------------------------------------------------------------------------------
"""
    bound_step!(step, velocity, pattern, rate, global_rate, trust, factors) -> share of blocks cut short, NaN if not finite

Write `rate * velocity` into `step`, each block cut to norm `trust` and until no diagonal entry of K is below -1, where
`1 + k + k^2/2` is smallest: the globals, and each local with its rows of the border, of the chain and of b. The globals'
own block has the `global_rate` where that is larger. `factors` is a buffer of length d. What is cut to `trust` counts.
"""
function bound_step!(
    step::Unpacked{T}, velocity::Unpacked{T}, pattern::ScalePattern, rate::T, global_rate::T, trust::T,
    factors::Vector{T},
) where {T}
    n, b = pattern.n_dense, pattern.block_dim
    row_squares!(factors, velocity, pattern)
    n_cut, finite, last = 0, true, 0
    of_globals = has_global_block(pattern) ? max(rate, global_rate) : rate
    for block in (n > 0 ? 0 : 1):(pattern.n_blocks)
        first, last = last + 1, last + (block == 0 ? n : b)
        share = block == 0 ? of_globals : rate
        total = least = zero(T)
        @inbounds for i in first:last
            total += factors[i]
            least = min(least, diagonal_entry(velocity, pattern, i))
        end
        norm = share * sqrt(total)
        n_cut += norm > trust
        finite &= isfinite(norm)
        factor = norm > trust ? share * (trust / norm) : share
        factor * least < -1 && (factor = -inv(least))
        @inbounds for i in first:last
            factors[i] = factor
        end
    end
    finite || return NaN
    step.location .= factors .* velocity.location
    step.dense .= factors .* velocity.dense
    if b == 1
        step.blocks .= view(factors, (n + 1):(pattern.dim)) .* velocity.blocks
    else
        each_block_entry(pattern, 0, 1:1) do place, row, _, _
            @inbounds step.blocks[place] = factors[row] * velocity.blocks[place]
        end
    end
    each_chain_entry(pattern) do place, row
        @inbounds step.chain[place] = factors[row] * velocity.chain[place]
    end
    isempty(step.widths) || (step.widths .= view(factors, (n + 1):(pattern.dim)) .* velocity.widths)
    return n_cut / (pattern.n_blocks + (n > 0))
end

"""The diagonal entry in a row of the scale."""
@inline function diagonal_entry(u::Unpacked, pattern::ScalePattern, row::Int)
    row <= pattern.n_dense && return u.dense[row, row]
    return u.blocks[pattern.colptr[row] - block_start(pattern)]
end

"""Sum of squares of a step's entries in each row, of its location's too."""
function row_squares!(out::Vector, step::Unpacked, pattern::ScalePattern)
    n = pattern.n_dense
    out .= abs2.(step.location)
    @inbounds for j in 1:n
        @simd ivdep for i in j:(pattern.dim)
            out[i] += abs2(step.dense[i, j])
        end
    end
    if pattern.block_dim == 1
        view(out, (n + 1):(pattern.dim)) .+= abs2.(step.blocks)
    else
        each_block_entry(pattern, 0, 1:1) do place, row, _, _
            @inbounds out[row] += abs2(step.blocks[place])
        end
    end
    each_chain_entry(pattern) do place, row
        @inbounds out[row] += abs2(step.chain[place])
    end
    for column in eachcol(step.widths)
        view(out, (n + 1):(pattern.dim)) .+= abs2.(column)
    end
    return out
end

"""Whether the diagonal of C after a step is finite and not 0."""
function keeps_diagonal(C::Unpacked, step::Unpacked, pattern::ScalePattern)
    kept = Ref(true)
    each_diagonal(pattern, C, step) do k, c, change
        new = c[k] * (1 + change[k] + change[k]^2 / 2)
        kept[] &= isfinite(new) && new != 0
    end
    return kept[]
end

"""
    retract!(C, step, spare, pattern, roots)

Move the member C of the family along a step: `m + C a` and `C (I + K + B^2/2)`, its chain as `retract_chain!` says, and
its widths as `move_widths!` does.
`step` and `spare` are overwritten.
"""
function retract!(
    C::Unpacked{T}, step::Unpacked{T}, spare::Unpacked{T}, pattern::ScalePattern, roots::Vector{T}
) where {T}
    n, d = pattern.n_dense, pattern.dim
    column(v) = reshape(v, d, 1)
    factors = move_widths!(C, step, pattern)
    scale_mul!(column(spare.location), pattern, C, column(step.location))
    C.location .+= spare.location
    if n > 0
        z, y = 1:n, (n + 1):d
        n < d && local_mul!(spare.dense, pattern, C.blocks, C.chain, step.dense, 0)
        change = view(spare.dense, z, :)  # E - I = K + K^2/2, then C_zz (E - I)
        copyto!(change, view(step.dense, z, :))
        lower_mul!(view(step.dense, z, :), change, pattern)
        change .= view(step.dense, z, :) .+ change ./ 2
        if n < d
            @views BLAS.gemm!('N', 'N', one(T), C.dense[y, :], change, one(T), spare.dense[y, :])
        end
        lower_mul!(view(C.dense, z, :), change, pattern)
        C.dense .+= spare.dense
    end
    retract_chain!(C, step, pattern, roots)  # with the blocks as they were
    retract_blocks!(C.blocks, step.blocks, spare.blocks, pattern)
    scale_columns!(C, factors, pattern)
    return C
end

"""`B <- A B` of lower triangular matrices, of order `n_dense`."""
function lower_mul!(A::AbstractMatrix{T}, B::AbstractMatrix{T}, pattern::ScalePattern) where {T}
    each_panel(pattern, pattern.n_dense) do columns, rows
        @views BLAS.trmm!('L', 'L', 'N', 'N', one(T), A[rows, rows], B[rows, columns])
    end
    return B
end

"""Place of an entry in a packed lower triangle of order b."""
@inline place_in_block(b::Int, row::Int, column::Int) = (column - 1) * b - column * (column - 1) ÷ 2 + row

function retract_blocks!(c::Vector{T}, k::Vector{T}, change::Vector{T}, pattern::ScalePattern) where {T}
    b = pattern.block_dim
    if b <= 1  # without blocks there is nothing
        c .*= 1 .+ k .+ k .* k ./ 2
        return c
    end
    size, entry = b * (b + 1) ÷ 2, (row, column) -> place_in_block(b, row, column)
    @inbounds for start in 0:size:(length(c) - 1)
        for column in 1:b, row in column:b
            square = zero(T)
            for middle in column:row
                square += k[start + entry(row, middle)] * k[start + entry(middle, column)]
            end
            change[start + entry(row, column)] = k[start + entry(row, column)] + square / 2
        end
        # column by column: what is read of C stands in this column's own entry, or in later columns
        for column in 1:b, row in column:b
            total = zero(T)
            for middle in column:row
                total += c[start + entry(row, middle)] * change[start + entry(middle, column)]
            end
            c[start + entry(row, column)] += total
        end
    end
    return c
end
