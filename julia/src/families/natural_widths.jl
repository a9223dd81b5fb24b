# What natural-gradient steps have beside those of the structured family where the locals have conditional widths.
#
# A step sends the noise u to `u + e(u)` before the map: `e_z = a_z + K_zz u_z`, and for coordinate i of local n, whose width is
# `exp(w_i)` times that of C_nn, `w_i = b_i . u_z`,
#
#     e_i = exp(-w_i) (a_i + k_i . u_z) + sum_j exp(w_j - w_i) K_ij u_j + (beta_i . u_z) u_i .
#
# For a Gaussian base the Fisher matrix is closed: with the tilted location `a_i - 2 b_i . k_i` it is diagonal,
# `exp(2 |b_i|^2)` for this and k_i, `exp(2 |b_j - b_i|^2)` for K_ij below the diagonal, and 2 for K_ii and each entry of beta_i. A
# step is kept in coordinates in which it is 1 and 2, as in the structured family.

"""Divide what `normalize!` has left by the roots of the Fisher matrix at b."""
function normalize_widths!(t::Unpacked, C::Unpacked, pattern::ScalePattern)
    b, n, d = C.widths, pattern.n_dense, pattern.dim
    place, border = view(t.location, (n + 1):d), view(t.dense, (n + 1):d, :)
    border .+= 2 .* b .* place
    shrunk = exp.(.-vec(sum(abs2, b; dims=2)))
    border .*= shrunk
    place .*= shrunk
    shrink_blocks!(t.blocks, b, pattern)
    return t
end

"""Multiply the entries of packed blocks below the diagonal by `exp(-|b_j - b_i|^2)`."""
function shrink_blocks!(blocks::Vector, b::AbstractMatrix, pattern::ScalePattern)
    pattern.block_dim > 1 || return blocks
    n = pattern.n_dense
    each_block_entry(pattern, 0, 1:1) do place, row, column, _
        if row != column
            apart = zero(eltype(b))
            for j in axes(b, 2)
                @inbounds apart += abs2(b[row - n, j] - b[column - n, j])
            end
            @inbounds blocks[place] *= exp(-apart)
        end
    end
    return blocks
end

"""
Move b along a step, and make of this one as the structured family takes it; both are overwritten. The factors of C's
block columns, where the globals have moved, are returned; nothing where there are no widths.
"""
function move_widths!(C::Unpacked, step::Unpacked, pattern::ScalePattern)
    isempty(C.widths) && return nothing
    b, n, d = C.widths, pattern.n_dense, pattern.dim
    place, border = view(step.location, (n + 1):d), view(step.dense, (n + 1):d, :)
    shrunk = exp.(.-vec(sum(abs2, b; dims=2)))
    border .*= shrunk
    place .= place .* shrunk .+ 2 .* vec(sum(b .* border; dims=2))
    shrink_blocks!(step.blocks, b, pattern)
    factors = exp.(b * view(step.location, 1:n))
    k = step.dense[1:n, :]
    b .+= b * (k .+ k * k ./ 2) .+ step.widths
    return factors
end

"""Multiply the columns of C's blocks by the factors of the local coordinates."""
scale_columns!(C::Unpacked, ::Nothing, ::ScalePattern) = C
function scale_columns!(C::Unpacked, factors::AbstractVector, pattern::ScalePattern)
    each_block_entry(pattern, 0, 1:1) do place, _, column, _
        @inbounds C.blocks[place] *= factors[column - pattern.n_dense]
    end
    return C
end
