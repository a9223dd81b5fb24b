"""
What the loop does entry by entry on the CPU, in whole-array operations for arrays of a GPU.

The border of the structured family is dense: it is unpacked into a matrix and multiplied there by the vendor's BLAS. Noise
is drawn on the CPU with the same generator, so that a run takes the same path on every device up to rounding.
Not run on a GPU: tested on JLArrays, which forbid what a GPU forbids.
"""
module GPUArraysExt

using GPUArrays: AbstractGPUVector
using LinearAlgebra: mul!
using PyTuringVI: PyTuringVI as P, Family, Layout, ScalePattern, Structured

"""
On the device: the place of each nonzero of the dense columns in a dense `d x n_dense` matrix, and the places of the
entries `C_ii` in the flat parameter vector.
"""
struct DeviceIndex{V<:AbstractGPUVector{Int}}
    border::V
    diagonal::V
end

const DevicePattern = ScalePattern{<:DeviceIndex}

function P.beside(pattern::ScalePattern, flat::AbstractGPUVector)
    (; dim, n_dense, n_blocks, block_dim, n_links, n_widths, colptr) = pattern
    border = Int[(j - 1) * dim + i for j in 1:n_dense for i in j:dim]
    index = DeviceIndex(P.beside(border, flat), P.beside(dim .+ P.diagonal(pattern), flat))
    return ScalePattern(dim, n_dense, n_blocks, block_dim, n_links, n_widths, colptr, index)
end

on_cpu_only(what) =
    throw(ArgumentError("$what runs on the CPU only in Julia; use device=\"cpu\", or engine=\"numpy\" for a GPU."))

# its small triangular systems are solved entry by entry
P.beside(::P.StochasticVolatility, ::AbstractGPUVector) = on_cpu_only("the stochastic volatility model")

# its recursions go step by step
P.beside(::P.Objective{<:P.Model,<:P.Markov}, ::AbstractGPUVector) = on_cpu_only("the Markov family")

# nor have its steps been written for a device
P.beside(::P.Objective{<:P.Model,<:P.ConditionalStructured}, ::AbstractGPUVector) = on_cpu_only("the structured family with conditional widths")

# ---- the scale product ----------------------------------------------------------------------------------------------
function P.add_scale_mul!(out::AbstractMatrix, pattern::DevicePattern, nonzeros::AbstractVector, U::AbstractMatrix)
    P.check_shapes(pattern, nonzeros, U, out)
    pattern.n_dense > 0 && mul!(out, border(pattern, nonzeros), heads(pattern, U), true, true)
    return P.add_block_mul!(out, pattern, nonzeros, U)
end

function P.scale_pullback!(out::AbstractVector, pattern::DevicePattern, G::AbstractMatrix, U::AbstractMatrix)
    P.check_shapes(pattern, out, U, G)
    pattern.n_dense > 0 && pack_border!(out, pattern, G * heads(pattern, U)')
    return P.block_pullback!(out, pattern, G, U)
end

function P.scale_adjoint_mul(pattern::DevicePattern, nonzeros::AbstractVector, G::AbstractMatrix)
    out = fill!(similar(G, promote_type(eltype(nonzeros), eltype(G))), 0)
    P.check_shapes(pattern, nonzeros, G, out)
    if pattern.n_dense > 0
        view(out, 1:(pattern.n_dense), :) .+= border(pattern, nonzeros)' * G
    end
    return P.add_block_adjoint_mul!(out, pattern, nonzeros, G)
end

"""The dense columns of C as a `d x n_dense` matrix, zero above the diagonal."""
function border(pattern::DevicePattern, c::AbstractVector)
    dense = fill!(similar(c, pattern.dim, pattern.n_dense), 0)
    dense[pattern.index.border] = c[1:P.block_start(pattern)]
    return dense
end

"""Write the entries on and below the diagonal of a `d x n_dense` matrix into the dense columns' nonzeros."""
function pack_border!(out::AbstractVector, pattern::DevicePattern, dense::AbstractMatrix)
    view(out, 1:P.block_start(pattern)) .= dense[pattern.index.border]
    return out
end

"""The first rows of a matrix, which the dense columns multiply."""
heads(pattern::DevicePattern, U::AbstractMatrix) = U[1:(pattern.n_dense), :]

# ---- blocks: one operation for each column of a block, over all blocks and points -----------------------------------
function P.add_block_mul!(out::AbstractMatrix, pattern::DevicePattern, c::AbstractVector, U::AbstractMatrix)
    pattern.n_blocks == 0 && return out
    tails = by_block(pattern, U)
    product = fill!(similar(tails, promote_type(eltype(c), eltype(U))), 0)
    for (column, rows, entries) in block_columns(pattern, c)
        view(product, rows, :, :) .+= entries .* view(tails, column:column, :, :)
    end
    return add_tails!(out, pattern, product)
end

function P.block_pullback!(out::AbstractVector, pattern::DevicePattern, G::AbstractMatrix, U::AbstractMatrix)
    pattern.n_blocks == 0 && return out
    slopes, tails = by_block(pattern, G), by_block(pattern, U)
    packed, places = packed_blocks(pattern, out), block_places(pattern)
    for (column, entries) in enumerate(places)
        products = view(slopes, column:(pattern.block_dim), :, :) .* view(tails, column:column, :, :)
        view(packed, entries, :) .= dropdims(sum(products; dims=3); dims=3)
    end
    return out
end

function P.add_block_adjoint_mul!(out::AbstractMatrix, pattern::DevicePattern, c::AbstractVector, G::AbstractMatrix)
    pattern.n_blocks == 0 && return out
    slopes = by_block(pattern, G)
    product = fill!(similar(slopes, promote_type(eltype(c), eltype(G))), 0)
    for (column, rows, entries) in block_columns(pattern, c)
        view(product, column:column, :, :) .+= sum(entries .* view(slopes, rows, :, :); dims=1)
    end
    return add_tails!(out, pattern, product)
end

"""The rows of the blocks of a `d x M` matrix, as `block_dim x n_blocks x M`; a copy."""
function by_block(pattern::DevicePattern, A::AbstractMatrix)
    return reshape(A[(pattern.n_dense + 1):end, :], pattern.block_dim, pattern.n_blocks, size(A, 2))
end

function add_tails!(out::AbstractMatrix, pattern::DevicePattern, product::AbstractArray{<:Real,3})
    view(out, (pattern.n_dense + 1):(pattern.dim), :) .+= reshape(product, :, size(out, 2))
    return out
end

"""The nonzeros of the blocks, a column a block; shares memory."""
function packed_blocks(pattern::DevicePattern, c::AbstractVector)
    return reshape(view(c, (P.block_start(pattern) + 1):length(c)), :, pattern.n_blocks)
end

"""For each column of a block, the places of its nonzeros among the block's."""
function block_places(pattern::DevicePattern)
    ends = cumsum((pattern.block_dim):-1:1)
    return [(ends[k] - pattern.block_dim + k):ends[k] for k in 1:(pattern.block_dim)]
end

"""For each column of a block: its number, its rows and its nonzeros, ready to be broadcast over points."""
function block_columns(pattern::DevicePattern, c::AbstractVector)
    packed = packed_blocks(pattern, c)
    return (
        (column, column:(pattern.block_dim), reshape(packed[places, :], length(places), pattern.n_blocks, 1)) for
        (column, places) in enumerate(block_places(pattern))
    )
end

# ---- the structured family -------------------------------------------------------------------------------------------
function P.transform!(
    points::AbstractMatrix, family::Structured, layout::Layout, pattern::DevicePattern, flat::AbstractVector, U::AbstractMatrix
)
    family.standardized || return copyto!(points, P.transform(family, layout, pattern, flat, U))
    points .= P.location(pattern, flat)
    return P.add_scale_mul!(points, pattern, P.nonzeros_of(pattern, flat), U)
end

function P.pullback!(
    out::AbstractVector, family::Structured, layout::Layout, pattern::DevicePattern, flat::AbstractVector,
    U::AbstractMatrix, points::AbstractMatrix, G::AbstractMatrix,
)
    d_nonzeros = P.nonzeros_of(pattern, out)
    if family.standardized
        P.scale_pullback!(d_nonzeros, pattern, G, U)
    else
        P.block_pullback!(d_nonzeros, pattern, G, U)
        z_rows, y_rows = P.global_range(layout), P.local_range(layout)
        A = border(pattern, P.nonzeros_of(pattern, flat))[y_rows, :]
        # z moves every y_n as well, through A_n
        view(G, z_rows, :) .+= A' * G[y_rows, :]
        dense = vcat(G[z_rows, :] * heads(pattern, U)', G[y_rows, :] * heads(pattern, points)')
        pack_border!(d_nonzeros, pattern, dense)
    end
    P.location_pullback!(P.location(pattern, out), G)
    return out
end

# ---- the diagonal of C -----------------------------------------------------------------------------------------------
function P.entropy(family::Family, pattern::DevicePattern, flat::AbstractVector)
    return pattern.dim * P.base_entropy(family.base) + sum(log ∘ abs, flat[pattern.index.diagonal])
end

function P.subtract_entropy_gradient!(out::AbstractVector{T}, pattern::DevicePattern, flat::AbstractVector{T}) where {T}
    places = pattern.index.diagonal
    inverse = inv.(flat[places])
    out[places] = out[places] .- inverse
    return isfinite(sum(abs2, inverse))
end

function P.change_diagonal!(flat::AbstractVector, pattern::DevicePattern, change, stepsize::Real)
    places = pattern.index.diagonal
    flat[places] = change.(flat[places], stepsize)
    return flat
end

end
