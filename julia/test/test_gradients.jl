# The in-place densities and gradients against the generic `log_density` and Zygote's gradient of it.

"""Signs of a table, items x students, a share of them 0."""
function random_signs(K, J; missing_share=0.0)
    rng = MersenneTwister(21)
    signs = rand(rng, [-1.0, 1.0], K, J)
    signs[rand(rng, K, J) .< missing_share] .= 0.0
    return signs
end

"""Returns, D x T, a share of them missing."""
function random_returns(D, T; missing_share=0.0)
    rng = MersenneTwister(22)
    returns = 0.3 .* randn(rng, D, T)
    returns[rand(rng, D, T) .< missing_share] .= NaN
    return returns
end

random_points(model, M; spread=0.3) = spread .* randn(MersenneTwister(23), P.dim(model.layout), M)

function in_place(model, points::AbstractMatrix{T}) where {T}
    buffers, values, slopes = P.scratch(model, T), fill(NaN, size(points, 2)), fill(T(NaN), size(points))
    P.log_density!(values, model, points, buffers)
    P.log_density_gradient!(slopes, model, points, buffers)
    return values, slopes, buffers
end

zygote_gradient(model, points) = only(Zygote.gradient(x -> sum(P.log_density(model, x)), points))

largest_difference(A, B) = maximum(abs, A .- B) / maximum(abs, B)

@testset "item response: $K items, $J students, $M points, missing: $share, spread $spread" for
    (K, J, M, share, spread, by_panels) in [
        (2, 2, 1, 0.0, 0.3, false),
        (2, 3, 2, 0.3, 0.3, false),
        (5, 30, 9, 0.0, 0.3, false),
        (9, 257, 8, 0.1, 0.3, false),
        (7, 600, 3, 0.0, 30.0, false),  # abilities too far apart for panels
        (1300, 5, 2, 0.05, 0.01, false),  # more factors than one logarithm takes
        (2, 300, 2, 0.0, 0.3, true),
        (9, 257, 17, 0.0, 0.3, true),
        (17, 1500, 3, 0.0, 1.0, true),  # more nodes than one block
        (1300, 300, 2, 0.0, 0.01, true),
    ]

    model = P.ItemResponse(random_signs(K, J; missing_share=share))
    points = random_points(model, M; spread)
    points[3:(3 + K), :] .*= min(1, 0.5 / spread)
    values, slopes, buffers = in_place(model, points)
    @test all(==(by_panels), buffers.by_panels[1:min(M, P.GROUP_POINTS)])
    @test values ≈ P.log_density(model, points) rtol = 1e-12
    @test largest_difference(slopes, zygote_gradient(model, points)) < 1e-11
end

@testset "item response from answers: $K items, $J students, $M points, missing: $share, spread $spread" for
    (K, J, M, share, spread) in [
        (2, 2, 1, 0.0, 0.3),
        (5, 30, 9, 0.5, 0.3),
        (3, 900, 2, 0.1, 30.0),  # several pieces an item, large logits
        (40, 300, 3, 0.97, 1.0),  # items and students without an answer
        (1300, 40, 2, 0.8, 0.01),  # more pieces than one logarithm takes
    ]

    table = random_signs(K, J; missing_share=share)
    model, whole = P.ItemResponse(P.Answers(table)), P.ItemResponse(table)
    points = random_points(model, M; spread)
    points[3:(3 + K), :] .*= min(1, 0.5 / spread)
    values, slopes, _ = in_place(model, points)
    expected, expected_slopes, _ = in_place(whole, points)
    @test values ≈ expected rtol = 1e-12
    @test largest_difference(slopes, expected_slopes) < 1e-12
    @test values ≈ P.log_density(whole, points) rtol = 1e-12
    @test largest_difference(slopes, zygote_gradient(whole, points)) < 1e-11
end

@testset "a list of answers is the table" begin
    table = random_signs(7, 40; missing_share=0.8)
    answers = P.Answers(table)
    @test answers == table && Matrix(answers) == table
    @test P.Answers(view(table, :, :)) == P.Answers(Int8.(table)) == table
    @test length(answers.signs) == count(!iszero, table)
    @test_throws BoundsError answers[8, 1]
    @test_throws BoundsError answers[1, 41]
    # the same from Python's numbers, which count from 0
    starts, students = Int64.(answers.starts .- 1), answers.students .- Int32(1)
    GC.@preserve starts students answers begin
        places = (Int(pointer(array)) for array in (starts, students, answers.signs))
        @test P.sparse_irt_model(places..., 40, 7).signs == table
    end
    for (starts, students, signs) in [
        ([1, 2], Int32[1, 2], Int8[1, 1]),  # an answer of no item
        ([2, 3], Int32[1, 2], Int8[1, 1]),
        ([1, 3, 2, 3], Int32[1, 2], Int8[1, 1]),
        ([1, 3], Int32[1, 2], Int8[1]),
        ([1], Int32[], Int8[]),
        ([1, 3], Int32[2, 1], Int8[1, 1]),  # out of order
        ([1, 3], Int32[1, 1], Int8[1, 1]),  # twice
        ([1, 3], Int32[1, 4], Int8[1, 1]),  # of nobody
        ([1, 3], Int32[0, 1], Int8[1, 1]),
    ]
        @test_throws ArgumentError P.Answers(3, starts, students, signs)
    end
end

@testset "missing returns are left out of the sum, and their times stay" begin
    returns = random_returns(2, 9; missing_share=0.3)
    seen = findall(!isnan, returns)
    @test length(seen) < length(returns)
    model, points = P.StochasticVolatility(returns), random_points(P.StochasticVolatility(returns), 3)
    # with every return there, and the density of those that are not taken off again
    filled = P.StochasticVolatility(ifelse.(isnan.(returns), 0.5, returns))
    for m in 1:3
        y = reshape(points[8:end, m], 2, 9)
        extra = sum(-(log(2π) + y[k] + 0.25 * exp(-y[k])) / 2 for k in findall(isnan, returns))
        @test only(P.log_density(model, points[:, m:m])) ≈ only(P.log_density(filled, points[:, m:m])) - extra rtol = 1e-12
    end
end

@testset "at 0, where |h| has no derivative" begin
    table = random_signs(4, 9)
    for model in (P.ItemResponse(table), P.ItemResponse(P.Answers(table)), P.StochasticVolatility(random_returns(3, 9)))
        points = zeros(P.dim(model.layout), 1)
        values, slopes, _ = in_place(model, points)
        @test values ≈ P.log_density(model, points) rtol = 1e-12
        @test largest_difference(slopes, zygote_gradient(model, points)) < 1e-11
    end
end

@testset "one batch may hold points with panels and points without" begin
    model = P.ItemResponse(random_signs(4, 400))
    points = random_points(model, 5)
    points[12:end, [2, 5]] .*= 100
    values, slopes, buffers = in_place(model, points)
    @test buffers.by_panels[1:5] == [true, false, true, true, false]
    @test values ≈ P.log_density(model, points) rtol = 1e-12
    for m in 1:5
        @test largest_difference(slopes[:, m], zygote_gradient(model, points[:, m:m])) < 1e-11
    end
end

@testset "volatility: $D series, $T times, $M points, missing: $share" for
    (D, T, M, share) in [
        (1, 2, 1, 0.0), (2, 2, 3, 0.0), (1, 70, 2, 0.2), (2, 64, 2, 0.0), (3, 65, 2, 0.3), (6, 262, 4, 0.0), (6, 262, 4, 0.1),
        (9, 129, 2, 0.0),
    ]

    model = P.StochasticVolatility(random_returns(D, T; missing_share=share))
    points = random_points(model, M)
    values, slopes, _ = in_place(model, points)
    @test values ≈ P.log_density(model, points) rtol = 1e-12
    @test largest_difference(slopes, zygote_gradient(model, points)) < 1e-11
end

const HOST_MODELS = [
    P.ItemResponse(random_signs(6, 700)),
    P.ItemResponse(random_signs(6, 700; missing_share=0.1)),
    P.ItemResponse(P.Answers(random_signs(6, 700; missing_share=0.5))),
    P.StochasticVolatility(random_returns(3, 300)),
    P.StochasticVolatility(random_returns(3, 300; missing_share=0.1)),
]

@testset "float32 differs by its rounding: $(nameof(typeof(model)))" for model in HOST_MODELS
    points = Float32.(random_points(model, 3))
    values, slopes, _ = in_place(model, points)
    @test eltype(slopes) == Float32
    # each term is rounded to about 6e-8 of itself; sums of many terms in float32 would lose more than this
    @test values ≈ P.log_density(model, Float64.(points)) rtol = 2e-7
    @test largest_difference(slopes, zygote_gradient(model, Float64.(points))) < 2e-6
end

@testset "float32 sums over many data do not drift" begin
    signs = random_signs(3, 100_000; missing_share=0.1)
    for model in (
        P.StochasticVolatility(random_returns(2, 100_000)), P.ItemResponse(signs), P.ItemResponse(P.Answers(signs))
    )
        points = Float32.(random_points(model, 1; spread=0.1))
        values, slopes, _ = in_place(model, points)
        exact, exact_slopes, _ = in_place(model, Float64.(points))
        @test values ≈ exact rtol = 2e-7
        @test largest_difference(slopes, exact_slopes) < 2e-6
    end
end

@testset "float32 loses no nats at large counts: $count" for count in (3, 1e3, 1e5, 1e7)
    rng = MersenneTwister(25)
    X = randn(rng, 1000, 2)
    eta = log(count) .+ X * [0.3, -0.2] .+ 0.3 .* randn(rng, 1000)
    model = P.RobustPoisson(X, abs.(round.(exp.(eta) .+ sqrt.(exp.(eta)) .* randn(rng, 1000))), zeros(1000))
    points = Float32.([0, 0, -1, log(count), 0.3, -0.2, eta...] .+ 0.02 .* randn(rng, 1006, 3))
    exact = P.log_density(model, Float64.(points))
    both = zeros(3)
    values, slopes, buffers = in_place(model, points)
    P.log_density_and_gradient!(both, similar(slopes), model, points, buffers)
    single = P.beside(model, vec(points))  # the data as another device holds them
    for found in (values, both)
        @test maximum(abs, found .- exact) < 2e-3
    end
    # there, sums of small terms are of the points' precision
    @test maximum(abs, P.log_density(single, points) .- exact) < 2e-2
    wide, wide_slopes, _ = in_place(model, Float64.(points))
    # what a plain sum of 1000 terms of this size leaves, its roundings independent: sqrt(n) n eps / 2 times their size
    @test wide ≈ exact rtol = 1e-12 atol = sqrt(1000) * 1000 * eps() / 2 * count * log(count)
    @test largest_difference(slopes, wide_slopes) < 2e-5
end

@testset "points may be columns of a larger matrix" begin
    for model in HOST_MODELS
        all_points = random_points(model, 6)
        slopes, values = zero(all_points), zeros(6)
        buffers = P.scratch(model, Float64)
        P.log_density!(view(values, 2:4), model, view(all_points, :, 2:4), buffers)
        P.log_density_gradient!(view(slopes, :, 2:4), model, view(all_points, :, 2:4), buffers)
        expected_values, expected_slopes, _ = in_place(model, all_points[:, 2:4])
        @test values == [0; expected_values; 0; 0]
        @test slopes[:, 2:4] == expected_slopes
        @test iszero(slopes[:, [1, 5, 6]])
    end
end

@testset "nothing is allocated: $(nameof(typeof(model))) $T" for model in HOST_MODELS, T in (Float64, Float32)
    points = T.(random_points(model, 11))
    values, slopes, buffers = in_place(model, points)
    allocated(f!, results) = (f!(results, model, points, buffers); @allocated f!(results, model, points, buffers))
    # a few bytes at most for the call from here, whose types are not known before
    @test allocated(P.log_density!, values) < 200
    @test allocated(P.log_density_gradient!, slopes) < 200
end

@testset "an input that is not finite gives results that are not, and no exception: $(nameof(typeof(model)))" for
    model in HOST_MODELS

    for bad in (NaN, Inf, -Inf), k in [1:(model.layout.n_global + 2); P.dim(model.layout)]
        points = random_points(model, 3)
        points[k, 2] = bad
        values, slopes, _ = in_place(model, points)
        @test isfinite.(values) == [true, false, true]
        @test [all(isfinite, column) for column in eachcol(slopes)] == [true, false, true]
    end
end

@testset "panels are cut only where all abilities are finite" begin
    abilities = collect(range(-1, 1; length=500))
    @test P.Panels([0.5, 0.2], abilities).n == 1 + floor(Int, 4 * 0.5 * 2)
    for bad in (NaN, Inf, -Inf), j in (1, 250, 500)
        @test P.Panels([0.5, 0.2], [abilities[1:(j - 1)]; bad; abilities[(j + 1):end]]).n == 0
    end
    @test P.Panels([0.5, NaN], abilities).n == 0
    @test P.Panels([0.5, Inf], abilities).n == 0
end

@testset "a singular L is not finite, without an exception" begin
    model = P.StochasticVolatility(random_returns(3, 10))
    points = zeros(P.dim(model.layout), 2)
    points[10, 1] = 800.0  # tanh rounds to 1, and the row's last entry to 0
    values, slopes, _ = in_place(model, points)
    @test isfinite.(values) == [false, true]
    @test [all(isfinite, column) for column in eachcol(slopes)] == [false, true]
end

@testset "a table is kept as bytes, whatever array it comes in" begin
    signs = random_signs(4, 30; missing_share=0.2)
    points = random_points(P.ItemResponse(signs), 2)
    for given in (Int.(signs), Float32.(signs), transpose(permutedims(signs)), view(signs, :, :))
        model = P.ItemResponse(given)
        @test model.signs == signs
        @test eltype(model.signs) == Int8
        @test in_place(model, points)[1] == in_place(P.ItemResponse(signs), points)[1]
    end
end

@testset "sizes that do not fit are refused" begin
    for model in HOST_MODELS
        d, buffers = P.dim(model.layout), P.scratch(model, Float64)
        @test_throws DimensionMismatch P.log_density!(zeros(2), model, zeros(d + 1, 2), buffers)
        @test_throws DimensionMismatch P.log_density!(zeros(3), model, zeros(d, 2), buffers)
        @test_throws DimensionMismatch P.log_density_gradient!(zeros(d, 3), model, zeros(d, 2), buffers)
    end
end

@testset "the LKJ pullback equals Zygote's through lkj_cholesky, D = $D" for D in (1, 2, 5)
    rng = MersenneTwister(24)
    v, weights = randn(rng, D * (D - 1) ÷ 2), tril(randn(rng, D, D))
    factor, remainder = zeros(D, D), zeros(D, D)
    P.lkj_cholesky!(factor, remainder, v)
    @test factor ≈ P.lkj_cholesky(v, D)[1]
    slopes = P.lkj_cholesky_pullback!(zero(v), v, weights, factor, remainder)
    D == 1 && continue
    @test slopes ≈ only(Zygote.gradient(x -> sum(weights .* P.lkj_cholesky(x, D)[1]), v)) rtol = 1e-12
end

@testset "fast_exp is exp within 2 units in the last place" begin
    for T in (Float64, Float32)
        x = T.(range(-80, 80; length=20_001))
        exact = T.(exp.(big.(x)))
        @test maximum(abs.(P.fast_exp.(x) .- exact) ./ eps.(exact)) <= 2
        @test isequal(P.fast_exp.(T[-Inf, Inf, NaN, -1000, 1000]), T[0, Inf, NaN, 0, Inf])
    end
end

@testset "density and gradient in one pass are those of two: $(nameof(typeof(model))) $(P.dim(model.layout)) $T" for
    model in [
            MODELS...,
            P.ItemResponse(random_signs(9, 257)),
            P.ItemResponse(random_signs(1300, 300)),  # more factors than one logarithm takes
            P.ItemResponse(random_signs(1300, 5; missing_share=0.05)),
            P.ItemResponse(P.Answers(random_signs(1300, 40; missing_share=0.5))),
            P.StochasticVolatility(random_returns(3, 150)),
            P.RobustPoisson(Matrix(random_points(MODELS[1], 700)'), ones(700), zeros(700)),
        ],
        T in (Float64, Float32)

    points = T.(random_points(model, 11))
    values, slopes, buffers = in_place(model, points)
    both, its_slopes = fill(NaN, 11), fill(T(NaN), size(points))
    P.log_density_and_gradient!(both, its_slopes, model, points, buffers)
    @test both ≈ values rtol = 8 * eps(T)
    # not bit for bit: with the density beside it a loop may be vectorized otherwise
    @test its_slopes ≈ slopes rtol = 8 * eps(T)
end
