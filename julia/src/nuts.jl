# NUTS, once Turing is loaded: see the extension TuringExt.

"""
    start_nuts(model, seed, n_chains, n_draws, n_tune, target_acceptance) -> run

Turing's own NUTS on a model with a Turing form (`turing_form`, `built_model`) and a gradient. The seed is a
whole number in decimal digits.
"""
function start_nuts end

"""
    advance_nuts!(run, seconds) -> (n_tuned, n_drawn, n_divergent, failure)

Go on for some seconds, and at least one step of one chain. The chains go forward together, so that a run may end at any
time with as many draws of each. Done when `n_drawn` is the number of draws asked for, or `failure` says what the model
threw in a step.
"""
function advance_nuts! end

"""
    nuts_draws(run) -> (points, divergent, tree_depth, step_sizes)

The draws that all chains have made: unconstrained points (d x n_drawn x n_chains) in the order of the flat vector,
whether each diverged (0 or 1) and the depth of its tree (n_drawn x n_chains), and each chain's step size.
"""
function nuts_draws end

"""
    diagnostics(draws) -> (r_hat, ess_bulk, ess_tail)

Rank-normalized R-hat and effective sample sizes (Vehtari et al., 2021) of draws x chains x variables.
"""
function diagnostics end
