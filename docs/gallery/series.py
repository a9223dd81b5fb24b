"""Gallery: one time after another, and places side by side."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from entries import Entry, standard, table
from numpyro import factor, plate, sample

import pyturingvi as tv


# ---- stochastic volatility of the S&P 500 ---------------------------------------------------------------------------
def volatility(returns: Any) -> None:
    step, freedom = sample("step", dist.Exponential(10.0)), sample("freedom", dist.Exponential(0.1))
    log_sd = sample("log_sd", dist.GaussianRandomWalk(step, num_steps=len(returns)))
    sample("returns", dist.StudentT(freedom, 0, jnp.exp(log_sd)).to_event(1), obs=returns)


def volatility_model() -> Any:
    return tv.models.NumPyro(volatility, (table("MASS", "SP500").iloc[:400, -1].to_numpy(dtype=float),))


# ---- the Nile's level, a random walk --------------------------------------------------------------------------------
def nile(flow: Any) -> None:
    sd_level, sd_flow = sample("sd_level", dist.HalfNormal(1)), sample("sd_flow", dist.HalfNormal(1))
    with plate("year", len(flow)):
        level = sample("level", dist.ImproperUniform(dist.constraints.real, (), ()))
    factor("walk", dist.Normal(0, 2).log_prob(level[0]) + dist.Normal(level[:-1], sd_level).log_prob(level[1:]).sum())
    sample("flow", dist.Normal(level, sd_flow).to_event(1), obs=flow)


def nile_model() -> Any:
    return tv.models.NumPyro(nile, (standard(table("datasets", "Nile")["value"]),))


# ---- two stock indices: a regression whose line wanders -------------------------------------------------------------
def rolling(x: Any, y: Any) -> None:
    sd = sample("sd", dist.HalfNormal(0.3).expand([2]).to_event(1))
    noise = sample("noise", dist.HalfNormal(1))
    a = sample("a", dist.GaussianRandomWalk(sd[0], num_steps=len(x)))
    b = sample("b", dist.GaussianRandomWalk(sd[1], num_steps=len(x)))
    sample("y", dist.Normal(a + b * x, noise).to_event(1), obs=y)


def rolling_model() -> Any:
    frame = table("datasets", "EuStockMarkets").iloc[:200]
    return tv.models.NumPyro(rolling, (standard(frame["DAX"]), standard(frame["CAC"])))


# ---- an autoregression of three years -------------------------------------------------------------------------------
def autoregression(y: Any) -> None:
    a, b = sample("a", dist.Normal(0, 10)), sample("b", dist.Normal(0, 10).expand([3]).to_event(1))
    noise = sample("noise", dist.HalfCauchy(2.5))
    mean = a + b[0] * y[2:-1] + b[1] * y[1:-2] + b[2] * y[:-3]
    sample("y", dist.Normal(mean, noise).to_event(1), obs=y[3:])


def autoregression_model() -> Any:
    return tv.models.NumPyro(autoregression, (standard(np.log(table("datasets", "lynx")["value"])),))


# ---- GARCH(1, 1) of the pound ---------------------------------------------------------------------------------------
def garch_model() -> Any:
    y = table("Ecdat", "Garch")["bp"].to_numpy(dtype=float)
    y = 100 * np.diff(np.log(y[:501]))

    def log_density(p: Any) -> Any:
        base, shares = jnp.exp(p["log base"]), jax.nn.softmax(jnp.append(p["shares"], 0.0))  # their sum is below 1

        def step(variance: Any, r: Any) -> Any:
            new = base + shares[0] * r**2 + shares[1] * variance
            return new, new

        _, variances = jax.lax.scan(step, jnp.var(y), y[:-1])
        prior = -0.5 * (p["mean"] ** 2 + p["log base"] ** 2 / 4) + jnp.log(shares).sum()  # uniform shares
        return prior + jax.scipy.stats.norm.logpdf(y[1:], p["mean"], jnp.sqrt(variances)).sum()

    return tv.models.Jax(log_density, {"mean": 0.0, "log base": 0.0, "shares": np.zeros(2)})


# ---- hidden Markov: which of two states a day is in, summed out -----------------------------------------------------
def hidden_markov(y: Any) -> None:
    stay = sample("stay", dist.Beta(9, 1).expand([2]).to_event(1))
    log_sd = sample(
        "log_sd",
        dist.TransformedDistribution(
            dist.Normal(jnp.array([-0.5, 0.5]), 1).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    change = jnp.log(jnp.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]]))
    seen = dist.Normal(0, jnp.exp(log_sd)).log_prob(y[:, None])

    def step(ahead: Any, now: Any) -> Any:
        return jax.nn.logsumexp(ahead[:, None] + change, axis=0) + now, None

    last, _ = jax.lax.scan(step, seen[0] - jnp.log(2), seen[1:])
    factor("states", jax.nn.logsumexp(last))


def hidden_markov_model() -> Any:
    return tv.models.NumPyro(hidden_markov, (table("MASS", "SP500").iloc[:400, -1].to_numpy(dtype=float),))


# ---- hares and lynx: a differential equation ------------------------------------------------------------------------
HARE = "30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7"
LYNX = "4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6"


def predators(counts: Any) -> None:
    rates = sample("rates", dist.LogNormal(jnp.log(jnp.array([1.0, 0.05, 1.0, 0.05])), 0.5).to_event(1))
    start = sample("start", dist.LogNormal(jnp.log(10.0), 1).expand([2]).to_event(1))
    noise = sample("noise", dist.LogNormal(-1, 1).expand([2]).to_event(1))

    def slope(z: Any) -> Any:
        return jnp.array([rates[0] - rates[1] * jnp.exp(z[1]), -rates[2] + rates[3] * jnp.exp(z[0])])  # of the logs

    def step(z: Any, _: Any) -> Any:
        a = slope(z)
        b = slope(z + 0.05 * a)
        c = slope(z + 0.05 * b)
        d = slope(z + 0.1 * c)
        return z + 0.1 / 6 * (a + 2 * b + 2 * c + d), z

    _, path = jax.lax.scan(step, jnp.log(start), None, length=201)  # Runge-Kutta, ten steps a year
    sample("counts", dist.LogNormal(path[::10], noise).to_event(2), obs=counts)


def predators_model() -> Any:
    return tv.models.NumPyro(predators, (np.array([HARE.split(), LYNX.split()], dtype=float).T,))


# ---- places on a map, each like its neighbours ----------------------------------------------------------------------
def neighbours(edges: Any, y: Any) -> None:
    level, sd = sample("level", dist.Normal(0, 2)), sample("sd", dist.HalfNormal(1))
    with plate("place", len(y)):
        e = sample("e", dist.Normal(0, 10))
    factor(
        "smooth",
        dist.Normal(0, 1).log_prob(e[edges[:, 0]] - e[edges[:, 1]]).sum() + dist.Normal(0, 0.1).log_prob(e.mean()),
    )
    sample("y", dist.Poisson(jnp.exp(level + sd * e)).to_event(1), obs=y)


def neighbours_model() -> Any:
    at = np.arange(49).reshape(7, 7)
    edges = np.vstack(
        [np.column_stack([at[:-1].ravel(), at[1:].ravel()]), np.column_stack([at[:, :-1].ravel(), at[:, 1:].ravel()])]
    )
    rng = np.random.default_rng(0)
    surface = np.sin(np.arange(7) / 2)[:, None] + np.cos(np.arange(7) / 2)
    return tv.models.NumPyro(neighbours, (edges, rng.poisson(np.exp(1.5 + 0.5 * surface)).ravel()))


ENTRIES = [
    Entry("stochastic volatility", "NumPyro", "stochastic_volatility", "MASS SP500", volatility_model),
    Entry("Nile", "Stan", "state space models: local level", "datasets Nile", nile_model),
    Entry("wandering line", "PyMC", "rolling regression", "datasets EuStockMarkets", rolling_model),
    Entry("autoregression", "posteriordb", "arK-arK", "datasets lynx", autoregression_model),
    Entry("GARCH", "posteriordb", "garch-garch11", "Ecdat Garch", garch_model),
    Entry("hidden Markov", "NumPyro", "hmm", "MASS SP500", hidden_markov_model),
    Entry("hares and lynx", "posteriordb", "hudson_lynx_hare-lotka_volterra", "its 21 years", predators_model),
    Entry("map", "PyMC", "conditional autoregressive models for spatial data", "simulated", neighbours_model),
]
