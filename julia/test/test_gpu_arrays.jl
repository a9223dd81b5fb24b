# JLArrays forbid scalar indexing and mixing with the CPU's arrays, as a GPU's do.

using JLArrays: JLArrays, JLArray

JLArrays.allowscalar(false)

"""Parameters, ELBO and its error after 20 updates with a family, where `place` puts the parameters."""
function run_where(place, model, family, rule, stepsize; given=nothing, eta=nothing)
    objective = P.Objective(model, family; energy_only=P.energy_only(rule))
    d, M = P.dim(model.layout), 3
    start = 0.1 .* randn(MersenneTwister(21), P.n_params(family, model.layout))
    start[d .+ P.diagonal(objective.pattern)] .= 0.3
    flat = place(start)
    noise = isnothing(given) ? P.NoiseStream(family.base, "7", d, M, flat) : P.GivenNoise(given, flat)
    averaging = isnothing(eta) ? nothing : P.PolynomialAveraging(eta, copy(flat))
    slots = typeof(flat)[zero(flat) for _ in 1:P.n_slots(rule)]
    run = P.Run(objective, rule, noise, P.StepDecay(stepsize), flat, slots, M; averaging)
    finite = P.advance!(run, 20)
    estimate = P.ElboEstimate(run.objective, 30, flat)
    while estimate.done < 30
        P.add_piece!(estimate, run.objective, P.best(run), "7", 20)
    end
    return finite, start, Array(P.best(run)), P.result(estimate, run.objective, P.best(run))
end

const ON_GPU_ARRAYS = let families = [ALL_FAMILIES; P.Structured(P.Laplace())]
    rules = [("Adam", P.adam(), 1e-2), ("proximal SGD", P.sgd(P.ProximalEntropy()), 1e-3)]
    whole = vec([(model, family, rule) for rule in rules, family in families, model in MODELS[1:3]])
    # each family with each rule, the models in turn
    WHOLE_PRODUCTS ? whole : [(MODELS[mod1(k + r, 3)], family, rule) for (k, family) in enumerate(families) for (r, rule) in enumerate(rules)]
end

@testset "a run on GPU arrays is the run on the CPU: $(nameof(typeof(model))) $(nameof(typeof(family))) $name" for
    (model, family, (name, rule, stepsize)) in ON_GPU_ARRAYS

    finite, start, expected, elbo = run_where(copy, model, family, rule, stepsize)
    finite_there, _, found, elbo_there = run_where(JLArray, model, family, rule, stepsize)
    @test finite && finite_there
    @test maximum(abs, expected .- start) > 1e-3
    @test found ≈ expected rtol = 0 atol = 1e-10
    @test collect(elbo_there) ≈ collect(elbo) rtol = 1e-10
end

@testset "given noise and averaging on GPU arrays, $T" for
    (T, tolerance) in [(Float32, 1e-4), (Float64, 1e-10)][1:(1 + WHOLE_PRODUCTS)]

    model, family = MODELS[2], P.Structured()
    given = randn(MersenneTwister(22), P.dim(model.layout), 3, 20)
    here, there = (place ∘ Vector{T} for place in (identity, JLArray))
    _, _, expected, elbo = run_where(here, model, family, P.adam(), 1e-2; given, eta=3.0)
    _, _, found, elbo_there = run_where(there, model, family, P.adam(), 1e-2; given, eta=3.0)
    @test eltype(found) == T
    @test found ≈ expected rtol = 0 atol = tolerance
    @test collect(elbo_there) ≈ collect(elbo) rtol = tolerance
end

@testset "the model and the family that cannot run on GPU arrays say so" begin
    @test_throws "runs on the CPU only" run_where(JLArray, MODELS[4], P.MeanField(), P.adam(), 1e-2)
    @test_throws "Markov family runs on the CPU only" run_where(JLArray, MODELS[2], P.Markov(), P.adam(), 1e-2)
end

P.on_device(v::Vector, ::Val{:jl}) = JLArray(v)

@testset "a session on a device hands its vectors back" begin
    model, rule = MODELS[3], P.adam()
    start = fill(0.2, P.n_params(P.Structured(), model.layout))
    results = map(("cpu", "jl")) do device
        vectors = hcat(start, zero(start), zero(start), start)
        GC.@preserve vectors begin  # a session sees them by their address alone
            session = P.start_session(
                model, P.Structured(), rule; stepsize=1e-2, vectors=Int(pointer(vectors)), n_iterations=20, n_samples=3,
                elbo_samples=16, seed="8", eta=3.0, device,
            )
            @test P.advance_session!(session, 20, Inf) == (; done=20, finite=true, arrived=false)
            @test P.estimate_session!(session, true, 60.0) == 16
            (eachcol(vectors), P.elbo_of_session(session), P.slopes_of_session(session))
        end
    end
    (vectors, elbo, slopes), (vectors_there, elbo_there, slopes_there) = results
    @test all(v -> v != start, vectors_there)
    @test all(map((a, b) -> isapprox(a, b; rtol=0, atol=1e-10), vectors, vectors_there))
    @test collect(elbo) ≈ collect(elbo_there) rtol = 1e-10
    @test slopes_there isa Matrix
    @test slopes_there ≈ slopes rtol = 1e-10
    @test occursin("no package", P.device_problem("jl")) && isnothing(P.device_problem("cpu"))

    # the start is its own target: one small step does not leave it
    vectors, target = hcat(start, zero(start), zero(start)), copy(start)
    GC.@preserve vectors target begin
        session = P.start_session(
            model, P.Structured(), rule; stepsize=1e-6, vectors=Int(pointer(vectors)), n_iterations=20, n_samples=3,
            elbo_samples=16, seed="8", device="jl", target=Int(pointer(target)), epsilon=1.0,
        )
        @test P.advance_session!(session, 20, Inf) == (; done=1, finite=true, arrived=true)
    end
end
