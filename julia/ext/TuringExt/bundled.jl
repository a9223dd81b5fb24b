# The bundled models as Turing models: the readable definitions. The vectorized log densities of src/models are tested
# to be equal to these. Each declares its variables in the order of the flat vector, but for volatility by columns.

"""Isotropic Gaussian of the synthetic experiment (paper, section 4.1)."""
@model function isotropic_gaussian(n_global, n_local, local_dim, mean, variance)
    if n_global > 0
        z ~ filldist(Normal(mean, sqrt(variance)), n_global)
    end
    if n_local > 0
        y ~ filldist(Normal(mean, sqrt(variance)), local_dim, n_local)
    end
end

"""Poisson regression with a normal error on each log rate (paper, "Robust Poisson Regression")."""
@model function robust_poisson(X, counts, offset, priors)
    s_alpha ~ priors.s_alpha
    s_beta ~ priors.s_beta
    s_eta ~ priors.s_eta
    alpha ~ Normal(0, s_alpha)
    beta ~ MvNormal(zeros(size(X, 2)), s_beta^2 * I)
    eta ~ MvNormal(X * beta .+ alpha .+ offset, s_eta^2 * I)
    counts ~ arraydist(LogPoisson.(eta))
end

"""The same with the error of each log rate as a variable of its own, or that over its standard deviation."""
@model function robust_poisson_noise(X, counts, offset, priors, standardized)
    s_alpha ~ priors.s_alpha
    s_beta ~ priors.s_beta
    s_eta ~ priors.s_eta
    alpha ~ Normal(0, s_alpha)
    beta ~ MvNormal(zeros(size(X, 2)), s_beta^2 * I)
    sd, width = standardized ? (one(s_eta), s_eta) : (s_eta, one(s_eta))
    noise ~ MvNormal(zeros(size(X, 1)), sd^2 * I)
    counts ~ arraydist(LogPoisson.(X * beta .+ alpha .+ offset .+ width .* noise))
end

"""
Two-parameter logistic item response model (paper, "Item Response Theory"), from one row a response: a missing cell of
the table has no row. `sign` is 1 where beta are easinesses, and -1 where they are difficulties.
"""
@model function item_response(student, item, right, n_students, n_items, priors, sign)
    mu_beta ~ TDist(4)
    s_beta ~ priors.s_beta
    s_gamma ~ priors.s_gamma
    gamma ~ filldist(LogNormal(0, s_gamma), n_items)
    beta ~ MvNormal(zeros(n_items), s_beta^2 * I)
    alpha ~ MvNormal(zeros(n_students), I)
    right ~ arraydist(BernoulliLogit.(gamma[item] .* alpha[student] .+ sign .* (beta[item] .+ mu_beta)))
end

"""
Multivariate stochastic volatility (paper, section of the same name) of D series over T times, from the returns that are
there: `places` says where each stands in the D x T table.
"""
@model function stochastic_volatility(returns, places, D, T, tau_priors, shocks, bound, ::Type{R}=Float64) where {R}
    mu ~ filldist(Cauchy(0, 10), D)
    phi ~ filldist(Uniform(-1, 1), D)
    tau ~ arraydist(tau_priors)
    L ~ LKJCholesky(D, 1.0)
    Q = PDMat(Cholesky(LowerTriangular(shocks ? L.L .* tau' : tau .* L.L)))
    y = Matrix{R}(undef, D, T)
    y[:, 1] ~ MvNormal(mu, Q)
    for t in 2:T
        y[:, t] ~ MvNormal(mu .+ phi .* (y[:, t - 1] .- mu), Q)
    end
    seen = isfinite(bound) ? clamp.(y[places], -bound, bound) : y[places]
    returns ~ arraydist(Normal.(0, exp.(seen ./ 2)))
end

# ---- on the data of the vectorized models, with their priors --------------------------------------------------------
# `priors` has those that are not the paper's, by the place of the standard deviation's logarithm in the flat vector.

const Priors = Dict{Int,ContinuousUnivariateDistribution}

PyTuringVI.turing_model(model::PyTuringVI.Model) = PyTuringVI.turing_model(model, Priors())

function PyTuringVI.turing_model(model::PyTuringVI.OtherPrior, priors::Priors)
    # the outer prior is the one that holds
    return PyTuringVI.turing_model(model.inner, merge(Priors(model.places .=> distribution(model.prior)), priors))
end

distribution(prior::PyTuringVI.HalfNormal) = truncated(Normal(0, prior.scale); lower=0)
distribution(prior::PyTuringVI.HalfStudentT) = truncated(prior.scale * TDist(prior.nu); lower=0)

"""The positive half of Student-t with 4 degrees of freedom: the paper's prior of nearly every standard deviation."""
half_t4() = truncated(TDist(4); lower=0)

function PyTuringVI.turing_model(model::PyTuringVI.IsotropicGaussian, ::Priors)
    layout = model.layout
    return isotropic_gaussian(layout.n_global, layout.n_local, layout.local_dim, model.mean, model.variance)
end

PyTuringVI.turing_model(model::PyTuringVI.RobustPoisson, priors::Priors) =
    robust_poisson(poisson_data(model)..., poisson_priors(priors))
PyTuringVI.turing_model(model::PyTuringVI.Noise, priors::Priors) =
    robust_poisson_noise(poisson_data(model.inner)..., poisson_priors(priors), model.standardized)

poisson_data(model::PyTuringVI.RobustPoisson) = (model.X, Int.(model.y), model.offset)
poisson_priors(priors::Priors) =
    (; s_alpha=get(half_t4, priors, 1), s_beta=get(half_t4, priors, 2), s_eta=get(half_t4, priors, 3))

PyTuringVI.turing_model(model::PyTuringVI.ItemResponse, priors::Priors) = answers_model(model, priors, 1)
PyTuringVI.turing_model(model::PyTuringVI.Difficulties, priors::Priors) = answers_model(model.inner, priors, -1)

function answers_model(model::PyTuringVI.ItemResponse, priors::Priors, sign::Int)
    cells = findall(!iszero, model.signs)
    item, student = getindex.(cells, 1), getindex.(cells, 2)
    scales = (; s_beta=get(half_t4, priors, 2), s_gamma=get(half_t4, priors, 3))
    return item_response(student, item, model.signs[cells] .> 0, reverse(size(model.signs))..., scales, sign)
end

function PyTuringVI.turing_model(model::PyTuringVI.StochasticVolatility, priors::Priors)
    places, D = findall(!isnan, vec(model.returns)), size(model.returns, 1)
    usual = truncated(Cauchy(0, 5); lower=0)
    tau_priors = [get(priors, 2D + i, usual) for i in 1:D]
    return stochastic_volatility(
        model.returns[places], places, size(model.returns)..., tau_priors, model.shocks, model.bound
    )
end

PyTuringVI.turing_model(model::PyTuringVI.ByColumns, priors::Priors) = PyTuringVI.turing_model(model.inner, priors)

local_names(model::PyTuringVI.IsotropicGaussian) = model.layout.n_local > 0 ? ["y"] : String[]
local_names(::PyTuringVI.RobustPoisson) = ["eta"]
local_names(::PyTuringVI.Noise) = ["noise"]
local_names(::Union{PyTuringVI.ItemResponse,PyTuringVI.Difficulties}) = ["alpha"]
local_names(::Union{PyTuringVI.StochasticVolatility,PyTuringVI.ByColumns}) = ["y"]
local_names(model::PyTuringVI.OtherPrior) = local_names(model.inner)

"""Where in the flat vector each coordinate of the Turing form stands."""
coordinates(model::PyTuringVI.Model) = 1:PyTuringVI.dim(model.layout)
coordinates(model::PyTuringVI.OtherPrior) = coordinates(model.inner)
coordinates(model::PyTuringVI.ByColumns) = model.order
