"""The five models for PyMC, with the names, priors and transforms of `door_numpyro.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import radon

Array = Any


def schools(sigma: Array, y: Array) -> pm.Model:
    with pm.Model(coords={"school": range(8)}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        e = pm.Normal("e", 0, 1, dims="school")
        pm.Normal("y", mu + tau * e, sigma, observed=y, dims="school")
    return model


def sleep(subject: Array, days: Array, reaction: Array) -> pm.Model:
    with pm.Model(coords={"driver": range(18), "of": ["intercept", "slope"]}) as model:
        mean = pm.Normal("mean", [2.5, 0.1], [1.0, 0.5], dims="of")
        sd = pm.HalfNormal("sd", [1.0, 0.5], dims="of")
        corr = pm.LKJCorr("rho", n=2, eta=2, return_matrix=True)
        noise = pm.HalfNormal("noise", 1)
        line = pm.MvNormal("line", mean, cov=sd * sd[:, None] * corr, dims=("driver", "of"))
        pm.Normal("reaction", line[subject, 0] + line[subject, 1] * days, noise, observed=reaction)
    return model


def verbagg(answers: Array) -> pm.Model:
    with pm.Model(coords={"person": range(len(answers)), "item": range(24)}) as model:
        mu_beta = pm.StudentT("mu_beta", nu=4, mu=0, sigma=1)
        s_beta = pm.HalfStudentT("s_beta", nu=4, sigma=1)
        s_gamma = pm.HalfStudentT("s_gamma", nu=4, sigma=1)
        gamma = pm.LogNormal("gamma", 0, s_gamma, dims="item")
        beta = pm.Normal("beta", 0, s_beta, dims="item")
        alpha = pm.Normal("alpha", 0, 1, dims="person")
        logit = alpha[:, None] * gamma + beta + mu_beta
        pm.Bernoulli("answers", logit_p=logit, observed=answers, dims=("person", "item"))
    return model


def grouse(place_of_brood: Array, brood: Array, height: Array, year: Array, ticks: Array) -> pm.Model:
    coords = {"place": range(63), "brood": range(len(place_of_brood)), "chick": range(len(ticks))}
    with pm.Model(coords=coords) as model:
        base, by_height = pm.Normal("base", 0, 2), pm.Normal("by_height", 0, 2)
        by_year = pm.Normal("by_year", 0, 2, shape=2)
        sd_place, sd_brood, sd_chick = (pm.HalfNormal(f"sd_{of}", 1) for of in ("place", "brood", "chick"))
        at_place = pm.Normal("at_place", base, sd_place, dims="place")
        in_brood = pm.Normal("in_brood", at_place[place_of_brood], sd_brood, dims="brood")
        mean = in_brood[brood] + by_height * height + (year * by_year).sum(axis=1)
        rate = pm.Normal("rate", mean, sd_chick, dims="chick")
        pm.Poisson("ticks", np.exp(rate), observed=ticks, dims="chick")
    return model


MODELS = {
    "eight schools": schools,
    "radon": radon.pymc_model,
    "sleepstudy": sleep,
    "VerbAgg": verbagg,
    "grouseticks": grouse,
}
