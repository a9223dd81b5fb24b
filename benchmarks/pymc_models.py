"""Models written for PyMC, on pyturingvi's data; their free variables come in the order of our coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
from answer_problems import SIGMA, Y


def peer_of(model: Any) -> pm.Model:
    """The PyMC form of robust Poisson regression or of the eight schools."""
    with pm.Model() as peer:
        if model.name == "rpoisson":
            s_alpha, s_beta, s_eta = (pm.HalfStudentT(name, nu=4, sigma=1) for name in ("s_alpha", "s_beta", "s_eta"))
            alpha = pm.Normal("alpha", 0, s_alpha)
            beta = pm.Normal("beta", 0, s_beta, shape=model.X.shape[1])
            eta = pm.Normal("eta", model.X @ beta + alpha, s_eta, shape=model.X.shape[0])
            pm.Poisson("y", pm.math.exp(eta), observed=model.y)
        elif model.name == "log_density":
            mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
            e = pm.Normal("e", 0, 1, shape=8)
            pm.Normal("y", mu + tau * e, SIGMA, observed=Y)
        else:
            raise ValueError(f"no PyMC form of {model.name}")
    return peer


def density_and_gradient(peer: pm.Model, point: np.ndarray) -> tuple[float, np.ndarray]:
    """Log density in unconstrained space, Jacobians included, and its gradient at a flat point."""
    values, at = {}, 0
    for variable in peer.value_vars:
        shape = peer.initial_point()[variable.name].shape
        size = int(np.prod(shape))
        values[variable.name] = point[at : at + size].reshape(shape)
        at += size
    return float(peer.compile_logp()(values)), np.asarray(peer.compile_dlogp()(values))
