# What natural-gradient steps of the Markov family have beside those of the structured one; nothing where there is no chain.
#
# A step of local n is `K_nn` towards its own noise and `L_n` towards its predecessor: `C_nn <- C_nn E(K_nn)` and
# `A_n <- A_n + C_nn L_n R_{n-1}^{-1}`, where `R_n R_n' = S_n` is the covariance of r_n. Since u_n and
# `v_{n-1} = R_{n-1}^{-1} r_{n-1}` are independent with variance 1, the Fisher matrix is constant here too, though the scale
# matrices are no group: 1 for L as for all entries below the diagonal.

"""Call `visit(place, row)` for each entry of the matrices A_n, with its row in C."""
@inline function each_chain_entry(visit, pattern::ScalePattern)
    b, place = pattern.block_dim, 0
    for n in 1:(pattern.n_links), _ in 1:b, i in 1:b
        place += 1
        visit(place, pattern.n_dense + n * b + i)
    end
    return nothing
end

"""Add the sums over the draws of `h_n r_{n-1}'` to the chain of `out`; `rests` is overwritten."""
function add_chain_outer!(
    out::Unpacked{T}, pattern::ScalePattern, C::Unpacked{T}, H::AbstractMatrix{T}, U::AbstractMatrix{T},
    rests::AbstractMatrix{T},
) where {T}
    pattern.n_links > 0 || return out
    local_mul!(rests, pattern, C.blocks, C.chain, U, 0)
    add_lagged_outer!(out.chain, pattern, H, rests)
    return out
end

"""The lower triangles `R_1, ..., R_{N-1}` of a member, written into `roots`: see `covariance_roots!`."""
function local_roots!(roots::Vector{T}, work::Vector{T}, pattern::ScalePattern, C::Unpacked{T}) where {T}
    return covariance_roots!(roots, work, pattern, C.chain, C.blocks)
end

"""Replace the means of `h_n r_{n-1}'` by those of `h_n v_{n-1}'`, which are `L_n`."""
function normalize_chain!(t::Unpacked, pattern::ScalePattern, roots::Vector)
    b, chain = pattern.block_dim, t.chain
    @inbounds for n in 1:(pattern.n_links), j in 1:b
        start = (n - 1) * b * b
        column = start + (j - 1) * b
        for k in 1:(j - 1)
            add_multiple!(chain, column, -roots[start + (k - 1) * b + j], start + (k - 1) * b, b)
        end
        divide_column!(chain, column, roots[column + j], b)
    end
    return t
end

"""`A_n + C_nn L_n R_{n-1}^{-1}`; `step.chain` is overwritten."""
function retract_chain!(C::Unpacked{T}, step::Unpacked{T}, pattern::ScalePattern, roots::Vector{T}) where {T}
    b, chain = pattern.block_dim, step.chain
    @inbounds for n in 1:(pattern.n_links), j in b:-1:1
        start, own = (n - 1) * b * b, n * (b * (b + 1) ÷ 2)
        column = start + (j - 1) * b
        for k in (j + 1):b
            add_multiple!(chain, column, -roots[column + k], start + (k - 1) * b, b)
        end
        divide_column!(chain, column, roots[column + j], b)
        for i in 1:b
            total = zero(T)
            for k in 1:i
                total = muladd(C.blocks[own + place_in_block(b, i, k)], chain[column + k], total)
            end
            C.chain[column + i] += total
        end
    end
    return C
end

@inline function add_multiple!(a::Vector{T}, to::Int, factor::T, from::Int, b::Int) where {T}
    @inbounds @simd ivdep for i in 1:b
        a[to + i] = muladd(factor, a[from + i], a[to + i])
    end
    return a
end

@inline function divide_column!(a::Vector{T}, column::Int, divisor::T, b::Int) where {T}
    inverse = inv(divisor)
    @inbounds @simd ivdep for i in 1:b
        a[column + i] *= inverse
    end
    return a
end
