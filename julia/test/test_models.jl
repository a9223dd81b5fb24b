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

const SPLIT = [
    MODELS[[1, 2, 3, 5]]
    P.rpoisson_noise(MODELS[2], true)
    P.rpoisson_noise(MODELS[2], false)
    P.irt_difficulties(MODELS[3])
    P.other_prior(MODELS[2], 1, 3, P.HalfNormal(2.0), P.HalfStudentT(4.0, 1.0))
]

@testset "log terms add up, and each has a local of its own: $(nameof(typeof(model)))" for model in SPLIT
    rng = MersenneTwister(9)
    (; n_local, local_dim) = model.layout
    points = 0.3 .* randn(rng, P.dim(model.layout), 3)
    first_term, terms = P.log_terms(model, points)
    @test size(terms) == (n_local, 3)
    @test first_term .+ vec(sum(terms; dims=1)) ≈ P.log_density(model, points)
    for n in 1:n_local
        moved = copy(points)
        moved[model.layout.n_global .+ (n - 1) * local_dim .+ (1:local_dim), :] .+= 0.1
        other_first, others = P.log_terms(model, moved)
        @test other_first == first_term
        @test findall(vec(any(others .!= terms; dims=2))) == [n]
    end
    weights = rand(rng, n_local, 3)
    again_first, again, slopes = P.log_terms_and_gradient(model, points, weights)
    @test (again_first, again) == (first_term, terms)
    weighted(x) = ((g, l) = P.log_terms(model, x); sum(g) + sum(weights .* l))
    for place in CartesianIndices(points)
        shift = zeros(size(points))
        shift[place] = 1e-5
        @test slopes[place] ≈ (weighted(points .+ shift) - weighted(points .- shift)) / 2e-5 atol = 1e-6 * maximum(abs, slopes)
    end
    @test P.log_terms_and_gradient(model, points, ones(n_local, 3))[3] ≈
        only(Zygote.gradient(x -> sum(P.log_density(model, x)), points))
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
