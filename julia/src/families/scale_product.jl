# The product of the sparse scale with a few columns, and its adjoints on the pattern alone.
#
# Dense columns are taken four at a time over tiles of rows, so that the other matrix's tile stays in the first cache.
# Ranges `rows` cut C between two rows: the non-standardized structured family multiplies its border by something else.

const TILE_ROWS = 256

"""
    scale_mul(pattern, nonzeros, U)

The product `C U` of the sparse scale with a dense `d x M` matrix. Its gradient with respect to `nonzeros` is computed
on the pattern alone: neither a d x d array nor a sparse cotangent is formed.
"""
function scale_mul(pattern::ScalePattern, nonzeros::AbstractVector, U::AbstractMatrix)
    out = fill!(similar(U, promote_type(eltype(nonzeros), eltype(U))), 0)
    return add_scale_mul!(out, pattern, nonzeros, U)
end

"""Add `C U` to `out`."""
function add_scale_mul!(out::AbstractMatrix, pattern::ScalePattern, nonzeros::AbstractVector, U::AbstractMatrix)
    check_shapes(pattern, nonzeros, U, out)
    add_dense_mul!(out, pattern, nonzeros, U, 1:(pattern.dim))
    return add_block_mul!(out, pattern, nonzeros, U)
end

"""Write into `out` the nonzeros' gradient `pattern(G U')`, given the gradient G of the product."""
function scale_pullback!(out::AbstractVector, pattern::ScalePattern, G::AbstractMatrix, U::AbstractMatrix)
    check_shapes(pattern, out, U, G)
    dense_pullback!(out, pattern, G, U, 1:(pattern.dim))
    return block_pullback!(out, pattern, G, U)
end

"""The product `C' G` of the transposed scale with a dense matrix."""
function scale_adjoint_mul(pattern::ScalePattern, nonzeros::AbstractVector, G::AbstractMatrix)
    out = fill!(similar(G, promote_type(eltype(nonzeros), eltype(G))), 0)
    check_shapes(pattern, nonzeros, G, out)
    add_dense_adjoint_mul!(out, pattern, nonzeros, G, 1:(pattern.dim))
    return add_block_adjoint_mul!(out, pattern, nonzeros, G)
end

function ChainRulesCore.rrule(
    ::typeof(scale_mul), pattern::ScalePattern, nonzeros::AbstractVector, U::AbstractMatrix
)
    function scale_mul_pullback(cotangent)
        G = unthunk(cotangent)
        T = promote_type(eltype(G), eltype(U))
        d_nonzeros = @thunk scale_pullback!(similar(nonzeros, T, length(nonzeros)), pattern, G, U)
        return NoTangent(), NoTangent(), d_nonzeros, @thunk(scale_adjoint_mul(pattern, nonzeros, G))
    end
    return scale_mul(pattern, nonzeros, U), scale_mul_pullback
end

function check_shapes(pattern::ScalePattern, nonzeros::AbstractVector, A::AbstractMatrix, B::AbstractMatrix)
    length(nonzeros) == n_nonzeros(pattern) ||
        throw(DimensionMismatch("the pattern has $(n_nonzeros(pattern)) nonzeros, got $(length(nonzeros))"))
    size(A, 1) == size(B, 1) == pattern.dim && size(A, 2) == size(B, 2) ||
        throw(DimensionMismatch("the scale is of order $(pattern.dim), the matrices are $(size(A)) and $(size(B))"))
    return nothing
end

# ---- dense columns ----------------------------------------------------------------------------------------------
"""Add to `out[rows, :]` the dense columns of `C[rows, :]` times the first rows of `heads`."""
function add_dense_mul!(out::AbstractMatrix, pattern::ScalePattern, c::AbstractVector, heads::AbstractMatrix, rows)
    n = pattern.n_dense
    @inbounds for (top, bottom) in tiles(rows)
        j = 1
        while j + 3 <= n && j + 3 <= top
            a1, a2, a3, a4 = column_offset(pattern, j), column_offset(pattern, j + 1), column_offset(pattern, j + 2), column_offset(pattern, j + 3)
            for m in axes(heads, 2)
                u1, u2, u3, u4 = heads[j, m], heads[j + 1, m], heads[j + 2, m], heads[j + 3, m]
                @simd ivdep for i in top:bottom
                    out[i, m] += (c[a1 + i] * u1 + c[a2 + i] * u2) + (c[a3 + i] * u3 + c[a4 + i] * u4)
                end
            end
            j += 4
        end
        while j <= min(n, bottom)
            a = column_offset(pattern, j)
            for m in axes(heads, 2)
                u = heads[j, m]
                @simd ivdep for i in max(j, top):bottom
                    out[i, m] += c[a + i] * u
                end
            end
            j += 1
        end
    end
    return out
end

"""Write the gradient of the dense columns' entries in `rows` into `out`."""
function dense_pullback!(out::AbstractVector, pattern::ScalePattern, G::AbstractMatrix, heads::AbstractMatrix, rows)
    n, M = pattern.n_dense, size(heads, 2)
    @inbounds for (top, bottom) in tiles(rows), j in 1:min(n, bottom)
        a, first = column_offset(pattern, j), max(j, top)
        m = 1
        if M >= 4
            u1, u2, u3, u4 = heads[j, 1], heads[j, 2], heads[j, 3], heads[j, 4]
            @simd ivdep for i in first:bottom
                out[a + i] = (G[i, 1] * u1 + G[i, 2] * u2) + (G[i, 3] * u3 + G[i, 4] * u4)
            end
            m = 5
        else
            u = heads[j, 1]
            @simd ivdep for i in first:bottom
                out[a + i] = G[i, 1] * u
            end
            m = 2
        end
        while m + 3 <= M
            u1, u2, u3, u4 = heads[j, m], heads[j, m + 1], heads[j, m + 2], heads[j, m + 3]
            @simd ivdep for i in first:bottom
                out[a + i] += (G[i, m] * u1 + G[i, m + 1] * u2) + (G[i, m + 2] * u3 + G[i, m + 3] * u4)
            end
            m += 4
        end
        while m <= M
            u = heads[j, m]
            @simd ivdep for i in first:bottom
                out[a + i] += G[i, m] * u
            end
            m += 1
        end
    end
    return out
end

"""Add to the first rows of `out` the transposed dense columns of `C[rows, :]` times `G[rows, :]`."""
function add_dense_adjoint_mul!(out::AbstractMatrix, pattern::ScalePattern, c::AbstractVector, G::AbstractMatrix, rows)
    @inbounds for (top, bottom) in tiles(rows), j in 1:min(pattern.n_dense, bottom)
        a = column_offset(pattern, j)
        for m in axes(G, 2)
            total = zero(eltype(out))
            @simd for i in max(j, top):bottom
                total += c[a + i] * G[i, m]
            end
            out[j, m] += total
        end
    end
    return out
end

"""What added to a row's number gives its place among the nonzeros, in column j."""
@inline column_offset(pattern::ScalePattern, j::Int) = @inbounds pattern.colptr[j] - j

tiles(rows) = ((top, min(top + TILE_ROWS - 1, last(rows))) for top in first(rows):TILE_ROWS:last(rows))

# ---- blocks -----------------------------------------------------------------------------------------------------
# `start` is the number of entries of `c` (or of `out`) before the blocks: 0 where the blocks stand alone.

"""Add to `out` the blocks of C times U."""
function add_block_mul!(
    out::AbstractMatrix, pattern::ScalePattern, c::AbstractVector, U::AbstractMatrix, start::Int=block_start(pattern)
)
    k = pattern.n_dense
    @inbounds if pattern.block_dim == 1
        for m in axes(U, 2)
            @simd ivdep for n in 1:(pattern.n_blocks)
                out[k + n, m] += c[start + n] * U[k + n, m]
            end
        end
    else
        each_block_entry(pattern, start, axes(U, 2)) do place, row, column, m
            @inbounds out[row, m] += c[place] * U[column, m]
        end
    end
    return out
end

"""Write the gradient of the blocks' entries into `out`."""
function block_pullback!(out::AbstractVector, pattern::ScalePattern, G::AbstractMatrix, U::AbstractMatrix)
    fill!(view(out, (block_start(pattern) + 1):length(out)), 0)
    return add_block_pullback!(out, pattern, G, U)
end

"""Add the gradient of the blocks' entries to `out`."""
function add_block_pullback!(
    out::AbstractVector, pattern::ScalePattern, G::AbstractMatrix, U::AbstractMatrix, start::Int=block_start(pattern)
)
    k = pattern.n_dense
    @inbounds if pattern.block_dim == 1
        for m in axes(U, 2)
            @simd ivdep for n in 1:(pattern.n_blocks)
                out[start + n] += G[k + n, m] * U[k + n, m]
            end
        end
    else
        each_block_entry(pattern, start, axes(U, 2)) do place, row, column, m
            @inbounds out[place] += G[row, m] * U[column, m]
        end
    end
    return out
end

"""Add to `out` the transposed blocks of C times G."""
function add_block_adjoint_mul!(
    out::AbstractMatrix, pattern::ScalePattern, c::AbstractVector, G::AbstractMatrix, start::Int=block_start(pattern)
)
    k = pattern.n_dense
    @inbounds if pattern.block_dim == 1
        for m in axes(G, 2)
            @simd ivdep for n in 1:(pattern.n_blocks)
                out[k + n, m] += c[start + n] * G[k + n, m]
            end
        end
    else
        each_block_entry(pattern, start, axes(G, 2)) do place, row, column, m
            @inbounds out[column, m] += c[place] * G[row, m]
        end
    end
    return out
end

"""
    local_mul!(out, pattern, c, chain, U, start)

Write `C_yy U_y` into the local rows of `out`, and 0 into the others: the rests `r_n` of the Markov family, and without a
chain the blocks' product alone.
"""
function local_mul!(
    out::AbstractMatrix, pattern::ScalePattern, c::AbstractVector, chain::AbstractVector, U::AbstractMatrix,
    start::Int=block_start(pattern),
)
    add_block_mul!(fill!(out, 0), pattern, c, U, start)
    return run_forward!(out, pattern, chain)
end

"""Call `visit(place, row, column, m)` for each m and, in CSC order, each nonzero in the blocks."""
@inline function each_block_entry(visit::F, pattern::ScalePattern, start::Int, draws) where {F}
    # a literal order lets the compiler unroll
    @nexprs 8 B -> (pattern.block_dim == B && return each_block_entry(visit, pattern, start, draws, Val(B)))
    return each_block_entry(visit, pattern, start, draws, pattern.block_dim)
end

@inline function each_block_entry(visit::F, pattern::ScalePattern, start::Int, draws, order) where {F}
    b = order_of(order)
    for m in draws
        place, corner = start, pattern.n_dense
        for _ in 1:(pattern.n_blocks)
            for column in 1:b, row in column:b
                place += 1
                visit(place, corner + row, corner + column, m)
            end
            corner += b
        end
    end
    return nothing
end

@inline order_of(::Val{b}) where {b} = b
@inline order_of(b::Int) = b
