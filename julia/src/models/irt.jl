"""
Two-parameter logistic item response model (paper, "Item Response Theory").

`signs` is items x students: +1 right, -1 wrong, 0 missing. Globals: `[mu_beta, log s_beta, log s_gamma,
log gamma_1..K, beta_1..K]`; the local of student j is the ability `alpha_j`.
"""
struct ItemResponse{A<:AbstractMatrix} <: Model
    layout::Layout
    signs::A
end

ItemResponse(signs::AbstractMatrix) = ItemResponse(Layout(3 + 2 * size(signs, 1), size(signs, 2), 1), signs)

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
    cells = reduce(vcat, [cells_of_point(model, log_gamma[:, m], beta[:, m] .+ mu[1, m], alpha[:, m]) for m in axes(points, 2)])
    return vec(prior) .+ cells
end

"""Log likelihood of one point; a missing cell has sign 0 and is counted out."""
function cells_of_point(model::ItemResponse, log_gamma::AbstractVector, centre::AbstractVector, alpha::AbstractVector)
    logits = exp.(log_gamma) .* alpha' .+ centre
    return -sum(abs.(model.signs) .* softplus.(-model.signs .* logits))
end
