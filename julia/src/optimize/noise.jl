# Base noise of a run: every draw is a function of the seed and its place, so any run can be taken up anywhere.
# Natural gradients take pairs (u, -u), if asked for in frames: with the globals' noise and each local's orthogonal to it.

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
"""What `make_frames!` overwrites: the globals' part, its product with the locals', and a number or block a local."""
struct FrameBuffers
    heads::Matrix{Float64}
    products::Matrix{Float64}
    gram::Vector{Float64}
    lengths::Vector{Float64}
end

"""
    PairedNoise(base, seed, pattern, T)

Draws that stand for themselves and their opposites: `draw!` gives d x M/2, after `prepare!` has said M. With frames
(Gaussian base only) the draws of the globals and of each local together, before each draw gets a length of its own, are
orthogonal columns of one norm; each single draw remains a standard normal one.
"""
mutable struct PairedNoise{B<:BaseDistribution,T,P<:ScalePattern}
    const base::B
    const seed::String
    const pattern::P
    draws::Matrix{Float64}
    rounded::Matrix{T}  # the same array where T is Float64
    frames::Union{Nothing,FrameBuffers}
end

function PairedNoise(base::BaseDistribution, seed::AbstractString, pattern::ScalePattern, ::Type{T}) where {T}
    empty = Matrix{Float64}(undef, pattern.dim, 0)
    return PairedNoise(base, String(seed), pattern, empty, rounded_like(empty, T), nothing)
end

rounded_like(draws::Matrix{Float64}, ::Type{Float64}) = draws
rounded_like(draws::Matrix{Float64}, ::Type{T}) where {T} = similar(draws, T)

"""Number of signs with which each draw is used, and of draws in all."""
n_signs(::PairedNoise) = 2
n_draws(noise::PairedNoise) = 2 * size(noise.draws, 2)

"""
    prepare!(noise, n_samples, frames)

Make room for updates with `n_samples` draws, opposites included. Throws an `ArgumentError` where that many, or frames of
them, cannot be.
"""
function prepare!(noise::PairedNoise{B,T}, n_samples::Int, frames::Bool) where {B,T}
    pattern, m = noise.pattern, n_samples ÷ 2
    iseven(n_samples) && m > 0 || throw(ArgumentError("n_samples must be an even number of at least 2, got $n_samples."))
    if size(noise.draws, 2) != m  # always whole arrays: what a generator gives depends on the kind of array it fills
        noise.draws = Matrix{Float64}(undef, pattern.dim, m)
        noise.rounded = rounded_like(noise.draws, T)
        noise.frames = nothing
    end
    if !frames
        noise.frames = nothing
    elseif isnothing(noise.frames)
        n, least = pattern.n_dense, pattern.n_dense + pattern.block_dim
        noise.base isa Gaussian || throw(ArgumentError("frames are for a Gaussian base."))
        m >= least || throw(ArgumentError("frames need n_samples of at least $(2 * least), got $n_samples."))
        triangles = n_nonzeros(pattern) - block_start(pattern)
        sizes = (n, m), (pattern.dim - n, n), (triangles,), (m,)
        noise.frames = FrameBuffers((Array{Float64}(undef, size) for size in sizes)...)
    end
    return noise
end

"""Draws (d x M/2) of the update `iteration`, counted from 0; good until the next call."""
function draw!(noise::PairedNoise, iteration::Int)
    rng = generator(noise.seed, GRADIENT_STREAM, iteration)
    fill_noise!(rng, noise.base, noise.draws)
    isnothing(noise.frames) || make_frames!(noise.draws, rng, noise.pattern, noise.frames)
    return noise.rounded === noise.draws ? noise.draws : copyto!(noise.rounded, noise.draws)
end

# given draws are used as they are, however many
n_signs(::GivenNoise) = 1
n_draws(noise::GivenNoise) = size(noise.noise, 2)
prepare!(noise::GivenNoise, ::Int, ::Bool) = noise

"""Make frames of normal draws U (d x m), in place; `rng` gives the lengths."""
function make_frames!(U::Matrix{Float64}, rng::AbstractRNG, pattern::ScalePattern, buffers::FrameBuffers)
    (; heads, products, gram, lengths) = buffers
    n = pattern.n_dense
    tails = view(U, (n + 1):(pattern.dim), :)
    if n > 0
        orthonormal_rows!(copyto!(heads, view(U, 1:n, :)))
        copyto!(view(U, 1:n, :), heads)
        BLAS.gemm!('N', 'T', 1.0, tails, heads, 0.0, products)
        BLAS.gemm!('N', 'N', -1.0, products, heads, 1.0, tails)
    end
    add_block_pullback!(fill!(gram, 0), pattern, U, U, 0)
    invert_factors!(gram, pattern.block_dim)
    for k in axes(U, 2)
        lengths[k] = rand_chi(rng, size(U, 2))
    end
    whiten_blocks!(U, gram, pattern)
    U .*= transpose(lengths)
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

"""Packed symmetric blocks become their Cholesky factors, with the inverse of the diagonal in its place."""
function invert_factors!(gram::Vector{Float64}, b::Int)
    isempty(gram) && return gram
    size, entry = b * (b + 1) ÷ 2, (row, column) -> (column - 1) * b - column * (column - 1) ÷ 2 + row
    for start in 0:size:(length(gram) - 1), column in 1:b
        for row in column:b
            total = gram[start + entry(row, column)]
            for k in 1:(column - 1)
                total -= gram[start + entry(row, k)] * gram[start + entry(column, k)]
            end
            gram[start + entry(row, column)] = row == column ? 1 / sqrt(total) : total * gram[start + entry(column, column)]
        end
    end
    return gram
end

"""Solve each block's triangular system, given as `invert_factors!` leaves it, for the block's rows of every column."""
function whiten_blocks!(U::Matrix{Float64}, factors::Vector{Float64}, pattern::ScalePattern)
    n, b = pattern.n_dense, pattern.block_dim
    @inbounds for m in axes(U, 2)
        if b == 1
            @simd ivdep for k in 1:(pattern.n_blocks)
                U[n + k, m] *= factors[k]
            end
        else
            each_block_entry(pattern, 0) do place, row, column
                if row == column
                    U[row, m] *= factors[place]
                else
                    U[row, m] -= factors[place] * U[column, m]
                end
            end
        end
    end
    return U
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
