# Models with other priors, in other parametrizations or with options: their loops against Zygote's gradient of
# `log_density`; their Turing forms are in test_turing.jl.

const T4 = P.HalfStudentT(4.0, 1.0)

"""Largest differences of values and slopes, in place, from those of `log_density` and Zygote, and of both at once."""
function disagreement(model; spread=0.3)
    points = random_points(model, 3; spread)
    values, slopes, buffers = in_place(model, points)
    both = similar(values), similar(slopes)
    P.log_density_and_gradient!(both..., model, points, buffers)
    expected = zygote_gradient(model, points)
    return max(
        largest_difference(values, P.log_density(model, points)), largest_difference(slopes, expected),
        largest_difference(both[1], values), largest_difference(both[2], slopes),
    )
end

@testset "a prior's slope is that of its density, and t4 is the usual one" begin
    v = -3.0:0.25:2.0
    for prior in (T4, P.HalfStudentT(3.0, 2.0), P.HalfNormal(0.7), P.half_cauchy(5.0))
        numeric = [(P.log_density_of(prior, x + 1e-5) - P.log_density_of(prior, x - 1e-5)) / 2e-5 for x in v]
        @test P.slope_of.((prior,), v) ≈ numeric atol = 1e-8
    end
    @test P.log_density_of.((T4,), v) ≈ P.half_student_t4_on_log_scale.(v)
end

const CHANGED = let
    rng = MersenneTwister(31)
    poisson = P.RobustPoisson(randn(rng, 40, 3), Float64.(rand(rng, 0:9, 40)), randn(rng, 40))
    irt = P.ItemResponse(random_signs(6, 20; missing_share=0.2))
    volatility(shocks, bound) = P.StochasticVolatility(random_returns(4, 90; missing_share=0.1); shocks, bound)
    normal, t3 = P.HalfNormal(0.7), P.HalfStudentT(3.0, 2.0)
    [
        "rpoisson, priors" => P.other_prior(P.other_prior(poisson, 2, 2, normal, T4), 3, 3, t3, T4),
        "rpoisson, residual" => P.rpoisson_noise(poisson, false),
        "rpoisson, non-centred, priors" =>
            P.other_prior(P.other_prior(P.rpoisson_noise(poisson, true), 1, 1, t3, T4), 3, 3, normal, T4),
        "irt, difficulties, priors" => P.other_prior(P.irt_difficulties(irt), 2, 3, normal, T4),
        "volatility, shocks" => volatility(true, Inf),
        "volatility, bound" => volatility(false, 0.4),
        "volatility, shocks by columns, prior" =>
            P.other_prior(P.volatility_by_columns(volatility(true, 0.4)), 9, 12, normal, P.half_cauchy(5.0)),
    ]
end

@testset "in place and generic agree: $name" for (name, model) in CHANGED
    @test disagreement(model) < 1e-11
end

@testset "a list of answers has the same difficulties" begin
    irt, answers = (P.ItemResponse(f(random_signs(6, 20; missing_share=0.2))) for f in (identity, P.Answers))
    points = random_points(irt, 3)
    @test first(in_place(P.irt_difficulties(answers), points)) ≈ first(in_place(P.irt_difficulties(irt), points))
end
