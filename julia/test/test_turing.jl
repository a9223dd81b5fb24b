# The Turing forms of the bundled models.

using Turing: Turing, DynamicPPL

const TuringExt = Base.get_extension(P, :TuringExt)

random_signs(rng, K, J) = rand(rng, [-1.0, 0.0, 1.0, 1.0], K, J)
const TURING_CASES = [
    "gaussian" => P.IsotropicGaussian(P.Layout(2, 3, 2), 5.0, 0.1),
    "gaussian without locals" => P.IsotropicGaussian(P.Layout(3, 0, 0), -1.0, 2.0),
    "gaussian without globals" => P.IsotropicGaussian(P.Layout(0, 4, 1), 0.0, 1.0),
    "rpoisson" => P.RobustPoisson([0.5 1.0; -0.5 0.2; 1.0 -1.0], [3.0, 0.0, 2.0], [0.0, 0.1, -0.2]),
    "rpoisson, 40 rows" => P.RobustPoisson(randn(MersenneTwister(1), 40, 3), Float64.(rand(MersenneTwister(2), 0:30, 40)), zeros(40)),
    "irt" => P.ItemResponse([1.0 -1.0 0.0; -1.0 1.0 1.0]),
    "irt, 6 x 15" => P.ItemResponse(random_signs(MersenneTwister(3), 6, 15)),
    "volatility" => P.StochasticVolatility([0.1 -0.3 0.2 0.5; 0.4 0.2 -0.1 0.3; -0.2 0.1 0.3 -0.4]),
    "volatility, one series" => P.StochasticVolatility([0.1 -0.3 0.2 0.5 0.1]),
    "volatility, some missing" => P.StochasticVolatility([0.1 -0.3 NaN 0.5; NaN 0.2 -0.1 0.3]),
    "volatility, 6 x 10" => P.StochasticVolatility(0.5 .* randn(MersenneTwister(4), 6, 10)),
    "irt, answers" => P.ItemResponse(P.Answers(random_signs(MersenneTwister(3), 6, 15))),
    CHANGED...,
]

@testset "the Turing form equals the vectorized log density: $name" for (name, model) in TURING_CASES
    for (seed, scale) in ((1, 0.1), (2, 0.5), (3, 1.5))
        points = scale .* randn(MersenneTwister(seed), P.dim(model.layout), 4)
        @test P.turing_log_density(model, points) ≈ P.log_density(model, points) rtol = 1e-8
        for m in 1:4  # one by one: the norm of a vector hides its small entries
            @test only(P.turing_log_density(model, points[:, m:m])) ≈ only(P.log_density(model, points[:, m:m])) rtol = 1e-8
        end
    end
end

@testset "and so does its gradient: $name" for (name, model) in [TURING_CASES[[1, 4, 6, 8, 10]]; CHANGED[[3, 4, 7]]]
    form = P.turing_form(model; ad="reversediff")
    points = 0.4 .* randn(MersenneTwister(5), P.dim(model.layout), 3)
    slopes, expected = similar(points), similar(points)
    P.log_density_gradient!(slopes, form, points, nothing)
    P.log_density_gradient!(expected, model, points, P.scratch(model, Float64))
    @test slopes ≈ expected rtol = 1e-8
    @test only(Zygote.gradient(x -> sum(P.log_density(form, x)), points)) ≈ slopes
end

@testset "DynamicPPL's linked space is ours" begin
    volatility = last(TURING_CASES[8])
    point = 0.7 .* randn(MersenneTwister(6), P.dim(volatility.layout))
    found = Dict(P.constrain(P.turing_form(volatility), reshape(point, :, 1)))
    @test found["mu"][:, 1] ≈ point[1:3]
    @test found["phi"][:, 1] ≈ tanh.(point[4:6] ./ 2)
    @test found["tau"][:, 1] ≈ exp.(point[7:9])
    @test found["L"][:, :, 1] ≈ first(P.lkj_cholesky(point[10:12], 3))
    @test found["y"][:, :, 1] ≈ reshape(point[13:end], 3, 4)
    # at the same constrained point, with the log-Jacobians written out
    log_jacobian = sum(point[7:9]) + sum(log.((1 .- tanh.(point[4:6] ./ 2) .^ 2) ./ 2)) + last(P.lkj_cholesky(point[10:12], 3))
    values = (;
        mu=found["mu"][:, 1], phi=found["phi"][:, 1], tau=found["tau"][:, 1], y=found["y"][:, :, 1],
        L=Turing.LinearAlgebra.Cholesky(Turing.LinearAlgebra.LowerTriangular(found["L"][:, :, 1])),
    )
    joint = DynamicPPL.logjoint(P.turing_model(volatility), values)
    @test joint + log_jacobian ≈ only(P.log_density(volatility, reshape(point, :, 1))) rtol = 1e-10
end
