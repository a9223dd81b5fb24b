"""The five models as NumPyro functions. `STANDARD` has the sites that NUTS is given as standard variables."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import radon

Array = Any


def schools(sigma: Array, y: Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(y)):
        e = numpyro.sample("e", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * e, sigma), obs=y)


def sleep(subject: Array, days: Array, reaction: Array) -> None:
    mean = numpyro.sample("mean", dist.Normal(jnp.array([2.5, 0.1]), jnp.array([1.0, 0.5])).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(jnp.array([1.0, 0.5])).to_event(1))
    corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
    numpyro.deterministic("rho", corr[1, 0])
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("driver", 18):
        line = numpyro.sample("line", dist.MultivariateNormal(mean, scale_tril=sd[:, None] * corr))
    with numpyro.plate("row", len(days)):
        numpyro.sample("reaction", dist.Normal(line[subject, 0] + line[subject, 1] * days, noise), obs=reaction)


def verbagg(answers: Array) -> None:
    half_t = dist.FoldedDistribution(dist.StudentT(4.0, 0.0, 1.0))
    mu_beta = numpyro.sample("mu_beta", dist.StudentT(4.0, 0.0, 1.0))
    s_beta = numpyro.sample("s_beta", half_t)
    s_gamma = numpyro.sample("s_gamma", half_t)
    with numpyro.plate("item", 24, dim=-1):
        gamma = numpyro.sample("gamma", dist.LogNormal(0.0, s_gamma))
        beta = numpyro.sample("beta", dist.Normal(0.0, s_beta))
    with numpyro.plate("person", len(answers), dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(0.0, 1.0))
        with numpyro.plate("item", 24, dim=-1):
            numpyro.sample("answers", dist.Bernoulli(logits=alpha * gamma + beta + mu_beta), obs=answers)


def grouse(place_of_brood: Array, brood: Array, height: Array, year: Array, ticks: Array) -> None:
    base = numpyro.sample("base", dist.Normal(0, 2))
    by_height = numpyro.sample("by_height", dist.Normal(0, 2))
    by_year = numpyro.sample("by_year", dist.Normal(0, 2).expand([2]).to_event(1))
    layers = ("place", "brood", "chick")
    sd_place, sd_brood, sd_chick = (numpyro.sample(f"sd_{of}", dist.HalfNormal(1)) for of in layers)
    with numpyro.plate("place", 63):
        at_place = numpyro.sample("at_place", dist.Normal(base, sd_place))
    with numpyro.plate("brood", len(place_of_brood)):
        in_brood = numpyro.sample("in_brood", dist.Normal(at_place[place_of_brood], sd_brood))
    with numpyro.plate("chick", len(ticks)):
        rate = numpyro.sample("rate", dist.Normal(in_brood[brood] + by_height * height + year @ by_year, sd_chick))
        numpyro.sample("ticks", dist.Poisson(jnp.exp(rate)), obs=ticks)


MODELS = {
    "eight schools": schools,
    "radon": radon.radon,
    "sleepstudy": sleep,
    "VerbAgg": verbagg,
    "grouseticks": grouse,
}
STANDARD = {"radon": ["level", "floor"], "grouseticks": ["at_place", "in_brood"]}
