# Robust Poisson regression whose locals are the log rates themselves, in place on the CPU.
# One pass over tiles of rows for all points: a tile of X stays in the cache, and nothing of size N x M is stored.

const POISSON_ROWS = 512

"""A tile's residuals, the data in the points' precision, and the counts in Float64."""
function scratch(model::RobustPoisson{<:Matrix}, ::Type{T}) where {T}
    data = convert(Matrix{T}, model.X), convert(Vector{T}, model.y), convert(Vector{T}, model.offset)
    return (Vector{T}(undef, POISSON_ROWS), data..., convert(Vector{Float64}, model.y))
end

const PoissonScratch{T} = Tuple{Vector{T},Matrix{T},Vector{T},Vector{T},Vector{Float64}}

function log_density!(
    values::AbstractVector, model::RobustPoisson{<:Matrix}, points::StridedMatrix{T}, scratch::PoissonScratch{T}
) where {T<:Union{Float32,Float64}}
    n, p = size(model.X)
    residual, X, y, offset, counts = scratch
    fill!(values, model.constant)
    prior!(values, nothing, model, points)
    for top in 1:POISSON_ROWS:n, m in axes(points, 2)
        rows = top:min(top + POISSON_ROWS - 1, n)
        residuals!(residual, X, offset, points, rows, m)
        squares, poisson = zero(T), 0.0
        @inbounds @simd for k in eachindex(rows)
            eta = points[4 + p + top - 1 + k, m]
            squares += abs2(residual[k])
            T == Float64 && (poisson += eta * y[top - 1 + k] - fast_exp(eta))
        end
        T == Float64 || (poisson = poisson_sum(model.large_counts ? counts : y, points, rows, m))
        values[m] += poisson - Float64(squares) * exp(-2 * Float64(points[3, m])) / 2
    end
    return values
end

function log_density_gradient!(
    slopes::StridedMatrix{T}, model::RobustPoisson{<:Matrix}, points::StridedMatrix{T}, scratch::PoissonScratch{T}
) where {T<:Union{Float32,Float64}}
    log_density_and_gradient!(nothing, slopes, model, points, scratch)
    return slopes
end

function log_density_and_gradient!(
    values::Union{Nothing,AbstractVector}, slopes::StridedMatrix{T}, model::RobustPoisson{<:Matrix},
    points::StridedMatrix{T}, scratch::PoissonScratch{T},
) where {T<:Union{Float32,Float64}}
    n, p = size(model.X)
    residual, X, y, offset, counts = scratch
    isnothing(values) || fill!(values, model.constant)
    prior!(values, slopes, model, points)
    for top in 1:POISSON_ROWS:n, m in axes(points, 2)
        rows = top:min(top + POISSON_ROWS - 1, n)
        residuals!(residual, X, offset, points, rows, m)
        precision = exp(-2 * points[3, m])
        squares, total, poisson = zero(T), zero(T), 0.0
        @inbounds @simd for k in eachindex(rows)
            r = residual[k]
            place = 4 + p + top - 1 + k
            squares += r * r
            total += r
            eta = points[place, m]
            rate = fast_exp(eta)
            slopes[place, m] = y[top - 1 + k] - rate - precision * r
            isnothing(values) || T == Float32 || (poisson += eta * y[top - 1 + k] - rate)
        end
        if !isnothing(values)
            T == Float64 || (poisson = poisson_sum(model.large_counts ? counts : y, points, rows, m))
            values[m] += poisson - Float64(squares) * exp(-2 * Float64(points[3, m])) / 2
        end
        slopes[3, m] += precision * squares
        slopes[4, m] += precision * total
        @inbounds for j in 1:p
            dot = zero(T)
            @simd for k in eachindex(rows)
                dot += X[top - 1 + k, j] * residual[k]
            end
            slopes[4 + j, m] += precision * dot
        end
    end
    return nothing
end

"""`sum y eta - exp(eta)` of point m for the given rows: terms in the precision of `y`, their sum in Float64."""
function poisson_sum(y::Vector{W}, points::StridedMatrix, rows, m::Int) where {W}
    total, before = 0.0, size(points, 1) - length(y)
    @inbounds @simd for i in rows
        eta = W(points[before + i, m])
        total += eta * y[i] - fast_exp(eta)
    end
    return total
end

"""Write `eta - X beta - alpha - offset` of point m for the given rows into `residual`."""
@inline function residuals!(residual::Vector, X::Matrix, offset::Vector, points::StridedMatrix, rows, m::Int)
    p, above = size(X, 2), first(rows) - 1
    alpha = points[4, m]
    @inbounds begin
        @simd for k in eachindex(rows)
            residual[k] = points[4 + p + above + k, m] - alpha - offset[above + k]
        end
        j = 1
        while j + 3 <= p
            b1, b2, b3, b4 = points[4 + j, m], points[5 + j, m], points[6 + j, m], points[7 + j, m]
            @simd for k in eachindex(rows)
                i = above + k
                residual[k] -=
                    (X[i, j] * b1 + X[i, j + 1] * b2) + (X[i, j + 2] * b3 + X[i, j + 3] * b4)
            end
            j += 4
        end
        while j <= p
            b = points[4 + j, m]
            @simd for k in eachindex(rows)
                residual[k] -= X[above + k, j] * b
            end
            j += 1
        end
    end
    return residual
end
