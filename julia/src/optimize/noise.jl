# Base noise of a run: every draw is a function of the seed and its place, so any run can be taken up anywhere.

const BLOCK_BYTES = 4 << 20
const BLOCK_ROWS = 256

const GRADIENT_STREAM, ELBO_STREAM = 0, 1

"""A generator for one place of one seed; the seed is a whole number in decimal digits, of any length."""
function generator(seed::AbstractString, place::Integer...)
    return Xoshiro(reinterpret(UInt64, sha256(join(("pyturingvi", seed, place...), ' ')))...)
end

"""
    NoiseStream(base, seed, dim, n_samples, T)

Draws (d x M) for each update, a block of updates at a time. The block's length depends on shapes alone: it is part of
what the seed means.
"""
mutable struct NoiseStream{T,B<:BaseDistribution}
    base::B
    seed::String
    block::Array{T,3}
    number::Int
end

function NoiseStream(base::BaseDistribution, seed::AbstractString, dim::Int, n_samples::Int, ::Type{T}) where {T}
    rows = clamp(BLOCK_BYTES ÷ (8 * n_samples * dim), 1, BLOCK_ROWS)
    return NoiseStream(base, String(seed), Array{T}(undef, dim, n_samples, rows), -1)
end

"""Noise (d x M) of the update `iteration`, counted from 0; good until the next call."""
function draw!(stream::NoiseStream, iteration::Int)
    number, row = divrem(iteration, size(stream.block, 3))
    if number != stream.number
        stream.number = -1  # half a block must not pass for a whole one
        fill_noise!(generator(stream.seed, GRADIENT_STREAM, number), stream.base, stream.block)
        stream.number = number
    end
    return @view stream.block[:, :, row + 1]
end

"""
    GivenNoise(noise, T)

The user's own draws (d x M x n_iterations) in place of the generator.
"""
struct GivenNoise{T,A<:AbstractArray{<:Real,3}}
    noise::A
    buffer::Matrix{T}
end

GivenNoise(noise::AbstractArray{<:Real,3}, ::Type{T}) where {T} = GivenNoise(noise, zeros(T, size(noise, 1), size(noise, 2)))

draw!(given::GivenNoise, iteration::Int) = given.buffer .= @view given.noise[:, :, iteration + 1]
