# Base noise of a run: every draw is a function of the seed and its place, so any run can be taken up anywhere.
# Natural gradients take pairs (u, -u), if asked for in frames.

const BLOCK_BYTES = 4 << 20
const BLOCK_ROWS = 256

const GRADIENT_STREAM, ELBO_STREAM = 0, 1

"""A generator for one place of one seed; the seed is a whole number in decimal digits, of any length."""
function generator(seed::AbstractString, place::Integer...)
    return Xoshiro(reinterpret(UInt64, sha256(join(("pyturingvi", seed, place...), ' ')))...)
end

"""
    Draws(flat, size...)

A buffer of noise: `host` is written on the CPU, `array` read beside the parameters `flat`. Both are one array unless
`flat` lies on another device, so that every device follows the same path.
"""
struct Draws{H<:Array,A<:AbstractArray}
    host::H
    array::A
end

function Draws(flat::AbstractVector{T}, size::Int...) where {T}
    array = similar(flat, size...)
    return Draws(array isa Array ? array : Array{T}(undef, size), array)
end

"""Send what was written on the CPU to where it is read."""
send!(draws::Draws) = draws.array === draws.host ? draws.array : copyto!(draws.array, draws.host)

"""
    NoiseStream(base, seed, dim, n_samples, flat)

Draws (d x M) for each update, a block of updates at a time, in the precision and on the device of the parameters `flat`.
The block's length depends on shapes alone: it is part of what the seed means.
"""
mutable struct NoiseStream{B<:BaseDistribution,D<:Draws}
    base::B
    seed::String
    block::D
    number::Int
end

function NoiseStream(base::BaseDistribution, seed::AbstractString, dim::Int, n_samples::Int, flat::AbstractVector)
    rows = clamp(BLOCK_BYTES ÷ (8 * n_samples * dim), 1, BLOCK_ROWS)
    return NoiseStream(base, String(seed), Draws(flat, dim, n_samples, rows), -1)
end

"""Noise (d x M) of the update `iteration`, counted from 0; good until the next call."""
function draw!(stream::NoiseStream, iteration::Int)
    number, row = divrem(iteration, size(stream.block.array, 3))
    if number != stream.number
        stream.number = -1  # half a block must not pass for a whole one
        fill_noise!(generator(stream.seed, GRADIENT_STREAM, number), stream.base, stream.block.host)
        send!(stream.block)
        stream.number = number
    end
    return @view stream.block.array[:, :, row + 1]
end

"""
    GivenNoise(noise, flat)

The user's own draws (d x M x n_iterations, on the CPU) in place of the generator.
"""
struct GivenNoise{A<:AbstractArray{<:Real,3},D<:Draws}
    noise::A
    buffer::D
end

function GivenNoise(noise::AbstractArray{<:Real,3}, flat::AbstractVector)
    return GivenNoise(noise, Draws(flat, size(noise, 1), size(noise, 2)))
end

function draw!(given::GivenNoise, iteration::Int)
    given.buffer.host .= @view given.noise[:, :, iteration + 1]
    return send!(given.buffer)
end

# ---- pairs of opposite draws, and frames ----------------------------------------------------------------------------
"""What `make_frames!` overwrites: the heads, their product with the others, and two numbers a draw."""
struct FrameBuffers
    heads::Matrix{Float64}
    products::Matrix{Float64}
    lengths::Vector{Float64}
    shares::Vector{Float64}
end

"""
    PairedNoise(base, seed, pattern, T)

Draws that stand for themselves and their opposites: `draw!` gives d x M/2, after `prepare!` has said M. With frames
(Gaussian base only) the heads, the coordinates of C's dense columns, are orthogonal to each other over the draws, and the
others to them, but for a factor that each draw has of its own: so each single draw remains a standard normal one.

With structured scales, each draw has a second one with the signs of all but the heads turned, where M/2 is even: sums of
`h_n u_n u_z'` then have no noise of what is odd in u_n or in u_z, such as a local's skewness. What is no head is stratified
besides, for a Gaussian base: see `stratify!`.
"""
mutable struct PairedNoise{B<:BaseDistribution,T,P<:ScalePattern}
    const base::B
    const seed::String
    const pattern::P
    draws::Matrix{Float64}
    rounded::Matrix{T}  # the same array where T is Float64 and no draw has a second one
    frames::Union{Nothing,FrameBuffers}
    const factors::Vector{Int}  # of strata, as `shifts`
    const shifts::Vector{Int}
end

function PairedNoise(base::BaseDistribution, seed::AbstractString, pattern::ScalePattern, ::Type{T}) where {T}
    empty = Matrix{Float64}(undef, pattern.dim, 0)
    strata = (Vector{Int}(undef, pattern.dim - pattern.n_dense) for _ in 1:2)
    return PairedNoise(base, String(seed), pattern, empty, rounded_like(empty, T), nothing, strata...)
end

rounded_like(draws::Matrix{Float64}, ::Type{Float64}) = draws
rounded_like(draws::Matrix{Float64}, ::Type{T}) where {T} = similar(draws, T)

"""Number of signs with which each draw is used, and of draws in all."""
n_signs(::PairedNoise) = 2
n_draws(noise::PairedNoise) = 2 * size(noise.rounded, 2)

"""Whether each of m draws is one of two that have the same heads."""
function is_mirrored(noise::PairedNoise, m::Int)
    pattern = noise.pattern
    return pattern.n_dense > 0 && pattern.n_blocks > 0 && pattern.n_links == 0 && iseven(m)
end

"""
    prepare!(noise, n_samples, frames)

Make room for updates with `n_samples` draws, opposites included. Throws an `ArgumentError` where that many, or frames of
them, cannot be.
"""
function prepare!(noise::PairedNoise{B,T}, n_samples::Int, frames::Bool) where {B,T}
    pattern, m = noise.pattern, n_samples ÷ 2
    iseven(n_samples) && m > 0 || throw(ArgumentError("n_samples must be an even number of at least 2, got $n_samples."))
    mirrored = is_mirrored(noise, m)
    if size(noise.rounded, 2) != m  # always whole arrays: what a generator gives depends on the kind of array it fills
        noise.draws = Matrix{Float64}(undef, pattern.dim, mirrored ? m ÷ 2 : m)
        noise.rounded = mirrored ? Matrix{T}(undef, pattern.dim, m) : rounded_like(noise.draws, T)
        noise.frames = nothing
    end
    m = size(noise.draws, 2)
    n = pattern.n_dense
    if !frames || n == 0
        noise.frames = nothing
    elseif isnothing(noise.frames)
        noise.base isa Gaussian || throw(ArgumentError("frames are for a Gaussian base."))
        m > n || throw(ArgumentError("frames need n_samples of at least $((2 + 2 * mirrored) * (n + 1)), got $n_samples."))
        sizes = (n, m), (pattern.dim - n, n), (m,), (m,)
        noise.frames = FrameBuffers((Array{Float64}(undef, size) for size in sizes)...)
    end
    return noise
end

"""Draws (d x M/2) of the update `iteration`, counted from 0; good until the next call."""
function draw!(noise::PairedNoise, iteration::Int)
    rng = generator(noise.seed, GRADIENT_STREAM, iteration)
    mirrored = size(noise.rounded, 2) != size(noise.draws, 2)
    fill_independent!(rng, noise, mirrored || isnothing(noise.frames))
    isnothing(noise.frames) || make_frames!(noise.draws, rng, noise.frames, mirrored)
    mirrored && return mirror!(noise.rounded, noise.draws, noise.pattern.n_dense)
    return noise.rounded === noise.draws ? noise.draws : copyto!(noise.rounded, noise.draws)
end

"""Draws that do not know of each other; those that are to be orthogonal to heads are normal before, never stratified."""
function fill_independent!(rng::AbstractRNG, noise::PairedNoise, stratified::Bool)
    n, U = noise.pattern.n_dense, noise.draws
    stratified && noise.base isa Gaussian && n < size(U, 1) || return fill_noise!(rng, noise.base, U)
    for k in axes(U, 2), i in 1:n
        U[i, k] = randn(rng)
    end
    stratify!(rng, view(U, (n + 1):size(U, 1), :), noise.factors, noise.shifts)
    return U
end

"""
    stratify!(rng, out, factors, shifts)

Standard normal numbers (n x m) whose rows are stratified: a Latin hypercube of the sizes |u|. Each coordinate has one size in
each m-th part of the half-normal distribution, and signs at random, so that sums over the draws of what depends on a single
coordinate have next to no noise (McKay, Beckman and Conover, 1979). Draw k has part `mod(a k + b, m)`, with a and b at random
for each coordinate: where m is a prime, two draws of a coordinate have any two parts, as in a random order, so that what
depends on several coordinates has no more noise than there; and a draw by itself has independent entries. `factors` and
`shifts` (n) are overwritten.
"""
function stratify!(rng::AbstractRNG, out::AbstractMatrix{Float64}, factors::Vector{Int}, shifts::Vector{Int})
    n, m = size(out)
    for i in 1:n
        factors[i] = rand(rng, 1:m)
        while gcd(factors[i], m) > 1
            factors[i] = rand(rng, 1:m)
        end
    end
    rand!(rng, shifts, 0:(m - 1))
    for k in 1:m, i in 1:n
        signed = 2 * rand(rng) - 1 + eps() / 4  # never 0, whose quantile is infinite
        part = mod(k * factors[i] + shifts[i], m)
        out[i, k] = copysign(sqrt(2) * erfcinv((part + abs(signed)) / m), signed)
    end
    return out
end

# given draws are used as they are, however many
n_signs(::GivenNoise) = 1
n_draws(noise::GivenNoise) = size(noise.noise, 2)
prepare!(noise::GivenNoise, ::Int, ::Bool) = noise

"""Write the draws U, and beside them the same with the signs of all but the first n coordinates turned."""
function mirror!(out::Matrix, U::Matrix{Float64}, n::Int)
    m = size(U, 2)
    out[:, 1:m] .= U
    out[:, (m + 1):(2 * m)] .= U
    view(out, (n + 1):size(U, 1), (m + 1):(2 * m)) .*= -1
    return out
end

"""
Make frames of normal draws U (d x m), in place; `rng` gives the lengths. Mirrored draws have their heads orthogonal to the
others as they are.
"""
function make_frames!(U::Matrix{Float64}, rng::AbstractRNG, buffers::FrameBuffers, mirrored::Bool=false)
    (; heads, products, lengths, shares) = buffers
    n, m = size(heads)
    z, y = view(U, 1:n, :), view(U, (n + 1):size(U, 1), :)
    orthonormal_rows!(copyto!(heads, z))
    if !mirrored
        BLAS.gemm!('N', 'T', 1.0, y, heads, 0.0, products)
        BLAS.gemm!('N', 'N', -1.0, products, heads, 1.0, y)
    end
    for k in 1:m
        lengths[k] = rand_chi(rng, m)
        # given the heads, the projected draw k of the others has this variance
        shares[k] = mirrored ? 1.0 : sqrt(1 - sum(abs2, view(heads, :, k)))
    end
    mirrored || (y ./= transpose(shares))
    z .= heads .* transpose(lengths)
    return U
end

"""Orthonormal rows that span those of A, by Gram-Schmidt's rule of signs: A = L Q, L with a positive diagonal."""
function orthonormal_rows!(A::Matrix{Float64})
    _, tau = LAPACK.gelqf!(A)
    signs = [A[i, i] < 0 ? -1.0 : 1.0 for i in axes(A, 1)]
    LAPACK.orglq!(A, tau)
    A .*= signs
    return A
end

"""The length of a standard normal vector of dimension n, by Marsaglia and Tsang's gamma (2000)."""
function rand_chi(rng::AbstractRNG, n::Int)
    n == 1 && return abs(randn(rng))
    d = n / 2 - 1 / 3
    c = 1 / sqrt(9 * d)
    while true
        x = randn(rng)
        v = (1 + c * x)^3
        v > 0 && log(rand(rng)) < x^2 / 2 + d * (1 - v + log(v)) && return sqrt(2 * d * v)
    end
end
