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

# ---- conditional widths ---------------------------------------------------------------------------------------------
"""
    ConditionalStructured(base=Gaussian())

The structured family with conditional widths: `y_n = m_n + C_{n,z} u_z + C_{n,n} (exp.(b_n u_z) .* u_n)`. Flat parameters:
those of the structured family, then b, global by global, each with the entries of all locals.

Its map is the structured one after another, `u -> (u_z, v)` with `v_n = exp.(b_n u_z) .* u_n`, whose log determinant is the
sum of all `b_n u_z`, of mean 0: the entropy is that of b = 0.
"""
struct ConditionalStructured <: Family
    base::Gaussian
end

ConditionalStructured() = ConditionalStructured(Gaussian())

scale_shape(::ConditionalStructured, layout::Layout) = (layout.n_global, layout.n_local, layout.local_dim)
n_widths(::ConditionalStructured, layout::Layout) = layout.n_global * n_local_total(layout)

"""The rows of the globals, and those of the locals."""
heads_and_tails(pattern::ScalePattern) = 1:(pattern.n_dense), (pattern.n_dense + 1):(pattern.dim)

"""b of a flat parameter vector, a view: a column a global, a row a local coordinate."""
function widths_of(pattern::ScalePattern, flat::AbstractVector)
    last = n_params(pattern)
    entries = @view flat[(last - pattern.n_widths + 1):last]
    return reshape(entries, pattern.dim - pattern.n_dense, pattern.n_dense)
end

"""The noise U with v_n in the place of u_n."""
function widened(pattern::ScalePattern, b::AbstractMatrix, U::AbstractMatrix)
    z, y = heads_and_tails(pattern)
    return vcat(U[z, :], exp.(b * U[z, :]) .* U[y, :])
end

"""Sum of the rows of b: what the noise of each global adds to the log determinant; empty in other families."""
width_totals(::Family, ::ScalePattern, ::AbstractVector) = Float64[]
function width_totals(::ConditionalStructured, pattern::ScalePattern, flat::AbstractVector)
    return [sum(Float64, column; init=0.0) for column in eachcol(widths_of(pattern, flat))]
end

function transform(::ConditionalStructured, ::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix)
    wide = widened(pattern, widths_of(pattern, flat), U)
    return scale_mul(pattern, nonzeros_of(pattern, flat), wide) .+ location(pattern, flat)
end

function transform!(
    points::AbstractMatrix, ::ConditionalStructured, ::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix
)
    points .= location(pattern, flat)
    wide = widened(pattern, widths_of(pattern, flat), U)
    return add_scale_mul!(points, pattern, nonzeros_of(pattern, flat), wide)
end

function pullback!(
    out::AbstractVector, ::ConditionalStructured, ::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix,
    points::AbstractMatrix, G::AbstractMatrix,
)
    z, y = heads_and_tails(pattern)
    wide = widened(pattern, widths_of(pattern, flat), U)
    pulled = add_block_adjoint_mul!(fill!(points, 0), pattern, nonzeros_of(pattern, flat), G)
    pulled .*= wide
    LinearAlgebra.mul!(widths_of(pattern, out), pulled[y, :], transpose(U[z, :]))
    location_pullback!(location(pattern, out), G)
    scale_pullback!(nonzeros_of(pattern, out), pattern, G, wide)
    return out
end
