@testset "the objective's gradient equals central differences: $(nameof(typeof(family))), energy only: $energy_only" for
    family in ALL_FAMILIES, energy_only in (false, true)

    model = MODELS[2]
    objective = P.Objective(model, family; energy_only)
    rng = MersenneTwister(9)
    flat = 0.3 .* randn(rng, P.n_params(family, model.layout))
    U = randn(rng, P.dim(model.layout), 3)
    step = 1e-5
    numeric = [
        (objective(flat .+ step .* (eachindex(flat) .== k), U) - objective(flat .- step .* (eachindex(flat) .== k), U)) /
        (2 * step) for k in eachindex(flat)
    ]
    # the entropy's curvature 1/C_ii^3 may be large, hence the wider bound than for the models
    @test P.gradient(objective, flat, U) ≈ numeric rtol = 1e-5
end

@testset "the proximal entry solves its minimization" begin
    for c in (-2.0, -1e-8, 0.0, 0.3, 5.0), gamma in (1e-6, 0.1, 3.0)
        v = P.proximal_entry(c, gamma)
        @test v > 0
        @test -1 / v + (v - c) / gamma ≈ 0 atol = 1e-7 * (1 / v + abs(v - c) / gamma)
    end
end

@testset "proximal SGD reaches the optimum of the Gaussian target" begin
    model = P.IsotropicGaussian(P.Layout(2, 3, 2), 5.0, 0.1)
    family = P.Structured()
    rule = P.proximal_sgd(1e-3)
    objective = P.Objective(model, family; energy_only=rule.energy_only)
    d = P.dim(model.layout)
    flat = zeros(P.n_params(family, model.layout))
    flat[d .+ P.diagonal(objective.pattern)] .= 1.0
    noise = randn(MersenneTwister(10), d, 10, 2000)
    @test P.run!(flat, objective, rule, fill(1e-3, 2000), noise) == 2000
    @test flat[1:d] ≈ fill(5.0, d) atol = 0.05
    C = P.scale(objective.pattern, flat)
    @test C ≈ sqrt(0.1) * I atol = 0.1
end

@testset "a run stops before an update that is not finite" begin
    model = MODELS[2]
    family = P.MeanField()
    rule = P.sgd(1e5)
    objective = P.Objective(model, family)
    flat = [zeros(P.dim(model.layout)); fill(0.1, P.dim(model.layout))]
    made = P.run!(flat, objective, rule, fill(1e5, 100), randn(MersenneTwister(11), P.dim(model.layout), 2, 100))
    @test made < 100
    @test all(isfinite, flat)
end
