# The globals of robust Poisson regression: standard deviations, and the normal variables under them.

"""Add to `values`, and write into the globals' `slopes`, all but the sums over rows; each unless it is nothing."""
function prior!(values, slopes, model::RobustPoisson, points::StridedMatrix{T}) where {T}
    n, p = size(model.X)
    sizes = (1, p, n)
    for m in axes(points, 2)
        alpha = Float64(points[4, m])
        squares = (alpha^2, sum(abs2 ∘ Float64, @view points[5:(4 + p), m]; init=0.0), 0.0)
        for k in 1:3
            log_s = Float64(points[k, m])
            precision = exp(-2 * log_s)
            if !isnothing(values)
                values[m] += half_student_t4_on_log_scale(log_s) - squares[k] * precision / 2 - sizes[k] * log_s
            end
            if !isnothing(slopes)
                slopes[k, m] = squares[k] * precision - sizes[k] + 1 - 5 / (1 + 4 * precision)
            end
        end
        isnothing(slopes) && continue
        slopes[4, m] = -alpha * exp(-2 * Float64(points[1, m]))
        @views slopes[5:(4 + p), m] .= .-points[5:(4 + p), m] .* exp(-2 * points[2, m])
    end
    return nothing
end
