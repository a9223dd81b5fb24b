# Gradients by Zygote against central differences; values are compared with the Python models' in tests/.

const MODELS = [
    P.IsotropicGaussian(P.Layout(2, 3, 2), 5.0, 0.1),
    P.RobustPoisson([0.5 1.0; -0.5 0.2; 1.0 -1.0], [3.0, 0.0, 2.0], [0.0, 0.1, -0.2]),
    P.ItemResponse([1.0 -1.0 0.0; -1.0 1.0 1.0]),
    P.StochasticVolatility([0.1 -0.3 0.2 0.5; 0.4 0.2 -0.1 0.3; -0.2 0.1 0.3 -0.4]),
    P.ItemResponse(P.Answers([1.0 -1.0 0.0; -1.0 1.0 1.0])),
]

@testset "Zygote equals central differences: $(nameof(typeof(model)))" for model in MODELS
    rng = MersenneTwister(6)
    points = 0.3 .* randn(rng, P.dim(model.layout), 2)
    slope = only(Zygote.gradient(p -> sum(P.log_density(model, p)), points))
    step = 1e-5
    numeric = map(CartesianIndices(points)) do place
        shift = zeros(size(points))
        shift[place] = step
        (sum(P.log_density(model, points .+ shift)) - sum(P.log_density(model, points .- shift))) / (2 * step)
    end
    @test slope ≈ numeric atol = 1e-6 * maximum(abs, numeric)
end

@testset "a batch is its points one by one" begin
    for model in MODELS
        points = 0.3 .* randn(MersenneTwister(7), P.dim(model.layout), 3)
        @test P.log_density(model, points) ≈ [only(P.log_density(model, points[:, m:m])) for m in 1:3]
    end
end

@testset "LKJ Cholesky: rows have norm 1, and the log-Jacobian is a numerical one's" begin
    D = 4
    v = 0.5 .* randn(MersenneTwister(8), D * (D - 1) ÷ 2)
    L, log_jacobian = P.lkj_cholesky(v, D)
    @test sum(abs2, L; dims=2) ≈ ones(D, 1)
    @test L == tril(L)
    below = [(i, j) for (i, j) in P.partial_correlation_places(D)]
    entries(x) = [P.lkj_cholesky(x, D)[1][i, j] for (i, j) in below]
    step = 1e-6
    jacobian = reduce(hcat, [(entries(v .+ step .* (1:6 .== k)) .- entries(v .- step .* (1:6 .== k))) ./ (2 * step) for k in 1:6])
    @test log(abs(det(jacobian))) ≈ log_jacobian atol = 1e-7
end
