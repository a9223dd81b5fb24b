"""The paper's three models written for NumPyro, on pyturingvi's data and unconstrained coordinates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from answer_problems import SIGMA, Y
from numpyro.distributions import constraints
from numpyro.infer.util import potential_energy

HALF_T4 = dist.FoldedDistribution(dist.StudentT(4.0, 0.0, 1.0))


def rpoisson(X: jax.Array, y: jax.Array) -> None:
    """Poisson-log-normal regression."""
    s_alpha = numpyro.sample("s_alpha", HALF_T4)
    s_beta = numpyro.sample("s_beta", HALF_T4)
    s_eta = numpyro.sample("s_eta", HALF_T4)
    alpha = numpyro.sample("alpha", dist.Normal(0.0, s_alpha))
    beta = numpyro.sample("beta", dist.Normal(0.0, s_beta).expand([X.shape[1]]).to_event(1))
    eta = numpyro.sample("eta", dist.Normal(X @ beta + alpha, s_eta).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(eta)).to_event(1), obs=y)


def irt(responses: jax.Array, observed: jax.Array | None = None) -> None:
    """Two-parameter logistic model; `observed` marks the cells of an incomplete table."""
    n_students, n_items = responses.shape
    mu_beta = numpyro.sample("mu_beta", dist.StudentT(4.0, 0.0, 1.0))
    s_beta = numpyro.sample("s_beta", HALF_T4)
    s_gamma = numpyro.sample("s_gamma", HALF_T4)
    gamma = numpyro.sample("gamma", dist.LogNormal(0.0, s_gamma).expand([n_items]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, s_beta).expand([n_items]).to_event(1))
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 1.0).expand([n_students]).to_event(1))
    likelihood = dist.BernoulliLogits(alpha[:, None] * gamma + beta + mu_beta)
    if observed is not None:
        likelihood = likelihood.mask(observed)
    numpyro.sample("responses", likelihood.to_event(2), obs=responses)


def volatility(returns: jax.Array) -> None:
    """Multivariate stochastic volatility; the path has its density as a factor, vectorized over time."""
    n_times, n_series = returns.shape
    mu = numpyro.sample("mu", dist.Cauchy(0.0, 10.0).expand([n_series]).to_event(1))
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0).expand([n_series]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0).expand([n_series]).to_event(1))
    one = n_series == 1  # NumPyro's LKJ needs two
    chol = jnp.ones((1, 1)) if one else numpyro.sample("L", dist.LKJCholesky(n_series, 1.0))
    real_table = constraints.independent(constraints.real, 2)
    y = numpyro.sample("y", dist.ImproperUniform(real_table, (), (n_times, n_series)))
    mean = jnp.concatenate([mu[None, :], mu + phi * (y[:-1] - mu)])
    path = dist.MultivariateNormal(mean, scale_tril=tau[:, None] * chol)
    numpyro.factor("path", path.log_prob(y).sum())
    numpyro.sample("returns", dist.Normal(0.0, jnp.exp(y / 2)).to_event(2), obs=returns)


def eight_schools(y: jax.Array, sigma: jax.Array) -> None:
    """The README's model, effects non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    e = numpyro.sample("e", dist.Normal(0.0, 1.0).expand([y.size]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * e, sigma).to_event(1), obs=y)


def peer_of(model: Any, dtype: str) -> tuple[Any, tuple[jax.Array, ...]]:
    """The NumPyro function and its data for one of pyturingvi's models."""
    if model.name == "rpoisson":
        return rpoisson, (jnp.asarray(model.X, dtype), jnp.asarray(model.y, dtype))
    if model.name == "irt":
        table = model.responses
        observed = () if (table >= 0).all() else (jnp.asarray(table >= 0),)
        return irt, (jnp.asarray(np.maximum(table, 0), dtype), *observed)
    if model.name == "volatility":
        return volatility, (jnp.asarray(model.returns, dtype),)
    if model.name == "log_density":  # of time_to_answer.py, which has one such model
        return eight_schools, (jnp.asarray(Y, dtype), jnp.asarray(SIGMA, dtype))
    raise ValueError(f"no NumPyro form of {model.name}")


def unconstrained(model: Any, point: Any) -> dict[str, jax.Array]:
    """A flat point (d,) as NumPyro's dictionary of unconstrained values."""
    d_z, n, d_y = model.layout.n_global, model.layout.n_local, model.layout.local_dim
    z, local = point[:d_z], point[d_z:]
    if model.name == "rpoisson":
        names = {"s_alpha": z[0], "s_beta": z[1], "s_eta": z[2], "alpha": z[3], "beta": z[4:], "eta": local}
    elif model.name == "irt":
        k = (d_z - 3) // 2
        names = {"mu_beta": z[0], "s_beta": z[1], "s_gamma": z[2], "gamma": z[3 : 3 + k], "beta": z[3 + k :]}
        names["alpha"] = local
    elif model.name == "log_density":
        names = {"mu": z[0], "tau": z[1], "e": local}
    else:
        y = local.reshape(n, d_y)
        names = {
            "mu": z[:d_y],
            "phi": z[d_y : 2 * d_y],
            "tau": z[2 * d_y : 3 * d_y],
            **({"L": z[3 * d_y :]} if d_y > 1 else {}),
            "y": y,
        }
    return {name: jnp.asarray(value) for name, value in names.items()}


def flat_log_density(model: Any, dtype: str = "float64") -> Any:
    """NumPyro's log density of a flat unconstrained point, log-Jacobians included."""
    function, data = peer_of(model, dtype)
    return lambda point: -potential_energy(function, data, {}, unconstrained(model, point))


def relative_differences(model: Any, dtype: str = "float64") -> tuple[float, float]:
    """Largest relative differences of NumPyro's log density and gradient from ours, at two random points.

    Both are in unconstrained space, log-Jacobians included.
    """
    density_and_gradient = jax.jit(jax.value_and_grad(flat_log_density(model, dtype)))
    worst = np.zeros(2)
    for spread in (0.1, 0.5):
        point = (spread * np.random.default_rng(0).standard_normal(model.dim)).astype(dtype)
        here, slope = model.log_density_and_gradient(point)
        theirs, their_slope = density_and_gradient(jnp.asarray(point))
        off = np.linalg.norm(np.asarray(their_slope) - slope[0]) / np.linalg.norm(slope[0])
        worst = np.maximum(worst, [abs(float(theirs) - here[0]) / abs(here[0]), off])
    return float(worst[0]), float(worst[1])
