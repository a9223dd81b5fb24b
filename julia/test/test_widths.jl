# Conditional widths against their definition; helpers are those of test_natural.jl.

const WIDTH_LAYOUTS = [
    P.Layout(2, 5, 1), P.Layout(2, 3, 2), P.Layout(3, 2, 3), P.Layout(1, 1, 1), P.Layout(0, 4, 2), P.Layout(0, 3, 1),
    P.Layout(4, 0, 0), P.Layout(1, 2, 10),
]

"""Random flat parameters: a structured member's, and b behind them."""
function random_widths(rng, layout; spread=0.4)
    pattern = P.ScalePattern(P.ConditionalStructured(), layout)
    return [random_member(rng, P.Structured(), layout); spread .* randn(rng, pattern.n_widths)]
end

"""Location, dense scale of the structured part, and b as a matrix with a column a global."""
function split_widths(layout, flat)
    d, p = P.dim(layout), P.n_params(P.Structured(), layout)
    C = dense(P.ScalePattern(P.Structured(), layout), flat[(d + 1):p])
    return flat[1:d], C, reshape(flat[(p + 1):end], P.n_local_total(layout), layout.n_global)
end

"""The points of the noise, from the definition."""
function points_of(layout, flat, U)
    m, C, b = split_widths(layout, flat)
    z, y = P.global_range(layout), P.local_range(layout)
    return m .+ C * vcat(U[z, :], exp.(b * U[z, :]) .* U[y, :])
end

"""A density that is a member of the family."""
struct MemberTarget <: P.Model
    layout::P.Layout
    m::Vector{Float64}
    C::Matrix{Float64}
    b::Matrix{Float64}
end

MemberTarget(layout, flat) = MemberTarget(layout, split_widths(layout, flat)...)

function P.log_density(model::MemberTarget, points::AbstractMatrix)
    (; m, C, b) = model
    z, y = P.global_range(model.layout), P.local_range(model.layout)
    V = C \ (points .- m)
    w = b * V[z, :]
    U = vcat(V[z, :], V[y, :] .* exp.(.-w))
    return vec(sum(P.base_logpdf.(Ref(P.Gaussian()), U); dims=1)) .- vec(sum(w; dims=1)) .- log(abs(det(C)))
end

function P.log_density_gradient!(slopes::AbstractMatrix, model::MemberTarget, points::AbstractMatrix, _)
    return copyto!(slopes, only(Zygote.gradient(x -> sum(P.log_density(model, x)), Matrix(points))))
end

@testset "parameters are structured's and a width for each global and local coordinate: $layout" for layout in WIDTH_LAYOUTS
    family = P.ConditionalStructured()
    pattern, flat = P.ScalePattern(family, layout), random_widths(MersenneTwister(51), layout)
    @test P.n_params(family, layout) == P.n_params(P.Structured(), layout) + layout.n_global * P.n_local_total(layout)
    @test P.pack!(zero(flat), pattern, P.unpack!(P.Unpacked{Float64}(pattern), pattern, flat)) == flat
    @test P.entropy(family, pattern, flat) == P.entropy(P.Structured(), pattern, flat)
end

@testset "points and pullback are those of the definition: $layout $T" for layout in WIDTH_LAYOUTS, T in (Float64, Float32)
    rng, family = MersenneTwister(52), P.ConditionalStructured()
    pattern, flat, d, tolerance = P.ScalePattern(family, layout), random_widths(rng, layout), P.dim(layout), 1000 * eps(T)
    U, G = randn(rng, d, 5), randn(rng, d, 5)
    expected = points_of(layout, flat, U)
    points = P.transform!(zeros(T, d, 5), family, layout, pattern, T.(flat), T.(U))
    @test eltype(points) == T
    @test points ≈ expected rtol = tolerance
    @test P.transform(family, layout, pattern, T.(flat), T.(U)) ≈ expected rtol = tolerance
    numeric = map(eachindex(flat)) do k
        step = 1e-5 .* (eachindex(flat) .== k)
        sum(G .* (points_of(layout, flat .+ step, U) .- points_of(layout, flat .- step, U))) / 2e-5
    end
    out = P.pullback!(fill(T(NaN), length(flat)), family, layout, pattern, T.(flat), T.(U), points, T.(G))
    @test out ≈ numeric rtol = max(1e-8, tolerance)
    by_zygote = only(Zygote.gradient(x -> sum(T.(G) .* P.transform(family, layout, pattern, x, T.(U))), T.(flat)))
    @test by_zygote ≈ out rtol = tolerance
end

@testset "from b = 0, an update moves all else as structured's: $layout" for layout in WIDTH_LAYOUTS
    rng = MersenneTwister(53)
    d, family = P.dim(layout), P.ConditionalStructured()
    B = randn(rng, d, d)
    model = NormalTarget(layout, randn(rng, d), B * B' / d + I)
    flat, noise = random_member(rng, P.Structured(), layout), randn(rng, d, 12, 1)
    n_more = P.n_params(family, layout) - length(flat)
    plain, run = natural_run(model, P.Structured(), flat; noise), natural_run(model, family, [flat; zeros(n_more)]; noise)
    leg = P.Leg(0.3, 0.9, 1e9, -1, 0.0)
    found, expected = P.advance!(run, leg, 1; n_samples=12), P.advance!(plain, leg, 1; n_samples=12)
    @test run.flat[1:length(flat)] ≈ plain.flat rtol = 1e-11
    @test found.stats[1:2] ≈ expected.stats[1:2] rtol = 1e-9
    @test n_more == 0 || any(!iszero, run.flat[(length(flat) + 1):end])
end

@testset "steps end at a density that the family has: $layout" for layout in WIDTH_LAYOUTS[1:7]
    target = random_widths(MersenneTwister(54), layout; spread=0.2)
    model, d, family = MemberTarget(layout, target), P.dim(layout), P.ConditionalStructured()
    pattern = P.ScalePattern(family, layout)
    flat = zeros(length(target))
    flat[d .+ P.diagonal(pattern)] .= 0.3
    run = natural_run(model, family, flat)
    found = P.advance!(run, P.Leg(0.2, 0.5, 0.5, -1), 400; n_samples=120, frames=layout.n_global > 0)
    @test found.finite
    @test run.flat ≈ target rtol = 1e-7
    # log p - log q is 0 there, for each draw
    @test found.stats[1, end] ≈ 0 atol = 1e-7
    @test found.stats[2, end] ≈ 0 atol = 1e-10
    objective = P.Objective(model, family)
    estimate = P.ElboEstimate(objective, 50, run.flat)
    while estimate.done < 50
        P.add_weights_piece!(estimate, objective, run.flat, "4", 0)
    end
    @test collect(P.weights_result(estimate, objective, run.flat)) ≈ zeros(3) atol = 1e-6
end

@testset "draws have twins with the locals' signs turned, and heads in frames" begin
    layout = P.Layout(2, 3, 2)
    pattern = P.ScalePattern(P.ConditionalStructured(), layout)
    for T in (Float64, Float32), frames in (false, true)
        noise = P.PairedNoise(P.Gaussian(), "6", pattern, T)
        P.prepare!(noise, 24, frames)
        @test P.n_draws(noise) == 24
        U = copy(P.draw!(noise, 0))
        @test size(U) == (8, 12) && eltype(U) == T
        @test U[1:2, 7:12] == U[1:2, 1:6] && U[3:8, 7:12] == -U[3:8, 1:6]
        frames || continue
        heads = noise.draws[1:2, :] ./ noise.frames.lengths'
        @test heads * heads' ≈ I atol = 1e-10
    end
    odd = P.prepare!(P.PairedNoise(P.Gaussian(), "6", pattern, Float64), 10, false)
    @test size(P.draw!(odd, 0)) == (8, 5)
    @test_throws ArgumentError P.prepare!(P.PairedNoise(P.Gaussian(), "6", pattern, Float64), 8, true)
end
