"""
    Markov(base=Gaussian())

Each local rests on the globals and on its predecessor, as in a time series: `y_n = m_n + C_{n,z} u_z + r_n` and
`r_n = A_n r_{n-1} + C_{n,n} u_n` with r_0 = 0, where A_n is a dense matrix and C_zz and each C_{n,n} are lower triangular.
Flat parameters: those of the structured family, then A_2 to A_N, each column by column.
"""
struct Markov{B<:BaseDistribution} <: Family
    base::B
end

Markov() = Markov(Gaussian())

scale_shape(::Markov, layout::Layout) = (layout.n_global, layout.n_local, layout.local_dim)
n_links(::Markov, layout::Layout) = max(layout.n_local - 1, 0)

function transform(::Markov, layout::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix)
    nonzeros, d_z = nonzeros_of(pattern, flat), layout.n_global
    heads = vcat(U[1:d_z, :], zero(U[(d_z + 1):end, :]))
    rests = run_forward(pattern, chain_of(pattern, flat), scale_mul(pattern, nonzeros, U .- heads))
    return scale_mul(pattern, nonzeros, heads) .+ rests .+ location(pattern, flat)
end

function transform!(
    points::AbstractMatrix, ::Markov, ::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix
)
    nonzeros = nonzeros_of(pattern, flat)
    local_mul!(points, pattern, nonzeros, chain_of(pattern, flat), U)
    points .+= location(pattern, flat)
    return add_dense_mul!(points, pattern, nonzeros, U, 1:(pattern.dim))
end

function pullback!(
    out::AbstractVector, ::Markov, ::Layout, pattern::ScalePattern, flat::AbstractVector, U::AbstractMatrix,
    points::AbstractMatrix, G::AbstractMatrix,
)
    d_nonzeros, chain = nonzeros_of(pattern, out), chain_of(pattern, flat)
    location_pullback!(location(pattern, out), G)
    dense_pullback!(d_nonzeros, pattern, G, U, 1:(pattern.dim))
    run_backward!(G, pattern, chain)
    block_pullback!(d_nonzeros, pattern, G, U)
    rests = local_mul!(points, pattern, nonzeros_of(pattern, flat), chain, U)
    add_lagged_outer!(fill!(chain_of(pattern, out), 0), pattern, G, rests)
    return out
end
