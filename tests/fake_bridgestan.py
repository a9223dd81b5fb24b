"""BridgeStan with one program in it, so that `tv.models.Stan` is tested where nothing can be compiled.

It orders numbers as Stan does: names and values count the first index fastest, an unconstrained vector holds a matrix
column by column and an array of vectors row by row.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from scipy.special import softmax

CODE = """
data { int J; vector[J] y; vector[J] sigma; }
parameters {
  real mu; real<lower=0> tau; vector[J] theta; matrix[J, 2] b; array[J] simplex[3] p; simplex[3] q;
}
transformed parameters { vector[J] shifted = theta + mu; real tau2 = square(tau); }
model {
  mu ~ normal(0, 5); tau ~ cauchy(0, 5); theta ~ normal(mu, tau); to_vector(b) ~ normal(0, 2);
  y ~ normal(theta + b[, 1] - b[, 2], sigma);
  // and a standard normal on each coordinate of the simplexes in unconstrained space
}
generated quantities { vector[J] log_lik; vector[J] y_rep; real size; /* of y, as the model has it */ }
"""


def compile_model(path):
    """The path of a library, which is empty."""
    code = Path(path).read_text()
    if "syntax" in code:
        raise RuntimeError(
            "Command make failed with code 2.\nstdout:\n\n--- Translating Stan model to C++ code ---\n"
            "stderr:\nSyntax error in 'x.stan', line 1, column 3 to column 9, parsing error:\n   -----\n"
            '     1:  a syntax\n           ^\n   -----\nExpected "{".\nmake: *** [x.hpp] Error 1\n'
        )
    if "compiler" in code:
        raise RuntimeError(
            "Command make failed with code 2.\nstdout:\n\nstderr:\nmake: g++: No such file or directory\n"
        )
    library = Path(path).with_name(Path(path).stem + "_model.so")
    library.write_text("empty program" if "parameters" not in code else code)
    return library


class StanModel:
    def __init__(self, model_lib, data=None):
        self.empty = Path(model_lib).read_text() == "empty program"
        found = json.loads(data or "{}")
        for name in ("J", "y", "sigma"):
            if name not in found and not self.empty:
                raise RuntimeError(
                    f"Exception: variable does not exist; processing stage=data initialization; variable name={name}; "
                    "base type=double (in 'x.stan', line 2)"
                )
        self.n = int(found.get("J", 0))
        self.y, self.sigma = np.array(found.get("y", [])), np.array(found.get("sigma", []))
        self.calls = 0

    def param_unc_num(self):
        return 0 if self.empty else 2 + 5 * self.n + 2

    def param_num(self, *, include_tp=False, include_gq=False):
        return len(self.param_names(include_tp=include_tp, include_gq=include_gq))

    def new_rng(self, seed):
        return np.random.default_rng(seed)

    def param_names(self, *, include_tp=False, include_gq=False):
        n = range(1, self.n + 1)
        names = ["mu", "tau", *(f"theta.{j}" for j in n), *(f"b.{j}.{k}" for k in (1, 2) for j in n)]
        names += [*(f"p.{j}.{k}" for k in (1, 2, 3) for j in n), "q.1", "q.2", "q.3"]
        names += [*(f"shifted.{j}" for j in n), "tau2"] if include_tp else []
        return names + ([*(f"log_lik.{j}" for j in n), *(f"y_rep.{j}" for j in n), "size"] if include_gq else [])

    def param_unc_names(self):
        n = range(1, self.n + 1)
        names = ["mu", "tau", *(f"theta.{j}" for j in n), *(f"b.{j}.{k}" for k in (1, 2) for j in n)]
        return [*names, *(f"p.{j}.{k}" for k in (1, 2) for j in n), "q.1", "q.2"]

    def _parts(self, point):
        n = self.n
        theta, b = point[2 : 2 + n], point[2 + n : 2 + 3 * n].reshape(2, n).T
        p, q = point[2 + 3 * n : 2 + 5 * n].reshape(n, 2), point[2 + 5 * n :]
        return point[0], point[1], theta, b, p, q

    def param_constrain(self, point, *, include_tp=False, include_gq=False, rng=None, out):
        mu, log_tau, theta, b, p, q = self._parts(point)
        simplexes = softmax(np.column_stack([p, np.zeros(self.n)]), axis=1)
        values = [[mu, math.exp(log_tau)], theta, b.T.ravel(), simplexes.T.ravel(), softmax([*q, 0.0])]
        if include_tp:
            values += [theta + mu, [math.exp(2 * log_tau)]]
        if include_gq:
            mean = theta + b[:, 0] - b[:, 1]
            residual = (self.y - mean) / self.sigma
            likelihood = -0.5 * residual**2 - np.log(self.sigma) - 0.5 * math.log(2 * math.pi)
            values += [likelihood, mean + self.sigma * rng.standard_normal(self.n), [0.0]]
        out[:] = np.concatenate(values)
        return out

    def param_unconstrain(self, values, *, out):
        n = self.n
        if values[1] <= 0:
            raise RuntimeError("lb_free: Lower bounded variable is -1, but must be greater than or equal to 0")
        simplexes = np.log(values[2 + 3 * n : 2 + 6 * n].reshape(3, n).T)
        q = np.log(values[2 + 6 * n :])
        p = (simplexes[:, :2] - simplexes[:, 2:]).ravel()
        out[:] = np.concatenate([[values[0], math.log(values[1])], values[2 : 2 + 3 * n], p, q[:2] - q[2]])
        return out

    def log_density_gradient(self, point, *, propto=True, jacobian=True, out=None):
        assert not propto
        self.calls += 1
        mu, log_tau, theta, b, p, q = self._parts(point)
        tau = math.exp(log_tau)
        if log_tau > 20 or (self.sigma <= 0).any():
            raise RuntimeError(
                "Exception: normal_lpdf: Scale parameter is 0, but must be positive! (in 'x.stan', line 2)"
            )
        out = np.empty(len(point)) if out is None else out
        residual = (self.y - theta - b[:, 0] + b[:, 1]) / self.sigma
        z = (theta - mu) / tau
        squares = mu**2 / 25 + z @ z + (b**2).sum() / 4 + residual @ residual + (p**2).sum() + q @ q
        value = -0.5 * squares - 0.5 * (len(point) - 1 + self.n) * math.log(2 * math.pi) - math.log(5)
        value += -self.n * log_tau - 2 * self.n * math.log(2) - np.log(self.sigma).sum()
        value += log_tau - math.log(5 * math.pi * (1 + tau**2 / 25))
        pull = residual / self.sigma
        out[0] = -mu / 25 + z.sum() / tau
        out[1] = 1 - 2 * tau**2 / (25 + tau**2) + (z**2 - 1).sum()
        out[2:] = np.concatenate([pull - z / tau, pull - b[:, 0] / 4, -pull - b[:, 1] / 4, -p.ravel(), -q])
        return value, out
