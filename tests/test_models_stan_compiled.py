"""Stan programs that BridgeStan really compiles: minutes each, where BridgeStan and its sources are there."""

import os

import numpy as np
import pytest
from scipy import stats
from test_models_stan import DATA, SIGMA, Y

import pyturingvi as tv
from pyturingvi.errors import InputError

pytestmark = pytest.mark.slow
bridgestan = pytest.importorskip("bridgestan")

if not os.environ.get("BRIDGESTAN"):
    pytest.skip("BRIDGESTAN names no folder with BridgeStan's sources", allow_module_level=True)

SCHOOLS = """
data { int J; vector[J] y; vector[J] sigma; }
parameters { real mu; real<lower=0> tau; vector[J] theta; }
model { mu ~ normal(0, 5); tau ~ cauchy(0, 5); theta ~ normal(mu, tau); y ~ normal(theta, sigma); }
"""
ORDERS = """
data { int J; int K; }
parameters {
  matrix[J, K] b; array[J] vector[K] a; array[J] simplex[K] p; cholesky_factor_corr[K] L; vector<lower=0>[K] tau;
  real low; real<lower=low> high; ordered[K] cut; simplex[K] q; cov_matrix[2] S;
}
transformed parameters { matrix[K, K] C = diag_pre_multiply(tau, L); vector[J] squares = rows_dot_product(b, b); }
model {
  to_vector(b) ~ normal(0, 1);
  for (j in 1:J) { a[j] ~ normal(b[j]', 2); p[j] ~ dirichlet(rep_vector(2, K)); }
  L ~ lkj_corr_cholesky(2); tau ~ exponential(1); low ~ normal(0, 1); high ~ normal(0, 1); cut ~ normal(0, 2);
  q ~ dirichlet(rep_vector(1, K)); S ~ inv_wishart(5, identity_matrix(2));
}
"""


def test_eight_schools_has_stans_own_density_with_its_constants():
    model = tv.models.Stan(SCHOOLS, DATA, dims={"theta": ["school"]})
    assert model.structure == "globals: mu, tau; 8 local blocks of 1: theta by school"
    points = np.random.default_rng(1).normal(size=(3, 10))
    mu, tau, theta = (model.constrain(points)[name] for name in ("mu", "tau", "theta"))
    expected = stats.norm(0, 5).logpdf(mu) + stats.cauchy(0, 5).logpdf(tau) + np.log(tau)
    expected += stats.norm(mu[:, None], tau[:, None]).logpdf(theta).sum(axis=1)
    expected += stats.norm(theta, SIGMA).logpdf(Y).sum(axis=1)
    np.testing.assert_allclose(model.log_density(points), expected, rtol=1e-12)


def test_every_kind_of_parameter_comes_back_in_its_shape_and_order():
    model = tv.models.Stan(ORDERS, {"J": 5, "K": 3})
    assert model.local == ("b", "a", "p")
    points = np.random.default_rng(2).normal(size=(4, model.dim))
    values = model.constrain(points)
    np.testing.assert_allclose(model.unconstrain(values), points, atol=1e-12)
    np.testing.assert_allclose(values["p"].sum(axis=2), 1.0)
    np.testing.assert_allclose((values["b"] ** 2).sum(axis=2), values["squares"])
    np.testing.assert_allclose(values["tau"][:, :, None] * values["L"], values["C"])
    assert (np.diff(values["cut"]) > 0).all()
    assert (values["high"] > values["low"]).all()


def test_a_wrong_program_is_answered_in_stans_words():
    with pytest.raises(InputError, match=r"(?s)cannot be compiled:.*error in.*line 1"):
        tv.models.Stan("parameters { reel mu; }")
