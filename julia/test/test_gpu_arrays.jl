# JLArrays forbid scalar indexing and mixing with the CPU's arrays, as a GPU's do: what runs on them uses whole arrays only.

using JLArrays: JLArrays, JLArray

JLArrays.allowscalar(false)

"""Parameters, ELBO and its error after 20 updates with a family, where `place` puts the parameters."""
function run_where(place, model, family, rule, stepsize; given=nothing, eta=nothing)
    objective = P.Objective(model, family; energy_only=rule.energy_only)
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

@testset "a run on GPU arrays is the run on the CPU: $(nameof(typeof(model))) $(nameof(typeof(family))) $name" for
    model in MODELS[1:3],
    family in [ALL_FAMILIES; P.Structured(P.Laplace())],
    (name, rule, stepsize) in [("Adam", P.adam(), 1e-2), ("proximal SGD", P.proximal_sgd(), 1e-3)]

    finite, start, expected, elbo = run_where(copy, model, family, rule, stepsize)
    finite_there, _, found, elbo_there = run_where(JLArray, model, family, rule, stepsize)
    @test finite && finite_there
    @test maximum(abs, expected .- start) > 1e-3
    @test found ≈ expected rtol = 0 atol = 1e-10
    @test collect(elbo_there) ≈ collect(elbo) rtol = 1e-10
end
