# Turing's NUTS, one draw after the other, so that the caller can look in between and stop.

mutable struct NutsRun{M<:TuringModel,S}
    const model::M
    const sampler::S
    const n_tune::Int
    const rngs::Vector{Xoshiro}
    const chains::Vector{Any}  # a chain's state changes its type when the adaptation ends
    const points::Array{Float64,3}
    const divergent::Matrix{Bool}
    const tree_depth::Matrix{Int}
    n_steps::Int  # single draws, the warm-up's among them, of all chains
    failure::String  # what the model threw in a step, which ended the run
end

function PyTuringVI.start_nuts(
    model::TuringModel, seed::AbstractString, n_chains::Int, n_draws::Int, n_tune::Int, target_acceptance::Float64
)
    isnothing(model.ldf.adtype) && throw(ModelError("NUTS needs a gradient: make the Turing form with an ad."))
    sampler = NUTS(n_tune, target_acceptance; adtype=model.ldf.adtype)
    rngs = [PyTuringVI.generator(seed, NUTS_STREAM, chain) for chain in 1:n_chains]
    points = Array{Float64}(undef, length(model.order), n_draws, n_chains)
    divergent, tree_depth = zeros(Bool, n_draws, n_chains), zeros(Int, n_draws, n_chains)
    return NutsRun(model, sampler, n_tune, rngs, Any[nothing for _ in rngs], points, divergent, tree_depth, 0, "")
end

const NUTS_STREAM = 2  # beside the noise of a fit's gradients and of its ELBO

function PyTuringVI.advance_nuts!(run::NutsRun, seconds::Float64)
    n_chains = length(run.chains)
    total = (run.n_tune + size(run.points, 2)) * n_chains
    stop = time_ns() + round(UInt64, 1e9 * seconds)
    while run.n_steps < total && isempty(run.failure)
        step, chain = divrem(run.n_steps, n_chains)
        try
            if isnothing(run.chains[chain + 1])
                run.chains[chain + 1] = first_state(run, run.rngs[chain + 1])
            else
                draw!(run, step + 1, chain + 1)
                run.n_steps += 1
            end
        catch error
            error isa InterruptException && rethrow()
            run.failure = "chain $(chain + 1), step $(step + 1): $(summarized(error, catch_backtrace()))"
        end
        time_ns() >= stop && break
    end
    n_rounds = run.n_steps ÷ n_chains
    return (min(n_rounds, run.n_tune), max(n_rounds - run.n_tune, 0), count(run.divergent), run.failure)
end

"""One step of one chain, kept if the warm-up is over."""
function draw!(run::NutsRun, step::Int, chain::Int)
    kept = step - run.n_tune
    transition, state = AbstractMCMC.step(
        run.rngs[chain], run.model.ldf.model, run.sampler, run.chains[chain]; nadapts=run.n_tune, discard_sample=kept < 1
    )
    run.chains[chain] = state
    kept < 1 && return nothing
    run.points[:, kept, chain] .= state.z.θ[run.model.order]
    run.divergent[kept, chain] = transition.stats.numerical_error
    run.tree_depth[kept, chain] = transition.stats.tree_depth
    return nothing
end

"""Where a chain starts: uniformly on (-2, 2) in unconstrained space, as Stan does."""
function first_state(run::NutsRun, rng::Xoshiro)
    initial_params = DynamicPPL.InitFromUniform()
    _, state = AbstractMCMC.step(
        rng, run.model.ldf.model, run.sampler; initial_params, nadapts=run.n_tune, discard_sample=true, verbose=false
    )
    return state
end

function PyTuringVI.nuts_draws(run::NutsRun)
    kept = 1:max(run.n_steps ÷ length(run.chains) - run.n_tune, 0)
    started = filter(!isnothing, run.chains)
    step_sizes = [Float64(chain.kernel.τ.integrator.ϵ) for chain in started]
    return (run.points[:, kept, :], Int.(run.divergent[kept, :]), run.tree_depth[kept, :], step_sizes)
end

function PyTuringVI.diagnostics(draws::AbstractArray{<:Real,3})
    tools, batch = Turing.FlexiChains.MCMCDiagnosticTools, PyTuringVI.wrap(draws)
    return (tools.rhat(batch; kind=:rank), tools.ess(batch; kind=:bulk), tools.ess(batch; kind=:tail))
end
