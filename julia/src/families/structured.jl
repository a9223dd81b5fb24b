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

function column_lengths(::Structured, layout::Layout)
    d, d_z, d_y = dim(layout), layout.n_global, layout.local_dim
    return [collect(d:-1:(d - d_z + 1)); repeat(d_y:-1:1, layout.n_local)]
end

function transform(family::Structured, layout::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix)
    nonzeros, m = nonzeros_of(pattern, flat), location(pattern, flat)
    family.standardized && return scale_mul(pattern, nonzeros, U) .+ m
    # z first: with u_z replaced by z, the same product gives A_n z in the rows of y_n (and is not used in those of z)
    d_z = layout.n_global
    z = (scale_mul(pattern, nonzeros, U) .+ m)[1:d_z, :]
    y = (scale_mul(pattern, nonzeros, vcat(z, U[(d_z + 1):end, :])) .+ m)[(d_z + 1):end, :]
    return vcat(z, y)
end
