"""Turing models that several test files build, each built once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import pyturingvi as tv

SCHOOLS = {"y": [28.0, 8, -3, 7, -1, 1, 18, 12], "sigma": [15.0, 10, 16, 11, 9, 11, 10, 18]}

CENTRED = """
@model function eight_schools(y, sigma, ::Type{T}=Float64) where {T}
    mu ~ Normal(0, 5)
    tau ~ truncated(Cauchy(0, 5); lower=0)
    theta = Vector{T}(undef, length(y))
    for j in eachindex(y)
        theta[j] ~ Normal(mu, tau)
        y[j] ~ Normal(theta[j], sigma[j])
    end
end
"""

NON_CENTRED = """
@model function eight_schools_non_centred(y, sigma)
    mu ~ Normal(0, 5)
    tau ~ truncated(Cauchy(0, 5); lower=0)
    eta ~ MvNormal(zeros(length(y)), I)
    theta := mu .+ tau .* eta
    y ~ MvNormal(theta, Diagonal(sigma .^ 2))
end
"""

VARYING = """
@model function varying(X, group, y, n_groups)
    spread ~ filldist(Exponential(1), 2)
    noise ~ Exponential(1)
    level ~ MvNormal(zeros(n_groups), I)
    slopes ~ arraydist([MvNormal(zeros(2), Diagonal(spread .^ 2)) for _ in 1:n_groups])
    mean = level[group] .+ [X[i, 1] * slopes[1, group[i]] + X[i, 2] * slopes[2, group[i]] for i in eachindex(y)]
    y ~ MvNormal(mean, noise^2 * I)
end
"""

LINE = """
@model function line(y)
    m ~ Normal(0, 2)
    e ~ MvNormal(fill(m, length(y)), I)
    y ~ MvNormal(e, I)
end
"""
LINE_DATA = {"y": [1.0, 2.0, 4.5]}


def varying_data() -> dict[str, Any]:
    rng = np.random.default_rng(11)
    return {"X": rng.normal(size=(12, 2)), "group": np.repeat([1, 2, 3, 4], 3), "y": rng.normal(size=12), "n_groups": 4}


@cache
def turing_model(which: str, ad: str | None = None) -> tv.models.Turing:
    if which == "varying":
        return tv.models.Turing(VARYING, varying_data(), local=["level", "slopes"], ad=ad)
    source, data, local = {
        "centred": (CENTRED, SCHOOLS, "theta"),
        "non-centred": (NON_CENTRED, SCHOOLS, "eta"),
        "line": (LINE, LINE_DATA, "e"),
    }[which]
    return tv.models.Turing(source, data, local=[local], ad=ad)


def schools_by_quadrature() -> dict[str, np.ndarray]:
    """Posterior means of eight schools, theta integrated out exactly and (mu, log tau) on a grid."""
    y, sigma = np.array(SCHOOLS["y"]), np.array(SCHOOLS["sigma"])
    mu = np.linspace(-25, 35, 601)[:, None, None]
    tau = np.exp(np.linspace(-9, 6, 1501))[None, :, None]
    variance = sigma**2 + tau**2
    log_joint = -0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + np.log(tau)
    log_joint = log_joint[..., 0] - 0.5 * ((y - mu) ** 2 / variance + np.log(variance)).sum(axis=2)
    weight = np.exp(log_joint - log_joint.max())
    weight /= weight.sum()
    shrunk = (y * tau**2 + mu * sigma**2) / variance
    return {
        "mu": (weight * mu[..., 0]).sum(),
        "tau": (weight * tau[..., 0]).sum(),
        "theta": (weight[..., None] * shrunk).sum(axis=(0, 1)),
    }
