# The Markov family against dense matrices and central differences; helpers are those of test_natural.jl.

const MARKOV_LAYOUTS = [
    P.Layout(2, 5, 1), P.Layout(2, 4, 2), P.Layout(3, 9, 3), P.Layout(0, 4, 2), P.Layout(0, 6, 1), P.Layout(1, 1, 2),
    P.Layout(2, 2, 1), P.Layout(4, 0, 0), P.Layout(1, 3, 8), P.Layout(2, 4, 10),
]

with_base(::P.Markov, base) = P.Markov(base)

"""Random flat parameters: a structured member's, and matrices A_n behind them."""
function random_markov(rng, layout; spread=0.7)
    pattern = P.ScalePattern(P.Markov(), layout)
    return [random_member(rng, P.Structured(), layout); spread / sqrt(max(layout.local_dim, 1)) .* randn(rng, P.n_chain(pattern))]
end

locals_of(layout, n) = (layout.n_global + (n - 1) * layout.local_dim + 1):(layout.n_global + n * layout.local_dim)
n_structured(layout) = P.n_params(P.Structured(), layout)

"""A_2 to A_N from the end of a flat vector."""
function matrices(layout, flat)
    b = layout.local_dim
    return [reshape(flat[(n_structured(layout) + (n - 2) * b^2 + 1):(n_structured(layout) + (n - 1) * b^2)], b, b) for n in 2:(layout.n_local)]
end

"""m and C: each local's row of blocks is A_n times its predecessor's, and its own block."""
function dense_markov(layout, flat)
    d, y = P.dim(layout), layout.n_global + 1
    C = dense(P.ScalePattern(P.Structured(), layout), flat[(d + 1):n_structured(layout)])
    for (A, n) in zip(matrices(layout, flat), 2:(layout.n_local))
        here, before = locals_of(layout, n), locals_of(layout, n - 1)
        C[here, y:last(before)] = A * C[before, y:last(before)]
    end
    return flat[1:d], C
end

@testset "parameters are structured's and a matrix for each step in time: $layout" for layout in MARKOV_LAYOUTS
    steps = max(layout.n_local - 1, 0)
    @test P.n_params(P.Markov(), layout) == n_structured(layout) + steps * layout.local_dim^2
    pattern = P.ScalePattern(P.Markov(), layout)
    flat = random_markov(MersenneTwister(41), layout)
    @test length(flat) == P.n_params(pattern)
    @test [P.location(pattern, flat); P.nonzeros_of(pattern, flat); P.chain_of(pattern, flat)] == flat
    @test P.pack!(zero(flat), pattern, P.unpack!(P.Unpacked{Float64}(pattern), pattern, flat)) == flat
end

@testset "points and pullback are those of the dense matrix: $layout $T" for layout in MARKOV_LAYOUTS, T in (Float64, Float32)
    rng = MersenneTwister(42)
    family, pattern = P.Markov(), P.ScalePattern(P.Markov(), layout)
    flat, d, tolerance = random_markov(rng, layout), P.dim(layout), 1000 * eps(T)
    U, G = randn(rng, d, 5), randn(rng, d, 5)
    m, C = dense_markov(layout, flat)
    points = P.transform!(zeros(T, d, 5), family, layout, pattern, T.(flat), T.(U))
    @test eltype(points) == T
    @test points ≈ C * U .+ m rtol = tolerance
    @test P.transform(family, layout, pattern, T.(flat), T.(U)) ≈ C * U .+ m rtol = tolerance

    numeric = map(eachindex(flat)) do k
        step = 1e-5 .* (eachindex(flat) .== k)
        (m_above, C_above), (m_below, C_below) = dense_markov(layout, flat .+ step), dense_markov(layout, flat .- step)
        sum(G .* ((C_above - C_below) * U .+ (m_above .- m_below))) / 2e-5
    end
    out = P.pullback!(fill(T(NaN), length(flat)), family, layout, pattern, T.(flat), T.(U), points, T.(G))
    @test out ≈ numeric rtol = max(1e-8, tolerance)
    by_zygote = only(Zygote.gradient(x -> sum(T.(G) .* P.transform(family, layout, pattern, x, T.(U))), T.(flat)))
    @test by_zygote ≈ out rtol = tolerance
end

@testset "long series and many draws: $layout" for layout in (P.Layout(7, 600, 1), P.Layout(5, 101, 3))
    rng = MersenneTwister(43)
    family, pattern = P.Markov(), P.ScalePattern(P.Markov(), layout)
    flat, d = random_markov(rng, layout), P.dim(layout)
    m, C = dense_markov(layout, flat)
    for M in (1, 4, 9)
        U, G = randn(rng, d, M), randn(rng, d, M)
        points = P.transform!(similar(U), family, layout, pattern, flat, U)
        @test points ≈ C * U .+ m rtol = 1e-12
        out = P.pullback!(similar(flat), family, layout, pattern, flat, U, points, copy(G))
        # C_yy = S B with S = dr/de and B the blocks: what the blocks and the chain see of G is S' G
        y = (layout.n_global + 1):d
        B = dense(pattern, P.nonzeros_of(pattern, flat))[y, y]
        pulled = [G[1:(layout.n_global), :]; (C[y, y] / B)' * G[y, :]]
        rests = C[:, y] * U[y, :]
        lags = [vec(pulled[locals_of(layout, n), :] * rests[locals_of(layout, n - 1), :]') for n in 2:(layout.n_local)]
        of_borders, of_blocks = G * U', pulled * U'
        scales = [(j <= layout.n_global ? of_borders : of_blocks)[i, j] for j in 1:d for i in j:(j + pattern.colptr[j + 1] - pattern.colptr[j] - 1)]
        @test out ≈ [vec(sum(G; dims=2)); scales; reduce(vcat, lags)] rtol = 1e-11
    end
end

@testset "entropy" begin
    layout = P.Layout(2, 4, 2)
    for base in BASES
        flat = random_markov(MersenneTwister(44), layout)
        _, C = dense_markov(layout, flat)
        expected = P.dim(layout) * P.base_entropy(base) + log(abs(det(C)))
        @test P.entropy(P.Markov(base), P.ScalePattern(P.Markov(base), layout), flat) ≈ expected
    end
end

@testset "covariances' roots: $layout" for layout in MARKOV_LAYOUTS
    pattern, flat = P.ScalePattern(P.Markov(), layout), random_markov(MersenneTwister(45), layout)
    _, C = dense_markov(layout, flat)
    member = P.unpack!(P.Unpacked{Float64}(pattern), pattern, flat)
    b, roots = layout.local_dim, fill(NaN, P.n_chain(pattern))
    P.local_roots!(roots, similar(roots), pattern, member)
    y = (layout.n_global + 1):P.dim(layout)
    for n in 1:(layout.n_local - 1)
        rows = C[locals_of(layout, n), y]
        @test tril(reshape(roots[((n - 1) * b^2 + 1):(n * b^2)], b, b)) ≈ cholesky(rows * rows').L rtol = 1e-10
    end
end

# ---- natural gradients ----------------------------------------------------------------------------------------------
"""Natural gradient, log p - log q of the draws, and the step made of it, all in dense matrices."""
function dense_markov_update(model, family, flat, U; rate, trust)
    layout, base, M = model.layout, family.base, size(U, 2)
    d, d_z, N = P.dim(layout), layout.n_global, layout.n_local
    z, y = 1:d_z, (d_z + 1):d
    (m, C), structured = dense_markov(layout, flat), P.ScalePattern(P.Structured(), layout)
    on_pattern = dense(structured, ones(P.n_nonzeros(structured)))
    points = C * U .+ m
    slopes = only(Zygote.gradient(x -> sum(P.log_density(model, x)), points))
    values = P.log_density(model, points) .- vec(sum(P.base_logpdf.(Ref(base), U); dims=1)) .+ log(abs(det(C)))
    h, rests = C' * slopes .+ P.base_score.(Ref(base), U), C[:, y] * U[y, :]
    below, on = P.location_information(base), P.scale_information(base)
    a, K = vec(sum(h; dims=2)) ./ (M * below), on_pattern .* (h * U') ./ (M * below)
    K += diagm(diag(K) .* (below / on - 1))
    root(n) = (rows = C[locals_of(layout, n), y]; cholesky(rows * rows').L)
    L = [h[locals_of(layout, n), :] * (root(n - 1) \ rests[locals_of(layout, n - 1), :])' ./ (M * below) for n in 2:N]
    step_a, step_K, step_L, cut = rate .* a, rate .* K, rate .* L, 0
    blocks = trust_blocks(family, layout)
    for (block, n) in zip(blocks, (1 - (d_z > 0)):N)
        lag = n > 1 ? sum(abs2, step_L[n - 1]) : 0.0
        size = sqrt(sum(abs2, step_a[block]) + sum(abs2, step_K[block, :]) + lag)
        cut += size > trust
        factor = min(1, trust / size, -1 / min(-1, minimum(diag(step_K)[block])))
        step_a[block] .*= factor
        step_K[block, :] .*= factor
        n > 1 && (step_L[n - 1] .*= factor)
    end
    pack(location, scale, chain) = [
        location; [scale[j + k - structured.colptr[j], j] for j in 1:d for k in structured.colptr[j]:(structured.colptr[j + 1] - 1)];
        reduce(vcat, vec.(chain); init=Float64[])
    ]
    moved = copy(C)
    E_zz = I + step_K[z, z] + step_K[z, z]^2 / 2
    moved[z, z], moved[y, z] = C[z, z] * E_zz, C[y, z] * E_zz + C[y, y] * step_K[y, z]
    for n in 1:N
        rows = locals_of(layout, n)
        moved[rows, rows] = C[rows, rows] * (I + step_K[rows, rows] + step_K[rows, rows]^2 / 2)
    end
    chain = [A + C[locals_of(layout, n), locals_of(layout, n)] * l / root(n - 1) for (A, l, n) in zip(matrices(layout, flat), step_L, 2:N)]
    square = below * (dot(a, a) + dot(K, K) + sum(l -> dot(l, l), L; init=0.0)) + (on - below) * dot(diag(K), diag(K))
    return (; values, direction=pack(a, K, L), moved=pack(m + C * step_a, moved, chain), square, cut=cut / length(blocks))
end

@testset "an update is that of dense algebra: $layout $(nameof(typeof(base))) trust $trust" for
    layout in MARKOV_LAYOUTS, base in BASES, trust in (0.4, 1e3)

    rng = MersenneTwister(46)
    d, family = P.dim(layout), P.Markov(base)
    B = randn(rng, d, d)
    model = NormalTarget(layout, randn(rng, d), B * B' / d + I)
    flat, noise = random_markov(rng, layout), randn(rng, d, 12, 1)
    expected = dense_markov_update(model, family, flat, noise[:, :, 1]; rate=0.3, trust)
    run = natural_run(model, family, flat; noise)
    found = P.advance!(run, P.Leg(0.3, 0.9, trust, -1), 1; n_samples=12)
    @test found.finite && run.done == run.count == 1
    @test run.velocity ≈ expected.direction rtol = 1e-9
    @test run.flat ≈ expected.moved rtol = 1e-9
    mean, spread, inner, square, cut = found.stats
    @test mean ≈ sum(expected.values) / 12 rtol = 1e-11
    @test spread ≈ variance(expected.values) rtol = 1e-9
    @test isnan(inner)
    @test square ≈ expected.square rtol = 1e-9
    @test cut ≈ expected.cut
end

@testset "draws in chunks: $layout" for layout in (P.Layout(4, 1500, 1), P.Layout(3, 700, 2))
    rng = MersenneTwister(47)
    d, family = P.dim(layout), P.Markov()
    model = P.IsotropicGaussian(layout, 0.3, 2.0)
    flat, noise = random_markov(rng, layout), randn(rng, d, 60, 1)
    run = natural_run(model, family, flat; noise)
    P.advance!(run, P.Leg(0.3, 0.9, 1e3, -1), 1; n_samples=60)
    @test size(run.buffers.points, 2) < 60
    # the mean of the draws' directions: each half of them by itself
    halves = map((1:30, 31:60)) do columns
        part = natural_run(model, family, flat; noise=noise[:, columns, :])
        P.advance!(part, P.Leg(0.3, 0.9, 1e3, -1), 1; n_samples=30)
        part.velocity
    end
    @test run.velocity ≈ (halves[1] .+ halves[2]) ./ 2 rtol = 1e-10
end

@testset "steps end at the posterior where the family has it: $layout frames $frames" for
    layout in filter(l -> l.local_dim < 8, MARKOV_LAYOUTS), frames in (false, true)

    posterior = random_markov(MersenneTwister(48), layout; spread=0.4)
    m, C = dense_markov(layout, posterior)
    model, d = NormalTarget(layout, m, inv(C * C')), P.dim(layout)
    flat = zero(posterior)
    flat[d .+ P.diagonal(P.ScalePattern(P.Markov(), layout))] .= 0.1
    run = natural_run(model, P.Markov(), flat)
    found = P.advance!(run, P.Leg(0.3, 0.5, 1.0, -1), 400; n_samples=80, frames)
    @test found.finite
    @test run.flat ≈ posterior rtol = 1e-7
    # log p - log q is 0 there, for each draw
    @test found.stats[1, end] ≈ 0 atol = 1e-7
    @test found.stats[2, end] ≈ 0 atol = 1e-10
end

@testset "a covariance that is singular to rounding makes no step and throws nothing" begin
    layout = P.Layout(1, 3, 2)
    flat = random_markov(MersenneTwister(49), layout)
    flat[P.dim(layout) .+ P.diagonal(P.ScalePattern(P.Markov(), layout))] .= 1e-200
    run = natural_run(P.IsotropicGaussian(layout, 0.0, 1.0), P.Markov(), flat)
    @test !P.advance!(run, P.Leg(0.1, 0.9, 0.5, -1), 5; n_samples=6).finite
    @test run.flat == flat && run.done == run.count == 0
end

@testset "the ELBO by log p - log q" begin
    layout, family = P.Layout(2, 3, 2), P.Markov()
    flat = random_markov(MersenneTwister(50), layout)
    m, C = dense_markov(layout, flat)
    itself = P.Objective(NormalTarget(layout, m, inv(C * C')), family)
    estimate = P.ElboEstimate(itself, 50, flat)
    while estimate.done < 50
        P.add_weights_piece!(estimate, itself, flat, "4", 0)
    end
    @test collect(P.weights_result(estimate, itself, flat)) ≈ zeros(3) atol = 1e-9
end

@testset "legs in pieces, and one taken up again, are the run in one go" begin
    model, family = MODELS[4], P.Markov()
    flat = zeros(P.n_params(family, model.layout))
    flat[P.dim(model.layout) .+ P.diagonal(P.ScalePattern(family, model.layout))] .= 0.1
    leg, options = P.Leg(0.2, 0.9, 0.5, -1), (; n_samples=40, frames=true)
    whole, pieces = natural_run(model, family, flat), natural_run(model, family, flat)
    P.advance!(whole, leg, 60; options...)
    while pieces.done < 40
        P.advance!(pieces, leg, 40, 0.0; options...)  # one update a call
    end
    again = natural_run(model, family, pieces.flat; velocity=pieces.velocity, done=40, count=40)
    P.advance!(again, leg, 60; options...)
    @test again.flat == whole.flat
    @test again.velocity == whole.velocity
end

@testset "an update allocates nothing that grows with the model: $D series" for D in (1, 3, 9)
    model, family = P.StochasticVolatility(random_returns(D, 400)), P.Markov()
    pattern, d = P.ScalePattern(family, model.layout), P.dim(model.layout)
    flat = zeros(P.n_params(pattern))
    flat[d .+ P.diagonal(pattern)] .= 0.1
    run = natural_run(model, family, copy(flat))
    leg = P.Leg(0.01, 0.9, 0.5, -1)
    P.advance!(run, leg, 3; n_samples=20)
    @test (@allocated P.advance!(run, leg, 4; n_samples=20)) < 12_000
    rule, objective = P.adam(), P.Objective(model, family)
    adam_run = P.Run(
        objective, rule, P.NoiseStream(family.base, "5", d, 4, flat), P.StepDecay(1e-3), flat, [zero(flat), zero(flat)], 4
    )
    P.advance!(adam_run, 2)
    @test (@allocated P.advance!(adam_run, 3)) < 1000
end
