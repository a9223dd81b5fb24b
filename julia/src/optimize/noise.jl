# Base noise of a run: every draw is a function of the seed and its place, so any run can be taken up anywhere.

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
