# A workload that is compiled once, when the package is: the first fit in a process then starts at once.

@setup_workload begin
    rows, counts, returns = [0.5 -0.5 1.0; 1.0 0.2 -1.0], [3.0, 0.0, 2.0], [0.1 -0.3 0.2 0.5; 0.4 0.2 -0.1 0.3]
    missing_cells, complete = Int8[1 -1 0; -1 1 1], Int8[1 -1 1; -1 1 1]
    starts, students, answers = Int64[0, 2, 5], Int32[0, 1, 0, 1, 2], Int8[1, -1, -1, 1, 1]
    address(array) = Int(pointer(array))
    @compile_workload begin
        GC.@preserve rows counts returns missing_cells complete starts students answers begin
            models = (
                gaussian_model(2, 3, 2, 5.0, 0.1),
                rpoisson_model(address(rows), address(counts), address(counts), 3, 2),
                irt_model(address(missing_cells), 3, 2),
                irt_model(address(complete), 3, 2),
                sparse_irt_model(address(starts), address(students), address(answers), 3, 2),
                volatility_model(address(returns), 4, 2),
            )
        end
        for model in models, family in (MeanField(), Structured(), ConditionalStructured(), Markov(), FullRank())
            # the others have locals without an order
            family isa Markov && !(model isa StochasticVolatility) && continue
            d, p = dim(model.layout), n_params(family, model.layout)
            natural = zeros(p, 2)
            natural[d .+ diagonal(ScalePattern(family, model.layout)), 1] .= 0.1
            GC.@preserve natural begin
                # the keywords of all calls, and their types, are those of Python's, which come in alphabetical order
                session = start_natural_session(
                    model, family; count=0, device="cpu", done=0, dtype="float64", n_iterations=0, noise=nothing,
                    noise_rows=0, seed="1", vectors=address(natural),
                )
                advance_natural!(
                    session; anneal_from=-1, count=0, frames=false, global_rate=0.0, last=1, momentum=0.9, n_samples=2,
                    rate=0.01, seconds=0.1, trust=0.5,
                )
                estimate_session!(session, 4, true, 0.1)
                elbo_of_session(session)
            end
            # the proximal rule for the synthetic experiment, Adam for all
            rules = (adam(nothing; beta1=0.9, beta2=0.999, epsilon=1e-8), sgd(ProximalEntropy()))
            for rule in rules[1:(model isa IsotropicGaussian ? 2 : 1)]
                vectors = zeros(p, 1 + n_slots(rule))
                vectors[d .+ diagonal(ScalePattern(family, model.layout)), 1] .= 0.1
                GC.@preserve vectors begin
                    session = start_session(
                        model, family, rule; device="cpu", done=0, dtype="float64", elbo_samples=4, epsilon=nothing,
                        eta=nothing, every=1, factor=1.0, n_iterations=2, n_samples=2, noise=nothing, seed="1",
                        stepsize=1e-3, target=nothing, vectors=address(vectors),
                    )
                    advance_session!(session, 2, 0.1)
                    estimate_session!(session, true, 0.1)
                    elbo_of_session(session)
                end
            end
        end
    end
end
