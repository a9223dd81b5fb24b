"""
    Structured(base=Gaussian(); standardized=true)

Global-local structure: C_zz and each C_{n,n} lower triangular, C_{n,z} dense, all else zero (paper, section 3.3).
`standardized=false` is `y_n = m_n + A_n z + C_{n,n} u_n`, whose border multiplies z itself rather than its noise.
"""
struct Structured{B<:BaseDistribution} <: Family
    base::B
    standardized::Bool
end

Structured(base::BaseDistribution=Gaussian(); standardized::Bool=true) = Structured(base, standardized)

"""Whether the border multiplies z itself rather than its noise."""
is_direct(::Family) = false
is_direct(family::Structured) = !family.standardized

scale_shape(::Structured, layout::Layout) = (layout.n_global, layout.n_local, layout.local_dim)

function transform(family::Structured, layout::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix)
    nonzeros, m = nonzeros_of(pattern, flat), location(pattern, flat)
    family.standardized && return scale_mul(pattern, nonzeros, U) .+ m
    # z first: with u_z replaced by z, the same product gives A_n z in the rows of y_n (and is not used in those of z)
    d_z = layout.n_global
    z = (scale_mul(pattern, nonzeros, U) .+ m)[1:d_z, :]
    y = (scale_mul(pattern, nonzeros, vcat(z, U[(d_z + 1):end, :])) .+ m)[(d_z + 1):end, :]
    return vcat(z, y)
end

function transform!(
    points::AbstractMatrix, family::Structured, layout::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix
)
    nonzeros = nonzeros_of(pattern, flat)
    points .= location(pattern, flat)
    add_dense_mul!(points, pattern, nonzeros, U, global_range(layout))
    add_dense_mul!(points, pattern, nonzeros, family.standardized ? U : points, local_range(layout))
    return add_block_mul!(points, pattern, nonzeros, U)
end

function pullback!(
    out::AbstractVector, family::Structured, layout::Layout, pattern::ScalePattern, flat::AbstractVector,
    U::AbstractMatrix, points::AbstractMatrix, G::AbstractMatrix,
)
    d_nonzeros, y_rows = nonzeros_of(pattern, out), local_range(layout)
    dense_pullback!(d_nonzeros, pattern, G, family.standardized ? U : points, y_rows)
    block_pullback!(d_nonzeros, pattern, G, U)
    # z moves every y_n as well, through A_n
    family.standardized || add_dense_adjoint_mul!(G, pattern, nonzeros_of(pattern, flat), G, y_rows)
    dense_pullback!(d_nonzeros, pattern, G, U, global_range(layout))
    location_pullback!(location(pattern, out), G)
    return out
end
