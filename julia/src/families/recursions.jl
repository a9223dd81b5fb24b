# First-order recursions over a series, `x_n = A_n x_{n-1} + e_n`, for many series at a time.
#
# A column of a `d x M` matrix holds a series in its local rows. The matrices A_2, ..., A_N come one after the other, each
# column by column; without any, nothing is done. The draws are an inner loop, since the steps of one series wait for each
# other, and up to 8 numbers of a local are kept in registers.

"""Replace the local rows e of each column by `x_n = A_n x_{n-1} + e_n`, with x_0 = 0."""
function run_forward!(x::AbstractMatrix, pattern::ScalePattern, chain::AbstractVector)
    b = pattern.block_dim
    @nexprs 8 B -> (b == B && return run_forward!(x, pattern, chain, Val(B)))
    return run_forward!(x, pattern, chain, b)
end

function run_forward!(x::AbstractMatrix, pattern::ScalePattern, chain::AbstractVector, b::Int)
    @inbounds for n in 1:(pattern.n_links), m in axes(x, 2)
        before, a = places_of_link(pattern, n, b)
        for j in 1:b
            factor = x[before + j, m]
            @simd ivdep for i in 1:b
                x[before + b + i, m] = muladd(chain[a + i], factor, x[before + b + i, m])
            end
            a += b
        end
    end
    return x
end

function run_forward!(x::AbstractMatrix, pattern::ScalePattern, chain::AbstractVector, order::Val{b}) where {b}
    @inbounds for n in 1:(pattern.n_links), m in axes(x, 2)
        before, a = places_of_link(pattern, n, b)
        here = entries(order, x, before + b, m)
        for j in 1:b
            here = plus(here, x[before + j, m], chain, a + (j - 1) * b)
        end
        put_entries!(x, here, before + b, m)
    end
    return x
end

"""Replace the local rows e of each column by `x_n = A_{n+1}' x_{n+1} + e_n`, with x_{N+1} = 0."""
function run_backward!(x::AbstractMatrix, pattern::ScalePattern, chain::AbstractVector)
    b = pattern.block_dim
    @nexprs 8 B -> (b == B && return run_backward!(x, pattern, chain, Val(B)))
    return run_backward!(x, pattern, chain, b)
end

function run_backward!(x::AbstractMatrix, pattern::ScalePattern, chain::AbstractVector, b::Int)
    @inbounds for n in (pattern.n_links):-1:1, m in axes(x, 2)
        before, a = places_of_link(pattern, n, b)
        for j in 1:b
            total = x[before + j, m]
            for i in 1:b
                total = muladd(chain[a + i], x[before + b + i, m], total)
            end
            x[before + j, m] = total
            a += b
        end
    end
    return x
end

function run_backward!(x::AbstractMatrix, pattern::ScalePattern, chain::AbstractVector, order::Val{b}) where {b}
    @inbounds for n in (pattern.n_links):-1:1, m in axes(x, 2)
        before, a = places_of_link(pattern, n, b)
        here = entries(order, x, before + b, m)
        for j in 1:b
            x[before + j, m] += sum(here .* entries(order, chain, a + (j - 1) * b))
        end
    end
    return x
end

"""Add the sums over the columns of `g_n x_{n-1}'` to `out`, in the places of A_n."""
function add_lagged_outer!(out::AbstractVector, pattern::ScalePattern, G::AbstractMatrix, x::AbstractMatrix)
    b = pattern.block_dim
    @nexprs 8 B -> (b == B && return add_lagged_outer!(out, pattern, G, x, Val(B)))
    return add_lagged_outer!(out, pattern, G, x, b)
end

function add_lagged_outer!(out::AbstractVector, pattern::ScalePattern, G::AbstractMatrix, x::AbstractMatrix, b::Int)
    @inbounds for n in 1:(pattern.n_links), m in axes(x, 2)
        before, a = places_of_link(pattern, n, b)
        for j in 1:b
            factor = x[before + j, m]
            @simd ivdep for i in 1:b
                out[a + i] = muladd(G[before + b + i, m], factor, out[a + i])
            end
            a += b
        end
    end
    return out
end

function add_lagged_outer!(
    out::AbstractVector, pattern::ScalePattern, G::AbstractMatrix, x::AbstractMatrix, order::Val{b}
) where {b}
    @inbounds for n in 1:(pattern.n_links), j in 1:b
        before, a = places_of_link(pattern, n, b)
        column = entries(order, out, a + (j - 1) * b)
        for m in axes(x, 2)
            column = plus(column, x[before + j, m], G, before + b, m)
        end
        put_entries!(out, column, a + (j - 1) * b)
    end
    return out
end

"""The rows before those of local n, and the entries before those of `A_{n+1}`."""
@inline places_of_link(pattern::ScalePattern, n::Int, b::Int) = (pattern.n_dense + (n - 1) * b, (n - 1) * b * b)

"""As many entries behind a place of a vector, or of a column of a matrix."""
@inline entries(order::Val, A::AbstractArray, place::Int, m::Int...) = ntuple(i -> @inbounds(A[place + i, m...]), order)

@inline function plus(sums::NTuple{b}, factor, A::AbstractArray, place::Int, m::Int...) where {b}
    return ntuple(i -> @inbounds(muladd(A[place + i, m...], factor, sums[i])), Val(b))
end

@inline function put_entries!(A::AbstractArray, values::NTuple{b}, place::Int, m::Int...) where {b}
    @inbounds for i in 1:b
        A[place + i, m...] = values[i]
    end
    return A
end

# ---- for Zygote -----------------------------------------------------------------------------------------------------
"""A matrix whose local rows are those of `run_forward!`, its other rows as they were."""
run_forward(pattern::ScalePattern, chain::AbstractVector, e::AbstractMatrix) = run_forward!(copy(e), pattern, chain)

function ChainRulesCore.rrule(::typeof(run_forward), pattern::ScalePattern, chain::AbstractVector, e::AbstractMatrix)
    x = run_forward(pattern, chain, e)
    function run_forward_pullback(cotangent)
        pulled = run_backward!(copy(unthunk(cotangent)), pattern, chain)
        d_chain = add_lagged_outer!(fill!(similar(chain, eltype(pulled), length(chain)), 0), pattern, pulled, x)
        return NoTangent(), NoTangent(), d_chain, pulled
    end
    return x, run_forward_pullback
end

# ---- covariances ----------------------------------------------------------------------------------------------------
"""
    covariance_roots!(roots, work, pattern, chain, blocks)

Write the lower triangles `R_1, ..., R_{N-1}` with `R_n R_n' = S_n` into `roots`, each as a whole matrix whose entries above
the diagonal mean nothing: `S_n = A_n S_{n-1} A_n' + C_n C_n'` with S_0 = 0, for packed lower triangles C_n. NaN where an S_n
is singular to rounding. `work` has room for one matrix at least.
"""
function covariance_roots!(
    roots::Vector{T}, work::Vector{T}, pattern::ScalePattern, chain::AbstractVector{T}, blocks::AbstractVector{T}
) where {T}
    b = pattern.block_dim
    @inbounds for n in 1:(pattern.n_links)
        here, own = (n - 1) * b * b, (n - 1) * (b * (b + 1) ÷ 2)
        for j in 1:b, i in j:b
            total = zero(T)
            for k in 1:j
                total = muladd(blocks[own + place_in_block(b, i, k)], blocks[own + place_in_block(b, j, k)], total)
            end
            roots[here + (j - 1) * b + i] = total
        end
        n > 1 && add_moved_covariance!(roots, work, chain, here, b)
        lower_root!(roots, here, b)
    end
    return roots
end

"""Add `A R R' A'` to the lower triangle behind place `here`, R and A being those of the place before."""
function add_moved_covariance!(roots::Vector{T}, work::Vector{T}, chain::AbstractVector{T}, here::Int, b::Int) where {T}
    before = here - b * b
    @inbounds for j in 1:b, i in 1:b
        total = zero(T)
        for k in j:b
            total = muladd(chain[before + (k - 1) * b + i], roots[before + (j - 1) * b + k], total)
        end
        work[(j - 1) * b + i] = total
    end
    @inbounds for j in 1:b, i in j:b
        total = roots[here + (j - 1) * b + i]
        for k in 1:b
            total = muladd(work[(k - 1) * b + i], work[(k - 1) * b + j], total)
        end
        roots[here + (j - 1) * b + i] = total
    end
    return roots
end

"""Replace the lower triangle of order b behind place `here` by its Cholesky factor, NaN where a pivot is not positive."""
function lower_root!(a::Vector{T}, here::Int, b::Int) where {T}
    @inbounds for j in 1:b
        column = here + (j - 1) * b
        pivot = a[column + j] > 0 ? sqrt(a[column + j]) : T(NaN)
        a[column + j] = pivot
        for i in (j + 1):b
            a[column + i] /= pivot
        end
        for k in (j + 1):b, i in k:b
            a[here + (k - 1) * b + i] -= a[column + i] * a[column + k]
        end
    end
    return a
end
