"""Two of the five models as Stan programs, with the names of `door_numpyro.py`, and their data as Stan counts."""

from __future__ import annotations

from typing import Any

SCHOOLS = """
data { int J; vector[J] y; vector[J] sigma; }
parameters { real mu; real<lower=0> tau; vector[J] e; }
model { mu ~ normal(0, 5); tau ~ cauchy(0, 5) T[0, ]; e ~ std_normal(); y ~ normal(mu + tau * e, sigma); }
"""
SLEEP = """
data { int N; array[N] int subject; vector[N] days; vector[N] reaction; }
parameters {
  vector[2] mean; vector<lower=0>[2] sd; cholesky_factor_corr[2] corr; real<lower=0> noise;
  array[18] vector[2] line;
}
transformed parameters { real rho = corr[2, 1]; }
model {
  mean ~ normal([2.5, 0.1]', [1.0, 0.5]'); sd ~ normal(0, [1.0, 0.5]'); corr ~ lkj_corr_cholesky(2);
  noise ~ normal(0, 1); target += 3 * log2();  // the three half-normals
  line ~ multi_normal_cholesky(mean, diag_pre_multiply(sd, corr));
  reaction ~ normal(to_vector(line[subject, 1]) + to_vector(line[subject, 2]) .* days, noise);
}
"""


def schools(sigma: Any, y: Any) -> tuple[str, dict[str, Any]]:
    return SCHOOLS, {"J": len(y), "y": y, "sigma": sigma}


def sleep(subject: Any, days: Any, reaction: Any) -> tuple[str, dict[str, Any]]:
    return SLEEP, {"N": len(days), "subject": subject + 1, "days": days, "reaction": reaction}


MODELS = {"eight schools": schools, "sleepstudy": sleep}
