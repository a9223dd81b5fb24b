# Innovations of stochastic volatility in blocks of times, on the CPU: whitened, pulled back and summed.

"""Centred log volatilities and innovations of a block of times."""
function innovate!(buffers::VolatilityBuffers{T}, y::AbstractVector{T}, start::Int, count::Int) where {T}
    (; centred, innovations) = buffers
    D = size(innovations, 2)
    @inbounds for i in 1:D
        mu, phi = T(buffers.z[i]), T(buffers.phi[i])
        centred[1, i] = start == 0 ? zero(T) : y[(start - 1) * D + i] - mu
        for t in 1:count
            centred[t + 1, i] = y[(start + t - 1) * D + i] - mu
        end
        @simd ivdep for t in 1:count
            innovations[t, i] = centred[t + 1, i] - phi * centred[t, i]
        end
        if start == 0
            innovations[1, i] = centred[2, i]
        end
    end
    return nothing
end

"""`white = innovations W'` of a block."""
function whiten!(buffers::VolatilityBuffers{T}, count::Int) where {T}
    (; innovations, white, whiten) = buffers
    @inbounds for i in axes(white, 2)
        set_column!(white, i, T(whiten[i, 1]), innovations, 1, count)
        for j in 2:i
            add_column!(white, i, T(whiten[i, j]), innovations, j, count)
        end
    end
    return nothing
end

"""`pulled = -white W` of a block."""
function pull!(buffers::VolatilityBuffers{T}, count::Int) where {T}
    (; pulled, white, whiten) = buffers
    D = size(pulled, 2)
    @inbounds for j in 1:D
        set_column!(pulled, j, -T(whiten[j, j]), white, j, count)
        for i in (j + 1):D
            add_column!(pulled, j, -T(whiten[i, j]), white, i, count)
        end
    end
    return nothing
end

function set_column!(A::Matrix{T}, i::Int, factor::T, B::Matrix{T}, j::Int, count::Int) where {T}
    @inbounds @simd ivdep for t in 1:count
        A[t, i] = factor * B[t, j]
    end
    return nothing
end

function add_column!(A::Matrix{T}, i::Int, factor::T, B::Matrix{T}, j::Int, count::Int) where {T}
    @inbounds @simd ivdep for t in 1:count
        A[t, i] = muladd(factor, B[t, j], A[t, i])
    end
    return nothing
end

"""Sums over the block's times that the globals' slopes need."""
function add_sums!(buffers::VolatilityBuffers, start::Int, count::Int)
    (; factor_slopes, sums, centred, white, pulled) = buffers
    @inbounds for i in axes(white, 2)
        if start == 0
            sums[i, 3] = pulled[1, i]
        end
        sums[i, 1] += sum_column(pulled, i, count)
        sums[i, 2] -= dot_columns(pulled, i, centred, i, count)
        for j in 1:i
            factor_slopes[i, j] += dot_columns(pulled, i, white, j, count)
        end
    end
    return nothing
end

function sum_column(A::Matrix{T}, i::Int, count::Int) where {T}
    total = zero(T)
    @inbounds @simd for t in 1:count
        total += A[t, i]
    end
    return Float64(total)
end

function dot_columns(A::Matrix{T}, i::Int, B::Matrix{T}, j::Int, count::Int) where {T}
    total = zero(T)
    @inbounds @simd for t in 1:count
        total += A[t, i] * B[t, j]
    end
    return Float64(total)
end

function sum_squares(A::Matrix, i::Int, count::Int)
    total = 0.0
    @inbounds @simd for t in 1:count
        total += abs2(Float64(A[t, i]))
    end
    return total
end

"""Add to the local slopes what the block's innovations give: `pulled_t`, and one time earlier `-phi pulled_t`."""
function add_pulled!(out::AbstractVector{T}, buffers::VolatilityBuffers{T}, start::Int, count::Int) where {T}
    pulled, D = buffers.pulled, size(buffers.pulled, 2)
    @inbounds for i in 1:D
        phi = T(buffers.phi[i])
        if start > 0
            out[(start - 1) * D + i] -= phi * pulled[1, i]
        end
        for t in 1:(count - 1)
            out[(start + t - 1) * D + i] += pulled[t, i] - phi * pulled[t + 1, i]
        end
        out[(start + count - 1) * D + i] += pulled[count, i]
    end
    return nothing
end
