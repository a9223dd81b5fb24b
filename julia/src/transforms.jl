# Maps between the real line and a natural space, for batches with one column a point.

"""Log density of `log s` for a scale `s` with the positive half of Student-t(4), the log-Jacobian included."""
half_student_t4_on_log_scale(x::T) where {T<:Real} = T(log(3 / 4)) - T(5 / 2) * softplus(2 * x - T(2 * log(2))) + x

"""Log density of Student-t with 4 degrees of freedom."""
student_t4(x::T) where {T<:Real} = T(log(3 / 8)) - T(5 / 2) * log1p(x * x / 4)

"""log cosh, without overflow."""
log_cosh(x::T) where {T<:Real} = abs(x) + log1p(exp(-2 * abs(x))) - T(log(2))

"""log(1 + exp(x)), without overflow; its derivative is right at 0 too, whatever slope a rule gives |x| there."""
softplus(x::Real) = (x + abs(x)) / 2 + log1p(exp(-abs(x)))

"""`log|d phi/dv|` of `phi = tanh(v/2)` plus the log density of Uniform(-1, 1) at phi."""
uniform_on_tanh_scale(v::T) where {T<:Real} = -2 * log_cosh(v / 2) - T(2 * log(2))

"""Log of LKJ's normalizing constant at concentration 1, for correlation matrices of order D."""
lkj_log_normalizer(D::Integer) = sum((D - k) * logbeta(0.5, (D - 1 - k) / 2 + 1) for k in 1:(D - 1); init=0.0)

"""Rows and columns of the partial correlations in their order, row by row: (2,1), (3,1), (3,2), ..."""
partial_correlation_places(D::Integer) = [(i, j) for i in 2:D for j in 1:(i - 1)]

"""
    lkj_cholesky(v, D) -> (L, log_jacobian)

Cholesky factor `L` of a correlation matrix from unbounded canonical partial correlations `v` (their atanh, row by row),
and the log-Jacobian of the map to its entries below the diagonal.
"""
function lkj_cholesky(v::AbstractVector, D::Integer)
    z, log_root = tanh.(v), -log_cosh.(v)  # log sqrt(1 - z^2)
    before, whole_row, onto_below, onto_diagonal = lkj_selections(eltype(v), D)
    left = before * log_root
    L = reshape(onto_below * (z .* exp.(left)) + onto_diagonal * exp.(whole_row * log_root), D, D)
    return L, sum(2 .* log_root .+ left)
end

"""
Matrices of zeros and ones for `lkj_cholesky`, so that no entry is ever assigned to: from the partial correlations, the
sums to their left in their row and over their whole row; into vec(L), the entries below and on the diagonal.
"""
function lkj_selections(::Type{T}, D::Integer) where {T}
    places = partial_correlation_places(D)
    before = T[i == a && j < b for (a, b) in places, (i, j) in places]
    whole_row = T[i == a for a in 1:D, (i, _) in places]
    onto_below = T[(i, j) == place for (i, j) in vec([(i, j) for i in 1:D, j in 1:D]), place in places]
    onto_diagonal = T[i == j == k for (i, j) in vec([(i, j) for i in 1:D, j in 1:D]), k in 1:D]
    return before, whole_row, onto_below, onto_diagonal
end

ChainRulesCore.@non_differentiable lkj_selections(::Any, ::Any)
ChainRulesCore.@non_differentiable lkj_log_normalizer(::Any)

# ---- in place, for one point on the CPU -----------------------------------------------------------------------------

"""
    lkj_cholesky!(factor, remainder, v)

The D x D `factor` that `lkj_cholesky(v, D)` gives; `remainder[i, j]` is what columns before j leave of row i's length.
"""
function lkj_cholesky!(factor::Matrix{Float64}, remainder::Matrix{Float64}, v::AbstractVector{Float64})
    D, place = size(factor, 1), 0
    @inbounds for i in 1:D
        log_left = 0.0
        for j in 1:(i - 1)
            place += 1
            remainder[i, j] = exp(log_left)
            factor[i, j] = tanh(v[place]) * remainder[i, j]
            log_left -= log_cosh(v[place])
        end
        factor[i, i] = remainder[i, i] = exp(log_left)
        for j in (i + 1):D
            factor[i, j] = remainder[i, j] = 0.0
        end
    end
    return factor
end

"""
    lkj_cholesky_pullback!(slopes, v, factor_slopes, factor, remainder)

Gradient with respect to v of a function whose gradient with respect to the factor's lower entries is `factor_slopes`;
`factor` and `remainder` are what `lkj_cholesky!` gave.
"""
function lkj_cholesky_pullback!(
    slopes::AbstractVector{Float64}, v::AbstractVector{Float64}, factor_slopes::Matrix{Float64},
    factor::Matrix{Float64}, remainder::Matrix{Float64},
)
    D = size(factor, 1)
    place = length(v) + 1
    @inbounds for i in D:-1:2
        # v_ij changes its own entry, and through the remainder all entries of row i behind column j
        behind = factor_slopes[i, i] * factor[i, i]
        for j in (i - 1):-1:1
            place -= 1
            own = factor_slopes[i, j] * remainder[i, j]
            slopes[place] = own * sech_squared(v[place]) - behind * tanh(v[place])
            behind += factor_slopes[i, j] * factor[i, j]
        end
    end
    return slopes
end

"""1/cosh(v)^2 = 1 - tanh(v)^2, without the cancellation of the right-hand form."""
function sech_squared(v::Real)
    decay = exp(-2 * abs(v))
    return 4 * decay / abs2(1 + decay)
end
