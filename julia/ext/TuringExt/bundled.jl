# The bundled models as Turing models: the readable definitions. The vectorized log densities of src/models are tested
# to be equal to these. Each declares its variables in the order of the flat vector.

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
@model function robust_poisson(X, counts, offset)
    s_alpha ~ half_t4()
    s_beta ~ half_t4()
    s_eta ~ half_t4()
    alpha ~ Normal(0, s_alpha)
    beta ~ MvNormal(zeros(size(X, 2)), s_beta^2 * I)
    eta ~ MvNormal(X * beta .+ alpha .+ offset, s_eta^2 * I)
    counts ~ arraydist(LogPoisson.(eta))
end

"""
Two-parameter logistic item response model (paper, "Item Response Theory"), from one row a response: a missing cell of
the table has no row.
"""
@model function item_response(student, item, right, n_students, n_items)
    mu_beta ~ TDist(4)
    s_beta ~ half_t4()
    s_gamma ~ half_t4()
    gamma ~ filldist(LogNormal(0, s_gamma), n_items)
    beta ~ MvNormal(zeros(n_items), s_beta^2 * I)
    alpha ~ MvNormal(zeros(n_students), I)
    right ~ arraydist(BernoulliLogit.(gamma[item] .* alpha[student] .+ beta[item] .+ mu_beta))
end

"""
Multivariate stochastic volatility (paper, section of the same name) of D series over T times, from the returns that are
there: `places` says where each stands in the D x T table.
"""
@model function stochastic_volatility(returns, places, D, T, ::Type{R}=Float64) where {R}
    mu ~ filldist(Cauchy(0, 10), D)
    phi ~ filldist(Uniform(-1, 1), D)
    tau ~ filldist(truncated(Cauchy(0, 5); lower=0), D)
    L ~ LKJCholesky(D, 1.0)
    Q = PDMat(Cholesky(LowerTriangular(tau .* L.L)))
    y = Matrix{R}(undef, D, T)
    y[:, 1] ~ MvNormal(mu, Q)
    for t in 2:T
        y[:, t] ~ MvNormal(mu .+ phi .* (y[:, t - 1] .- mu), Q)
    end
    returns ~ arraydist(Normal.(0, exp.(y[places] ./ 2)))
end

"""The positive half of Student-t with 4 degrees of freedom: the prior of every standard deviation."""
half_t4() = truncated(TDist(4); lower=0)

# ---- on the data of the vectorized models ------------------------------------------------------------------------
function PyTuringVI.turing_model(model::PyTuringVI.IsotropicGaussian)
    layout = model.layout
    return isotropic_gaussian(layout.n_global, layout.n_local, layout.local_dim, model.mean, model.variance)
end

PyTuringVI.turing_model(model::PyTuringVI.RobustPoisson) = robust_poisson(model.X, Int.(model.y), model.offset)

function PyTuringVI.turing_model(model::PyTuringVI.ItemResponse)
    cells = findall(!iszero, model.signs)
    item, student = getindex.(cells, 1), getindex.(cells, 2)
    return item_response(student, item, model.signs[cells] .> 0, reverse(size(model.signs))...)
end

function PyTuringVI.turing_model(model::PyTuringVI.StochasticVolatility)
    places = findall(!isnan, vec(model.returns))
    return stochastic_volatility(model.returns[places], places, size(model.returns)...)
end

local_names(model::PyTuringVI.IsotropicGaussian) = model.layout.n_local > 0 ? ["y"] : String[]
local_names(::PyTuringVI.RobustPoisson) = ["eta"]
local_names(::PyTuringVI.ItemResponse) = ["alpha"]
local_names(::PyTuringVI.StochasticVolatility) = ["y"]
