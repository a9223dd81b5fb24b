# A location, the pattern of a scale, and what every family makes of them.

"""
    ScalePattern(family, layout)

CSC pattern of C: in every column the nonzeros run on from the diagonal without a gap, so that `colptr` (d + 1 entries,
counted from 1) says it all. `index` is what another device than the CPU needs besides, nothing on the CPU.

In the Markov family these are the entries of C that are parameters, and behind them stand the `n_links` matrices A_n, each
of `block_dim` columns and rows; other families have none. With conditional widths these are those of the structured
family, and behind them stand the `n_widths` entries of b.
"""
struct ScalePattern{I}
    dim::Int
    n_dense::Int
    n_blocks::Int
    block_dim::Int
    n_links::Int
    n_widths::Int
    colptr::Vector{Int}
    index::I
end

function ScalePattern(family::Family, layout::Layout)
    d = dim(layout)
    n_dense, n_blocks, block_dim = scale_shape(family, layout)
    lengths = Iterators.flatten((d:-1:(d - n_dense + 1), Iterators.flatten(block_dim:-1:1 for _ in 1:n_blocks)))
    colptr = pushfirst!(1 .+ cumsum(collect(Int, lengths)), 1)
    behind = n_links(family, layout), n_widths(family, layout)
    return ScalePattern(d, n_dense, n_blocks, block_dim, behind..., colptr, nothing)
end

"""Number of matrices A_n, from a local to the next."""
n_links(::Family, ::Layout) = 0

"""Number of entries of all b_n, of conditional widths."""
n_widths(::Family, ::Layout) = 0

"""The pattern as it serves parameters that lie where `flat` does."""
beside(pattern::ScalePattern, ::AbstractVector) = pattern

"""Number of nonzeros before the blocks."""
block_start(pattern::ScalePattern) = pattern.n_dense * pattern.dim - pattern.n_dense * (pattern.n_dense - 1) ÷ 2

"""Number of nonzeros of C."""
function n_nonzeros(pattern::ScalePattern)
    return block_start(pattern) + pattern.n_blocks * (pattern.block_dim * (pattern.block_dim + 1) ÷ 2)
end

ChainRulesCore.@non_differentiable n_nonzeros(::Any)

"""Number of entries of all A_n."""
n_chain(pattern::ScalePattern) = pattern.n_links * pattern.block_dim^2

"""Number of parameters p, location included (paper, table 1)."""
n_params(family::Family, layout::Layout) = n_params(ScalePattern(family, layout))
n_params(pattern::ScalePattern) = pattern.dim + n_nonzeros(pattern) + n_chain(pattern) + pattern.n_widths

"""Places of the d entries `C_ii` among the nonzeros: the first of each column."""
diagonal(pattern::ScalePattern) = @view pattern.colptr[1:(end - 1)]

"""The location `m` of a flat parameter vector, a view."""
location(pattern::ScalePattern, flat::AbstractVector) = @view flat[1:(pattern.dim)]

"""The nonzeros of C of a flat parameter vector, a view."""
nonzeros_of(pattern::ScalePattern, flat::AbstractVector) = @view flat[(pattern.dim + 1):(pattern.dim + n_nonzeros(pattern))]

"""The matrices A_n of a flat parameter vector, one after the other and each column by column, a view."""
function chain_of(pattern::ScalePattern, flat::AbstractVector)
    start = pattern.dim + n_nonzeros(pattern)
    return @view flat[(start + 1):(start + n_chain(pattern))]
end

# ---- points and entropy -----------------------------------------------------------------------------------------
"""
    transform(family, layout, pattern, flat, U)

The points `C u + m`, one column each, for noise U of `d x M`.
"""
function transform(::Family, ::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix)
    return scale_mul(pattern, nonzeros_of(pattern, flat), U) .+ location(pattern, flat)
end

"""Write the points of `transform` into `points`."""
function transform!(points::AbstractMatrix, ::Family, ::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix)
    points .= location(pattern, flat)
    return add_scale_mul!(points, pattern, nonzeros_of(pattern, flat), U)
end

"""
    pullback!(out, family, layout, pattern, flat, U, points, G)

Write the parameters' gradient into `out`, given the objective's gradient G at `points`; both may be overwritten.
"""
function pullback!(
    out::AbstractVector, ::Family, ::Layout, pattern::ScalePattern, ::AbstractVector, U::AbstractMatrix,
    ::AbstractMatrix, G::AbstractMatrix,
)
    location_pullback!(location(pattern, out), G)
    scale_pullback!(nonzeros_of(pattern, out), pattern, G, U)
    return out
end

"""Write the sum over the columns of G into `out`."""
function location_pullback!(out::AbstractVector, G::AbstractMatrix)
    out .= @view G[:, 1]
    for m in 2:size(G, 2)
        out .+= @view G[:, m]
    end
    return out
end

"""Entropy of the distribution, `d H(base) + sum_i log|C_ii|`, in nats and in O(d)."""
function entropy(family::Family, pattern::ScalePattern, flat::AbstractVector)
    diagonal_entries = nonzeros_of(pattern, flat)[diagonal(pattern)]
    return pattern.dim * base_entropy(family.base) + sum(log ∘ abs, diagonal_entries)
end
