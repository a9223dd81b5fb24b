@testset "the objective's gradient equals central differences: $(nameof(typeof(family))), energy only: $energy_only" for
    family in [ALL_FAMILIES; P.Markov()], energy_only in (false, true)

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

"""Make one update of `flat` for each slice of `noise` (d x M x n); the number of updates made."""
function run!(flat, objective, rule, stepsize, noise)
    slots = [zero(flat) for _ in 1:P.n_slots(rule)]
    run = P.Run(objective, rule, P.GivenNoise(noise, flat), P.StepDecay(stepsize), flat, slots, size(noise, 2))
    P.advance!(run, size(noise, 3))
    return run.done
end

@testset "proximal SGD reaches the optimum of the Gaussian target" begin
    model = P.IsotropicGaussian(P.Layout(2, 3, 2), 5.0, 0.1)
    family = P.Structured()
    rule = P.sgd(P.ProximalEntropy())
    objective = P.Objective(model, family; energy_only=P.energy_only(rule))
    d = P.dim(model.layout)
    flat = zeros(P.n_params(family, model.layout))
    flat[d .+ P.diagonal(objective.pattern)] .= 1.0
    noise = randn(MersenneTwister(10), d, 10, 2000)
    @test run!(flat, objective, rule, 1e-3, noise) == 2000
    @test flat[1:d] ≈ fill(5.0, d) atol = 0.05
    @test dense(objective.pattern, flat[(d + 1):end]) ≈ sqrt(0.1) * I atol = 0.1
end

@testset "a run stops before an update that is not finite" begin
    model = MODELS[2]
    family = P.MeanField()
    rule = P.sgd()
    objective = P.Objective(model, family)
    flat = [zeros(P.dim(model.layout)); fill(0.1, P.dim(model.layout))]
    made = run!(flat, objective, rule, 1e5, randn(MersenneTwister(11), P.dim(model.layout), 2, 100))
    @test made < 100
    @test all(isfinite, flat)
end

@testset "the gradient in place is Zygote's: $(nameof(typeof(model))) $(nameof(typeof(family))) $energy_only" for
    model in MODELS, family in [ALL_FAMILIES; P.Markov()], energy_only in (false, true)

    objective = P.Objective(model, family; energy_only)
    rng = MersenneTwister(13)
    flat = 0.3 .* randn(rng, P.n_params(family, model.layout))
    U = randn(rng, P.dim(model.layout), 5)
    out = similar(flat)
    @test P.gradient!(out, objective, flat, U, P.Workspace(objective, 5, flat))
    @test out ≈ P.gradient(objective, flat, U) rtol = 1e-10
end

@testset "one pass of Adam is Optimisers.jl's Adam: $T" for T in (Float64, Float32)
    rng = MersenneTwister(14)
    rule = P.adam(; beta1=0.8, beta2=0.95, epsilon=1e-6)
    fast, slow = ones(T, 50), ones(T, 50)
    slots = [zeros(T, 50), zeros(T, 50)]
    state = Optimisers.setup(Optimisers.Adam(0.03, (0.8, 0.95), 1e-6), slow)
    for t in 1:20
        slope = randn(rng, T, 50)
        P.move!(fast, slope, Optimisers.adjust(rule.optimiser, 0.03), slots, t)
        Optimisers.update!(state, slow, slope)
    end
    @test fast ≈ slow rtol = 100 * eps(T)
    # the general method, for arrays of other kinds, has the library's state in the same slots
    other, other_slots = ones(T, 50), [zeros(T, 50), zeros(T, 50)]
    rng = MersenneTwister(14)
    for t in 1:20
        slope = randn(rng, T, 50)
        arguments = (other, slope, Optimisers.adjust(rule.optimiser, 0.03), other_slots, t)
        invoke(P.move!, Tuple{AbstractVector,AbstractVector,Optimisers.AbstractRule,Any,Int}, arguments...)
    end
    @test other ≈ slow rtol = 100 * eps(T)
    @test other_slots[1] ≈ slots[1] rtol = 100 * eps(T)
end

"""A run on a small Poisson problem, from its start."""
function small_run(; T=Float64, rule=P.adam(), done=0, flat=nothing, slots=nothing, averaging=nothing)
    model, family = MODELS[2], P.Structured()
    objective = P.Objective(model, family; energy_only=P.energy_only(rule))
    d = P.dim(model.layout)
    if isnothing(flat)
        flat = zeros(T, P.n_params(family, model.layout))
        flat[d .+ P.diagonal(objective.pattern)] .= 0.1
        slots = [zero(flat) for _ in 1:P.n_slots(rule)]
    end
    isnothing(averaging) || (averaging = P.PolynomialAveraging(averaging, copy(flat)))
    return P.Run(objective, rule, P.NoiseStream(family.base, "5", d, 4, flat), P.StepDecay(1e-2, 0.5, 50), flat, slots, 4; done, averaging)
end

@testset "a run in pieces, and one taken up again, is the run in one go" begin
    whole = small_run()
    @test P.advance!(whole, 700)
    @test whole.done == 700
    pieces = small_run()
    while pieces.done < 300
        P.advance!(pieces, 300, 0.0)  # one update a call
    end
    taken_up = small_run(; done=300, flat=copy(pieces.flat), slots=copy.(pieces.slots))
    P.advance!(taken_up, 700)
    @test taken_up.flat == whole.flat
end

@testset "polynomial averaging is the weighted mean of all iterates" begin
    run = small_run(; averaging=2.0)
    total, weights = zero(run.flat), 0.0
    for t in 1:30
        P.advance!(run, t)
        weight = t * (t + 1) / 2  # grows like t^2; the recursion weights exactly like this for eta = 2
        total .+= weight .* run.flat
        weights += weight
    end
    @test P.best(run) ≈ total ./ weights rtol = 1e-12
end

@testset "an ELBO estimate is the mean over its draws, piece by piece" begin
    run = small_run()
    P.advance!(run, 50)
    objective = run.objective
    estimate = P.ElboEstimate(objective, 37, run.flat)
    while estimate.done < 37
        P.add_piece!(estimate, objective, run.flat, "5", 50)
    end
    value, error = P.result(estimate, objective, run.flat)
    U = P.fill_noise!(P.generator("5", P.ELBO_STREAM, 50, 0), P.Gaussian(), zeros(P.dim(objective.model.layout), 37))
    values = P.log_density(objective.model, P.transform(objective.family, objective.model.layout, objective.pattern, run.flat, U))
    @test value ≈ sum(values) / 37 + P.entropy(objective.family, objective.pattern, run.flat) rtol = 1e-12
    @test error ≈ sqrt(sum(abs2, values .- sum(values) / 37) / 36 / 37) rtol = 1e-10
end

@testset "an iteration allocates nothing that grows with the model" begin
    for rule in (P.adam(), P.sgd(P.ProximalEntropy()))
        run = small_run(; rule)
        P.advance!(run, 2)
        @test (@allocated P.advance!(run, 3)) < 1000
    end
end

@testset "a run stops after the update that brings it to its target" begin
    model = P.IsotropicGaussian(P.Layout(2, 3, 2), 5.0, 0.1)
    family = P.Structured()
    rule = P.sgd(P.ProximalEntropy())
    objective = P.Objective(model, family; energy_only=P.energy_only(rule))
    d = P.dim(model.layout)
    optimum = zeros(P.n_params(family, model.layout))
    optimum[1:d] .= 5.0
    optimum[d .+ P.diagonal(objective.pattern)] .= sqrt(0.1)
    noise = randn(MersenneTwister(21), d, 10, 2000)
    function made(last; epsilon=NaN, target=similar(optimum, 0))
        flat = zeros(length(optimum))
        flat[d .+ P.diagonal(objective.pattern)] .= 1.0
        draws = P.GivenNoise(noise, flat)
        run = P.Run(objective, rule, draws, P.StepDecay(1e-3), flat, typeof(flat)[], 10; target, epsilon)
        @test P.advance!(run, last)
        return run, sum(abs2, flat .- optimum)
    end
    found, distance = made(2000; target=optimum, epsilon=1.0)
    @test found.arrived && 10 < found.done < 2000
    @test distance <= 1.0 < last(made(found.done - 1))
    @test last(made(found.done)) == distance
    made_then = found.done
    @test P.advance!(found, 2000) && found.done == made_then  # no update after it
    missed, _ = made(2000; target=optimum, epsilon=1e-9)
    @test !missed.arrived && missed.done == 2000
end

@testset "is_within in pieces is the plain sum" begin
    rng = MersenneTwister(22)
    for length in (1, 1023, 1024, 1025, 5000)
        a, b = randn(rng, length), randn(rng, length)
        distance = sum(abs2, a .- b)
        @test P.is_within(a, b, 1.000001 * distance) && !P.is_within(a, b, 0.999999 * distance)
        @test P.is_within(view(a, :), view(b, :), 1.000001 * distance)
    end
    @test !P.is_within([NaN], [0.0], Inf)
end
