# What a variational family is to the engine: a location, a scale pattern, and the product with that scale.

"""
    Family

A location-scale family `T(u) = C u + m`. A family says how many nonzeros each column of C has; in every column they
run on from the diagonal without a gap.
"""
abstract type Family end

"""
    ScalePattern(family, layout)

CSC pattern of C: `colptr` of length d + 1 and `rowval`, both counted from 1.
"""
struct ScalePattern
    dim::Int
    colptr::Vector{Int}
    rowval::Vector{Int}
end

function ScalePattern(family::Family, layout::Layout)
    lengths = column_lengths(family, layout)
    colptr = cumsum([1; lengths])
    rowval = Vector{Int}(undef, last(colptr) - 1)
    for (j, n) in enumerate(lengths)
        rowval[colptr[j]:(colptr[j + 1] - 1)] = j:(j + n - 1)
    end
    return ScalePattern(dim(layout), colptr, rowval)
end

"""Number of nonzeros of C."""
n_nonzeros(pattern::ScalePattern) = length(pattern.rowval)

"""Number of parameters p, location included (paper, table 1)."""
n_params(family::Family, layout::Layout) = dim(layout) + sum(column_lengths(family, layout); init=0)

"""Places of the d entries `C_ii` among the nonzeros: the first of each column."""
diagonal(pattern::ScalePattern) = @view pattern.colptr[1:(end - 1)]

"""The location `m` of a flat parameter vector, a view."""
location(pattern::ScalePattern, flat::AbstractVector) = @view flat[1:(pattern.dim)]

"""The nonzeros of C of a flat parameter vector, a view."""
nonzeros_of(pattern::ScalePattern, flat::AbstractVector) = @view flat[(pattern.dim + 1):end]

"""The scale matrix C of a flat parameter vector, as a `SparseMatrixCSC`."""
function scale(pattern::ScalePattern, flat::AbstractVector)
    d = pattern.dim
    return SparseMatrixCSC(d, d, copy(pattern.colptr), copy(pattern.rowval), collect(nonzeros_of(pattern, flat)))
end

# ---- the product, and its adjoints on the pattern ---------------------------------------------------------------
# Rows run on from the diagonal in each column, so that every inner loop is over contiguous memory.

"""
    scale_mul(pattern, nonzeros, U)

The product `C U` of the sparse scale with a dense `d x M` matrix. Its gradient with respect to `nonzeros` is computed
on the pattern alone: neither a d x d array nor a sparse cotangent is formed.
"""
function scale_mul(pattern::ScalePattern, nonzeros::AbstractVector, U::AbstractMatrix)
    out = zeros(promote_type(eltype(nonzeros), eltype(U)), size(U))
    return scale_mul!(out, pattern, nonzeros, U)
end

"""Add `C U` to `out`."""
function scale_mul!(out::AbstractMatrix, pattern::ScalePattern, nonzeros::AbstractVector, U::AbstractMatrix)
    check_shapes(pattern, nonzeros, U, out)
    @inbounds for j in 1:(pattern.dim)
        first, n = pattern.colptr[j], pattern.colptr[j + 1] - pattern.colptr[j]
        for m in axes(U, 2)
            u = U[j, m]
            @simd for k in 0:(n - 1)
                out[j + k, m] += nonzeros[first + k] * u
            end
        end
    end
    return out
end

"""Write into `out` the nonzeros' gradient `pattern(G U')`, given the gradient G of the product."""
function scale_pullback!(out::AbstractVector, pattern::ScalePattern, G::AbstractMatrix, U::AbstractMatrix)
    check_shapes(pattern, out, U, G)
    fill!(out, 0)
    @inbounds for j in 1:(pattern.dim)
        first, n = pattern.colptr[j], pattern.colptr[j + 1] - pattern.colptr[j]
        for m in axes(U, 2)
            u = U[j, m]
            @simd for k in 0:(n - 1)
                out[first + k] += G[j + k, m] * u
            end
        end
    end
    return out
end

"""The product `C' G` of the transposed scale with a dense matrix."""
function scale_adjoint_mul(pattern::ScalePattern, nonzeros::AbstractVector, G::AbstractMatrix)
    out = zeros(promote_type(eltype(nonzeros), eltype(G)), size(G))
    check_shapes(pattern, nonzeros, G, out)
    @inbounds for j in 1:(pattern.dim)
        first, n = pattern.colptr[j], pattern.colptr[j + 1] - pattern.colptr[j]
        for m in axes(G, 2)
            total = zero(eltype(out))
            @simd for k in 0:(n - 1)
                total += nonzeros[first + k] * G[j + k, m]
            end
            out[j, m] = total
        end
    end
    return out
end

function ChainRulesCore.rrule(
    ::typeof(scale_mul), pattern::ScalePattern, nonzeros::AbstractVector, U::AbstractMatrix
)
    function scale_mul_pullback(cotangent)
        G = unthunk(cotangent)
        d_nonzeros = @thunk scale_pullback!(similar(nonzeros, promote_type(eltype(G), eltype(U))), pattern, G, U)
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

# ---- points and entropy -----------------------------------------------------------------------------------------
"""
    transform(family, layout, pattern, flat, U)

The points `C u + m`, one column each, for noise U of `d x M`.
"""
function transform(::Family, ::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix)
    return scale_mul(pattern, nonzeros_of(pattern, flat), U) .+ location(pattern, flat)
end

"""Entropy of the distribution, `d H(base) + sum_i log|C_ii|`, in nats and in O(d)."""
function entropy(family::Family, pattern::ScalePattern, flat::AbstractVector)
    diagonal_entries = nonzeros_of(pattern, flat)[diagonal(pattern)]
    return pattern.dim * base_entropy(family.base) + sum(log ∘ abs, diagonal_entries)
end
