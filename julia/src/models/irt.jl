"""
Two-parameter logistic item response model (paper, "Item Response Theory").

`signs` is items x students: +1 right, -1 wrong, 0 missing; where few cells are there, a list of `Answers`. Globals:
`[mu_beta, log s_beta, log s_gamma, log gamma_1..K, beta_1..K]`; the local of student j is the ability `alpha_j`.
"""
struct ItemResponse{A<:AbstractMatrix} <: Model
    layout::Layout
    signs::A
end

irt_layout(signs::AbstractMatrix) = Layout(3 + 2 * size(signs, 1), size(signs, 2), 1)

ItemResponse(answers::Answers) = ItemResponse(irt_layout(answers), answers)

function ItemResponse(signs::AbstractMatrix)
    layout = irt_layout(signs)
    on_host(signs) || return ItemResponse(layout, signs)
    # one byte a cell, and the students of an item side by side: the order in which the CPU's sums run
    return ItemResponse(layout, transpose(Matrix{Int8}(transpose(signs))))
end

irt_model(signs::Int, n_students::Int, n_items::Int) = ItemResponse(copy(memory(Int8, signs, n_items, n_students)))

"""From Python's list of answers, whose numbers count from 0."""
function sparse_irt_model(starts::Int, students::Int, signs::Int, n_students::Int, n_items::Int)
    places = memory(Int64, starts, n_items + 1) .+ 1
    n = last(places) - 1
    return ItemResponse(
        Answers(n_students, places, memory(Int32, students, n) .+ Int32(1), copy(memory(Int8, signs, n)))
    )
end

beside(model::ItemResponse, flat::AbstractVector) = ItemResponse(model.layout, beside(Matrix(model.signs), flat))

function log_density(model::ItemResponse, points::AbstractMatrix)
    T, (K, J) = eltype(points), size(model.signs)
    z, alpha = split_points(model.layout, points)
    mu, log_s_beta, log_s_gamma = z[1:1, :], z[2:2, :], z[3:3, :]
    log_gamma, beta = z[4:(3 + K), :], z[(4 + K):end, :]
    normal(x, log_s) = sum(abs2, x; dims=1) .* exp.(-2 .* log_s) ./ -2 .- T(K) .* log_s
    prior =
        student_t4.(mu) .+ half_student_t4_on_log_scale.(log_s_beta) .+ half_student_t4_on_log_scale.(log_s_gamma) .+
        normal(log_gamma, log_s_gamma) .+ normal(beta, log_s_beta) .- sum(abs2, alpha; dims=1) ./ 2 .-
        T((2K + J) / 2 * log(2π))
    cells_of(m) = cells_of_point(model, log_gamma[:, m], beta[:, m] .+ mu[:, m], alpha[:, m])
    cells = reduce(vcat, [cells_of(m) for m in axes(points, 2)])
    return vec(prior) .+ cells
end

"""Log likelihood of one point, in a vector that stays on its device; a missing cell has sign 0 and is counted out."""
function cells_of_point(model::ItemResponse, log_gamma::AbstractVector, centre::AbstractVector, alpha::AbstractVector)
    return -vec(sum(losses(model, log_gamma, centre, alpha); dims=(1, 2)))
end

"""Negative log likelihood of each cell."""
function losses(model::ItemResponse, log_gamma::AbstractVector, centre::AbstractVector, alpha::AbstractVector)
    logits = exp.(log_gamma) .* alpha' .+ centre
    return abs.(model.signs) .* softplus.(-model.signs .* logits)
end

function log_terms(model::ItemResponse, points::AbstractMatrix)
    K = size(model.signs, 1)
    z, alpha = split_points(model.layout, points)
    mu, log_s_beta, log_s_gamma = z[1:1, :], z[2:2, :], z[3:3, :]
    log_gamma, beta = z[4:(3 + K), :], z[(4 + K):end, :]
    normal(x, log_s) = sum(abs2, x; dims=1) .* exp.(-2 .* log_s) ./ -2 .- K .* log_s
    prior =
        student_t4.(mu) .+ half_student_t4_on_log_scale.(log_s_beta) .+ half_student_t4_on_log_scale.(log_s_gamma) .+
        normal(log_gamma, log_s_gamma) .+ normal(beta, log_s_beta) .- K * log(2π)
    losses_of(m) = vec(sum(losses(model, log_gamma[:, m], beta[:, m] .+ mu[:, m], alpha[:, m]); dims=1))
    students = reduce(hcat, [losses_of(m) for m in axes(points, 2)])
    return vec(prior), .-students .- abs2.(alpha) ./ 2 .- log(2π) / 2
end

# ---- difficulties in place of easinesses -----------------------------------------------------------------------------
"""
    Difficulties(inner)

`ItemResponse` whose `beta` and `mu_beta` are subtracted in the logit.
"""
struct Difficulties{M<:ItemResponse,S<:AbstractVector} <: InOtherCoordinates
    layout::Layout
    inner::M
    signs::S
end

function irt_difficulties(inner::ItemResponse)
    K = size(inner.signs, 1)
    signs = ones(dim(inner.layout))
    signs[[1; (4 + K):(3 + 2K)]] .= -1
    return Difficulties(inner.layout, inner, signs)
end

function beside(model::Difficulties, flat::AbstractVector)
    inner = beside(model.inner, flat)
    return Difficulties(model.layout, inner, beside(eltype(flat).(model.signs), flat))
end

inward(model::Difficulties, points::AbstractMatrix) = in_precision(eltype(points), model.signs) .* points
log_jacobian(::Difficulties, points::AbstractMatrix) = zero(eltype(points))
outward!(slopes::AbstractMatrix{T}, model::Difficulties, ::AbstractMatrix, inner::AbstractMatrix) where {T} =
    slopes .= in_precision(T, model.signs) .* inner

# ---- in place, on the CPU: a table ----------------------------------------------------------------------------------
const HostItemResponse = ItemResponse{<:LinearAlgebra.Transpose{Int8,Matrix{Int8}}}

scratch(model::HostItemResponse, ::Type{T}) where {T<:Union{Float32,Float64}} = ResponseBuffers{T}(parent(model.signs))

function log_density!(
    values::AbstractVector, model::HostItemResponse, points::StridedMatrix{T}, buffers::ResponseBuffers{T}
) where {T}
    signs, rows = parent(model.signs), local_range(model.layout)
    check_size(model, points, length(values) == size(points, 2))
    for first in 1:GROUP_POINTS:size(points, 2)
        group = first:min(first + GROUP_POINTS - 1, size(points, 2))
        prepare_group!(buffers, points, group)
        for (p, m) in enumerate(group)
            alpha, half_gamma, half_centre = half_logit(buffers, points, rows, p, m)
            panels = panels_of(buffers, half_gamma, alpha)
            buffers.by_panels[p] = panels.n > 0
            cells = if panels.n > 0
                -panel_value(panels, buffers.panels, half_gamma, half_centre, alpha)
            else
                cells_value(signs, alpha, half_gamma, half_centre, buffers)
            end
            values[m] = cells + log_prior(model, points, m)
        end
        any(view(buffers.by_panels, eachindex(group))) || continue
        fill!(buffers.ability_moments, 0.0)
        signed_sums!(buffers.ability_moments, nothing, signs, points, rows, group, buffers)
        for (p, m) in enumerate(group)
            buffers.by_panels[p] && (values[m] += signed_logits(buffers, p) + centre_logits(buffers, p))
        end
    end
    return values
end

function log_density_gradient!(
    slopes::StridedMatrix{T}, model::HostItemResponse, points::StridedMatrix{T}, buffers::ResponseBuffers{T}
) where {T}
    log_density_and_gradient!(nothing, slopes, model, points, buffers)
    return slopes
end

function log_density_and_gradient!(
    values::Union{Nothing,AbstractVector}, slopes::StridedMatrix{T}, model::HostItemResponse, points::StridedMatrix{T},
    buffers::ResponseBuffers{T},
) where {T}
    with_values = Val(!isnothing(values))
    signs, rows = parent(model.signs), local_range(model.layout)
    check_size(model, points, size(slopes) == size(points))
    for first in 1:GROUP_POINTS:size(points, 2)
        group = first:min(first + GROUP_POINTS - 1, size(points, 2))
        prepare_group!(buffers, points, group)
        fill!(buffers.moments, 0.0)
        fill!(buffers.ability_moments, 0.0)
        for (p, m) in enumerate(group)
            alpha, half_gamma, half_centre = half_logit(buffers, points, rows, p, m)
            alpha_slopes = @view slopes[rows, m]
            moments, ability_moments = view(buffers.moments, :, p), view(buffers.ability_moments, :, p)
            alpha_slopes .= .-alpha
            panels = panels_of(buffers, half_gamma, alpha)
            buffers.by_panels[p] = panels.n > 0
            cells = if panels.n > 0
                moments .= buffers.right_minus_wrong
                -panel_gradient!(
                    alpha_slopes, moments, ability_moments, panels, buffers.panels, half_gamma, half_centre, alpha,
                    with_values,
                )
            else
                cells_gradient!(
                    alpha_slopes, moments, ability_moments, signs, alpha, half_gamma, half_centre, buffers, with_values
                )
            end
            isnothing(values) && continue
            values[m] = cells + log_prior(model, points, m)
            panels.n > 0 && (values[m] -= signed_logits(buffers, p))  # of the moments without their terms in the signs
        end
        if any(view(buffers.by_panels, eachindex(group)))
            signed_sums!(buffers.ability_moments, slopes, signs, points, rows, group, buffers)
        end
        for (p, m) in enumerate(group)
            global_slopes!(slopes, points, m, buffers, p)
            isnothing(values) || !buffers.by_panels[p] || (values[m] += signed_logits(buffers, p) + centre_logits(buffers, p))
        end
    end
    return nothing
end

panels_of(buffers::ResponseBuffers, half_gamma::AbstractVector, alpha::AbstractVector) =
    buffers.complete ? Panels(half_gamma, alpha) : Panels(0.0, 1.0, 0)

"""What the ability moments add to a point's logits: with `centre_logits`, `sum s h` of a complete table."""
signed_logits(buffers::ResponseBuffers, p::Int) = dot(view(buffers.half_gamma, :, p), view(buffers.ability_moments, :, p))
centre_logits(buffers::ResponseBuffers, p::Int) = dot(view(buffers.half_centre, :, p), buffers.right_minus_wrong)

# ---- in place, on the CPU: a list of answers ------------------------------------------------------------------------
function scratch(model::ItemResponse{Answers}, ::Type{T}) where {T<:Union{Float32,Float64}}
    return AnswerBuffers{T}(model.signs)
end

function log_density!(
    values::AbstractVector, model::ItemResponse{Answers}, points::StridedMatrix{T}, buffers::AnswerBuffers{T}
) where {T}
    answers, rows = model.signs, local_range(model.layout)
    check_size(model, points, length(values) == size(points, 2))
    for m in axes(points, 2)
        prepare_group!(buffers, points, m:m)
        alpha, half_gamma, half_centre = half_logit(buffers, points, rows, 1, m)
        values[m] = answers_value(answers, alpha, half_gamma, half_centre, buffers) + log_prior(model, points, m)
    end
    return values
end

function log_density_gradient!(
    slopes::StridedMatrix{T}, model::ItemResponse{Answers}, points::StridedMatrix{T}, buffers::AnswerBuffers{T}
) where {T}
    log_density_and_gradient!(nothing, slopes, model, points, buffers)
    return slopes
end

function log_density_and_gradient!(
    values::Union{Nothing,AbstractVector}, slopes::StridedMatrix{T}, model::ItemResponse{Answers},
    points::StridedMatrix{T}, buffers::AnswerBuffers{T},
) where {T}
    with_values = Val(!isnothing(values))
    answers, rows = model.signs, local_range(model.layout)
    (; pulls, moments, ability_moments) = buffers
    check_size(model, points, size(slopes) == size(points))
    for m in axes(points, 2)
        prepare_group!(buffers, points, m:m)
        foreach(sums -> fill!(sums, 0.0), (pulls, moments, ability_moments))
        alpha, half_gamma, half_centre = half_logit(buffers, points, rows, 1, m)
        likelihood = answers_gradient!(
            pulls, view(moments, :, 1), view(ability_moments, :, 1), answers, alpha, half_gamma, half_centre, buffers,
            with_values,
        )
        view(slopes, rows, m) .= pulls .- alpha
        global_slopes!(slopes, points, m, buffers, 1)
        isnothing(values) || (values[m] = likelihood + log_prior(model, points, m))
    end
    return nothing
end

# ---- in place, on the CPU: both -------------------------------------------------------------------------------------
const AnyResponseBuffers = Union{ResponseBuffers,AnswerBuffers}

"""Half discriminations and half intercepts of a group of points."""
function prepare_group!(buffers::AnyResponseBuffers, points::AbstractMatrix, group::UnitRange{Int})
    K = size(buffers.half_gamma, 1)
    @inbounds for (p, m) in enumerate(group), k in 1:K
        buffers.half_gamma[k, p] = exp(Float64(points[3 + k, m])) / 2
        buffers.half_centre[k, p] = (Float64(points[3 + K + k, m]) + Float64(points[1, m])) / 2
    end
    return nothing
end

half_logit(buffers::AnyResponseBuffers, points::AbstractMatrix, rows::UnitRange{Int}, p::Int, m::Int) =
    view(points, rows, m), view(buffers.half_gamma, :, p), view(buffers.half_centre, :, p)

"""Log density of one point's variables before any response is seen."""
function log_prior(model::ItemResponse, points::AbstractMatrix, m::Int)
    K, J = size(model.signs)
    mu, log_s_beta, log_s_gamma = (Float64(points[i, m]) for i in 1:3)
    normal(rows, log_s) = -exp(-2 * log_s) * squares(view(points, rows, m)) / 2 - K * log_s
    return student_t4(mu) +
           half_student_t4_on_log_scale(log_s_beta) +
           half_student_t4_on_log_scale(log_s_gamma) +
           normal(4:(3 + K), log_s_gamma) +
           normal((4 + K):(3 + 2K), log_s_beta) - squares(view(points, local_range(model.layout), m)) / 2 -
           (2K + J) / 2 * log(2π)
end

function squares(x::AbstractVector)
    total = 0.0
    @inbounds @simd for i in eachindex(x)
        total += abs2(Float64(x[i]))
    end
    return total
end

"""The slopes of one point's globals, from its moments."""
function global_slopes!(slopes::AbstractMatrix, points::AbstractMatrix, m::Int, buffers::AnyResponseBuffers, p::Int)
    (; half_gamma, moments, ability_moments) = buffers
    K = size(half_gamma, 1)
    mu, log_s_beta, log_s_gamma = (Float64(points[i, m]) for i in 1:3)
    precision_beta, precision_gamma = exp(-2 * log_s_beta), exp(-2 * log_s_gamma)
    in_mu = chi_beta = chi_gamma = 0.0
    @inbounds for k in 1:K
        log_gamma, beta = Float64(points[3 + k, m]), Float64(points[3 + K + k, m])
        chi_gamma += precision_gamma * abs2(log_gamma)
        chi_beta += precision_beta * abs2(beta)
        in_mu += moments[k, p] / 2
        slopes[3 + k, m] = half_gamma[k, p] * ability_moments[k, p] - precision_gamma * log_gamma
        slopes[3 + K + k, m] = moments[k, p] / 2 - precision_beta * beta
    end
    slopes[1, m] = in_mu - 5 * mu / (4 + abs2(mu))
    # x - x: a slope is not finite where its variable is not
    slopes[2, m] = chi_beta - K + 1 - 5 / (1 + 4 * precision_beta) + (log_s_beta - log_s_beta)
    slopes[3, m] = chi_gamma - K + 1 - 5 / (1 + 4 * precision_gamma) + (log_s_gamma - log_s_gamma)
    return nothing
end
