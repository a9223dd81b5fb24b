using LinearAlgebra: LowerTriangular, cholesky, diag, diagm, dot, logdet, norm

const STANDARD_FAMILIES = [P.MeanField(), P.Structured(), P.FullRank()]
const NATURAL_LAYOUTS = [P.Layout(3, 5, 1), P.Layout(2, 4, 2), P.Layout(2, 3, 3), P.Layout(0, 4, 2), P.Layout(4, 0, 0)]
const BASES = [P.Gaussian(), P.Laplace(), P.StudentT(8.0)]

"""A normal target, in dense algebra."""
struct NormalTarget <: P.Model
    layout::P.Layout
    mean::Vector{Float64}
    precision::Matrix{Float64}
end

function P.log_density(model::NormalTarget, points::AbstractMatrix)
    away = points .- model.mean
    constant = (logdet(model.precision) - length(model.mean) * log(2π)) / 2
    return vec(sum(away .* (model.precision * away); dims=1)) ./ -2 .+ constant
end

function P.log_density_gradient!(slopes::AbstractMatrix, model::NormalTarget, points::AbstractMatrix, _)
    return copyto!(slopes, model.precision * (model.mean .- points))
end

with_base(::P.MeanField, base) = P.MeanField(base)
with_base(::P.Structured, base) = P.Structured(base)
with_base(::P.FullRank, base) = P.FullRank(base)

"""Flat parameters of a member at random, with a diagonal between 0.5 and 1.5."""
function random_member(rng, family, layout)
    pattern, d = P.ScalePattern(family, layout), P.dim(layout)
    flat = [randn(rng, d); 0.3 .* randn(rng, P.n_nonzeros(pattern))]
    flat[d .+ P.diagonal(pattern)] .= 0.5 .+ rand(rng, d)
    return flat
end

"""Coordinates whose step is bounded together, in one block."""
function trust_blocks(family, layout)
    d, d_z, d_y = P.dim(layout), layout.n_global, layout.local_dim
    family isa P.MeanField && return [[i] for i in 1:d]
    family isa P.FullRank && return [collect(1:d)]
    locals = [collect((d_z + (n - 1) * d_y + 1):(d_z + n * d_y)) for n in 1:(layout.n_local)]
    return d_z == 0 ? locals : [collect(1:d_z), locals...]
end

function natural_run(model, family, flat; T=Float64, noise=nothing, seed="3", velocity=zeros(T, length(flat)), options...)
    objective, parameters = P.Objective(model, family), Vector{T}(flat)
    draws = if isnothing(noise)
        P.PairedNoise(family.base, seed, objective.pattern, T)
    else
        P.GivenNoise(noise, parameters)
    end
    return P.NaturalRun(objective, draws, parameters, Vector{T}(velocity); options...)
end

"""Natural gradient, log p - log q of the draws, and the step made of it, all in dense matrices."""
function dense_update(model, family, flat, U; rate, trust, global_rate=0.0)
    layout, base, d = model.layout, family.base, P.dim(model.layout)
    pattern = P.ScalePattern(family, layout)
    C, m = dense(pattern, flat[(d + 1):end]), flat[1:d]
    on_pattern = dense(pattern, ones(P.n_nonzeros(pattern)))
    points = C * U .+ m
    slopes = only(Zygote.gradient(x -> sum(P.log_density(model, x)), points))
    values = P.log_density(model, points) .- vec(sum(P.base_logpdf.(Ref(base), U); dims=1)) .+ log(abs(det(C)))
    h = C' * slopes .+ P.base_score.(Ref(base), U)
    M = size(U, 2)
    below, on = P.location_information(base), P.scale_information(base)
    a, K = vec(sum(h; dims=2)) ./ (M * below), on_pattern .* (h * U') ./ (M * below)
    K += diagm(diag(K) .* (below / on - 1))
    step_a, step_K, cut = rate .* a, rate .* K, 0
    own = family isa P.Structured && layout.n_global > 0 && layout.n_local > 0 ? (1:(layout.n_global)) : (1:0)
    step_a[own] .*= max(1, global_rate / rate)
    step_K[own, :] .*= max(1, global_rate / rate)
    of_globals = sum(abs2, a[own]) + sum(abs2, K[own, :])
    blocks = trust_blocks(family, layout)
    for block in blocks
        size = sqrt(sum(abs2, step_a[block]) + sum(abs2, step_K[block, :]))
        cut += size > trust
        factor = min(1, trust / size, -1 / min(-1, minimum(diag(step_K)[block])))  # where 1 + k + k^2/2 is smallest
        step_a[block] .*= factor
        step_K[block, :] .*= factor
    end
    same_block = zeros(d, d)
    foreach(block -> same_block[block, block] .= 1, blocks)
    moved_m, moved_C = m + C * step_a, C * (I + step_K + (same_block .* step_K)^2 / 2)
    pack(location, scale) = [location; [scale[j + k - pattern.colptr[j], j] for j in 1:d for k in pattern.colptr[j]:(pattern.colptr[j + 1] - 1)]]
    square = below * (dot(a, a) + dot(K, K)) + (on - below) * dot(diag(K), diag(K))
    return (; values, direction=pack(a, K), moved=pack(moved_m, moved_C), square, cut=cut / length(blocks), of_globals, moved_C, on_pattern)
end

variance(x) = sum(abs2, x .- sum(x) / length(x)) / (length(x) - 1)

@testset "an update is that of dense algebra: $(nameof(typeof(family))) $layout $(nameof(typeof(base))) trust $trust globals $global_rate" for
    family in STANDARD_FAMILIES, layout in NATURAL_LAYOUTS, base in BASES, (trust, global_rate) in [(0.4, 0.0), (1e3, 0.2), (1e3, 0.7), (0.4, 0.7)]

    rng = MersenneTwister(31)
    d, member = P.dim(layout), with_base(family, base)
    B = randn(rng, d, d)
    model = NormalTarget(layout, randn(rng, d), B * B' / d + I)
    flat, noise = random_member(rng, member, layout), randn(rng, d, 12, 1)
    expected = dense_update(model, member, flat, noise[:, :, 1]; rate=0.3, trust, global_rate)
    run = natural_run(model, member, flat; noise)
    found = P.advance!(run, P.Leg(0.3, 0.9, trust, -1, global_rate), 1; n_samples=12)
    @test found.finite && run.done == run.count == 1
    @test run.velocity ≈ expected.direction rtol = 1e-11
    @test run.flat ≈ expected.moved rtol = 1e-11
    @test expected.moved_C .* (1 .- expected.on_pattern) ≈ zeros(d, d) atol = 1e-12  # the pattern is a group's
    mean, spread, inner, square, cut, of_globals = found.stats
    @test mean ≈ sum(expected.values) / 12 rtol = 1e-11
    @test spread ≈ variance(expected.values) rtol = 1e-9
    @test isnan(inner)
    @test square ≈ expected.square rtol = 1e-11
    @test cut ≈ expected.cut
    @test of_globals ≈ expected.of_globals rtol = 1e-11
end

@testset "a scale that is far too wide falls by half, whatever its step says: $(nameof(typeof(family)))" for
    family in STANDARD_FAMILIES

    layout = P.Layout(2, 3, 2)
    rng, d = MersenneTwister(33), P.dim(layout)
    model = P.IsotropicGaussian(layout, 0.0, 0.01)
    flat, noise = random_member(rng, family, layout), randn(rng, d, 40, 1)
    expected = dense_update(model, family, flat, noise[:, :, 1]; rate=0.5, trust=1e3)
    run = natural_run(model, family, flat; noise)
    @test P.advance!(run, P.Leg(0.5, 0.9, 1e3, -1), 1; n_samples=40).finite
    @test run.flat ≈ expected.moved rtol = 1e-11
    places = d .+ P.diagonal(P.ScalePattern(family, layout))
    @test minimum(run.flat[places] ./ flat[places]) ≈ 0.5 rtol = 1e-12
end

@testset "many dense columns and draws go in panels and chunks: $(nameof(typeof(family)))" for
    (family, layout) in [(P.FullRank(), P.Layout(300, 0, 0)), (P.Structured(), P.Layout(150, 100, 2)), (P.MeanField(), P.Layout(0, 5000, 1))]

    rng = MersenneTwister(32)
    d = P.dim(layout)
    model = P.IsotropicGaussian(layout, 0.3, 2.0)
    flat, noise = random_member(rng, family, layout), randn(rng, d, 150, 1)
    flat[(d + 1):end] ./= family isa P.MeanField ? 1 : 10
    run = natural_run(model, family, flat; noise)
    P.advance!(run, P.Leg(0.3, 0.9, 1e3, -1), 1; n_samples=150)
    if family isa P.MeanField
        c, U = flat[(d + 1):end], noise[:, :, 1]
        h = c .* ((0.3 .- (flat[1:d] .+ c .* U)) ./ 2) .+ U
        a, k = 0.3 .* vec(sum(h; dims=2)) ./ 150, 0.3 .* vec(sum(h .* U; dims=2)) ./ 300
        @test minimum(k) > -1
        @test run.flat ≈ [flat[1:d] .+ c .* a; c .* (1 .+ k .+ k .^ 2 ./ 2)] rtol = 1e-11
    else
        @test run.flat ≈ dense_update(model, family, flat, noise[:, :, 1]; rate=0.3, trust=1e3).moved rtol = 1e-10
    end
end

@testset "pairs are their draws and the opposites: $(nameof(typeof(base))) $T" for base in BASES, T in (Float64, Float32)
    model, family = MODELS[2], P.Structured(base)
    d, leg = P.dim(model.layout), P.Leg(0.1, 0.8, 0.5, -1)
    flat = [zeros(d); zeros(P.n_nonzeros(P.ScalePattern(family, model.layout)))]
    flat[d .+ P.diagonal(P.ScalePattern(family, model.layout))] .= 0.1
    seeded = natural_run(model, family, flat; T)
    noise = zeros(d, 10, 20)
    alone = P.prepare!(P.PairedNoise(base, "3", P.ScalePattern(family, model.layout), Float64), 10, false)
    for k in 1:20
        half = P.draw!(alone, k - 1)
        noise[:, :, k] = [half -half]
    end
    given = natural_run(model, family, flat; T, noise)
    found, expected = (P.advance!(run, leg, 20; n_samples=10).stats for run in (seeded, given))
    @test seeded.flat ≈ given.flat rtol = T == Float64 ? 1e-10 : 1e-3
    @test found ≈ expected rtol = (T == Float64 ? 1e-8 : 1e-2) nans = true
    @test_throws ArgumentError P.advance!(seeded, leg, 21; n_samples=5)
end

@testset "steps end at the posterior where the family has it: $(nameof(typeof(family))) $layout frames $frames" for
    family in STANDARD_FAMILIES, layout in NATURAL_LAYOUTS, frames in (false, true)

    frames && family isa P.MeanField && continue
    rng = MersenneTwister(33)
    pattern, d = P.ScalePattern(family, layout), P.dim(layout)
    posterior = random_member(rng, family, layout)
    C = dense(pattern, posterior[(d + 1):end])
    model = NormalTarget(layout, posterior[1:d], inv(C * C'))
    flat = [zeros(d + P.n_nonzeros(pattern));]
    flat[d .+ P.diagonal(pattern)] .= 0.1
    run = natural_run(model, family, flat)
    found = P.advance!(run, P.Leg(0.3, 0.5, 1.0, -1), 300; n_samples=60, frames)
    @test found.finite
    @test run.flat ≈ posterior rtol = 1e-8
    # log p - log q is 0 there, for each draw
    @test found.stats[1, end] ≈ 0 atol = 1e-8
    @test found.stats[2, end] ≈ 0 atol = 1e-12
end

@testset "the metric is 1 on a location, and below the diagonal; 2 on it, for a normal base" begin
    rng = MersenneTwister(34)
    layout = P.Layout(2, 3, 2)
    for family in STANDARD_FAMILIES, base in BASES
        pattern, d = P.ScalePattern(family, layout), P.dim(layout)
        s, t = randn(rng, P.n_params(family, layout)), randn(rng, P.n_params(family, layout))
        below, on = P.location_information(base), P.scale_information(base)
        weights = fill(below, length(s))
        weights[d .+ P.diagonal(pattern)] .= on
        unpacked(x) = P.unpack!(P.Unpacked{Float64}(pattern), pattern, x)
        @test P.fisher_inner(unpacked(s), unpacked(t), pattern, base) ≈ sum(weights .* s .* t)
        @test P.pack!(zero(s), pattern, unpacked(s)) == s
    end
end

@testset "score and information of the bases" begin
    step = 1e-3
    grid = collect((-60 + step / 2):step:60)  # 0, where Laplace's density has a kink, lies between two nodes
    for base in BASES
        slope = (P.base_logpdf.(Ref(base), grid .+ 1e-6) .- P.base_logpdf.(Ref(base), grid .- 1e-6)) ./ 2e-6
        @test P.base_score.(Ref(base), grid) ≈ -slope rtol = 1e-7
        density = exp.(P.base_logpdf.(Ref(base), grid))
        psi = P.base_score.(Ref(base), grid)
        @test sum(density .* psi .^ 2) * step ≈ P.location_information(base) rtol = 1e-5
        @test sum(density .* (psi .* grid .- 1) .^ 2) * step ≈ P.scale_information(base) rtol = 1e-4
        u = randn(MersenneTwister(35), 37)
        @test P.sum_base_logpdf(base, u) ≈ sum(P.base_logpdf.(Ref(base), u)) rtol = 1e-13
        @test P.base_score(base, 0.5f0) isa Float32
    end
end

"""Frames of draws, and what they were multiplied by."""
function frames_of(layout, m, seed)
    noise = P.PairedNoise(P.Gaussian(), seed, P.ScalePattern(P.Markov(), layout), Float64)  # whose draws have no twins
    P.prepare!(noise, 2 * m, true)
    return copy(P.draw!(noise, 0)), copy(noise.frames.lengths), copy(noise.frames.shares)
end

@testset "frames are orthogonal before their factors: $layout" for layout in filter(l -> l.n_global > 0, NATURAL_LAYOUTS)
    n = layout.n_global
    for m in (n + 1, 4 * n)
        U, lengths, shares = frames_of(layout, m, "8")
        heads, others = U[1:n, :] ./ lengths', U[(n + 1):end, :] .* shares'
        @test heads * heads' ≈ I atol = 1e-10
        @test others * heads' ≈ zeros(size(others, 1), n) atol = 1e-10
    end
end

@testset "a draw of a frame is standard normal" begin
    layout, n = P.Layout(2, 2, 2), 20_000
    draws = reduce(hcat, [frames_of(layout, 5, string(k))[1][:, 1 + k % 5] for k in 1:n])
    within(x, expected, fourth) = abs(sum(x) / n - expected) < 5 * sqrt((fourth - expected^2) / n)
    for i in 1:6
        @test within(draws[i, :], 0, 1)
        @test within(draws[i, :] .^ 2, 1, 3)
        @test within(draws[i, :] .^ 4, 3, 105)
    end
    for i in 1:6, j in 1:(i - 1)
        @test within(draws[i, :] .* draws[j, :], 0, 1)
        @test within((draws[i, :] .* draws[j, :]) .^ 2, 1, 9)
    end
    for k in (1, 2, 5, 50)
        squares = [P.rand_chi(MersenneTwister(s), k)^2 for s in 1:n]
        @test within(squares, k, k^2 + 2k)
        @test within(squares .^ 2, k * (k + 2), k * (k + 2) * (k + 4) * (k + 6))
    end
end

@testset "stratified draws are standard normal, one size in each part of the half-normal distribution" begin
    n, m, times = 3, 5, 8000
    rng = MersenneTwister(38)
    draws, strata = Array{Float64}(undef, n, m, times), (zeros(Int, n), zeros(Int, n))
    for t in 1:times
        P.stratify!(rng, view(draws, :, :, t), strata...)
    end
    for i in 1:n, t in 1:10
        parts = floor.(Int, m .* erf.(abs.(draws[i, :, t]) ./ sqrt(2)))
        @test sort(parts) == 0:(m - 1)
    end
    within(x, expected, fourth) = abs(sum(x) / length(x) - expected) < 5 * sqrt((fourth - expected^2) / length(x))
    for k in 1:m
        one = draws[:, k, :]
        for i in 1:n
            @test within(one[i, :], 0, 1)
            @test within(one[i, :] .^ 2, 1, 3)
            @test within(one[i, :] .^ 4, 3, 105)
            for j in 1:(i - 1)
                @test within(one[i, :] .* one[j, :], 0, 1)
                @test within((one[i, :] .* one[j, :]) .^ 2, 1, 9)
            end
        end
    end
    # what two coordinates do together: in a random order, at most m/(m - 1) times the noise of independent draws
    spread(x) = sum(abs2, x .- sum(x) / length(x)) / length(x)
    for (i, j) in ((1, 2), (1, 3)), f in (abs, u -> min(u * u, 4.0))
        g = f.(draws) .- sum(f, draws) / length(draws)
        products = g[i, :, :] .* g[j, :, :]
        @test spread(sum(products; dims=1) ./ m) < 1.1 * m / (m - 1) * spread(products) / m
    end
    many, m = zeros(2000, 31), 31
    mean_squares = sum(abs2, P.stratify!(rng, many, zeros(Int, 2000), zeros(Int, 2000)); dims=2) ./ m
    @test sum(abs2, mean_squares .- 1) / 2000 < 0.25 * 2 / m  # of independent draws, it is 2/m
end

@testset "frames are refused where they cannot be" begin
    pattern = P.ScalePattern(P.Markov(), P.Layout(2, 3, 2))
    @test_throws ArgumentError P.prepare!(P.PairedNoise(P.Laplace(), "1", pattern, Float64), 20, true)
    @test_throws ArgumentError P.prepare!(P.PairedNoise(P.Gaussian(), "1", pattern, Float64), 4, true)
    @test P.n_draws(P.prepare!(P.PairedNoise(P.Gaussian(), "1", pattern, Float64), 8, true)) == 8
end

"""A start on the small Poisson problem, a little spread out."""
function poisson_start(family)
    pattern, d = P.ScalePattern(family, MODELS[2].layout), P.dim(MODELS[2].layout)
    flat = zeros(d + P.n_nonzeros(pattern))
    flat[d .+ P.diagonal(pattern)] .= 0.1
    return flat
end

@testset "legs in pieces, and one taken up again, are the run in one go: $(nameof(typeof(family)))" for family in STANDARD_FAMILIES
    flat = poisson_start(family)
    first, second = P.Leg(0.2, 0.9, 0.5, -1), P.Leg(0.2, 0.9, 0.5, 40)
    frames = family isa P.Structured
    whole = natural_run(MODELS[2], family, flat)
    P.advance!(whole, first, 40; n_samples=40, frames)
    P.advance!(whole, second, 60; n_samples=30)
    pieces = natural_run(MODELS[2], family, flat)
    while pieces.done < 40
        P.advance!(pieces, first, 40, 0.0; n_samples=40, frames)  # one update a call
    end
    again = natural_run(MODELS[2], family, pieces.flat; velocity=pieces.velocity, done=40, count=40)
    P.advance!(again, second, 60; n_samples=30)
    @test again.flat == whole.flat
    @test again.velocity == whole.velocity
    @test P.rate_at(second, 43) ≈ 0.2 / (1 + 0.2 * 3)
end

@testset "an update that is not finite is not made" begin
    layout = P.Layout(2, 3, 1)
    family = P.Structured()
    flat = random_member(MersenneTwister(36), family, layout)
    precision = Matrix(1.0I, 5, 5)
    broken = natural_run(NormalTarget(layout, fill(NaN, 5), precision), family, flat)
    @test !P.advance!(broken, P.Leg(0.1, 0.9, 0.5, -1), 5; n_samples=6).finite
    @test broken.flat == flat && broken.done == broken.count == 0 && all(iszero, broken.velocity)
    @test all(isnan, broken.buffers.slopes[1])
end

@testset "a diagonal entry that would become 0 or infinite is seen" begin
    layout = P.Layout(2, 3, 2)
    for family in STANDARD_FAMILIES, (c, k, kept) in [(5e-324, -1.0, false), (1e308, 10.0, false), (5e-324, 1.0, true)]
        pattern, d = P.ScalePattern(family, layout), P.dim(layout)
        for place in P.diagonal(pattern)
            member, step = (P.Unpacked{Float64}(pattern) for _ in 1:2)
            flat, moved = ones(P.n_params(family, layout)), zeros(P.n_params(family, layout))
            flat[d + place], moved[d + place] = c, k
            P.unpack!(member, pattern, flat)
            P.unpack!(step, pattern, moved)
            @test P.keeps_diagonal(member, step, pattern) == kept
        end
    end
end

@testset "the ELBO by log p - log q" begin
    layout = P.Layout(2, 3, 2)
    for family in STANDARD_FAMILIES
        rng = MersenneTwister(37)
        flat = random_member(rng, family, layout)
        pattern, d = P.ScalePattern(family, layout), P.dim(layout)
        C, m = dense(pattern, flat[(d + 1):end]), flat[1:d]
        # the family's own member: 0 for each draw
        itself = P.Objective(NormalTarget(layout, m, inv(C * C')), family)
        estimate = P.ElboEstimate(itself, 50, flat)
        while estimate.done < 50
            P.add_weights_piece!(estimate, itself, flat, "4", 0)
        end
        @test collect(P.weights_result(estimate, itself, flat)) ≈ zeros(3) atol = 1e-9
        other = P.Objective(P.IsotropicGaussian(layout, 0.5, 1.5), family)
        estimate = P.ElboEstimate(other, 20_000, flat)
        while estimate.done < 20_000
            P.add_weights_piece!(estimate, other, flat, "4", 0)
        end
        value, std_error, deviation = P.weights_result(estimate, other, flat)
        exact = -(sum(abs2, C) + sum(abs2, m .- 0.5)) / (2 * 1.5) - d / 2 * log(2π * 1.5) + P.entropy(family, pattern, flat)
        @test abs(value - exact) < 5 * std_error
        @test std_error ≈ deviation / sqrt(20_000)
    end
end

@testset "an update allocates nothing that grows with the model: $(nameof(typeof(family)))" for family in STANDARD_FAMILIES
    model = P.RobustPoisson(randn(MersenneTwister(38), 400, 3), ones(400), zeros(400))
    pattern, d = P.ScalePattern(family, model.layout), P.dim(model.layout)
    flat = zeros(d + P.n_nonzeros(pattern))
    flat[d .+ P.diagonal(pattern)] .= 0.1
    run = natural_run(model, family, flat)
    leg, options = P.Leg(0.01, 0.9, 0.5, -1), (; n_samples=40, frames=family isa P.Structured)
    P.advance!(run, leg, 3; options...)
    @test (@allocated P.advance!(run, leg, 4; options...)) < 12_000
end
