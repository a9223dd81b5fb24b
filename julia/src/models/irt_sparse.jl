# The sums of the item response model over a list of answers: time and memory go with their number.
#
# The abilities of an item's answers are gathered side by side. Over these the sums are those of a table's column (see
# `irt_likelihood.jl`), and what they add to the slopes goes back to the students.

"""
Buffers for one point. `half_gamma`, `half_centre`, `moments` and `ability_moments` are as in `ResponseBuffers`, with one
column; `pulls` are the sums of `half_gamma (s - tanh(h))` over each student's answers; `signs` is the list as a column.
"""
struct AnswerBuffers{T}
    half_gamma::Matrix{Float64}
    half_centre::Matrix{Float64}
    moments::Matrix{Float64}
    ability_moments::Matrix{Float64}
    pulls::Vector{Float64}
    ability::Vector{T}
    slope::Vector{T}
    product::Vector{T}
    signs::Matrix{Int8}
end

function AnswerBuffers{T}(answers::Answers) where {T}
    K, J = size(answers)
    return AnswerBuffers{T}(
        (zeros(K, 1) for _ in 1:4)...,
        zeros(J),
        (zeros(T, BLOCK_STUDENTS) for _ in 1:3)...,
        reshape(answers.signs, :, 1),
    )
end

"""
    answers_value(answers, alpha, half_gamma, half_centre, buffers)

Log likelihood of one point.
"""
function answers_value(
    answers::Answers,
    alpha::AbstractVector,
    half_gamma::AbstractVector,
    half_centre::AbstractVector,
    buffers::AnswerBuffers{T},
) where {T}
    (; ability, product, signs) = buffers
    (; starts, students) = answers
    total, factors = 0.0, 0
    fill!(product, one(T))
    for k in eachindex(half_gamma), start in (starts[k] - 1):BLOCK_STUDENTS:(starts[k + 1] - 2)
        count = min(BLOCK_STUDENTS, starts[k + 1] - 1 - start)
        gather!(ability, alpha, students, start, count)
        total += item_value!(product, signs, start, 1, ability, count, T(half_gamma[k]), T(half_centre[k]))
        logs, factors = take_logs!(product, factors + 1)
        total -= logs
    end
    return total - sum_logs!(product)
end

"""
    answers_gradient!(pulls, moments, ability_moments, answers, alpha, half_gamma, half_centre, buffers, with_value)

Add `sum_k half_gamma_k (s - tanh(h))` to the J pulls of one point and its moments to the K others. The log likelihood, or
0 unless `with_value` is `Val(true)`.
"""
function answers_gradient!(
    pulls::AbstractVector,
    moments::AbstractVector,
    ability_moments::AbstractVector,
    answers::Answers,
    alpha::AbstractVector,
    half_gamma::AbstractVector,
    half_centre::AbstractVector,
    buffers::AnswerBuffers{T},
    with_value::Val{V},
) where {T,V}
    (; ability, slope, product, signs) = buffers
    (; starts, students) = answers
    total, factors = 0.0, 0
    V && fill!(product, one(T))
    for k in eachindex(half_gamma), start in (starts[k] - 1):BLOCK_STUDENTS:(starts[k + 1] - 2)
        count = min(BLOCK_STUDENTS, starts[k + 1] - 1 - start)
        gather!(ability, alpha, students, start, count)
        fill!(view(slope, 1:count), zero(T))
        g, c = T(half_gamma[k]), T(half_centre[k])
        moment, ability_moment, value = item_gradient!(slope, product, signs, start, 1, ability, count, g, c, with_value)
        scatter!(pulls, slope, students, start, count)
        moments[k] += moment
        ability_moments[k] += ability_moment
        V || continue
        logs, factors = take_logs!(product, factors + 1)
        total += value
        total -= logs
    end
    return V ? total - sum_logs!(product) : total
end

"""Write the abilities of the students behind number `start` into `ability`."""
function gather!(ability::Vector, alpha::AbstractVector, students::Vector{Int32}, start::Int, count::Int)
    @inbounds for i in 1:count
        ability[i] = alpha[students[start + i]]
    end
    return ability
end

"""Add the slopes of these students to their sums."""
function scatter!(pulls::AbstractVector, slope::Vector, students::Vector{Int32}, start::Int, count::Int)
    @inbounds for i in 1:count
        pulls[students[start + i]] += slope[i]
    end
    return pulls
end
